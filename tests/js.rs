//! Programs in JavaScript, as njs runs them: their places in the phases and what they call. nginx's own examples: `js_examples`.

use crate::harness::{Backend, Client, Port, Reply, Server, Site};
use std::io::{Read, Write};
use std::net::TcpListener;

/// A server of one location, `/`, whose program is `program` with `main` as the name of its exports.
pub fn site(around: &str, locations: &str, program: &str) -> Site {
    Site::http(&format!("js_import main from main.js; {around} server {{ listen 127.0.0.1:@PORT@; {locations} }}"))
        .file("main.js", program)
}

/// What the body of a function answers.
fn says(body: &str) -> String {
    let program = format!(
        "import fs from 'fs'; import qs from 'querystring'; import cr from 'crypto';\nasync function f(r) {{ {body} }}\nexport default {{f}};"
    );
    site("", "location / { js_content main.f; }", &program).start().get("/x?a=1&b=%41&a=2").text()
}

pub fn post(server: &Server, target: &str, body: &str) -> crate::harness::Response {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    server.connect().send(head).response()
}

pub fn with_header(server: &Server, target: &str, header: &str) -> crate::harness::Response {
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n")).response()
}

/// Lets the worker write a file.
pub fn writable(site: &Site, name: &str) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(site.path().join(name), mode).expect("it is there");
}

pub fn stream(servers: &str, http: &str, program: &str) -> Site {
    Site::whole(&format!(
        "events {{}} stream {{ js_import main from main.js; {servers} }} http {{ js_import main from main.js; {http} }}"
    ))
    .file("main.js", program)
}

/// What a connection brings to what is said on it.
pub fn talk(server: &Server, text: &str) -> String {
    let mut client = server.connect();
    client.send(text);
    String::from_utf8_lossy(&client.rest()).into_owned()
}

/// Puts the second port into the program.
pub fn filled(site: Site) -> Site {
    let port = Port::reserve();
    let path = site.path().join("main.js");
    let text = std::fs::read_to_string(&path).expect("the program");
    let number = port.number.to_string();
    std::mem::forget(port);
    let text = text.replace("@OTHER@", &number);
    site.file("main.js", text).set("OTHER", number)
}

#[test]
fn stream_lets_in_or_not_and_filters_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut peer in listener.incoming().flatten() {
            let mut room = [0; 100];
            let n = peer.read(&mut room).unwrap_or(0);
            let _ = peer.write_all(&room[..n]);
        }
    });
    let server = stream(
        "server { listen 127.0.0.1:@PORT@; js_access main.access; js_filter main.filter; proxy_pass 127.0.0.1:@BACKEND@; }
         log_format f '$status'; access_log @DIR@/logs/stream.log f;
         server { listen 127.0.0.1:@OTHER@; js_access main.deny; return never; }",
        "",
        "export default {
             access(s) { setTimeout(() => s.remoteAddress === '127.0.0.1' ? s.allow() : s.deny(), 1); },
             deny(s) { s.deny(); },
             filter(s) {
                 s.on('upstream', (data, flags) => s.send(Buffer.from(data.toString().toUpperCase()), flags));
                 s.on('downstream', (data, flags) => {
                     if (flags.last) { s.send('.', { last: true }); return; }
                     s.send(`<${data}>`);
                 });
             },
         };",
    )
    .set("BACKEND", port);
    let other = Port::reserve();
    let server = server.set("OTHER", other.number).start();
    assert_eq!(talk(&server, "hello"), "<HELLO>.");
    let mut denied = Client::connect(other.number);
    assert_eq!(denied.rest(), b"");
    server.wait_for("logs/stream.log", "403");
    server.wait_for("logs/stream.log", "200");
}

// ---- what programs call ----

#[test]
fn r_shows_the_request() {
    assert_eq!(
        says("r.return(200, [r.method, r.uri, r.httpVersion, r.remoteAddress, JSON.stringify(r.args), r.internal])"),
        r#"GET,/x,1.1,127.0.0.1,{"a":["1","2"],"b":"A"},false"#
    );
    assert_eq!(
        says(
            "r.return(200, [r.headersIn.host !== undefined, 'HOST' in r.headersIn, r.headersIn.none, r.variables.request_method, \
        r.variables.none, r.rawVariables.uri instanceof Buffer])"
        ),
        "true,true,,GET,,true"
    );
    let server = site("", "location / { js_content main.f; }",
        "export default { f(r) { r.return(200, `${r.requestText}|${r.requestBuffer?.length}|${r.rawHeadersIn.filter((h) => h[0] === 'A')}|${r.headersIn.a}`) } }").start();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: x\r\nA: 1\r\nA: 2\r\nContent-Length: 3\r\n\r\näx");
    assert_eq!(client.response().text(), "äx|3|A,1,A,2|1, 2");
    assert_eq!(server.get("/").text(), "undefined|undefined||undefined");
}

#[test]
fn r_answers_in_pieces_and_in_time() {
    let server = site(
        "",
        "default_type text/plain; location / { js_content main.f; }",
        "async function f(r) {
             r.status = 201;
             r.headersOut['X-A'] = ['1', '2'];
             r.headersOut.Gone = 'x'; delete r.headersOut.Gone;
             r.sendHeader();
             for (const n of [1, 2, 3]) { r.send(`${n};`); await new Promise((go) => setTimeout(go, 5)); }
             r.finish();
         }
         export default { f };",
    )
    .start();
    let answer = server.get("/");
    assert_eq!((answer.status, answer.text().as_str()), (201, "1;2;3;"));
    assert_eq!(
        (answer.header("X-A"), answer.header("Gone"), answer.header("Content-Type")),
        (Some("1"), None, Some("text/plain"))
    );
    assert_eq!(server.connect().head("/").status, 201);
}

#[test]
fn what_fails_is_500_and_one_line() {
    let server = site("", "location = /throw { js_content main.fails; } location = /none { js_content main.missing; }
        location = /quiet { js_content main.quiet; } location = /late { js_content main.late; } location = /loop { js_content main.loop; }
        location = /headers { js_content main.headers; }",
        "function inner() { throw new RangeError('too far'); }
         export default {
             fails(r) { inner(); },
             quiet(r) {},
             late(r) { setTimeout(inner, 1); },
             loop(r) { for (;;) {} },
             headers(r) { try { r.headersOut.A = 'x\\r\\nB: y'; r.return(200, 'set'); } catch (e) { r.return(200, e.message); } },
         };").start();
    for path in ["/throw", "/none", "/quiet", "/late", "/loop"] {
        assert_eq!(server.get(path).status, 500, "{path}");
    }
    let log = server.error_log();
    assert!(log.contains("js exception: RangeError: too far\n    at inner (") && log.contains("main.js:1:"), "{log}");
    assert!(log.contains("js function \"main.missing\" not found") && log.contains("interrupted"), "{log}");
    assert_eq!(server.get("/headers").text(), "invalid header value");
    assert_eq!(server.get("/throw").status, 500);
}

#[test]
fn a_program_is_checked_with_the_configuration() {
    let (status, said) = site("", "", "export default {};\nfunction f( {\n").check();
    assert!(!status.success() && said.contains("SyntaxError") && said.contains("@DIR@/main.js:3"), "{said}");
    let (status, said) = site("", "", "import x from 'nowhere.js'; export default {x};").check();
    assert!(!status.success() && said.contains("nowhere.js"), "{said}");
    let (status, said) = site("js_engine njs;", "", "export default {};").check();
    assert!(status.success() && said.contains("QuickJS"), "{said}");
    let (status, said) = site("js_shared_dict_zone zone=a:1m sync=x;", "", "export default {};").check();
    assert!(!status.success() && said.contains("invalid parameter \"sync=x\""), "{said}");
}

#[test]
fn access_allows_declines_and_answers() {
    let server = site(
        "",
        "location / { js_access main.judge; root @DIR@/html; }",
        "async function judge(r) {
             switch (r.args.who) {
             case 'nobody': r.return(403); return;
             case 'guest': r.return(200, 'hello, guest'); return;
             case 'late': await new Promise((go) => setTimeout(go, 2)); r.return(401); return;
             case 'body': r.return(200, (await r.readRequestText()).length); return;
             case 'moved': r.internalRedirect('/y'); return;
             }
         }
         export default { judge };",
    )
    .file("html/x", "file")
    .file("html/y", "other")
    .start();
    let status = |target: &str| server.get(target).status;
    assert_eq!((status("/x"), status("/x?who=nobody"), status("/x?who=late")), (200, 403, 401));
    assert_eq!(server.get("/x").text(), "file");
    assert_eq!(server.get("/x?who=guest").text(), "hello, guest");
    assert_eq!(post(&server, "/x?who=body", "12345").text(), "5");
    assert_eq!(server.get("/x?who=moved").text(), "other");
}

#[test]
fn each_request_has_a_context_of_its_own() {
    let program = "let n = 0; export default { f: (r) => r.return(200, ++n) };";
    let server = site("", "location / { js_content main.f; }", program).start();
    assert_eq!((server.get("/").text(), server.get("/").text()), ("1".into(), "1".into()));
    let server = site("js_engine qjs;", "location / { js_content main.f; }", program).start();
    assert_eq!((server.get("/").text(), server.get("/").text()), ("1".into(), "2".into()));
    let server = site("js_engine qjs; js_context_reuse 0;", "location / { js_content main.f; }", program).start();
    assert_eq!((server.get("/").text(), server.get("/").text()), ("1".into(), "1".into()));
}

#[test]
fn dictionaries_are_shared() {
    let server = site("js_shared_dict_zone zone=n:64k type=number; js_shared_dict_zone zone=s:64k timeout=60s;", "location / { js_content main.f; }",
        "function f(r) {
             const { n, s } = ngx.shared;
             const error = (run) => { try { return run(); } catch (e) { return e.constructor.name; } };
             r.return(200, JSON.stringify([
                 n.incr('hits', 1), n.incr('hits', 2, 10), n.get('none'), n.add('hits', 9), n.replace('hits', 5), n.get('hits'), n.type,
                 s.set('a', 'x').get('a'), s.has('b'), s.pop('a'), s.has('a'), s.delete('a'), s.set('b', 'y', 1000).ttl('b') > 0,
                 error(() => n.set('x', 'text')), error(() => n.set('x', 1, 5)), s.keys(), s.items(), s.size(), s.capacity, s.freeSpace() > 0,
                 (n.clear(), n.size()),
             ]));
         }
         export default { f };").start();
    assert_eq!(
        server.get("/").text(),
        r#"[1,3,null,false,true,5,"number","x",false,"x",false,false,true,"TypeError","TypeError",["b"],[["b","y"]],1,65536,true,0]"#
    );
}

#[test]
fn functions_run_from_time_to_time() {
    let server = site("js_shared_dict_zone zone=n:64k type=number;",
        "location @beat { js_periodic main.beat interval=5ms; } location / { return 200 $beats; } js_set $beats main.beats nocache;",
        "export default {
             beat(s) { ngx.shared.n.incr('beats', 1); s.variables; throw new Error('told'); },
             beats: () => ngx.shared.n.get('beats') ?? 0,
         };").start();
    assert!(crate::harness::wait(|| server.get("/").text().parse::<u32>().is_ok_and(|n| n >= 3)));
    assert!(server.error_log().contains("js exception: Error: told"));
}

#[test]
fn fetch_speaks_http() {
    let backend = Backend::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/chunked") => Reply::Keep(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: 1\r\na: 2\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
                .into(),
        ),
        Some("/close") => Reply::Close(b"HTTP/1.0 203 Own Word\r\n\r\nuntil the end".into()),
        Some("/broken") => Reply::Close(b"nonsense\r\n\r\n".into()),
        Some("/large") => Reply::Keep(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n".into()),
        _ => Reply::ok(&format!("{} {:?} {}", seen.line(), seen.header("X-A"), String::from_utf8_lossy(&seen.body))),
    });
    let server = site("", "location / { js_content main.f; }",
        "async function f(r) {
             try {
                 const options = r.args.post ? { method: 'post', body: r.args.post, headers: { 'X-A': 'b' } } : undefined;
                 const answer = await ngx.fetch(r.args.url, options);
                 const text = await answer.text();
                 r.return(200, [answer.status, answer.statusText, answer.ok, answer.headers.get('A'), text].join('|'));
             } catch (e) {
                 r.return(200, `${e.constructor.name}: ${e.message}`);
             }
         }
         export default { f };").start();
    let ask = |rest: &str| server.get(&format!("/?url=http://127.0.0.1:{}{rest}", backend.port)).text();
    assert_eq!(ask("/x"), "200|OK|true||GET /x HTTP/1.1 None ");
    assert_eq!(ask("/x&post=hi"), "200|OK|true||POST /x HTTP/1.1 Some(\"b\") hi");
    assert_eq!(ask("/chunked"), "200|OK|true|1, 2|abcde");
    assert_eq!(ask("/close"), "203|Own Word|true||until the end");
    assert_eq!(ask("/broken"), "Error: invalid http status line");
    assert_eq!(ask("/large"), "Error: http response body is too large");
    assert_eq!(server.get("/?url=http://127.0.0.1:1/").text(), "Error: connect failed");
    assert_eq!(
        server.get("/?url=ftp://a/").text(),
        "TypeError: unsupported URL schema (only http or https are supported)"
    );
    assert_eq!(server.get("/?url=http://name/").text(), "InternalError: no resolver defined");
}

#[test]
fn a_reload_brings_the_new_program() {
    let server = site(
        "js_shared_dict_zone zone=n:64k type=number;",
        "location / { js_content main.f; }",
        "export default { f: (r) => r.return(200, `old ${ngx.shared.n.incr('n', 1)}`) };",
    )
    .start();
    assert_eq!(server.get("/").text(), "old 1");
    std::fs::write(
        server.dir().join("main.js"),
        "export default { f: (r) => r.return(200, `new ${ngx.shared.n.incr('n', 1)}`) };",
    )
    .expect("the program");
    server.signal(rustix::process::Signal::HUP);
    assert!(crate::harness::wait(|| server.get("/").text().starts_with("new ")));
}

/// A forward proxy that opens tunnels, for one connection after the other: its port, and the heads that it has seen.
fn connect_proxy() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && client.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let to = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let is_welcome = head.contains("Proxy-Authorization: Basic dTpw\r\n");
            if tx.send(head).is_err() {
                return;
            }
            let server = std::net::TcpStream::connect(&to);
            let (true, Ok(server)) = (is_welcome, server) else {
                let _ = client.write_all(b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n");
                continue;
            };
            let _ = client.write_all(b"HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 200 Go\r\n\r\n");
            let way = |from: &std::net::TcpStream, to: &std::net::TcpStream| {
                let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                })
            };
            way(&client, &server);
            way(&server, &client);
        }
    });
    (port, rx)
}

const FETCHES: &str = "async function f(r) {
         try {
             const answer = await ngx.fetch(r.args.url, { headers: { 'Proxy-Authorization': 'mine' } });
             r.return(200, `${answer.status} ${await answer.text()}`);
         } catch (e) {
             r.return(200, `${e.constructor.name}: ${e.message}`);
         }
     }
     export default { f };";

#[test]
fn fetch_goes_through_a_proxy() {
    let proxy = Backend::start(|seen| {
        let (host, who) = (seen.header("Host").unwrap_or_default(), seen.header("Proxy-Authorization"));
        Reply::ok(&format!("{} {host} {who:?}", seen.line()))
    });
    let server = site(
        "",
        "location /plain { js_fetch_proxy http://127.0.0.1:@PROXY@; js_content main.f; }
         location /known { js_fetch_proxy http://user%40domain:p%40ss%3Aword@127.0.0.1:@PROXY@; js_content main.f; }
         location /named { set $to http://$arg_who@127.0.0.1:@PROXY@; js_fetch_proxy $to; js_content main.f; }
         location /perhaps { js_fetch_proxy $arg_proxy; js_content main.f; }",
        FETCHES,
    )
    .set("PROXY", proxy.port)
    .start();
    // Nobody looks a name up that the proxy is to look up.
    let ask = |place: &str| server.get(&format!("{place}url=http://example.com:81/x?y")).text();
    assert_eq!(ask("/plain?"), "200 GET http://example.com:81/x?y HTTP/1.1 example.com:81 None");
    assert_eq!(
        ask("/known?"),
        "200 GET http://example.com:81/x?y HTTP/1.1 example.com:81 Some(\"Basic dXNlckBkb21haW46cEBzczp3b3Jk\")"
    );
    assert!(ask("/named?who=a:b&").ends_with("Some(\"Basic YTpi\")"));
    assert_eq!(ask("/named?who=ab&"), "InternalError: failed to evaluate proxy URL");
    assert!(server.error_log().contains("\"js_fetch_proxy\": its credentials must be user:password"));
    let direct = Backend::start(|seen| Reply::ok(&format!("{} {:?}", seen.line(), seen.header("Proxy-Authorization"))));
    let url = format!("/perhaps?url=http://127.0.0.1:{}/x", direct.port);
    assert_eq!(server.get(&url).text(), "200 GET /x HTTP/1.1 Some(\"mine\")");
    let (status, said) = site("js_fetch_proxy http://user:secret@/;", "", "export default {}").check();
    assert!(!status.success() && said.contains("invalid proxy URL: its host is invalid") && !said.contains("secret"));
}

#[test]
fn fetch_opens_a_tunnel_for_tls() {
    let (proxy, seen) = connect_proxy();
    let server = site(
        "js_fetch_verify off; js_fetch_keepalive 4;
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate @DIR@/a.crt; ssl_certificate_key @DIR@/a.key;
           location / { return 200 \"inside $http_proxy_authorization\"; } }",
        "location /known { js_fetch_proxy http://u:p@127.0.0.1:@PROXY@; js_content main.f; }
         location /stranger { js_fetch_proxy http://127.0.0.1:@PROXY@; js_content main.f; }
         location /other { return 200 @OTHER@; }",
        FETCHES,
    )
    .certificate("a")
    .set("PROXY", proxy)
    .start();
    let other = server.get("/other").text();
    // The server's own header goes to the server, the proxy's to the proxy.
    assert_eq!(server.get(&format!("/known?url=https://127.0.0.1:{other}/")).text(), "200 inside mine");
    let head = seen.recv().expect("it was asked");
    let expected = format!(
        "CONNECT 127.0.0.1:{other} HTTP/1.1\r\nHost: 127.0.0.1:{other}\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
    );
    assert_eq!(head, expected);
    let refused = server.get(&format!("/stranger?url=https://127.0.0.1:{other}/")).text();
    assert_eq!(refused, "Error: proxy CONNECT failed with status 407");
}

#[test]
fn a_proxy_that_never_comes_to_its_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        // Each of these would be time enough for the next one.
        while client.write_all(b"HTTP/1.1 100 Wait\r\n\r\n").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let place = "location / { js_fetch_proxy http://127.0.0.1:@PROXY@; js_content main.f; }";
    let server = site("", place, FETCHES).set("PROXY", proxy).start();
    let said = server.get("/?url=https://127.0.0.1:1/").text();
    assert_eq!(said, "Error: proxy CONNECT: too many interim responses");
}

#[test]
fn fetch_of_stream_goes_through_a_proxy() {
    let proxy = Backend::start(|seen| Reply::ok(seen.line()));
    let server = Site::whole(
        "events {} http { server { listen 127.0.0.1:@PORT@; location / { return 200 @OTHER@; } } }
         stream { js_import main from main.js; js_fetch_proxy http://127.0.0.1:$to; js_var $to @PROXY@;
           server { listen 127.0.0.1:@OTHER@; js_preread main.f; return $said; } js_var $said; }",
    )
    .set("PROXY", proxy.port)
    .file(
        "main.js",
        "async function f(s) {
             const answer = await ngx.fetch('http://example.com/s');
             s.variables.said = await answer.text();
             s.done();
         }
         export default { f };",
    )
    .start();
    let mut client =
        std::net::TcpStream::connect(("127.0.0.1", server.get("/").text().parse::<u16>().expect("a port")))
            .expect("it listens");
    let mut said = String::new();
    client.read_to_string(&mut said).expect("an answer");
    assert_eq!(said, "GET http://example.com/s HTTP/1.1");
}

#[test]
fn a_subrequest_s_program_sees_its_parent() {
    let server = site(
        "js_var $left;",
        "location /main { set $mark a; js_content main.main; } location /sub { js_content main.sub; } location /early { js_content main.early; }
         location /answer { js_content main.answer; } location /asks { auth_request /sub; js_content main.sub; }",
        "async function main(r) {
             const reply = await r.subrequest('/sub', 'a=sub');
             await 0;
             r.return(200, `${reply.responseText} ${r.variables.left} ${r.variables.mark} ${r.headersOut['X-Left']} ${typeof r.parent}`);
         }
         function sub(r) {
             const p = r.parent;
             if (p === undefined) { r.return(200, 'nobody'); return; }
             const error = (run) => { try { return run(); } catch (e) { return e.constructor.name; } };
             p.variables.left = 'here';
             p.variables.mark = 'b';
             p.headersOut['X-Left'] = 'there';
             r.return(200, JSON.stringify([
                 r.uri, p.uri, r.args.a, p.args.a, p.method, p.internal, r.internal, p.headersIn['x-a'], 'x-a' in p.headersIn, Object.keys(p.headersIn).length,
                 p.variables.uri, p.parent === undefined, p === r.parent, error(() => p.subrequest('/sub')), String(p),
             ]));
         }
         async function early(r) { await r.subrequest('/answer'); }
         function answer(r) { r.parent.return(202, 'from below'); r.return(204); }
         export default { main, sub, early, answer };",
    )
    .start();
    assert_eq!(
        with_header(&server, "/main?a=main", "X-A: b").text(),
        r#"["/sub","/main","sub","main","GET",false,true,"b",true,2,"/main",true,true,"TypeError","[object Request]"] here b there undefined"#
    );
    assert_eq!((server.get("/early").status, server.get("/early").text()), (202, "from below".into()));
    // It is no program that waits for this one.
    assert_eq!(server.get("/asks").text(), "nobody");
}

#[test]
fn a_dictionary_outlives_the_server() {
    let folder = crate::harness::Folder::new();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    folder.write("s.json", r#"{"old":{"value":"\u0061","expire":0},"other":{"value":"b","more":1}}"#);
    folder.write("n.json", r#"{"over":{"value":1,"expire":5},"new":{"value":2}}"#);
    folder.write("bad.json", r#"{"x":{"value":"text"}, oops"#);
    // Nobody will ever write to it.
    let pipe = folder.path().join("pipe.json");
    assert!(std::process::Command::new("mkfifo").args(["-m", "666"]).arg(&pipe).status().is_ok_and(|s| s.success()));
    let server = || {
        site(
            "js_shared_dict_zone zone=s:64k state=@STATE@/s.json;
             js_shared_dict_zone zone=n:64k type=number timeout=1h state=@STATE@/n.json;
             js_shared_dict_zone zone=bad:64k state=@STATE@/bad.json;
             js_shared_dict_zone zone=pipe:64k state=@STATE@/pipe.json;",
            "location / { js_content main.f; }",
            "function f(r) {
                 const { s, n, bad } = ngx.shared;
                 r.return(200, JSON.stringify(new Function('s', 'n', 'bad', `return ${r.args.x}`)(s, n, bad) ?? null));
             }
             export default { f };",
        )
        .set("STATE", folder.path().display())
        .start()
    };
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let first = server();
    let ask = |server: &Server, x: &str| server.get(&format!("/?x={x}")).text();
    assert_eq!(
        ask(&first, "[s.get('old'),s.get('other'),n.get('over'),n.ttl('new')>3500000]"),
        r#"["a","b",null,true]"#
    );
    assert!(first.error_log().contains("bad.json\" of js_shared_dict_zone \"bad\": "));
    assert!(first.error_log().contains("pipe.json\" is no regular file"));
    ask(
        &first,
        "[s.set('old','c').size(),s.delete('other'),n.incr('new',1.5),n.set('short',1,600000).size(),bad.set('y','z').size()]",
    );
    // Within a second, without a stop.
    assert!(crate::harness::wait(|| read("s.json") == r#"{"old":{"value":"c"}}"#), "{}", read("s.json"));
    assert!(crate::harness::wait(|| read("n.json").contains(r#""value":3.5"#)), "{}", read("n.json"));
    assert_eq!(read("bad.json"), r#"{"x":{"value":"text"}, oops"#, "what could not be read is not lost");
    ask(&first, "s.set('last','word').size()");
    assert!(first.stop(rustix::process::Signal::TERM).success());
    let second = server();
    assert_eq!(
        ask(&second, "[s.items().sort(),n.get('new'),n.ttl('short')<=600000,n.size()]"),
        r#"[[["last","word"],["old","c"]],3.5,true,2]"#
    );
    ask(&second, "s.clear()");
    assert!(second.stop(rustix::process::Signal::QUIT).success());
    assert_eq!(read("s.json"), "{}");
}
