//! Which file stands for a directory (nginx's `ngx_http_index_module`): the first of `index` that is there.

use crate::config::complex::Complex;
use crate::config::{Directive, Scope, http};
use crate::files;
use crate::log::error::Level;
use crate::log_error;
use crate::modules::root;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, finish};
use conf::{Node, Problem};
use rustix::io::Errno;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("index", index)];

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// In order; empty: `index.html`.
    names: Arc<Vec<Complex>>,
}

impl Conf {
    /// A level without `index` has its parent's.
    pub fn merge(&mut self, parent: &Conf) {
        if self.names.is_empty() {
            self.clone_from(parent);
        }
    }
}

fn index(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut names = Vec::with_capacity(node.args.len());
    for (i, word) in node.args.iter().enumerate() {
        if word.text.first() == Some(&b'/') && i + 1 < node.args.len() {
            let text = "only the last index in \"index\" directive should be absolute";
            scope.build.problems.push(node.warning(text.to_owned()));
        }
        if word.text.is_empty() {
            return Err(node.problem("index \"\" in \"index\" directive is invalid".to_owned()));
        }
        names.push(Complex::compile(scope.build, word)?);
    }
    Arc::make_mut(&mut scope.level.conf.index.names).extend(names);
    Ok(())
}

/// Sends a request for a directory on to its index file.
pub fn handler(r: &mut Request) -> Verdict {
    if !r.get(r.head.uri).ends_with(b"/") || !matches!(r.head.method, Method::Get | Method::Head | Method::Post) {
        return Verdict::Decline;
    }
    let mut path = std::mem::take(&mut r.scratch);
    let verdict = try_names(r, &mut path);
    r.scratch = path;
    verdict
}

fn try_names(r: &mut Request, path: &mut Vec<u8>) -> Verdict {
    let snapshot = r.snapshot.clone();
    let names = &snapshot.location(r.location).conf.index.names;
    let mut search = Search { directory: None, tested: false };
    if names.is_empty() {
        return search.try_name(r, b"index.html", path).unwrap_or(Verdict::Decline);
    }
    for name in names.iter() {
        let verdict = match name.as_fixed() {
            Some(fixed) => search.try_name(r, fixed, path),
            None => {
                let name = name.eval(r);
                let name = r.get(name).to_vec();
                search.try_name(r, &name, path)
            }
        };
        if let Some(verdict) = verdict {
            return verdict;
        }
    }
    Verdict::Decline
}

struct Search {
    /// The length of the directory's path, once it has been made.
    directory: Option<usize>,
    /// The directory is known to be there.
    tested: bool,
}

impl Search {
    /// Tries one name; `None` goes on with the next.
    fn try_name(&mut self, r: &mut Request, name: &[u8], path: &mut Vec<u8>) -> Option<Verdict> {
        if name.first() == Some(&b'/') {
            let uri = r.text(name);
            return Some(finish::internal_redirect(r, uri, r.head.args));
        }
        let length = match self.directory {
            Some(length) => length,
            None => {
                if !root::check_alias(r) {
                    return Some(Verdict::Status(500));
                }
                path.clear();
                root::write_path(r, r.head.uri, path);
                *self.directory.insert(path.len())
            }
        };
        path.truncate(length);
        path.extend_from_slice(name);
        match files::test(r, path) {
            Ok(_) => {
                let mark = r.arena.mark();
                r.arena.append(r.head.uri);
                r.arena.buffer().extend_from_slice(name);
                let uri = r.arena.since(mark).into();
                Some(finish::internal_redirect(r, uri, r.head.args))
            }
            Err(failure) => self.failed(r, failure, path, length),
        }
    }

    fn failed(&mut self, r: &mut Request, failure: files::Failure, path: &[u8], length: usize) -> Option<Verdict> {
        if failure.is_link() {
            return Some(Verdict::Status(403));
        }
        if matches!(failure.errno, Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ACCESS) {
            return Some(refuse(r, path, failure.errno));
        }
        if !self.tested {
            if let Some(verdict) = test_directory(r, path, length) {
                return Some(verdict);
            }
            self.tested = true;
        }
        if failure.errno == Errno::NOENT {
            return None;
        }
        failure.log(r, Level::Crit, path);
        Some(Verdict::Status(500))
    }
}

/// Tells a missing index from a missing directory (`ngx_http_index_test_dir`). The directory is the first `length`
/// bytes of the index's path.
fn test_directory(r: &mut Request, index: &[u8], length: usize) -> Option<Verdict> {
    // An alias may end without a slash.
    let path = match &index[..length] {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        all => all,
    };
    match files::test_directory(r, path) {
        Ok(facts) if facts.kind == files::Kind::Directory => None,
        Ok(_) => {
            log_error!(r, Alert, "\"{}\" is not a directory", String::from_utf8_lossy(path));
            Some(Verdict::Status(500))
        }
        Err(failure) if failure.is_link() => Some(Verdict::Status(403)),
        Err(failure) if failure.errno == Errno::NOENT => Some(refuse(r, index, Errno::NOENT)),
        // The index file was looked for without this error, so the directory may be searched.
        Err(failure) if failure.errno == Errno::ACCESS => None,
        Err(failure) => {
            failure.log(r, Level::Crit, path);
            Some(Verdict::Status(500))
        }
    }
}

/// `ngx_http_index_error`
fn refuse(r: &mut Request, path: &[u8], errno: Errno) -> Verdict {
    let path = String::from_utf8_lossy(path);
    let text = crate::log::os_error(&errno.into());
    if errno == Errno::ACCESS {
        log_error!(r, Error, "\"{path}\" is forbidden ({text})");
        return Verdict::Status(403);
    }
    if *r.conf().core.log_not_found {
        log_error!(r, Error, "\"{path}\" is not found ({text})");
    }
    Verdict::Status(404)
}
