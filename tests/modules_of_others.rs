//! What a survey of public configurations with modules of others has found refused wrongly, each as it stood there.

use crate::harness::{Backend, Folder, Reply, Server, Site, compare_with_nginx, wait};
use rustix::process::Signal;
use serde_json::Value;

/// What `-t` says of a configuration that it takes.
fn taken(site: Site) -> String {
    let (status, said) = site.check();
    assert!(status.success(), "{said}");
    said
}

/// What `-t` says of one that it refuses.
fn refused(site: Site) -> String {
    let (status, said) = site.check();
    assert!(!status.success(), "{said}");
    said
}

#[test]
fn set_gives_built_in_variables_that_nginx_lets_it() {
    let backend = Backend::ok("hello");
    let text = |port: u16| {
        format!(
            "events {{}} http {{ access_log off; default_type text/plain; server {{ listen 127.0.0.1:@PORT@;
             location /own {{ set $proxy_host own.test; proxy_pass http://127.0.0.1:{port}; }}
             location /port {{ set $proxy_port 8; set $proxy_host 127.0.0.1:{port}; proxy_pass http://$proxy_host; }}
             location / {{ set $ssl_protocol none; set $ssl_client_verify FAILED; set $msie 1; set $ancient_browser 2;
                          set $modern_browser 3; set $invalid_referer 4;
                          return 200 '$ssl_protocol $ssl_client_verify $msie $ancient_browser $modern_browser $invalid_referer'; }} }} }}"
        )
    };
    let server = Site::whole(&text(backend.port)).start();
    assert_eq!(server.get("/").text(), "none FAILED 1 2 3 4");
    assert_eq!(server.get("/own").text(), "hello");
    assert_eq!(
        backend.seen().last().and_then(|seen| seen.header("Host").map(str::to_owned)).as_deref(),
        Some("own.test")
    );
    assert_eq!(server.get("/port").text(), "hello");
    let said = refused(Site::server("location / { set $hostname x; return 200 $hostname; }"));
    assert!(said.contains("the duplicate \"hostname\" variable"), "{said}");
    compare_with_nginx(
        &["ngx_http_echo_module"],
        |loads| Site::whole(&format!("{loads}{}", text(backend.port))),
        &["GET / HTTP/1.1", "GET /own HTTP/1.1"],
    );
}

#[test]
fn init_by_lua_with_a_dictionary_is_not_run_by_a_test() {
    let program = |text: &str| {
        Site::http(&format!(
            "lua_shared_dict d 1m; init_by_lua_block {{ {text} }} server {{ listen 127.0.0.1:@PORT@; }}"
        ))
    };
    taken(program("require 'a.module.of.another.machine'"));
    let said = refused(program("this is no Lua"));
    assert!(said.contains("failed to load inlined Lua code"), "{said}");
    let said =
        taken(Site::http("lua_shared_dict d 1m; init_by_lua_file none.lua; server { listen 127.0.0.1:@PORT@; }"));
    assert!(said.contains("[warn] Lua file \"none.lua\" cannot be run: cannot open"), "{said}");
    let said = refused(Site::http("init_by_lua_block { error('no database') } server { listen 127.0.0.1:@PORT@; }"));
    assert!(said.contains("[emerg] init_by_lua error") && said.contains("no database"), "{said}");
}

/// What the status page of a server says.
fn counted(server: &Server) -> Value {
    serde_json::from_slice(&server.get("/status").body).expect("JSON")
}

const COUNTED: &str = "server { listen 127.0.0.1:@PORT@; server_name one.test;
    location / { vhost_traffic_status_filter_by_set_key $arg_k keys::*; return 200 x; }
    location /status { vhost_traffic_status_display; vhost_traffic_status_bypass_stats on; } }";

#[test]
fn traffic_that_was_counted_outlives_the_process() {
    let folder = Folder::new();
    let path = folder.path().join("vts.db");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let text = format!(
        "vhost_traffic_status_zone; vhost_traffic_status_histogram_buckets 5000; vhost_traffic_status_dump @STATE@ 1s; {COUNTED}"
    );
    let site = || Site::http(&text).set("STATE", path.display());
    let server = site().start();
    (0..3).for_each(|_| assert_eq!(server.get("/?k=a").status, 200));
    let state = || std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wait(|| state().contains("\"requests\":3")), "{}", server.error_log());
    // What comes after the last time is written at the end.
    (0..2).for_each(|_| assert_eq!(server.get("/?k=b").status, 200));
    assert!(server.stop(Signal::TERM).success());
    assert!(state().contains("\"requests\":5"), "{}", state());
    let again = site().start();
    let all = counted(&again);
    assert_eq!(all["serverZones"]["one.test"]["requestCounter"], 5, "{all:#}");
    assert_eq!(all["serverZones"]["one.test"]["requestBuckets"]["counters"][0], 5, "{all:#}");
    assert_eq!(all["filterZones"]["keys::*"]["a"]["requestCounter"], 3, "{all:#}");
    again.get("/?k=a");
    again.signal(Signal::HUP);
    assert!(wait(|| state().contains("\"requests\":6")), "a reload reads nothing twice: {}", state());
    drop(again);
    // A state of the module's own form is none of ours, and no reason not to serve.
    std::fs::write(&path, [1, 0, 2, 255]).unwrap();
    let other = site().start();
    other.wait_for("logs/error.log", "vhost_traffic_status_dump \"");
    assert_eq!(other.get("/").status, 200);
}

#[test]
fn traffic_is_limited_by_host_and_by_key() {
    let server = Site::http(
        "vhost_traffic_status_zone;
         server { listen 127.0.0.1:@PORT@; server_name one.test; vhost_traffic_status_filter_by_set_key $arg_k keys;
                  vhost_traffic_status_limit_traffic_by_set_key FG@keys@$arg_k request:2 508;
                  location / { vhost_traffic_status_limit_traffic 2xx:4; vhost_traffic_status_limit_traffic_by_set_key FG@keys@$arg_k request:2 508; echo x; }
                  location /free { vhost_traffic_status_limit off; echo x; }
                  location /status { vhost_traffic_status_display; vhost_traffic_status_bypass_limit on; vhost_traffic_status_bypass_stats on; } }",
    )
    .start();
    // As in the module, a limit holds for what comes after it was passed.
    let mut client = server.connect();
    let statuses: Vec<u16> = (0..4).map(|_| client.get("/?k=a").status).collect();
    assert_eq!(statuses, [200, 200, 200, 508]);
    assert_eq!(["/?k=b", "/?k=b", "/?k=c"].map(|target| client.get(target).status), [200, 200, 503]);
    assert_eq!((server.get("/free?k=a").status, server.get("/status").status), (200, 200));
    for (bad, why) in [
        ("vhost_traffic_status_limit_traffic_by_set_key UA@x request:1;", "are not kept"),
        ("vhost_traffic_status_limit_traffic requests:1;", "invalid parameter"),
        ("vhost_traffic_status_limit_traffic request:x;", "invalid parameter"),
    ] {
        assert!(refused(Site::http(&format!("vhost_traffic_status_zone; {bad} {COUNTED}"))).contains(why), "{bad}");
    }
}

#[test]
fn traffic_is_shown_and_counted_as_the_directives_say() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "vhost_traffic_status_zone; vhost_traffic_status_stats_by_upstream off; upstream u { server 127.0.0.1:@BACKEND@; }
         vhost_traffic_status_filter_by_set_key $arg_k keys;
         server { listen 127.0.0.1:@PORT@; server_name one.test; vhost_traffic_status_ignore_status 404 410;
                  location / { proxy_pass http://u; }
                  location /gone { return 410; }
                  location /twice { vhost_traffic_status_filter_check_duplicate off; vhost_traffic_status_filter_by_set_key $arg_k keys; return 200 x; }
                  location /so-far { vhost_traffic_status_bypass_stats on; vhost_traffic_status_set_by_filter $n server/one.test/requestCounter;
                                     vhost_traffic_status_set_by_filter $k filter/keys@$arg_k/2xx; return 200 '$n $k'; }
                  location /status { vhost_traffic_status_display; vhost_traffic_status_display_jsonp show.it; vhost_traffic_status_bypass_stats on; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    for target in ["/a?k=x", "/gone?k=x", "/twice?k=x"] {
        client.get(target);
    }
    let all = counted(&server);
    assert_eq!(
        (&all["serverZones"]["one.test"]["requestCounter"], &all["filterZones"]["keys"]["x"]["requestCounter"]),
        (&2.into(), &3.into()),
        "{all:#}"
    );
    assert!(
        all["upstreamZones"].is_null()
            && !server.get("/status/format/prometheus").text().contains("nginx_vts_upstream")
    );
    assert_eq!(server.get("/so-far?k=x").text(), "2 3");
    let shown = server.get("/status/format/jsonp");
    assert_eq!(shown.header("Content-Type"), Some("application/javascript"));
    let inside = shown.text();
    let inside = inside.strip_prefix("show.it(").and_then(|rest| rest.strip_suffix(')')).expect("a call");
    assert!(serde_json::from_str::<Value>(inside).is_ok(), "{inside}");
    for (bad, why) in [
        ("vhost_traffic_status_average_method AMM 60s;", "requestMsecCounter"),
        ("vhost_traffic_status_measure_status_codes all;", "vhost_traffic_status_filter_by_set_key $status"),
        ("vhost_traffic_status_ignore_status 99;", "invalid status"),
    ] {
        assert!(refused(Site::http(&format!("vhost_traffic_status_zone; {bad} {COUNTED}"))).contains(why), "{bad}");
    }
    let said = taken(Site::http(&format!(
        "vhost_traffic_status_zone; vhost_traffic_status_limit_check_duplicate off; {COUNTED}"
    )));
    assert!(said.contains("no effect"), "{said}");
}

#[test]
fn purges_are_answered_in_the_form_that_is_asked_for() {
    let backend = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nCache-Control: max-age=60\r\n\r\nhello".to_vec())
    });
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=z:1m; proxy_cache z; proxy_cache_key $uri;
         server { listen 127.0.0.1:@PORT@; cache_purge_response_type json;
             location / { proxy_pass http://127.0.0.1:@BACKEND@; }
             location ~ ^/json(/.*) { proxy_cache_purge z $1; }
             location ~ ^/xml(/.*) { proxy_cache_purge z $1; cache_purge_response_type xml; }
             location ~ ^/text(/.*) { proxy_cache_purge z $1; cache_purge_response_type text; }
             location ~ ^/html(/.*) { proxy_cache_purge z $1; cache_purge_response_type html; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    for (form, media_type, body) in [
        ("json", "application/json", "{\"Key\": \"/a\"}"),
        ("xml", "text/xml", "<?xml version=\"1.0\" encoding=\"UTF-8\"?><status><Key><![CDATA[/a]]></Key></status>"),
        ("text", "text/plain", "Key:/a\n"),
    ] {
        assert_eq!(server.get("/a").text(), "hello");
        let answer = server.get(&format!("/{form}/a"));
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some(media_type)), "{form}");
        assert_eq!(answer.text(), body);
        assert_eq!(server.get(&format!("/{form}/a")).status, 412, "nothing is left");
    }
    server.get("/a");
    assert!(server.get("/html/a").text().contains("Successful purge"));
    let said = refused(Site::http("cache_purge_response_type yaml;"));
    assert!(said.contains("invalid value \"yaml\""), "{said}");
}

#[test]
fn lines_of_gzip_proxied_add_to_each_other() {
    let server = Site::server(
        "gzip on; gzip_min_length 1; gzip_types text/plain; gzip_proxied no-cache; gzip_proxied expired auth;
         location / { add_header Cache-Control private; }
         location /new { add_header Cache-Control no-cache; }",
    )
    .file("html/a.txt", "text ".repeat(100))
    .file("html/new.txt", "text ".repeat(100))
    .start();
    let coding = |target: &str, headers: &str| {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: a\r\nVia: 1.1 p\r\nAccept-Encoding: gzip\r\n{headers}\r\n");
        server.connect().send(request).response().header("Content-Encoding").map(str::to_owned)
    };
    assert_eq!(coding("/a.txt", ""), None);
    assert_eq!(coding("/new.txt", "").as_deref(), Some("gzip"));
    assert_eq!(coding("/a.txt", "Authorization: Basic eA==\r\n").as_deref(), Some("gzip"));
}

#[test]
fn single_names_and_values() {
    let said = taken(Site::server("ssl_ecdh_curve X25519:X448:sect571r1:prime256v1;"));
    assert!(!said.contains("[emerg]"), "{said}");
    let said = taken(Site::server("location / { nchan_pubsub; nchan_channel_id $arg_a; nchan_channel_id $arg_b; }"));
    assert!(said.contains("\"nchan_channel_id\" replaces the one before it"), "{said}");
    let said = taken(Site::server(
        "location /t { auth_jwt on; return 200; } location /u { auth_jwt on; auth_jwt_key_request /k; }",
    ));
    assert_eq!(said.matches("every request is refused").count(), 1, "{said}");
    for (directive, why) in [
        ("location / { echo_abort_parent; }", "answers 500"),
        ("lua_upstream_skip_openssl_default_verify on;", "proxy_ssl_verify"),
        ("ssl_certificate_by_lua_block { }", "no ssl configured for the server"),
    ] {
        assert!(refused(Site::server(directive)).contains(why), "{directive}");
    }
    let said = refused(Site::whole("js_load_http_native_module /usr/lib/x.so; events {}"));
    assert!(said.contains("with all its rights"), "{said}");
}

#[test]
fn base32_in_another_alphabet_and_names_with_a_star() {
    let text = |loads: &str| {
        Site::whole(&format!(
            "{loads}events {{}} http {{ access_log off; default_type text/plain; server {{ listen 127.0.0.1:@PORT@;
             location /b {{ set_base32_alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZ234567; set_base32_padding off; set $a abc; set_encode_base32 $a;
                           set $b MFRGG; set_decode_base32 $b; return 200 '$a $b'; }}
             location /p {{ set_misc_base32_padding off; set $a abc; set_encode_base32 $a; return 200 $a; }}
             location /d {{ set $a abc; set_encode_base32 $a; return 200 $a; }}
             location /s {{ more_set_headers 'X-Foo*: v'; return 200 x; }}
             location /e {{ echo_blocking_sleep 0.01; echo hi; }}
             location /f {{ echo_subrequest POST /asked -f @DIR@/body; echo_subrequest PUT /asked -q a=1 -b hello; echo_subrequest GET /asked; }}
             location /asked {{ echo_read_request_body; echo $echo_request_method $args; echo_request_body; echo; }} }} }}"
        ))
        .file("body", "of a file")
    };
    let server = text("").start();
    assert_eq!(server.get("/f").text(), "POST \nof a file\nPUT a=1\nhello\nGET \n\n");
    assert_eq!(server.get("/b").text(), "MFRGG abc");
    assert_eq!((server.get("/p").text(), server.get("/d").text()), ("c5h66".to_owned(), "c5h66===".to_owned()));
    assert_eq!(server.get("/s").header("X-Foo*"), Some("v"));
    assert_eq!(server.get("/e").text(), "hi\n");
    let modules =
        ["ndk_http_module", "ngx_http_echo_module", "ngx_http_set_misc_module", "ngx_http_headers_more_filter_module"];
    compare_with_nginx(
        &modules,
        text,
        &[
            "GET /b HTTP/1.1",
            "GET /p HTTP/1.1",
            "GET /d HTTP/1.1",
            "GET /s HTTP/1.1",
            "GET /e HTTP/1.1",
            "GET /f HTTP/1.1",
        ],
    );
}

#[test]
fn a_module_of_js_finds_others_beside_the_configuration() {
    let server = Site::http(
        "js_import http/main.js; server { listen 127.0.0.1:@PORT@; location / { js_content main.say; } }",
    )
    .file("lib/words.js", "export default { word: 'found' }")
    .file(
        "http/main.js",
        "import words from 'lib/words.js'; function say(r) { r.return(200, words.word); } export default { say }",
    )
    .start();
    assert_eq!(server.get("/").text(), "found");
}

#[test]
fn files_of_a_list_are_one_answer() {
    let server = Site::http(
        "include @DIR@/types; default_type text/plain;
         server { listen 127.0.0.1:@PORT@; root @DIR@/www;
           location / { concat on; concat_max_files 3; index index.html; }
           location /more/ { alias @DIR@/www/; concat on; concat_unique off; concat_types text/plain; concat_delimiter \"\\n\"; concat_ignore_file_error on; } }",
    )
    .file("types", "types { text/css css; application/javascript js; text/html html; }")
    .file("www/index.html", "index")
    .file("www/a.css", "a { }")
    .file("www/in/b.css", "b { }")
    .file("www/empty.css", "")
    .file("www/c.js", "c()")
    .file("www/d.txt", "d")
    .file("outside.css", "secret")
    .start();
    let r = server.get("/??a.css,in/b.css,empty.css?v=7");
    assert_eq!((r.status, r.text().as_str(), r.header("Content-Type")), (200, "a { }b { }", Some("text/css")));
    assert_eq!((r.header("Content-Length"), r.header("ETag").is_some()), (Some("10"), true));
    let r = server.connect().send("GET /??a.css,in/b.css HTTP/1.1\r\nHost: a\r\nRange: bytes=3-6\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str()), (206, " }b "));
    assert_eq!(server.get("/in/??b.css").text(), "b { }");
    assert_eq!(server.get("/??in%2fb.css").text(), "b { }");
    for (path, status) in [
        ("/??a.css,a.css,a.css,a.css", 400),
        ("/??a.css,c.js", 400),
        ("/??d.txt", 400),
        ("/??../outside.css", 400),
        ("/??in/..%2f..%2foutside.css", 400),
        ("/??a.css,../outside.css", 400),
        ("/??a%00.css", 400),
        ("/??a.css,none.css", 404),
        ("/??", 404),
        ("/in/??../a.css", 400),
    ] {
        let r = server.get(path);
        assert_eq!((r.status, r.header("Content-Type")), (status, Some("text/html")), "{path}");
        assert!(!r.text().contains("secret") && !r.text().contains("a {"), "{path}: {}", r.text());
    }
    assert_eq!(server.get("/?a.css").text(), "index");
    assert_eq!(server.get("/more/??c.js,none.js,d.txt").text(), "c()\nd");
    assert_eq!(server.get("/more/??none.js").status, 404);
    let said = refused(Site::server("concat_max_files many;"));
    assert!(said.contains("invalid number"), "{said}");
}

#[test]
fn consistent_hash_is_hash_by_another_name() {
    let backends = [Backend::ok("0"), Backend::ok("1"), Backend::ok("2")];
    let group = |name: &str, method: &str| {
        let servers = (0..3).map(|n| format!("server 127.0.0.1:@B{n}@;")).collect::<String>();
        format!("upstream {name} {{ {method} {servers} }}")
    };
    let groups = group("a", "consistent_hash $arg_k;") + &group("b", "hash $arg_k consistent;");
    let mut site = Site::http(&format!(
        "{groups} server {{ listen 127.0.0.1:@PORT@; location /a {{ proxy_pass http://a; }} location /b {{ proxy_pass http://b; }} }}"
    ));
    for (name, backend) in ["B0", "B1", "B2"].into_iter().zip(&backends) {
        site = site.set(name, backend.port);
    }
    let server = site.start();
    let answers = |path: &str| (0..24).map(|k| server.get(&format!("{path}?k=key{k}")).text()).collect::<String>();
    let all = answers("/a");
    assert_eq!(all, answers("/b"));
    assert!(["0", "1", "2"].iter().all(|n| all.contains(n)), "{all}");
}
