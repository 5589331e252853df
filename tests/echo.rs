//! `echo`, `subs_filter`, `proxy_cache_purge`, beside nginx with those modules where they are installed.

use crate::harness::{Backend, Reply, Site, compare_with_nginx};

const ECHO: &str = "location /echo { echo -n one; echo two \"$arg_a b\"; echo; echo -- -n; }
    location /duplicate { echo_duplicate 3 \"ab$arg_a\"; echo_duplicate 1_000 x; }
    location /sleep { echo_reset_timer; echo_sleep 0.2; echo done; }
    location /nap { echo_sleep $arg_a; echo done; }
    location /body { echo_read_request_body; echo \"[$echo_request_body]\"; echo_request_body; }
    location /each { echo_foreach_split ',' $arg_a; echo \"item $echo_it\"; echo_end; echo after; }
    location /include { echo before; echo_location /part a=1; echo between; echo_location_async /part?a=2; echo after; }
    location /sub { echo_subrequest GET /part -q a=3; echo $echo_request_method $echo_client_request_method; }
    location /part { echo \"part $arg_a\"; }
    location /exec { echo_exec /part $args; }
    location /named { echo_exec @named; }
    location @named { echo \"named $uri\"; }
    location /status { echo_status 404; echo not here; }
    location /around { echo_before_body before $arg_a; echo_after_body -n after; alias @DIR@/html/file; }
    location /if { if ($arg_a = 1) { echo yes; } echo no; }
    location /uri { echo $echo_request_uri; echo_flush; echo \"$echo_client_request_headers\"; }
    location /incr { echo $echo_incr; echo $echo_incr; }";

#[test]
fn echo_is_the_same_as_the_module_in_nginx() {
    let site = |loads: &str| {
        Site::whole(&format!(
            "{loads} events {{}} http {{ access_log off; default_type text/plain; root @DIR@/html; server {{ listen 127.0.0.1:@PORT@; {ECHO} }} }}"
        ))
        .file("html/file", "the file\n")
    };
    let requests = [
        "GET /echo?a=x HTTP/1.1",
        "HEAD /echo HTTP/1.1",
        "GET /echo HTTP/1.0",
        "GET /duplicate?a=c HTTP/1.1",
        "GET /sleep HTTP/1.1",
        "GET /nap?a=.001 HTTP/1.1",
        "GET /nap?a=x HTTP/1.1",
        "GET /nap HTTP/1.1",
        "GET /each?a=1,2,,3 HTTP/1.1",
        "GET /each?a= HTTP/1.1",
        "GET /include HTTP/1.1",
        "GET /sub HTTP/1.1",
        "GET /exec?a=5 HTTP/1.1",
        "GET /named HTTP/1.1",
        "GET /status HTTP/1.1",
        "GET /around?a=x HTTP/1.1",
        "GET /if?a=1 HTTP/1.1",
        "GET /if HTTP/1.1",
        "GET /uri?a=b%20c HTTP/1.1",
        "GET /incr HTTP/1.1",
        "POST /body HTTP/1.1\r\nContent-Length: 0",
    ];
    compare_with_nginx(&["ndk_http_module", "ngx_http_echo_module"], site, &requests);
}

#[test]
fn echo_gives_the_body_back_and_pauses() {
    let server = Site::server(&format!("default_type text/plain; client_body_buffer_size 1k; {ECHO}"))
        .file("html/file", "x")
        .start();
    let ask = |body: &str| {
        server
            .connect()
            .send(format!("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            .response()
            .text()
    };
    assert_eq!(ask("hello"), "[hello]\nhello");
    // What is in a file is no variable's value.
    let long = "0123456789".repeat(1000);
    assert_eq!(ask(&long), format!("[]\n{long}"));
    let begun = std::time::Instant::now();
    assert_eq!(server.get("/sleep").text(), "done\n");
    // The server's clock is read once a turn.
    assert!(begun.elapsed().as_millis() >= 150);
    let (status, said) = Site::server("location / { echo_end; }").check();
    assert!(!status.success() && said.contains("no loop"), "{said}");
    let (status, said) = Site::server("location / { echo_subrequest POST /x -z y; }").check();
    assert!(!status.success() && said.contains("unsupported option \"-z\""), "{said}");
}

#[test]
fn echo_reads_a_body_after_it_has_begun_to_answer() {
    let conf = "default_type text/plain;
        location /read { echo head; echo_read_request_body; echo $request_body; }
        location /around { location /around/x { echo_request_body; echo_request_body; } echo head; echo_request_body; }
        location /if { if ($arg_a) { echo head; echo_request_body; } echo_flush; }
        location /unread { echo head; }";
    let server = Site::server(conf).start();
    let late = [
        ("/read", "head\nk=1\n"),
        ("/around", "head\nk=1"),
        ("/around/x", "k=1k=1"),
        ("/if?a=1", "head\nk=1"),
        ("/unread", "head\n"),
    ];
    for (path, expected) in late {
        let mut client = server.connect();
        // What is not read is taken off the connection, which is kept.
        for _ in 0..2 {
            let whole = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nk=1");
            assert_eq!(client.send(whole).response().text(), expected, "{path}");
            let chunked =
                format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nk=1\r\n0\r\n\r\n");
            assert_eq!(client.send(chunked).response().text(), expected, "{path}, in chunks");
        }
    }
}

// Of what it changes the module keeps the tag.
const SUBS: &str = "etag off; default_type text/html; subs_filter_types text/plain;
    location /fixed { subs_filter World '[$arg_a]'; subs_filter hello bye i; }
    location /once { subs_filter l L o; }
    location /regex { subs_filter '(\\d+)-(\\d+)' '$2..$1' r; subs_filter '^W' 'start:' ri; subs_filter 'x*$' '' r; }
    location /bypass { subs_filter l L; subs_filter_bypass $arg_a; }
    location /plain { default_type text/plain; subs_filter o 0; }
    location /other { default_type application/json; subs_filter o 0; }
    location /chain { subs_filter a b; subs_filter b c; }";

const PAGE: &str = "Hello, World\nhello world 12-34 and 5-6xxx\n\nWorld\na b c\nlast line without an end";

fn subs_site(loads: &str) -> Site {
    let text = format!(
        "{loads} events {{}} http {{ access_log off; root @DIR@/html; server {{ listen 127.0.0.1:@PORT@; {SUBS} }} }}"
    );
    let names = ["fixed", "once", "regex", "bypass", "plain", "other", "chain"];
    names.iter().fold(Site::whole(&text), |site, name| site.file(&format!("html/{name}"), PAGE))
}

#[test]
fn substitutions_are_those_of_the_module_in_nginx() {
    let requests = [
        "GET /fixed?a=1 HTTP/1.1",
        "GET /once HTTP/1.1",
        "GET /bypass HTTP/1.1",
        "GET /bypass?a=1 HTTP/1.1",
        "GET /plain HTTP/1.1",
        "GET /other HTTP/1.1",
        "GET /chain HTTP/1.1",
        "HEAD /chain HTTP/1.1",
    ];
    compare_with_nginx(&["ngx_http_subs_filter_module"], subs_site, &requests);
}

#[test]
fn substitutions_by_patterns_and_across_pieces() {
    let server = subs_site("").start();
    let expected = "Hello, World\nhello world 34..12 and 6..5\n\nstart:orld\na b c\nlast line without an end";
    assert_eq!(server.get("/regex").text(), expected);
    // Lines that are cut by the pieces in which files are read.
    let long: String = (0..30_000).map(|n| format!("{n} and World\n")).collect();
    std::fs::write(server.dir().join("html/fixed"), &long).unwrap();
    assert!(server.get("/fixed?a=earth").text() == long.replace("World", "[earth]"));
}

#[test]
fn a_purge_reaches_all_variants_of_a_key() {
    let backend = Backend::start(|seen| {
        let language = seen.header("Accept-Language").unwrap_or("none");
        let body = format!("in {language}");
        let head = "HTTP/1.1 200 OK\r\nVary: Accept-Language\r\nCache-Control: max-age=60\r\nContent-Length:";
        Reply::Keep(format!("{head} {}\r\n\r\n{body}", body.len()).into())
    });
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=z:1m purger=on purger_files=2 purger_sleep=1ms purger_threshold=50ms;
         map $request_method $purges { PURGE 1; default 0; }
         server { listen 127.0.0.1:@PORT@; proxy_cache z; proxy_cache_key $uri; add_header X-Cache $upstream_cache_status;
                  location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_purge $purges; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let ask = |method: &str, target: &str, language: &str| {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nAccept-Language: {language}\r\n\r\n");
        let answer = server.connect().send(request).response();
        (answer.status, answer.header("X-Cache").unwrap_or_default().to_owned())
    };
    let all = [("/a", "de"), ("/a", "en"), ("/a", "fr"), ("/ab", "de")];
    let state = |wanted: [&str; 4]| {
        for ((target, language), wanted) in all.iter().zip(wanted) {
            assert_eq!(ask("GET", target, language).1, wanted, "{target} {language}");
        }
    };
    state(["MISS"; 4]);
    state(["HIT"; 4]);
    assert_eq!(ask("PURGE", "/a", "xx").0, 204);
    state(["MISS", "MISS", "MISS", "HIT"]);
    assert_eq!(ask("PURGE", "/nothing", "xx").0, 404);
}

#[test]
fn answers_are_purged_from_a_cache() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "proxy_cache_path @DIR@/cache levels=1:2 keys_zone=z:1m;
         map $request_method $purges { PURGE 1; default 0; }
         server { listen 127.0.0.1:@PORT@;
             proxy_cache z; proxy_cache_key $uri; proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status;
             location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_purge $purges; }
             location /all/ { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_key $uri$arg_star; proxy_cache_purge $purges; }
             location /frickle { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_purge PURGE from 127.0.0.1; }
             location /others { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_purge PURGE from 10.0.0.0/8; }
             location ~ ^/purge(/.*) { allow 127.0.0.1; deny all; proxy_cache_purge z $1; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let ask = |method: &str, target: &str| {
        let r = server.connect().send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n")).response();
        (r.status, r.header("X-Cache").unwrap_or_default().to_owned())
    };
    for target in ["/a", "/frickle", "/others"] {
        assert_eq!(ask("GET", target), (200, "MISS".into()));
        assert_eq!(ask("GET", target), (200, "HIT".into()));
    }
    assert_eq!(ask("PURGE", "/a").0, 204);
    assert_eq!(ask("PURGE", "/a").0, 404);
    assert_eq!(ask("GET", "/a").1, "MISS");
    assert_eq!(ask("PURGE", "/frickle").0, 200);
    assert_eq!(ask("PURGE", "/frickle").0, 404);
    assert_eq!(ask("PURGE", "/others").0, 403);
    assert_eq!(ask("GET", "/others").1, "HIT");
    assert_eq!(ask("GET", "/purge/others").0, 200);
    assert_eq!(ask("GET", "/purge/others").0, 404);
    assert_eq!(ask("GET", "/others").1, "MISS");
    // All whose keys begin so.
    for target in ["/all/1", "/all/2", "/all/3/4"] {
        assert_eq!(ask("GET", target).1, "MISS");
    }
    assert_eq!(ask("PURGE", "/all/?star=*").0, 204);
    assert_eq!(ask("PURGE", "/all/?star=*").0, 404);
    for target in ["/all/1", "/all/3/4"] {
        assert_eq!(ask("GET", target).1, "MISS");
    }
    assert_eq!(ask("GET", "/a").1, "HIT");
}
