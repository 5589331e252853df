//! `ironweir doctor backend HOST:PORT`: the runbook for a sick backend. Asks in the order in which an operator would: the name, the port, HTTP,
//! how long it takes. Sends a handful of requests and nothing more.

use crate::command;
use crate::finding::{Finding, Sure, Weight, sort};
use crate::options::Options;
use api_client::Trust;
use machine::cgroup::{Groups, Pressure};
use machine::sockets::{Listener, Sockets};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A handshake that takes longer has lost its SYN, and the one that is sent again after a second.
const CONNECT: Duration = Duration::from_millis(2_500);
/// An answer that takes longer is none.
const ANSWER: Duration = Duration::from_secs(5);
/// Requests by which its time is judged.
const ASKED: usize = 5;
/// A first byte later than this is slow, if the way explains less than half of it.
const SLOW: Duration = Duration::from_millis(500);
/// Bytes of an answer that are looked at.
const LOOKED_AT: usize = 4_096;
/// A port where nothing listens, mostly: whoever is up refuses it at once. RFC 6335: 1 is tcpmux, which nobody runs.
const CLOSED: u16 = 1;

/// What came of one try.
#[derive(Debug)]
enum Try {
    Refused,
    Unreachable(String),
    Timeout,
    Connected { stream: TcpStream, took: Duration },
}

/// Runs it.
pub(crate) fn run(o: &Options, address: &str) -> Result<u8, String> {
    let asked = Asked::read(address)?;
    let (host, port) = (asked.host.as_str(), asked.port);
    let addresses: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(all) => all.collect(),
        Err(e) => {
            let finding = Finding::new("no-address", Weight::Critical, format!("{host} has no address."))
                .seen(e.to_string(), "the system's resolver")
                .because("A server that reads this name at its start does not start; one that runs keeps what it had.")
                .cure(format!("look at /etc/resolv.conf, /etc/hosts and the zone of {host}"));
            return command::show(o, &[finding], &[]);
        }
    };
    let mut found = Vec::new();
    for address in addresses {
        found.extend(examine(address, &asked, o.has("json")));
    }
    command::show(o, &sort(found), &[])
}

/// What was asked for: `HOST:PORT`, or a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// As a `Host` header has it.
    named: String,
    /// With its slash.
    path: String,
    is_tls: bool,
}

impl Asked {
    fn read(text: &str) -> Result<Asked, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (is_tls, default) = match scheme {
            "" => (false, None),
            "http" => (false, Some(80)),
            "https" => (true, Some(443)),
            other => return Err(format!("{other} is not spoken here: http or https")),
        };
        let (named, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = if path.is_empty() { "/" } else { path };
        if !path.bytes().chain(named.bytes()).all(|b| b.is_ascii_graphic()) {
            return Err(format!("{text}: no address"));
        }
        // The colons of an IPv6 address stand in brackets.
        let (host, port) = match named.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| format!("{port}: no port"))?),
            None => (named, default.ok_or("backend HOST:PORT")?),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Asked { host, port, named: named.to_owned(), path: path.to_owned(), is_tls })
    }
}

fn examine(address: SocketAddr, asked: &Asked, quiet: bool) -> Vec<Finding> {
    let say = |text: String| {
        if !quiet {
            command::print(&format!("{address}: {text}\n"));
        }
    };
    let is_local = machine::own::is_local(address.ip());
    let sockets = if is_local { Sockets::read().ok() } else { None };
    let listeners: Vec<Listener> =
        sockets.map(|s| s.listeners.into_iter().filter(|l| l.port == address.port()).collect()).unwrap_or_default();
    match connect(address) {
        Try::Refused => vec![refused(address, is_local, &listeners)],
        Try::Unreachable(text) => vec![unreachable(address, &text)],
        Try::Timeout => vec![silent(address, is_local, &listeners)],
        Try::Connected { stream, took } => {
            let rtt = machine::system::tcp_facts(&stream).map_or(took, |f| Duration::from_micros(f.rtt_us.into()));
            say(format!("connects ({:.1} ms)", took.as_secs_f64() * 1e3));
            let mut found = lost_syn(address, took);
            match ask(stream, asked) {
                Ok((status, first)) => {
                    say(format!("answers {status} after {:.1} ms", first.as_secs_f64() * 1e3));
                    found.extend(status_finding(address, status));
                    found.extend(slow(address, asked, rtt, &listeners));
                }
                Err(finding) => found.push(local_state(*finding, address, &listeners)),
            }
            found
        }
    }
}

fn connect(address: SocketAddr) -> Try {
    let began = Instant::now();
    match TcpStream::connect_timeout(&address, CONNECT) {
        Ok(stream) => Try::Connected { stream, took: began.elapsed() },
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Try::Refused,
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Try::Timeout,
        Err(e) => Try::Unreachable(e.to_string()),
    }
}

/// A reset: nobody listens on this address, or a firewall rejects.
fn refused(address: SocketAddr, is_local: bool, listeners: &[Listener]) -> Finding {
    let finding = Finding::new("refused", Weight::Critical, format!("{address} refuses connections."))
        .seen("connection refused", "connect()")
        .because("The host is up and says no.");
    match listeners.first() {
        Some(l) => finding
            .seen(format!("{} listens", l.address), "sock_diag")
            .cure(format!("it listens on {}, not on {}: listen on 0.0.0.0:{} or on {address}", l.address, address.ip(), address.port())),
        None if is_local => finding.seen(format!("nobody listens on port {}", address.port()), "sock_diag").cure("start the service"),
        None => finding
            .cure(format!("on that host: ironweir doctor ports: does the service run, and does it listen on {} or only on 127.0.0.1?", address.ip()))
            .cure("or a firewall rejects (REJECT): nft list ruleset")
            .sure(Sure::Likely),
    }
}

fn unreachable(address: SocketAddr, text: &str) -> Finding {
    Finding::new("unreachable", Weight::Critical, format!("{address} cannot be reached."))
        .seen(text, "connect()")
        .because("A router or a firewall says so (REJECT with icmp-host-prohibited), or the host does not answer ARP: it is down.")
        .cure(format!("ip route get {}; ip neigh show {}", address.ip(), address.ip()))
        .sure(Sure::Likely)
}

/// No answer to a SYN: dropped by a firewall, by a full queue, or there is nobody.
fn silent(address: SocketAddr, is_local: bool, listeners: &[Listener]) -> Finding {
    let finding = Finding::new("silent", Weight::Critical, format!("{address} does not answer a SYN."))
        .seen(format!("nothing within {} ms", CONNECT.as_millis()), "connect()");
    if let Some(l) = listeners.iter().find(|l| l.backlog > 0 && l.queue >= l.backlog) {
        return finding
            .seen(format!("{} of {} connections wait at {}", l.queue, l.backlog, l.address), "sock_diag")
            .because("Its accept queue is full: the service does not take connections fast enough, or not at all.")
            .cure(format!("listen {} backlog=4096; sysctl -w net.core.somaxconn=4096; and look why it does not accept: ironweir doctor", address.port()));
    }
    if is_local {
        return finding
            .because("The host is this one, and a SYN is lost on the way to itself: a firewall drops it.")
            .cure("nft list ruleset");
    }
    // Whoever is up and drops one port answers on others.
    match connect(SocketAddr::new(address.ip(), CLOSED)) {
        Try::Refused | Try::Connected { .. } => finding
            .seen(format!("port {CLOSED} answers at once"), "connect()")
            .because("The host is up: a firewall drops this port (DROP), or its accept queue is full.")
            .cure("on that host: nft list ruleset; ironweir doctor")
            .sure(Sure::Likely),
        Try::Timeout | Try::Unreachable(_) => finding
            .seen(format!("port {CLOSED} does not answer either"), "connect()")
            .because("The host is down, or a firewall drops everything, or packets do not find their way back.")
            .cure(format!("ip route get {}; is the host up, and does it have a route back?", address.ip()))
            .sure(Sure::Likely),
    }
}

/// A handshake of a second had its SYN sent again.
fn lost_syn(address: SocketAddr, took: Duration) -> Vec<Finding> {
    if took < Duration::from_millis(900) {
        return Vec::new();
    }
    let finding = Finding::new(
        "syn-lost",
        Weight::Warning,
        format!("{address} took {} ms to connect: a SYN was lost and sent again.", took.as_millis()),
    )
    .seen(format!("{} ms", took.as_millis()), "connect()")
    .because("Its accept queue is full now and then, or the way loses packets.")
    .cure("on that host: ironweir doctor")
    .sure(Sure::Likely);
    vec![finding]
}

/// One request: the status and the time to the first byte; an error is a finding.
fn ask(stream: TcpStream, asked: &Asked) -> Result<(u16, Duration), Box<Finding>> {
    let Asked { host, named: address, path, is_tls, .. } = asked;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: ironweir-doctor\r\nConnection: close\r\n\r\n");
    let from = format!("GET {path} HTTP/1.1{}", if *is_tls { " over TLS" } else { "" });
    let none = |text: String| {
        Box::new(
            Finding::new("no-answer", Weight::Critical, format!("{address} connects and does not answer."))
                .seen(text, &from)
                .because("The kernel completes handshakes for a service that does not take them: it hangs, is stopped, or all of its workers are busy."),
        )
    };
    let began = Instant::now();
    stream
        .set_read_timeout(Some(ANSWER))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER)))
        .map_err(|e| none(e.to_string()))?;
    let mut head = Head { began, bytes: Vec::new(), took: None };
    let asks = if *is_tls {
        // Whether its certificate is to be believed is another question; here it is asked whether it works.
        match api_client::secure(stream, host, &Trust::Blind) {
            Ok(mut stream) => stream.write_all(request.as_bytes()).and_then(|()| head.read(&mut stream)),
            Err(text) => return Err(none(text)),
        }
    } else {
        let mut stream = stream;
        stream.write_all(request.as_bytes()).and_then(|()| head.read(&mut stream))
    };
    let Head { bytes: head, took, .. } = head;
    let Some(took) = took else {
        return Err(none(match asks {
            Ok(()) => "it closed the connection without a byte".into(),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                format!("nothing within {} s", ANSWER.as_secs())
            }
            // What TLS says of a handshake with something that does not speak it.
            Err(e) if *is_tls && e.kind() == ErrorKind::InvalidData => format!("no TLS: {e}"),
            Err(e) => e.to_string(),
        }));
    };
    // An alert of TLS, or nginx's page for HTTP on a TLS port.
    if head.starts_with(&[0x15, 0x03]) || head.windows(27).any(|w| w == b"plain HTTP request was sent") {
        return Err(Box::new(
            Finding::new("tls", Weight::Warning, format!("{address} speaks TLS."))
                .seen("plain HTTP is refused", &from)
                .because("A proxy_pass http:// to it fails with 400 or 502.")
                .cure("proxy_pass https://...; proxy_ssl_server_name on;"),
        ));
    }
    let Some(status) = final_status(&head) else {
        let shown = String::from_utf8_lossy(&head[..head.len().min(40)]).escape_debug().to_string();
        return Err(Box::new(
            Finding::new("not-http", Weight::Warning, format!("{address} does not speak HTTP."))
                .seen(format!("\"{shown}\""), &from)
                .because("A proxy_pass to it fails with 502 (\"upstream sent no valid HTTP/1.0 header\").")
                .cure("fastcgi_pass, uwsgi_pass, grpc_pass or stream, as it speaks"),
        ));
    };
    Ok((status, took))
}

/// The beginning of an answer, in however many segments it comes.
struct Head {
    began: Instant,
    bytes: Vec<u8>,
    /// To the first byte.
    took: Option<Duration>,
}

impl Head {
    /// Reads to the end of the head of an answer that is not a hint (1xx), of something that is no HTTP, or of patience.
    fn read(&mut self, stream: &mut impl Read) -> std::io::Result<()> {
        let mut piece = [0; LOOKED_AT];
        while self.bytes.len() < LOOKED_AT && self.began.elapsed() < ANSWER {
            let length = match stream.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.took.get_or_insert(self.began.elapsed());
            self.bytes.extend_from_slice(&piece[..length]);
            let common = self.bytes.len().min(HTTP.len());
            if self.bytes[..common] != HTTP[..common] || final_status(&self.bytes).is_some() {
                return Ok(());
            }
        }
        Ok(())
    }
}

const HTTP: &[u8] = b"HTTP/1.";

/// The status behind all 1xx (RFC 9110 section 15.2: they come before the answer), once its three digits are there.
fn final_status(mut head: &[u8]) -> Option<u16> {
    loop {
        let status = std::str::from_utf8(head.strip_prefix(HTTP)?.get(2..5)?).ok()?.parse().ok()?;
        // A server that changes protocols says nothing more.
        if !(100..200).contains(&status) || status == 101 {
            return Some(status);
        }
        let end = head.windows(4).position(|w| w == b"\r\n\r\n")?;
        head = &head[end + 4..];
    }
}

fn status_finding(address: SocketAddr, status: u16) -> Option<Finding> {
    let (weight, why, cure) = match status {
        500..=599 => {
            (Weight::Critical, "It says of itself that it cannot: its own log says why.", "its error log at this time")
        }
        429 => (Weight::Warning, "It limits the rate of this client.", "its limits, or fewer requests"),
        400 | 421 => (
            Weight::Warning,
            "It does not know the name that it was asked for.",
            "proxy_set_header Host $host; or the name that it serves",
        ),
        _ => return None,
    };
    Some(
        Finding::new("status", weight, format!("{address} answers {status}."))
            .seen(status.to_string(), "GET / HTTP/1.1")
            .because(why)
            .cure(cure),
    )
}

/// Whether it is slow, and whether that is load.
fn slow(address: SocketAddr, asked: &Asked, rtt: Duration, listeners: &[Listener]) -> Option<Finding> {
    let mut times: Vec<Duration> = (0..ASKED)
        .filter_map(|_| match connect(address) {
            Try::Connected { stream, .. } => ask(stream, asked).ok().map(|a| a.1),
            _ => None,
        })
        .collect();
    times.sort_unstable();
    let median = *times.get(times.len() / 2)?;
    if median < SLOW || rtt * 2 > median {
        return None;
    }
    let ms = |d: Duration| format!("{:.0} ms", d.as_secs_f64() * 1e3);
    let finding =
        Finding::new("slow", Weight::Warning, format!("{address} is slow: {} to the first byte.", ms(median)))
            .seen(
                format!("{} to {}, {} requests", ms(times[0]), ms(times[times.len() - 1]), times.len()),
                "GET / HTTP/1.1",
            )
            .seen(format!("{:.1} ms", rtt.as_secs_f64() * 1e3), "the handshake's round trip")
            .because("The way explains none of it: the time goes in the service.");
    Some(local_state(finding, address, listeners))
}

/// What this machine knows of a service that runs on it: who it is, whether it waits for CPUs, is stopped, has a queue.
fn local_state(mut finding: Finding, address: SocketAddr, listeners: &[Listener]) -> Finding {
    if finding.id == "tls" || finding.id == "not-http" {
        return finding;
    }
    let Some(l) = listeners.iter().max_by_key(|l| l.queue) else {
        return finding.cure("on that host: ironweir doctor").sure(Sure::Likely);
    };
    if l.queue > 0 {
        finding = finding.seen(
            format!("{} connections wait to be accepted at {}, {} may", l.queue, l.address, l.backlog),
            "sock_diag",
        );
    }
    let (processes, _) = machine::processes::holding(&[l.inode].into(), &Groups::default());
    for p in processes.iter().take(4) {
        finding = finding.seen(
            format!("{}, process {}, state {}, {} threads stopped", p.name, p.pid, p.state, p.stopped_threads),
            "/proc/PID/stat",
        );
        if p.state == 'T' || p.stopped_threads > 0 {
            finding = finding.cure(format!("kill -CONT {}: it is stopped", p.pid));
        }
    }
    match Pressure::read().filter(|p| p.cpu_some >= 40.0) {
        Some(p) => finding.seen(format!("tasks waited for a CPU {:.0} % of the last 10 s", p.cpu_some), "/proc/pressure/cpu").cure("it is load: more CPUs, or fewer requests for it"),
        None => finding.cure(format!("it is not this machine's CPUs: look at what {address} itself waits for (its database, its upstreams, its locks)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::namespace::{Namespace, address, inside};
    use std::process::{Command, Stdio};

    /// Port 82 is dropped, 83 rejected as by an administrator, on the other host.
    const RULES: &str = "table inet lab { chain in { type filter hook input priority 0; tcp dport 82 drop; \
                         tcp dport 83 reject with icmpx type admin-prohibited; }; }";

    #[test]
    fn what_may_be_asked_for() {
        let read = |text: &str| Asked::read(text).map(|a| (a.host, a.port, a.path, a.is_tls));
        let is = |host: &str, port, path: &str, is_tls| Ok((host.to_owned(), port, path.to_owned(), is_tls));
        assert_eq!(read("a:80"), is("a", 80, "/", false));
        assert_eq!(read("http://a/x/y"), is("a", 80, "/x/y", false));
        assert_eq!(read("https://a:8443/"), is("a", 8443, "/", true));
        assert_eq!(read("https://[::1]"), is("::1", 443, "/", true));
        assert_eq!(read("[::1]:81/x"), is("::1", 81, "/x", false));
        for text in ["a", "a:b", "ftp://a:1", "a:99999", "a:1/\r\nx", ""] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    /// An answer may come byte by byte, and with hints before it.
    #[test]
    fn answers_in_pieces() {
        struct Pieces<'p>(std::slice::Iter<'p, &'static [u8]>);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let Some(piece) = self.0.next() else { return Ok(0) };
                into[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let status = |pieces: &[&'static [u8]]| {
            let mut head = Head { began: Instant::now(), bytes: Vec::new(), took: None };
            head.read(&mut Pieces(pieces.iter())).unwrap();
            final_status(&head.bytes)
        };
        assert_eq!(status(&[b"H", b"TTP/1.1 2", b"00 OK\r\n"]), Some(200));
        assert_eq!(status(&[b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"HTTP/1.1 503 No\r\n\r\n"]), Some(503));
        assert_eq!(status(&[b"HTTP/1.1 103 Early Hints\r\n\r\n"]), None);
        assert_eq!(status(&[b"HTTP/1.1 101 Switching Protocols\r\n\r\n"]), Some(101));
        assert_eq!(status(&[b"SSH-2.0", b"HTTP/1.1 200"]), None);
    }

    /// Two hosts and a wire: what a closed port, a firewall that drops, one that rejects and an absent host look like from outside.
    #[test]
    fn another_host() {
        let nft = |rules: &str| {
            let mut child = Command::new("/usr/sbin/nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().ok()?;
            child.stdin.take()?.write_all(rules.as_bytes()).ok()?;
            child.wait().ok()?.success().then_some(())
        };
        let ran = inside(|| {
            let here = Namespace::current().unwrap();
            let there = Namespace::enter_new().unwrap();
            let has_rules = nft(RULES).is_some();
            here.enter().unwrap();
            Namespace::pair("v0", "v1", &there).unwrap();
            address("v0", [10, 9, 0, 1], 24).unwrap();
            there.enter().unwrap();
            address("v1", [10, 9, 0, 2], 24).unwrap();
            here.enter().unwrap();
            let look = |host: u8, port: u16| {
                let address = SocketAddr::from(([10, 9, 0, host], port));
                examine(address, &Asked::read(&address.to_string()).unwrap(), true).remove(0)
            };
            let closed = look(2, 81);
            assert!(closed.id == "refused" && closed.cure[0].starts_with("on that host"), "{closed:?}");
            if has_rules {
                let dropped = look(2, 82);
                assert!(dropped.id == "silent" && dropped.why.contains("a firewall drops this port"), "{dropped:?}");
                assert_eq!(look(2, 83).id, "unreachable");
            } else {
                println!("no nft here: firewalls are left out");
            }
            let absent = look(3, 80);
            assert!(absent.id == "unreachable" || absent.why.contains("The host is down"), "{absent:?}");
        });
        if ran.is_none() {
            println!("no network namespace can be made here (root?): left out");
        }
    }
}
