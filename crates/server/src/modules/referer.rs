//! `valid_referers` (nginx's `ngx_http_referer_module`): `$invalid_referer` is `1` when the page that a request comes
//! from is none of those named.

use super::ignored;
use super::listen::Name;
use crate::config::hostnames::HostTable;
use crate::config::pattern::{GaveUp, Pattern};
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text};
use conf::{Contexts, Node, Problem};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("valid_referers", valid_referers),
    http("referer_hash_bucket_size", ignored::number),
    http("referer_hash_max_size", ignored::number),
];

/// The variable of the module.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "invalid_referer", evaluate: invalid_referer, volatile: false, assign: None }];

/// Longer host names are invalid.
const MAX_HOST: usize = 256;
/// A referer that is shorter has no host.
const MIN_REFERER: usize = "http://i.ru".len();

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    valid: Option<Arc<Valid>>,
    /// The server's names, for `server_names` on it and inside it.
    names: Arc<Vec<Name>>,
}

#[derive(Clone, Debug, Default)]
struct Valid {
    /// `none`: requests without referer.
    none: bool,
    /// `blocked`: referers that are no urls.
    blocked: bool,
    /// `server_names`: all names of the server.
    server_names: bool,
    /// By host; the index of the path that it must begin with, plus 1, or 0.
    hosts: HostTable<u32>,
    paths: Vec<Box<[u8]>>,
    /// Of the server's names: for the host alone.
    host_patterns: Vec<Pattern>,
    /// For all that follows the scheme.
    patterns: Vec<Pattern>,
}

impl Conf {
    /// A level without `valid_referers` has its parent's.
    pub fn merge(&mut self, parent: &Conf) {
        if self.valid.is_none() {
            self.valid.clone_from(&parent.valid);
        }
        if self.names.is_empty() {
            self.names = parent.names.clone();
        }
    }
}

fn valid_referers(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let valid = Arc::make_mut(scope.level.conf.referer.valid.get_or_insert_default());
    for word in &node.args {
        match word.text.as_slice() {
            b"" => return Err(node.problem("invalid referer \"\"".to_owned())),
            b"none" => valid.none = true,
            b"blocked" => valid.blocked = true,
            b"server_names" => valid.server_names = true,
            b"~" => return Err(node.problem("empty regex in \"~\"".to_owned())),
            [b'~', source @ ..] => {
                let pattern = Pattern::compile(scope.build, source, true).map_err(|t| node.problem(t))?;
                valid.patterns.push(pattern);
            }
            text => {
                let slash = memchr::memchr(b'/', text).unwrap_or(text.len());
                let mut path = 0;
                if slash < text.len() {
                    valid.paths.push(text[slash..].into());
                    path = valid.paths.len() as u32;
                }
                valid.hosts.add(&text[..slash], path).map_err(|e| node.problem(e.text(&text[..slash])))?;
            }
        }
    }
    Ok(())
}

/// Adds the server's names where they are wanted, and checks the level.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    let conf = &mut level.conf.referer;
    if level.context == Contexts::SERVER {
        conf.names = Arc::new(level.server_names.iter().map(|(name, _)| name.clone()).collect());
    }
    let Some(valid) = &mut conf.valid else { return };
    if parent.referer.valid.as_ref().is_some_and(|v| Arc::ptr_eq(v, valid)) {
        return;
    }
    let valid = Arc::make_mut(valid);
    if valid.server_names {
        for name in conf.names.iter() {
            let refused = match name {
                Name::Exact(n) => valid.hosts.add(n, 0).err(),
                Name::Head(n) => valid.hosts.add(&[b"*", n.as_slice()].concat(), 0).err(),
                Name::HeadOrExact(n) => valid.hosts.add(n, 0).err(),
                Name::Tail(n) => valid.hosts.add(&[n.as_slice(), b"*"].concat(), 0).err(),
                Name::Pattern(p) => {
                    valid.host_patterns.push(p.clone());
                    None
                }
            };
            if let (Some(e), Name::Exact(n) | Name::Head(n) | Name::HeadOrExact(n) | Name::Tail(n)) = (refused, name) {
                build.problems.push(Problem::bare(e.text(n)));
            }
        }
    }
    if (valid.none || valid.blocked) && valid.hosts.is_empty() {
        build.problems.push(Problem::bare(
            "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid \
             referer",
        ));
    }
}

fn invalid_referer(r: &mut Request) -> Option<Text> {
    let snapshot = r.snapshot.clone();
    let valid = snapshot.location(r.location).conf.referer.valid.as_deref().map_or(Ok(true), |v| is_valid(r, v));
    let valid = valid.inspect_err(|e| {
        r.fail();
        crate::log_error!(r, Alert, "{e}");
    });
    Some(if valid.ok()? { Text::EMPTY } else { Text::from("1") })
}

fn is_valid(r: &Request, valid: &Valid) -> Result<bool, GaveUp> {
    let Some(referer) = r.head.headers.find(K::Referer) else { return Ok(valid.none) };
    let referer = r.get(referer);
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let (start, rest) = referer.split_at_checked(scheme.len())?;
        (referer.len() >= MIN_REFERER && start.eq_ignore_ascii_case(scheme.as_bytes())).then_some(rest)
    });
    let Some(rest) = rest else { return Ok(valid.blocked) };
    let host = rest[..memchr::memchr2(b'/', b':', rest).unwrap_or(rest.len())].to_ascii_lowercase();
    if host.len() > MAX_HOST {
        return Ok(false);
    }
    if let Some(path) = valid.hosts.find(&host) {
        let from = memchr::memchr(b'/', rest).unwrap_or(rest.len());
        return Ok(path == 0 || rest[from..].starts_with(&valid.paths[path as usize - 1]));
    }
    let hosts = valid.host_patterns.iter().map(|p| (p, &host[..]));
    for (pattern, subject) in hosts.chain(valid.patterns.iter().map(|p| (p, rest))) {
        if pattern.is_match(subject)? {
            return Ok(true);
        }
    }
    Ok(false)
}
