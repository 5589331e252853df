//! `dav_methods`: PUT, DELETE, MKCOL, COPY and MOVE on files (nginx's `ngx_http_dav_module`, RFC 4918). What touches the disk for
//! long does so on a thread for that; a file appears under its name only when it is whole. COPY and MOVE: `transfer`, what
//! they do on the disk: `tree`.

pub mod ext;
pub mod locks;
mod properties;
mod transfer;
mod tree;

use crate::config::{Directive, Scope, http, setters};
use crate::log_error;
use crate::modules::root;
use crate::request::body::{self, Stored};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict};
use crate::request::{Method, Request};
use crate::upstream::directives::store_access_value;
use crate::{inherited, merged_values, service, temp};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use tree::{Fault, Placement};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("dav_methods", dav_methods),
    http("create_full_put_path", |s, n| setters::flag(&mut s.level.conf.dav.create_full_put_path, n)),
    http("min_delete_depth", |s, n| setters::number(&mut s.level.conf.dav.min_delete_depth, n)),
    http("dav_access", |s, n| {
        let mode = store_access_value(n)?;
        setters::value(&mut s.level.conf.dav.dav_access, n, mode)
    }),
];

/// Its place in the content phase.
pub const HANDLER: Handler =
    Handler::Later(|r| bit(r.head.method) & *r.conf().dav.dav_methods != 0, |r| Box::pin(answer(r)));

const METHODS: &[(&str, u32)] = &[("off", 0), ("put", 1), ("delete", 2), ("mkcol", 4), ("copy", 8), ("move", 16)];

/// The bit of a method in `dav_methods`.
fn bit(method: Method) -> u32 {
    match method {
        Method::Put => 1,
        Method::Delete => 2,
        Method::Mkcol => 4,
        Method::Copy => 8,
        Method::Move => 16,
        _ => 0,
    }
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// A bit for each method.
        dav_methods: u32 = 0,
        /// PUT makes the directories on the way.
        create_full_put_path: bool = false,
        /// DELETE needs so many names in the path.
        min_delete_depth: u64 = 0,
        /// Permission bits of what is made.
        dav_access: u32 = 0o600,
    }
}

inherited!(Conf, |_| true);

fn dav_methods(scope: &mut Scope<'_, '_>, node: &conf::Node) -> Result<(), conf::Problem> {
    let Scope { build, level } = scope;
    setters::bits(build, &mut level.conf.dav.dav_methods, node, METHODS)
}

async fn answer(r: &mut Request) -> Verdict {
    // COPY changes its destination alone, which `transfer` asks about.
    if r.head.method != Method::Copy
        && let Some(refused) = ext::guard(r, &[r.get(r.head.uri)])
    {
        return refused;
    }
    if r.head.method == Method::Put {
        return put(r).await;
    }
    if r.head.headers.content_length.is_some_and(|n| n > 0) || r.head.headers.chunked {
        let name = match r.head.method {
            Method::Delete => "DELETE with body is",
            Method::Mkcol => "MKCOL with body is",
            _ => "COPY and MOVE with body are",
        };
        log_error!(r, Error, "{name} unsupported");
        return Verdict::Status(415);
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    match r.head.method {
        Method::Delete => delete(r).await,
        Method::Mkcol => mkcol(r).await,
        _ => transfer::answer(r).await,
    }
}

/// The request's path in the file system.
fn path_of(r: &mut Request) -> PathBuf {
    PathBuf::from(OsString::from_vec(root::path_of(r)))
}

/// The same without the slash at its end.
fn bare_path_of(r: &mut Request) -> PathBuf {
    let mut path = root::path_of(r);
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Runs what waits for the disk elsewhere; what fails is logged and becomes a status.
async fn on_disk<T: Send + 'static>(
    r: &mut Request,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Verdict> {
    let done = service::blocking(work).await.ok_or(Verdict::Status(500))?;
    done.map_err(|fault| fault.log(r))
}

async fn put(r: &mut Request) -> Verdict {
    if r.get(r.head.uri).ends_with(b"/") {
        log_error!(r, Error, "cannot PUT to a collection");
        return Verdict::Status(409);
    }
    if r.head.headers.find(K::ContentRange).is_some() {
        log_error!(r, Error, "PUT with range is unsupported");
        return Verdict::Status(501);
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let file = match receive(r).await {
        Ok(file) => file,
        Err(verdict) => return verdict,
    };
    let path = path_of(r);
    let is_new = match std::fs::metadata(&path) {
        Err(_) => true,
        Ok(found) if found.is_dir() => {
            log_error!(r, Error, "\"{}\" could not be created (21: Is a directory)", path.display());
            return Verdict::Status(409);
        }
        Ok(_) => false,
    };
    let (conf, date) = (&r.conf().dav, r.head.headers.find(K::Date));
    let mtime = date.and_then(|d| wire::date::parse_http(r.get(d)));
    let folders = conf.create_full_put_path.then_some(*conf.dav_access);
    let keeps_properties = !is_new && ext::sets_properties(r);
    let placement = Placement { mode: Some(*conf.dav_access), mtime, folders, keeps_properties };
    let placed = on_disk(r, move || file.place(&path, &placement)).await;
    match placed {
        Ok(()) if is_new => created(r),
        Ok(()) => r.respond(204, b""),
        Err(verdict) => verdict,
    }
}

/// 201 with the place of what was made.
fn created(r: &mut Request) -> Verdict {
    let mut to = Vec::new();
    wire::http1::escape::escape_uri(r.get(r.head.uri), wire::http1::escape::Escape::Uri, &mut to);
    let to = r.text(&to);
    r.answer.headers.set(K::Location, "Location", to);
    r.respond(201, b"")
}

/// A temporary file; removed unless it is given its name.
struct Incoming {
    fd: OwnedFd,
    path: PathBuf,
}

impl Incoming {
    /// Gives it its name.
    fn place(mut self, target: &Path, placement: &Placement) -> Result<(), Fault> {
        tree::place(&self.path, Some(&self.fd), target, placement)?;
        self.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Reads the request's body into a file of `client_body_temp_path`, piece by piece.
async fn receive(r: &mut Request) -> Result<Incoming, Verdict> {
    let (fd, path) = temp::create(&r.conf().core.client_body_temp_path).map_err(|(path, e)| {
        log_error!(r, Crit, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
        Verdict::Status(500)
    })?;
    let incoming = Incoming { fd, path };
    if let Some(stored) = r.body.stored.clone() {
        copy_stored(&stored, &incoming.fd).map_err(|e| unwritten(r, &incoming, &e))?;
        return Ok(incoming);
    }
    let (mut piece, mut written) = (Vec::new(), 0);
    if r.body.is_present() {
        body::confirm_expectation(r);
        loop {
            let complete = body::read_some(r, &mut piece).await?;
            crate::temp::write_file(&incoming.fd, &piece, written).map_err(|e| unwritten(r, &incoming, &e))?;
            written += piece.len() as u64;
            piece.clear();
            if complete {
                break;
            }
        }
    }
    Ok(incoming)
}

/// A body that somebody has read before: `client_body_early_read`, `mirror`.
fn copy_stored(stored: &Stored, to: &OwnedFd) -> io::Result<()> {
    let Some(file) = &stored.file else { return crate::temp::write_file(to, &stored.memory, 0) };
    let (mut piece, mut at) = (vec![0; 64 * 1024], 0);
    while at < stored.len {
        let n = rustix::io::pread(&*file.fd, &mut piece[..], at)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        crate::temp::write_file(to, &piece[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

fn unwritten(r: &Request, file: &Incoming, e: &io::Error) -> Verdict {
    log_error!(r, Crit, "pwrite() \"{}\" failed ({})", file.path.display(), crate::log::os_error(e));
    Verdict::Status(if e.kind() == io::ErrorKind::StorageFull { 507 } else { 500 })
}

async fn delete(r: &mut Request) -> Verdict {
    let least = *r.conf().dav.min_delete_depth;
    if least > 0 && !is_deep(r.get(r.head.uri), least) {
        let depth = r.get(r.head.uri).iter().filter(|b| **b == b'/').count();
        log_error!(r, Error, "insufficient URI depth:{depth} to DELETE");
        return Verdict::Status(409);
    }
    let path = bare_path_of(r);
    let with_slash = r.get(r.head.uri).ends_with(b"/");
    let found = match std::fs::symlink_metadata(&path) {
        Ok(found) if with_slash && !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
        other => other,
    };
    let found = match found {
        Ok(found) => found,
        Err(e) => {
            let not_found = if e.kind() == io::ErrorKind::NotADirectory { 409 } else { 404 };
            return Fault::new("lstat()", &path, e, not_found).log(r);
        }
    };
    let depth = depth_of(r, if found.is_dir() { Depth::Infinity } else { Depth::Zero });
    match (found.is_dir(), depth) {
        (true, _) if !with_slash => {
            log_error!(r, Error, "DELETE \"{}\" failed (21: Is a directory)", path.display());
            return Verdict::Status(409);
        }
        (true, Some(Depth::Infinity)) | (false, Some(Depth::Zero | Depth::Infinity)) => {}
        (is_dir, _) => {
            let what = if is_dir { "infinity" } else { "0 or infinity" };
            log_error!(r, Error, "\"Depth\" header must be {what}");
            return Verdict::Status(400);
        }
    }
    match on_disk(r, move || tree::remove(&path, found.is_dir())).await {
        Ok(()) => r.respond(204, b""),
        Err(verdict) => verdict,
    }
}

/// Whether a path has at least so many names.
fn is_deep(uri: &[u8], least: u64) -> bool {
    let slashes = uri.iter().enumerate().filter(|(_, b)| **b == b'/');
    slashes.enumerate().any(|(n, (at, _))| n as u64 + 1 >= least && at + 1 < uri.len())
}

async fn mkcol(r: &mut Request) -> Verdict {
    if !r.get(r.head.uri).ends_with(b"/") {
        log_error!(r, Error, "MKCOL can create a collection only");
        return Verdict::Status(409);
    }
    let (path, mode) = (bare_path_of(r), tree::folder_mode(*r.conf().dav.dav_access));
    match on_disk(r, move || tree::make_folder(&path, mode, 409)).await {
        Ok(()) => created(r),
        Err(verdict) => verdict,
    }
}

/// The `Depth` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Zero,
    One,
    Infinity,
}

/// What the header says; nothing, with a line in the log, if that is none of the three.
fn depth_of(r: &Request, default: Depth) -> Option<Depth> {
    let Some(value) = r.head.headers.find(K::Depth) else { return Some(default) };
    match r.get(value) {
        b"0" => Some(Depth::Zero),
        b"1" => Some(Depth::One),
        b"infinity" => Some(Depth::Infinity),
        other => {
            let other = String::from_utf8_lossy(other);
            log_error!(r, Error, "client sent invalid \"Depth\" header: \"{other}\"");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_deep_a_path_is() {
        assert!(is_deep(b"/a/b/c", 3) && is_deep(b"/a", 1) && is_deep(b"/a/b/c/", 3));
        assert!(!is_deep(b"/a/b/", 3) && !is_deep(b"/", 1) && !is_deep(b"/a/b", 3));
    }
}
