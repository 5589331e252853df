//! What a run will do, decided before it. From: options. To: the clients, which only read it.

pub mod list;
pub mod preset;
pub mod request;
pub mod tls;
pub mod url;
pub(crate) mod verifier;

use crate::options::{Closing, Options};
use crate::schedule::Schedule;
use crate::script::Script;
use request::{Common, Request, Wanted, build};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tls::Tls;
use url::Url;

/// wrk's defaults.
const DEFAULT_THREADS: usize = 2;
const DEFAULT_CONNECTIONS: usize = 10;
const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads: more than any machine's CPUs.
const MAX_THREADS: usize = 1024;
/// Every machine needs a connection.
pub(crate) const TOO_FEW: &str = "more agents than connections";
/// The longest run: histograms and schedules hold more, patience does not.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where the target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

/// How requests are paced.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// A connection sends when it has its answer.
    Closed,
    /// A request is sent when it is due.
    Open(Schedule),
}

/// What is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1
    #[default]
    One,
    /// HTTP/2
    Two,
    /// HTTP/3
    Three,
}

impl Http {
    const ALL: [Http; 3] = [Http::One, Http::Two, Http::Three];

    fn read(text: Option<&str>) -> Result<Http, String> {
        let Some(text) = text else { return Ok(Http::One) };
        let found = Http::ALL.into_iter().find(|http| http.name() == text);
        found.ok_or_else(|| format!("--http {text}: 1.1, 2 or 3"))
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Http::One => "1.1",
            Http::Two => "2",
            Http::Three => "3",
        }
    }

    /// Its name in TLS (ALPN).
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Http::One => b"http/1.1",
            Http::Two => b"h2",
            Http::Three => wire::http3::ALPN,
        }
    }

    /// A connection carries several requests at a time.
    pub(crate) fn has_streams(self) -> bool {
        self != Http::One
    }
}

/// Which part of a load this is: one of several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0.
    pub index: usize,
    /// Of how many.
    pub of: usize,
}

impl Part {
    /// All of it: one machine.
    pub const WHOLE: Part = Part { index: 0, of: 1 };

    /// Its part of a number; the parts of all add up to it.
    pub fn share(self, n: u64) -> u64 {
        let (index, of) = (self.index as u64, self.of as u64);
        n / of + u64::from(index < n % of)
    }
}

/// Everything about a run; the same for all threads.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target as it was written.
    pub url: Url,
    /// Where it is.
    pub address: Address,
    /// The names that per-URL numbers stand under.
    pub urls: Vec<String>,
    /// What is sent, in turn.
    pub requests: Vec<Request>,
    /// What is spoken.
    pub http: Http,
    /// Requests that a connection carries at a time: 1 with HTTP/1.1.
    pub streams: usize,
    /// How many threads share the connections.
    pub threads: usize,
    /// Connections over all threads.
    pub connections: usize,
    /// How requests are paced.
    pub load: Load,
    /// The planned end; `None`: after `total` requests.
    pub duration: Option<Duration>,
    /// The number of requests.
    pub total: Option<u64>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Who ends each connection after one request; `None`: they are kept.
    pub close: Option<Closing>,
    /// Local addresses, in turn.
    pub sources: Vec<IpAddr>,
    /// The version of the PROXY header sent first.
    pub proxy_header: Option<u8>,
    /// The response header that names the backend.
    pub backend_header: Option<String>,
    /// The machine's part of the schedule.
    pub part: Part,
    /// The distribution of latencies is printed.
    pub latency: bool,
    /// `-m`, `-H` and `-b`, for scripts.
    pub method: String,
    /// See `method`.
    pub headers: Vec<(String, String)>,
    /// See `method`.
    pub body: Option<Vec<u8>>,
    /// A script's states; `None`: no script.
    pub script: Option<Arc<Script>>,
    /// How TLS is spoken; `None`: not at all.
    pub tls: Option<Tls>,
    /// What the user should know about how the plan was made.
    pub notes: Vec<String>,
}

impl Plan {
    /// Decides what options mean together.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn new(options: &Options) -> Result<Plan, String> {
        let mut notes = Vec::new();
        let mut options = options.clone();
        let http = Http::read(options.http.as_deref())?;
        preset::apply(&mut options, http, &mut notes)?;
        if let Some(file) = &options.body_file {
            options.body = Some(options.files.read(file)?);
        }
        refuse_contradictions(&options, http)?;
        let (url, wanted) = requests(&options, &mut notes)?;
        if http == Http::Three && !url.scheme.is_encrypted() {
            return Err("--http 3 needs an https:// URL: QUIC is always encrypted".to_owned());
        }
        // HTTP/2 and HTTP/3 have no word to ask the target to close.
        let asked = if http.has_streams() { Closing::Client } else { Closing::Server };
        let close = options.close.or(options.no_keepalive.then_some(asked));
        let common = Common {
            method: options.method.clone(),
            headers: options.headers.clone(),
            body: options.body.clone(),
            http,
            asks_to_close: close == Some(Closing::Server),
        };
        let (urls, numbers) = names(&wanted);
        let built = wanted.iter().zip(numbers).map(|(w, n)| build(&url, w, &common, n)).collect();
        let most = options.connections.unwrap_or(usize::MAX).max(1);
        let threads = options.threads.unwrap_or(DEFAULT_THREADS.min(cpus()).min(most));
        let connections = options.connections.unwrap_or(DEFAULT_CONNECTIONS.max(threads));
        if connections < threads || threads > MAX_THREADS {
            return Err(format!("{threads} threads need at least as many connections, and there may be {MAX_THREADS}"));
        }
        let (load, duration) = load(&options)?;
        let address = match &options.unix {
            Some(path) => Address::Unix(path.clone()),
            None => Address::Tcp(resolve(&url)?),
        };
        let mut plan = Plan {
            address,
            urls,
            requests: built,
            http,
            streams: options.streams.unwrap_or(1),
            threads,
            connections,
            load,
            duration,
            total: options.requests,
            timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
            close,
            sources: options.sources.iter().flat_map(|s| s.addresses()).collect(),
            proxy_header: options.proxy_protocol,
            backend_header: options.backend_header.clone(),
            part: Part::WHOLE,
            latency: options.latency,
            method: options.method.clone().unwrap_or_else(|| "GET".to_owned()),
            headers: options.headers.clone(),
            body: options.body.clone(),
            script: None,
            tls: Tls::new(&url, &options, http)?,
            notes,
            url,
        };
        if let Some(file) = &options.script {
            plan.load_script(file, &options)?;
        }
        Ok(plan)
    }

    fn load_script(&mut self, file: &Path, options: &Options) -> Result<(), String> {
        let text = options.files.read(file)?;
        let script = Script::load(file, &text, &options.script_arguments, self)?;
        if let Some(bytes) = script.fixed_request() {
            self.requests = vec![Request::of_http1(bytes, &self.url, self.http, 0)];
        }
        self.script = Some(Arc::new(script));
        Ok(())
    }

    /// What one of several machines does of it: its part of connections, of `-n`, and every n-th request of the schedule.
    ///
    /// # Errors
    /// If there are too few connections for all.
    pub fn part(mut self, part: Part) -> Result<Plan, String> {
        self.connections = part.share(self.connections as u64) as usize;
        self.threads = self.threads.min(self.connections);
        self.total = self.total.map(|n| part.share(n));
        self.part = part;
        if self.threads == 0 { Err(TOO_FEW.to_owned()) } else { Ok(self) }
    }

    /// The connections of one thread.
    pub fn share(&self, thread: usize) -> usize {
        self.connections / self.threads + usize::from(thread < self.connections % self.threads)
    }

    /// The requests of one thread, with `-n`.
    pub fn total_of(&self, thread: usize) -> Option<u64> {
        let (thread, threads) = (thread as u64, self.threads as u64);
        self.total.map(|n| n / threads + u64::from(thread < n % threads))
    }
}

fn refuse_contradictions(o: &Options, http: Http) -> Result<(), String> {
    let closes = o.no_keepalive || o.close.is_some();
    let (has_streams, is_quic) = (http.has_streams(), http == Http::Three);
    let rules = [
        (o.rate.is_some() && !o.stages.is_empty(), "--rate and --stages both say the rate"),
        (!has_streams && o.streams.is_some_and(|s| s > 1), "--streams goes with --http 2 or 3"),
        (has_streams && o.hold.is_some(), "--hold speaks HTTP/1.1, WebSocket or MQTT: not with --http 2 or 3"),
        (is_quic && o.close == Some(Closing::Reset), "--close rst is TCP's: with --http 3, client"),
        (
            has_streams && o.close == Some(Closing::Server),
            "--close server asks as HTTP/1.1 does: with --http 2, client or rst; with --http 3, client",
        ),
        (closes && o.streams.is_some_and(|s| s > 1), "a connection that ends after one request has one stream"),
        (is_quic && o.unix.is_some(), "--unix is a stream: QUIC needs UDP"),
        (is_quic && o.proxy_protocol.is_some(), "--proxy-protocol stands before a stream: QUIC has no place for it"),
        (
            o.proxy_protocol.is_some() && o.unix.is_some(),
            "--proxy-protocol names addresses, which a unix socket has not",
        ),
    ];
    rules.iter().find(|rule| rule.0).map_or(Ok(()), |rule| Err(rule.1.to_owned()))
}

fn requests(o: &Options, notes: &mut Vec<String>) -> Result<(Url, Vec<Wanted>), String> {
    let url = o.url.as_deref().map(url::parse).transpose()?;
    if let Some(file) = &o.url_file {
        return list::url_file(&o.files, file, url.as_ref());
    }
    if let Some(file) = &o.har {
        let (url, wanted, elsewhere) = list::har(&o.files, file, url.as_ref())?;
        notes.push(format!("{}: {} requests to {}", file.display(), wanted.len(), url.authority));
        if elsewhere > 0 {
            notes.push(format!("{}: {elsewhere} requests went elsewhere and are left out", file.display()));
        }
        return Ok((url, wanted));
    }
    let url = url.ok_or("no URL; examples: ironweir stress --help")?;
    let wanted = vec![Wanted { path: url.path.clone(), ..Wanted::default() }];
    Ok((url, wanted))
}

/// The names for per-URL numbers, and which of them each request has.
fn names(wanted: &[Wanted]) -> (Vec<String>, Vec<u32>) {
    let mut known = std::collections::HashMap::new();
    let mut names = Vec::new();
    let numbers = wanted.iter().map(|w| {
        let name = w.method.as_ref().map_or_else(|| w.path.clone(), |m| format!("{m} {}", w.path));
        *known.entry(name.clone()).or_insert_with(|| {
            names.push(name);
            (names.len() - 1) as u32
        })
    });
    let numbers = numbers.collect();
    (names, numbers)
}

fn load(o: &Options) -> Result<(Load, Option<Duration>), String> {
    if !o.stages.is_empty() {
        let schedule = Schedule::stages(&o.stages)?;
        let end = Duration::from_nanos(schedule.end_ns());
        return Ok((Load::Open(schedule), Some(end)));
    }
    let duration = match (o.duration, o.requests) {
        (None, Some(_)) => None,
        (given, _) => Some(given.unwrap_or(DEFAULT_DURATION)),
    };
    if duration.is_some_and(|d| d.is_zero() || d > MAX_DURATION) {
        return Err("a run lasts from 1us to a week".to_owned());
    }
    let load = match o.rate {
        Some(rate) => Load::Open(Schedule::constant(rate, duration.unwrap_or(MAX_DURATION))),
        None => Load::Closed,
    };
    Ok((load, duration))
}

fn resolve(url: &Url) -> Result<SocketAddr, String> {
    let mut found = (url.host.as_str(), url.port).to_socket_addrs().map_err(|e| format!("{}: {e}", url.host))?;
    found.next().ok_or_else(|| format!("{}: no address", url.host))
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
