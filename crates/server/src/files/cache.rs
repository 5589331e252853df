//! The cache of `open_file_cache`, one for each directive and thread: descriptors, facts and the contents of small files.
//! Within `open_file_cache_valid` an answer costs no system call; after it, one stat.

use super::lru::Lru;
use super::small::{self, Small};
use super::symlinks::Rule;
use super::{Data, Facts, Failure, Kind, OpenedFile};
use crate::modules::open_file_cache::{Conf, Spec};
use crate::snapshot::ThreadSnapshot;
use runtime::clock;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// Entries that may be dropped for their age at each look-up (nginx's `ngx_expire_old_cached_files`).
const EXPIRE_AT_ONCE: usize = 2;

/// The caches of a thread under one snapshot, by the directive's number.
#[derive(Debug, Default)]
pub struct Caches(Vec<Lru<Entry>>);

#[derive(Debug)]
struct Entry {
    result: Result<Facts, Failure>,
    rule: Rule,
    file: Option<Rc<OwnedFd>>,
    small: Option<Rc<Small>>,
    checked_ms: u64,
    used_ms: u64,
    uses: u64,
}

/// What is asked for.
pub struct Ask<'a> {
    /// The level's values.
    pub conf: &'a Conf,
    /// Its cache.
    pub spec: Spec,
    /// The path.
    pub path: &'a [u8],
    /// Which links may be followed.
    pub rule: Rule,
    /// Only whether it is a directory matters, so it need not be opened.
    pub directory: bool,
}

/// Finds a path in the thread's cache, or on disk.
pub fn find(snapshot: &ThreadSnapshot, ask: &Ask<'_>) -> Result<OpenedFile, Failure> {
    let mut caches = snapshot.files.borrow_mut();
    if caches.0.len() <= ask.spec.number {
        caches.0.resize_with(ask.spec.number + 1, Lru::default);
    }
    find_in(&mut caches.0[ask.spec.number], ask, clock::monotonic_ms())
}

fn find_in(cache: &mut Lru<Entry>, ask: &Ask<'_>, now: u64) -> Result<OpenedFile, Failure> {
    expire(cache, ask.spec, now);
    let mut uses = 1;
    if let Some(entry) = cache.get_mut(ask.path) {
        entry.uses += 1;
        entry.used_ms = now;
        uses = entry.uses;
        if entry.is_fresh(ask, now) || entry.is_confirmed(ask, now) {
            return entry.answer();
        }
    }
    let result = look(ask);
    if let Err(failure) = result
        && !*ask.conf.open_file_cache_errors
    {
        cache.remove(ask.path);
        return Err(failure);
    }
    let file = match &result {
        Ok(OpenedFile { data: Data::File(file), .. }) if uses >= *ask.conf.open_file_cache_min_uses => {
            Some(file.clone())
        }
        _ => None,
    };
    let facts = result.as_ref().map(|f| f.facts).map_err(|f| *f);
    let entry = Entry { result: facts, rule: ask.rule, file, small: None, checked_ms: now, used_ms: now, uses };
    if let Some(old) = cache.get_mut(ask.path) {
        *old = entry;
        return result;
    }
    while cache.len() >= ask.spec.max {
        cache.pop_oldest();
    }
    cache.insert(ask.path, entry);
    result
}

fn expire(cache: &mut Lru<Entry>, spec: Spec, now: u64) {
    let inactive = spec.inactive.as_millis() as u64;
    for _ in 0..EXPIRE_AT_ONCE {
        match cache.oldest() {
            Some(e) if now.saturating_sub(e.used_ms) > inactive => cache.pop_oldest(),
            _ => return,
        };
    }
}

fn look(ask: &Ask<'_>) -> Result<OpenedFile, Failure> {
    if ask.directory {
        let facts = super::stat(ask.path, ask.rule)?;
        if facts.kind == Kind::Directory {
            return Ok(OpenedFile { facts, data: Data::Nothing });
        }
    }
    super::read_disk(ask.path, ask.rule, |_, _| None)
}

impl Entry {
    /// A file that was not used often enough to stay open has to be opened again.
    fn is_closed(&self) -> bool {
        let is_open = self.file.is_some() || self.small.is_some();
        matches!(&self.result, Ok(facts) if facts.kind != Kind::Directory) && !is_open
    }

    fn is_fresh(&self, ask: &Ask<'_>, now: u64) -> bool {
        let valid = ask.conf.open_file_cache_valid.as_millis() as u64;
        !self.is_closed() && self.rule == ask.rule && now.saturating_sub(self.checked_ms) < valid
    }

    /// Whether the disk says that it is still the same file.
    fn is_confirmed(&mut self, ask: &Ask<'_>, now: u64) -> bool {
        if self.is_closed() || self.rule != ask.rule {
            return false;
        }
        let (Ok(known), Ok(facts)) = (&self.result, super::stat(ask.path, ask.rule)) else { return false };
        let same = match facts.kind {
            Kind::Directory => known.kind == Kind::Directory,
            _ => known.identity == facts.identity,
        };
        if same {
            self.checked_ms = now;
            self.result = Ok(facts);
        }
        same
    }

    fn answer(&mut self) -> Result<OpenedFile, Failure> {
        let facts = self.result?;
        if facts.kind == Kind::File && self.small.is_none() && facts.size <= small::LARGEST {
            self.load(&facts);
        }
        let data = match (&self.small, &self.file) {
            (Some(small), _) => Data::Memory(small.clone()),
            (None, Some(file)) => Data::File(file.clone()),
            (None, None) => Data::Nothing,
        };
        Ok(OpenedFile { facts, data })
    }

    /// Takes a small file into memory and lets its descriptor go, if it is still what it was.
    fn load(&mut self, facts: &Facts) {
        let Some(file) = &self.file else { return };
        if !super::fstat(file).is_ok_and(|now| now.identity == facts.identity) {
            return;
        }
        if let Some(small) = small::read(file.as_fd(), facts.identity) {
            self.small = Some(small);
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::time::Duration;

    struct Place {
        dir: std::path::PathBuf,
        cache: Lru<Entry>,
        conf: Conf,
        spec: Spec,
    }

    impl Place {
        fn new(name: &str) -> Place {
            let dir = std::env::temp_dir().join(format!("ironweir-cache-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("the temporary directory can be written to");
            let spec = Spec { number: 0, max: 2, inactive: Duration::from_secs(10) };
            Place { dir, cache: Lru::default(), conf: Conf::default(), spec }
        }

        fn find(&mut self, name: &str, now: u64) -> Result<OpenedFile, Failure> {
            let path = self.dir.join(name);
            let ask = Ask {
                conf: &self.conf,
                spec: self.spec,
                path: path.as_os_str().as_bytes(),
                rule: Rule::default(),
                directory: false,
            };
            find_in(&mut self.cache, &ask, now)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir.join(name), text).expect("the directory is there");
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn facts_hold_while_valid_and_are_asked_for_again_later() {
        let mut place = Place::new("valid");
        place.spec.inactive = Duration::from_secs(100);
        place.write("a", "one");
        assert_eq!(place.find("a", 0).expect("it is there").facts.size, 3);
        place.write("a", "longer");
        assert_eq!(place.find("a", 59_999).expect("it is known").facts.size, 3);
        assert_eq!(place.find("a", 60_000).expect("it is there").facts.size, 6);
        std::fs::remove_file(place.dir.join("a")).expect("it is there");
        assert!(place.find("a", 60_001).is_ok());
        assert!(place.find("a", 120_000).is_err());
    }

    #[test]
    fn errors_are_kept_only_when_asked_for() {
        let mut place = Place::new("errors");
        assert!(place.find("a", 0).expect_err("there is none").is_not_found());
        place.write("a", "x");
        assert!(place.find("a", 0).is_ok());
        place.conf.open_file_cache_errors.force(true);
        assert!(place.find("b", 0).is_err());
        place.write("b", "x");
        assert!(place.find("b", 1).is_err());
        assert!(place.find("b", 60_001).is_ok());
    }

    #[test]
    fn numbers_and_ages_are_bounded() {
        let mut place = Place::new("bounds");
        for name in ["a", "b", "c"] {
            place.write(name, name);
            assert!(place.find(name, 0).is_ok());
        }
        assert_eq!(place.cache.len(), 2);
        assert!(place.find("c", 10_001).is_ok());
        assert_eq!(place.cache.len(), 1, "what was idle for long is gone");
    }

    #[test]
    fn a_file_stays_open_after_its_min_uses() {
        let mut place = Place::new("uses");
        place.conf.open_file_cache_min_uses.force(2);
        place.write("a", "x");
        let open = |p: &mut Place| {
            let path = p.dir.join("a");
            let entry = p.cache.get_mut(path.as_os_str().as_bytes()).expect("it is known");
            entry.file.is_some() || entry.small.is_some()
        };
        assert!(place.find("a", 0).is_ok());
        assert!(!open(&mut place));
        assert!(place.find("a", 0).is_ok());
        assert!(open(&mut place));
    }
}
