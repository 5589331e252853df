//! `open_file_cache` and its kin (directives of nginx's http core). The cache itself is `files::cache`.

use crate::config::setters::{self, duplicate};
use crate::config::{Directive, Scope, http};
use crate::merged_values;
use conf::{Node, Problem, value};
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("open_file_cache", open_file_cache),
    http("open_file_cache_valid", |s, n| setters::seconds(&mut s.level.conf.open_file_cache.open_file_cache_valid, n)),
    http("open_file_cache_min_uses", |s, n| {
        setters::number(&mut s.level.conf.open_file_cache.open_file_cache_min_uses, n)
    }),
    http("open_file_cache_errors", |s, n| setters::flag(&mut s.level.conf.open_file_cache.open_file_cache_errors, n)),
    http("open_file_cache_events", super::ignored::any),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The cache, none when it is off.
        open_file_cache: Option<Spec> = None,
        /// For how long an entry is believed.
        open_file_cache_valid: Duration = Duration::from_secs(60),
        /// Uses that make a file stay open.
        open_file_cache_min_uses: u64 = 1,
        /// Failures are kept too.
        open_file_cache_errors: bool = false,
    }
}

/// One `open_file_cache`; levels that inherit it share the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Which of the snapshot's caches.
    pub number: usize,
    /// Entries at most, at least 1.
    pub max: usize,
    /// What is not used for this long is dropped.
    pub inactive: Duration,
}

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    caches: usize,
}

fn open_file_cache(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.open_file_cache.open_file_cache;
    if setting.is_set() {
        return Err(duplicate(node));
    }
    let (mut max, mut inactive, mut off) = (None, Duration::from_secs(60), false);
    for word in &node.args {
        let known = if let Some(text) = word.text.strip_prefix(b"max=") {
            max = value::number(text).filter(|n| *n > 0);
            max.is_some()
        } else if let Some(text) = word.text.strip_prefix(b"inactive=") {
            value::seconds(text).map(|s| inactive = Duration::from_secs(s)).is_some()
        } else {
            off = word == "off";
            off
        };
        if !known {
            return Err(node.problem(format!("invalid \"open_file_cache\" parameter \"{}\"", word.as_str())));
        }
    }
    if off {
        setting.force(None);
        return Ok(());
    }
    let Some(max) = max else {
        return Err(node.problem("\"open_file_cache\" must have the \"max\" parameter".to_owned()));
    };
    let caches = &mut scope.build.main.open_file_cache.caches;
    setting.force(Some(Spec { number: *caches, max: max as usize, inactive }));
    *caches += 1;
    Ok(())
}
