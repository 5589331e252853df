//! `prometheus`: metrics as Debian's prometheus reads them.

use crate::harness::{Backend, Beside, Client, Port, Site, program, wait};
use std::process::Stdio;

#[test]
fn metrics_are_as_prometheus_wants_them() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@BACKEND@; } limit_req_zone $uri zone=slow:64k rate=1r/m;
         proxy_cache_path @DIR@/cache keys_zone=c:1m;
         server { listen 127.0.0.1:@PORT@; status_zone \"a \\\"site\\\"\";
           location / { proxy_pass http://u; } location /metrics { prometheus; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    server.get("/");
    let response = server.get("/metrics");
    let page = response.text();
    assert_eq!(response.header("Content-Type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let zone = "nginxplus_server_zone_requests{server_zone=\"a \\\"site\\\"\"} 2";
    assert!(
        page.contains(zone) && page.contains("ironweir_http_request_duration_seconds_bucket{le=\"0.001\"}"),
        "{page}"
    );
    let Some(mut promtool) = program("promtool") else { return };
    let mut child = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), page.as_bytes()).expect("it reads");
    let out = child.wait_with_output().expect("it ends");
    // It exits with 3 for advice on names, which are nginx's exporter's.
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert_ne!(out.status.code(), Some(1), "{said}");
    let advice = said.lines().filter(|l| !l.starts_with("nginxplus_")).collect::<Vec<_>>();
    assert!(advice.is_empty(), "{advice:?}");
}

#[test]
fn prometheus_scrapes_the_metrics() {
    let Some(mut prometheus) = program("prometheus") else { return };
    let backend = Backend::ok("hello");
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@BACKEND@; }
         server { listen 127.0.0.1:@PORT@; status_zone site;
           location / { proxy_pass http://u; } location /metrics { prometheus; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let requests = 3;
    (0..requests).for_each(|_| drop(server.get("/")));
    let (own, dir) = (Port::reserve(), server.dir());
    let config = format!(
        "scrape_configs: [{{job_name: ironweir, scrape_interval: 200ms, scrape_timeout: 200ms, \
         static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]",
        server.port
    );
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    let listen = format!("127.0.0.1:{}", own.number);
    prometheus.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()));
    prometheus.arg(format!("--web.listen-address={listen}")).stdout(Stdio::null()).stderr(Stdio::null());
    let _prometheus = Beside(prometheus.spawn().expect("it starts"));
    assert!(wait(|| std::net::TcpStream::connect(&listen).is_ok()), "it listens");
    let ask = |query: &str| {
        let answer = Client::connect(own.number).get(&format!("/api/v1/query?query={query}"));
        let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        answer["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    assert!(wait(|| ask("up").as_deref() == Some("1")), "it takes the page");
    let of_peer = format!("nginxplus_upstream_server_requests{{server=%22127.0.0.1:{}%22}}", backend.port);
    assert_eq!(ask(&of_peer), Some(requests.to_string()));
    assert_eq!(ask("ironweir_upstream_skew{upstream=%22u%22}").as_deref(), Some("1"));
}
