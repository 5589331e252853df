//! A NAT (here: connection tracking on the way) that forgets silent connections: the next packet is reset. Then keepalives below its patience.

use super::{Bench, Outcome, Stop, failed, program};
use socket2::{SockRef, TcpKeepalive};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After so long without a packet a connection is forgotten.
const PATIENCE_S: u64 = 2;
/// How long a connection with keepalives has to live.
const LIVES: Duration = Duration::from_secs(3 * PATIENCE_S);

/// What is not known to tracking is reset, as a NAT does with packets for which it has no mapping.
const RULES: &str =
    "table inet lab { chain in { type filter hook input priority 0; ct state invalid reject with tcp reset; }; }";

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let nft = program(&["nft"]).ok_or_else(|| Stop::LeftOut("nft is not installed".into()))?;
    bench.say(&format!("  nft '{RULES}'"));
    let mut child = Command::new(nft).args(["-f", "-"]).stdin(Stdio::piped()).spawn().map_err(failed("nft"))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(RULES.as_bytes()).map_err(failed("nft"))?;
    }
    if !child.wait().map_err(failed("nft"))?.success() {
        return Err(Stop::LeftOut("nft: this kernel does not take the rules".into()));
    }
    bench.set("net.netfilter.nf_conntrack_tcp_timeout_established", &PATIENCE_S.to_string())?;
    // Packets of connections that are not known do not make them known.
    bench.set("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    let server = TcpListener::bind(("127.0.0.1", 80)).map_err(failed("listen"))?;
    let (mut client, mut accepted) = pair(&server)?;
    talk(&mut client, &mut accepted).map_err(failed("a new connection"))?;
    bench.found("idle-reset", &[])?;
    // The count still has what has expired; the list has not.
    bench
        .wait("the connection is not forgotten", || !machine::own::proc_net("nf_conntrack").contains("ESTABLISHED"))?;
    match talk(&mut client, &mut accepted) {
        Err(e) => bench.say(&format!("  after {PATIENCE_S} s of silence: {e}")),
        Ok(()) => return Err(Stop::Failed("a forgotten connection goes on".into())),
    }
    canaries(bench, &server)?;
    let (mut client, mut accepted) = pair(&server)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(1)).with_interval(Duration::from_secs(1));
    SockRef::from(&client).set_tcp_keepalive(&keepalive).map_err(failed("keepalive"))?;
    let (total, reset) = crowd(bench, &server, &keepalive)?;
    talk(&mut client, &mut accepted).map_err(failed("a connection with keepalives"))?;
    bench.say(&format!("  after {} s of silence {reset} of {total} are reset", LIVES.as_secs()));
    if reset > 0 {
        return Err(Stop::Failed("keepalives do not help".into()));
    }
    bench.set("net.ipv4.tcp_keepalive_time", "1")?;
    bench.gone("idle-reset", &[])
}

/// How silent canaries are, longest: they are a quarter of a second apart.
const CANARIES: u32 = 16;
const APART: Duration = Duration::from_millis(250);
/// The timeout that is found may be wrong by this much: tracking looks at its list when it likes, and canaries are apart.
const EXACT: Duration = Duration::from_millis(1_000);

/// Finds how long silence may last: connections that are all made now, and speak one after the other. The first that is reset had been
/// silent for too long.
fn canaries(bench: &Bench, server: &TcpListener) -> Outcome {
    let mut all = (1..=CANARIES).map(|n| Ok((APART * n, pair(server)?))).collect::<Result<Vec<_>, Stop>>()?;
    for (_, (client, accepted)) in &mut all {
        talk(client, accepted).map_err(failed("a new canary"))?;
    }
    let (began, mut lived) = (Instant::now(), Duration::ZERO);
    for (silence, (mut client, mut accepted)) in all {
        // The time itself is what is waited for.
        std::thread::sleep(silence.saturating_sub(began.elapsed()));
        if talk(&mut client, &mut accepted).is_err() {
            bench.say(&format!("  canaries: one that was silent for {lived:?} lives, one of {silence:?} is reset"));
            let real = Duration::from_secs(PATIENCE_S);
            return match silence.abs_diff(real) <= EXACT {
                true => Ok(()),
                false => Err(Stop::Failed(format!("the timeout is {real:?}"))),
            };
        }
        lived = silence;
    }
    Err(Stop::Failed(format!("no canary was reset in {lived:?}")))
}

/// Idle connections with keepalives, if there are descriptors for as many.
const CROWD: usize = 10_000;
/// Descriptors that are none of them.
const OTHERS: u64 = 100;
/// Connections that may wait for the thread that accepts.
const BACKLOG: i32 = 4_096;

/// How many connections were idle for [`LIVES`], and how many of them were reset. Their two ends are in descriptor tables of their own, so that the limit
/// holds for each.
fn crowd(bench: &Bench, server: &TcpListener, keepalive: &TcpKeepalive) -> Result<(usize, usize), Stop> {
    let limit = machine::own::raise_descriptor_limit(CROWD as u64 + OTHERS);
    let count = CROWD.min(limit.saturating_sub(OTHERS) as usize);
    rustix::net::listen(server, BACKLOG).map_err(|e| failed("listen")(e.into()))?;
    // Whoever waits for a connection that does not come gives up.
    SockRef::from(server).set_read_timeout(Some(super::PATIENCE)).map_err(failed("listen"))?;
    std::thread::scope(|scope| {
        let (speak, spoken) = std::sync::mpsc::channel::<()>();
        let other_end = scope.spawn(move || -> std::io::Result<()> {
            machine::system::own_descriptors()?;
            let mut all = Vec::with_capacity(count);
            for _ in 0..count {
                let (stream, _) = server.accept()?;
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                all.push(stream);
            }
            // Nobody asks any more if the other end has failed.
            if spoken.recv().is_ok() {
                let mut word = [0; 4];
                all.iter_mut().for_each(|s| drop(s.read_exact(&mut word).and_then(|()| s.write_all(b"pong"))));
            }
            Ok(())
        });
        let one = || -> std::io::Result<TcpStream> {
            let client = TcpStream::connect(server.local_addr()?)?;
            client.set_read_timeout(Some(super::PATIENCE))?;
            SockRef::from(&client).set_tcp_keepalive(keepalive)?;
            Ok(client)
        };
        let mut clients = (0..count).map(|_| one()).collect::<std::io::Result<Vec<_>>>().map_err(failed("connect"))?;
        bench.say(&format!("  {count} more connections, each with a keepalive each second (so_keepalive=1s:1s:)"));
        let began = Instant::now();
        // What is waited for is that nothing happens: silence, three times as long as tracking has patience.
        bench.wait("", || began.elapsed() >= LIVES)?;
        let written: Vec<bool> = clients.iter_mut().map(|c| c.write_all(b"ping").is_ok()).collect();
        let _ = speak.send(());
        let mut word = [0; 4];
        let mut answered = |(c, written): (&mut TcpStream, bool)| written && c.read_exact(&mut word).is_ok();
        let alive = clients.iter_mut().zip(written).map(&mut answered).filter(|alive| *alive).count();
        match other_end.join() {
            Ok(outcome) => outcome.map_err(failed("the other end"))?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok((count, count - alive))
    })
}

fn pair(server: &TcpListener) -> Result<(TcpStream, TcpStream), Stop> {
    let client = TcpStream::connect(server.local_addr().map_err(failed("listen"))?).map_err(failed("connect"))?;
    let (accepted, _) = server.accept().map_err(failed("accept"))?;
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(failed("socket"))?;
    }
    Ok((client, accepted))
}

/// A word there and one back.
fn talk(client: &mut TcpStream, accepted: &mut TcpStream) -> std::io::Result<()> {
    let mut word = [0; 4];
    client.write_all(b"ping")?;
    accepted.read_exact(&mut word)?;
    accepted.write_all(b"pong")?;
    client.read_exact(&mut word)
}
