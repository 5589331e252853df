//! `stream {}` with datagrams: sessions by client, answers from the address that was asked.

use crate::harness::{Port, Site};
use std::net::UdpSocket;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A peer that sends each datagram back so often, with the port of the session before it (always five digits: the
/// machine's local ports may begin at 1024).
fn peer(copies: usize) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            for _ in 0..copies {
                let mut answer = format!("{:05} ", from.port()).into_bytes();
                answer.extend_from_slice(&buffer[..n]);
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    port
}

/// The TCP listener is for the harness, which wants to see the server come up.
fn udp(server: &str) -> Site {
    Site::whole(&format!(
        "events {{}} stream {{ log_format f '$protocol $status $bytes_received $bytes_sent';
           server {{ listen 127.0.0.1:@PORT@; return ''; }}
           server {{ listen @ADDRESS@ udp; access_log @DIR@/logs/a.log f; {server} }} }}"
    ))
}

fn receive(socket: &UdpSocket) -> String {
    let mut buffer = [0; 65536];
    let n = socket.recv(&mut buffer).expect("an answer");
    String::from_utf8_lossy(&buffer[..n]).into_owned()
}

#[test]
fn a_session_that_waits_for_its_rate_is_not_idle() {
    let port = Port::reserve().number;
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_timeout 300ms; proxy_download_rate 2k;";
    let server = udp(conf).set("ADDRESS", format!("127.0.0.1:{port}")).set("PEER", peer(1)).start();
    let client = socket();
    for _ in 0..3 {
        client.send_to(&[b'a'; 1194], ("127.0.0.1", port)).expect("sent");
    }
    // Six tenths of a second for each.
    let ports: Vec<String> = (0..3).map(|_| receive(&client)[..5].to_owned()).collect();
    assert!(ports.iter().all(|p| *p == ports[0]), "one session: {ports:?}");
    server.wait_for("logs/a.log", "UDP 200 3582 3600\n");
}

#[test]
fn a_client_has_one_session() {
    let port = Port::reserve().number;
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_timeout 300ms;";
    let server = udp(conf).set("ADDRESS", format!("127.0.0.1:{port}")).set("PEER", peer(1)).start();
    let (one, two) = (socket(), socket());
    let ask = |client: &UdpSocket, text: &str| {
        client.send_to(text.as_bytes(), ("127.0.0.1", port)).unwrap();
        receive(client).split_once(' ').map(|(port, text)| (port.to_owned(), text.to_owned())).unwrap()
    };
    let (first, text) = ask(&one, "a");
    assert_eq!(text, "a");
    assert_eq!(ask(&one, "").0, first, "the same session");
    assert_ne!(ask(&two, "c").0, first, "another client");
    server.wait_for("logs/a.log", "UDP 200 1 13\n");
    assert_ne!(ask(&one, "d").0, first, "the first session has timed out");
}

#[test]
fn a_session_ends_with_its_answers() {
    let port = Port::reserve().number;
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_requests 1; proxy_responses 2;";
    let server = udp(conf).set("ADDRESS", format!("127.0.0.1:{port}")).set("PEER", peer(2)).start();
    let client = socket();
    // Several at once: each is a session.
    for text in ["a", "b", "c"] {
        client.send_to(text.as_bytes(), ("127.0.0.1", port)).unwrap();
    }
    let mut answers: Vec<String> = (0..6).map(|_| receive(&client)).collect();
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 3, "{answers:?}");
    server.wait_for("logs/a.log", "UDP 200 1 14\nUDP 200 1 14\nUDP 200 1 14\n");
}

#[test]
fn a_socket_for_all_addresses_answers_from_the_one_that_was_asked() {
    let port = Port::reserve().number;
    let _server = udp("return '$server_addr';").set("ADDRESS", port).start();
    let client = socket();
    client.send_to(b"?", ("127.0.0.9", port)).unwrap();
    let mut buffer = [0; 64];
    let (n, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!(from.to_string(), format!("127.0.0.9:{port}"));
    assert_eq!(&buffer[..n], b"127.0.0.9");
}

#[test]
fn a_peer_that_is_not_there_is_noticed() {
    let (port, dead) = (Port::reserve().number, UdpSocket::bind("127.0.0.1:0").unwrap());
    let gone = dead.local_addr().unwrap().port();
    drop(dead);
    let conf = "proxy_pass 127.0.0.1:@PEER@;";
    let server = udp(conf).set("ADDRESS", format!("127.0.0.1:{port}")).set("PEER", gone).start();
    socket().send_to(b"?", ("127.0.0.1", port)).unwrap();
    server.wait_for("logs/error.log", "recv() failed (111: Connection refused) while proxying connection, udp client:");
}

#[test]
fn the_first_datagram_is_counted_and_a_refused_session_has_failed() {
    let (said, denied, refused) = (Port::reserve().number, Port::reserve().number, Port::reserve().number);
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Site::whole(
        "events {} stream { log_format f '$status $bytes_received';
           server { listen 127.0.0.1:@PORT@; return ''; }
           server { listen 127.0.0.1:@SAID@ udp; return '$bytes_received'; }
           server { listen 127.0.0.1:@DENIED@ udp; access_log @DIR@/logs/denied.log f; deny all; return x; }
           server { listen 127.0.0.1:@REFUSED@ udp; access_log @DIR@/logs/refused.log f; proxy_responses 2; proxy_pass 127.0.0.1:@GONE@; } }",
    )
    .set("SAID", said)
    .set("DENIED", denied)
    .set("REFUSED", refused)
    .set("GONE", gone)
    .start();
    let client = socket();
    client.send_to(b"abc", ("127.0.0.1", said)).unwrap();
    assert_eq!(receive(&client), "3");
    client.send_to(b"abc", ("127.0.0.1", denied)).unwrap();
    server.wait_for("logs/denied.log", "403 3\n");
    client.send_to(b"abc", ("127.0.0.1", refused)).unwrap();
    server.wait_for("logs/refused.log", "502 3\n");
}
