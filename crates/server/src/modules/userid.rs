//! Cookies that tell clients apart (nginx's `ngx_http_userid_filter_module`): `userid` and `$uid_got`, `$uid_set`,
//! `$uid_reset`. An identifier is 16 bytes: service, time, process, sequence; in the cookie in base64.

use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http};
use crate::connection::Address;
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::{log_error, merged_values, text};
use conf::{Node, Problem, value};
use runtime::clock;
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use wire::encoding::{Alphabet, base64_decode, base64_encode};
use wire::http1::values::find_in_list;

/// Letters of base64 that 16 bytes take, without the padding that `userid_mark` may have replaced.
const ENCODED: usize = 22;
/// `userid_expires max`
const MAX_EXPIRES: &str = "Thu, 31-Dec-37 23:55:55 GMT";
/// Where the sequence of `userid on` starts; smaller numbers are other kinds of identifiers.
const FIRST_V2: u32 = 0x0303_0302;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("userid", userid),
    http("userid_service", |s, n| {
        let number = value::number(&n.args[0].text).ok_or_else(|| Problem::invalid_number(n))?;
        setters::value(&mut s.level.conf.userid.service, n, Some(number as u32))
    }),
    http("userid_name", |s, n| setters::value(&mut s.level.conf.userid.name, n, n.args[0].text.as_slice().into())),
    http("userid_domain", |s, n| setters::value(&mut s.level.conf.userid.domain, n, unless_none("; domain=", n))),
    http("userid_path", |s, n| {
        let path = [b"; path=", n.args[0].text.as_slice()].concat();
        setters::value(&mut s.level.conf.userid.path, n, path.into())
    }),
    http("userid_expires", expires),
    http("userid_flags", flags),
    http("userid_p3p", |s, n| setters::value(&mut s.level.conf.userid.p3p, n, unless_none("", n))),
    http("userid_mark", mark),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "uid_got", evaluate: got_variable, volatile: false, assign: None },
    Builtin { name: "uid_set", evaluate: set_variable, volatile: false, assign: None },
    Builtin { name: "uid_reset", evaluate: |_| Some(Text::EMPTY), volatile: false, assign: Some(|_, _| {}) },
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// What is done.
        userid: Mode = Mode::Off,
        /// `$uid_reset`
        reset: VariableId = VariableId(0),
        /// The first four bytes; none: the server's address.
        service: Option<u32> = None,
        /// The cookie's name.
        name: Arc<[u8]> = Arc::from(&b"uid"[..]),
        /// `; domain=...`
        domain: Arc<[u8]> = Arc::from(&b""[..]),
        /// `; path=...`
        path: Arc<[u8]> = Arc::from(&b"; path=/"[..]),
        /// How long browsers keep the cookie.
        expires: Expires = Expires::Never,
        /// `; secure` and others.
        flags: Arc<[Flag]> = Arc::from([]),
        /// The `P3P` header.
        p3p: Arc<[u8]> = Arc::from(&b""[..]),
        /// In place of the padding; a cookie with another one is sent anew.
        mark: Option<u8> = None,
    }
}

crate::inherited!(Conf, |_| true);

impl Conf {
    /// Whether cookies are sent.
    pub fn sends_cookies(&self) -> bool {
        *self.userid >= Mode::V1
    }
}

/// `userid`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Cookies that come are known.
    Log,
    /// Cookies of the first kind are given.
    V1,
    /// Cookies of the second kind are given.
    On,
}

/// `userid_expires`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// The cookie ends with the browser.
    Never,
    /// The end of 2037.
    Max,
    /// Seconds from now.
    After(u64),
}

/// `userid_flags`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// No flag at all.
    Off,
    /// `; secure`
    Secure,
    /// `; httponly`
    HttpOnly,
    /// `; samesite=strict`
    Strict,
    /// `; samesite=lax`
    Lax,
    /// `; samesite=none`
    None,
}

/// Flags with their words, in the order in which they are sent.
const FLAGS: [(&str, Flag); 6] = [
    ("off", Flag::Off),
    ("secure", Flag::Secure),
    ("httponly", Flag::HttpOnly),
    ("samesite=strict", Flag::Strict),
    ("samesite=lax", Flag::Lax),
    ("samesite=none", Flag::None),
];

/// What is known of a request's identifier.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The cookie as it came.
    cookie: Text,
    /// What it says, zeros if nothing.
    got: [u8; 16],
    /// What is sent, zeros for nothing.
    set: [u8; 16],
    /// `$uid_reset` asked for a new one.
    reset: bool,
}

fn userid(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let reset = scope.build.variables.index(b"uid_reset");
    let conf = &mut scope.level.conf.userid;
    conf.reset.force(reset);
    let words = [("off", Mode::Off), ("log", Mode::Log), ("v1", Mode::V1), ("on", Mode::On)];
    setters::one_of(&mut conf.userid, node, &words)
}

fn unless_none(prefix: &str, node: &Node) -> Arc<[u8]> {
    let text = &node.args[0].text;
    if text == b"none" { Arc::from(&b""[..]) } else { [prefix.as_bytes(), text].concat().into() }
}

fn expires(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let expires = match node.args[0].text.as_slice() {
        b"max" => Expires::Max,
        b"off" => Expires::Never,
        text => match value::seconds(text).ok_or_else(|| setters::invalid(node))? {
            0 => Expires::Never,
            n => Expires::After(n),
        },
    };
    setters::value(&mut scope.level.conf.userid.expires, node, expires)
}

fn flags(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.userid.flags;
    let mut flags = if setting.is_set() { setting.to_vec() } else { Vec::new() };
    for word in &node.args {
        let shown = word.as_str();
        let Some((_, flag)) = FLAGS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&shown)) else {
            return Err(node.problem(format!("invalid value \"{shown}\"")));
        };
        if flags.contains(flag) {
            scope.build.problems.push(node.warning(format!("duplicate value \"{shown}\"")));
        } else {
            flags.push(*flag);
        }
    }
    scope.level.conf.userid.flags.force(flags.into());
    Ok(())
}

fn mark(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mark = match node.args[0].text.as_slice() {
        b"off" => None,
        [c] if c.is_ascii_alphanumeric() || *c == b'=' => Some(*c),
        _ => {
            let text = "value must be \"off\" or a single letter, digit or \"=\"";
            return Err(node.problem(format!("\"{}\" directive {text}", node.name.as_str())));
        }
    };
    setters::value(&mut scope.level.conf.userid.mark, node, mark)
}

/// Adds the cookie to the answer.
pub fn filter(r: &mut Request) -> Filtered {
    if !r.is_main() || !r.conf().userid.sends_cookies() {
        return Filtered::Next;
    }
    let identity = decide(r);
    if is_given(&identity.set) {
        send(r, &identity);
    }
    Filtered::Next
}

fn got_variable(r: &mut Request) -> Option<Text> {
    if *r.conf().userid.userid == Mode::Off {
        return None;
    }
    let got = read(r).got;
    is_given(&got).then(|| shown(r, &got))
}

fn set_variable(r: &mut Request) -> Option<Text> {
    if !r.conf().userid.sends_cookies() {
        return None;
    }
    let set = decide(r).set;
    is_given(&set).then(|| shown(r, &set))
}

/// An identifier that is not there has no sequence.
fn is_given(identifier: &[u8; 16]) -> bool {
    identifier[12..] != [0; 4]
}

/// `uid=0100007F5C6B...`: four numbers in the machine's order.
fn shown(r: &mut Request, identifier: &[u8; 16]) -> Text {
    let snapshot = r.snapshot.clone();
    let name = &snapshot.location(r.location).conf.userid.name;
    let [a, b, c, d] = numbers(identifier);
    text!(r, "{}={a:08X}{b:08X}{c:08X}{d:08X}", String::from_utf8_lossy(name))
}

fn numbers(identifier: &[u8; 16]) -> [u32; 4] {
    [0, 4, 8, 12].map(|at| u32::from_ne_bytes(identifier[at..at + 4].try_into().expect("four bytes of sixteen")))
}

/// What the client's cookie says; asked once a request.
fn read(r: &mut Request) -> Identity {
    if let Some(known) = r.ctx.userid {
        return known;
    }
    let mut identity = Identity { cookie: Text::EMPTY, got: [0; 16], set: [0; 16], reset: false };
    let snapshot = r.snapshot.clone();
    let name = &snapshot.location(r.location).conf.userid.name;
    let mut found = None;
    for line in r.head.headers.lines().iter().filter(|l| l.known == K::Cookie) {
        if let Some(cookie) = find_in_list(r.arena.span(line.value), name, b';') {
            found = Some((cookie.to_vec(), *line));
            break;
        }
    }
    if let Some((cookie, line)) = found {
        let mut bytes = Vec::with_capacity(16);
        let whole = String::from_utf8_lossy(r.arena.span(line.value));
        if cookie.len() < ENCODED {
            log_error!(r, Error, "client sent too short userid cookie \"{whole}\"");
        } else if base64_decode(&cookie[..ENCODED], Alphabet::Standard, &mut bytes).is_err() {
            log_error!(r, Error, "client sent invalid userid cookie \"{whole}\"");
        } else {
            identity.got[..bytes.len()].copy_from_slice(&bytes);
        }
        identity.cookie = r.text(&cookie);
    }
    r.ctx.userid = Some(identity);
    identity
}

/// Which identifier is sent, if any.
fn decide(r: &mut Request) -> Identity {
    let mut identity = read(r);
    if is_given(&identity.set) {
        return identity;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.userid;
    if is_given(&identity.got) {
        let reset = r.variable(*conf.reset).unwrap_or(Text::EMPTY);
        match r.get(reset) {
            b"" | b"0" => {
                let cookie = r.get(identity.cookie);
                let marked = cookie.len() > ENCODED + 1 && cookie[ENCODED + 1] == b'=';
                if conf.mark.is_some_and(|m| !marked || cookie[ENCODED] != m) {
                    identity.set = identity.got;
                    r.ctx.userid = Some(identity);
                }
                return identity;
            }
            asked => {
                if asked == b"log" {
                    let name = String::from_utf8_lossy(&conf.name);
                    let [a, b, c, d] = numbers(&identity.got);
                    log_error!(r, Notice, "userid cookie \"{name}={a:08X}{b:08X}{c:08X}{d:08X}\" was reset");
                }
                identity.reset = true;
            }
        }
    }
    identity.set = create(r, *conf.userid, *conf.service);
    r.ctx.userid = Some(identity);
    identity
}

thread_local! {
    static START: u32 = start();
    static V1: Cell<u32> = const { Cell::new(1) };
    static V2: Cell<u32> = const { Cell::new(FIRST_V2) };
}

/// Tells apart threads, and the same thread number of another time.
fn start() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    ((now.tv_nsec / 20_000) as u32) << 16 | crate::master::sys::thread_id() & 0xffff
}

fn create(r: &Request, mode: Mode, service: Option<u32>) -> [u8; 16] {
    let (now, start) = (clock::wall_seconds() as u32, START.with(|s| *s));
    let words = if mode == Mode::V1 {
        let sequence = V1.get();
        V1.set(sequence.wrapping_add(0x100));
        [service.unwrap_or(0), now, start, sequence].map(u32::to_ne_bytes)
    } else {
        let sequence = V2.get();
        V2.set(sequence.wrapping_add(0x100).max(FIRST_V2));
        let first = service.map_or_else(|| local_tail(r), u32::to_be_bytes);
        [first, now.to_be_bytes(), start.to_be_bytes(), sequence.to_be_bytes()]
    };
    words.concat().try_into().expect("four times four bytes")
}

/// The last four bytes of the server's address.
fn local_tail(r: &Request) -> [u8; 4] {
    match crate::worker::local_address(&r.client) {
        Address::Inet(a) => match a.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => ip.octets()[12..].try_into().expect("four bytes of sixteen"),
        },
        Address::Unix(_) => [0; 4],
    }
}

fn send(r: &mut Request, identity: &Identity) {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.userid;
    let mut cookie = [&conf.name[..], b"="].concat();
    if !is_given(&identity.got) || identity.reset {
        base64_encode(&identity.set, Alphabet::Standard, &mut cookie);
        if let Some(mark) = *conf.mark {
            let at = cookie.len() - 2;
            cookie[at] = mark;
        }
    } else {
        cookie.extend_from_slice(&r.get(identity.cookie)[..ENCODED]);
        cookie.extend([conf.mark.unwrap_or(b'='), b'=']);
    }
    match *conf.expires {
        Expires::Never => {}
        Expires::Max => cookie.extend_from_slice(format!("; expires={MAX_EXPIRES}").as_bytes()),
        Expires::After(seconds) => {
            cookie.extend_from_slice(b"; expires=");
            wire::date::write_cookie(clock::wall_seconds().saturating_add(seconds as i64), &mut cookie);
        }
    }
    cookie.extend_from_slice(&conf.domain);
    cookie.extend_from_slice(&conf.path);
    for (name, _) in FLAGS.iter().skip(1).filter(|(_, f)| conf.flags.contains(f)) {
        cookie.extend_from_slice(b"; ");
        cookie.extend_from_slice(name.as_bytes());
    }
    let cookie = r.text(&cookie);
    r.answer.headers.push(Text::from("Set-Cookie"), cookie);
    if !conf.p3p.is_empty() {
        let p3p = r.text(&conf.p3p);
        r.answer.headers.push(Text::from("P3P"), p3p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_shown_in_the_machine_s_order() {
        let identifier: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(numbers(&identifier)[0], u32::from_ne_bytes([0, 1, 2, 3]));
        assert!(is_given(&identifier) && !is_given(&[0; 16]));
    }
}
