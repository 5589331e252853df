//! Clients of `stream` bound to peers: `sticky learn`, `sticky route`. Clients tell each other apart by their addresses.

use crate::harness::{Port, Server, Site, wait};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A peer that says its name and closes; while it is off it cannot be reached.
struct Peer {
    port: Port,
    on: Arc<AtomicBool>,
}

fn peer(name: &'static str) -> Peer {
    let (port, on) = (Port::reserve(), Arc::new(AtomicBool::new(true)));
    let (number, wanted) = (port.number, on.clone());
    std::thread::spawn(move || {
        loop {
            let listener = TcpListener::bind(("127.0.0.1", number)).unwrap();
            while wanted.load(Ordering::Relaxed) {
                let Ok((mut connection, _)) = listener.accept() else { continue };
                if wanted.load(Ordering::Relaxed) {
                    let _ = connection.write_all(name.as_bytes());
                }
            }
            drop(listener);
            while !wanted.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    });
    Peer { port, on }
}

impl Peer {
    fn off(&self) {
        self.on.store(false, Ordering::Relaxed);
        // Whoever waits in accept(2) is let go, then nobody listens.
        assert!(wait(|| TcpStream::connect(("127.0.0.1", self.port.number)).is_err()));
    }

    fn on(&self) {
        self.on.store(true, Ordering::Relaxed);
        assert!(wait(|| TcpStream::connect(("127.0.0.1", self.port.number)).is_ok()));
    }
}

/// Who answers a client of this address.
fn ask(server: &Server, last: u8) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, last], 0)))).unwrap();
    socket.connect(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], server.port)))).unwrap();
    let mut text = String::new();
    TcpStream::from(socket).read_to_string(&mut text).unwrap();
    text
}

fn site(around: &str, block: &str, a: &Peer, b: &Peer) -> Site {
    let text = format!(
        "events {{}} stream {{ {around} upstream u {{ zone u 64k; {block} }} server {{ listen 127.0.0.1:@PORT@; proxy_pass u; }} }}"
    );
    Site::whole(&text).set("A", a.port.number).set("B", b.port.number)
}

#[test]
fn a_client_is_learnt_and_stays_with_the_peer_that_took_it() {
    let (a, b) = (peer("a"), peer("b"));
    let block = "server 127.0.0.1:@A@ max_fails=0; server 127.0.0.1:@B@ max_fails=0; \
                 sticky learn create=$remote_addr lookup=$remote_addr zone=s:64k;";
    let server = site("", block, &a, &b).start();
    let first: Vec<String> = (2..8).map(|n| ask(&server, n)).collect();
    assert!(first.contains(&"a".to_owned()) && first.contains(&"b".to_owned()), "{first:?}");
    for _ in 0..3 {
        let again: Vec<String> = (2..8).map(|n| ask(&server, n)).collect();
        assert_eq!(again, first);
    }
    // A peer that is gone leaves its clients to the other, and they are that one's from then on.
    a.off();
    assert!((2..8).all(|n| ask(&server, n) == "b"));
    a.on();
    assert!((2..8).all(|n| ask(&server, n) == "b"));
}

#[test]
fn a_variable_names_the_peer() {
    let (a, b) = (peer("a"), peer("b"));
    let around = "map $remote_addr $peer { 127.0.0.2 one; 127.0.0.3 two; }";
    let block = "server 127.0.0.1:@A@ route=one; server 127.0.0.1:@B@ route=two; sticky route $peer;";
    let server = site(around, block, &a, &b).start();
    for _ in 0..4 {
        assert_eq!((ask(&server, 2), ask(&server, 3)), ("a".to_owned(), "b".to_owned()));
    }
    let others: Vec<String> = (0..4).map(|_| ask(&server, 9)).collect();
    assert!(others.contains(&"a".to_owned()) && others.contains(&"b".to_owned()), "in turns: {others:?}");
}
