//! Which local ports our own clients (the proxy, health checks, the stress tool) take: none that is reserved, and none on which somebody listens.

use crate::harness::{Site, run_stress, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Ten ports: three are reserved, two are services'.
const RANGE: &str = "41000 41009";
const RESERVED: &str = "41001,41004-41005";
const SERVICES: [u16; 2] = [41_002, 41_008];
const FREE: [u16; 5] = [41_000, 41_003, 41_006, 41_007, 41_009];

/// Requests that came: a line of each, and the client's port.
type Noted = Arc<Mutex<Vec<(String, u16)>>>;

/// A server that notes from which port each question comes, by the question's path; it closes first, since only that
/// ends its answer, so that clients keep no port.
fn noting() -> (u16, Noted) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let noted = Arc::<Mutex<Vec<(String, u16)>>>::default();
    let notes = noted.clone();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let notes = notes.clone();
            std::thread::spawn(move || {
                let _ = client.set_read_timeout(Some(Duration::from_secs(10)));
                let from = client.peer_addr().map_or(0, |a| a.port());
                let mut head = [0; 4096];
                let length = client.read(&mut head).unwrap_or(0);
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                notes.lock().unwrap().push((path, from));
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok");
            });
        }
    });
    (port, noted)
}

#[test]
fn our_own_clients_take_no_port_that_is_reserved_or_somebody_elses() {
    let run = || {
        let (port, noted) = noting();
        let server = Site::http(
            "upstream app { zone app 64k; server 127.0.0.1:@NOTING@; }
             server { listen 127.0.0.1:@PORT@; location /proxied { proxy_pass http://app; health_check interval=200ms uri=/checked; } }",
        )
        .set("NOTING", port)
        .start();
        assert_eq!(server.get("/proxied").text(), "ok");
        // From here on there are few ports.
        let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
        set("ip_local_port_range", RANGE);
        set("ip_local_reserved_ports", RESERVED);
        let _services: Vec<_> = SERVICES.iter().map(|p| TcpListener::bind(("0.0.0.0", *p)).unwrap()).collect();
        noted.lock().unwrap().clear();
        // One connection: those of this test would take the few ports, too.
        let mut client = server.connect();
        for _ in 0..30 {
            assert_eq!(client.get("/proxied").text(), "ok", "{}", server.error_log());
        }
        let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
        run_stress(&format!("-t1 -c2 -n40 --close server --no-preflight {}", url("/stress")));
        run_stress(&format!("--hold 3 --ramp 100/s -d300ms {}", url("/held")));
        let ports_of = |path: &str| -> BTreeSet<u16> {
            // A check that was under way before has a port of before.
            let of_range = |port: &u16| (41_000..=41_009).contains(port);
            noted.lock().unwrap().iter().filter(|n| n.0 == path).map(|n| n.1).filter(of_range).collect()
        };
        assert!(wait(|| ports_of("/checked").len() >= 2), "{:?}", noted.lock().unwrap());
        for path in ["/proxied", "/stress", "/held", "/checked"] {
            let taken = ports_of(path);
            assert!(!taken.is_empty() && taken.iter().all(|p| FREE.contains(p)), "{path}: {taken:?}");
        }
        // With more clients than ports somebody goes without one, rather than with another's.
        let out =
            String::from_utf8_lossy(&run_stress(&format!("--hold 8 --ramp 100/s -d300ms {}", url("/many"))).stdout)
                .into_owned();
        assert!(ports_of("/many").iter().all(|p| FREE.contains(p)), "{out}");
    };
    if machine::namespace::inside(run).is_none() {
        println!("no network namespace can be made here (root?): left out");
    }
}

/// Ports of which there are four (of an odd number the kernel leaves one out), for as many requests as wait for a peer: who comes next has none, and is told of.
#[test]
fn ports_that_peers_take_are_told_by_destination() {
    let run = || {
        // It answers nobody, for as long as the test runs.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (peer, held) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default());
        let kept = held.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|c| kept.lock().unwrap().push(c)));
        let server = Site::http(
            "upstream app { zone app 64k; server @PEER@; }
             server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://app; } location /api { api; } location /metrics { prometheus; } }",
        )
        .set("PEER", peer)
        .start();
        // These have their ports already.
        let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "41000 41003").unwrap();
        let asks = |client: &mut crate::harness::Client, path: &str| -> Value {
            let text = client.get(&format!("/api/9/ironweir/{path}")).text();
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}: {text}"))
        };
        let mut asker = clients.pop().unwrap();
        assert_eq!(asks(&mut asker, "why")["seconds"], 0, "the first look");
        for client in &mut clients[..4] {
            client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        assert!(wait(|| held.lock().unwrap().len() == 4), "{}", server.error_log());
        assert_eq!(clients[4].get("/none").status, 502, "there are no more ports");
        let said = asks(&mut asker, "ports");
        let range = serde_json::json!({"first": 41_000, "last": 41_003, "usable": 4});
        assert_eq!(said["range"], range, "{said:#}");
        let begun = serde_json::json!({"to": peer.to_string(), "begun": 5, "without_port": 1});
        assert_eq!(said["begun"], serde_json::json!([begun]), "{said:#}");
        let held = &said["held"][0];
        assert_eq!((held["to"].as_str(), held["ports"].as_u64()), (Some(&*peer.to_string()), Some(4)), "{said:#}");
        assert_eq!((held["from"].as_str(), held["used"].as_f64()), (Some("127.0.0.1"), Some(1.0)), "{said:#}");
        assert_eq!(asks(&mut asker, "ports?fields=range")["held"], Value::Null);
        let metrics = asker.get("/metrics").text();
        for line in [
            format!("ironweir_upstream_connects_without_port_total{{to=\"{peer}\"}} 1\n"),
            format!("ironweir_upstream_local_ports{{from=\"127.0.0.1\",to=\"{peer}\"}} 4\n"),
            "ironweir_local_ports_usable 4\n".to_owned(),
            "ironweir_memory_bytes{purpose=\"other\"}".to_owned(),
        ] {
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
        // An answer is about the time since the look before, of at least a second.
        std::thread::sleep(Duration::from_millis(1_100));
        let why = asks(&mut asker, "why");
        assert_eq!(why["finding"]["id"], "local-ports-used-up", "{why:#}");
        // The clients of this test have more ports than there are, too; that is not in the server's way.
        assert!(why["sentence"].as_str().unwrap().contains(&peer.to_string()), "{why:#}");
        assert!(why["finding"].to_string().contains("1 connects failed for want of a port"), "{why:#}");
    };
    if machine::namespace::inside(run).is_none() {
        println!("no network namespace can be made here (root?): left out");
    }
}
