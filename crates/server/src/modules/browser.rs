//! `$modern_browser`, `$ancient_browser`, `$msie` (nginx's `ngx_http_browser_module`): what a browser calls itself, compared with
//! the versions of the configuration.

use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http};
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text};
use crate::{inherited, merged_values};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("modern_browser", modern_browser),
    http("ancient_browser", ancient_browser),
    http("modern_browser_value", |s, n| {
        setters::value(&mut s.level.conf.browser.modern_browser_value, n, n.args[0].text.as_slice().into())
    }),
    http("ancient_browser_value", |s, n| {
        setters::value(&mut s.level.conf.browser.ancient_browser_value, n, n.args[0].text.as_slice().into())
    }),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "modern_browser", evaluate: |r| variable(r, true), volatile: false, assign: None },
    Builtin { name: "ancient_browser", evaluate: |r| variable(r, false), volatile: false, assign: None },
    Builtin {
        name: "msie",
        evaluate: |r| Some(Text::from(if r.head.headers.browser(&r.arena).msie { "1" } else { "" })),
        volatile: false,
        assign: None,
    },
];

/// A browser: its name here, how much of what it calls itself is passed over, what stands before its version. In the order in
/// which they are looked for: Opera says that it is another, too.
const BROWSERS: [(&str, usize, &[u8]); 5] = [
    ("opera", 0, b"Opera"),
    ("msie", 25, b"MSIE "),
    ("gecko", 13, b"rv:"),
    ("safari", 13, b"Safari/"),
    ("konqueror", 25, b"Konqueror/"),
];
/// `Opera/9` and `Opera 9` alike.
const BEHIND_OPERA: usize = 1;
/// A version that no browser reaches.
const NEVER: u64 = 4_001_000_000;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Those that are listed, and whether those that are not are modern.
        modern: Modern = Modern::default(),
        /// Those that are listed, and whether Netscape 4 and what claims to be it is among them.
        ancient: Ancient = Ancient::default(),
        /// The value of `$modern_browser`.
        modern_browser_value: Arc<[u8]> = Arc::from(&b"1"[..]),
        /// The value of `$ancient_browser`.
        ancient_browser_value: Arc<[u8]> = Arc::from(&b"1"[..]),
    }
}

inherited!(Conf, |_| true);

/// `modern_browser`
#[derive(Clone, Debug, Default)]
pub struct Modern {
    /// Number of the browser, and the version from which on it is modern.
    listed: Arc<Vec<(usize, u64)>>,
    unlisted: bool,
}

/// `ancient_browser`
#[derive(Clone, Debug, Default)]
pub struct Ancient {
    parts: Arc<Vec<Box<[u8]>>>,
    netscape4: bool,
}

fn modern_browser(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let modern = scope.level.conf.browser.modern.entry();
    let [name, version] = node.args.as_slice() else {
        if node.args[0] != "unlisted" {
            return Err(setters::invalid(node));
        }
        modern.unlisted = true;
        return Ok(());
    };
    let number = BROWSERS.iter().position(|(known, ..)| known.eq_ignore_ascii_case(&name.as_str()));
    let number = number.ok_or_else(|| node.problem(format!("unknown browser name \"{}\"", name.as_str())))?;
    let plain = version.text.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    if !plain {
        return Err(node.problem(format!("invalid browser version \"{}\"", version.as_str())));
    }
    let listed = Arc::make_mut(&mut modern.listed);
    listed.push((number, version_of(&version.text)));
    listed.sort_by_key(|(number, _)| *number);
    Ok(())
}

fn ancient_browser(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let ancient = scope.level.conf.browser.ancient.entry();
    for word in &node.args {
        match word.text.as_slice() {
            b"netscape4" => ancient.netscape4 = true,
            text => Arc::make_mut(&mut ancient.parts).push(text.into()),
        }
    }
    Ok(())
}

/// The number at the beginning of a text, `4.12.3` being 4 12 03 00.
fn version_of(text: &[u8]) -> u64 {
    let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(text.len());
    let (mut version, mut scale) = (0u64, 1_000_000);
    for part in text[..end].split(|b| *b == b'.') {
        let number = part.iter().fold(0u64, |n, d| n.saturating_mul(10).saturating_add(u64::from(d - b'0')));
        version = version.saturating_add(number.saturating_mul(scale));
        scale /= 100;
    }
    version
}

fn variable(r: &mut Request, modern: bool) -> Option<Text> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.browser;
    let agent = r.head.headers.find(K::UserAgent).map(|a| r.get(a));
    Some(match (is_modern(conf, agent), modern) {
        (true, true) => r.text(&conf.modern_browser_value),
        (false, false) => r.text(&conf.ancient_browser_value),
        _ => Text::EMPTY,
    })
}

fn is_modern(conf: &Conf, agent: Option<&[u8]>) -> bool {
    let Some(agent) = agent else { return conf.modern.unlisted };
    let listed = &conf.modern.listed;
    // Opera may call itself MSIE: where it is not listed it is not modern.
    let opera = (!listed.is_empty() && listed.iter().all(|(n, _)| *n != 0)).then_some((0, NEVER));
    for (number, least) in opera.iter().chain(listed.iter()) {
        let (_, skip, name) = BROWSERS[*number];
        let Some(rest) = agent.get(skip..).filter(|rest| !rest.is_empty()) else { continue };
        let Some(at) = memchr::memmem::find(rest, name) else { continue };
        let behind = at + name.len() + if *number == 0 { BEHIND_OPERA } else { 0 };
        let Some(version) = rest.get(behind..).filter(|rest| !rest.is_empty()) else { continue };
        return version_of(version) >= *least;
    }
    if !listed.is_empty() && !conf.modern.unlisted {
        return false;
    }
    let netscape = agent.len() > b"Mozilla/4.72 ".len()
        && agent.starts_with(b"Mozilla/")
        && (b'1'..=b'4').contains(&agent[b"Mozilla/".len()]);
    if conf.ancient.netscape4 && netscape {
        return false;
    }
    let named = conf.ancient.parts.iter().any(|part| memchr::memmem::find(agent, part).is_some());
    !named && conf.modern.unlisted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version_of(b"4"), 4_000_000);
        assert_eq!(version_of(b"4000.99.1.2) x"), 4_000_990_102);
        assert!(version_of(b"1.10") > version_of(b"1.9"));
        assert_eq!(version_of(b""), 0);
    }

    #[test]
    fn who_is_modern() {
        let mut conf = Conf::default();
        let listed = vec![(1, version_of(b"6.0")), (2, version_of(b"1.9.0.3"))];
        conf.modern.force(Modern { listed: Arc::new(listed), unlisted: false });
        let modern = |agent: &str| is_modern(&conf, Some(agent.as_bytes()));
        assert!(modern("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)"));
        assert!(!modern("Mozilla/4.0 (compatible; MSIE 5.5; Windows NT 5.1)"));
        assert!(!modern("Mozilla/4.0 (compatible; MSIE 6.0; X11) Opera 7.50  [en]"));
        assert!(modern("Mozilla/5.0 (X11; U; Linux i686; rv:1.9.0.4) Gecko"));
        assert!(!modern("Mozilla/5.0 (X11; U; Linux i686; rv:1.8) Gecko") && !modern("x") && !is_modern(&conf, None));
    }
}
