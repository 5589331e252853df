//! wrk's Lua scripts in `ironweir stress`; TLS; Ctrl-C.

use crate::harness::quic::quic_site;
use crate::harness::{Backend, Folder, Json, Program, Reply, Site, run_stress as run, stress, text, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Command, Output};
use std::time::Duration;

fn scripted(script: &str, arguments: &str, backend: &Backend) -> Output {
    let folder = Folder::new();
    folder.write("s.lua", script);
    let file = folder.path().join("s.lua");
    run(&format!("-s {} --no-preflight -q http://127.0.0.1:{}/ {arguments}", file.display(), backend.port))
}

#[test]
fn a_script_sets_method_body_and_headers() {
    let backend = Backend::ok("x");
    let script = r#"wrk.method = "POST"; wrk.body = "foo=bar"; wrk.headers["Content-Type"] = "text/x""#;
    let out = scripted(script, "-t1 -c1 -n3", &backend);
    assert!(text(&out).contains("3 requests in"), "{out:?}");
    let seen = &backend.seen()[0];
    assert_eq!((seen.line(), seen.body.as_slice()), ("POST / HTTP/1.1", &b"foo=bar"[..]));
    assert_eq!((seen.header("Content-Type"), seen.header("Host").is_some()), (Some("text/x"), true));
}

#[test]
fn every_hook_is_called() {
    let backend = Backend::start(|seen| {
        let body = format!("you asked {}", seen.line());
        Reply::Keep(
            format!(
                "HTTP/1.1 201 Made\r\nX-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            )
            .into(),
        )
    });
    let script = r#"
        local threads = {}
        function setup(thread) thread:set("id", #threads + 1); table.insert(threads, thread) end
        function init(args) name = args[1]; count = 0; good = 0; print("begun") end
        function request()
            count = count + 1
            return wrk.format("GET", "/" .. name .. "/" .. id .. "/" .. count, { ["X-Own"] = "yes" })
        end
        function delay() return 5 end
        function response(status, headers, body)
            if status == 201 and headers["X-Id"] == "7" and body:find("you asked GET /arg/") then good = good + 1 end
        end
        function done(summary, latency, requests)
            local all = 0
            for _, t in ipairs(threads) do all = all + t:get("good") end
            io.write(string.format("done %d %d %d %s\n", summary.requests, all, summary.errors.status,
                tostring(latency:percentile(99) > 0 and latency.max >= latency.min and #latency > 0 and latency(1) > 0)))
        end
    "#;
    let out = scripted(script, "-t2 -c4 -n20 -- arg", &backend);
    let said = text(&out);
    let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("{what} in {said}"));
    assert!(at("begun\n") < at(" 20 requests in ") && at(" 20 requests in ") < at("done 20 20 0 true\n"), "{said}");
    let seen = backend.seen();
    assert!(seen.iter().all(|s| s.header("X-Own") == Some("yes")) && seen.len() == 20);
    assert!(seen.iter().any(|s| s.line() == "GET /arg/2/1 HTTP/1.1"), "{seen:?}");
}

#[test]
fn several_requests_at_once_and_an_own_end() {
    let backend = Backend::ok("x");
    let script = r#"
        local n = 0
        function init() batch = table.concat({ wrk.format(nil, "/a"), wrk.format(nil, "/b"), wrk.format(nil, "/c") }) end
        function request() return batch end
        function response() n = n + 1; if n == 30 then wrk.thread:stop() end end
    "#;
    let out = scripted(script, "-t1 -c1 -d30s", &backend);
    assert!(text(&out).contains("30 requests in"), "{out:?}");
    let seen = backend.seen();
    assert_eq!(
        seen[..3].iter().map(|s| s.line()).collect::<Vec<_>>(),
        ["GET /a HTTP/1.1", "GET /b HTTP/1.1", "GET /c HTTP/1.1"]
    );
}

/// The same script, whatever is spoken; what it asks for at once goes out one after the other where there are streams.
#[test]
fn scripts_ask_and_see_over_http2_and_http3() {
    let backend = Backend::start(|seen| Reply::ok(&format!("{} {}", seen.line(), String::from_utf8_lossy(&seen.body))));
    let proxy =
        format!("location / {{ add_header X-Proto $server_protocol; proxy_pass http://127.0.0.1:{}; }}", backend.port);
    let server = quic_site("http2 on;", &proxy).set("THREADS", 1).start();
    let script = r#"
        local n, good = 0, 0
        function request()
            n = n + 1
            return wrk.format("POST", "/a" .. n, { ["X-N"] = n }, "one" .. n) .. wrk.format("HEAD", "/b" .. n)
        end
        function response(status, headers, body)
            local proto = headers["x-proto"] or headers["X-Proto"]
            if status == 200 and proto == wrk.headers["X-Want"] and
                (body == "" or body:find("^POST /a%d+ HTTP/1.%d one%d+$")) then good = good + 1 end
            if good == 40 then io.write("all good\n"); wrk.thread:stop() end
        end
    "#;
    let folder = Folder::new();
    folder.write("s.lua", script);
    let file = folder.path().join("s.lua");
    for (http, want) in [("1.1", "HTTP/1.1"), ("2 --streams 2", "HTTP/2.0"), ("3 --streams 2", "HTTP/3.0")] {
        let line = format!("-s {} --http {http} -t1 -c1 -d30s -H X-Want:{want} --no-preflight -q", file.display());
        let out = run(&format!("{line} https://127.0.0.1:{}/", server.port));
        assert!(text(&out).contains("all good"), "{http}: {out:?}");
    }
    let seen = backend.seen();
    assert!(
        seen.iter().any(|s| s.line().starts_with("POST /a1 ") && s.body == b"one1" && s.header("X-N") == Some("1"))
    );
}

#[test]
fn threads_have_addresses_of_their_own() {
    let (one, two) = (Backend::ok("1"), Backend::ok("2"));
    let script = format!(
        r#"
        local ports, n = {{ "{}", "{}" }}, 0
        function setup(thread)
            n = n + 1
            local all = wrk.lookup("127.0.0.1", ports[n])
            if wrk.connect(all[1]) then thread.addr = all[1] end
        end
    "#,
        one.port, two.port
    );
    let out = scripted(&script, "-t2 -c2 -n20", &one);
    assert!(text(&out).contains("20 requests in"), "{out:?}");
    assert_eq!((one.seen().len(), two.seen().len()), (10, 10));
}

#[test]
fn a_script_with_a_mistake_says_where() {
    let backend = Backend::ok("x");
    let out = scripted("wrk.method = \nfoo(", "-n1", &backend);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("s.lua:"), "{out:?}");
}

#[test]
fn tls_with_and_without_resumption() {
    let folder = Folder::new();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args([
            "-subj",
            "/CN=stress.test",
            "-addext",
            "subjectAltName=DNS:stress.test",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            &file("key"),
            "-out",
            &file("crt"),
        ])
        .output();
    if Program::Nginx.path().is_none() || !made.is_ok_and(|m| m.status.success()) {
        println!("no nginx or openssl here: left out");
        return;
    }
    let site = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@ ssl; ssl_certificate {}; ssl_certificate_key {}; ssl_session_cache shared:a:1m; \
         location / {{ return 200 \"$ssl_server_name $ssl_protocol\"; }} }}",
        file("crt"),
        file("key")
    ));
    let server = site.start_as(Program::Nginx).unwrap();
    let url = format!("https://127.0.0.1:{}/", server.port);
    let common = format!("-t1 -c2 --no-preflight --sni stress.test {url}");
    let kept = Json::of(&format!("-n50 --cacert {} {common}", file("crt")));
    let numbers = |json: &Json, names: [&str; 3]| names.map(|name| json.number(name));
    assert_eq!(numbers(&kept, ["requests", "connects", "errors.total"]), [50.0, 2.0, 0.0], "{}", kept.0);
    let short = Json::of(&format!("-n20 --close client {common}"));
    let [requests, connects, resumed] = numbers(&short, ["requests", "connects", "resumed"]);
    assert!((requests, connects) == (20.0, 20.0) && resumed >= 15.0, "{}", short.0);
    let full = Json::of(&format!("-n20 --close client --no-resumption {common}"));
    assert_eq!(numbers(&full, ["requests", "connects", "resumed"]), [20.0, 20.0, 0.0], "{}", full.0);
    let wrong = Json::of(&format!("-n2 --cacert {} -t1 -c1 --no-preflight --sni other.test {url}", file("crt")));
    assert_eq!((wrong.number("requests"), wrong.number("errors.tls")), (0.0, 2.0), "{}", wrong.0);
}

#[test]
fn ctrl_c_ends_the_run_with_its_summary() {
    let backend = Backend::ok("x");
    let child = stress(&format!("-t1 -c2 -d60s --no-preflight http://127.0.0.1:{}/", backend.port)).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 10));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let began = std::time::Instant::now();
    let out = child.wait_with_output().unwrap();
    assert!(
        matches!(out.status.code(), Some(0 | 5)) && began.elapsed() < Duration::from_secs(1 + 2),
        "{:?}: {out:?}",
        began.elapsed()
    );
    assert!(text(&out).contains("Requests/sec:") && text(&out).contains("Verdict:"), "{out:?}");
}
