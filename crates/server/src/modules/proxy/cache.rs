//! `proxy_cache` and its like, as `proxy_pass` knows them. What the words mean and what is done is in `cache`; what all modules
//! with an upstream do with it is in `upstream::cached`.

use super::{Conf, Pass, Target, request};
use crate::cache::{caching, settings};
use crate::cache_directives;
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, http, setters};
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use crate::upstream::cached;

/// The module's name: the prefix of its directives.
const OWNER: &str = "proxy";

/// The directives.
pub const DIRECTIVES: &[Directive] = cache_directives!("proxy", proxy);

/// The one that only HTTP upstreams need: others have no HEAD.
pub const CONVERT_HEAD: &[Directive] =
    &[http("proxy_cache_convert_head", |s, n| setters::flag(&mut s.level.conf.proxy.upstream.cache.convert_head, n))];

/// The variables, of all modules with a cache.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "upstream_cache_status",
        evaluate: |r| r.attempts.cache.map(|s| Text::from(s.text())),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "upstream_cache_last_modified",
        evaluate: caching::known_last_modified,
        volatile: true,
        assign: None,
    },
    Builtin { name: "upstream_cache_etag", evaluate: caching::known_etag, volatile: true, assign: None },
];

/// Finds the level's cache.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    level.conf.proxy.upstream.cache.finish_level(build, OWNER);
}

/// Asks the cache. None: the upstream is to be asked.
pub(super) async fn look(r: &mut Request, conf: &Conf, pass: &Pass, target: &Target<'_>) -> Option<Verdict> {
    cached::look(r, &conf.upstream, OWNER, |r| own_key(r, pass, target)).await
}

/// The key without `proxy_cache_key`: scheme, host and what is asked of it.
fn own_key(r: &mut Request, pass: &Pass, target: &Target<'_>) -> Text {
    let mut key = std::mem::take(&mut r.scratch);
    key.clear();
    request::write_origin(r, target, &mut key);
    request::write_uri(r, &pass.location, target, &mut key);
    let text = r.text(&key);
    r.scratch = key;
    text
}

/// Asks the upstream only for what has changed, where the cache has an old answer. `replaced`: what the configuration says.
pub(super) fn write_conditions(r: &mut Request, replaced: &[Box<[u8]>], head: &mut request::Head) {
    let is_set = |name: &[u8]| replaced.iter().any(|n| **n == *name);
    if !is_set(b"if-modified-since")
        && let Some(date) = caching::known_last_modified(r)
    {
        head.line(b"If-Modified-Since", r.get(date));
    }
    if !is_set(b"if-none-match")
        && let Some(etag) = caching::known_etag(r)
    {
        head.line(b"If-None-Match", r.get(etag));
    }
}
