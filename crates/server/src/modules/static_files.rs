//! Files (nginx's `ngx_http_static_module`), with a cache of open small files per thread.

use crate::log_error;
use crate::modules::core;
use crate::request::filter::Chunk;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};
use crate::text;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Answers GET, HEAD and POST for a uri that does not end in a slash.
pub fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.method, Method::Get | Method::Head | Method::Post) {
        return Verdict::Status(405);
    }
    if r.get(r.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    if !core::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = std::mem::take(&mut r.scratch);
    path.clear();
    core::write_path(r, r.uri, &mut path);
    let verdict = serve(r, &path);
    r.scratch = path;
    verdict
}

fn serve(r: &mut Request, path: &[u8]) -> Verdict {
    let (fd, stat) = match open(path) {
        Ok(x) => x,
        Err(e) => return failed(r, path, e),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => return redirect_to_directory(r),
        FileType::RegularFile => {}
        _ => {
            log_error!(r, Crit, "\"{}\" is not a regular file", String::from_utf8_lossy(path));
            return Verdict::Status(404);
        }
    }
    if r.method == Method::Post {
        return Verdict::Status(405);
    }
    let size = stat.st_size as u64;
    r.headers_out.status = 200;
    r.headers_out.content_length = Some(size);
    r.headers_out.last_modified = Some(stat.st_mtime as i64);
    set_etag(r, stat.st_mtime as i64, size);
    core::set_content_type(r);
    r.allow_ranges = true;
    if let Err(v) = r.send_header() {
        return v;
    }
    let fd = Rc::new(fd);
    match r.send_body(Chunk::File { file: &fd, offset: 0, len: size }, true) {
        Ok(()) => Verdict::Answered,
        Err(v) => v,
    }
}

fn open(path: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok((fd, stat))
}

/// What a file that cannot be opened means (`ngx_http_static_handler`).
pub fn failed(r: &mut Request, path: &[u8], error: Errno) -> Verdict {
    let status = match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => 404,
        Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::MLINK => 403,
        _ => 500,
    };
    let text = crate::log::os_error(&error.into());
    let path = String::from_utf8_lossy(path);
    match status {
        404 if !*r.conf().core.log_not_found => {}
        500 => log_error!(r, Crit, "open() \"{path}\" failed ({text})"),
        _ => log_error!(r, Error, "open() \"{path}\" failed ({text})"),
    }
    Verdict::Status(status)
}

fn redirect_to_directory(r: &mut Request) -> Verdict {
    let mut to = Vec::new();
    wire::http1::escape::escape_uri(r.get(r.uri), wire::http1::escape::Escape::Uri, &mut to);
    to.push(b'/');
    if !r.get(r.args).is_empty() {
        to.push(b'?');
        to.extend_from_slice(r.get(r.args));
    }
    let to = r.text(&to);
    r.headers_out.set(K::Location, "Location", to);
    Verdict::Status(301)
}

/// `ETag: "mtime-size"` in hexadecimal (`ngx_http_set_etag`).
pub fn set_etag(r: &mut Request, mtime: i64, size: u64) {
    if *r.conf().core.etag {
        let value = text!(r, "\"{mtime:x}-{size:x}\"");
        r.headers_out.set(K::Etag, "ETag", value);
    }
}
