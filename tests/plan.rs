//! `ironweir -t --plan`: what a reload would change in the server that runs.

use crate::harness::{Program, Server, Site};
use serde_json::Value;
use std::process::{Command, Output};

fn plan(server: &Server, words: &[&str]) -> Output {
    server.wait_for("logs/nginx.pid", "\n");
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    command.arg("-t").arg("--plan").args(words).arg("-p").arg(server.dir());
    command.arg("-c").arg(server.dir().join("nginx.conf")).output().unwrap()
}

fn json(server: &Server) -> Value {
    let out = plan(server, &["--json"]);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

fn edit(server: &Server, changes: &[(&str, &str)]) {
    let mut text = server.read("nginx.conf");
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
}

fn site() -> Server {
    Site::whole(
        "events {} http {
         log_format hosts '$remote_addr [$time_local] \"$request\" $status $host';
         access_log logs/a.log hosts;
         limit_req_zone $binary_remote_addr zone=rate:1m rate=100r/s;
         limit_conn_zone $server_name zone=places:1m;
         upstream app { zone app 64k; server 127.0.0.1:1 weight=2; server 127.0.0.1:2; }
         server { listen 127.0.0.1:@PORT@; server_name one.test;
           location / { return 200 root; }
           location /shop { proxy_pass http://app; proxy_connect_timeout 1s; }
           location ~ \\.php$ { return 404; }
           location /moved { rewrite ^/moved/(.*)$ /shop/$1 last; } }
         server { listen 127.0.0.1:@PORT@; server_name two.test; location / { return 204; } }
         server { listen 127.0.0.1:@OTHER@; return 200; } }",
    )
    .start()
}

fn ask(server: &Server, host: &str, target: &str) {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).response();
}

#[test]
fn nothing_changes_without_a_change() {
    let server = site();
    ask(&server, "one.test", "/");
    server.wait_for("logs/a.log", "GET / ");
    let out = plan(&server, &[]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{out:?}");
    assert!(text.contains("nothing that can be seen from here changes"), "{text}");
    assert!(text.contains("0 of the last 1 requests of the access logs would go elsewhere"), "{text}");
}

#[test]
fn what_a_reload_changes_is_said() {
    let server = site();
    for (host, target) in [
        ("one.test", "/"),
        ("one.test", "/shop/a"),
        ("one.test", "/moved/b"),
        ("one.test", "/x.php"),
        ("two.test", "/"),
    ] {
        ask(&server, host, target);
    }
    server.wait_for("logs/a.log", "204 two.test");
    let mut kept = server.connect();
    kept.get("/");
    let (listen, other) = {
        let text = server.read("nginx.conf");
        let mut listens = text.split("listen ").skip(1).map(|t| t.split(';').next().unwrap().to_owned());
        (listens.next().unwrap(), listens.nth(1).unwrap())
    };
    edit(
        &server,
        &[
            ("zone=rate:1m", "zone=rate:2m"),
            ("server 127.0.0.1:1 weight=2; server 127.0.0.1:2;", "server 127.0.0.1:1 weight=3; server 127.0.0.1:3;"),
            ("server_name two.test", "server_name three.test"),
            ("location /shop { proxy_pass http://app;", "location /shop { proxy_pass http://127.0.0.1:9;"),
            (&format!("server {{ listen {other}; return 200; }}"), ""),
        ],
    );
    let found = json(&server);
    let listener = |address: &str| {
        let all = found["listeners"].as_array().unwrap();
        all.iter().find(|l| l["address"] == address).unwrap_or_else(|| panic!("{found:#}")).clone()
    };
    assert_eq!(listener(&other)["change"], "removed");
    assert_eq!(listener(&listen)["change"], "kept");
    assert!(listener(&listen)["connections"].as_u64() >= Some(1), "{found:#}");
    assert_eq!(found["servers"]["added"], serde_json::json!(["three.test"]));
    assert_eq!(found["servers"]["removed"], serde_json::json!(["two.test"]));
    let zone = |name: &str| found["zones"].as_array().unwrap().iter().find(|z| z["name"] == name).unwrap().clone();
    assert_eq!(zone("rate")["change"], "lost");
    assert!(
        zone("rate")["why"].as_str().unwrap().contains("its size was 1048576 bytes and would be 2097152"),
        "{found:#}"
    );
    assert_eq!(zone("places")["change"], "kept");
    let app = found["upstreams"].as_array().unwrap().iter().find(|u| u["name"] == "app").unwrap();
    assert_eq!(app["servers_added"], serde_json::json!(["127.0.0.1:3"]));
    assert_eq!(app["servers_removed"], serde_json::json!(["127.0.0.1:2"]));
    assert_eq!(app["servers_changed"], serde_json::json!(["127.0.0.1:1"]));
    let detours = found["requests"]["detours"].as_array().unwrap();
    let to_shop = detours
        .iter()
        .find(|d| d["becomes"]["handler"] == "proxy_pass http://127.0.0.1:9")
        .unwrap_or_else(|| panic!("{found:#}"));
    // The rewrite leads there as well.
    assert_eq!(
        (to_shop["count"].as_u64(), to_shop["was"]["handler"].as_str()),
        (Some(2), Some("proxy_pass http://app"))
    );
    assert_eq!(to_shop["was"]["location"], "/shop");
    let two = detours.iter().find(|d| d["was"]["server"] == "two.test").unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!((two["becomes"]["server"].as_str(), two["example"].as_str()), (Some("one.test"), Some("GET two.test/")));
    assert_eq!(found["requests"]["elsewhere"], 3, "the others go where they went: {found:#}");
    let text = String::from_utf8_lossy(&plan(&server, &[]).stdout).into_owned();
    for line in [
        &format!("  - listen {other} (tcp)"),
        "  ! zone rate (limit_req) begins empty: its size was",
        "      + server 127.0.0.1:3",
        "  ~ 2 requests like GET one.test/moved/b",
        "  + server three.test",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    // It only looked.
    assert!(!server.error_log().contains("reconfiguring"));
    assert_eq!(kept.get("/shop/x").status, 502);
}

#[test]
fn a_plan_says_what_a_reload_would_refuse_and_what_needs_a_server() {
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=c:1m; server { listen 127.0.0.1:@PORT@; location / { return 200; } }",
    )
    .start();
    edit(&server, &[("/cache keys_zone", "/other keys_zone")]);
    let out = plan(&server, &[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("a reload would be refused"), "{said}");
    let site = Site::server("return 200;");
    let dir = site.path().to_owned();
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    std::fs::write(
        dir.join("nginx.conf"),
        format!("pid {0}/none.pid; error_log {0}/e.log; events {{}}", dir.display()),
    )
    .unwrap();
    let out = command.args(["-t", "--plan", "-p"]).arg(&dir).arg("-c").arg(dir.join("nginx.conf")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("none.pid"), "{said}");
}
