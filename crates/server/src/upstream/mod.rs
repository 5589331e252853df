//! Upstreams. The way of a request through here: `group` (who there is) -> `choose` (whom to ask) -> `connect` and `pool`
//! (a connection, perhaps made `secure`) -> `exchange` (one try at a `job`: `send`, `head`) -> `relay` (the answer on its way
//! to the client), around it `retry` (the next peer). What is sent and how the answer is read belongs to the protocol's module
//! (`modules::proxy`).

pub mod availability;
pub mod cached;
pub mod cgi;
pub mod choose;
pub mod conf;
pub mod connect;
pub mod counts;
pub mod directives;
pub mod exchange;
pub mod failure;
pub mod fastcgi;
pub mod framing;
pub mod group;
mod head;
pub mod http2;
pub mod http3;
pub mod job;
pub mod live;
pub mod memcached;
pub mod names;
pub mod pass_on;
pub mod peer;
pub mod pool;
pub mod ports;
pub mod queue;
pub mod relay;
pub mod request_body;
pub mod retry;
pub mod rewrite;
pub mod secure;
mod send;
pub mod servers;
pub mod settings;
pub mod sharing;
pub mod shed;
mod spool;
pub mod sticky;
pub mod store;
pub mod streams;
pub mod tries;
pub mod tunnel;
mod upload;
mod wait;

use crate::request::{Request, Text};
use crate::snapshot::ThreadSnapshot;
use peer::Peer;
use settings::UpstreamSettings;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use wire::http1::known::KnownHeader;
use wire::http1::response::ResponseHead;

/// One try at a peer, as `$upstream_*` tell it.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// The peer; none when there was none to ask, or for the gap that an internal redirect leaves.
    pub peer: Option<Arc<Peer>>,
    /// The group's name, shown when there was no peer.
    pub group: Option<Arc<str>>,
    /// The answer's status, or the one that stands for its absence.
    pub status: u16,
    /// Until the connection stood, ms.
    pub connect_ms: Option<u64>,
    /// Until the head was read, ms.
    pub header_ms: Option<u64>,
    /// Until the end, ms.
    pub response_ms: Option<u64>,
    /// Body bytes read.
    pub body_bytes: u64,
    /// All bytes read.
    pub received: u64,
    /// All bytes sent.
    pub sent: u64,
    /// Stands between the tries of two locations.
    pub gap: bool,
}

/// Tries at upstreams for one request.
#[derive(Debug, Default)]
pub struct Attempts {
    /// In order.
    pub all: Vec<Attempt>,
    /// `http://` and the uri of the current try, for the error log.
    pub scheme: &'static str,
    /// See `scheme`.
    pub uri: Option<Text>,
    /// What heads of answers begin with.
    pub head_kind: cgi::Kind,
    /// The last answer's head; its spans are offsets into the arena from `head_base` on.
    pub head: ResponseHead,
    /// See `head`.
    pub head_base: u32,
    /// Bytes of the last answer's head in the arena.
    pub head_len: u32,
    /// Why there is no answer: bits of [`settings::next`].
    pub failed: u32,
    /// A head that came to nothing has forbidden to keep an answer.
    pub forbids_caching: bool,
    /// What the cache said.
    pub cache: Option<crate::cache::Status>,
    /// Which of the configuration's caches was asked.
    pub cache_number: Option<usize>,
    /// The last answer's trailers, in the arena.
    pub trailers: Vec<(Text, Text)>,
    /// For connecting, sending and reading, where a program says otherwise than the configuration.
    pub timeouts: [Option<Duration>; 3],
}

impl Attempts {
    /// Empties it, keeping its buffers. Tries are counted when they are forgotten: so each is, once, whoever made them.
    pub fn clear(&mut self) {
        self.count();
        self.all.clear();
        self.trailers.clear();
        self.head.headers.clear();
        self.head.present = 0;
        self.uri = None;
        self.failed = 0;
        self.forbids_caching = false;
        self.cache = None;
        self.cache_number = None;
        self.timeouts = [None; 3];
    }

    /// `*_connect_timeout`, or what a program said.
    pub fn connect_timeout(&self, conf: &UpstreamSettings) -> Duration {
        self.timeouts[0].unwrap_or(*conf.connect_timeout)
    }

    /// `*_send_timeout`, or what a program said.
    pub fn send_timeout(&self, conf: &UpstreamSettings) -> Duration {
        self.timeouts[1].unwrap_or(*conf.send_timeout)
    }

    /// `*_read_timeout`, or what a program said.
    pub fn read_timeout(&self, conf: &UpstreamSettings) -> Duration {
        self.timeouts[2].unwrap_or(*conf.read_timeout)
    }

    fn count(&self) {
        for attempt in &self.all {
            if let Some(peer) = &attempt.peer {
                peer.state.shown.count(attempt);
            }
        }
    }

    /// A piece of the last answer's head.
    pub fn text(&self, span: wire::span::Span) -> Text {
        wire::span::Span { start: span.start + self.head_base, end: span.end + self.head_base }.into()
    }

    /// The value of a header of the last answer, the first of its name.
    pub fn header(&self, known: KnownHeader) -> Option<Text> {
        self.head.header(known).map(|line| self.text(line.value))
    }

    /// The try under way.
    pub fn current(&mut self) -> &mut Attempt {
        self.all.last_mut().expect("a try is noted before anything happens in it")
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        self.count();
    }
}

/// Which peer was asked last, as the error log shows it: `http://127.0.0.1:8080/uri`.
pub fn current_url(r: &Request) -> Option<String> {
    let peer = r.attempts.all.last()?;
    let name = match (&peer.peer, &peer.group) {
        (Some(p), _) => &*p.name,
        (None, Some(g)) => g,
        (None, None) => return None,
    };
    let separator = if name.starts_with("unix:") { ":" } else { "" };
    let uri = r.attempts.uri.map_or(&b""[..], |u| r.get(u));
    Some(format!("{}{name}{separator}{}", r.attempts.scheme, String::from_utf8_lossy(uri)))
}

/// An answer has been read as far as anybody wanted it.
pub fn ended_well(r: &mut Request, group: &group::Group, chosen: &choose::SelectedPeer) {
    choose::succeeded(chosen, r.attempts.current());
    if let Some(sticky) = &group.sticky {
        sticky.ended(r, &chosen.peer.session_id());
    }
}

/// What the kernel knows about the client's end, for the error log: ` (104: Connection reset by peer)` or nothing.
pub fn client_error(r: &Request) -> String {
    let Some(http) = r.downstream.http1() else { return String::new() };
    match rustix::net::sockopt::socket_error(&http.incoming.socket) {
        Ok(Err(e)) => format!(" ({})", crate::log::os_error(&e.into())),
        Ok(Ok(())) | Err(_) => String::new(),
    }
}

/// `tcp_nodelay`: what comes from the peer in small pieces goes on to the client at once.
fn client_nodelay(r: &mut Request) {
    if *r.conf().core.tcp_nodelay {
        r.downstream.set_nodelay();
    }
}

/// A thread takes a new snapshot: idle connections of groups that are gone are closed.
pub fn adopt(snapshot: &Rc<ThreadSnapshot>) {
    pool::retain(snapshot);
    sharing::retain(snapshot);
}
