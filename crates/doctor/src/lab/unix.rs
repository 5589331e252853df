//! A unix socket against TCP to the same php-fpm, measured in alternation: how much there is in it.

use super::php::{Fpm, php};
use super::{Bench, Outcome, failed};
use crate::statistics::{median, paired};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const PORT: u16 = 9_000;
/// Requests of one measurement, each on a connection of its own.
const REQUESTS: u32 = 200;
/// Pairs of measurements.
const PAIRS: usize = 10;
/// Below this, chance does not explain it.
const P: f64 = 0.01;

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let php = php()?;
    let pool = |listen: &str| {
        format!("listen = {listen}\nlisten.backlog = 4096\nuser = nobody\npm = static\npm.max_children = 2\n")
    };
    let fpm = Fpm::start(bench, &php, |folder| {
        format!("[unix]\n{}[tcp]\n{}", pool(&format!("{folder}/fpm.sock")), pool(&format!("127.0.0.1:{PORT}")))
    })?;
    let script = fpm.folder.join("lab.php");
    std::fs::write(&script, "<?php echo 'ok';").map_err(failed("a script"))?;
    let socket = fpm.folder.join("fpm.sock");
    bench.wait("php-fpm does not listen on TCP", || TcpStream::connect(("127.0.0.1", PORT)).is_ok())?;
    let request = request(&script);
    let unix = || rate(&request, || UnixStream::connect(&socket));
    let tcp = || rate(&request, || TcpStream::connect(("127.0.0.1", PORT)));
    // Both are warm before either counts.
    (unix().and(tcp())).map_err(failed("php-fpm"))?;
    let (mut by_unix, mut by_tcp) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // A B, B A ...: what drifts, drifts for both.
        if pair % 2 == 0 {
            by_unix.push(unix().map_err(failed("unix"))?);
            by_tcp.push(tcp().map_err(failed("TCP"))?);
        } else {
            by_tcp.push(tcp().map_err(failed("TCP"))?);
            by_unix.push(unix().map_err(failed("unix"))?);
        }
    }
    let (a, b, p) = (median(&by_unix), median(&by_tcp), paired(&by_unix, &by_tcp));
    bench.say(&format!(
        "  {PAIRS} pairs of {REQUESTS} requests, a connection for each: {a:.0}/s over the unix socket, {b:.0}/s over TCP"
    ));
    let percent = (a / b - 1.0) * 100.0;
    bench.say(&match p < P {
        true => format!("  the unix socket is {percent:.0} % faster (exact paired permutation test: p = {p:.4})"),
        false => format!("  the unix socket is not faster beyond chance (p = {p:.4})"),
    });
    bench.say("  what differs more: a full queue is EAGAIN at once on a unix socket, and a SYN that comes again after a second with TCP");
    Ok(())
}

/// A request in FastCGI's records (version 1 of its specification): begin, parameters, the end of each.
fn request(script: &Path) -> Vec<u8> {
    let record = |kind: u8, content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
    };
    let script = script.to_string_lossy();
    let mut params = Vec::new();
    for (name, value) in [("SCRIPT_FILENAME", &*script), ("REQUEST_METHOD", "GET"), ("QUERY_STRING", "")] {
        // Names and values are shorter than 128 bytes, or have their length in four.
        let length = |text: &str| match text.len() {
            n @ ..128 => vec![n as u8],
            n => ((n as u32) | 1 << 31).to_be_bytes().to_vec(),
        };
        params.extend([length(name), length(value), name.into(), value.into()].concat());
    }
    [record(1, &[0, 1, 0, 0, 0, 0, 0, 0]), record(4, &params), record(4, b""), record(5, b"")].concat()
}

/// Requests per second.
fn rate<S: Read + Write>(request: &[u8], connect: impl Fn() -> std::io::Result<S>) -> std::io::Result<f64> {
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let mut stream = connect()?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        if !answer.windows(2).any(|w| w == b"ok") {
            return Err(std::io::Error::other("php-fpm does not run the script"));
        }
    }
    Ok(f64::from(REQUESTS) / began.elapsed().max(Duration::from_micros(1)).as_secs_f64())
}
