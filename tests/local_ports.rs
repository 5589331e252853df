//! Which local ports our own clients (the proxy, health checks, the stress tool) take: none that is reserved, and none on which somebody listens.

use crate::harness::{Site, run_stress, wait};
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
