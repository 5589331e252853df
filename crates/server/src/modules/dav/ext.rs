//! `dav_ext_methods`: PROPFIND, OPTIONS, LOCK and UNLOCK (arut's `ngx_http_dav_ext_module`, RFC 4918), which clients that show a
//! server as a folder ask for, and PROPPATCH beyond it. Locks are in `locks`, what clients set in `properties`; what they send in XML
//! is read by `wire::webdav`.

use super::locks::{self, Held, Wanted, Zone};
use super::properties::{self, Property};
use super::{Depth, bare_path_of, depth_of};
use crate::config::{Directive, Scope, http, setters};
use crate::log_error;
use crate::modules::root;
use crate::request::phases::{Handler, Verdict};
use crate::request::{Method, Request, Text, body};
use crate::zone::name_and_size;
use crate::{inherited, merged_values, service};
use conf::{Node, Problem, value};
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wire::http1::escape::{Escape, escape_html, escape_uri};
use wire::webdav::{self, Find, Name};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("dav_ext_methods", |s, n| {
        let Scope { build, level } = s;
        setters::bits(build, &mut level.conf.dav_ext.dav_ext_methods, n, METHODS)
    }),
    http("dav_ext_lock", lock_directive),
    http("dav_ext_lock_zone", lock_zone),
];

/// Its place in the content phase.
pub const HANDLER: Handler =
    Handler::Later(|r| bit(r.head.method) & *r.conf().dav_ext.dav_ext_methods != 0, |r| Box::pin(answer(r)));

const METHODS: &[(&str, u32)] =
    &[("off", 0), ("propfind", 1), ("options", 2), ("lock", 4), ("unlock", 8), ("proppatch", 16)];
/// Resources that one PROPFIND tells of.
const MAX_FOUND: usize = 10_000;
/// Properties that clients have set, in one answer to PROPFIND, bytes.
const MAX_SET: usize = 4 * 1024 * 1024;
/// How deep `Depth: infinity` goes.
const MAX_DEPTH: usize = 64;
/// The module's name in the table of zones.
const OWNER: &str = "dav_ext_lock";
/// How long locks last without `timeout=`.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

fn bit(method: Method) -> u32 {
    match method {
        Method::Propfind => 1,
        Method::Options => 2,
        Method::Lock => 4,
        Method::Unlock => 8,
        Method::Proppatch => 16,
        _ => 0,
    }
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// A bit for each method.
        dav_ext_methods: u32 = 0,
        /// Where locks are kept.
        zone: Option<Arc<Zone>> = None,
    }
}

inherited!(Conf, |_| true);

/// `zone=NAME`
fn lock_directive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].text.strip_prefix(b"zone=").filter(|n| !n.is_empty());
    let name = name.ok_or_else(|| node.problem(format!("invalid parameter \"{}\"", node.args[0].as_str())))?;
    let zone = scope.build.main.dav_locks.iter().find(|zone| *zone.name == *name).cloned();
    let unknown = || node.problem(format!("unknown lock zone \"{}\"", String::from_utf8_lossy(name)));
    setters::value(&mut scope.level.conf.dav_ext.zone, node, Some(zone.ok_or_else(unknown)?))
}

/// `zone=NAME:SIZE [timeout=TIME]`
fn lock_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut zone, mut timeout) = (None, LOCK_TIMEOUT);
    for word in &node.args {
        if let Some(text) = word.text.strip_prefix(b"zone=") {
            zone = Some(name_and_size(node, word, text)?);
        } else if let Some(text) = word.text.strip_prefix(b"timeout=") {
            let ms = value::milliseconds(text).filter(|n| *n > 0);
            let bad = || node.problem(format!("invalid parameter \"{}\"", word.as_str()));
            timeout = Duration::from_millis(ms.ok_or_else(bad)?);
        } else {
            return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
        }
    }
    let (name, size) = zone.ok_or_else(|| Problem::invalid_arguments(node))?;
    scope.build.main.zones.add(name, size, OWNER).map_err(|t| node.problem(t))?;
    scope.build.main.dav_locks.push(locks::open(name, size, timeout));
    Ok(())
}

async fn answer(r: &mut Request) -> Verdict {
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    match r.head.method {
        Method::Options => options(r),
        Method::Propfind => propfind(r).await.unwrap_or_else(|verdict| verdict),
        Method::Proppatch => proppatch(r).await.unwrap_or_else(|verdict| verdict),
        Method::Lock => lock(r).await.unwrap_or_else(|verdict| verdict),
        _ => unlock(r),
    }
}

fn options(r: &mut Request) -> Verdict {
    if let Err(status) = body::discard_arrived(r) {
        return Verdict::Status(status);
    }
    let (own, dav) = (*r.conf().dav_ext.dav_ext_methods, *r.conf().dav.dav_methods);
    let locks = own & bit(Method::Lock) != 0 && r.conf().dav_ext.zone.is_some();
    let mut allow = b"GET, HEAD".to_vec();
    let names = [(dav, 1, "PUT"), (dav, 2, "DELETE"), (dav, 4, "MKCOL"), (dav, 8, "COPY"), (dav, 16, "MOVE")];
    let more =
        [(own, 1, "PROPFIND"), (own, 2, "OPTIONS"), (own, 4, "LOCK"), (own, 8, "UNLOCK"), (own, 16, "PROPPATCH")];
    for (_, _, name) in names.into_iter().chain(more).filter(|(set, bit, _)| set & bit != 0) {
        allow.extend_from_slice(b", ");
        allow.extend_from_slice(name.as_bytes());
    }
    let allow = r.text(&allow);
    r.answer.headers.push(Text::from("DAV"), Text::from(if locks { "1, 2" } else { "1" }));
    r.answer.headers.push(Text::from("Allow"), allow);
    r.respond(200, b"")
}

/// Reads the body, which is XML and short.
async fn read_xml(r: &mut Request) -> Result<Vec<u8>, Verdict> {
    if r.head.headers.content_length.is_some_and(|n| n > webdav::MAX_BODY as u64) {
        return Err(Verdict::Status(413));
    }
    let (mut bytes, mut over) = (Vec::new(), !r.body.is_present());
    body::confirm_expectation(r);
    while !over {
        over = body::read_some(r, &mut bytes).await?;
        if bytes.len() > webdav::MAX_BODY {
            return Err(Verdict::Status(413));
        }
    }
    Ok(bytes)
}

/// One resource that is told of.
struct Resource {
    /// Its path, escaped.
    href: Vec<u8>,
    /// The path as locks know it.
    uri: Vec<u8>,
    name: Vec<u8>,
    is_folder: bool,
    size: u64,
    mtime: i64,
    /// What clients have set, as far as it is asked for.
    set: Vec<Property>,
}

async fn propfind(r: &mut Request) -> Result<Verdict, Verdict> {
    let wanted = webdav::propfind(&read_xml(r).await?).map_err(|_| {
        log_error!(r, Error, "PROPFIND: the body is not XML that is understood");
        Verdict::Status(400)
    })?;
    let depth = depth_of(r, Depth::Infinity).ok_or(Verdict::Status(400))?;
    let path = bare_path_of(r);
    let facts = std::fs::metadata(&path).map_err(|e| failed(r, &path, &e))?;
    let levels = match (facts.is_dir(), depth) {
        (false, _) | (_, Depth::Zero) => 0,
        (_, Depth::One) => 1,
        (_, Depth::Infinity) => MAX_DEPTH,
    };
    let mut uri = r.get(r.head.uri).to_vec();
    if facts.is_dir() && !uri.ends_with(b"/") {
        uri.push(b'/');
    }
    let sets = sets_properties(r);
    let found = service::blocking(move || {
        let mut found = PropfindAnswer { list: Vec::new(), wanted: sets.then(|| wanted.clone()), set_bytes: 0 };
        found.note(&path, &uri, &facts);
        found.walk(&path, &uri, levels).then_some((found.list, wanted))
    });
    let Some((found, wanted)) = found.await.ok_or(Verdict::Status(500))? else {
        log_error!(r, Error, "PROPFIND: more than {MAX_FOUND} resources, or {MAX_SET} bytes of properties");
        let page = b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:error xmlns:D=\"DAV:\"><D:propfind-finite-depth/></D:error>\n";
        r.answer.headers.content_type = Some(Text::from("text/xml"));
        return Ok(r.respond(403, page));
    };
    let zone = (*r.conf().dav_ext.zone).clone();
    let mut page = b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n".to_vec();
    for one in &found {
        response(one, &wanted, zone.as_deref(), &mut page);
    }
    page.extend_from_slice(b"</D:multistatus>\n");
    r.answer.headers.content_type = Some(Text::from("text/xml"));
    r.answer.headers.charset = Some(Text::from("utf-8"));
    Ok(r.respond(207, &page))
}

/// Sets and removes properties: all that is asked for, or nothing (RFC 4918 section 9.2).
async fn proppatch(r: &mut Request) -> Result<Verdict, Verdict> {
    let changes = webdav::proppatch(&read_xml(r).await?).map_err(|_| {
        log_error!(r, Error, "PROPPATCH: the body is not XML that is understood");
        Verdict::Status(400)
    })?;
    if let Some(zone) = &*r.conf().dav_ext.zone
        && !zone.allows_itself(r.get(r.head.uri), &tokens(r))
    {
        log_error!(r, Error, "\"{}\" is locked", String::from_utf8_lossy(r.get(r.head.uri)));
        return Err(Verdict::Status(423));
    }
    let path = bare_path_of(r);
    std::fs::metadata(&path).map_err(|e| failed(r, &path, &e))?;
    let mut names: Vec<Name> = Vec::new();
    for change in &changes {
        if !names.contains(change.name()) {
            names.push(change.name().clone());
        }
    }
    let outcome = if names.iter().any(is_known) {
        Some("403 Forbidden")
    } else {
        let place = path.clone();
        let changed = service::blocking(move || properties::change(&place, &changes)).await;
        match changed.ok_or(Verdict::Status(500))? {
            Ok(()) => None,
            Err(e) => {
                let text = crate::log::os_error(&e);
                log_error!(r, Error, "setxattr() \"{}\" failed ({text})", path.display());
                Some(if e.kind() == io::ErrorKind::PermissionDenied {
                    "403 Forbidden"
                } else {
                    "507 Insufficient Storage"
                })
            }
        }
    };
    let mut page =
        b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n<D:response>\n<D:href>"
            .to_vec();
    let mut href = Vec::new();
    escape_uri(r.get(r.head.uri), Escape::Uri, &mut href);
    escape_html(&href, &mut page);
    page.extend_from_slice(b"</D:href>\n");
    for name in &names {
        let status = match outcome {
            None => "200 OK",
            // Only these are refused, the others are not made because of them.
            Some("403 Forbidden") if names.iter().any(is_known) && !is_known(name) => "424 Failed Dependency",
            Some(status) => status,
        };
        page.extend_from_slice(b"<D:propstat>\n<D:prop>\n");
        empty_element(name, &mut page);
        let _ = write!(page, "</D:prop>\n<D:status>HTTP/1.1 {status}</D:status>\n</D:propstat>\n");
    }
    page.extend_from_slice(b"</D:response>\n</D:multistatus>\n");
    r.answer.headers.content_type = Some(Text::from("text/xml"));
    r.answer.headers.charset = Some(Text::from("utf-8"));
    Ok(r.respond(207, &page))
}

fn failed(r: &Request, path: &Path, e: &io::Error) -> Verdict {
    log_error!(r, Error, "stat() \"{}\" failed ({})", path.display(), crate::log::os_error(e));
    Verdict::Status(match e.kind() {
        io::ErrorKind::PermissionDenied => 403,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => 404,
        _ => 500,
    })
}

/// What a PROPFIND has found so far.
struct PropfindAnswer {
    list: Vec<Resource>,
    /// What is asked for of what clients have set; none: clients set nothing here.
    wanted: Option<Find>,
    /// Bytes of that.
    set_bytes: usize,
}

impl PropfindAnswer {
    fn note(&mut self, path: &Path, uri: &[u8], facts: &Metadata) {
        let mut href = Vec::new();
        escape_uri(uri, Escape::Uri, &mut href);
        let bare = uri.strip_suffix(b"/").unwrap_or(uri);
        let name = bare[memchr::memrchr(b'/', bare).map_or(0, |at| at + 1)..].to_vec();
        let (is_folder, size, mtime) = (facts.is_dir(), facts.len(), facts.mtime());
        let set = match &self.wanted {
            None => Vec::new(),
            // All are live ones.
            Some(Find::Some(names)) if names.iter().all(is_known) => Vec::new(),
            Some(Find::Some(names)) => {
                properties::of(path).into_iter().filter(|one| names.contains(&one.name)).collect()
            }
            Some(Find::All | Find::Names) => properties::of(path),
        };
        self.set_bytes += set.iter().map(|one| one.element.len()).sum::<usize>();
        self.list.push(Resource { href, uri: uri.to_vec(), name, is_folder, size, mtime, set });
    }

    /// Adds what is in a folder. False: there is too much of it. Links are told of as what they lead to, and not followed further.
    fn walk(&mut self, folder: &Path, uri: &[u8], levels: usize) -> bool {
        if levels == 0 {
            return true;
        }
        let Ok(entries) = std::fs::read_dir(folder) else { return true };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(facts) = std::fs::metadata(&path) else { continue };
            if self.list.len() >= MAX_FOUND || self.set_bytes >= MAX_SET {
                return false;
            }
            let mut uri = [uri, entry.file_name().as_bytes()].concat();
            if facts.is_dir() {
                uri.push(b'/');
            }
            self.note(&path, &uri, &facts);
            let is_link = entry.file_type().is_ok_and(|t| t.is_symlink());
            if facts.is_dir() && !is_link && !self.walk(&path, &uri, levels - 1) {
                return false;
            }
        }
        true
    }
}

/// Whether clients set properties here.
pub(super) fn sets_properties(r: &Request) -> bool {
    *r.conf().dav_ext.dav_ext_methods & bit(Method::Proppatch) != 0
}

/// The properties that are known here.
const KNOWN: [&[u8]; 6] =
    [b"displayname", b"getcontentlength", b"getlastmodified", b"resourcetype", b"lockdiscovery", b"supportedlock"];

fn is_known(name: &Name) -> bool {
    KNOWN.iter().any(|known| name.is_dav(known))
}

/// An element with nothing in it.
fn empty_element(name: &Name, out: &mut Vec<u8>) {
    let (mut local, mut space) = (Vec::new(), Vec::new());
    escape_html(&name.local, &mut local);
    escape_html(&name.space, &mut space);
    // A prefix cannot stand for no namespace.
    let parts: [&[u8]; 5] = match space.is_empty() {
        true => [b"<", &local, b" xmlns=\"", b"", b"\"/>\n"],
        false => [b"<x:", &local, b" xmlns:x=\"", &space, b"\"/>\n"],
    };
    out.extend(parts.concat());
}

fn response(found: &Resource, wanted: &Find, zone: Option<&Zone>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"<D:response>\n<D:href>");
    escape_html(&found.href, out);
    out.extend_from_slice(b"</D:href>\n<D:propstat>\n<D:prop>\n");
    let mut missing: Vec<&Name> = Vec::new();
    match wanted {
        Find::All => {
            KNOWN.iter().for_each(|name| property(found, name, zone, out));
            for one in &found.set {
                out.extend_from_slice(&one.element);
                out.push(b'\n');
            }
        }
        Find::Names => {
            for name in KNOWN {
                let _ = writeln!(out, "<D:{}/>", String::from_utf8_lossy(name));
            }
            found.set.iter().for_each(|one| empty_element(&one.name, out));
        }
        Find::Some(names) => {
            for name in names {
                match KNOWN.iter().find(|known| name.is_dav(known)) {
                    // A folder has no length.
                    Some(known) if !(found.is_folder && *known == b"getcontentlength") => {
                        property(found, known, zone, out)
                    }
                    _ => match found.set.iter().find(|one| one.name == *name) {
                        Some(one) => out.extend_from_slice(&one.element),
                        None => missing.push(name),
                    },
                }
            }
        }
    }
    out.extend_from_slice(b"</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n");
    if !missing.is_empty() {
        out.extend_from_slice(b"<D:propstat>\n<D:prop>\n");
        missing.iter().for_each(|name| empty_element(name, out));
        out.extend_from_slice(b"</D:prop>\n<D:status>HTTP/1.1 404 Not Found</D:status>\n</D:propstat>\n");
    }
    out.extend_from_slice(b"</D:response>\n");
}

fn property(found: &Resource, name: &[u8], zone: Option<&Zone>, out: &mut Vec<u8>) {
    match name {
        b"displayname" => {
            out.extend_from_slice(b"<D:displayname>");
            escape_html(&found.name, out);
            out.extend_from_slice(b"</D:displayname>\n");
        }
        b"getcontentlength" if found.is_folder => {}
        b"getcontentlength" => _ = writeln!(out, "<D:getcontentlength>{}</D:getcontentlength>", found.size),
        b"getlastmodified" => {
            out.extend_from_slice(b"<D:getlastmodified>");
            out.extend_from_slice(&wire::date::format_http(found.mtime));
            out.extend_from_slice(b"</D:getlastmodified>\n");
        }
        b"resourcetype" if found.is_folder => {
            out.extend_from_slice(b"<D:resourcetype><D:collection/></D:resourcetype>\n");
        }
        b"resourcetype" => out.extend_from_slice(b"<D:resourcetype/>\n"),
        b"lockdiscovery" => {
            out.extend_from_slice(b"<D:lockdiscovery>");
            let held = zone.map(|zone| zone.held(&found.uri)).unwrap_or_default();
            held.iter().for_each(|held| active_lock(held, out));
            out.extend_from_slice(b"</D:lockdiscovery>\n");
        }
        _ if zone.is_some() => {
            out.extend_from_slice(b"<D:supportedlock>");
            for scope in ["exclusive", "shared"] {
                let _ = write!(
                    out,
                    "<D:lockentry><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>"
                );
            }
            out.extend_from_slice(b"</D:supportedlock>\n");
        }
        _ => out.extend_from_slice(b"<D:supportedlock/>\n"),
    }
}

fn active_lock(held: &Held, out: &mut Vec<u8>) {
    let depth = if held.infinite { "infinity" } else { "0" };
    let scope = if held.exclusive { "exclusive" } else { "shared" };
    let _ = write!(
        out,
        "<D:activelock><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype><D:depth>{depth}</D:depth><D:owner>"
    );
    escape_html(&held.owner, out);
    let _ = write!(
        out,
        "</D:owner><D:timeout>Second-{}</D:timeout><D:locktoken><D:href>{}</D:href></D:locktoken><D:lockroot><D:href>",
        held.seconds, held.token
    );
    let mut href = Vec::new();
    escape_uri(&held.uri, Escape::Uri, &mut href);
    escape_html(&href, out);
    out.extend_from_slice(b"</D:href></D:lockroot></D:activelock>");
}

async fn lock(r: &mut Request) -> Result<Verdict, Verdict> {
    let Some(zone) = (*r.conf().dav_ext.zone).clone() else {
        log_error!(r, Error, "LOCK without \"dav_ext_lock\"");
        return Err(Verdict::Status(405));
    };
    let asked = webdav::lock(&read_xml(r).await?).map_err(|_| {
        log_error!(r, Error, "LOCK: the body is not XML that is understood");
        Verdict::Status(400)
    })?;
    let uri = r.get(r.head.uri).to_vec();
    let Some(asked) = asked else {
        // A lock is held longer.
        let held = tokens(r).iter().find_map(|token| zone.refresh(&uri, token));
        return match held {
            Some(held) => Ok(locked(r, 200, &held)),
            None => Err(Verdict::Status(412)),
        };
    };
    let depth = depth_of(r, Depth::Infinity).filter(|d| *d != Depth::One).ok_or(Verdict::Status(400))?;
    if let Some(refused) = guard_parent(r, &zone, &tokens(r)) {
        return Err(refused);
    }
    let path: PathBuf = bare_path_of(r);
    let is_new = !path.exists();
    let infinite = depth == Depth::Infinity;
    let held = match zone.take(&Wanted { uri: &uri, infinite, exclusive: asked.exclusive, owner: &asked.owner }) {
        Ok(held) => held,
        Err(locks::Refused::Locked) => return Err(Verdict::Status(423)),
        Err(locks::Refused::Full) => {
            log_error!(r, Error, "LOCK: the zone \"{}\" is full", String::from_utf8_lossy(&zone.name));
            return Err(Verdict::Status(507));
        }
    };
    if is_new && !uri.ends_with(b"/") {
        // RFC 4918 section 7.3: a lock on what is not there makes an empty resource.
        let made = std::fs::File::options().write(true).create_new(true).open(&path);
        if let Err(e) = made {
            zone.release(&uri, &held.token);
            log_error!(r, Error, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            return Err(Verdict::Status(409));
        }
    }
    Ok(locked(r, if is_new { 201 } else { 200 }, &held))
}

fn locked(r: &mut Request, status: u16, held: &Held) -> Verdict {
    let mut page = b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>".to_vec();
    active_lock(held, &mut page);
    page.extend_from_slice(b"</D:lockdiscovery></D:prop>\n");
    let token = r.text(format!("<{}>", held.token).as_bytes());
    r.answer.headers.push(Text::from("Lock-Token"), token);
    r.answer.headers.content_type = Some(Text::from("text/xml"));
    r.answer.headers.charset = Some(Text::from("utf-8"));
    r.respond(status, &page)
}

fn unlock(r: &mut Request) -> Verdict {
    if let Err(status) = body::discard_arrived(r) {
        return Verdict::Status(status);
    }
    let Some(zone) = (*r.conf().dav_ext.zone).clone() else { return Verdict::Status(405) };
    let line = r.head.headers.named(&r.arena, b"lock-token").next();
    let Some(token) = line.and_then(|l| bracketed(r.arena.span(l.value)).into_iter().next()) else {
        return Verdict::Status(400);
    };
    match zone.release(r.get(r.head.uri), &token) {
        true => r.respond(204, b""),
        false => Verdict::Status(409),
    }
}

/// The tokens of the `If` header (RFC 4918 section 10.4). What is said of entity tags is left aside: having the token is what counts.
fn tokens(r: &Request) -> Vec<String> {
    r.head.headers.named(&r.arena, b"if").flat_map(|line| bracketed(r.arena.span(line.value))).collect()
}

/// What stands between `<` and `>`.
fn bracketed(text: &[u8]) -> Vec<String> {
    let parts = text.split(|b| *b == b'<').skip(1);
    let inside = parts.filter_map(|part| part.split(|b| *b == b'>').next());
    inside.take(16).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// Whether somebody else has locked what the request changes. Asked by the methods of `dav_methods`.
pub(super) fn guard(r: &Request, uris: &[&[u8]]) -> Option<Verdict> {
    let zone = r.conf().dav_ext.zone.as_ref()?;
    let tokens = tokens(r);
    let refused = uris.iter().any(|uri| !zone.allows(uri, &tokens)) || guard_parent(r, zone, &tokens).is_some();
    if !refused {
        return None;
    }
    log_error!(r, Error, "\"{}\" is locked", String::from_utf8_lossy(r.get(r.head.uri)));
    Some(Verdict::Status(423))
}

/// The same of where COPY and MOVE go.
pub(super) fn guard_target(r: &mut Request, target: Text) -> Option<Verdict> {
    r.conf().dav_ext.zone.as_ref()?;
    let own = std::mem::replace(&mut r.head.uri, target);
    let refused = guard(r, &[r.get(target)]);
    r.head.uri = own;
    refused
}

/// A lock on a folder keeps names from being added to it and taken out (RFC 4918 section 7.4).
fn guard_parent(r: &Request, zone: &Zone, tokens: &[String]) -> Option<Verdict> {
    let uri = r.get(r.head.uri);
    let bare = uri.strip_suffix(b"/").unwrap_or(uri);
    let parent = &bare[..memchr::memrchr(b'/', bare).map_or(0, |at| at + 1)];
    (!zone.allows_itself(parent, tokens)).then_some(Verdict::Status(423))
}
