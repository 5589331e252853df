//! COPY and MOVE (`ngx_http_dav_copy_move_handler`): where to, whether that may be, and then the disk.

use super::tree::{self, Fault, Placement};
use super::{Depth, bare_path_of, depth_of, on_disk};
use crate::log_error;
use crate::modules::root;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, Text};
use std::io;
use std::path::{Path, PathBuf};

pub(super) async fn answer(r: &mut Request) -> Verdict {
    let target = match destination(r) {
        Ok(target) => target,
        Err(verdict) => return verdict,
    };
    if let Some(refused) = super::ext::guard_target(r, target) {
        return refused;
    }
    let (depth, overwrite) = match (depth_of(r, Depth::Infinity), overwrite(r)) {
        (Some(depth), Some(overwrite)) => (depth, overwrite),
        _ => return Verdict::Status(400),
    };
    match (r.head.method, depth) {
        (_, Depth::Infinity) | (Method::Copy, Depth::Zero) => {}
        (Method::Copy, _) => {
            log_error!(r, Error, "\"Depth\" header must be 0 or infinity");
            return Verdict::Status(400);
        }
        _ => {
            log_error!(r, Error, "\"Depth\" header must be infinity");
            return Verdict::Status(400);
        }
    }
    let from = merged(&bare_path_of(r));
    let to = match target_path(r, target) {
        Ok(to) => to,
        Err(verdict) => return verdict,
    };
    if let Some(refused) = refuses(r, &from, &to, target) {
        return refused;
    }
    let with_slash = r.get(r.head.uri).ends_with(b"/");
    let job = Job {
        moves: r.head.method == Method::Move,
        deep: depth == Depth::Infinity,
        overwrite,
        with_slash,
        access: *r.conf().dav.dav_access,
        from,
        to,
    };
    match on_disk(r, move || job.run()).await {
        Ok(Done::Status(status @ (201 | 204))) => r.respond(status, b""),
        Ok(Done::Status(status)) => Verdict::Status(status),
        Ok(Done::Refused(status, text)) => {
            log_error!(r, Error, "{text}");
            Verdict::Status(status)
        }
        Err(verdict) => verdict,
    }
}

/// The path of the `Destination` header, unescaped. It names this server, by a URL or by a path alone.
fn destination(r: &mut Request) -> Result<Text, Verdict> {
    let Some(value) = r.head.headers.find(K::Destination) else {
        log_error!(r, Error, "client sent no \"Destination\" header");
        return Err(Verdict::Status(400));
    };
    let shown = String::from_utf8_lossy(r.get(value)).into_owned();
    let invalid = |r: &Request| {
        log_error!(r, Error, "client sent invalid \"Destination\" header: \"{shown}\"");
        Verdict::Status(400)
    };
    let raw = r.get(value).to_vec();
    let path = if raw.first() == Some(&b'/') {
        &raw[..]
    } else {
        let scheme: &[u8] = if crate::modules::ssl::is_encrypted(r) { b"https://" } else { b"http://" };
        let Some(rest) = raw.strip_prefix(scheme) else { return Err(invalid(r)) };
        let Some(slash) = memchr::memchr(b'/', rest) else { return Err(invalid(r)) };
        let (host, path) = rest.split_at(slash);
        if !is_this_host(r, host) {
            log_error!(
                r,
                Error,
                "\"Destination\" URI \"{shown}\" is handled by different repository than the source URI"
            );
            return Err(Verdict::Status(400));
        }
        path
    };
    let mut plain = Vec::with_capacity(path.len());
    if wire::http1::target::normalize(path, false, &mut plain).is_err() {
        return Err(invalid(r));
    }
    if plain.ends_with(b"/") != r.get(r.head.uri).ends_with(b"/") {
        let uri = String::from_utf8_lossy(r.get(r.head.uri));
        log_error!(
            r,
            Error,
            "both URI \"{uri}\" and \"Destination\" URI \"{shown}\" should be either collections or non-collections"
        );
        return Err(Verdict::Status(409));
    }
    if let Some(alias) = r.conf().core.root.alias
        && plain.len() < alias
    {
        return Err(invalid(r));
    }
    Ok(r.text(&plain))
}

/// Whether a host, perhaps with a port, is the one that the request was sent to.
fn is_this_host(r: &Request, host: &[u8]) -> bool {
    let bare = match memchr::memrchr(b':', host) {
        Some(colon) if host[colon + 1..].iter().all(u8::is_ascii_digit) => &host[..colon],
        _ => host,
    };
    r.head.headers.host.is_some_and(|own| r.get(own).eq_ignore_ascii_case(bare))
}

/// The `Overwrite` header.
fn overwrite(r: &Request) -> Option<bool> {
    let Some(value) = r.head.headers.find(K::Overwrite) else { return Some(true) };
    match r.get(value) {
        b"T" | b"t" => Some(true),
        b"F" | b"f" => Some(false),
        other => {
            let other = String::from_utf8_lossy(other);
            log_error!(r, Error, "client sent invalid \"Overwrite\" header: \"{other}\"");
            None
        }
    }
}

fn target_path(r: &mut Request, target: Text) -> Result<PathBuf, Verdict> {
    let own = std::mem::replace(&mut r.head.uri, target);
    let path = bare_path_of(r);
    r.head.uri = own;
    if r.has_fault() {
        return Err(Verdict::Status(500));
    }
    debug_assert!(root::check_alias(r), "asked before");
    Ok(merged(&path))
}

/// A path whose runs of slashes are one.
fn merged(path: &Path) -> PathBuf {
    path.components().collect()
}

/// A copy of something onto itself, into itself, or over what it is in.
fn refuses(r: &Request, from: &Path, to: &Path, target: Text) -> Option<Verdict> {
    let (uri, shown) = (String::from_utf8_lossy(r.get(r.head.uri)), String::from_utf8_lossy(r.get(target)));
    if from == to {
        log_error!(r, Error, "both URI \"{uri}\" and \"Destination\" URI \"{shown}\" point to the same location");
        return Some(Verdict::Status(403));
    }
    if uri.ends_with('/') && (to.starts_with(from) || from.starts_with(to)) {
        let method = String::from_utf8_lossy(r.get(r.head.method_name));
        log_error!(r, Error, "\"{uri}\" could not be {method}ed to collection \"{shown}\"");
        return Some(Verdict::Status(403));
    }
    None
}

/// What is to be done on the disk.
struct Job {
    moves: bool,
    deep: bool,
    overwrite: bool,
    with_slash: bool,
    access: u32,
    from: PathBuf,
    to: PathBuf,
}

/// How it ended.
enum Done {
    Status(u16),
    /// With a line for the log.
    Refused(u16, String),
}

impl Job {
    fn run(&self) -> Result<Done, Fault> {
        let existing = match std::fs::symlink_metadata(&self.to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            found => Some(found.map_err(|e| Fault::new("lstat()", &self.to, e, 409))?),
        };
        if let Some(there) = &existing {
            let shown = self.to.display();
            if there.is_dir() && !self.with_slash {
                return Ok(Done::Refused(409, format!("\"{shown}\" is a collection")));
            }
            if !self.overwrite {
                let text = format!("\"{shown}\" could not be created (17: File exists)");
                return Ok(Done::Refused(412, text));
            }
        }
        let facts = std::fs::symlink_metadata(&self.from).map_err(|e| Fault::new("lstat()", &self.from, e, 404))?;
        match (facts.is_dir(), self.with_slash) {
            (true, false) => return Ok(Done::Refused(400, format!("\"{}\" is collection", self.from.display()))),
            (false, true) => {
                return Err(Fault::new("lstat()", &self.from, io::ErrorKind::NotADirectory.into(), 404));
            }
            (false, false) => return self.file(),
            (true, true) => {}
        }
        if let Some(there) = &existing {
            tree::remove(&self.to, there.is_dir())?;
        }
        if self.moves {
            match std::fs::rename(&self.from, &self.to) {
                Ok(()) => return Ok(Done::Status(201)),
                Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {}
                Err(e) => return Err(Fault::new("rename()", &self.to, e, 409)),
            }
        }
        tree::copy_folder(&self.from, &self.to, &facts, self.deep)?;
        if self.moves {
            tree::remove(&self.from, true)?;
        }
        Ok(Done::Status(201))
    }

    fn file(&self) -> Result<Done, Fault> {
        if self.moves {
            let placement = Placement { folders: Some(self.access), ..Placement::default() };
            tree::place(&self.from, None, &self.to, &placement)?;
        } else {
            tree::copy_file(&self.from, &self.to)?;
        }
        Ok(Done::Status(204))
    }
}
