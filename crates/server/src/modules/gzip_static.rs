//! Sends `file.gz` for `file` to clients that take it (nginx's `ngx_http_gzip_static_module`).

use crate::config::{Directive, http, setters};
use crate::files::{self, Kind};
use crate::log::error::Level;
use crate::merged_values;
use crate::modules::{gzip_rules, root, static_files};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};

/// The directives.
pub const DIRECTIVES: &[Directive] =
    &[http("gzip_static", |s, n| setters::one_of(&mut s.level.conf.gzip_static.gzip_static, n, &Mode::WORDS))];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        gzip_static: Mode = Mode::Off,
    }
}

/// `gzip_static`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// To clients that take it.
    On,
    /// To all: `gunzip`, or nobody, unpacks it.
    Always,
}

impl Mode {
    /// The words of the directive, and of others of its kind.
    pub const WORDS: [(&str, Mode); 3] = [("off", Mode::Off), ("on", Mode::On), ("always", Mode::Always)];
}

/// Answers GET and HEAD with the compressed file when there is one.
pub fn handler(r: &mut Request) -> Verdict {
    let mode = *r.conf().gzip_static.gzip_static;
    if mode == Mode::Off || !matches!(r.head.method, Method::Get | Method::Head) || r.get(r.head.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    let ok = mode == Mode::Always || gzip_rules::is_ok(r);
    if !ok && !*r.conf().gzip_rules.gzip_vary {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = std::mem::take(&mut r.scratch);
    path.clear();
    root::write_path(r, r.head.uri, &mut path);
    path.extend_from_slice(b".gz");
    let verdict = serve(r, &path, mode, ok);
    r.scratch = path;
    verdict
}

fn serve(r: &mut Request, path: &[u8], mode: Mode, ok: bool) -> Verdict {
    let found = match files::open(r, path) {
        Ok(found) => found,
        Err(failure) => {
            if !failure.is_not_found() {
                let level = if failure.is_forbidden() { Level::Error } else { Level::Crit };
                failure.log(r, level, path);
            }
            return Verdict::Decline;
        }
    };
    if mode == Mode::On {
        r.ctx.gzip.vary = true;
        if !ok {
            return Verdict::Decline;
        }
    }
    match found.facts.kind {
        Kind::Directory => return Verdict::Decline,
        Kind::File => {}
        Kind::Other => return static_files::not_regular(r, path),
    }
    r.answer.headers.add(K::ContentEncoding, "Content-Encoding", "gzip");
    static_files::respond(r, &found)
}
