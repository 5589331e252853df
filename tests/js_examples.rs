//! Every one of nginx's own examples of njs (njs-examples) has its equivalent here, written anew, with the answers that their README gives.

use crate::harness::{Backend, Reply, Site};
use crate::js::{filled, post, site, stream, talk, with_header, writable};

#[test]
fn example_hello() {
    let server = Site::http(
        "js_path lib; js_import tools.js; js_import main from http/hello.js;
         server { listen 127.0.0.1:@PORT@; location = /version { js_content tools.version; } location / { js_content main.greet; } }",
    )
    .file("lib/tools.js", "export default { version: (r) => r.return(200, njs.version) }")
    .file("lib/http/hello.js", "function greet(r) { r.return(200, 'Hello world!\\n'); } export default { greet }")
    .start();
    assert_eq!(server.get("/").text(), "Hello world!\n");
    assert!(server.get("/version").text().starts_with(|c: char| c.is_ascii_digit()));
}

#[test]
fn example_backend_by_auth_request_and_header_filter() {
    let server = site(
        "",
        "location /plain/ { auth_request /ask; auth_request_set $backend $sent_http_x_backend; proxy_pass http://$backend; }
         location = /ask { internal; proxy_pass http://127.0.0.1:@PORT@/choose; proxy_pass_request_body off;
           proxy_set_header Content-Length \"\"; proxy_set_header X-Original-URI $request_uri; js_header_filter main.translate; }
         location = /choose { js_content main.choose; }",
        "import qs from 'querystring';
         const names = { A: 'B1', B: 'B2' };
         function choose(r) {
             const { token } = qs.parse(r.headersIn['X-Original-URI'].split('?')[1]);
             if (!(token in names)) { r.return(404); return; }
             r.headersOut['X-Backend'] = names[token];
             r.return(200);
         }
         function translate(r) {
             const port = { B1: '@A@', B2: '@B@' }[r.headersOut['x-backend']];
             if (port) { r.headersOut['X-Backend'] = '127.0.0.1:' + port; }
         }
         export default { choose, translate };",
    );
    let (a, b) = (Backend::ok("BACKEND A"), Backend::ok("BACKEND B"));
    let path = server.path().join("main.js");
    let text = std::fs::read_to_string(path).expect("the program");
    let text = text.replace("@A@", &a.port.to_string()).replace("@B@", &b.port.to_string());
    let server = server.file("main.js", text).start();
    assert_eq!(server.get("/plain/abc?token=A").text(), "BACKEND A");
    assert_eq!(server.get("/plain/abc?token=B").text(), "BACKEND B");
    assert!(a.seen()[0].line().starts_with("GET /plain/abc?token=A HTTP/1."));
}

#[test]
fn example_field_of_a_token_as_a_variable() {
    let server = site(
        "js_set $sub main.sub;",
        "location /jwt { return 200 $sub; }",
        "const parts = (t) => t.split('.').slice(0, 2).map((p) => JSON.parse(Buffer.from(p, 'base64url').toString()));
         export default { sub: (r) => parts(r.headersIn.Authorization.slice(7))[1].sub };",
    )
    .start();
    // {"typ":"JWT","alg":"HS256"} and {"iss":"nginx","sub":"alice"}
    let token = "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJuZ2lueCIsInN1YiI6ImFsaWNlIn0.x";
    assert_eq!(with_header(&server, "/jwt", &format!("Authorization: Bearer {token}")).text(), "alice");
    // Without the header the function throws: no value, and a line with its place.
    assert_eq!(server.get("/jwt").text(), "");
    assert!(server.error_log().contains("js exception: TypeError"));
    assert!(server.error_log().contains("main.js:2"), "{}", server.error_log());
}

#[test]
fn example_a_token_is_made() {
    let server = Site::whole(
        "env JWT_KEY=foo; events {} http { js_import main from main.js; js_set $jwt main.jwt;
         server { listen 127.0.0.1:@PORT@; location /jwt { return 200 $jwt; } } }",
    )
    .file(
        "main.js",
        "async function jwt(r) {
             const body = [{ typ: 'JWT', alg: 'HS256' }, { sub: 'alice', foo: 123 }]
                 .map((o) => Buffer.from(JSON.stringify(o)).toString('base64url')).join('.');
             const key = await crypto.subtle.importKey('raw', process.env.JWT_KEY, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign']);
             const mark = await crypto.subtle.sign({ name: 'HMAC' }, key, body);
             r.setReturnValue(body + '.' + Buffer.from(mark).toString('base64url'));
         }
         export default { jwt };",
    )
    .start();
    let token = server.get("/jwt").text();
    // Made with: openssl dgst -sha256 -hmac foo
    assert_eq!(
        token,
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSIsImZvbyI6MTIzfQ.WpPHqyGtOcsQzj2wjH_DVFRfpIVbT4DYCWyS-yTnB64"
    );
}

#[test]
fn example_secure_link() {
    let backend = Backend::ok("PASSED");
    let server = Site::whole(
        "env SECRET_KEY=mykey; events {} http { js_import main from main.js; js_set $new main.link; js_set $key main.key;
         server { listen 127.0.0.1:@PORT@;
           location /secure/ { error_page 403 = @login; secure_link $cookie_foo; secure_link_md5 \"$uri$key\";
             if ($secure_link = \"\") { return 403; } proxy_pass http://127.0.0.1:@BACKEND@; }
           location @login { add_header Set-Cookie \"foo=$new; Max-Age=60\"; return 302 $request_uri; } } }",
    )
    .set("BACKEND", backend.port)
    .file(
        "main.js",
        "import crypto from 'crypto';
         const key = () => process.env.SECRET_KEY;
         const link = (r) => crypto.createHash('md5').update(r.uri).update(key()).digest('base64url');
         export default { key, link };",
    )
    .start();
    let first = server.get("/secure/r");
    assert_eq!(first.status, 302);
    let cookie = first.header("Set-Cookie").and_then(|c| c.split(';').next()).expect("a cookie").to_owned();
    assert_eq!(with_header(&server, "/secure/r", &format!("Cookie: {cookie}")).text(), "PASSED");
    assert_eq!(with_header(&server, "/secure/s", &format!("Cookie: {cookie}")).status, 302);
}

/// HMAC-SHA1 of a text with the key `foo`, in base64, by openssl.
const SIGNED: &[(&str, &str)] =
    &[("/secure/Ba=1", "YC5iL6aKDnv7XOjknEeDL+P58iw="), ("/secure/Bbody", "jMyTR5IbK3uO9Jpq0vexUHq1iog=")];

#[test]
fn example_signed_requests() {
    let backend =
        Backend::start(|seen| Reply::ok(&format!("BACKEND:{}", seen.line().split(' ').nth(1).unwrap_or_default())));
    let server = Site::whole(
        "env SECRET_KEY=foo; events {} http { js_import main from main.js;
         server { listen 127.0.0.1:@PORT@;
           location /secure/ { auth_request /validate; proxy_pass http://127.0.0.1:@BACKEND@; }
           location = /validate { internal; js_content main.judge; }
           location /body/ { js_content main.with_body; }
           location @backend { proxy_pass http://127.0.0.1:@BACKEND@; } } }",
    )
    .set("BACKEND", backend.port)
    .file(
        "main.js",
        "import crypto from 'crypto';
         const sign = (...parts) => {
             const h = crypto.createHmac('sha1', process.env.SECRET_KEY);
             parts.forEach((p) => h.update(p));
             return h.digest('base64');
         };
         function judge(r) {
             const [path, args = ''] = r.variables.request_uri.split('?');
             if (!r.headersIn.Signature) { r.error('No signature'); r.return(401); return; }
             r.return(sign(path, args) === r.headersIn.Signature ? 200 : 401);
         }
         function with_body(r) {
             if (r.method !== 'POST' || !r.requestText) { r.return(401, 'Unsupported method\\n'); return; }
             const own = sign(r.uri.replace('/body/', '/secure/'), r.requestText);
             if (own !== r.headersIn.Signature) { r.return(401, `Invalid signature: ${own}\\n`); return; }
             r.internalRedirect('@backend');
         }
         export default { judge, with_body };",
    )
    .start();
    assert_eq!(server.get("/secure/B?a=1").status, 401);
    assert!(server.error_log().contains("js: No signature"));
    let good = format!("Signature: {}", SIGNED[0].1);
    assert_eq!(with_header(&server, "/secure/B?a=1", &good).text(), "BACKEND:/secure/B?a=1");
    assert_eq!(with_header(&server, "/secure/B?a=2", &good).status, 401);
    let mut client = server.connect();
    client.send(format!(
        "POST /body/B HTTP/1.1\r\nHost: x\r\nSignature: {}\r\nContent-Length: 4\r\n\r\nbody",
        SIGNED[1].1
    ));
    assert_eq!(client.response().text(), "BACKEND:/body/B");
    assert_eq!(post(&server, "/body/B", "b0dy").status, 401);
    assert_eq!(server.get("/body/B").text(), "Unsupported method\n");
}

#[test]
fn example_routes_kept_in_a_file() {
    let backend = Backend::start(|seen| Reply::ok(seen.line()));
    let server = site(
        "",
        "location / { auth_request /resolve; auth_request_set $route $sent_http_route; proxy_pass http://127.0.0.1:@BACKEND@$route$is_args$args; }
         location = /resolve { internal; js_content main.resolve; }
         location = /map { js_content main.map; } location = /add { js_content main.add; } location = /remove { js_content main.remove; }",
        "import fs from 'fs';
         const FILE = ngx.prefix + 'routes.json';
         const read = () => { try { return JSON.parse(fs.readFileSync(FILE)); } catch { return {}; } };
         const write = (map) => fs.writeFileSync(FILE, JSON.stringify(map));
         const pair = (r) => JSON.parse(r.requestText ?? '{}');
         function change(r, how) {
             const p = pair(r);
             if (!p.from) { r.return(400, 'invalid request'); return; }
             const map = read();
             how(map, p);
             write(map);
             r.return(200);
         }
         export default {
             map: (r) => r.return(200, JSON.stringify(read())),
             add: (r) => change(r, (map, p) => { map[p.from] = p.to; }),
             remove: (r) => change(r, (map, p) => { delete map[p.from]; }),
             resolve(r) {
                 const uri = r.variables.request_uri.split('?')[0];
                 r.headersOut.Route = read()[uri] ?? uri;
                 r.return(200);
             },
         };",
    )
    .set("BACKEND", backend.port)
    .file("routes.json", "{}");
    writable(&server, "routes.json");
    let server = server.start();
    assert_eq!(server.get("/map").text(), "{}");
    assert_eq!(server.get("/a?x=1").text(), "GET /a?x=1 HTTP/1.1");
    assert_eq!(post(&server, "/add", r#"{"from": "/a", "to": "/b/c"}"#).status, 200);
    assert_eq!(server.get("/map").text(), r#"{"/a":"/b/c"}"#);
    assert_eq!(server.get("/a?x=1").text(), "GET /b/c?x=1 HTTP/1.1");
    assert_eq!(post(&server, "/remove", r#"{"from": "/a"}"#).status, 200);
    assert_eq!(post(&server, "/remove", "").status, 400);
    assert_eq!(server.get("/map").text(), "{}");
}

#[test]
fn example_decoded_argument() {
    let server = site(
        "js_set $foo main.foo;",
        "location /enc { return 200 $arg_foo; } location /dec { return 200 $foo; }",
        "export default { foo: (r) => decodeURIComponent(r.args.foo) };",
    )
    .start();
    assert_eq!(server.get("/enc?foo=%D0%B0").text(), "%D0%B0");
    assert_eq!(server.get("/dec?foo=%D0%B0").text(), "а");
}

#[test]
fn example_subrequests_joined_and_chained() {
    let server = site(
        "",
        "location = /join { js_content main.join; } location = /foo { return 200 FOO; } location = /bar { return 203 BAR; }
         location = /start { js_content main.chain; }
         location = /auth { internal; js_content main.auth; }
         location = /backend { internal; return 200 \"Token is $arg_token\"; }",
        "async function join(r) {
             const all = await Promise.all(['/foo', '/bar'].map((uri) => r.subrequest(uri)));
             r.return(200, JSON.stringify(all.map((a) => ({ uri: a.uri, code: a.status, body: a.responseText }))));
         }
         async function chain(r) {
             try {
                 const { token } = JSON.parse((await r.subrequest('/auth')).responseText);
                 if (!token) { throw new Error('token is not available'); }
                 const answer = await r.subrequest('/backend', `token=${token}`);
                 r.return(answer.status, answer.responseText);
             } catch (e) {
                 r.return(500, e);
             }
         }
         function auth(r) {
             const given = r.headersIn.Authorization;
             if (given && given.slice(7) === 'secret') { r.return(200, JSON.stringify({ token: 42 })); return; }
             r.return(403, JSON.stringify({ status: 'INVALID' }));
         }
         export default { join, chain, auth };",
    )
    .start();
    assert_eq!(
        server.get("/join").text(),
        r#"[{"uri":"/foo","code":200,"body":"FOO"},{"uri":"/bar","code":203,"body":"BAR"}]"#
    );
    assert_eq!(with_header(&server, "/start", "Authorization: Bearer secret").text(), "Token is 42");
    let refused = with_header(&server, "/start", "Authorization: Bearer secre");
    assert_eq!((refused.status, refused.text().as_str()), (500, "Error: token is not available"));
}

#[test]
fn example_answers_changed_on_their_way() {
    let backend = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 200 OK\r\nSet-Cookie: XXXXXX\r\nSet-Cookie: BB\r\nSet-Cookie: YYYYYYY\r\nContent-Length: 11\r\n\r\nHello World".into())
    });
    let server = site(
        "",
        "proxy_pass_header Set-Cookie;
         location /cookies { js_header_filter main.cookies; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /lower { js_header_filter main.unmeasured; js_body_filter main.lower; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /bytes { js_header_filter main.unmeasured; js_body_filter main.count buffer_type=buffer; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /some { js_body_filter main.first; return 200 0123456789; }",
        "export default {
             cookies(r) { r.headersOut['Set-Cookie'] = r.headersOut['Set-Cookie'].filter((c) => c.length > Number(r.args.len)); },
             unmeasured(r) { delete r.headersOut['Content-Length']; },
             lower(r, data, flags) { r.sendBuffer(data.toLowerCase(), flags); },
             count(r, data, flags) { r.sendBuffer(`${data instanceof Buffer}:${data.length};`, flags); },
             first(r, data, flags) { r.sendBuffer(data, flags); r.done(); },
         };",
    )
    .set("BACKEND", backend.port)
    .start();
    let all = |target: &str| {
        let mut client = server.connect();
        let bytes = client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).rest();
        String::from_utf8_lossy(&bytes)
            .lines()
            .filter_map(|l| l.strip_prefix("Set-Cookie: ").map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(all("/cookies?len=1"), ["XXXXXX", "BB", "YYYYYYY"]);
    assert_eq!(all("/cookies?len=3"), ["XXXXXX", "YYYYYYY"]);
    assert_eq!(server.get("/lower").text(), "hello world");
    assert!(server.get("/bytes").text().starts_with("true:11;"));
    assert_eq!(server.get("/some").text(), "0123456789");
}

#[test]
fn example_requests_counted_for_the_log() {
    let server = site(
        "keyval_zone zone=foo:1m; keyval $remote_addr $seen zone=foo; js_set $count main.count;
         log_format counted '$remote_addr $count'; ",
        "access_log @DIR@/logs/counted.log counted; location / { return 200 x; }",
        "export default { count(r) { const n = Number(r.variables.seen ?? 0) + 1; r.variables.seen = n; return n; } };",
    )
    .start();
    for _ in 0..3 {
        assert_eq!(server.get("/").status, 200);
    }
    server.wait_for("logs/counted.log", "127.0.0.1 3");
}

#[test]
fn example_rate_limit_in_a_dictionary() {
    let server = site(
        "js_shared_dict_zone zone=kv:1M timeout=60s evict;",
        "js_var $limit 2; js_set $late main.late; location = / { if ($late) { add_header Retry-After $late always; return 429; } return 200 in; }",
        "export default {
             late(r) {
                 const kv = ngx.shared.kv;
                 const seen = Number(kv.get(r.remoteAddress) ?? 0) + 1;
                 kv.set(r.remoteAddress, String(seen));
                 return seen > Number(r.variables.limit) ? '30' : '0';
             },
         };",
    )
    .start();
    assert_eq!((server.get("/").status, server.get("/").status), (200, 200));
    let late = server.get("/");
    assert_eq!((late.status, late.header("Retry-After")), (429, Some("30")));
}

#[test]
fn example_keyval_by_a_subrequest() {
    let server = site(
        "keyval_zone zone=foo:1m; keyval $arg_key $value zone=foo;",
        "location /set { js_content main.set; } location /api { internal; api write=on; } location /get { return 200 $value; }",
        "export default {
             async set(r) {
                 const answer = await r.subrequest('/api/9/http/keyvals/foo', { method: r.args.method ?? 'POST', body: r.requestText });
                 if (answer.status >= 300) { r.return(answer.status, answer.responseText); return; }
                 r.return(200);
             },
         };",
    )
    .start();
    assert_eq!(post(&server, "/set", r#"{"a": "1"}"#).status, 200);
    assert_eq!(server.get("/get?key=a").text(), "1");
    assert_eq!(post(&server, "/set", r#"{"a": "2"}"#).status, 409);
}

#[test]
fn example_text_encrypted() {
    let server = site(
        "",
        "location /encrypt { js_content main.encrypt; } location /decrypt { js_content main.decrypt; }",
        "const b64 = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));
         async function key(text, how) {
             const raw = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));
             return crypto.subtle.importKey('raw', raw, { name: 'AES-GCM' }, false, [how]);
         }
         async function encrypt(r) {
             const iv = Buffer.from(r.args.iv, 'hex');
             const out = await crypto.subtle.encrypt({ name: 'AES-GCM', iv }, await key(r.args.key, 'encrypt'), r.requestText);
             r.return(200, JSON.stringify({ cipher: b64(out), iv: b64(iv) }));
         }
         async function decrypt(r) {
             try {
                 const { cipher, iv } = JSON.parse(r.requestText);
                 const how = { name: 'AES-GCM', iv: Buffer.from(iv, 'base64') };
                 const out = await crypto.subtle.decrypt(how, await key(r.args.key, 'decrypt'), Buffer.from(cipher, 'base64'));
                 r.return(200, new TextDecoder().decode(out));
             } catch (e) {
                 r.return(500, `decryption failed with ${e.message}`);
             }
         }
         export default { encrypt, decrypt };",
    )
    .start();
    let sealed = post(&server, "/encrypt?key=mySecret&iv=000000000000000000000001", "TEXT-TO-BE-ENCODED").text();
    // The same as nginx's example says.
    assert_eq!(sealed, r#"{"cipher":"kLKXeb/h1inwXYlP7M504xCD+/1sF4yesCSUc7/OJiyPyw==","iv":"AAAAAAAAAAAAAAAB"}"#);
    assert_eq!(post(&server, "/decrypt?key=mySecret", &sealed).text(), "TEXT-TO-BE-ENCODED");
    assert_eq!(post(&server, "/decrypt?key=other", &sealed).status, 500);
}

#[test]
fn example_a_file_as_a_store() {
    let server = site(
        "",
        "location = /push { js_content main.push; } location = /flush { js_content main.flush; } location = /read { js_content main.read; }",
        "import fs from 'fs';
         const FILE = ngx.conf_prefix + 'store';
         export default {
             push(r) { fs.appendFileSync(FILE, r.requestText); r.return(200); },
             flush(r) { fs.writeFileSync(FILE, ''); r.return(200); },
             async read(r) {
                 const name = r.args.other ? FILE + r.args.other : FILE;
                 try { r.return(200, await fs.promises.readFile(name)); } catch (e) { r.return(200, e.code); }
             },
         };",
    )
    .file("store", "");
    writable(&server, "store");
    let server = server.start();
    assert_eq!(server.get("/read?other=x").text(), "ENOENT");
    post(&server, "/push", "AAA");
    post(&server, "/push", "BBB");
    assert_eq!(server.get("/read").text(), "AAABBB");
    server.get("/flush");
    assert_eq!(server.get("/read").text(), "");
}

#[test]
fn example_stream_asks_by_fetch() {
    let server = stream(
        "server { listen 127.0.0.1:@PORT@; js_preread main.verify; return BACKEND; }",
        "server { listen 127.0.0.1:@OTHER@; server_name aaa; location /validate { js_content main.validate; } }
         server { listen 127.0.0.1:@OTHER@; server_name bbb; return 403; }",
        "function verify(s) {
             let all = '';
             s.on('upload', async (data) => {
                 all += data;
                 if (all.length === 0) { return; }
                 if (!all.startsWith('MAGiK'.slice(0, all.length))) { s.deny(); return; }
                 if (all.length < 7) { return; }
                 s.off('upload');
                 const answer = await ngx.fetch(`http://127.0.0.1:${PORT}/validate`, { method: 'POST', body: all.slice(5, 7), headers: { Host: 'aaa' } });
                 answer.status === 200 ? s.done() : s.deny();
             });
         }
         export default { verify, validate: (r) => r.return(r.requestText === 'QZ' ? 200 : 403) };
         const PORT = @OTHER@;",
    );
    let server = filled(server).start();
    assert_eq!(talk(&server, "MAGiKQZ"), "BACKEND");
    assert_eq!(talk(&server, "MAGiKQQ"), "");
    assert_eq!(talk(&server, "hello"), "");
}

#[test]
fn example_stream_tells_http_from_others() {
    let http = Backend::ok("HTTPBACK");
    let server = stream(
        "js_set $to main.to; upstream http { server 127.0.0.1:@BACKEND@; } upstream tcp { server 127.0.0.1:@OTHER@; }
         server { listen 127.0.0.1:@PORT@; js_preread main.detect; proxy_pass $to; } server { listen 127.0.0.1:@OTHER@; return TCPBACK; }",
        "",
        "let is_http = false;
         function detect(s) {
             s.on('upload', (data, flags) => {
                 const line = data.split('\\r\\n')[0];
                 is_http ||= line.slice(0, -1).endsWith(' HTTP/1.');
                 if (data.length > 0 || flags.last) { s.done(); }
             });
         }
         export default { detect, to: () => is_http ? 'http' : 'tcp' };",
    )
    .set("BACKEND", http.port)
    .start();
    let mut client = server.connect();
    assert_eq!(client.get("/").text(), "HTTPBACK");
    // A session's variables are its own.
    assert_eq!(talk(&server, "hello\r\n"), "TCPBACK");
}

#[test]
fn example_stream_injects_a_header() {
    let backend = Backend::ok("x");
    let server = stream(
        "server { listen 127.0.0.1:@PORT@; proxy_pass 127.0.0.1:@BACKEND@; js_filter main.inject; }",
        "",
        "function inject(s) {
             let head = '';
             s.on('upload', (data, flags) => {
                 head += data;
                 const at = head.indexOf('\\n');
                 if (at < 0) { return; }
                 s.send(head.slice(0, at + 1) + 'Foo: my_foo\\r\\n' + head.slice(at + 1), flags);
                 s.off('upload');
             });
         }
         export default { inject };",
    )
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    client.send("GET / HT");
    client.send("TP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.response().text(), "x");
    assert_eq!(backend.seen()[0].header("Foo"), Some("my_foo"));
}
