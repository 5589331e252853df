//! The demo's two backends: small servers of their own, so that what they do is not counted as the balancer's, with knobs for what goes
//! wrong in the field: latency, jitter, a capacity, errors. A thread for each connection, which is plenty for a demo.
//!
//! `POST /knobs?backend=two&latency=200` turns a knob for all requests; `/backend?latency=200` for that one.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Their names, which are those of their sockets.
pub(crate) const NAMES: [&str; 2] = ["one", "two"];
/// Who turns the knobs is answered here.
pub(crate) const CONTROL: &str = "control";
/// The knobs, and the most that each may be.
const KNOBS: [(&str, u64); 4] = [("latency", 60_000), ("jitter", 60_000), ("capacity", 1_000_000), ("errors", 100)];
const LATENCY: usize = 0;
const JITTER: usize = 1;
const CAPACITY: usize = 2;
const ERRORS: usize = 3;
/// A head is no longer: what the balancer passes on is far below.
const MAX_HEAD: usize = 64 * 1024;
/// Connections at once; more are closed. The balancer opens one for each request under way.
const MAX_CONNECTIONS: usize = 4096;
/// A thread needs little room.
const STACK: usize = 64 * 1024;
/// So much of a second's capacity may come at once.
const BURST: f64 = 0.05;

const HELP: &str = "latency and jitter in ms, capacity in requests a second (0: any), errors in percent.\n\
                    Turn one: curl -X POST 'http://HOST/knobs?backend=two&latency=200'\n";

/// One backend's knobs, in the order of [`KNOBS`].
#[derive(Default)]
struct Backend {
    knobs: [AtomicU64; KNOBS.len()],
    /// When tokens were added the last time, and how many there are.
    bucket: Mutex<Option<(Instant, f64)>>,
    /// For chance: each request has another number.
    asked: AtomicU64,
}

/// What is done with one request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Asked([Option<u64>; KNOBS.len()]);

/// Starts them; their sockets are in `directory`.
pub(crate) fn start(directory: &Path) -> std::io::Result<()> {
    let backends: Arc<[Backend; NAMES.len()]> = Arc::default();
    let open = Arc::new(AtomicUsize::new(0));
    for (number, name) in NAMES.into_iter().chain([CONTROL]).enumerate() {
        let listener = UnixListener::bind(directory.join(format!("{name}.sock")))?;
        let (backends, open) = (backends.clone(), open.clone());
        std::thread::Builder::new().name(format!("backend {name}")).spawn(move || {
            for stream in listener.incoming().flatten() {
                if open.fetch_add(1, Relaxed) >= MAX_CONNECTIONS {
                    open.fetch_sub(1, Relaxed);
                    continue;
                }
                let (backends, open) = (backends.clone(), open.clone());
                let serve = move || {
                    let _ = serve(stream, number, &backends[..]);
                    open.fetch_sub(1, Relaxed);
                };
                // Without a thread the connection is closed, and the balancer asks elsewhere.
                let _ = std::thread::Builder::new().stack_size(STACK).spawn(serve);
            }
        })?;
    }
    Ok(())
}

fn serve(mut stream: UnixStream, number: usize, backends: &[Backend]) -> std::io::Result<()> {
    let (mut input, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let end = loop {
            if let Some(at) = input.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            let count = stream.read(&mut piece)?;
            if count == 0 || input.len() > MAX_HEAD {
                return Ok(());
            }
            input.extend_from_slice(&piece[..count]);
        };
        let head = String::from_utf8_lossy(&input[..end]).into_owned();
        input.drain(..end);
        let length =
            head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut body: usize = length.unwrap_or(0);
        while body > 0 {
            if input.is_empty() {
                let count = stream.read(&mut piece)?;
                if count == 0 {
                    return Ok(());
                }
                input.extend_from_slice(&piece[..count]);
            }
            let n = body.min(input.len());
            input.drain(..n);
            body -= n;
        }
        let target = head.split(' ').nth(1).unwrap_or_default();
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let (status, text) = match backends.get(number) {
            Some(backend) => backend.answer(NAMES[number], query),
            None => control(backends, query),
        };
        let answer =
            format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes())?;
    }
}

impl Backend {
    fn answer(&self, name: &str, query: &str) -> (&'static str, String) {
        let asked = match Asked::read(query) {
            Ok(asked) => asked,
            Err(text) => return ("400 Bad Request", text),
        };
        let knob = |at: usize| asked.0[at].unwrap_or_else(|| self.knobs[at].load(Relaxed));
        if !self.has_room(knob(CAPACITY)) {
            return ("503 Service Unavailable", format!("backend {name} has no room\n"));
        }
        let wait = knob(LATENCY) + self.chance(knob(JITTER) + 1);
        if wait > 0 {
            std::thread::sleep(Duration::from_millis(wait));
        }
        if self.chance(100) < knob(ERRORS) {
            return ("500 Internal Server Error", format!("backend {name} failed\n"));
        }
        ("200 OK", format!("backend {name}\n"))
    }

    /// A token bucket of so many requests a second.
    fn has_room(&self, capacity: u64) -> bool {
        if capacity == 0 {
            return true;
        }
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, most) = (Instant::now(), (capacity as f64 * BURST).max(1.0));
        let (since, tokens) = bucket.unwrap_or((now, most));
        let tokens = (tokens + now.duration_since(since).as_secs_f64() * capacity as f64).min(most);
        let has = tokens >= 1.0;
        *bucket = Some((now, if has { tokens - 1.0 } else { tokens }));
        has
    }

    /// A number below `end`, evenly (splitmix64).
    fn chance(&self, end: u64) -> u64 {
        let mut x = self.asked.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end.max(1)
    }
}

impl Asked {
    fn read(query: &str) -> Result<Asked, String> {
        let mut asked = Asked::default();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(at) = KNOBS.iter().position(|(knob, _)| *knob == name) else { continue };
            let most = KNOBS[at].1;
            let number = value.parse().ok().filter(|n| *n <= most);
            asked.0[at] = Some(number.ok_or_else(|| format!("{name} is a number up to {most}\n"))?);
        }
        Ok(asked)
    }
}

/// Turns knobs, and says how they stand.
fn control(backends: &[Backend], query: &str) -> (&'static str, String) {
    let asked = match Asked::read(query) {
        Ok(asked) => asked,
        Err(text) => return ("400 Bad Request", text),
    };
    let wanted = query.split('&').find_map(|pair| pair.strip_prefix("backend="));
    if let Some(name) = wanted.filter(|name| !NAMES.contains(name)) {
        return (
            "400 Bad Request",
            format!("there is no backend \"{}\": {}\n", name.escape_default(), NAMES.join(", ")),
        );
    }
    let mut text = String::new();
    for (name, backend) in NAMES.into_iter().zip(backends) {
        text += &format!("backend {name}:");
        for (at, (knob, _)) in KNOBS.iter().enumerate() {
            if let Some(value) = asked.0[at].filter(|_| wanted.is_none_or(|w| w == name)) {
                backend.knobs[at].store(value, Relaxed);
            }
            text += &format!(" {knob}={}", backend.knobs[at].load(Relaxed));
        }
        text.push('\n');
    }
    ("200 OK", text + HELP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_turned_and_asked_for() {
        let backends: [Backend; 2] = Default::default();
        assert_eq!(backends[0].answer("one", ""), ("200 OK", "backend one\n".to_owned()));
        assert_eq!(backends[0].answer("one", "errors=100").0, "500 Internal Server Error");
        assert_eq!(backends[0].answer("one", "errors=101").0, "400 Bad Request");
        assert_eq!(control(&backends, "backend=three&errors=1").0, "400 Bad Request");
        let (status, text) = control(&backends, "backend=two&errors=100&latency=1");
        assert!(status == "200 OK" && text.contains("backend one: latency=0 jitter=0 capacity=0 errors=0\n"), "{text}");
        assert!(text.contains("backend two: latency=1 jitter=0 capacity=0 errors=100\n"), "{text}");
        assert_eq!(backends[1].answer("two", "").0, "500 Internal Server Error");
        control(&backends, "errors=0&capacity=20");
        let answers: Vec<_> = (0..10).map(|_| backends[1].answer("two", "").0).collect();
        assert!(answers[0] == "200 OK" && answers.contains(&"503 Service Unavailable"), "{answers:?}");
    }

    #[test]
    fn chance_is_even() {
        let backend = Backend::default();
        let failed = (0..10_000).filter(|_| backend.chance(100) < 20).count();
        assert!((1_800..2_200).contains(&failed), "{failed}");
    }
}
