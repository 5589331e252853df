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
    let (mut client, mut accepted) = pair(&server)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(1)).with_interval(Duration::from_secs(1));
    SockRef::from(&client).set_tcp_keepalive(&keepalive).map_err(failed("keepalive"))?;
    bench.say("  a connection with a keepalive each second (so_keepalive=1s:1s:)");
    let began = Instant::now();
    // What is waited for is that nothing happens: silence, three times as long as tracking has patience.
    bench.wait("", || began.elapsed() >= LIVES)?;
    talk(&mut client, &mut accepted).map_err(failed("a connection with keepalives"))?;
    bench.say(&format!("  it lives after {} s of silence", LIVES.as_secs()));
    bench.set("net.ipv4.tcp_keepalive_time", "1")?;
    bench.gone("idle-reset", &[])
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
