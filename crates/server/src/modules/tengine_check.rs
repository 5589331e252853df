//! Tengine's health checks, for those who come from there (`ngx_http_upstream_check_module`): `check` in an `upstream` block
//! and its companions. They become the same checks as `health_check`.

use super::health_check::{count, duration, port};
use super::upstream_block::{Block, current};
use crate::config::setters::duplicate;
use crate::config::{Build, Directive, Scope, http, upstream, upstream_of_both};
use crate::health::check::{Ask, Check, HttpAsk, Keep, Rhythm, Talk};
use crate::health::fastcgi;
use crate::health::hello::client_hello;
use crate::health::matching::{Expect, Match, Statuses};
use crate::upstream::group::Group;
use conf::{Node, Problem};
use pcre2::bytes::Regex;
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    upstream_of_both("check", check),
    upstream("check_http_send", |s, n| {
        let text = n.args[0].text.as_slice().into();
        let given = companion(s, n, &[Kind::Http]);
        if given.send.replace(text).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
    upstream("check_http_expect_alive", |s, n| {
        for word in &n.args {
            let class = word.text.strip_prefix(b"http_").and_then(|c| c.strip_suffix(b"xx"));
            match class {
                Some([c @ b'2'..=b'5']) => {
                    companion(s, n, &[Kind::Http, Kind::FastCgi]).alive.push(u16::from(c - b'0'))
                }
                _ => return Err(n.problem(format!("invalid value \"{}\"", word.as_str()))),
            }
        }
        Ok(())
    }),
    upstream("check_keepalive_requests", |s, n| {
        let requests = count(&n.args[0].text).ok_or_else(|| Problem::invalid_number(n))?;
        companion(s, n, &[Kind::Http]).requests = Some(requests);
        Ok(())
    }),
    upstream("check_fastcgi_param", |s, n| {
        let [name, value] = [0, 1].map(|i| n.args[i].text.as_slice().into());
        companion(s, n, &[Kind::FastCgi]).params.push((name, value));
        Ok(())
    }),
    // What is known of peers needs no zone here.
    http("check_shm_size", |s, n| {
        s.build.note(n);
        Ok(())
    }),
];

/// A web server's ping and a container's answer (Apache's AJP 1.3, `CPing` and `CPong`).
const CPING: &[u8] = b"\x12\x34\x00\x01\x0a";
const CPONG: &[u8] = b"AB\x00\x01\x09";
/// MySQL's first packet: three bytes of length, number 0, then the version of its protocol, which is 10; 255 is an error.
const GREETING: &str = r"(?s)^...\x00\x0a";

/// Without `check_fastcgi_param`.
const USUAL_PARAMS: [(&[u8], &[u8]); 3] =
    [(b"REQUEST_METHOD", b"GET"), (b"REQUEST_URI", b"/"), (b"SCRIPT_FILENAME", b"index.php")];

fn greeting(node: &Node) -> Result<Regex, Problem> {
    Regex::new(GREETING).map_err(|e| node.problem(e.to_string()))
}

/// What a block says.
#[derive(Debug, Default)]
pub struct Given {
    check: Option<Written>,
    send: Option<Box<[u8]>>,
    alive: Vec<u16>,
    requests: Option<u32>,
    params: Vec<fastcgi::Param>,
    /// The lines of these four, and the kinds of checks beside which each means something.
    companions: Vec<(Node, &'static [Kind])>,
}

/// What the block says, which has a companion of `check` now.
fn companion<'s>(scope: &'s mut Scope<'_, '_>, node: &Node, kinds: &'static [Kind]) -> &'s mut Given {
    let given = &mut current(scope).check;
    given.companions.push((node.clone(), kinds));
    given
}

#[derive(Debug)]
struct Written {
    node: Node,
    rhythm: Rhythm,
    port: Option<u16>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Http,
    Udp,
    Ajp,
    Mysql,
    SslHello,
    FastCgi,
}

/// What `type=` says.
const KINDS: [(&str, Kind); 7] = [
    ("tcp", Kind::Tcp),
    ("http", Kind::Http),
    ("udp", Kind::Udp),
    ("ajp", Kind::Ajp),
    ("mysql", Kind::Mysql),
    ("ssl_hello", Kind::SslHello),
    ("fastcgi", Kind::FastCgi),
];

impl Kind {
    fn is_for(self, is_stream: bool) -> bool {
        match self {
            Kind::Http | Kind::FastCgi => !is_stream,
            Kind::Udp => is_stream,
            Kind::Tcp | Kind::Ajp | Kind::Mysql | Kind::SslHello => true,
        }
    }

    fn word(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }
}

/// `check interval=ms [fall=] [rise=] [timeout=ms] [default_down=] [type=] [port=]`
fn check(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let is_stream = scope.build.subsystem.is_stream();
    // Tengine's defaults; what it knows of peers outlives reloads.
    let rhythm = Rhythm {
        interval: Duration::from_secs(30),
        limit: Duration::from_secs(1),
        fails: 5,
        passes: 2,
        mandatory: true,
        persistent: true,
        ..Rhythm::default()
    };
    let mut written = Written { node: node.clone(), rhythm, port: None, kind: Kind::Tcp };
    for word in &node.args {
        let text = word.as_str();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let bad = || Problem::invalid_parameter(word);
        let rhythm = &mut written.rhythm;
        let ms = || value.parse::<u32>().ok().and_then(|_| duration(format!("{value}ms").as_bytes()));
        match (name, value) {
            ("interval", _) => rhythm.interval = ms().ok_or_else(bad)?,
            ("timeout", _) => rhythm.limit = ms().ok_or_else(bad)?,
            ("fall", v) => rhythm.fails = count(v.as_bytes()).ok_or_else(bad)?,
            ("rise", v) => rhythm.passes = count(v.as_bytes()).ok_or_else(bad)?,
            ("default_down", "true") => rhythm.mandatory = true,
            ("default_down", "false") => (rhythm.mandatory, rhythm.persistent) = (false, false),
            ("port", v) => written.port = Some(port(v.as_bytes()).ok_or_else(bad)?),
            ("type", word) => {
                let known = KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind);
                written.kind = known.filter(|kind| kind.is_for(is_stream)).ok_or_else(bad)?;
            }
            _ => return Err(bad()),
        }
    }
    if current(scope).check.check.replace(written).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// Makes the check of a group.
pub fn finish(build: &mut Build<'_>, group: &Arc<Group>, given: Given) -> Result<(), Problem> {
    let kind = given.check.as_ref().map(|c| c.kind);
    if let Some((node, kinds)) = given.companions.iter().find(|(_, kinds)| kind.is_none_or(|k| !kinds.contains(&k))) {
        let wanted = if kinds.contains(&Kind::Http) { "http" } else { "fastcgi" };
        let text = format!("\"{}\" has no effect without \"check ... type={wanted}\"", node.name.as_str());
        build.problems.push(node.warning(text));
    }
    let Some(Written { node, mut rhythm, port, kind }) = given.check else { return Ok(()) };
    rhythm.limit = rhythm.limit.min(rhythm.interval);
    rhythm.connect_limit = rhythm.limit;
    if kind == Kind::Http {
        rhythm.keepalive = given.requests.filter(|n| *n > 1).map(Keep::Requests);
    }
    let ask = match kind {
        Kind::Tcp => Ask::Tcp(Talk::default()),
        Kind::Ajp => {
            Ask::Tcp(Talk { send: CPING[..].into(), expect: Some(Arc::new(Expect::Bytes(CPONG.into()))), bye: b"" })
        }
        Kind::Mysql => {
            Ask::Tcp(Talk { send: Arc::default(), expect: Some(Arc::new(Expect::Regex(greeting(&node)?))), bye: b"" })
        }
        Kind::Udp => Ask::Udp(Talk { send: b"X"[..].into(), expect: None, bye: b"" }),
        Kind::SslHello => {
            let send = client_hello().map_err(|text| node.problem(text))?.into();
            Ask::Tcp(Talk { send, expect: Some(Arc::new(Expect::ServerHello)), bye: b"" })
        }
        Kind::Http => {
            let request = given.send.unwrap_or_else(|| b"GET / HTTP/1.0\r\n\r\n"[..].into());
            let is_head = request.starts_with(b"HEAD ");
            Ask::Http(Arc::new(HttpAsk { request, is_head, wanted: alive(&given.alive) }))
        }
        Kind::FastCgi => {
            let usual = USUAL_PARAMS.map(|(name, value)| (name.into(), value.into()));
            let request = fastcgi::request(if given.params.is_empty() { &usual } else { &given.params });
            Ask::FastCgi(Arc::new(HttpAsk { request, is_head: false, wanted: alive(&given.alive) }))
        }
    };
    let (group, kind) = (group.clone(), kind.word());
    super::health_check::add(build, &node, |number| Check { group, number, rhythm, port, secure: None, ask, kind })
}

/// Statuses of these classes, or what Tengine takes for well.
fn alive(classes: &[u16]) -> Arc<Match> {
    let classes = if classes.is_empty() { &[2, 3] } else { classes };
    let ranges = classes.iter().map(|class| (class * 100, class * 100 + 99)).collect();
    Arc::new(Match { status: Some(Statuses { ranges, not: false }), ..Match::default() })
}

/// Takes what the block says of checks.
pub(super) fn take(block: &mut Block) -> Given {
    std::mem::take(&mut block.check)
}
