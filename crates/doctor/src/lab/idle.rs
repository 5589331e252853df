//! A NAT (here: connection tracking on the way) that forgets silent connections: the next packet is reset. Then keepalives below its patience.

use super::{Bench, Outcome, Stop, failed, program};
use socket2::{SockRef, TcpKeepalive};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a connection with keepalives has to live, in times of the NAT's patience.
const LIVES: u32 = 3;

/// What is not known to tracking is reset, as a NAT does with packets for which it has no mapping. A reset is of no known connection
/// either: it is let through, or nobody would ever hear one.
const RULES: &str = "table inet lab { chain in { type filter hook input priority 0; tcp flags rst accept; ct state invalid reject with tcp reset; }; }";

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
    // Whole seconds are what tracking knows.
    let patience = Duration::from_secs(bench.patience.as_secs());
    bench.set("net.netfilter.nf_conntrack_tcp_timeout_established", &patience.as_secs().to_string())?;
    // Packets of connections that are not known do not make them known.
    bench.set("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    let server = TcpListener::bind(("127.0.0.1", 80)).map_err(failed("listen"))?;
    let (mut client, mut accepted) = pair(&server)?;
    talk(&mut client, &mut accepted).map_err(failed("a new connection"))?;
    bench.found("idle-reset", &[])?;
    // The count still has what has expired; the list has not.
    let is_forgotten = || !machine::own::proc_net("nf_conntrack").contains("ESTABLISHED");
    bench.wait_beyond(patience, "the connection is not forgotten", is_forgotten)?;
    match talk(&mut client, &mut accepted) {
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {
            bench.say(&format!("  after {} s of silence: {e}", patience.as_secs()));
        }
        Err(e) => return Err(failed("a forgotten connection is not reset")(e)),
        Ok(()) => return Err(Stop::Failed("a forgotten connection goes on".into())),
    }
    canaries(bench, &server, patience)?;
    let (mut client, mut accepted) = pair(&server)?;
    let below = (patience / 2).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(below).with_interval(below);
    SockRef::from(&client).set_tcp_keepalive(&keepalive).map_err(failed("keepalive"))?;
    let (total, reset) = crowd(bench, &server, &keepalive, patience * LIVES)?;
    talk(&mut client, &mut accepted).map_err(failed("a connection with keepalives"))?;
    bench.say(&format!("  after {} s of silence {reset} of {total} are reset", (patience * LIVES).as_secs()));
    if reset > 0 {
        return Err(Stop::Failed("keepalives do not help".into()));
    }
    bench.set("net.ipv4.tcp_keepalive_time", &below.as_secs().to_string())?;
    bench.gone("idle-reset", &[])
}

/// How far apart canaries speak: by an eighth of the patience that is looked for, within these bounds.
const APART: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(3));
/// The timeout that is found may be wrong by this much beyond what canaries are apart: tracking looks at its list when it likes.
const EXACT: Duration = Duration::from_millis(1_000);

/// Finds how long silence may last: connections that are all made now, and speak one after the other. The first that is reset had been
/// silent for too long.
fn canaries(bench: &Bench, server: &TcpListener, real: Duration) -> Outcome {
    let apart = (real / 8).clamp(APART.0, APART.1);
    let count = (2 * real).as_millis().div_ceil(apart.as_millis()) as u32;
    let mut all = (1..=count).map(|n| Ok((apart * n, pair(server)?))).collect::<Result<Vec<_>, Stop>>()?;
    for (_, (client, accepted)) in &mut all {
        talk(client, accepted).map_err(failed("a new canary"))?;
    }
    let (began, mut lived) = (Instant::now(), Duration::ZERO);
    for (silence, (mut client, mut accepted)) in all {
        // The time itself is what is waited for.
        std::thread::sleep(silence.saturating_sub(began.elapsed()));
        if talk(&mut client, &mut accepted).is_err() {
            bench.say(&format!("  canaries: one that was silent for {lived:?} lives, one of {silence:?} is reset"));
            return match silence.abs_diff(real) <= apart + EXACT {
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

/// How many connections were idle for so long, and how many of them were reset. Their two ends are in descriptor tables of their own, so that the limit
/// holds for each.
fn crowd(
    bench: &Bench,
    server: &TcpListener,
    keepalive: &TcpKeepalive,
    lives: Duration,
) -> Result<(usize, usize), Stop> {
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
        bench.say(&format!(
            "  {count} more connections, each with keepalives: listen ... so_keepalive=N:N:, N half of the NAT's time"
        ));
        let began = Instant::now();
        // What is waited for is that nothing happens: silence, three times as long as tracking has patience.
        bench.wait_beyond(lives, "", || began.elapsed() >= lives)?;
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

/// A word there and one back. Where the word does not arrive, it is the client that was told why: its reset is the error, and not the
/// other end's silence.
fn talk(client: &mut TcpStream, accepted: &mut TcpStream) -> std::io::Result<()> {
    let mut word = [0; 4];
    client.write_all(b"ping")?;
    accepted.read_exact(&mut word).map_err(|silence| client.take_error().ok().flatten().unwrap_or(silence))?;
    accepted.write_all(b"pong")?;
    client.read_exact(&mut word)
}
