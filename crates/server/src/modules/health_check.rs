//! Active health checks as nginx Plus has them: `health_check` and `match` in `http` and `stream`. Here words become a
//! [`Check`]; what it does is in `health`. Tengine's `check` is in `tengine_check`.

use crate::config::setters::{self, duplicate};
use crate::config::{Build, ConfigLevel, Directive, Scope, http, stream};
use crate::health::check::{Ask, Check, GrpcAsk, HttpAsk, Keep, Rhythm, Talk};
use crate::health::matching::{Expect, Header, Match, Statuses, Test, Value};
use crate::merged_values;
use crate::tls::client::Secure;
use crate::upstream::availability::MAX_CHECKS;
use crate::upstream::group::{Group, GroupId};
use conf::{Node, Problem, Word, value};
use pcre2::bytes::{Regex, RegexBuilder};
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("health_check", health_check),
    http("match", |s, n| {
        let block = Named::Http(Arc::new(match_block(s.build, n)?));
        name(s.build, n, block)
    }),
    stream("health_check", health_check),
    stream("match", |s, n| {
        let block = Named::Stream(talk_block(n)?);
        name(s.build, n, block)
    }),
    stream("health_check_timeout", |s, n| setters::time(&mut s.level.conf.health_check.settings.timeout, n)),
];

/// The longest `grpc_service`: a name with one byte for its length.
const LONGEST_SERVICE: usize = 127;
/// What a datagram says where `match` says nothing, as in nginx Plus.
const UDP_GREETING: &[u8] = b"nginx health check";
/// `UNIMPLEMENTED`: what servers without a health service answer.
const UNIMPLEMENTED: u32 = 12;

merged_values! {
    /// What levels inherit.
    pub struct Settings {
        /// `health_check_timeout`
        timeout: Duration = Duration::from_secs(5),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// The level's own checks.
    written: Vec<Written>,
}

impl Conf {
    /// Takes from the level around what this one does not set. Checks are not inherited.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
    }
}

/// The checks and `match` blocks of a subsystem.
#[derive(Debug, Default)]
pub struct Main {
    /// The checks of all groups.
    pub checks: Vec<Check>,
    blocks: Vec<(Box<[u8]>, Named)>,
}

#[derive(Clone, Debug)]
enum Named {
    Http(Arc<Match>),
    Stream(Talk),
}

/// A directive as it was written; what it means depends on what stands around it.
#[derive(Clone, Debug)]
struct Written {
    node: Node,
    rhythm: Rhythm,
    port: Option<u16>,
    uri: Option<Box<[u8]>>,
    matching: Option<Box<[u8]>>,
    kind: Kind,
    service: Box<[u8]>,
    status: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Http,
    Grpc,
    Tcp,
    HalfOpen,
    Udp,
    Mqtt,
}

impl Kind {
    /// What the directive calls it.
    fn word(self) -> &'static str {
        match self {
            Kind::Http => "http",
            Kind::Grpc => "grpc",
            Kind::Tcp => "tcp",
            Kind::HalfOpen => "tcp_half_open",
            Kind::Udp => "udp",
            Kind::Mqtt => "mqtt",
        }
    }
}

/// `health_check [interval=] [jitter=] [fails=] [passes=] [uri=] [port=] [match=] [mandatory [persistent]] [type=grpc
/// [grpc_service=] [grpc_status=]|tcp|tcp_half_open] [keepalive_time=]`; in `stream` also `udp`, `type=mqtt`.
fn health_check(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let is_stream = scope.build.subsystem.is_stream();
    let mut w = Written {
        node: node.clone(),
        rhythm: Rhythm::default(),
        port: None,
        uri: None,
        matching: None,
        kind: if is_stream { Kind::Tcp } else { Kind::Http },
        service: Box::default(),
        status: UNIMPLEMENTED,
    };
    for word in &node.args {
        w.take(word, is_stream).ok_or_else(|| Problem::invalid_parameter(word))?;
    }
    if w.rhythm.persistent && !w.rhythm.mandatory {
        return Err(node.problem("\"persistent\" requires \"mandatory\"".to_owned()));
    }
    if w.kind != Kind::Http && w.uri.is_some()
        || matches!(w.kind, Kind::Grpc | Kind::HalfOpen | Kind::Mqtt) && w.matching.is_some()
    {
        return Err(node.problem("\"uri\" and \"match\" are for checks by HTTP".to_owned()));
    }
    scope.level.conf.health_check.written.push(w);
    Ok(())
}

impl Written {
    /// None: it is none of the parameters, or its value is wrong.
    fn take(&mut self, word: &Word, is_stream: bool) -> Option<()> {
        let text = word.text.as_slice();
        let at = memchr::memchr(b'=', text);
        let rhythm = &mut self.rhythm;
        match at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..]))) {
            (b"interval", Some(v)) => rhythm.interval = duration(v)?,
            (b"jitter", Some(v)) => rhythm.jitter = Duration::from_millis(value::milliseconds(v)?),
            (b"fails", Some(v)) => rhythm.fails = count(v)?,
            (b"passes", Some(v)) => rhythm.passes = count(v)?,
            (b"keepalive_time", Some(v)) if !is_stream => rhythm.keepalive = Some(Keep::Time(duration(v)?)),
            (b"mandatory", None) => rhythm.mandatory = true,
            (b"persistent", None) => rhythm.persistent = true,
            (b"port", Some(v)) => self.port = Some(port(v)?),
            (b"match", Some(v)) if !v.is_empty() => self.matching = Some(v.into()),
            (b"uri", Some(v)) if !is_stream && v.first() == Some(&b'/') => self.uri = Some(v.into()),
            (b"type", Some(b"grpc")) if !is_stream => self.kind = Kind::Grpc,
            (b"type", Some(b"tcp")) if !is_stream => self.kind = Kind::Tcp,
            (b"type", Some(b"tcp_half_open")) => self.kind = Kind::HalfOpen,
            (b"grpc_service", Some(v)) if !is_stream && v.len() <= LONGEST_SERVICE => self.service = v.into(),
            (b"grpc_status", Some(v)) if !is_stream => self.status = u32::try_from(value::number(v)?).ok()?,
            (b"udp", None) if is_stream => self.kind = Kind::Udp,
            (b"type", Some(b"mqtt")) if is_stream => self.kind = Kind::Mqtt,
            _ => return None,
        }
        Some(())
    }
}

/// More than nothing.
pub(super) fn duration(text: &[u8]) -> Option<Duration> {
    value::milliseconds(text).filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// At least one.
pub(super) fn count(text: &[u8]) -> Option<u32> {
    value::number(text).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)
}

/// A port of TCP or UDP.
pub(super) fn port(text: &[u8]) -> Option<u16> {
    value::number(text).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
}

fn name(build: &mut Build<'_>, node: &Node, block: Named) -> Result<(), Problem> {
    let name = node.args[0].text.as_slice();
    let blocks = &mut build.main.health.blocks;
    if blocks.iter().any(|(n, _)| **n == *name) {
        return Err(node.problem(format!("duplicate match \"{}\"", node.args[0].as_str())));
    }
    blocks.push((name.into(), block));
    Ok(())
}

/// `match` of `http`: `status`, `header`, `body`, `require`.
fn match_block(build: &mut Build<'_>, node: &Node) -> Result<Match, Problem> {
    let mut all = Match::default();
    for row in node.children() {
        match row.name.text.as_slice() {
            b"status" if all.status.is_none() => {
                all.status = Some(statuses(&row.args).ok_or_else(|| Problem::invalid_arguments(row))?);
            }
            b"header" => all.headers.push(header(row)?),
            b"body" if all.body.is_none() => match row.args.as_slice() {
                [sign, text] => all.body = Some((test(sign, row)?, regex(text)?)),
                _ => return Err(Problem::invalid_arguments(row)),
            },
            b"status" | b"body" => return Err(duplicate(row)),
            b"require" if !row.args.is_empty() => {
                for word in &row.args {
                    let name = word.text.strip_prefix(b"$").filter(|n| !n.is_empty());
                    let name =
                        name.ok_or_else(|| row.problem(format!("invalid variable name \"{}\"", word.as_str())))?;
                    all.require.push((String::from_utf8_lossy(name).into(), build.variables.index(name)));
                }
            }
            b"require" => return Err(Problem::invalid_arguments(row)),
            _ => return Err(row.problem(format!("unknown directive \"{}\"", row.name.as_str()))),
        }
    }
    Ok(all)
}

/// `200 301-303`, `! 500`
fn statuses(words: &[Word]) -> Option<Statuses> {
    let not = words.first().is_some_and(|w| *w == "!");
    let status = |text: &str| text.parse::<u16>().ok().filter(|s| (100..1000).contains(s));
    let range = |word: &Word| {
        let text = word.as_str();
        let (from, to) = text.split_once('-').unwrap_or((&text, &text));
        Some((status(from)?, status(to)?)).filter(|(from, to)| from <= to)
    };
    let ranges: Vec<_> = words[usize::from(not)..].iter().map(range).collect::<Option<_>>()?;
    (!ranges.is_empty()).then_some(Statuses { ranges, not })
}

/// `NAME`, `! NAME`, `NAME = VALUE`, `NAME != VALUE`, `NAME ~ REGEX`, `NAME !~ REGEX`
fn header(row: &Node) -> Result<Header, Problem> {
    let text: Vec<String> = row.args.iter().map(|w| w.as_str().into_owned()).collect();
    let (name, value) = match row.args.as_slice() {
        [name] => (name, Value::There),
        [not, name] if *not == "!" => (name, Value::Missing),
        [name, sign, value] if *sign == "=" => (name, Value::Is(Test::Yes, value.text.as_slice().into())),
        [name, sign, value] if *sign == "!=" => (name, Value::Is(Test::No, value.text.as_slice().into())),
        [name, sign, value] => (name, Value::Matches(test(sign, row)?, regex(value)?)),
        _ => return Err(Problem::invalid_arguments(row)),
    };
    Ok(Header { name: name.text.as_slice().into(), text: text.join(" ").into(), value })
}

fn test(sign: &Word, row: &Node) -> Result<Test, Problem> {
    match sign.text.as_slice() {
        b"~" => Ok(Test::Yes),
        b"!~" => Ok(Test::No),
        _ => Err(row.problem(format!("invalid operator \"{}\"", sign.as_str()))),
    }
}

fn regex(word: &Word) -> Result<Regex, Problem> {
    let made = RegexBuilder::new().jit_if_available(true).build(&word.as_str());
    made.map_err(|e| word.problem(format!("pcre2_compile() failed: {e} in \"{}\"", word.as_str())))
}

/// `match` of `stream`: `send`, `expect`.
fn talk_block(node: &Node) -> Result<Talk, Problem> {
    let mut talk = Talk::default();
    for row in node.children() {
        match (row.name.text.as_slice(), row.args.as_slice()) {
            (b"send", [text]) if talk.send.is_empty() => talk.send = unescape(text)?.into(),
            (b"expect", [text]) if talk.expect.is_none() => {
                talk.expect = Some(Arc::new(Expect::Bytes(unescape(text)?.into())));
            }
            (b"expect", [sign, text]) if talk.expect.is_none() && *sign == "~" => {
                talk.expect = Some(Arc::new(Expect::Regex(regex(text)?)));
            }
            (b"send" | b"expect", [_] | [_, _]) => return Err(duplicate(row)),
            (b"send" | b"expect", _) => return Err(Problem::invalid_arguments(row)),
            _ => return Err(row.problem(format!("unknown directive \"{}\"", row.name.as_str()))),
        }
    }
    Ok(talk)
}

/// Text in which `\x0d` is a byte.
fn unescape(word: &Word) -> Result<Vec<u8>, Problem> {
    let (text, mut out, mut at) = (&word.text, Vec::new(), 0);
    while at < text.len() {
        if !text[at..].starts_with(b"\\x") {
            out.push(text[at]);
            at += 1;
            continue;
        }
        let digits = text.get(at + 2..at + 4).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        out.push(byte.ok_or_else(|| word.problem(format!("invalid byte in \"{}\"", word.as_str())))?);
        at += 4;
    }
    Ok(out)
}

/// Makes the checks of a level, once its values are merged and its `proxy_pass` has its group.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    for written in std::mem::take(&mut level.conf.health_check.written) {
        if let Err(problem) = finish(build, level, &written) {
            build.problems.push(problem);
        }
    }
}

/// Adds a check to those of its group.
pub(super) fn add(build: &mut Build<'_>, node: &Node, make: impl FnOnce(usize) -> Check) -> Result<(), Problem> {
    let mut check = make(0);
    let checks = &mut build.main.health.checks;
    check.number = checks.iter().filter(|c| Arc::ptr_eq(&c.group, &check.group)).count();
    if check.number >= MAX_CHECKS {
        return Err(node.problem(format!("more than {MAX_CHECKS} checks of one upstream")));
    }
    checks.push(check);
    Ok(())
}

fn finish(build: &mut Build<'_>, level: &ConfigLevel, w: &Written) -> Result<(), Problem> {
    let missing = || {
        w.node.problem("\"health_check\" requires \"proxy_pass\" or \"grpc_pass\" without variables here".to_owned())
    };
    let named = match &w.matching {
        None => None,
        Some(name) => Some(
            find(build, name)
                .ok_or_else(|| w.node.problem(format!("match \"{}\" is not defined", String::from_utf8_lossy(name))))?,
        ),
    };
    let (mut rhythm, kind) = (w.rhythm, w.kind.word());
    let group = |build: &Build<'_>, id: GroupId| build.groups[id.0 as usize].clone();
    if build.subsystem.is_stream() {
        let id = level.conf.stream_proxy.group().ok_or_else(missing)?;
        rhythm.limit = rhythm.interval.min(*level.conf.health_check.settings.timeout);
        rhythm.connect_limit = *level.conf.stream_proxy.upstream.connect_timeout;
        let mut talk = if let Some(Named::Stream(talk)) = named { talk } else { Talk::default() };
        if w.kind == Kind::Udp && talk.send.is_empty() {
            talk.send = UDP_GREETING[..].into();
        }
        let ask = match w.kind {
            Kind::Udp => Ask::Udp(talk),
            Kind::HalfOpen => Ask::HalfOpen,
            Kind::Mqtt => Ask::Tcp(mqtt()),
            _ => Ask::Tcp(talk),
        };
        let group = group(build, id);
        let (own, context) = (&level.conf.stream_proxy.own, &level.conf.stream_proxy.context);
        let protocols: Vec<&[u8]> = own.ssl_alpn.iter().map(Vec::as_slice).collect();
        let context = context.as_ref().filter(|_| matches!(ask, Ask::Tcp(_)));
        let secure = context.map(|c| Arc::new(c.for_checks(group.name.as_bytes(), &protocols)));
        return add(build, &w.node, |number| Check { group, number, rhythm, port: w.port, secure, ask, kind });
    }
    let (proxy, grpc) = (&level.conf.proxy, &level.conf.grpc);
    let (proxy, (id, host, context)) = match (proxy.checked(), grpc.checked()) {
        (Some(checked), _) => (&**proxy, checked),
        (None, Some(_)) if w.kind == Kind::Http => {
            return Err(w.node.problem("\"health_check\" of \"grpc_pass\" requires \"type=grpc\"".to_owned()));
        }
        (None, Some(checked)) => (&grpc.proxy, checked),
        (None, None) => return Err(missing()),
    };
    // A check is over before the next begins: so a peer that hangs is out after `fails` intervals.
    rhythm.limit = rhythm.interval.min(*proxy.upstream.read_timeout);
    rhythm.connect_limit = *proxy.upstream.connect_timeout;
    let protocols: &[&[u8]] = if w.kind == Kind::Grpc { &[b"h2"] } else { &[] };
    let secure: Option<Arc<Secure>> = context.map(|c| Arc::new(c.for_checks(host.as_bytes(), protocols)));
    let ask = match w.kind {
        Kind::Http => {
            let wanted = if let Some(Named::Http(m)) = named { m } else { Arc::new(Match::standard()) };
            let uri = w.uri.as_deref().unwrap_or(b"/");
            let keep = rhythm.keepalive.is_some();
            let request = request(build, proxy, host, uri, keep);
            Ask::Http(Arc::new(HttpAsk { request, is_head: false, wanted }))
        }
        Kind::Grpc => Ask::Grpc(Arc::new(GrpcAsk {
            authority: host.as_bytes().into(),
            service: w.service.clone(),
            status: w.status_given(),
        })),
        Kind::HalfOpen => Ask::HalfOpen,
        Kind::Tcp | Kind::Udp | Kind::Mqtt => Ask::Tcp(Talk::default()),
    };
    let group: Arc<Group> = group(build, id);
    add(build, &w.node, |number| Check { group, number, rhythm, port: w.port, secure, ask, kind })
}

/// `type=mqtt`: a CONNECT that a broker accepts. Two clients of one name would throw each other out, so each check has its own.
fn mqtt() -> Talk {
    let client = format!("healthcheck{:08x}", crate::upstream::choose::random() as u32);
    let mut send = Vec::new();
    wire::mqtt::connect(wire::mqtt::Version::V3, &client, None, &mut send);
    Talk { send: send.into(), expect: Some(Arc::new(Expect::ConnAck)), bye: &wire::mqtt::DISCONNECT }
}

impl Written {
    /// The status that counts as well beside the health service's own answer.
    fn status_given(&self) -> Option<u32> {
        self.node.args.iter().any(|a| a.text.starts_with(b"grpc_status=")).then_some(self.status)
    }
}

fn find(build: &Build<'_>, name: &[u8]) -> Option<Named> {
    build.main.health.blocks.iter().find(|(n, _)| **n == *name).map(|(_, block)| block.clone())
}

/// The request of a check: the location's headers that are fixed go with it; of those with variables only `$host` and
/// `$proxy_host`, since there is no client.
fn request(build: &mut Build<'_>, proxy: &super::proxy::Conf, host: &str, uri: &[u8], keep: bool) -> Box<[u8]> {
    let hosts = [build.variables.index(b"host"), build.variables.index(b"proxy_host")];
    let mut out = [b"GET ", uri, b" HTTP/1.1\r\n"].concat();
    let mut line = |name: &[u8], value: &[u8]| out.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    let mut has_host = false;
    for (name, value) in proxy.set_header.iter() {
        let text = match value.as_variable() {
            Some(id) if hosts.contains(&id) => Some(host.as_bytes()),
            _ => value.as_fixed(),
        };
        if let Some(text) = text
            && !text.is_empty()
            && !name.eq_ignore_ascii_case(b"connection")
        {
            has_host |= name.eq_ignore_ascii_case(b"host");
            line(name, text);
        }
    }
    if !has_host {
        line(b"Host", host.as_bytes());
    }
    if !keep {
        line(b"Connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    out.into()
}
