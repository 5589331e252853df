//! `ironweir stress` against small servers whose behaviour is known.

use crate::harness::{Backend, Folder, Json, Program, Reply, Site, chromium, run_stress as stress, text};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn url(backend: &Backend) -> String {
    format!("http://127.0.0.1:{}/", backend.port)
}

#[test]
fn the_summary_reads_as_wrks() {
    let backend = Backend::ok("hello");
    let output = stress(&format!("-t1 -c4 -d1s --latency {}", url(&backend)));
    let text = text(&output);
    // 5: the machine had no time for the generator.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    for line in [
        &format!("Running 1s test @ {}\n  1 threads and 4 connections\n", url(&backend)),
        "  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency ",
        "\n    Req/Sec ",
        "\n  Latency Distribution\n     50% ",
        " requests in 1.0",
        "\nRequests/sec: ",
        "\nTransfer/sec: ",
        "\nVerdict: ",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert!(backend.seen()[0].head.starts_with("GET / HTTP/1.1\r\nHost: 127.0.0.1:"), "{:?}", backend.seen()[0]);
}

#[test]
fn so_many_requests_and_no_more() {
    let backend = Backend::ok("x");
    let json = Json::of(&format!("-t2 -c5 -n 103 -m PUT -b body -H X-A:b --no-preflight {}", url(&backend)));
    assert_eq!((json.number("requests"), json.number("errors.total")), (103.0, 0.0));
    let seen = backend.seen();
    assert_eq!(seen.len(), 103);
    assert!(seen.iter().all(|s| s.line() == "PUT / HTTP/1.1" && s.header("X-A") == Some("b") && s.body == b"body"));
    let connections: std::collections::HashSet<usize> = seen.iter().map(|s| s.connection).collect();
    assert_eq!(connections.len(), 5);
}

#[test]
fn a_stalled_target_cannot_hide_it() {
    // Answers at once, but for one second in which nothing is answered.
    let began = Mutex::new(None::<Instant>);
    let backend = Backend::start(move |_| {
        let since = began.lock().unwrap().get_or_insert_with(Instant::now).elapsed();
        let (first, last) = (Duration::from_secs(1), Duration::from_secs(2));
        if (first..last).contains(&since) {
            std::thread::sleep(last - since);
        }
        Reply::ok("x")
    });
    let url = url(&backend);
    let json = Json::of(&format!("-t1 -c4 -R 200 -d4s --timeout 5s --no-preflight {url}"));
    // A quarter of all requests were due in that second, and waited for its end: between 0 and 1 s, evenly.
    let (p50, p90, p99) = (json.number("latency_us.p50"), json.number("latency_us.p90"), json.number("latency_us.p99"));
    assert!(p50 < 300_000.0 && (350_000.0..1_200_000.0).contains(&p90), "{p50} {p90}");
    assert!((800_000.0..1_400_000.0).contains(&p99), "{p99}");
    assert!((780.0..=800.0).contains(&json.number("requests")), "{}", json.raw("requests"));
    // None of it was the generator's doing.
    assert!(json.number("lateness_us.p50") < 50_000.0, "{}", json.raw("lateness_us.p50"));
}

#[test]
fn what_is_unanswered_at_the_end_is_counted_with_its_age() {
    let run = || {
        let backend = Backend::start(|seen| {
            if seen.connection > 0 {
                std::thread::sleep(Duration::from_secs(20));
            }
            Reply::ok("x")
        });
        Json::of(&format!("-t1 -c1 -R 50 -d2s --timeout 10s {}", url(&backend)))
    };
    // A generator that other tests starved says so; that is not what is looked at here.
    let json = (0..5).map(|_| run()).find(|j| j.raw("verdict.limit") != "\"generator\"").expect("it gets its CPU once");
    assert_eq!(json.number("requests") + json.number("errors.unanswered"), 100.0);
    assert!(json.number("latency_us.p50") > 500_000.0, "{}", json.0);
    assert_eq!(json.raw("verdict.limit"), "\"target\"");
}

#[test]
fn find_max_finds_a_token_bucket() {
    const RATE: f64 = 600.0;
    let backend = Backend::token_bucket(RATE);
    let json = Json::of(&format!("-t1 -c8 --find-max --step 2s --slo errors<0.5% {}", url(&backend)));
    let (best, safe) = (json.number("find_max.best_rps"), json.number("find_max.safe_rps"));
    let steps = json.0.matches("\"held\": ").count();
    assert!((RATE * 0.95..=RATE * 1.05).contains(&best) && safe < best && steps <= 12, "{}", json.0);
    assert!(json.raw("find_max.bound").starts_with("\"errors<0.5%"), "{}", json.0);
}

#[test]
fn a_redirect_a_cookie_and_a_close_are_noticed_before() {
    let redirects = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n".to_vec())
    });
    let out = text(&stress(&format!("-t1 -c1 -n1 {}", url(&redirects))));
    assert!(out.contains("the target redirects (302 to /x)") && out.contains("the target sets a cookie"), "{out}");
    let closes = Backend::start(|_| {
        Reply::Close(b"HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx".to_vec())
    });
    let out = text(&stress(&format!("-t1 -c1 -n20 {}", url(&closes))));
    assert!(out.contains("status 404") && out.contains("closes the connection after its answer"), "{out}");
    assert!(out.contains("20 requests in") && out.contains("Non-2xx or 3xx responses: 20"), "{out}");
    let _ = (redirects.seen(), closes.seen());
}

#[test]
fn who_shares_its_cpus_is_named_before() {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        println!("there is one CPU: left out");
        return;
    }
    let server = Site::whole(
        "worker_processes 1; worker_cpu_affinity 10; events {}
         http { access_log off; server { listen @PORT@; listen unix:@DIR@/s.sock; return 200 x; } }",
    )
    .start();
    let said = |cpu: &str, target: &str| {
        let program = Program::Ironweir.path().expect("Ironweir is built");
        let mut command = Command::new("taskset");
        command.args(["-c", cpu]).arg(program).args(["stress", "-t1", "-c1", "-n1"]).args(target.split(' '));
        text(&command.output().expect("util-linux is installed"))
    };
    let unix = format!("--unix {} http://127.0.0.1/", server.dir().join("s.sock").display());
    for target in [format!("http://127.0.0.1:{}/", server.port), unix] {
        let (same, other) = (said("1", &target), said("0", &target));
        assert!(same.contains("the target (ironweir, process "), "{same}");
        assert!(same.contains(" may run on the generator's CPUs (1)"), "{same}");
        assert!(other.contains("1 requests in") && !other.contains("on this machine"), "{other}");
    }
}

#[test]
fn errors_by_kind() {
    // A port that nobody listens on.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = stress(&format!("-t1 -c2 -n4 --no-preflight --json - http://127.0.0.1:{port}/"));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(Json(text(&output)).number("errors.refused"), 4.0);

    let cut = Backend::start(|_| Reply::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()));
    let json = Json::of(&format!("-t1 -c2 -n10 --no-preflight {}", url(&cut)));
    assert_eq!((json.number("errors.closed"), json.number("requests")), (10.0, 0.0));

    let babble = Backend::start(|_| Reply::Close(b"SSH-2.0-OpenSSH\r\n".to_vec()));
    let json = Json::of(&format!("-t1 -c2 -n6 --no-preflight {}", url(&babble)));
    assert_eq!(json.number("errors.protocol"), 6.0);

    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_secs(3));
        Reply::ok("late")
    });
    let json = Json::of(&format!("-t1 -c2 -n2 --timeout 300ms --no-preflight {}", url(&slow)));
    assert_eq!(json.number("errors.timeout"), 2.0);
    assert!(json.number("latency_us.p50") >= 299_000.0, "the time it waited is a lower bound");
}

/// Answers the first request of each connection with a reset.
#[test]
fn a_target_that_resets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 10]);
            let socket = socket2::Socket::from(stream);
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    });
    let json = Json::of(&format!("-t1 -c3 -n9 --no-preflight http://127.0.0.1:{port}/"));
    assert_eq!((json.number("errors.reset"), json.number("requests")), (9.0, 0.0));
}

/// Answers `count` connections, one request each, and says how each ended: `fin`, `reset`, or `own` if the server was asked to.
fn endings(count: usize, arguments: &str) -> Vec<&'static str> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let mut all = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut request = [0; 1024];
            let length = match stream.read(&mut request) {
                Ok(0) | Err(_) => continue,
                Ok(length) => length,
            };
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").unwrap();
            let asked = String::from_utf8_lossy(&request[..length]).contains("Connection: close");
            all.push(match stream.read(&mut request) {
                _ if asked => "own",
                Ok(0) => "fin",
                Ok(_) => "kept",
                Err(_) => "reset",
            });
            if all.len() == count {
                return all;
            }
        }
        all
    });
    let line = format!("-t1 -c1 -n{count} --no-preflight --timeout 500ms {arguments} http://127.0.0.1:{port}/");
    let json = Json::of(&line);
    assert_eq!(json.number("connects"), count as f64, "{}", json.0);
    drop(std::net::TcpStream::connect(("127.0.0.1", port)));
    server.join().unwrap()
}

#[test]
fn who_closes() {
    assert_eq!(endings(3, "--close client"), ["fin"; 3]);
    assert_eq!(endings(3, "--close rst"), ["reset"; 3]);
}

#[test]
fn the_target_closes_when_it_is_asked() {
    let backend = Backend::start(|seen| match seen.header("Connection") {
        Some("close") => Reply::Close(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx".to_vec()),
        _ => Reply::ok("x"),
    });
    for how in ["--no-keepalive", "--close server"] {
        let json = Json::of(&format!("-t1 -c2 -n8 --no-preflight {how} {}", url(&backend)));
        assert_eq!((json.number("connects"), json.number("errors.total")), (8.0, 0.0), "{how}");
    }
}

#[test]
fn urls_from_a_file_and_the_spread_over_backends() {
    let backend = Backend::start(|seen| {
        let name = if seen.line().contains("/a") { "one" } else { "two" };
        let status = if seen.line().contains("/none") { "404 No" } else { "200 OK" };
        Reply::Keep(format!("HTTP/1.1 {status}\r\nX-Backend: {name}\r\nContent-Length: 0\r\n\r\n").into())
    });
    let folder = Folder::new();
    folder.write("urls", format!("# paths\n/a\n{}b\nDELETE /none\n\n/a\n", url(&backend)));
    let file = folder.path().join("urls");
    let line = format!("-t1 -c1 -n40 --backend-header x-backend --url-file {} {}", file.display(), url(&backend));
    let json = Json::of(&format!("{line} --no-preflight"));
    assert_eq!((json.number("backends.one"), json.number("backends.two")), (20.0, 20.0), "{}", json.0);
    assert_eq!((json.number("statuses.200"), json.number("statuses.404")), (30.0, 10.0));
    assert_eq!((json.raw("urls.url"), json.number("urls.requests")), ("\"/a\"", 20.0));
    let out = text(&stress(&format!("{line} --no-preflight")));
    assert!(
        out.contains("Backends (the busiest has 1.00 times its even share)") && out.contains("DELETE /none"),
        "{out}"
    );
}

#[test]
fn requests_from_a_browsers_recording() {
    let backend = Backend::ok("x");
    let folder = Folder::new();
    let har = format!(
        r#"{{"log":{{"entries":[
        {{"request":{{"method":"POST","url":"{0}p?q=1","headers":[{{"name":"X-Kept","value":"1"}},{{"name":"Host","value":"old"}}],"postData":{{"text":"hi"}}}}}},
        {{"request":{{"method":"GET","url":"http://elsewhere.test/","headers":[]}}}},
        {{"request":{{"method":"GET","url":"{0}two","headers":[{{"name":":path","value":"/two"}}]}}}}]}}}}"#,
        url(&backend)
    );
    folder.write("a.har", har);
    let out = stress(&format!("-t1 -c1 -n2 --no-preflight --har {}", folder.path().join("a.har").display()));
    assert!(text(&out).contains("1 requests went elsewhere"), "{out:?}");
    let seen = backend.seen();
    assert_eq!(seen.iter().map(|s| s.line()).collect::<Vec<_>>(), ["POST /p?q=1 HTTP/1.1", "GET /two HTTP/1.1"]);
    assert_eq!((seen[0].header("X-Kept"), seen[0].body.as_slice()), (Some("1"), &b"hi"[..]));
    assert_eq!(seen[0].header("Host").map(|h| h.contains("127.0.0.1")), Some(true));
}

#[test]
fn source_addresses_and_the_proxy_header() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < 4 {
            let (mut stream, peer) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut more = [0; 1024];
            while !bytes.ends_with(b"\r\n\r\n") {
                match stream.read(&mut more) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => bytes.extend_from_slice(&more[..n]),
                }
            }
            if bytes.is_empty() {
                continue;
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            seen.push((peer, String::from_utf8_lossy(&bytes).into_owned()));
        }
        seen
    });
    let arguments = "--source 127.0.9.4/30 --proxy-protocol 1 --close client --no-preflight";
    let json = Json::of(&format!("-t1 -c1 -n4 {arguments} http://127.0.0.1:{port}/"));
    assert_eq!(json.number("requests"), 4.0);
    let seen = server.join().unwrap();
    let mut sources: Vec<String> = seen.iter().map(|s| s.0.ip().to_string()).collect();
    sources.sort();
    assert_eq!(sources, ["127.0.9.4", "127.0.9.5", "127.0.9.6", "127.0.9.7"]);
    let (peer, request) = &seen[0];
    let line = format!("PROXY TCP4 {} 127.0.0.1 {} {port}\r\nGET / HTTP/1.1\r\n", peer.ip(), peer.port());
    assert!(request.starts_with(&line), "{request}");
}

#[test]
fn a_unix_socket() {
    let folder = Folder::new();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                while stream.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                }
            });
        }
    });
    let json = Json::of(&format!("-t1 -c2 -n50 --unix {} http://h/", path.display()));
    assert_eq!((json.number("requests"), json.number("errors.total")), (50.0, 0.0));
}

#[test]
fn stages_presets_and_the_exit_status() {
    let backend = Backend::ok("x");
    let json = Json::of(&format!("-t1 -c8 --stages 500ms:100,1s:0-100,500ms:400 --no-preflight {}", url(&backend)));
    assert_eq!(json.number("requests") + json.number("errors.total"), 300.0);
    let out = text(&stress(&format!("--preset forwarding -t1 -c2 -n4 --no-preflight {}", url(&backend))));
    assert!(out.contains("preset forwarding: --close rst: a new connection for each request"), "{out}");
    let out = stress(&format!("-t1 -c1 -n10 -q --fail-if max>1us {}", url(&backend)));
    assert_eq!(out.status.code(), Some(3), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("--fail-if max>1us (it is "));
    assert_eq!(stress("--bogus").status.code(), Some(1));
}

#[test]
fn reports_are_written_and_compared() {
    let backend = Backend::ok("x");
    let folder = Folder::new();
    let file = |name: &str| folder.path().join(name).display().to_string();
    for name in ["old.json", "new.json"] {
        let line =
            format!("-t1 -c2 -d1s --no-preflight --json {} --csv {} {}", file(name), file("c.csv"), url(&backend));
        assert!(matches!(stress(&line).status.code(), Some(0 | 5)));
    }
    let out = text(&stress(&format!("--compare {} {}", file("old.json"), file("new.json"))));
    assert!(out.contains("requests/s") && out.contains("latency p99"), "{out}");
    let csv = std::fs::read_to_string(file("c.csv")).unwrap();
    assert!(csv.starts_with("second,rps,errors,") && csv.lines().count() >= 2, "{csv}");
}

/// The published schemas name every field of the output, and no other.
#[test]
fn the_json_has_the_published_schema() {
    let names = |text: &str, indent: &str| -> Vec<String> {
        let start = format!("{indent}\"");
        let lines = text.lines().filter_map(|l| l.strip_prefix(&start)?.split_once("\":"));
        let mut names: Vec<String> = lines.map(|(name, _)| name.to_owned()).collect();
        names.sort();
        names
    };
    let backend = Backend::ok("x");
    for (file, line) in [("stress", "-n3"), ("stress-hold", "--hold 1 -d 100ms")] {
        let json = Json::of(&format!("-t1 -c1 {line} --no-preflight {}", url(&backend)));
        let path = format!("../../docs/{file}.schema.json");
        let schema = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let properties = schema.split_once("\"properties\": {").unwrap().1.split("\n  },\n  \"$defs\"").next().unwrap();
        assert_eq!(names(&json.0, "  "), names(properties, "    "), "{file}");
    }
}

#[test]
fn the_page_draws_its_curves_in_a_browser() {
    let Some(chromium) = chromium() else { return };
    let backend = Backend::ok("x");
    let folder = Folder::new();
    let page = folder.path().join("run.html");
    stress(&format!("-t1 -c2 -R50 -d2s --no-preflight --html {} {}", page.display(), url(&backend)));
    let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
    let flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=360,900", "--dump-dom", &profile];
    let out = Command::new(chromium).args(flags).arg(format!("file://{}", page.display())).output().unwrap();
    let dom = text(&out);
    assert!(dom.contains("data-drawn=\"4\""), "all four curves are drawn: {}", &dom[dom.len().saturating_sub(500)..]);
    let over = dom.split("data-over=\"").nth(1).and_then(|d| d.split('"').next()).and_then(|n| n.parse::<i64>().ok());
    assert!(over.is_some_and(|px| px <= 0), "wider than the window: {over:?}");
    for text in
        ["wanted/s", "open loop: 50", "<td>status 200</td>", "<pre>ironweir stress -t1 -c2 -R50", " GMT, ironweir "]
    {
        assert!(dom.contains(text), "{text}");
    }
    assert_eq!(dom.matches("<canvas").count(), 4);
    assert!(!dom.contains("src=\"http") && !dom.contains("href=\"http"), "nothing is loaded from elsewhere");
}
