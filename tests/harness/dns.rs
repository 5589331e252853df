//! A name server for tests.

use super::{Folder, wait};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A name server that gives the same answer to all questions for addresses, asked by UDP or TCP, and has texts and names of addresses in files: the lines
/// of the file that is called as the name is.
pub struct Dns {
    pub port: u16,
    /// `None`: a failure.
    answer: Arc<Mutex<Option<Vec<Ipv4Addr>>>>,
    asked: Arc<Mutex<usize>>,
    texts: Folder,
}

impl Dns {
    pub fn start(delay: Duration) -> Dns {
        let (listener, socket, port) = sockets();
        let (answer, asked) = (Arc::new(Mutex::new(Some(Vec::new()))), Arc::new(Mutex::new(0)));
        let texts = Folder::new();
        // Servers that tests start write there as nobody.
        std::fs::set_permissions(texts.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let (here, there) = (texts.path().to_owned(), texts.path().to_owned());
        let dns = Dns { port, answer: answer.clone(), asked: asked.clone(), texts };
        let told = answer.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (told, texts) = (told.clone(), here.clone());
                std::thread::spawn(move || talk(stream, &told, &texts));
            }
        });
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut query) {
                std::thread::sleep(delay);
                let reply = reply(&query[..n], answer.lock().unwrap().as_deref(), &there);
                let _ = socket.send_to(&reply, from);
                *asked.lock().unwrap() += 1;
            }
        });
        dns
    }

    pub fn set(&self, addresses: &[[u8; 4]]) {
        *self.answer.lock().unwrap() = Some(addresses.iter().map(|a| Ipv4Addr::from(*a)).collect());
    }

    /// Where files with texts are.
    pub fn texts(&self) -> &Path {
        self.texts.path()
    }

    pub fn fail(&self) {
        *self.answer.lock().unwrap() = None;
        let before = *self.asked.lock().unwrap();
        assert!(wait(|| *self.asked.lock().unwrap() > before), "nobody asks any more");
    }
}

/// Both kinds on one port: of those that the kernel gives for one, the other may be taken.
fn sockets() -> (TcpListener, UdpSocket, u16) {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) {
            return (listener, socket, port);
        }
    }
}

/// Messages with two bytes of length before each (RFC 1035 section 4.2.2).
fn talk(mut stream: TcpStream, answer: &Mutex<Option<Vec<Ipv4Addr>>>, texts: &Path) {
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        if stream.read_exact(&mut query).is_err() {
            return;
        }
        let reply = reply(&query, answer.lock().unwrap().as_deref(), texts);
        let _ = stream.write_all(&[&(reply.len() as u16).to_be_bytes()[..], &reply].concat());
    }
}

/// RFC 1035: the question again, and a record with a time to live of one second for each address or text.
fn reply(query: &[u8], answer: Option<&[Ipv4Addr]>, texts: &Path) -> Vec<u8> {
    let end = 12 + query[12..].iter().position(|b| *b == 0).unwrap() + 5;
    let (code, records): (u8, Vec<Vec<u8>>) = match (answer, &query[end - 4..end]) {
        (None, _) => (2, Vec::new()),
        (Some(all), [0, 1, 0, 1]) => (0, all.iter().map(|ip| ip.octets().to_vec()).collect()),
        (Some(_), [0, 16, 0, 1]) => {
            let lines = std::fs::read_to_string(texts.join(name(&query[12..]))).unwrap_or_default();
            (0, lines.lines().map(|line| [&[line.len() as u8], line.as_bytes()].concat()).collect())
        }
        (Some(_), [0, 12, 0, 1]) => {
            let names = std::fs::read_to_string(texts.join(name(&query[12..]))).unwrap_or_default();
            let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
            let whole = |line: &str| [line.split('.').flat_map(label).collect(), vec![0]].concat();
            (0, names.lines().map(whole).collect())
        }
        _ => (0, Vec::new()),
    };
    let kind = query[end - 3];
    let mut out = query[..2].to_vec();
    out.extend([0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
    out.extend(&query[12..end]);
    for data in records {
        out.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1, 0, data.len() as u8]);
        out.extend(data);
    }
    out
}

/// A name as text, in lower case.
fn name(mut labels: &[u8]) -> String {
    let mut out = Vec::new();
    while let Some((&len @ 1.., rest)) = labels.split_first() {
        let (label, rest) = rest.split_at(usize::from(len));
        out.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        labels = rest;
    }
    out.join(".")
}
