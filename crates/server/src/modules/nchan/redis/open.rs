//! Connects to a Redis and asks what it is. From: `link`, `cluster` and `session`, on the service thread.

use super::given::{Given, Place, Target};
use rustls::pki_types::ServerName;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use wire::resp::{self, Parsed, Value};

/// A connection of whichever kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Both directions of a connection.
pub(super) type Halves = (ReadHalf<Box<dyn Stream>>, WriteHalf<Box<dyn Stream>>);

/// Steps before the scripts: HELLO, SELECT, INFO, ROLE.
const STEPS: usize = 4;

/// Of bytes that are no reply.
pub(super) const NO_REDIS: &str = "it does not speak Redis' protocol";

/// What is known of a Redis when it is connected to.
pub(super) struct Opened {
    pub(super) halves: Halves,
    /// What `EVALSHA` calls the scripts that were left there, in their order.
    pub(super) scripts: Vec<String>,
    /// It is a node of a Redis Cluster.
    pub(super) is_cluster: bool,
    /// What it calls itself (`run_id`).
    pub(super) id: String,
    /// How long all of that took.
    pub(super) took: Duration,
}

/// Connects, asks whether this is a Redis that may be written to, and leaves scripts there.
///
/// # Errors
/// Why it is of no use: it does not answer, wants another password, is a replica.
pub(super) async fn open(target: Target<'_>, place: &Place, scripts: &[&str]) -> Result<Opened, String> {
    let (given, began) = (target.given, Instant::now());
    let (mut reader, mut writer) = connect(target, place).await?;
    let mut out = Vec::new();
    greet(given, &mut out);
    resp::command(&[b"SELECT", given.database.to_string().as_bytes()], &mut out);
    resp::command(&[b"INFO"], &mut out);
    resp::command(&[b"ROLE"], &mut out);
    scripts.iter().for_each(|script| resp::command(&[b"SCRIPT", b"LOAD", script.as_bytes()], &mut out));
    writer.write_all(&out).await.map_err(shown)?;
    let mut input = Vec::new();
    let (mut sums, mut is_cluster, mut id) = (Vec::new(), false, String::new());
    for step in 0..STEPS + scripts.len() {
        let reply = loop {
            match resp::parse(&input) {
                Ok(Parsed::Whole(value, size)) => {
                    let read = judge(step, &value, is_cluster);
                    drop(value);
                    input.drain(..size);
                    break read;
                }
                Ok(Parsed::Needs(_)) => {}
                Err(resp::NoReply) => return Err(NO_REDIS.to_owned()),
            }
            if reader.read_buf(&mut input).await.map_err(shown)? == 0 {
                return Err("it has closed the connection".to_owned());
            }
        };
        match reply? {
            Step::Nothing => {}
            Step::Itself(name, is_one) => (id, is_cluster) = (name, is_one),
            Step::Script(sum) => sums.push(sum),
        }
    }
    Ok(Opened { halves: (reader, writer), scripts: sums, is_cluster, id, took: began.elapsed() })
}

/// Asks one thing of a Redis that was not connected to, and gives what `read` makes of the answer.
///
/// # Errors
/// It does not answer, or with an error, or `read` can make nothing of it.
pub(super) async fn ask<T>(
    target: Target<'_>,
    place: &Place,
    words: &[&[u8]],
    read: impl Fn(&Value<'_>) -> Option<T>,
) -> Result<T, String> {
    let (mut reader, mut writer) = connect(target, place).await?;
    let mut out = Vec::new();
    greet(target.given, &mut out);
    resp::command(words, &mut out);
    writer.write_all(&out).await.map_err(shown)?;
    let (mut input, mut is_greeted) = (Vec::new(), false);
    loop {
        match resp::parse(&input) {
            Ok(Parsed::Whole(Value::Error(text), _)) => {
                return Err(format!("it says \"{}\"", String::from_utf8_lossy(text)));
            }
            Ok(Parsed::Whole(value, _)) if is_greeted => {
                return read(&value).ok_or_else(|| "it answers something else than was asked".to_owned());
            }
            Ok(Parsed::Whole(value, size)) => {
                is_greeted = true;
                drop(value);
                input.drain(..size);
                continue;
            }
            Ok(Parsed::Needs(_)) => {}
            Err(resp::NoReply) => return Err(NO_REDIS.to_owned()),
        }
        if reader.read_buf(&mut input).await.map_err(shown)? == 0 {
            return Err("it has closed the connection".to_owned());
        }
    }
}

async fn connect(target: Target<'_>, place: &Place) -> Result<Halves, String> {
    let Target { given, tls } = target;
    let stream: Box<dyn Stream> = match place {
        Place::Path(path) => Box::new(UnixStream::connect(&**path).await.map_err(shown)?),
        Place::Host(host, port) => {
            let stream = TcpStream::connect((&**host, *port)).await.map_err(shown)?;
            let _ = stream.set_nodelay(true);
            match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let name = match given.server_name.is_empty() {
                        true => host.to_string(),
                        false => String::from_utf8_lossy(&given.server_name).into_owned(),
                    };
                    let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
                    let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
                    Box::new(stream.map_err(|e| format!("SSL handshake failed ({e})"))?)
                }
            }
        }
    };
    Ok(tokio::io::split(stream))
}

/// Speaks RESP3, and says who asks.
fn greet(given: &Given, out: &mut Vec<u8>) {
    let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if !given.password.is_empty() {
        let user: &[u8] = if given.username.is_empty() { b"default" } else { &given.username };
        hello.extend([&b"AUTH"[..], user, &given.password]);
    }
    hello.extend([&b"SETNAME"[..], b"ironweir"]);
    resp::command(&hello, out);
}

pub(super) fn shown(e: io::Error) -> String {
    crate::log::os_error(&e).to_string()
}

/// What an answer tells.
enum Step {
    Nothing,
    /// What it calls itself, and whether it is a node of a cluster.
    Itself(String, bool),
    Script(String),
}

/// What a Redis says of itself, answer by answer.
fn judge(step: usize, value: &Value<'_>, is_cluster: bool) -> Result<Step, String> {
    if let Value::Error(text) = value {
        return Err(format!("it says \"{}\"", String::from_utf8_lossy(text)));
    }
    match step {
        2 => {
            let text = value.text().unwrap_or_default();
            let is_cluster = memchr::memmem::find(text, b"cluster_enabled:1").is_some();
            let id = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"run_id:")).unwrap_or_default();
            Ok(Step::Itself(String::from_utf8_lossy(id.trim_ascii()).into_owned(), is_cluster))
        }
        3 => match value.list().and_then(|list| list.first()).and_then(Value::text) {
            // Any node of a cluster knows who has what.
            Some(b"master") => Ok(Step::Nothing),
            _ if is_cluster => Ok(Step::Nothing),
            role => Err(format!("it is a {}, not a master", String::from_utf8_lossy(role.unwrap_or(b"stranger")))),
        },
        STEPS.. => {
            let sum = value.text().ok_or("it has no scripts")?;
            Ok(Step::Script(String::from_utf8_lossy(sum).into_owned()))
        }
        _ => Ok(Step::Nothing),
    }
}
