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

fn grafana(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../grafana").join(name)
}

/// All queries of the dashboard, with their variables filled in.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(grafana("ironweir.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|p| p["targets"].as_array().cloned().unwrap_or_default());
    let queries = targets.map(|t| t["expr"].as_str().expect("a query").to_owned());
    queries.map(|q| q.replace("$instance", ".*").replace("$__rate_interval", "1m")).collect()
}

fn names(queries: &str) -> impl Iterator<Item = &str> {
    let words = queries.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|w| w.starts_with("ironweir_") || w.starts_with("nginxplus_"))
}

/// The dashboard and the rules of `grafana/` ask for what there is, and Prometheus takes them.
#[test]
fn the_dashboard_and_the_alert_rules_are_good() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@BACKEND@; } limit_req_zone $uri zone=slow:64k rate=100r/s;
         proxy_cache_path @DIR@/cache keys_zone=c:1m;
         server { listen 127.0.0.1:@PORT@; listen 127.0.0.1:@OTHER@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
           status_zone site; location / { limit_req zone=slow; proxy_cache c; proxy_pass http://u; } location /metrics { prometheus; } }",
    )
    .set("BACKEND", backend.port)
    .certificate("localhost")
    .start();
    server.get("/");
    let page = server.get("/metrics").text();
    assert!(
        page.contains("ironweir_certificate_not_after_seconds{certificate=\"") && page.contains("host=\"localhost\"")
    );
    assert!(page.contains("ironweir_server_zone_response_seconds_bucket{server_zone=\"site\",le=\"0.005\"}"), "{page}");
    let rules = std::fs::read_to_string(grafana("alerts.yml")).expect("the rules");
    // Those of ordered certificates are there where any are ordered, and the kernel does not always count drops.
    let elsewhere = |n: &str| n.starts_with("ironweir_acme") || n == "ironweir_listen_drops_total";
    for name in names(&queries().join(" ")).chain(names(&rules)).filter(|n| !elsewhere(n)) {
        assert!(page.contains(name), "{name} is not among the metrics");
    }
    let Some(mut prometheus) = program("prometheus") else { return };
    let (own, dir) = (Port::reserve(), server.dir());
    let config = format!(
        "global: {{evaluation_interval: 200ms}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: ironweir, scrape_interval: 200ms, scrape_timeout: 200ms, \
         static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]",
        grafana("alerts.yml").display(),
        server.port
    );
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    let listen = format!("127.0.0.1:{}", own.number);
    prometheus.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()));
    prometheus.arg(format!("--web.listen-address={listen}")).stdout(Stdio::null()).stderr(Stdio::null());
    let _prometheus = Beside(prometheus.spawn().expect("it starts"));
    assert!(wait(|| std::net::TcpStream::connect(&listen).is_ok()), "it listens");
    let ask = |path: &str| {
        let answer = Client::connect(own.number).get(path);
        serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap_or_default()
    };
    let encode = |query: &str| query.bytes().map(|b| format!("%{b:02x}")).collect::<String>();
    assert!(wait(|| ask("/api/v1/query?query=up")["data"]["result"][0]["value"][1] == "1"), "it takes the page");
    for query in queries() {
        let answer = ask(&format!("/api/v1/query?query={}", encode(&query)));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
    let is_good = |rule: &serde_json::Value| rule["health"] == "ok";
    let all_are_good = || {
        let answer = ask("/api/v1/rules");
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        !rules.is_empty() && rules.iter().all(is_good)
    };
    assert!(wait(all_are_good), "{}", ask("/api/v1/rules"));
}
