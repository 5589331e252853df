"""Configurations drawn by chance: few directives in few places, of those whose interplay makes nginx what it is."""
import random

LOCATIONS = ["/", "/loc1", "/loc1/", "= /loc1", "/loc2", "/loc2/", "^~ /loc2", "/loc3", "/loc3/", "= /loc3", "^~ /loc3/", "/loc4", "/loc4/",
             "/sub", "/sub/", "^~ /sub/", "= /", "= /a.txt", r"~ \.txt$", r"~* \.(png|txt)$", "~ ^/loc2/(.*)$", r"~ ^/re/(\d+)/(?<w>\w+)",
             "~* ^/LOC2", r"~ \.php$", "/internal/", "/img/", "/no_index/", "/missing", "~ /$", "~ ^/loc1/(?<rest>.+)$", "= /s.shtml",
             "/big", "= /loc3/redir", "/re", "~ ^/(sub|loc1)/(.+)$"]
VARIABLES = ["uri", "request_uri", "args", "arg_x", "is_args", "document_uri", "host", "http_host", "scheme", "server_name", "server_protocol",
             "request_method", "query_string", "remote_addr", "1", "2", "w", "rest", "a", "b", "mapped", "by_uri", "geo", "cookie_c",
             "content_length", "content_type", "http_x_a", "http_user_agent", "status", "request", "server_port", "limit_rate", "https",
             "remote_user", "split", "arg_Y", "request_filename", "document_root", "realpath_root", "http_referer", "is_request_port",
             "request_port", "proxy_host", "proxy_port", "proxy_add_x_forwarded_for", "upstream_status", "sent_http_x_b"]
CONDITIONS = ["$a", "$arg_x", "$arg_x = 1", "$arg_x != 1", r'$uri ~ "^/loc(\d)"', '$uri ~* "LOC(.)"', "$uri !~ txt", "$request_method = POST",
              "$http_x_a", '$http_x_a ~ "(v+)"', "-f $request_filename", "!-f $request_filename", "-d $request_filename",
              "-e $request_filename", "!-e $request_filename", "$mapped = A", '$args ~ "x=(.)"', "$cookie_c", "$host = other"]
PATTERNS = ["^/loc1/(.*)$", "^/loc2/(.*)", r"^(.*)\.txt$", "/sub/(.+)", r"^/loc(\d)/(.*)", ".", "^/$", r"(?<w>\w+)\.html", "x", "/missing(.*)"]
TARGETS = ["/loc2/$1", "/a.txt", "/$1", "/sub/$1?y=$arg_x", "/loc3/$2", "/b.html?", "/loc4/$1?q=1", "http://other/$1", "https://sec$uri?z",
           "/index.html", "/loc1/$1", "$scheme://$host/zz", "/sub/d%20e.txt", "/x y/$1", "/%41/$1"]
RETURNS = ["200 {v}", "204", "301 /moved", "301 http://o/$uri", "301 $request_uri", "302 /a.txt", "404", "403 {v}", "410", "https://o/", "500",
           "307 /b", "308 /c", "418 tea", "204 x", "200", "405", "503", "400", "499", "206 part"]

# Directives of a location: a name for what may stand there once, and the ways of it. {v}: a text with variables, {q}: in quotes,
# @P@: the upstream's port, @D@: the server's folder.
WAYS = {
    "error_page": ["error_page 404 /err.html;", "error_page 404 =200 /b.html;", "error_page 404 = @named;", "error_page 403 404 500 = /loc2/x;",
                   "error_page 404 http://o/e;", "error_page 404 =301 http://o/e$uri;", "error_page 403 =404 /err.html;",
                   "error_page 404 405 410 /missing_err;", "error_page 404 = /loc3/q;", "error_page 405 =200 /a.txt;",
                   "error_page 500 503 502 =502 @named;", "error_page 404 /sub/$request_method;", "error_page 301 302 =200 /a.txt;",
                   "error_page 404 =410 @named;", "error_page 418 = @named;", "error_page 400 /err.html;", "error_page 304 /err.html;"],
    "add_header": ["add_header X-B {q};", "add_header X-C {q} always;", "add_header X-D {q};", 'add_header Last-Modified "";',
                   "add_header Cache-Control no-store;", "add_header ETag x;", "add_header Location /zz;", "add_header Content-Type q;"],
    "expires": ["expires 1h;", "expires -1;", "expires epoch;", "expires max;", "expires off;", "expires modified 1h;", "expires $when;"],
    "default_type": ["default_type text/x;", "default_type text/html;"],
    "types": ["types { text/y txt; image/z png; }", "types { }"],
    "limit_except": ["limit_except GET { deny all; }", "limit_except GET POST { deny all; }", "limit_except POST { allow 127.0.0.1; deny all; }"],
    "access": ["deny all;", "allow all;", "deny 127.0.0.1;", "allow 127.0.0.0/8; deny all;", "deny 10.0.0.0/8;"],
    "satisfy": ["satisfy any;", "satisfy all;"],
    "charset": ["charset utf-8;", "charset koi8-r;", "charset utf-8; override_charset on;", "charset $arg_x;"],
    "etag": ["etag off;"],
    "if_modified_since": ["if_modified_since off;", "if_modified_since before;"],
    "max_ranges": ["max_ranges 0;", "max_ranges 1;"],
    "try_files": ["try_files $uri $uri/ /index.html;", "try_files $uri /loc2/x?q=1;", "try_files $uri =404;", "try_files $uri.html $uri @named;",
                  "try_files /sub$uri $uri/ =410;", "try_files $uri/ $uri;", "try_files $uri $uri/index.html @named;",
                  "try_files /nope $uri$is_args$args =403;", "try_files $uri /b.html?$args;", 'try_files "$uri x" /loc3/z;'],
    "index": ["index a.txt;", "index nope.html index.html;", "index /a.txt;", "index $a.html c.txt;", "index f.txt;"],
    "autoindex": ["autoindex on;", "autoindex on; autoindex_format json;", "autoindex on; autoindex_format xml;"],
    "content": ["proxy_pass http://127.0.0.1:@P@;", "proxy_pass http://127.0.0.1:@P@;", "proxy_pass http://127.0.0.1:@P@/;",
                "proxy_pass http://127.0.0.1:@P@/px/;", "proxy_pass http://be/u/;", "proxy_pass http://be/q%20r/;", "proxy_pass http://be;",
                "proxy_pass http://127.0.0.1:@P@$request_uri;", "proxy_pass http://be$uri;", "proxy_pass http://$group/v/$arg_x;",
                "proxy_pass http://be/c?z=$arg_x;", "proxy_pass http://dead;", "empty_gif;"],
    "root": ["root @D@/html/sub;", "root @D@/nope;", "root html;", "alias @D@/html/;", "alias @D@/html/sub/;", "alias @D@/html/a.txt;",
             "alias @D@/html/$1;", "alias @D@/html;"],
    "internal": ["internal;"],
    "sub_filter": ["sub_filter hello bye;", "sub_filter hello $uri; sub_filter_once off;", "sub_filter 123 X; sub_filter_types *;",
                   "sub_filter start end; sub_filter_last_modified on;"],
    "addition": ["add_before_body /a.txt;", "add_after_body /sub/c.txt;", "add_after_body /loc2/z; addition_types *;"],
    "ssi": ["ssi on;", "ssi on; ssi_types *;", "ssi on; ssi_last_modified on;"],
    "proxy_set_header": ["proxy_set_header Host $host;", "proxy_set_header X-Up {q};", 'proxy_set_header Connection "";',
                         "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", 'proxy_set_header Host x; proxy_set_header X-A "";'],
    "gzip": ["gzip on; gzip_min_length 1;", "gzip on; gzip_types *; gzip_vary on;", "gzip on; gzip_proxied no_etag expired;"],
    "recursive_error_pages": ["recursive_error_pages on;"],
    "add_header_inherit": ["add_header_inherit merge;", "add_header_inherit off;"],
    "chunked": ["chunked_transfer_encoding off;"],
    "auth": ['auth_basic "r"; auth_basic_user_file ht;', "auth_request /auth/ok;", "auth_request /auth/no;",
             "auth_request /auth/ok; auth_request_set $a $upstream_status;", "auth_request /auth/x;"],
    "redirects": ["absolute_redirect off;", "port_in_redirect off;", "server_name_in_redirect on;"],
    "access_log": ["access_log off;"],
    "add_trailer": ["add_trailer X-T {q};", "add_trailer X-T v always;"],
    "secure_link": ['secure_link $arg_md5; secure_link_md5 "$uri s";', 'secure_link $arg_md5,$arg_e; secure_link_md5 "$secure_link_expires$uri s";'],
    "client_max_body_size": ["client_max_body_size 3;", "client_max_body_size 1;"],
    "proxy": ["proxy_intercept_errors on;", "proxy_method POST;", "proxy_method GET;", "proxy_set_body {q};", "proxy_pass_request_body off;",
              "proxy_pass_request_headers off;", "proxy_hide_header X-U;", "proxy_pass_header Server;", "proxy_pass_header Date;",
              "proxy_hide_header Set-Cookie;", "proxy_buffering off;", "proxy_ignore_headers X-Accel-Redirect;", "proxy_http_version 1.0;",
              "proxy_force_ranges on;", "proxy_request_buffering off;", "proxy_next_upstream http_404 http_500;"],
    "proxy_cache": ["proxy_cache c; proxy_cache_valid any 1m;", "proxy_cache c; proxy_cache_valid 200 302 1m; proxy_cache_valid 404 1m;",
                    "proxy_cache c; proxy_cache_key $uri; proxy_cache_valid 1m;", "proxy_cache c;",
                    "proxy_cache c; proxy_cache_methods POST; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_cache_min_uses 2; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_cache_bypass $arg_x; proxy_no_cache $cookie_c; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_cache_convert_head off; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_cache_key $request_method$request_uri; proxy_cache_revalidate on; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_ignore_headers Cache-Control Expires Vary X-Accel-Expires Set-Cookie; proxy_cache_valid any 1m;",
                    "proxy_cache c; proxy_cache_use_stale error http_500 http_404; proxy_cache_valid 200 1m;", "proxy_cache off;"],
    "proxy_redirect": ["proxy_redirect http://127.0.0.1:@P@/ /rr/;", "proxy_redirect off;", "proxy_redirect / /pre/;",
                       "proxy_redirect ~^http://([^/]+)(/.*)$ http://new$2?h=$1;"],
    "proxy_cookie": ["proxy_cookie_path /x/ /y/;", "proxy_cookie_path ~^/(.) /p$1;", "proxy_cookie_domain foo bar;",
                     "proxy_cookie_flags ~ secure httponly samesite=lax;", "proxy_cookie_flags ca nosecure;"],
    "realip": ["set_real_ip_from 127.0.0.0/8;", "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;",
               "real_ip_recursive on; set_real_ip_from 127.0.0.0/8; set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;"],
    "keepalive": ["keepalive_timeout 0;", "keepalive_timeout 65 60;", "keepalive_disable none;", "keepalive_requests 1;"],
    "referer": ["valid_referers none blocked server_names *.ok.com ~ok2; if ($invalid_referer) { return 403; }"],
}
# May stand in one place more than once.
MANY = {"error_page", "add_header", "access", "proxy_set_header"}
IN_SERVER = set(WAYS) - {"content", "root", "limit_except", "internal", "referer"}
HTTP = ["", "", "error_page 404 /err.html;", "add_header X-H h;", "proxy_set_header X-Http 1;", "expires 1d;", "gzip on; gzip_min_length 1;",
        "absolute_redirect off;", "charset utf-8;", "index b.html;", "max_ranges 1;", "ignore_invalid_headers off;",
        "underscores_in_headers on;", "port_in_redirect off;"]
NAMES = ["localhost", "localhost *.ex.com", r"~^(?<sub>.+)\.re\.com$ localhost", '"" localhost', ".dot.com localhost"]
NAMED = ['return 200 "named $uri $status";', "proxy_pass http://be;", "", "try_files /b.html =404;", "rewrite ^ /a.txt break;", "return 403;"]

# What the lines of the access log hold, so that a difference in a variable is seen too.
LOGGED = ["request", "status", "uri", "args", "a", "b", "mapped", "by_uri", "upstream_status", "sent_http_location", "sent_http_content_type",
          "sent_http_content_length", "sent_http_etag", "request_length", "w", "remote_addr", "remote_user", "host", "server_name",
          "request_method", "http_host", "sent_http_x_b", "sent_http_transfer_encoding", "content_length", "limit_rate",
          "sent_http_cache_control", "sent_http_accept_ranges", "upstream_http_x_u", "upstream_cookie_ca", "proxy_host", "proxy_port",
          "is_args", "secure_link", "invalid_referer", "upstream_cache_status"]


class Draw:
    """A configuration for each seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        """The whole of it. @A@ stands for the server's address and port."""
        pick, names = self.random.choice, []
        for name in self.random.sample(LOCATIONS, self.random.randint(2, 6)):
            if not any(_same(name, other) for other in names):
                names.append(name)
        locations = "\n".join(self._location(name) for name in names)
        return f"""events {{}}
http {{
  include mime; default_type application/octet-stream; server_tokens off; uninitialized_variable_warn off;
  log_format all '{"|".join("$" + name for name in LOGGED)}'; access_log logs/access.log all;
  map $arg_x $mapped {{ default none; 1 A; 2 $uri; ~^a(.) "re$1"; "" ""; }}
  map $uri $by_uri {{ hostnames; default d; ~^/loc(?<w2>\\d) L$w2; /a.txt T; ~*\\.TXT$ t; *.x y; }}
  map $uri $captured {{ ~^/(?<rest>q+)(?<w>q)$ $1$2; }}
  map $arg_x $when {{ default 1h; 1 off; 2 epoch; }}
  map $host $group {{ default be; }}
  geo $geo {{ default g; 127.0.0.0/8 lo; 127.0.0.1 one; }}
  proxy_cache_path @D@/cache keys_zone=c:1m;
  split_clients $request_uri $split {{ 30% s1; 20.5% s2; * s3; }}
  upstream be {{ server 127.0.0.1:@P@; }}
  upstream dead {{ server 127.0.0.1:1; }}
  {pick(HTTP)}
  server {{
    listen @A@ {pick(["", "default_server"])}; server_name {pick(NAMES)}; root @D@/html;
    if ($arg_zzz) {{ set $a 1; set $b 2; }} {pick(["", 'set $a ""; set $b bb;'])}
    {self._some(IN_SERVER, 0, 4)}
{locations}
    location @named {{ {pick(NAMED)} }}
    location /auth/ {{ {pick(["proxy_pass http://be;", "return 403;", "return 200;", "return 401;"])} }}
  }}
  server {{
    listen @A@; server_name other *.wild.com www.*; root @D@/html/sub;
    {self._some(IN_SERVER, 0, 2)}
    location /loc2 {{ return 200 "second $host $server_name"; }}
  }}
}}
"""

    def _location(self, name):
        nested = ""
        if name[0] in "/^" and self.random.random() < 0.15:
            base = name.split()[-1].rstrip("/")
            inner = self.random.choice([r"~ \.txt$", "~ x", f"= {base}/a.txt", base + "/x", r"~* \.(html|TXT)$"])
            nested = f"\n      location {inner} {{ {self._some(set(WAYS), 1, 3)} }}"
        return f"    location {name} {{\n      {self._some(set(WAYS), 1, 5)}{nested}\n    }}"

    def _some(self, names, least, most):
        taken, lines = set(), []
        for _ in range(self.random.randint(least, most)):
            kind = self.random.choice(["rewrite"] * 3 + sorted(names))
            if kind == "rewrite":
                lines.append(self._rewrite())
            elif kind in MANY or kind not in taken:
                taken.add(kind)
                lines.append(self._fill(self.random.choice(WAYS[kind])))
        return "\n      ".join(lines)

    def _rewrite(self):
        pick = self.random.choice
        kind = pick(["rewrite", "set", "if", "return"])
        if kind == "rewrite":
            return f'rewrite "{pick(PATTERNS)}" "{pick(TARGETS)}" {pick(["", "last", "break", "redirect", "permanent"])};'
        if kind == "set":
            return self._fill(f"set ${pick('ab')} {{q}};")
        if kind == "return":
            return self._fill(f"return {pick(RETURNS)};".replace("{v}", "{q}"))
        inner = pick([self._fill("set $b {q};"), f'rewrite "{pick(PATTERNS)}" "{pick(TARGETS)}";', self._fill("return 200 {q};"), "break;"])
        return f"if ({pick(CONDITIONS)}) {{ {inner} }}"

    def _fill(self, line):
        return line.replace("{q}", f'"{self._value()}"')

    def _value(self):
        variable = "${" + self.random.choice(VARIABLES) + "}"
        # The numbered groups have no other form.
        variable = variable.replace("${1}", "$1").replace("${2}", "$2")
        return self.random.choice([variable, variable, f"p{variable}s", "x", "", f"q-{variable}", "${a}z", "a b"])


def _same(name, other):
    strip = lambda text: text.split()[-1] if text[0] in "/^" else text
    return strip(name) == strip(other)
