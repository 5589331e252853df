//! What operators do with a server that runs: logs that are rotated, reloads that meet trouble, an API left open.

use crate::harness::{Backend, Program, Reply, Server, Site, run_stress, text, wait};
use crate::processes::children;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

/// The worker process of a server.
fn worker(server: &Server) -> Pid {
    server.wait_for("logs/nginx.pid", "\n");
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    let mut found = None;
    assert!(wait(|| {
        found = children(master).first().copied();
        found.is_some()
    }));
    Pid::from_raw(found.unwrap()).unwrap()
}

fn rename(server: &Server, from: &str, to: &str) {
    std::fs::rename(server.dir().join(from), server.dir().join(to)).unwrap();
}

#[test]
fn a_reload_reopens_logs_that_were_moved_away() {
    let server = Site::server(
        "access_log logs/a.log; location / { return 200; }
         location /held { access_log logs/held.log combined buffer=64k; return 200; }",
    )
    .start();
    server.get("/before");
    server.get("/held/before");
    server.wait_for("logs/a.log", "/before");
    for log in ["a", "held", "error"] {
        rename(&server, &format!("logs/{log}.log"), &format!("logs/{log}.old"));
    }
    server.signal(Signal::HUP);
    server.wait_for("logs/held.old", "/held/before");
    for log in ["a", "held", "error"] {
        assert!(wait(|| server.dir().join(format!("logs/{log}.log")).exists()), "{log}");
    }
    // Answered by the new configuration, so written to the new file.
    server.wait_for("logs/error.log", "exited with code 0");
    server.get("/after");
    server.wait_for("logs/a.log", "/after");
    assert!(!server.read("logs/a.old").contains("/after") && !server.read("logs/a.log").contains("/before"));
}

#[test]
fn a_reload_without_the_directory_of_its_logs_is_refused_aloud() {
    let server =
        Site::server("access_log @DIR@/gone/a.log; location / { return 200 before; }").file("gone/x", "").start();
    std::fs::remove_dir_all(server.dir().join("gone")).unwrap();
    let text = server.read("nginx.conf").replace("before", "after");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "gone/a.log\" failed (2: No such file or directory)");
    assert_eq!(server.get("/").text(), "before");
    std::fs::create_dir(server.dir().join("gone")).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| server.get("/").text() == "after"));
    server.wait_for("gone/a.log", "GET / ");
}

/// The master would wait for a reader for ever, and hear nothing.
#[test]
fn a_log_that_is_a_fifo_without_a_reader_is_refused() {
    let server = Site::server("access_log logs/a.log; location / { return 200 before; }").start();
    assert_eq!(server.get("/").text(), "before");
    let fifo = server.dir().join("logs/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let text = server.read("nginx.conf").replace("logs/a.log", "logs/fifo").replace("before", "after");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "logs/fifo\" failed (6: ");
    assert_eq!(server.get("/").text(), "before");
    let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| server.get("/").text() == "after"));
    let mut line = [0; 16];
    reader.read_exact(&mut line).unwrap();
    assert!(line.starts_with(b"127.0.0.1"));
}

#[test]
fn a_reload_outlives_the_worker_that_should_take_it() {
    let server = Site::server("location / { return 200 before; }").start();
    assert_eq!(server.get("/").text(), "before");
    let old = worker(&server);
    kill_process(old, Signal::STOP).unwrap();
    let text = server.read("nginx.conf").replace("before", "after");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    let named =
        format!("worker process {} has not taken configuration 2 for 5 seconds: it is stopped", old.as_raw_nonzero());
    server.wait_for("logs/error.log", &named);
    kill_process(old, Signal::KILL).unwrap();
    server.wait_for("logs/error.log", "configuration 2 is for the next worker process");
    assert_eq!(server.get("/").text(), "after");
}

#[test]
fn an_open_api_is_warned_of() {
    let of = |text: &str| Site::server(text).file("users", "").check().1;
    let warning = "\"api write=on\" without \"allow\", \"deny\" or a password";
    assert!(of("location /api { api write=on; }").contains(warning));
    assert!(of("location /api { api write=on; location /api/x { return 200; } }").matches(warning).count() == 1);
    for guarded in [
        "location /api { api write=on; allow 127.0.0.1; deny all; }",
        "deny 10.0.0.0/8; location /api { api write=on; }",
        "location /api { api write=on; auth_basic x; auth_basic_user_file users; }",
        "location /api { api write=on; auth_request /a; }",
        "location /api { api write=on; limit_except GET { deny all; } }",
        "location /api { api; }",
    ] {
        assert!(!of(guarded).contains(warning), "{guarded}");
    }
    let server = Site::server("location /api { api write=on; }").start();
    server.wait_for("logs/error.log", warning);
}

#[test]
fn a_zone_bounds_the_servers_that_the_api_adds() {
    let server = Site::http(
        "upstream app { zone app 32k; server 127.0.0.1:1; }
         server { listen 127.0.0.1:@PORT@; location /api { api write=on; allow all; } }",
    )
    .start();
    let mut client = server.connect();
    let mut add = |port: u16| {
        let body = json!({"server": format!("127.0.0.1:{port}")}).to_string();
        let path = "/api/9/http/upstreams/app/servers";
        client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        client.response()
    };
    let refused = (2..1000).map(&mut add).find(|r| r.status != 201).expect("a zone of 32 KiB has an end");
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert!(refused.text().contains("room for 64 servers"), "{}", refused.text());
}

#[test]
fn no_global_directives_are_none() {
    let site = Site::server("return 200;");
    let dir = site.path().to_owned();
    let server = site.start();
    let mut command = Command::new(Program::under_test().path().unwrap());
    let out =
        command.arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf")).args(["-g", "", "-T"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&out.stderr).contains("requires parameter"), "{out:?}");
    drop(server);
}

/// What a server that wants to steer the operator's terminal sends.
const STEERING: &str = "a\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}31m";

#[test]
fn what_a_target_says_steers_no_terminal() {
    let backend = Backend::start(|_| {
        let head =
            format!("HTTP/1.1 302 Found\r\nLocation: /{STEERING}\r\nX-Who: {STEERING}\r\nContent-Length: 0\r\n\r\n");
        Reply::Keep(head.into())
    });
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let out = run_stress(&format!("-t1 -c2 -n 20 --backend-header X-Who {url}"));
    let said = text(&out);
    assert!(said.contains("redirects (302 to /a\\x1b]0;x\\x07\\x1b[2J\\x9b31m)"), "{said:?}");
    assert!(said.contains("100.0%  a\\x1b]0;x"), "{said:?}");
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
}

#[test]
fn top_waits_for_no_endless_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[\"");
        while stream.write_all(&[b'x'; 64 * 1024]).is_ok() {}
    });
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    let out = command.args(["top", "--once", &url]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("its answer is longer than 16 MiB"), "{said}");
}

#[test]
fn an_authority_may_be_its_own_certificate() {
    if !crate::harness::has_tools() {
        return;
    }
    // What `openssl req -x509` makes says CA:TRUE.
    let server = Site::http(
        "acme_issuer own { uri https://localhost:@OTHER@/directory; ssl_trusted_certificate @DIR@/localhost.crt;
                           state_path @DIR@/kept; accept_terms_of_service; }
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate @DIR@/localhost.crt; ssl_certificate_key @DIR@/localhost.key;
                  access_log logs/asked.log; return 404; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name a.test; acme_certificate own;
                  ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }",
    )
    .certificate("localhost")
    .start();
    server.wait_for("logs/error.log", "acme: issuer \"own\": ");
    assert!(wait(|| server.read("logs/asked.log").contains("GET /directory ")), "{}", server.error_log());
}

#[test]
fn a_flood_on_one_connection_is_summed_up_in_the_log() {
    let server =
        Site::server("http2 on; location / { limit_conn_log_level info; auth_basic x; auth_basic_user_file users; }")
            .file("users", "")
            .start();
    let mut client = server.connect();
    for _ in 0..500 {
        assert_eq!(client.get("/").status, 401);
    }
    let lines = server.error_log().matches("no user/password was provided").count();
    assert!((1..=500).contains(&lines), "{lines}");
    // However the requests fall on seconds: what was not written is summed up at the next line of a later second.
    assert!(wait(|| {
        client.get("/");
        server.error_log().contains(" more lines of one kind about this connection were left out")
    }));
}

/// The worker's user, where that is another than who runs the test.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run as root: the worker's user is no other; left out");
    }
    root
}

#[test]
fn directories_are_made_so_that_the_worker_can_use_them() {
    if !is_root() {
        return;
    }
    let backend = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok".to_vec())
    });
    let server = Site::http(
        "proxy_cache_path @DIR@/a/b/c keys_zone=c:1m; client_body_temp_path @DIR@/d/e/f; client_body_buffer_size 1k;
         keyval_zone zone=names:64k state=@DIR@/var/lib/names.json; keyval $arg_key $name zone=names;
         server { listen 127.0.0.1:@PORT@;
           location / { proxy_cache c; proxy_pass http://127.0.0.1:@BACKEND@; add_header X-Cache $upstream_cache_status; }
           location /api { api write=on; allow all; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    server.get("/x");
    assert!(wait(|| server.get("/x").header("X-Cache") == Some("HIT")), "{}", server.error_log());
    let body = "b".repeat(100_000);
    let mut client = server.connect();
    client.send(format!("POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(client.response().status, 200, "{}", server.error_log());
    let json = r#"{"a": "1"}"#;
    let path = "/api/9/http/keyvals/names";
    client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{json}", json.len()));
    assert_eq!(client.response().status, 201, "{}", server.error_log());
    assert!(wait(|| server.read("var/lib/names.json").contains('a')));
}

#[test]
fn a_state_file_that_cannot_be_written_is_named() {
    if !is_root() {
        return;
    }
    let (status, said) =
        Site::http("keyval_zone zone=n:64k state=@DIR@/html/n.json; server { listen 127.0.0.1:@PORT@; }").check();
    assert!(status.success(), "{said}");
    assert!(said.contains("\"@DIR@/html/n.json\" can be read, but not written by nobody: \"@DIR@/html\""), "{said}");
    let (_, said) =
        Site::http("keyval_zone zone=n:64k state=@DIR@/made/n.json; server { listen 127.0.0.1:@PORT@; }").check();
    assert!(!said.contains("not written"), "{said}");
}

fn ironweir(arguments: &[&str]) -> (bool, String, String) {
    let out = Command::new(Program::Ironweir.path().unwrap()).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn commands_say_what_they_are() {
    let (good, version, _) = ironweir(&["--version"]);
    assert!(good && version.starts_with("ironweir ") && version.contains("nginx/"), "{version}");
    for asked in [&["--help"][..], &["help"]] {
        let (good, said, _) = ironweir(asked);
        assert!(good && said.contains("\nOptions:\n") && said.contains("\n  stress        : puts load on"), "{said}");
    }
    assert!(ironweir(&["-h"]).2.contains("\n  top           : a running server"));
    for (command, word) in [("stress", "--find-max"), ("agent", "--listen"), ("top", "--once"), ("demo", "--port")] {
        let (good, said, _) = ironweir(&["help", command]);
        assert!(good && said.contains(word), "{command}: {said}");
        let (good, page, _) = ironweir(&[command, "--man"]);
        assert!(
            good && page.starts_with(".TH IRONWEIR") && page.replace("\\-", "-").contains(word),
            "{command}: {page}"
        );
    }
    assert!(ironweir(&["--man"]).1.contains(".B \\-s signal"));
    let (good, _, said) = ironweir(&["stres"]);
    assert!(
        !good && said.contains("invalid option: \"stres\"") && said.contains("did you mean \"ironweir stress\"?"),
        "{said}"
    );
    assert!(
        ironweir(&["stress", "--completion", "bash"])
            .1
            .contains("demo stress agent top doctor why redline canary tune nic lab l4 help")
    );
}

#[test]
fn the_tls_library_has_the_name_that_scripts_look_for() {
    let (_, _, said) = ironweir(&["-V"]);
    assert!(said.contains("\nbuilt with OpenSSL 1.1.1 (compatible; AWS-LC "), "{said}");
    for path in [" --prefix=/", " --conf-path=/", " --error-log-path=/", " --pid-path=/"] {
        assert!(said.contains(path), "{path}: {said}");
    }
}

#[test]
fn multipath_listens() {
    let server = Site::http("server { listen 127.0.0.1:@PORT@ multipath; return 200 ok; }").start();
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn who_has_a_port_is_named_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let server = Site::server("return 200 ok;").start();
    let text = server.read("nginx.conf").replace("return 200 ok;", &format!("listen {address}; return 200 ok;"));
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "still could not bind()");
    let (log, pid) = (server.error_log(), std::process::id());
    let line = format!("bind() to {address} failed (98: Address already in use): process {pid} (");
    assert!(log.matches(&line).count() == 1 && !log.contains("try again"), "{log}");
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn top_speaks_https_with_a_password_and_shows_all_lists() {
    let site = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:9; server 127.0.0.1:10 backup; } limit_req_zone $uri zone=slow:64k rate=1r/m;
         proxy_cache_path @DIR@/cache keys_zone=kept:1m;
         server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; status_zone site;
           location /api { api; auth_basic x; auth_basic_user_file @DIR@/users; } }",
    )
    .certificate("localhost")
    .file("users", "me:{PLAIN}secret\n")
    .file("me", "me:secret\n");
    let server = site.start();
    let url = format!("https://localhost:{}/api", server.port);
    let top = |more: &[&str]| {
        let file = |name: &str| server.dir().join(name).display().to_string();
        let mut command = Command::new(Program::Ironweir.path().unwrap());
        let out = command
            .args(["top", "--once"])
            .args(more.iter().map(|a| a.replace('@', &file(""))))
            .arg(&url)
            .output()
            .unwrap();
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
        )
    };
    let (good, said) = top(&["--cacert", "@localhost.crt", "--user-file", "@me"]);
    assert!(good, "{said}");
    for text in [
        "127.0.0.1:10 (backup)",
        "\nzones\n",
        "site\tserver",
        "\ncaches\n",
        "kept\t",
        "\nlimits\n",
        "slow\trequests",
        "\ncertificates\n",
    ] {
        assert!(said.contains(text), "{text}\n{said}");
    }
    let (good, said) = top(&["--insecure"]);
    assert!(!good && said.contains("wants a password"), "{said}");
    let (good, said) = top(&["--user", "me:secret"]);
    assert!(!good && said.to_lowercase().contains("certificate"), "{said}");
}
