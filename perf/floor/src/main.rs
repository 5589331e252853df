//! The floor: what one thread on raw epoll needs for a request when the server does nothing else.
//!
//! `floor answer PORT [--defer | --log FILE]` gives a fixed answer with a body of one byte to every request head.
//! `floor proxy PORT BACKEND_PORT` passes requests to a backend over kept connections and the answers back.
//! `floor check tcp|http|kept PORT PEERS INTERVAL_MS` checks so many peers, each once an interval.
//! The first two listen on 127.0.0.1. A yardstick for `side_by_side.py`, not a server: no timeouts, no limits but the kernel's,
//! and just enough HTTP to find where messages end. Never used by the product.

mod answer;
mod check;
mod message;
mod proxy;
mod system;

use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: floor answer PORT [--defer | --log FILE] | floor proxy PORT BACKEND_PORT | \
                     floor check tcp|http|kept PORT PEERS INTERVAL_MS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let port = |text: &str| text.parse::<u16>().ok();
    let outcome = match arguments[..] {
        ["answer", own] => port(own).map(|own| answer::run(own, system::Accept::AtOnce, None)),
        ["answer", own, "--defer"] => port(own).map(|own| answer::run(own, system::Accept::WithData, None)),
        ["answer", own, "--log", file] => port(own).map(|own| {
            std::fs::File::create(file).and_then(|file| answer::run(own, system::Accept::AtOnce, Some(file)))
        }),
        ["proxy", own, backend] => port(own).zip(port(backend)).map(|(own, backend)| proxy::run(own, backend)),
        ["check", kind, own, peers, ms] => check(kind, port(own), peers, ms),
        _ => None,
    };
    match outcome {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn check(kind: &str, port: Option<u16>, peers: &str, ms: &str) -> Option<std::io::Result<()>> {
    let kind = match kind {
        "tcp" => check::Kind::Tcp,
        "http" => check::Kind::Http,
        "kept" => check::Kind::Kept,
        _ => return None,
    };
    let (peers, ms) = (peers.parse().ok().filter(|n| *n > 0)?, ms.parse().ok().filter(|n| *n > 0)?);
    Some(check::run(kind, port?, peers, Duration::from_millis(ms)))
}
