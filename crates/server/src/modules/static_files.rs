//! Files (nginx's `ngx_http_static_module`). How they are found and kept is in `files`.

use crate::connection::action;
use crate::files::{self, Data, Failure, Kind, OpenedFile};
use crate::log::error::Level;
use crate::log_error;
use crate::modules::root;
use crate::request::chunk::Chunk;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};

/// Answers GET, HEAD and POST for a uri that does not end in a slash.
pub fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head | Method::Post) {
        return Verdict::Status(405);
    }
    if r.get(r.head.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = std::mem::take(&mut r.scratch);
    path.clear();
    root::write_path(r, r.head.uri, &mut path);
    let verdict = serve(r, &path);
    r.scratch = path;
    verdict
}

fn serve(r: &mut Request, path: &[u8]) -> Verdict {
    let found = match files::open(r, path) {
        Ok(found) => found,
        Err(failure) => return failed(r, path, failure),
    };
    match found.facts.kind {
        Kind::Directory => return redirect_to_directory(r),
        Kind::File => {}
        Kind::Other => return not_regular(r, path),
    }
    if r.head.method == Method::Post {
        return Verdict::Status(405);
    }
    respond(r, &found)
}

/// Answers with a found file (a part of `ngx_http_static_handler` that other modules share).
pub fn respond(r: &mut Request, found: &OpenedFile) -> Verdict {
    match begin(r, found.facts.mtime, found.facts.size) {
        Ok(()) => files::send(r, found),
        Err(verdict) => verdict,
    }
}

/// Sends the head of an answer that is made of files, the newest of which has this time: as much as `length`.
pub fn begin(r: &mut Request, mtime: i64, length: u64) -> Result<(), Verdict> {
    if let Err(status) = crate::request::body::discard_arrived(r) {
        return Err(Verdict::Status(status));
    }
    r.answer.headers.status = 200;
    r.answer.headers.content_length = Some(length);
    r.answer.headers.last_modified = Some(mtime);
    set_etag(r, mtime, length);
    root::set_content_type(r);
    r.answer.allow_ranges = true;
    r.action = action::SENDING_RESPONSE;
    r.send_header()
}

/// Sends some bytes, and behind them a stretch of a found file, as the whole body.
pub fn send_parts(r: &mut Request, head: &[u8], found: &OpenedFile, from: u64, to: u64) -> Verdict {
    match r.send_body(Chunk::Bytes(head), false).and_then(|()| send_stretch(r, found, from, to, true)) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// Sends a stretch of a found file as a piece of the body, or as the last one.
pub fn send_stretch(r: &mut Request, found: &OpenedFile, from: u64, to: u64, is_last: bool) -> Result<(), Verdict> {
    match &found.data {
        Data::Nothing => r.send_body(Chunk::Bytes(b""), is_last),
        Data::Memory(small) => r.send_body(Chunk::Bytes(&small.bytes).cut(from, to), is_last),
        Data::File(file) => r.send_body(Chunk::File { file, offset: from, len: to - from }, is_last),
    }
}

/// What a file that cannot be opened means.
pub fn failed(r: &mut Request, path: &[u8], failure: Failure) -> Verdict {
    if failure.is_not_found() {
        if *r.conf().core.log_not_found {
            failure.log(r, Level::Error, path);
        }
        return Verdict::Status(404);
    }
    if failure.is_forbidden() {
        failure.log(r, Level::Error, path);
        return Verdict::Status(403);
    }
    failure.log(r, Level::Crit, path);
    Verdict::Status(500)
}

/// Sockets, FIFOs and devices are not served.
pub fn not_regular(r: &mut Request, path: &[u8]) -> Verdict {
    log_error!(r, Crit, "\"{}\" is not a regular file", String::from_utf8_lossy(path));
    Verdict::Status(404)
}

fn redirect_to_directory(r: &mut Request) -> Verdict {
    let mut to = Vec::new();
    wire::http1::escape::escape_uri(r.get(r.head.uri), wire::http1::escape::Escape::Uri, &mut to);
    to.push(b'/');
    if !r.get(r.head.args).is_empty() {
        to.push(b'?');
        to.extend_from_slice(r.get(r.head.args));
    }
    let to = r.text(&to);
    r.answer.headers.set(K::Location, "Location", to);
    Verdict::Status(301)
}

/// `ETag: "mtime-size"` in hexadecimal (`ngx_http_set_etag`).
pub fn set_etag(r: &mut Request, mtime: i64, size: u64) {
    if *r.conf().core.etag {
        let mut room = [0; ETAG];
        let start = format_etag(mtime, size, &mut room);
        let value = r.text(&room[start..]);
        r.answer.headers.set(K::Etag, "ETag", value);
    }
}

/// Two numbers of 16 digits, a hyphen, two quotes.
const ETAG: usize = 35;

/// Writes the tag to the end of the room. Gives where it starts.
fn format_etag(mtime: i64, size: u64, room: &mut [u8; ETAG]) -> usize {
    let mut at = ETAG - 1;
    room[at] = b'"';
    for (n, before) in [(size, b'-'), (mtime as u64, b'"')] {
        let mut rest = n;
        loop {
            at -= 1;
            room[at] = b"0123456789abcdef"[(rest & 15) as usize];
            rest >>= 4;
            if rest == 0 {
                break;
            }
        }
        at -= 1;
        room[at] = before;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags() {
        let tag = |mtime, size| {
            let mut room = [0; ETAG];
            let start = format_etag(mtime, size, &mut room);
            String::from_utf8_lossy(&room[start..]).into_owned()
        };
        assert_eq!(tag(0x5f5e_1001, 612), "\"5f5e1001-264\"");
        assert_eq!(tag(0, 0), "\"0-0\"");
        assert_eq!(tag(-1, u64::MAX), "\"ffffffffffffffff-ffffffffffffffff\"");
    }
}
