//! Tests of listening sockets.

use super::*;
use std::net::{TcpListener, TcpStream};

/// An address nobody listens on.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn spec(address: SocketAddr) -> ListenSpec {
    ListenSpec::new(ListenAddress::Inet(address))
}

fn ids(listeners: &Listeners) -> Vec<u64> {
    listeners.list.iter().flat_map(|l| &l.sockets).map(|socket| socket.id).collect()
}

#[test]
fn every_thread_has_its_socket_and_all_accept() {
    let address = free();
    let listeners = Listeners::default().open(&[spec(address)], 4).unwrap();
    let listener = &listeners.list[0];
    assert_eq!(listener.sockets.len(), 4);
    for thread in 0..4 {
        assert_eq!(listener.of_thread(thread, 4).map(|(_, s)| s.id).collect::<Vec<_>>(), [listener.sockets[thread].id]);
    }
    let clients: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let accepted = |socket: &ListenSocket| {
        let socket = socket2::SockRef::from(&*socket.fd);
        std::iter::from_fn(|| socket.accept().ok()).count()
    };
    let counts: Vec<_> = listener.sockets.iter().map(accepted).collect();
    assert_eq!(counts.iter().sum::<usize>(), clients.len());
    assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
}

#[test]
fn sockets_are_kept_when_threads_change() {
    let address = free();
    let one = Listeners::default().open(&[spec(address)], 1).unwrap();
    let three = one.open(&[spec(address)], 3).unwrap();
    assert_eq!(ids(&three)[0], ids(&one)[0]);
    assert_eq!(ids(&three).len(), 3);
    let two = three.open(&[spec(address)], 2).unwrap();
    assert_eq!(ids(&two), ids(&three));
    assert_eq!(two.list[0].of_thread(0, 2).count(), 2);
    assert_eq!(two.list[0].of_thread(1, 2).count(), 1);
}

#[test]
fn an_address_in_use_by_others_fails_even_with_reuseport() {
    let address = free();
    let _ours = Listeners::default().open(&[spec(address)], 2).unwrap();
    let (step, error) = open(&spec(address), Sharing::Later).unwrap_err();
    assert_eq!((step, error.kind()), (format!("bind() to {address}"), io::ErrorKind::AddrInUse));
}

#[test]
fn a_wildcard_may_follow_an_address() {
    let address = free();
    let narrow = Listeners::default().open(&[spec(address)], 2).unwrap();
    let wildcard = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let wide = narrow.open(&[spec(wildcard)], 2).unwrap();
    assert_eq!(ids(&wide).len(), 2);
    drop(narrow);
    TcpStream::connect(address).unwrap();
}

#[test]
fn a_unix_socket_is_one_for_all_and_goes_with_its_file() {
    let path = std::env::temp_dir().join(format!("ironweir-listen-{}.sock", std::process::id()));
    let spec = ListenSpec::new(ListenAddress::Unix(path.clone()));
    let listeners = Listeners::default().open(&[spec], 4).unwrap();
    assert_eq!(listeners.list[0].sockets.len(), 1);
    assert_eq!(listeners.list[0].of_thread(3, 4).count(), 1);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    listeners.unlink_except(&Listeners::default());
    assert!(!path.exists());
}

#[test]
fn options_are_set() {
    let spec = ListenSpec {
        deferred: true,
        fastopen: Some(16),
        rcvbuf: Some(65536),
        keepalive: Some(Keepalive { on: true, idle: Some(Duration::from_secs(30)), ..Keepalive::default() }),
        ..spec(free())
    };
    let listeners = Listeners::default().open(&[spec], 1).unwrap();
    let socket = socket2::SockRef::from(&*listeners.list[0].sockets[0].fd);
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
    assert_eq!(socket.recv_buffer_size().unwrap(), 2 * 65536);
}
