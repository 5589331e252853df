//! A random file of a directory in place of its index (nginx's `ngx_http_random_index_module`).

use crate::config::{Directive, http, setters};
use crate::files::Kind;
use crate::files::directory::{self, Detail};
use crate::merged_values;
use crate::modules::root;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, finish};

/// The directives.
pub const DIRECTIVES: &[Directive] =
    &[http("random_index", |s, n| setters::flag(&mut s.level.conf.random_index.random_index, n))];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        random_index: bool = false,
    }
}

/// Sends a request for a directory on to one of its files.
pub fn handler(r: &mut Request) -> Verdict {
    if !*r.conf().random_index.random_index
        || !r.get(r.head.uri).ends_with(b"/")
        || !matches!(r.head.method, Method::Get | Method::Head | Method::Post)
    {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = root::path_of(r);
    path.pop();
    let mut dir = match directory::open(r, &path) {
        Ok(dir) => dir,
        Err(verdict) => return verdict,
    };
    let Ok(mut entries) = directory::read(r, &path, &mut dir, Detail::Kinds) else { return Verdict::Status(500) };
    entries.retain(|e| e.kind == Kind::File);
    if entries.is_empty() {
        return Verdict::Decline;
    }
    let name = &entries[random(entries.len())].name;
    let mark = r.arena.mark();
    r.arena.append(r.head.uri);
    r.arena.buffer().extend_from_slice(name);
    let uri = r.arena.since(mark).into();
    finish::internal_redirect(r, uri, r.head.args)
}

/// A number below `end`.
fn random(end: usize) -> usize {
    let mut bytes = [0u8; 8];
    // Without random numbers the first file will do.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    (u64::from_ne_bytes(bytes) % end as u64) as usize
}
