//! The directives of caches, which every module with an upstream has under its own prefix (`proxy_cache`,
//! `fastcgi_cache` ...): `cache_directives!` makes the table, [`CacheSettings`] is what a level knows.

use super::purge::{self, Purge};
use super::{Cache, Pace, open_zone, path};
use crate::config::complex::Complex;
use crate::config::setters::{duplicate, invalid};
use crate::config::{Build, Scope};
use crate::merged_values;
use crate::request::Method;
use conf::{Node, Problem, value};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bits of `*_cache_methods`.
pub mod methods {
    /// Always.
    pub const GET: u32 = 1;
    /// Always.
    pub const HEAD: u32 = 2;
    /// If asked for.
    pub const POST: u32 = 4;
    /// The words of the directive.
    pub const WORDS: &[(&str, u32)] = &[("GET", GET), ("HEAD", HEAD), ("POST", POST)];
}

merged_values! {
    /// What a level knows of its cache.
    pub struct CacheSettings {
        /// `*_cache`
        cache: Which = Which::Off,
        /// `*_cache_key`; none: the module's own.
        key: Option<Complex> = None,
        /// `*_cache_valid`: status (0 for any) and seconds.
        valid: Arc<Vec<(u16, i64)>> = Arc::default(),
        /// `*_cache_methods`, beside GET and HEAD.
        methods: u32 = 0,
        /// `*_cache_min_uses`
        min_uses: u64 = 1,
        /// `*_cache_bypass`
        bypass: Arc<Vec<Complex>> = Arc::default(),
        /// `*_no_cache`
        no_cache: Arc<Vec<Complex>> = Arc::default(),
        /// `*_cache_use_stale`: bits of [`crate::upstream::settings::next`].
        use_stale: u32 = 0,
        /// `*_cache_background_update`
        background_update: bool = false,
        /// `*_cache_revalidate`
        revalidate: bool = false,
        /// `*_cache_rfc9111`: what RFC 9111 has beyond nginx.
        rfc9111: bool = false,
        /// `*_cache_lock`
        lock: bool = false,
        /// `*_cache_lock_timeout`
        lock_timeout: Duration = Duration::from_secs(5),
        /// `*_cache_lock_age`
        lock_age: Duration = Duration::from_secs(5),
        /// `proxy_cache_convert_head`
        convert_head: bool = true,
        /// `*_cache_purge`
        purge: Purge = Purge::Off,
        /// `*_cache_max_range_offset`; none: any.
        max_range_offset: Option<u64> = None,
    }
}

/// `*_cache`
#[derive(Clone, Debug)]
pub enum Which {
    /// None.
    Off,
    /// The one of this name; its number is found when levels are merged.
    Zone(Arc<(Box<[u8]>, OnceLock<usize>, Node)>),
    /// Its name is made of variables.
    Named(Complex),
}

impl CacheSettings {
    /// Whether there is a cache at all.
    #[inline]
    pub fn is_on(&self) -> bool {
        !matches!(*self.cache, Which::Off)
    }

    /// Whether answers to a request with this method may be kept.
    pub fn keeps(&self, method: Method) -> bool {
        match method {
            Method::Get | Method::Head => true,
            Method::Post => *self.methods & methods::POST != 0,
            _ => false,
        }
    }

    /// For how long `*_cache_valid` keeps answers with a status, in seconds; 0: not.
    pub fn valid_for(&self, status: u16) -> i64 {
        self.valid.iter().find(|(s, _)| *s == 0 || *s == status).map_or(0, |(_, seconds)| *seconds)
    }

    /// Finds the number of the cache, once all have been read.
    pub fn finish_level(&self, build: &mut Build<'_>, owner: &'static str) {
        let Which::Zone(zone) = &*self.cache else { return };
        let (name, number, node) = &**zone;
        match build.main.cache.find(name, owner) {
            Some(n) => _ = number.set(n),
            None if build.main.cache.is_incomplete => {}
            None => {
                let name = String::from_utf8_lossy(name);
                build.problems.push(node.problem(format!("\"{}\" zone \"{name}\" is unknown", node.name.as_str())));
            }
        }
    }
}

/// `*_cache off | zone | $text`
/// `*_cache`. `stores`: the level has `*_store`.
pub fn cache(build: &mut Build<'_>, conf: &mut CacheSettings, stores: bool, node: &Node) -> Result<(), Problem> {
    if conf.cache.is_set() {
        return Err(duplicate(node));
    }
    if stores && node.args[0] != "off" {
        let prefix = node.name.as_str();
        let prefix = prefix.trim_end_matches("_cache");
        return Err(node.problem(format!("\"{prefix}_cache\" is incompatible with \"{prefix}_store\"")));
    }
    let word = &node.args[0];
    if *word == "off" {
        conf.cache.force(Which::Off);
        return Ok(());
    }
    let name = Complex::compile(build, word)?;
    conf.cache.force(match name.as_fixed() {
        Some(name) => Which::Zone(Arc::new((name.into(), OnceLock::new(), node.clone()))),
        None => Which::Named(name),
    });
    Ok(())
}

/// `*_cache_key`
pub fn key(build: &mut Build<'_>, conf: &mut CacheSettings, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(build, &node.args[0])?;
    crate::config::setters::value(&mut conf.key, node, Some(key))
}

/// `*_cache_purge`, in one of its forms. `conf` finds the level's settings.
pub fn purge(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    conf: fn(&mut crate::modules::LocationConf) -> &mut CacheSettings,
) -> Result<(), Problem> {
    if crate::modules::cache_purge::takes(scope, node)? {
        return Ok(());
    }
    let purge = purge::parse(scope, node)?;
    crate::config::setters::value(&mut conf(&mut scope.level.conf).purge, node, purge)
}

/// `*_cache_valid [status ... | any] time`
pub fn valid(conf: &mut CacheSettings, node: &Node) -> Result<(), Problem> {
    let (time, statuses) = node.args.split_last().expect("the table asks for one word at least");
    let seconds = value::seconds(&time.text)
        .ok_or_else(|| node.problem(format!("invalid time value \"{}\"", time.as_str())))? as i64;
    let list = Arc::make_mut(conf.valid.entry());
    if statuses.is_empty() {
        list.extend([200, 301, 302].map(|s| (s, seconds)));
    }
    for word in statuses {
        let status = match word.text.as_slice() {
            b"any" => 0,
            digits => value::number(digits)
                .filter(|n| (100..=599).contains(n))
                .ok_or_else(|| node.problem(format!("invalid status \"{}\"", word.as_str())))?
                as u16,
        };
        list.push((status, seconds));
    }
    Ok(())
}

/// `*_cache_max_range_offset`
pub fn max_range_offset(conf: &mut CacheSettings, node: &Node) -> Result<(), Problem> {
    if conf.max_range_offset.is_set() {
        return Err(duplicate(node));
    }
    let bytes = value::offset(&node.args[0].text).ok_or_else(|| invalid(node))?;
    conf.max_range_offset.force(Some(bytes));
    Ok(())
}

/// `*_cache_path`
pub fn cache_path(scope: &mut Scope<'_, '_>, node: &Node, owner: &'static str) -> Result<(), Problem> {
    let done = add_cache(scope, node, owner);
    scope.build.main.cache.is_incomplete |= done.is_err();
    done
}

fn add_cache(scope: &mut Scope<'_, '_>, node: &Node, owner: &'static str) -> Result<(), Problem> {
    let spec = path::parse(node)?;
    let mut dir = node.args[0].text.as_slice();
    dir = dir.strip_suffix(b"/").unwrap_or(dir);
    let dir = scope.build.full_path(dir);
    let name = String::from_utf8_lossy(&spec.name);
    let caches = &mut scope.build.main.cache.caches;
    if caches.iter().any(|c| c.zone.name == spec.name) {
        return Err(node.problem(format!("duplicate zone \"{name}\"")));
    }
    if caches.iter().any(|c| c.zone.path == dir) {
        return Err(node.problem(format!("the same path name \"{}\" is used twice", dir.display())));
    }
    scope.build.main.zones.add(&spec.name, spec.size, owner).map_err(|t| node.problem(t))?;
    let zone = open_zone(&spec.name, dir.clone(), &spec.levels, spec.size).map_err(Problem::bare)?;
    scope.build.directories.push(dir);
    let pace = |[files, sleep, threshold]: [u64; 3]| Pace {
        files,
        sleep: Duration::from_millis(sleep),
        threshold: Duration::from_millis(threshold),
    };
    scope.build.main.cache.caches.push(Arc::new(Cache {
        owner,
        zone,
        use_temp_path: spec.use_temp_path,
        inactive_ms: spec.inactive.saturating_mul(1000),
        max_size: spec.max_size,
        min_free: spec.min_free,
        loader: pace(spec.loader),
        manager: pace(spec.manager),
        purger: spec.purger.map(pace),
    }));
    Ok(())
}

/// The table of a module's cache directives: its prefix, and the field of [`crate::modules::LocationConf`] that has its
/// [`CacheSettings`] as `cache`.
#[macro_export]
macro_rules! cache_directives {
    ($prefix:literal, $($conf:ident).+) => {
        &[
            http(concat!($prefix, "_cache_path"), |s, n| settings::cache_path(s, n, $prefix)),
            http(concat!($prefix, "_cache"), |s, n| {
                let conf: &mut $crate::upstream::conf::UpstreamConf = &mut s.level.conf.$($conf).+.upstream;
                let stores = conf.store.is_set() && !matches!(*conf.store, $crate::upstream::settings::Store::Off);
                settings::cache(s.build, &mut conf.cache, stores, n)
            }),
            http(concat!($prefix, "_cache_key"), |s, n| settings::key(s.build, &mut s.level.conf.$($conf).+.upstream.cache, n)),
            http(concat!($prefix, "_cache_valid"), |s, n| settings::valid(&mut s.level.conf.$($conf).+.upstream.cache, n)),
            http(concat!($prefix, "_cache_methods"), |s, n| {
                setters::bits(s.build, &mut s.level.conf.$($conf).+.upstream.cache.methods, n, settings::methods::WORDS)
            }),
            http(concat!($prefix, "_cache_min_uses"), |s, n| setters::number(&mut s.level.conf.$($conf).+.upstream.cache.min_uses, n)),
            http(concat!($prefix, "_cache_bypass"), |s, n| {
                $crate::config::setters::conditions(s.build, &mut s.level.conf.$($conf).+.upstream.cache.bypass, n)
            }),
            http(concat!($prefix, "_no_cache"), |s, n| {
                $crate::config::setters::conditions(s.build, &mut s.level.conf.$($conf).+.upstream.cache.no_cache, n)
            }),
            http(concat!($prefix, "_cache_use_stale"), |s, n| {
                setters::bits(s.build, &mut s.level.conf.$($conf).+.upstream.cache.use_stale, n, $crate::upstream::settings::next::WORDS)
            }),
            http(concat!($prefix, "_cache_background_update"), |s, n| {
                setters::flag(&mut s.level.conf.$($conf).+.upstream.cache.background_update, n)
            }),
            http(concat!($prefix, "_cache_revalidate"), |s, n| setters::flag(&mut s.level.conf.$($conf).+.upstream.cache.revalidate, n)),
            http(concat!($prefix, "_cache_rfc9111"), |s, n| setters::flag(&mut s.level.conf.$($conf).+.upstream.cache.rfc9111, n)),
            http(concat!($prefix, "_cache_lock"), |s, n| setters::flag(&mut s.level.conf.$($conf).+.upstream.cache.lock, n)),
            http(concat!($prefix, "_cache_lock_timeout"), |s, n| {
                setters::time(&mut s.level.conf.$($conf).+.upstream.cache.lock_timeout, n)
            }),
            http(concat!($prefix, "_cache_lock_age"), |s, n| setters::time(&mut s.level.conf.$($conf).+.upstream.cache.lock_age, n)),
            http(concat!($prefix, "_cache_purge"), |s, n| settings::purge(s, n, |c| &mut c.$($conf).+.upstream.cache)),
            http(concat!($prefix, "_cache_max_range_offset"), |s, n| {
                settings::max_range_offset(&mut s.level.conf.$($conf).+.upstream.cache, n)
            }),
        ]
    };
}
