//! The resolver against name servers of its own on loopback, whose messages `hickory-proto` reads and writes.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::{TcpListener, UdpSocket};

use super::engine::Timing;
use super::*;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(150);

/// One question as a server sees it.
struct Asked {
    name: String,
    kind: RecordType,
    over_tcp: bool,
    query: Message,
}

impl Asked {
    fn reply(&self, data: Vec<(u32, RData)>) -> Message {
        let mut reply = Message::response(self.query.metadata.id, OpCode::Query);
        reply.add_queries(self.query.queries.clone());
        let name = self.query.queries[0].name().clone();
        reply.add_answers(data.into_iter().map(|(ttl, data)| Record::from_rdata(name.clone(), ttl, data)));
        reply
    }

    fn answer(&self, data: Vec<(u32, RData)>) -> Option<Vec<u8>> {
        Some(self.reply(data).to_vec().unwrap())
    }

    fn code(&self, code: ResponseCode) -> Option<Vec<u8>> {
        let mut reply = self.reply(Vec::new());
        reply.metadata.response_code = code;
        Some(reply.to_vec().unwrap())
    }

    /// An answer to A; no records to other questions.
    fn a(&self, ttl: u32, addresses: &[&str]) -> Option<Vec<u8>> {
        let only = if self.kind == RecordType::A { addresses } else { &[] };
        self.answer(only.iter().map(|address| (ttl, a(address))).collect())
    }

    fn alias(&self, ttl: u32, target: &str) -> Option<Vec<u8>> {
        self.answer(vec![(ttl, alias(target))])
    }
}

fn a(address: &str) -> RData {
    RData::A(A(address.parse::<Ipv4Addr>().unwrap()))
}

fn aaaa(address: &str) -> RData {
    RData::AAAA(AAAA(address.parse::<Ipv6Addr>().unwrap()))
}

fn alias(target: &str) -> RData {
    RData::CNAME(CNAME(Name::from_ascii(target).unwrap()))
}

/// A name server on UDP and TCP; keeps what it was asked.
struct Server {
    address: SocketAddr,
    asked: Rc<RefCell<Vec<String>>>,
}

type Handler = dyn Fn(&Asked) -> Option<Vec<u8>>;

impl Server {
    async fn start(handler: impl Fn(&Asked) -> Option<Vec<u8>> + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).await.unwrap();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let log = asked.clone();
        let handler: Rc<Handler> = Rc::new(handler);
        tokio::task::spawn_local(serve_tcp(listener, handler.clone(), asked.clone()));
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                if let Some(answer) = handle(&*handler, &buffer[..length], false, &asked) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        Server { address, asked: log }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }
}

fn handle(handler: &Handler, message: &[u8], over_tcp: bool, asked: &RefCell<Vec<String>>) -> Option<Vec<u8>> {
    let query = Message::from_vec(message).expect("the resolver sends well-formed queries");
    assert!(query.metadata.recursion_desired && query.queries.len() == 1);
    let question = &query.queries[0];
    let name = question.name().to_ascii().trim_end_matches('.').to_owned();
    let kind = question.query_type();
    let transport = if over_tcp { " tcp" } else { "" };
    asked.borrow_mut().push(format!("{name} {kind}{transport}"));
    handler(&Asked { name, kind, over_tcp, query })
}

async fn serve_tcp(listener: TcpListener, handler: Rc<Handler>, asked: Rc<RefCell<Vec<String>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut length = [0; 2];
        transport::read_exact(&stream, &mut length).await.unwrap();
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        transport::read_exact(&stream, &mut query).await.unwrap();
        if let Some(answer) = handle(&*handler, &query, true, &asked) {
            let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
            transport::write_all(&stream, &[&length[..], &answer].concat()).await.unwrap();
        }
    }
}

struct Bench {
    resolver: Resolver,
    log: Rc<RefCell<Vec<String>>>,
}

impl Bench {
    fn new(servers: &[SocketAddr], parameters: &[&str]) -> Bench {
        let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
        let args: Vec<&[u8]> =
            servers.iter().map(|s| s.as_bytes()).chain(parameters.iter().map(|p| p.as_bytes())).collect();
        let log = Rc::new(RefCell::new(Vec::new()));
        let sink = log.clone();
        let timing = Timing { resend: SHORT, tcp: SHORT };
        let config = ResolverConfig::parse(&args).unwrap();
        let resolver =
            Resolver::with_timing(config, Rc::new(move |_, line| sink.borrow_mut().push(line.to_owned())), timing);
        Bench { resolver, log }
    }

    async fn ips(&self, name: &str) -> String {
        match self.resolver.resolve(name.as_bytes(), LONG).await {
            Ok(addresses) => join(&addresses),
            Err(error) => error.to_string(),
        }
    }

    fn logged(&self) -> String {
        self.log.borrow().join("\n")
    }
}

fn join(addresses: &Addresses) -> String {
    addresses.iter().map(|ip| ip.to_string()).collect::<Vec<_>>().join(" ")
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[test]
fn asks_both_families_and_merges() {
    run(async {
        let server = Server::start(|asked| match asked.kind {
            RecordType::A => asked.a(60, &["10.0.0.1", "10.0.0.2"]),
            _ => asked.answer(vec![(5, aaaa("fe80::1"))]),
        })
        .await;
        let bench = Bench::new(&[server.address], &[]);
        assert!(bench.resolver.cached(b"www.example.net").is_none());
        let addresses = bench.resolver.resolve(b"WWW.Example.net.", LONG).await.unwrap();
        assert_eq!(join(&addresses), "10.0.0.1 10.0.0.2 fe80::1");
        let left = addresses.valid_until() - Instant::now();
        assert!(left > Duration::from_secs(3) && left <= Duration::from_secs(5), "{left:?}");
        // Known now, in any case, and each caller begins at the next address.
        assert_eq!(join(&bench.resolver.cached(b"www.example.NET").unwrap()), "10.0.0.2 fe80::1 10.0.0.1");
        assert_eq!(bench.ips("www.example.net").await, "fe80::1 10.0.0.1 10.0.0.2");
        assert_eq!(server.asked(), ["www.example.net A", "www.example.net AAAA"]);
        assert_eq!(bench.resolver.counters().name.get(), 1);
        assert_eq!(bench.resolver.counters().noerror.get(), 2);
    });
}

#[test]
fn one_family_only() {
    run(async {
        let server = Server::start(|asked| match asked.kind {
            RecordType::A => asked.a(60, &["10.0.0.1"]),
            _ => asked.answer(vec![(5, aaaa("fe80::1"))]),
        })
        .await;
        assert_eq!(Bench::new(&[server.address], &["ipv6=off"]).ips("a.b").await, "10.0.0.1");
        assert_eq!(Bench::new(&[server.address], &["ipv4=off"]).ips("a.b").await, "fe80::1");
        assert_eq!(server.asked(), ["a.b A", "a.b AAAA"]);
    });
}

#[test]
fn families_in_all_combinations() {
    run(async {
        // `z` no records, `n` an address, `c` an alias, `e` an error: first of A, then of AAAA.
        let server = Server::start(|asked| {
            let first = if asked.kind == RecordType::A { 0 } else { 2 };
            let address = || if asked.kind == RecordType::A { a("10.0.0.1") } else { aaaa("fe80::1") };
            match asked.name.as_bytes()[first] {
                b'z' => asked.answer(Vec::new()),
                b'n' | b't' => asked.answer(vec![(60, address())]),
                b'c' => asked.alias(60, "t-t.net."),
                _ => asked.code(ResponseCode::ServFail),
            }
        })
        .await;
        let bench = Bench::new(&[server.address], &[]);
        let (missing, failed) = ("3: Host not found", "2: Server failure");
        for (name, expected) in [
            ("z-z.net", missing),
            ("z-n.net", "fe80::1"),
            ("z-c.net", "10.0.0.1 fe80::1"),
            ("z-e.net", failed),
            ("n-z.net", "10.0.0.1"),
            ("n-c.net", "10.0.0.1"),
            ("n-e.net", failed),
            ("c-z.net", missing),
            ("c-n.net", "fe80::1"),
            ("e-z.net", failed),
            ("e-n.net", failed),
            ("e-c.net", failed),
        ] {
            assert_eq!(bench.ips(name).await, expected, "{name}");
        }
    });
}

#[test]
fn codes_have_nginx_words_and_are_not_cached() {
    run(async {
        let server = Server::start(|asked| {
            asked.code(match &asked.name[..2] {
                "sf" => ResponseCode::ServFail,
                "nx" => ResponseCode::NXDomain,
                "ni" => ResponseCode::NotImp,
                _ => ResponseCode::Refused,
            })
        })
        .await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        assert_eq!(bench.ips("sf.net").await, "2: Server failure");
        assert_eq!(bench.ips("sf.net").await, "2: Server failure");
        assert_eq!(bench.ips("nx.net").await, "3: Host not found");
        assert_eq!(bench.ips("ni.net").await, "4: Unimplemented");
        assert_eq!(bench.ips("re.net").await, "5: Operation refused");
        assert_eq!(server.asked().len(), 5);
        let error = bench.resolver.resolve(b"nx.net", LONG).await.unwrap_err();
        assert!(error.valid_until > Instant::now() + Duration::from_secs(8));
    });
}

#[test]
fn names_that_cannot_be_asked() {
    run(async {
        let server = Server::start(|asked| asked.a(60, &["10.0.0.1"])).await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        let long_label = "a".repeat(64);
        let long_name = "a.".repeat(300) + "net";
        for name in ["", ".", "a..b", ".a", "a..", &long_label, &long_name] {
            assert_eq!(bench.ips(name).await, "3: Host not found", "{name:?}");
        }
        assert_eq!(bench.ips("127.0.0.9").await, "127.0.0.9");
        assert_eq!(bench.ips("::1").await, "::1");
        assert!(server.asked().is_empty());
    });
}

#[test]
fn callers_of_one_name_share_the_query() {
    run(async {
        let server = Server::start(|asked| asked.a(0, &["10.0.0.1", "10.0.0.2"])).await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        let (one, two, three) = tokio::join!(bench.ips("a.net"), bench.ips("A.NET"), bench.ips("a.net."));
        assert_eq!(server.asked(), ["a.net A"]);
        let mut answers = [one, two, three];
        answers.sort();
        assert_eq!(answers, ["10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2", "10.0.0.2 10.0.0.1"]);
        // A time to live of zero is for those who waited.
        bench.ips("a.net").await;
        assert_eq!(server.asked().len(), 2);
    });
}

#[test]
fn time_to_live_and_valid() {
    run(async {
        let server = Server::start(|asked| asked.a(1, &["10.0.0.1"])).await;
        let by_ttl = Bench::new(&[server.address], &["ipv6=off"]);
        let by_valid = Bench::new(&[server.address], &["ipv6=off", "valid=10m"]);
        by_ttl.ips("a.net").await;
        let kept = by_valid.resolver.resolve(b"a.net", LONG).await.unwrap();
        assert!(kept.valid_until() > Instant::now() + Duration::from_secs(590));
        let expiry = by_ttl.resolver.cached(b"a.net").unwrap().valid_until();
        tokio::time::sleep_until(expiry).await;
        assert!(by_ttl.resolver.cached(b"a.net").is_none());
        assert!(by_valid.resolver.cached(b"a.net").is_some());
        by_ttl.ips("a.net").await;
        assert_eq!(server.asked().len(), 3);
    });
}

#[test]
fn aliases_are_followed_to_a_limit() {
    run(async {
        let server = Server::start(|asked| match asked.name.strip_prefix('n') {
            Some("51") => asked.a(60, &["10.0.0.51"]),
            Some(number) => asked.alias(30, &format!("n{}.", number.parse::<u32>().unwrap() + 1)),
            None if asked.name == "root" => asked.alias(60, "."),
            None => asked.alias(60, "loop."),
        })
        .await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        assert_eq!(bench.ips("n0").await, "3: Host not found");
        assert_eq!(bench.ips("n1").await, "10.0.0.51");
        assert_eq!(server.asked().len(), 52);
        let cached = bench.resolver.cached(b"n30").unwrap();
        assert!(cached.valid_until() < Instant::now() + Duration::from_secs(31));
        assert_eq!(bench.ips("loop").await, "3: Host not found");
        assert_eq!(bench.ips("root").await, "3: Host not found");
    });
}

#[test]
fn servers_take_turns_and_a_silent_one_is_left() {
    run(async {
        let silent = Server::start(|_| None).await;
        let good = Server::start(|asked| asked.a(60, &["10.0.0.1"])).await;
        let bench = Bench::new(&[silent.address, good.address], &["ipv6=off"]);
        assert_eq!(bench.ips("first.net").await, "10.0.0.1");
        assert_eq!(bench.ips("second.net").await, "10.0.0.1");
        assert_eq!(silent.asked(), ["first.net A"]);
        assert_eq!(good.asked(), ["first.net A", "second.net A"]);
    });
}

#[test]
fn a_refusing_server_is_left_at_once() {
    run(async {
        let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let good = Server::start(|asked| asked.a(60, &["10.0.0.1"])).await;
        let timing = Timing { resend: LONG, tcp: LONG };
        let mut bench = Bench::new(&[closed, good.address], &["ipv6=off"]);
        let config =
            ResolverConfig::parse(&[closed.to_string().as_bytes(), good.address.to_string().as_bytes(), b"ipv6=off"]);
        let sink = bench.log.clone();
        bench.resolver = Resolver::with_timing(
            config.unwrap(),
            Rc::new(move |_, line| sink.borrow_mut().push(line.to_owned())),
            timing,
        );
        let addresses = bench.resolver.resolve(b"a.net", Duration::from_secs(3)).await.unwrap();
        assert_eq!(join(&addresses), "10.0.0.1");
        assert_eq!(
            bench.logged(),
            format!("recv() failed (111: Connection refused) while resolving, resolver: {closed}")
        );
    });
}

#[test]
fn time_runs_out_for_each_caller() {
    run(async {
        let silent = Server::start(|_| None).await;
        let bench = Bench::new(&[silent.address], &["ipv6=off"]);
        let error = bench.resolver.resolve(b"a.net", SHORT * 2 + SHORT / 2).await.unwrap_err();
        assert_eq!((error.code, error.text), (TIMED_OUT, "Operation timed out"));
        assert_eq!(silent.asked().len(), 3);
        assert_eq!(bench.resolver.counters().timedout.get(), 1);
        // Nobody waits: it is not sent again, and the next caller asks anew.
        tokio::time::sleep(SHORT * 3).await;
        assert_eq!(silent.asked().len(), 3);
        assert!(bench.resolver.resolve(b"a.net", SHORT / 2).await.is_err());
        assert_eq!(silent.asked().len(), 4);
    });
}

#[test]
fn a_caller_that_leaves_does_not_take_the_answer_away() {
    run(async {
        let count = Cell::new(0);
        let server = Server::start(move |asked| {
            count.set(count.get() + 1);
            if count.get() == 1 { None } else { asked.a(60, &["10.0.0.1"]) }
        })
        .await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        let leaving = bench.resolver.resolve(b"a.net", SHORT / 3);
        let (left, stayed) = tokio::join!(leaving, bench.ips("a.net"));
        assert_eq!(left.unwrap_err().code, TIMED_OUT);
        assert_eq!(stayed, "10.0.0.1");
    });
}

#[test]
fn truncated_answers_are_asked_over_tcp() {
    run(async {
        let server = Server::start(|asked| {
            if asked.over_tcp {
                // Larger than a datagram may be.
                let many = (0..2000u32).map(|n| (60, RData::A(A(Ipv4Addr::from(0x0a00_0000 + n))))).collect();
                return asked.answer(many);
            }
            let mut reply = asked.reply(vec![(60, a("10.9.9.9"))]);
            reply.metadata.truncation = true;
            Some(reply.to_vec().unwrap())
        })
        .await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        let addresses = bench.resolver.resolve(b"big.net", LONG).await.unwrap();
        assert_eq!((addresses.len(), addresses.first().to_string().as_str()), (2000, "10.0.0.0"));
        assert_eq!(server.asked(), ["big.net A", "big.net A tcp"]);
        assert_eq!(bench.logged(), "");
    });
}

#[test]
fn broken_answers_are_logged_and_asked_again() {
    run(async {
        let broken = RefCell::new(Vec::<String>::new());
        let server = Server::start(move |asked| {
            let mut seen = broken.borrow_mut();
            if seen.contains(&asked.name) {
                return asked.a(60, &["10.0.0.1"]);
            }
            seen.push(asked.name.clone());
            let mut good = asked.a(60, &["10.0.0.1"])?;
            let question = 12 + asked.name.len() + 2;
            match asked.name.as_str() {
                "ident" => good[1] ^= 1,
                "short" => good.truncate(good.len() - 5),
                "tiny" => good.truncate(5),
                "length" => {
                    let at = good.len() - 5;
                    good[at] = 3;
                }
                "aaaa" => return asked.answer(vec![(60, aaaa("fe80::1"))]),
                "class" => good[question + 3] = 3,
                "type" => good[question + 1] = 99,
                "query" => good[2] &= 0x7f,
                "questions" => good[5] = 2,
                "other" => good[13] = b'x',
                "loop" => good = pointer_loop(asked),
                "format" => return asked.code(ResponseCode::FormErr),
                _ => return asked.answer(vec![(60, RData::TXT(TXT::new(vec!["t".into()])))]),
            }
            Some(good)
        })
        .await;
        let bench = Bench::new(&[server.address], &["ipv6=off"]);
        for (name, text) in [
            ("ident", "wrong ident "),
            ("short", "short DNS response"),
            ("tiny", "short DNS response"),
            ("length", "invalid A record in DNS response"),
            ("aaaa", "unexpected AAAA record in DNS response"),
            ("class", "unknown query class 3 in DNS response"),
            ("type", "unknown query type 99 in DNS response"),
            ("query", "invalid UDP DNS response "),
            ("questions", "invalid number of questions in DNS response"),
            ("other", "unexpected DNS response for xther"),
            ("loop", "compression pointers loop in DNS response"),
            ("format", "DNS error (1: Format error), query id:"),
        ] {
            assert_eq!(bench.ips(name).await, "10.0.0.1", "{name}");
            assert!(bench.log.take().join("\n").starts_with(text), "{name}");
        }
        assert_eq!(bench.ips("txt").await, "3: Host not found");
        assert_eq!(bench.logged(), "unexpected RR type 16 in DNS response\nno A or CNAME types in DNS response");
    });
}

/// An alias whose name points to itself.
fn pointer_loop(asked: &Asked) -> Vec<u8> {
    let mut message = asked.reply(Vec::new()).to_vec().unwrap();
    message[7] = 1;
    let data_at = message.len() as u16 + 12;
    message.extend_from_slice(&[0xc0, 0x0c, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2]);
    message.extend_from_slice(&(0xc000 | data_at).to_be_bytes());
    message
}

#[test]
fn any_bytes_are_survived() {
    run(async {
        let server = Server::start(|_| None).await;
        let bench = Bench::new(&[server.address], &[]);
        let resolver = bench.resolver.clone();
        let waiting = tokio::task::spawn_local(async move { resolver.resolve(b"abc.net", LONG).await });
        while server.asked().len() < 2 {
            tokio::task::yield_now().await;
        }
        let engine = &bench.resolver.engine;
        let query = engine.pending_messages(b"abc.net");
        for message in query {
            let mut reply = Message::from_vec(&message).unwrap();
            reply.metadata = Message::response(reply.metadata.id, OpCode::Query).metadata;
            let kind = reply.queries[0].query_type();
            let name = Name::from_ascii("abc.net.").unwrap();
            for data in [alias("deeper.abc.net."), if kind == RecordType::A { a("10.0.0.1") } else { aaaa("::1") }] {
                reply.add_answer(Record::from_rdata(name.clone(), 60, data));
            }
            let good = reply.to_vec().unwrap();
            for at in 12..good.len() {
                for value in [0, 1, 0x3f, 0x40, 0xc0, 0xff] {
                    let mut bad = good.clone();
                    bad[at] = value;
                    for end in [bad.len(), at] {
                        let _ = message::Reply::parse(&bad[..end], message::Transport::Udp).map(|reply| {
                            let _ = (reply.addresses(&|_| {}), reply.services(&|_| {}), reply.pointer(&|_| {}));
                        });
                    }
                }
            }
            engine.receive(&good, message::Transport::Udp);
        }
        assert_eq!(join(&waiting.await.unwrap().unwrap()), "10.0.0.1 ::1");
    });
}

#[test]
fn names_of_addresses() {
    run(async {
        let server = Server::start(|asked| match asked.name.as_str() {
            "4.3.2.1.in-addr.arpa" => {
                let name = Name::from_ascii("Host.Example.net.").unwrap();
                asked.answer(vec![(60, alias("4.x.in-addr.arpa.")), (60, RData::PTR(PTR(name)))])
            }
            name if name.ends_with("0.0.ip6.arpa") => {
                asked.answer(vec![(60, RData::PTR(PTR(Name::from_ascii("six.net.").unwrap())))])
            }
            _ => asked.answer(Vec::new()),
        })
        .await;
        let bench = Bench::new(&[server.address], &[]);
        for _ in 0..2 {
            let found = bench.resolver.resolve_addr("1.2.3.4".parse().unwrap(), LONG).await.unwrap();
            assert_eq!(&*found.name, b"host.example.net");
        }
        assert_eq!(server.asked(), ["4.3.2.1.in-addr.arpa PTR"]);
        let found = bench.resolver.resolve_addr("::1".parse().unwrap(), LONG).await.unwrap();
        assert_eq!(&*found.name, b"six.net");
        let error = bench.resolver.resolve_addr("9.9.9.9".parse().unwrap(), LONG).await.unwrap_err();
        assert_eq!(error.code, NOT_FOUND);
    });
}

fn srv(priority: u16, weight: u16, port: u16, target: &str) -> (u32, RData) {
    (60, RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).unwrap())))
}

#[test]
fn services() {
    run(async {
        let server = Server::start(|asked| match (asked.name.as_str(), asked.kind) {
            ("_http._tcp.example.net", RecordType::SRV) => {
                asked.answer(vec![srv(2, 5, 81, "b.net."), srv(1, 0, 80, "a.net."), srv(1, 3, 82, "gone.net.")])
            }
            ("_http._tcp.moved.net", _) => asked.alias(60, "_http._tcp.example.net."),
            ("_http._tcp.lost.net", _) => asked.answer(vec![srv(1, 1, 1, "fails.net."), srv(1, 1, 1, "gone.net.")]),
            ("_http._tcp.down.net", _) | ("fails.net", _) => asked.code(ResponseCode::ServFail),
            ("a.net", RecordType::A) => asked.answer(vec![(5, a("10.0.0.1")), (5, a("10.0.0.2"))]),
            ("b.net", RecordType::A) => asked.a(60, &["10.0.0.3"]),
            _ => asked.answer(Vec::new()),
        })
        .await;
        let bench = Bench::new(&[server.address], &[]);
        for (service, name) in [("http", "example.net"), ("_http._tcp", "Example.net."), ("http", "moved.net")] {
            let found = bench.resolver.resolve_srv(service.as_bytes(), name.as_bytes(), LONG).await.unwrap();
            let order: Vec<String> = found.addresses.iter().map(|found| found.address.to_string()).collect();
            assert_eq!(order.len(), 3);
            assert!(order[..2].contains(&"10.0.0.1:80".to_owned()) && order[..2].contains(&"10.0.0.2:80".to_owned()));
            assert_eq!(order[2], "10.0.0.3:81");
            assert_eq!(
                (&*found.addresses[0].name, found.addresses[0].priority, found.addresses[0].weight),
                (&b"a.net"[..], 1, 1)
            );
            assert_eq!((&*found.failed[0].name, found.failed[0].error.code), (&b"gone.net"[..], NOT_FOUND));
            assert!(found.valid_until < Instant::now() + Duration::from_secs(6));
        }
        let error = bench.resolver.resolve_srv(b"http", b"lost.net", LONG).await.unwrap_err();
        assert_eq!((error.error.code, error.failed.len()), (NOT_FOUND, 2));
        let error = bench.resolver.resolve_srv(b"http", b"down.net", LONG).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.failed.len()), ("2: Server failure", 0));
        let error = bench.resolver.resolve_srv(b"http", b"nothing.net", LONG).await.unwrap_err();
        assert_eq!(error.error.code, NOT_FOUND);
        assert_eq!(bench.resolver.counters().srv.get(), 5);
    });
}

#[test]
fn too_many_names_at_once_are_refused() {
    run(async {
        let silent = Server::start(|_| None).await;
        let bench = Bench::new(&[silent.address], &["ipv6=off"]);
        let mut tasks = JoinSet::new();
        for n in 0..cache::MAX_PENDING {
            let resolver = bench.resolver.clone();
            tasks.spawn_local(async move { resolver.resolve(format!("n{n}.net").as_bytes(), LONG).await.map(drop) });
        }
        tokio::task::yield_now().await;
        while bench.resolver.counters().name.get() < cache::MAX_PENDING as u64 {
            tokio::task::yield_now().await;
        }
        assert_eq!(bench.ips("one.more").await, "5: Operation refused");
        assert_eq!(bench.logged(), "too many names are being resolved");
    });
}
