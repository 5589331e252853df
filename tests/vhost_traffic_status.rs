//! `vhost_traffic_status`: what exporters and dashboards of that module read.

use crate::harness::{Backend, Site};
use serde_json::Value;

#[test]
fn hosts_keys_peers_and_caches_are_counted_as_the_module_documents() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "vhost_traffic_status_zone shared:vts:1m; vhost_traffic_status_histogram_buckets 0.005 10;
         proxy_cache_path @DIR@/cache keys_zone=pages:1m; upstream u { server 127.0.0.1:@BACKEND@; }
         vhost_traffic_status_filter_by_set_key $arg_country country::*;
         server { listen 127.0.0.1:@PORT@; server_name one.test; proxy_cache pages; proxy_cache_valid 1m;
                  location / { proxy_pass http://u; }
                  location /none { vhost_traffic_status_bypass_stats on; return 204; }
                  location /key { vhost_traffic_status_filter_by_set_key $arg_page page::$server_name; return 404; }
                  location /status { vhost_traffic_status_display; vhost_traffic_status_bypass_stats on; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    for target in ["/a", "/a", "/b?country=de", "/none", "/key?page=p%22&country=de", "/key?page=q"] {
        server.get(target);
    }
    let json = |target: &str| -> Value { serde_json::from_slice(&server.get(target).body).expect("JSON") };
    let all = json("/status/format/json");
    let host = &all["serverZones"]["one.test"];
    assert_eq!(host["requestCounter"], 5, "{all:#}");
    let responses = &host["responses"];
    assert_eq!(
        (&responses["2xx"], &responses["4xx"], &responses["hit"], &responses["miss"]),
        (&3.into(), &2.into(), &1.into(), &2.into())
    );
    assert_eq!(host["requestBuckets"]["msecs"], serde_json::json!([5, 10000]));
    assert_eq!(host["requestBuckets"]["counters"][1], 5);
    assert_eq!(all["serverZones"]["*"]["requestCounter"], 5);
    assert_eq!(all["filterZones"]["country::*"]["de"]["requestCounter"], 2);
    assert_eq!(all["filterZones"]["page::one.test"]["p%22"]["responses"]["4xx"], 1);
    let peer = &all["upstreamZones"]["u"][0];
    assert_eq!((&peer["server"], &peer["requestCounter"]), (&format!("127.0.0.1:{}", backend.port).into(), &2.into()));
    assert_eq!((&peer["weight"], &peer["backup"], &peer["down"]), (&1.into(), &false.into(), &false.into()));
    assert_eq!(all["cacheZones"]["pages"]["responses"]["hit"], 1);
    for field in ["hostName", "moduleVersion", "nginxVersion", "loadMsec", "nowMsec", "connections", "sharedZones"] {
        assert!(!all[field].is_null(), "{field}");
    }
    assert_eq!(json("/status")["serverZones"]["one.test"]["requestCounter"], 5, "what shows it is not counted");
    let text = server.get("/status/format/prometheus").text();
    for line in [
        "nginx_vts_server_requests_total{host=\"one.test\",code=\"2xx\"} 3",
        "nginx_vts_filter_requests_total{filter=\"country::*\",filter_name=\"de\",code=\"4xx\"} 1",
        "nginx_vts_server_cache_total{host=\"one.test\",status=\"hit\"} 1",
        "nginx_vts_server_request_duration_seconds_bucket{host=\"one.test\",le=\"+Inf\"} 5",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(server.get("/status/format/html").text().contains("one.test"));
}

#[test]
fn keys_are_bounded() {
    let server = Site::http(
        "vhost_traffic_status_zone; vhost_traffic_status_filter_max_node 20;
         server { listen 127.0.0.1:@PORT@; server_name one.test;
                  location / { vhost_traffic_status_filter_by_set_key $arg_k keys; return 200 x; }
                  location /status { vhost_traffic_status_display; } }",
    )
    .start();
    let mut client = server.connect();
    for key in 0..100 {
        assert_eq!(client.get(&format!("/?k={key}")).status, 200);
    }
    let all: Value = serde_json::from_slice(&server.get("/status").body).expect("JSON");
    assert_eq!(all["filterZones"]["keys"].as_object().map(|keys| keys.len()), Some(19), "{all:#}");
    assert_eq!(all["serverZones"]["one.test"]["requestCounter"], 100);
    assert_eq!(server.error_log().matches("the zone has room for 20 names").count(), 1);
}

/// Names that nginx-vts-exporter unpacks of an answer's `responses` and `overCounts`.
const CODES: &str = "1xx 2xx 3xx 4xx 5xx";
const CACHED: &str = "miss bypass expired stale updating revalidated hit scarce";

/// The names, each with what it stands in.
fn names(within: &str, list: &[&str]) -> Vec<String> {
    list.iter().flat_map(|names| names.split(' ')).map(|name| format!("{within}/{name}")).collect()
}

/// Its decoder refuses the whole answer where a number has a sign or a fraction, and takes what is missing for 0.
#[test]
fn nginx_vts_exporter_finds_every_field() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "vhost_traffic_status_zone; vhost_traffic_status_filter_by_set_key $arg_k keys;
         proxy_cache_path @DIR@/cache keys_zone=pages:1m; upstream u { server 127.0.0.1:@BACKEND@; }
         server { listen 127.0.0.1:@PORT@; server_name one.test;
                  location / { proxy_pass http://u; proxy_cache pages; proxy_cache_valid 1m; }
                  location /status { vhost_traffic_status_display; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    server.get("/a?k=x");
    server.get("/a?k=x");
    let all: Value = serde_json::from_slice(&server.get("/status/format/json").body).expect("JSON");
    let numbers = |value: &Value, names: &[String]| {
        for name in names {
            let found = value.pointer(name).unwrap_or_else(|| panic!("no {name} in {value:#}"));
            assert!(found.is_u64(), "{name} is {found}");
        }
    };
    let counts = names("", &["requestCounter inBytes outBytes"]);
    let over = |inside: &[&str]| {
        let all: Vec<&str> = [&["maxIntegerSize inBytes outBytes"], inside].concat();
        names("/overCounts", &all)
    };
    numbers(&all, &names("", &["loadMsec nowMsec"]));
    numbers(&all, &names("/connections", &["active reading writing waiting accepted handled requests"]));
    numbers(&all, &names("/sharedZones", &["maxSize usedSize usedNode"]));
    for text in ["/hostName", "/nginxVersion", "/sharedZones/name"] {
        assert!(all.pointer(text).is_some_and(Value::is_string), "{text}");
    }
    let host = &all["serverZones"]["one.test"];
    let of_host = [counts.clone(), names("", &["requestMsec"]), names("/responses", &[CODES, CACHED])].concat();
    numbers(host, &[of_host, over(&["requestCounter", CODES, CACHED])].concat());
    let shared = [counts, names("/responses", &[CODES]), names("", &["requestMsec"])].concat();
    let shared = [shared, over(&["requestCounter", CODES])].concat();
    // The exporter has one structure for both; the module has no times of peers for keys.
    numbers(&all["filterZones"]["keys"]["x"], &shared);
    let peer = &all["upstreamZones"]["u"][0];
    numbers(peer, &[shared, names("", &["responseMsec weight maxFails failTimeout"])].concat());
    assert!(peer["server"].is_string() && peer["backup"].is_boolean() && peer["down"].is_boolean());
    let of_cache = [names("", &["maxSize usedSize inBytes outBytes"]), names("/responses", &[CACHED])].concat();
    numbers(&all["cacheZones"]["pages"], &[of_cache, over(&[CACHED])].concat());
}
