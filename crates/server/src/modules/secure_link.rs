//! Links that nobody can make up (nginx's `ngx_http_secure_link_module`): a hash over anything and an expiry
//! (`secure_link`, `secure_link_md5`), or a hash in the path (`secure_link_secret`). Says so in `$secure_link`.

use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::setting::Setting;
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::request::arena::Span;
use crate::request::{Request, Text};
use conf::{Node, Problem};
use md5::{Digest, Md5};
use runtime::clock;
use std::sync::Arc;
use wire::encoding::{Alphabet, base64_decode, hex_decode};

/// Longest hash in a link: 16 bytes in base64 with padding.
const LONGEST: usize = 24;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("secure_link", |s, n| compiled(s, n, |c| &mut c.link)),
    http("secure_link_md5", |s, n| compiled(s, n, |c| &mut c.md5)),
    http("secure_link_secret", |s, n| {
        let secret: Arc<[u8]> = n.args[0].text.as_slice().into();
        s.level.conf.secure_link.secret.set(Some(secret)).map_err(|_| duplicate(n))
    }),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "secure_link", evaluate: link, volatile: false, assign: None },
    Builtin { name: "secure_link_expires", evaluate: |r| r.ctx.secure_link_expires, volatile: false, assign: None },
];

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// Hash and expiry as the client sent them.
    link: Setting<Option<Complex>>,
    /// What is hashed.
    md5: Setting<Option<Complex>>,
    /// What is hashed with the path.
    secret: Setting<Option<Arc<[u8]>>>,
    /// Both ways on one level.
    mixed: bool,
}

impl Conf {
    /// The two ways exclude each other on a level and in what it inherits.
    pub fn merge(&mut self, parent: &Conf) {
        if self.secret.is_set() {
            self.mixed = self.link.is_set() || self.md5.is_set();
            return;
        }
        self.link.inherit(&parent.link);
        self.md5.inherit(&parent.md5);
        if !self.link.is_set() && !self.md5.is_set() {
            self.secret.inherit(&parent.secret);
        }
    }
}

fn compiled(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    place: fn(&mut Conf) -> &mut Setting<Option<Complex>>,
) -> Result<(), Problem> {
    let value = Complex::compile(scope.build, &node.args[0])?;
    place(&mut scope.level.conf.secure_link).set(Some(value)).map_err(|_| duplicate(node))
}

/// Complains of a level that has both ways.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if std::mem::take(&mut level.conf.secure_link.mixed) {
        let text = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
        build.problems.push(Problem::bare(text));
    }
}

/// `1` for a link that is right, `0` for one that was; with a secret, the path behind the hash.
fn link(r: &mut Request) -> Option<Text> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.secure_link;
    if let Some(secret) = &*conf.secret {
        return behind_hash(r, secret);
    }
    let (Some(link), Some(md5)) = (&*conf.link, &*conf.md5) else { return None };
    let sent = link.eval(r);
    let mut hash = r.get(sent);
    let mut expires = None;
    if let Some(comma) = memchr::memchr(b',', hash) {
        let text = hash[comma + 1..].to_vec();
        hash = &hash[..comma];
        expires = Some((seconds(&text)?, text));
    }
    let mut given = Vec::with_capacity(LONGEST);
    let decoded = hash.len() <= LONGEST && base64_decode(hash, Alphabet::Url, &mut given).is_ok();
    if let Some((_, text)) = &expires {
        r.ctx.secure_link_expires = Some(r.text(text));
    }
    if !decoded || given.len() != 16 {
        return None;
    }
    let hashed = md5.eval(r);
    if !crate::password::same(&given, &Md5::digest(r.get(hashed))) {
        return None;
    }
    let late = expires.is_some_and(|(at, _)| at < clock::wall_seconds());
    Some(Text::from(if late { "0" } else { "1" }))
}

/// Seconds since 1970, above 0.
fn seconds(text: &[u8]) -> Option<i64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok().filter(|n| *n > 0)
}

/// `/prefix/hash/path`: the hash is over path and secret.
fn behind_hash(r: &mut Request, secret: &[u8]) -> Option<Text> {
    let target = r.get(r.head.target);
    let mut slashes = memchr::memchr_iter(b'/', target).filter(|at| *at > 0);
    let (first, second) = (slashes.next()?, slashes.next()?);
    let (hash, path) = (&target[first + 1..second], &target[second + 1..]);
    let mut given = Vec::with_capacity(16);
    if hash.len() != 32 || path.is_empty() || hex_decode(hash, &mut given).is_err() {
        return None;
    }
    let made = Md5::new().chain_update(path).chain_update(secret).finalize();
    if !crate::password::same(&given, &made) {
        return None;
    }
    Some(match r.head.target {
        Text::Own(span) => Text::Own(Span { start: span.start + second as u32 + 1, end: span.end }),
        Text::Fixed(text) => Text::Fixed(&text[second + 1..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_are_times() {
        assert_eq!(seconds(b"2147483647"), Some(2_147_483_647));
        for text in ["", "0", "+5", "-5", "5x", "99999999999999999999"] {
            assert_eq!(seconds(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_inherited_beside_the_other_way() {
        let mut outer = Conf::default();
        outer.secret.force(Some(Arc::from(&b"s"[..])));
        let mut inner = Conf::default();
        inner.md5.force(Some(Complex::fixed(b"x")));
        inner.merge(&outer);
        assert!(!inner.mixed && inner.secret.is_none());
        let mut both = Conf::default();
        both.secret.force(Some(Arc::from(&b"s"[..])));
        both.link.force(Some(Complex::fixed(b"x")));
        both.merge(&outer);
        assert!(both.mixed);
    }
}
