//! What a guard asks a client for: to come back with a cookie, or to do some work first. From: `judge`. The cookies themselves: `shield::challenge`.

use super::Guard;
use super::judge::Who;
use crate::modules::{ssl, variables};
use crate::request::headers::{HeaderLine, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::{Method, Request, Text, body};
use memchr::memmem::Finder;
use runtime::clock;
use shield::challenge::{self, Bound, Key, Kind, Proof};
use std::ops::Deref;
use std::sync::OnceLock;

/// What a browser runs that is given work: it looks for a number that gives the cookie a hash with enough zero bits, with a SHA-256 of its own, since that of
/// the browser is only there over TLS. `@QUESTION@`, `@BITS@`, `@NAME@`, `@AGE@`, `@ID@` are filled in.
const PAGE: &str = include_str!("work.html");

/// The key of cookies where none is given, and its bytes: made by the first process that needs it, and known to those that go on with what that has.
static OWN: OnceLock<([u8; KEY_BYTES], Key)> = OnceLock::new();
/// Bytes of such a key.
pub(super) const KEY_BYTES: usize = 32;

/// The key that cookies of the guard are signed with, if there is one yet: of the first process that needs it, which is when somebody is challenged or another
/// process takes over. Before that nobody can have a cookie.
fn known_key(guard: &Guard) -> Option<&Key> {
    guard.key.as_ref().or_else(|| Some(&OWN.get()?.1))
}

fn key(guard: &Guard) -> &Key {
    guard.key.as_ref().unwrap_or_else(|| &own().1)
}

fn own() -> &'static ([u8; KEY_BYTES], Key) {
    OWN.get_or_init(|| {
        let mut bytes = [0; KEY_BYTES];
        let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        (bytes, Key::new(&bytes))
    })
}

/// The bytes of the key where none is given.
pub(super) fn own_key() -> &'static [u8] {
    &own().0
}

/// The key of the process before. Too late once this one has signed something: then who has a cookie of that one is asked again.
pub(super) fn inherit_key(bytes: [u8; KEY_BYTES]) {
    let _ = OWN.set((bytes, Key::new(&bytes)));
}

/// What a guard's cookie is called.
#[derive(Debug)]
pub(super) struct CookieName {
    text: Box<str>,
    /// Finds where it may be among others.
    finder: Finder<'static>,
}

impl CookieName {
    /// Of a token.
    pub(super) fn new(text: &str) -> CookieName {
        CookieName { text: text.into(), finder: Finder::new(text).into_owned() }
    }
}

impl Deref for CookieName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.text
    }
}

/// What the client has proved. Work that is easier than this guard's is worth a cookie, and no more.
#[inline]
pub(super) fn proof(r: &Request, guard: &Guard, subject: u128) -> Option<Proof> {
    // Nobody has cookies of a guard that gives none.
    let key = if guard.challenges { known_key(guard)? } else { return None };
    let cookie = cookie(r, &guard.cookie)?;
    checked(guard, key, cookie, subject)
}

/// The cookie of that name, if there is room for one that proves something. It is brought as it was given, so that its name is looked for as it is written.
fn cookie<'r>(r: &'r Request, name: &CookieName) -> Option<&'r [u8]> {
    let has_room = |line: &&HeaderLine| line.known == K::Cookie && line.value.len() > name.len() + challenge::SHORTEST;
    r.head.headers.lines().iter().filter(has_room).find_map(|line| {
        let list = r.arena.span(line.value);
        name.finder.find(list)?;
        wire::http1::values::find_in_list(list, name.as_bytes(), b';')
    })
}

fn checked(guard: &Guard, key: &Key, cookie: &[u8], subject: u128) -> Option<Proof> {
    let now = u64::try_from(clock::wall_seconds()).unwrap_or_default();
    let bound = Bound { whom: &subject.to_be_bytes(), name: guard.cookie.as_bytes() };
    let proof = challenge::check(key, bound, cookie, now)?;
    match proof.kind {
        Kind::Work(bits) if bits < guard.work_bits => Some(Proof { kind: Kind::Cookie, ..proof }),
        _ => Some(proof),
    }
}

fn issue(guard: &Guard, who: &Who, kind: Kind) -> String {
    let mut id = [0; 8];
    let _ = rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty());
    let until = u64::try_from(clock::wall_seconds()).unwrap_or_default() + guard.valid_s;
    let bound = Bound { whom: &who.subject.to_be_bytes(), name: guard.cookie.as_bytes() };
    challenge::issue(key(guard), bound, kind, u64::from_be_bytes(id), until)
}

/// Whether a page may be answered in place of what was asked for.
pub(super) fn is_page(r: &Request) -> bool {
    matches!(r.head.method, Method::Get | Method::Head)
}

fn keep_out_of_caches(r: &mut Request) {
    r.answer.headers.push(Text::from("Cache-Control"), Text::from("no-store"));
}

/// The same address again, with the cookie. A method other than GET stays what it is, and its body is sent again.
pub(super) fn redirect(r: &mut Request, guard: &Guard, who: &Who) -> Verdict {
    let token = issue(guard, who, Kind::Cookie);
    let secure = if ssl::is_encrypted(r) { "; Secure" } else { "" };
    let (name, age) = (&*guard.cookie, guard.valid_s);
    let cookie = format!("{name}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
    let cookie = r.text(cookie.as_bytes());
    r.answer.headers.push(Text::from("Set-Cookie"), cookie);
    keep_out_of_caches(r);
    let target = match r.get(r.head.target) {
        // Two slashes would be another host's.
        [b'/', b'/' | b'\\', ..] => [b"/.", r.get(r.head.target)].concat(),
        target => target.to_vec(),
    };
    let target = r.text(&target);
    r.answer.headers.set(K::Location, "Location", target);
    Verdict::Status(if is_page(r) { 302 } else { 307 })
}

/// The page with work to do.
pub(super) fn work(r: &mut Request, guard: &Guard, who: &Who) -> Verdict {
    if let Err(status) = body::discard_arrived(r) {
        return Verdict::Status(status);
    }
    let bits = guard.work_bits;
    let id = variables::request_id(r).unwrap_or(Text::EMPTY);
    let page = PAGE
        .replace("@QUESTION@", &issue(guard, who, Kind::Work(bits)))
        .replace("@BITS@", &bits.to_string())
        .replace("@NAME@", &guard.cookie)
        .replace("@AGE@", &guard.valid_s.to_string())
        .replace("@ID@", &String::from_utf8_lossy(r.get(id)));
    keep_out_of_caches(r);
    r.answer.headers.content_type = Some(Text::from("text/html; charset=utf-8"));
    let seconds = crate::text!(r, "{}", guard.retry_after_s);
    r.answer.headers.push(Text::from("Retry-After"), seconds);
    r.respond(429, page.as_bytes())
}
