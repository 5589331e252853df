//! `api`, `status_zone`, `keyval`, `prometheus`: what is counted, what can be changed, and the programs that ask for it.

use crate::harness::{Backend, Beside, Client, Dns, Reply, Server, Site, has_tools, program, wait};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A call; status and JSON.
fn call(server: &Server, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let body = body.map_or_else(String::new, |b| b.to_string());
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let response = server.connect().send(head).send(body).response();
    let value = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
    (response.status, value)
}

fn get(server: &Server, path: &str) -> Value {
    let (status, value) = call(server, "GET", path, None);
    assert_eq!(status, 200, "{path}: {value}");
    value
}

/// The code of the error that a call ends with.
fn refused(server: &Server, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
    let (status, value) = call(server, method, path, body);
    assert_eq!(value["error"]["status"], status, "{value}");
    assert!(value["request_id"].as_str().is_some_and(|id| id.len() == 32) && value["href"].is_string(), "{value}");
    (status, value["error"]["code"].as_str().expect("a code").to_owned())
}

#[test]
fn requests_are_counted_by_zone() {
    let server = Site::http(
        "limit_req_zone $uri zone=slow:64k rate=1r/m; limit_conn_zone $uri zone=few:64k;
         server { listen 127.0.0.1:@PORT@; status_zone site;
           location / { return 200 hello; }
           location /gone { status_zone gone; return 404;
             location /gone/on { return 301 /; } location /gone/off { status_zone off; return 204; } }
           location /mute { return 444; }
           location /slow { limit_req zone=slow; limit_conn few 1; empty_gif; }
           location /api/ { status_zone off; api; } }",
    )
    .start();
    for path in ["/", "/", "/gone", "/gone/on", "/gone/off", "/slow", "/slow"] {
        server.get(path);
    }
    assert!(server.connect().send("GET /mute HTTP/1.1\r\nHost: x\r\n\r\n").read_response(false).is_none());
    let all = get(&server, "/api/9/http/server_zones");
    let site = &all["site"];
    assert_eq!(site["responses"]["codes"], json!({"200": 3, "204": 1, "301": 1, "404": 1, "503": 1}));
    assert_eq!(site["responses"]["total"], 7);
    assert_eq!((&site["discarded"], &site["processing"]), (&json!(1), &json!(1)), "this call is under way");
    assert!(site["received"].as_u64() > Some(8 * 30) && site["sent"].as_u64() > Some(7 * 100));
    let gone = get(&server, "/api/9/http/location_zones/gone");
    assert_eq!((&gone["requests"], &gone["responses"]["3xx"]), (&json!(2), &json!(1)), "what is inside inherits");
    assert_eq!(get(&server, "/api/9/http/server_zones?fields="), json!(["site"]));
    assert_eq!(get(&server, "/api/9/http/server_zones?fields=discarded"), json!({"site": {"discarded": 1}}));
    assert_eq!(get(&server, "/api/9/http/limit_reqs/slow")["rejected"], 1);
    assert_eq!(get(&server, "/api/9/http/limit_conns/few"), json!({"passed": 1, "rejected": 0, "rejected_dry_run": 0}));
    let connections = get(&server, "/api/8/connections");
    assert!(connections["accepted"].as_u64() >= Some(13) && connections["dropped"] == 0, "{connections}");
    let totals = get(&server, "/api/9/ironweir/totals");
    assert!(totals["requests"].as_u64() >= Some(15) && totals["processing"] == 1, "{totals}");
    let listeners = get(&server, "/api/9/ironweir/listeners");
    let listener = &listeners["listeners"][0];
    assert_eq!(listener["address"], format!("127.0.0.1:{}", server.port));
    assert!(listener["limit"].as_u64() >= Some(511) && listener["accepted"].as_u64() >= Some(15), "{listener}");
    let threads = get(&server, "/api/9/ironweir/threads");
    assert!(threads["threads"][0]["running_ns"].as_u64() > Some(0), "{threads}");
    assert_eq!(get(&server, "/api/9/workers/0")["http"]["requests"]["current"], 1);
}

/// What a purpose of the server's memory takes.
fn purpose(server: &Server, name: &str) -> u64 {
    let said = get(server, "/api/9/ironweir/memory");
    said["purposes"][name]["bytes"].as_u64().unwrap_or_else(|| panic!("{name}: {said:#}"))
}

#[test]
fn memory_is_told_by_purpose_and_the_rest_is_said() {
    let site = Site::http(
        "limit_req_zone $arg_key zone=keys:1m rate=100r/s; keyval_zone zone=kept:1m; keyval $uri $kept zone=kept;
         lua_shared_dict dict 1m; proxy_cache_path @DIR@/cache keys_zone=cached:1m;
         upstream app { zone app 64k; server 127.0.0.1:@BACKEND@; keepalive 4; }
         server { listen 127.0.0.1:@PORT@; root @DIR@;
           location /api { api write=on; allow all; } location /limited { limit_req zone=keys burst=100 nodelay; empty_gif; }
           location /dict { content_by_lua_block { ngx.shared.dict:set(ngx.var.uri, string.rep('x', 100000)); ngx.say('kept') } }
           location /cached { proxy_cache cached; proxy_cache_valid 1h; proxy_pass http://app; }
           location /pub { nchan_publisher; nchan_channel_id news; } location /file { } }",
    );
    let backend = Backend::start(|_| Reply::ok("fresh"));
    std::fs::write(site.path().join("file"), vec![b'x'; 10_000]).unwrap();
    // Contents are kept when the file has settled.
    let settled = std::time::SystemTime::now() - Duration::from_secs(60);
    std::fs::File::options().append(true).open(site.path().join("file")).unwrap().set_modified(settled).unwrap();
    let server = site.set("BACKEND", backend.port).start();
    let names = ["zones", "dictionaries", "cache_indexes", "channels", "lua", "file_contents", "upstream_connections"];
    let before = names.map(|name| purpose(&server, name));
    for key in 0..200 {
        assert_eq!(server.get(&format!("/limited?key={key}")).status, 200);
    }
    assert_eq!(server.get("/dict").text(), "kept\n");
    assert_eq!(server.get("/cached").text(), "fresh");
    assert_eq!(call(&server, "POST", "/pub", Some(json!("x".repeat(10_000)))).0, 202);
    // A change of a file is told by its ctime, too, which only time settles.
    let is_kept = || server.get("/file").body.len() == 10_000 && purpose(&server, "file_contents") >= 10_000;
    assert!(wait(is_kept), "{:#}", get(&server, "/api/9/ironweir/memory"));
    let least = [200 * 64, 100_000, 50, 10_000, 1_000, 10_000, 100];
    for ((name, before), least) in names.iter().zip(before).zip(least) {
        let grew = purpose(&server, name).saturating_sub(before);
        // Programs in Lua need not take more than they did.
        let now = if *name == "lua" { purpose(&server, name) } else { grew };
        assert!(now >= least, "{name}: {before} and {grew} more");
    }
    let said = get(&server, "/api/9/ironweir/memory");
    let all: u64 = said["purposes"].as_object().unwrap().values().map(|p| p["bytes"].as_u64().unwrap()).sum();
    let (anonymous, resident) =
        (said["process"]["anonymous_bytes"].as_u64(), said["process"]["resident_bytes"].as_u64());
    assert_eq!(Some(all), anonymous, "the purposes and the rest are the process's memory: {said:#}");
    assert!(resident > anonymous && anonymous > Some(1_000_000), "{said:#}");
    assert!(
        said["purposes"]["zones"]["estimated"] == false && said["purposes"]["connections"]["count"].as_u64() >= Some(1),
        "{said:#}"
    );
}

#[test]
fn certificates_tell_until_when_they_are_good() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; location /api/ { api; } }
         server { listen unix:@DIR@/tls ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; }",
    )
    .certificate("localhost")
    .start();
    let all = get(&server, "/api/9/ironweir/certificates");
    let one = &all["certificates"][0];
    let path = server.dir().join("localhost.crt");
    assert_eq!((&one["name"], &all["certificates"][1]), (&json!(path), &Value::Null), "{all}");
    assert!(one["hosts"].as_array().is_some_and(|hosts| hosts.contains(&json!("localhost"))), "{all}");
    let (from, to) = (one["not_before"].as_str(), one["not_after"].as_str());
    assert!(from.is_some() && from < to && to > Some("2026"), "{all}");
}

#[test]
fn errors_are_told_as_nginx_plus_tells_them() {
    let site = "location /api { api; } location /closed { api write=on; deny all; }";
    let server = Site::server(site).start();
    assert_eq!(get(&server, "/api/"), json!([8, 9]));
    assert_eq!(get(&server, "/api"), json!([8, 9]));
    let root = get(&server, "/api/9/");
    let names = ["nginx", "processes", "connections", "slabs", "http", "resolvers", "ssl", "workers"];
    assert!(names.iter().all(|n| root.as_array().is_some_and(|r| r.contains(&json!(n)))), "{root}");
    assert!(!root.as_array().is_some_and(|r| r.contains(&json!("stream"))), "there is none");
    let cases = [
        ("GET", "/api/7/nginx", 404, "UnknownVersion"),
        ("GET", "/api/9/nothing", 404, "PathNotFound"),
        ("GET", "/api/9/stream/server_zones", 404, "PathNotFound"),
        ("GET", "/api/9/http/server_zones/x", 404, "ServerZoneNotFound"),
        ("GET", "/api/9/http/upstreams/x/", 404, "UpstreamNotFound"),
        ("DELETE", "/api/9/connections", 405, "MethodDisabled"),
        ("POST", "/api/9/connections", 405, "MethodNotAllowed"),
        ("PUT", "/api/9/nginx", 405, "MethodNotAllowed"),
    ];
    for (method, path, status, code) in cases {
        assert_eq!(refused(&server, method, path, None), (status, code.to_owned()), "{method} {path}");
    }
    assert_eq!(server.get("/closed/9/nginx").status, 403);
    let nginx = get(&server, "/api/9/nginx");
    assert_eq!((&nginx["version"], &nginx["address"]), (&json!("1.31.5"), &json!("127.0.0.1")));
    let text = Site::server("location / { api write; }").check().1;
    assert!(text.contains("invalid parameter \"write\""), "{text}");
}

#[test]
fn servers_are_added_changed_drained_and_removed() {
    let (one, two) = (Backend::ok("one"), Backend::ok("two"));
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@ONE@; } upstream fixed { server 127.0.0.1:@ONE@; }
         server { listen 127.0.0.1:@PORT@;
           location / { proxy_pass http://u; } location /fixed { proxy_pass http://fixed; }
           location /api { api write=on; } }",
    )
    .set("ONE", one.port)
    .start();
    let base = "/api/9/http/upstreams/u/servers";
    let ask = |times: usize| (0..times).map(|_| server.get("/").text()).collect::<Vec<_>>();
    assert_eq!(ask(2), ["one", "one"]);
    assert_eq!(refused(&server, "GET", "/api/9/http/upstreams/fixed/servers", None), (400, "UpstreamStatic".into()));

    let new = json!({"server": format!("127.0.0.1:{}", two.port), "weight": 3, "fail_timeout": "7s"});
    let (status, made) = call(&server, "POST", base, Some(new));
    assert_eq!(
        (status, &made["weight"], &made["fail_timeout"], &made["id"]),
        (201, &json!(3), &json!("7s"), &json!(1))
    );
    let seen = ask(8);
    assert_eq!(seen.iter().filter(|t| *t == "two").count(), 6, "{seen:?}");

    let (status, changed) = call(&server, "PATCH", &format!("{base}/1"), Some(json!({"weight": 1, "max_conns": 9})));
    assert_eq!((status, &changed["weight"], &changed["max_conns"]), (200, &json!(1), &json!(9)));
    let (_, drained) = call(&server, "PATCH", &format!("{base}/0"), Some(json!({"drain": true})));
    assert_eq!(drained["drain"], true);
    assert_eq!(ask(4), ["two"; 4]);
    let group = get(&server, "/api/9/http/upstreams/u");
    let peers = group["peers"].as_array().expect("a list");
    assert_eq!((&peers[0]["state"], &peers[0]["drained"]), (&json!("draining"), &json!(true)));
    assert_eq!((&peers[1]["state"], &peers[1]["requests"]), (&json!("up"), &json!(10)));
    assert_eq!(peers[1]["response_time_hist"]["count"], 10);
    assert_eq!(peers[1]["responses"]["codes"]["200"], 10);

    let (status, left) = call(&server, "DELETE", &format!("{base}/0"), None);
    assert_eq!((status, left.as_array().map(Vec::len)), (200, Some(1)));
    assert_eq!(call(&server, "DELETE", "/api/9/http/upstreams/u", None).0, 204);
    assert_eq!(get(&server, "/api/9/http/upstreams/u")["peers"][0]["requests"], 0);
    let bad = [
        (json!({"weight": 1}), "UpstreamConfFormatError"),
        (json!({"server": "127.0.0.1:1", "weight": 0}), "UpstreamBadWeight"),
        (json!({"server": "127.0.0.1:1", "colour": 1}), "UpstreamConfFormatError"),
        (json!({"server": "127.0.0.1:1", "weight": [1]}), "UpstreamConfFormatError"),
        (json!({"server": "a b"}), "UpstreamBadAddress"),
        (json!({"server": "name.test:80"}), "UpstreamConfNoResolver"),
        (json!({"server": "127.0.0.1:1", "route": "x; y"}), "UpstreamBadRoute"),
    ];
    for (body, code) in bad {
        assert_eq!(refused(&server, "POST", base, Some(body)), (400, code.to_owned()));
    }
    assert_eq!(
        refused(&server, "PATCH", &format!("{base}/99"), Some(json!({}))),
        (404, "UpstreamServerNotFound".into())
    );
    assert_eq!(refused(&server, "GET", &format!("{base}/x"), None), (400, "UpstreamBadServerId".into()));
    let response =
        server.connect().send(format!("POST {base} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{{")).response();
    assert_eq!(response.status, 415);
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let server =
        Site::http("keyval_zone zone=z:64k; server { listen 127.0.0.1:@PORT@; location /api { api write=on; } }")
            .start();
    let host = format!("localhost:{}", server.port);
    let delete = |headers: &str| {
        let head = format!("DELETE /api/9/http/keyvals/z HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        server.connect().send(head).response().status
    };
    let origin = |origin: &str| delete(&format!("Origin: {origin}\r\n"));
    assert_eq!(delete(""), 204, "a program");
    assert_eq!((origin(&format!("http://{host}")), origin(&format!("https://{host}"))), (204, 204));
    for elsewhere in ["http://evil.test", "http://localhost", "null", "http://", &host] {
        assert_eq!(origin(elsewhere), 403, "{elsewhere}");
    }
    assert_eq!(delete("Sec-Fetch-Site: cross-site\r\n"), 403);
    // A server behind another one may be called otherwise there; the browser knows better.
    assert_eq!(delete("Sec-Fetch-Site: same-origin\r\nOrigin: https://admin.test\r\n"), 204);
}

#[test]
fn keys_and_values_are_looked_up() {
    let site = Site::http(
        "keyval_zone zone=names:64k state=@DIR@/names.json; keyval_zone zone=nets:64k type=ip timeout=1h;
         keyval $arg_key $name zone=names; keyval $arg_key $net zone=nets;
         server { listen 127.0.0.1:@PORT@;
           location / { return 200 \"[$name][$net]\"; } location /api { api write=on; } }",
    );
    std::fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let server = site.start();
    let names = "/api/9/http/keyvals/names";
    assert_eq!(server.get("/?key=a").text(), "[][]");
    assert_eq!(call(&server, "POST", names, Some(json!({"a": "1", "b": "2"}))).0, 201);
    assert_eq!(server.get("/?key=b").text(), "[2][]");
    assert_eq!(refused(&server, "POST", names, Some(json!({"a": "1"}))), (409, "KeyvalKeyExists".into()));
    assert_eq!(call(&server, "PATCH", names, Some(json!({"a": "3"}))).0, 204);
    assert_eq!(call(&server, "PATCH", names, Some(json!({"b": null}))).0, 204);
    assert_eq!(get(&server, names), json!({"a": "3"}));
    assert_eq!(get(&server, &format!("{names}?key=a")), json!({"a": "3"}));
    assert_eq!(refused(&server, "GET", &format!("{names}?key=b"), None), (404, "KeyvalKeyNotFound".into()));
    assert_eq!(serde_json::from_str::<Value>(&server.read("names.json")).expect("JSON"), json!({"a": "3"}));
    let nets = json!({"10.0.0.0/8": "ten", "10.1.0.0/16": {"value": "one", "expire": 3_600_000}});
    assert_eq!(call(&server, "POST", "/api/9/http/keyvals/nets", Some(nets)).0, 201);
    assert_eq!(server.get("/?key=10.1.2.3").text(), "[][one]");
    let late = json!({"c": {"value": "1", "expire": 1000}});
    assert_eq!(refused(&server, "POST", names, Some(late)), (400, "KeyvalFormatError".into()), "no timeout= there");
    assert_eq!(call(&server, "DELETE", "/api/9/http/keyvals/nets", None).0, 204);
    assert_eq!(server.get("/?key=10.1.2.3").text(), "[][]");
    server.signal(rustix::process::Signal::HUP);
    assert!(wait(|| get(&server, "/api/9/nginx")["generation"] == 2), "{}", server.error_log());
    assert_eq!(server.get("/?key=a").text(), "[3][]", "a reload changes nothing");
}

#[test]
fn a_state_file_is_read_at_the_start() {
    let server = Site::http(
        "keyval_zone zone=names:64k state=@DIR@/names.json; keyval $arg_key $name zone=names;
         server { listen 127.0.0.1:@PORT@; location / { return 200 [$name]; } }",
    )
    .file("names.json", r#"{"a": "kept"}"#)
    .start();
    assert_eq!(server.get("/?key=a").text(), "[kept]");
}

#[test]
fn a_state_file_that_cannot_be_read_is_not_overwritten() {
    let site = Site::http(
        "keyval_zone zone=names:64k state=@DIR@/names.json;
         server { listen 127.0.0.1:@PORT@; location /api { api write=on; } }",
    );
    std::fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let server = site.file("names.json", r#"{"a": "kept", oops"#).start();
    server.wait_for("logs/error.log", "names.json\": ");
    let names = "/api/9/http/keyvals/names";
    let answer = refused(&server, "POST", names, Some(json!({"b": "1"})));
    assert_eq!(answer, (500, "KeyvalStateError".into()));
    assert_eq!(server.read("names.json"), r#"{"a": "kept", oops"#);
    assert_eq!(get(&server, names), json!({"b": "1"}), "it holds as long as the server runs");
}

#[test]
fn nginx_s_own_exporter_reads_the_api() {
    let Some(mut exporter) = program("prometheus-nginx-exporter") else { return };
    let backend = Backend::start(|seen| match seen.line() {
        "GET /slow HTTP/1.1" => Reply::Keep(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
        _ => Reply::ok("hello"),
    });
    let server = Site::whole(
        "events {}
         http { access_log off; upstream u { zone u 64k; server 127.0.0.1:@BACKEND@; }
           proxy_cache_path @DIR@/cache keys_zone=c:1m; resolver 127.0.0.1 status_zone=dns;
           server { listen 127.0.0.1:@PORT@; status_zone site;
             location / { status_zone all; proxy_pass http://u; } location /api { api; } } }
         stream { upstream s { zone s 64k; server 127.0.0.1:@BACKEND@; }
           server { listen 127.0.0.1:@OTHER@; status_zone tcp; proxy_pass s; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    for path in ["/", "/slow"] {
        server.get(path);
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let uri = format!("http://127.0.0.1:{}/api", server.port);
    let listen = format!("127.0.0.1:{port}");
    let exporter = exporter.args(["-nginx.plus", "-nginx.scrape-uri", &uri, "-web.listen-address", &listen]);
    let _exporter = Beside(exporter.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    assert!(wait(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()), "the exporter did not come up");
    let page = Client::connect(port).get("/metrics").text();
    let backend = format!("127.0.0.1:{}", backend.port);
    let expected = [
        "nginxplus_up 1".to_owned(),
        "nginxplus_server_zone_responses{code=\"5xx\",server_zone=\"site\"} 1".to_owned(),
        format!("nginxplus_upstream_server_requests{{server=\"{backend}\",upstream=\"u\"}} 2"),
        format!("nginxplus_upstream_server_state{{server=\"{backend}\",upstream=\"u\"}} 1"),
        "nginxplus_stream_server_zone_connections{server_zone=\"tcp\"} 0".to_owned(),
        "nginxplus_resolver_name{resolver=\"dns\"} 0".to_owned(),
        "nginxplus_location_zone_requests{location_zone=\"all\"} 2".to_owned(),
    ];
    for line in expected {
        assert!(page.contains(&line), "no {line:?} in\n{page}");
    }
}

#[test]
fn connections_and_handshakes_with_peers_are_shown() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "upstream u { zone u 64k; keepalive 4; server 127.0.0.1:@OTHER@ max_fails=0; }
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key;
           return 200 backend; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass https://u; }
           location /name { proxy_ssl_verify on; proxy_ssl_trusted_certificate backend.crt; proxy_ssl_name other;
             proxy_pass https://u; }
           location /old { proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256;
             proxy_pass https://u; }
           location /again { proxy_set_header Connection close; proxy_pass https://u; }
           location /api { api write=on; } }",
    )
    .certificate("backend")
    .start();
    let mut client = server.connect();
    (0..3).for_each(|_| assert_eq!(client.get("/").text(), "backend"));
    let group = || get(&server, "/api/9/http/upstreams/u");
    assert!(wait(|| group()["keepalive"] == 1), "{}", group());
    assert_eq!((&group()["peers"][0]["ssl"]["handshakes"], &group()["zombies"]), (&json!(1), &json!(0)));
    // The session of the first one is gone on with; the certificate is another host's; it fits none of the ciphers.
    assert_eq!(client.get("/again").text(), "backend");
    assert_eq!((client.get("/name").status, client.get("/old").status), (502, 502));
    let ssl = &group()["peers"][0]["ssl"];
    let count = |name: &str| ssl[name].as_u64().expect("a number");
    assert_eq!((count("handshakes"), count("handshakes_failed")), (1, 2), "{ssl}");
    assert_eq!(ssl["verify_failures"]["hostname_mismatch"], 1);
    assert!(ssl.get("no_common_cipher").is_none() && ssl["verify_failures"].get("no_cert").is_none(), "{ssl}");
    let all = get(&server, "/api/9/ssl");
    assert_eq!(all["verify_failures"]["hostname_mismatch"], 1, "{all}");
    assert!(all["handshakes_failed"].as_u64() >= Some(2) && all["no_common_cipher"] == 1, "both ends: {all}");
    assert_eq!(call(&server, "DELETE", "/api/9/http/upstreams/u", None).0, 204);
    assert!(group()["peers"][0].get("ssl").is_none(), "{}", group());
}

#[test]
fn a_server_that_is_removed_at_work_is_a_zombie() {
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let slow = Backend::start(move |_| {
        wait(|| gate.load(Relaxed));
        Reply::ok("late")
    });
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@SLOW@; server 127.0.0.1:1 down; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; } location /api { api write=on; } }",
    )
    .set("SLOW", slow.port)
    .start();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(wait(|| !slow.seen().is_empty()));
    let zombies = || get(&server, "/api/9/http/upstreams/u")["zombies"].clone();
    assert_eq!(zombies(), 0);
    assert_eq!(call(&server, "DELETE", "/api/9/http/upstreams/u/servers/0", None).0, 200);
    assert_eq!(zombies(), 1);
    open.store(true, Relaxed);
    assert_eq!(client.response().text(), "late");
    assert!(wait(|| zombies() == 0));
}

#[test]
fn counters_of_threads_and_resolvers_are_set_to_zero() {
    let dns = Dns::start(Duration::ZERO);
    dns.set(&[[127, 0, 0, 1]]);
    let backend = Backend::ok("found");
    let server = Site::http(
        "resolver 127.0.0.1:@DNS@ status_zone=dns ipv6=off; upstream u { zone u 64k; server peer.test:@BACKEND@ resolve; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; } location /api { api write=on; } }",
    )
    .set("DNS", dns.port)
    .set("BACKEND", backend.port)
    .start();
    assert_eq!(server.get("/").text(), "found");
    let resolver = || get(&server, "/api/9/resolvers/dns");
    assert!(resolver()["requests"]["name"].as_u64() >= Some(1), "{}", resolver());
    assert_eq!(call(&server, "DELETE", "/api/9/resolvers/dns", None).0, 204);
    assert_eq!((&resolver()["requests"]["name"], &resolver()["responses"]["noerror"]), (&json!(0), &json!(0)));
    assert_eq!(refused(&server, "DELETE", "/api/9/resolvers", None), (405, "MethodNotAllowed".to_owned()));
    let requests = || -> u64 {
        let all = get(&server, "/api/9/workers");
        let of = |w: &Value| w["http"]["requests"]["total"].as_u64().expect("a number");
        all.as_array().expect("a list").iter().map(of).sum()
    };
    let before = requests();
    assert!(before >= 5, "{before}");
    assert_eq!(call(&server, "DELETE", "/api/9/workers", None).0, 204);
    assert_eq!(requests(), 1, "the call itself");
    assert_eq!(call(&server, "DELETE", "/api/9/workers/0", None).0, 204);
    assert!(get(&server, "/api/9/http/requests")["total"].as_u64() > Some(before), "the sum of all goes on");
}

#[test]
fn the_api_is_as_its_document_says() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    if !here.join(".venv/bin/schemathesis").exists() {
        return println!("schemathesis is not installed (make setup): left out");
    }
    let out = Command::new("python3").arg(here.join("openapi.py")).arg(env!("CARGO_BIN_EXE_ironweir")).output();
    let out = out.expect("python3 runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr));
}

#[test]
fn an_hour_is_kept_and_changes_are_logged_with_their_user() {
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:9; } keyval_zone zone=k:64k; keyval $arg_k $v zone=k;
         server { listen 127.0.0.1:@PORT@; location /api { api write=on; auth_basic x; auth_basic_user_file @DIR@/users; } }",
    )
    .file("users", "me:{PLAIN}secret\n")
    .start();
    let call = |method: &str, path: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "{method} /api/9/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic bWU6c2VjcmV0\r\nContent-Type: application/json\r\n"
        );
        server.connect().send(format!("{head}Content-Length: {length}\r\n\r\n{body}")).response()
    };
    let history: serde_json::Value = serde_json::from_slice(&call("GET", "ironweir/history", "").body).unwrap();
    assert!(history["step_s"] == 10 && history["samples"].is_array(), "{history}");
    assert_eq!(call("PATCH", "http/upstreams/u/servers/0", "{\"weight\": 5}").status, 200);
    assert_eq!(call("POST", "http/keyvals/k", "{\"token\": \"hush\"}").status, 201);
    let log = server.error_log();
    assert!(log.contains("api: PATCH /9/http/upstreams/u/servers/0 {\\\"weight\\\": 5}, by user \"me\""), "{log}");
    assert!(log.contains("api: POST /9/http/keyvals/k, by user \"me\"") && !log.contains("hush"), "{log}");
}
