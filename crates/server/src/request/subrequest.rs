//! Requests that a request makes for itself: to ask for permission, to copy its traffic, to include other content.
//! A subrequest works on its parent's bytes and variables, which move over while it runs and back when it is done.

use super::include::Aside;
use super::phases::{self, From, Verdict};
use super::{MAX_SUBREQUESTS, Method, Request, Text, end};
use crate::config::complex::Complex;
use crate::connection::Downstream;
use crate::log_error;
use crate::request::chunk::Chunk;
use std::io;
use std::rc::Rc;
use std::task::Poll;

/// Bytes of an answer that a program gets. OpenResty has no limit; this is more than one text of LuaJIT's could be used for.
pub const MAX_WHOLE: u64 = 256 * 1024 * 1024;

/// Where a subrequest's answer goes.
pub struct SubSession {
    /// What happens with the body.
    pub mode: Mode,
    /// The body, if captured.
    pub captured: Vec<u8>,
    /// Bytes of body so far.
    pub length: u64,
    /// The status was taken from an error without a page (`auth_request` looks at nothing else).
    pub plain_status: bool,
    /// Where a body is held.
    pub aside: Option<Rc<Aside>>,
    /// The client's handshake went on when this began.
    pub handshaking: bool,
}

impl SubSession {
    /// For a new subrequest of a request whose answer goes there.
    pub fn new(mode: Mode, parent: &Downstream) -> SubSession {
        let handshaking = parent.is_handshaking();
        SubSession { mode, captured: Vec::new(), length: 0, plain_status: false, aside: None, handshaking }
    }
}

/// What happens with a subrequest's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only its head counts.
    Discard,
    /// It is collected, up to `subrequest_output_buffer_size`.
    Capture,
    /// Its parent takes it when its turn has come.
    Hold,
    /// It is collected, up to [`MAX_WHOLE`]: a program wants it.
    Whole,
}

/// What a subrequest is to be.
pub struct Options {
    /// What happens with its body.
    pub mode: Mode,
    /// Whether it sees the parent's body.
    pub with_body: bool,
    /// GET in place of the parent's method.
    pub get: bool,
}

/// Makes a subrequest and waits for its end. The child is given back with its answer's head; its texts are valid in the
/// parent. Errors: `subrequests cycle`, as a status.
pub async fn run(r: &mut Request, uri: Text, args: Text, options: Options) -> Result<Box<Request>, Verdict> {
    if !is_allowed(r, uri) {
        return Err(Verdict::Status(500));
    }
    let session = r.downstream.child(options.mode);
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), session);
    let mut lent = Lent { parent: r, child: &mut child };
    lent.swap();
    prepare(lent.child, lent.parent, uri, args, &options);
    Box::pin(phases::conclude(lent.child, Verdict::Restart(From::ServerRewrite))).await;
    end(lent.child);
    drop(lent);
    // nginx has one word for a connection: what a subrequest did last stands in its parent's lines too.
    r.action = child.action;
    r.ctx.limit_req = child.ctx.limit_req;
    if child.flow.aborted && child.answer.headers.status == 0 {
        child.answer.headers.status = 500;
    }
    Ok(child)
}

/// Counts another subrequest of the request. Why it may make none.
fn refusal(r: &mut Request) -> Option<&'static str> {
    let is_too_deep = r.flow.depth >= MAX_SUBREQUESTS;
    if is_too_deep {
        return Some("subrequests cycle");
    }
    (!r.flow.lineage.get_or_insert_default().ask()).then_some("too many subrequests")
}

/// The uri of a subrequest that is not made yet.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'u> {
    /// It is a text of the request.
    Text(Text),
    /// It stands elsewhere.
    Bytes(&'u [u8]),
}

impl std::convert::From<Text> for Wanted<'_> {
    fn from(uri: Text) -> Self {
        Wanted::Text(uri)
    }
}

impl<'u> std::convert::From<&'u [u8]> for Wanted<'u> {
    fn from(uri: &'u [u8]) -> Self {
        Wanted::Bytes(uri)
    }
}

/// Whether the request may make another subrequest, which is counted then; logs why not.
pub fn is_allowed<'u>(r: &mut Request, uri: impl Into<Wanted<'u>>) -> bool {
    let Some(why) = refusal(r) else { return true };
    if r.flow.lineage.get_or_insert_default().refuse() {
        let uri = match uri.into() {
            Wanted::Text(uri) => r.get(uri),
            Wanted::Bytes(uri) => uri,
        };
        log_error!(r, Error, "{why} while processing \"{}\"", String::from_utf8_lossy(uri));
    }
    false
}

/// Lets the thread's other tasks run after some subrequests: a page may ask for thousands that need not wait for anything.
pub(super) async fn pace(r: &Request) {
    if r.flow.lineage.as_ref().is_some_and(|lineage| lineage.is_long_since()) {
        runtime::yield_now().await;
    }
}

/// What a subrequest has of its parent, until this is dropped: at its end, or with a request that is given up.
struct Lent<'r> {
    parent: &'r mut Request,
    child: &'r mut Request,
}

impl Lent<'_> {
    fn swap(&mut self) {
        self.child.swap_shared(self.parent);
        std::mem::swap(&mut self.child.ctx.limit_conn, &mut self.parent.ctx.limit_conn);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.swap();
    }
}

/// Makes a subrequest that runs on its own, after the parent's answer or beside it. It has copies of everything.
pub fn spawn(r: &mut Request, uri: Text, args: Text, options: Options) -> Result<(), Verdict> {
    if !is_allowed(r, uri) {
        return Err(Verdict::Status(500));
    }
    let session = r.downstream.child(options.mode);
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), session);
    child.copy_shared(r);
    prepare(&mut child, r, uri, args, &options);
    child.ctx.limit_conn = r.ctx.limit_conn.without_places();
    runtime::spawn(async move {
        phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite)).await;
        end(&mut child);
    });
    Ok(())
}

/// The same request once more, for the same handler: what is shared between it and its parent is the caller's business.
pub(crate) fn duplicate(r: &mut Request, session: Downstream) -> Box<Request> {
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), session);
    let options = Options { mode: Mode::Discard, with_body: true, get: false };
    prepare(&mut child, r, r.head.uri, r.head.args, &options);
    child.head.valid_target = r.head.valid_target;
    child.flow.valid_location = r.flow.valid_location;
    child.head.plain_uri = r.head.plain_uri;
    child.captures.clone_from(&r.captures);
    child.flow.content_handler = r.flow.content_handler;
    child.ctx.slice.clone_from(&r.ctx.slice);
    child
}

/// Makes a new request a subrequest of `r`.
pub(crate) fn prepare(child: &mut Request, r: &mut Request, uri: Text, args: Text, options: &Options) {
    child.flow.depth = r.flow.depth + 1;
    if let (true, Some(lineage)) = (r.is_main(), &r.flow.lineage) {
        lineage.method.set(Some(r.head.method_name));
    }
    child.flow.lineage.clone_from(&r.flow.lineage);
    child.flow.internal = true;
    child.action = r.action;
    child.server = r.server;
    child.location = r.location;
    child.head.method = if options.get { Method::Get } else { r.head.method };
    child.head.method_name = if options.get { Text::from("GET") } else { r.head.method_name };
    child.head.line = r.head.line;
    child.head.target = r.head.target;
    child.head.valid_target = false;
    child.head.uri = uri;
    child.head.args = args;
    child.head.version = r.head.version;
    child.head.scheme = r.head.scheme;
    child.head.headers.head.headers.clone_from(&r.head.headers.head.headers);
    child.head.headers.head.protocol = r.head.headers.head.protocol;
    child.head.headers.host = r.head.headers.host;
    child.head.headers.content_length = r.head.headers.content_length;
    child.head.headers.chunked = r.head.headers.chunked;
    child.head.port = r.head.port;
    child.started_ms = runtime::clock::wall_ms();
    child.flow.parent_uri = Some(r.head.uri);
    child.flow.number = r.flow.number;
    child.flow.main_charset = if r.is_main() { r.answer.headers.charset } else { r.flow.main_charset };
    child.ctx.realip.clone_from(&r.ctx.realip);
    child.ctx.limit_req = r.ctx.limit_req;
    child.ctx.nchan.clone_from(&r.ctx.nchan);
    if options.with_body {
        child.body.stored.clone_from(&r.body.stored);
    }
}

/// A status without an error page in a subrequest: the parent looks at the status, there is no text.
pub fn absorbs(r: &mut Request, status: u16) -> bool {
    let has_page = !r.flow.error_page && r.conf().core.error_pages.iter().any(|p| p.status == status);
    let Downstream::Sub(sub) = &mut r.downstream else { return false };
    if has_page || !matches!(sub.mode, Mode::Discard | Mode::Whole) {
        return false;
    }
    sub.plain_status = true;
    r.answer.headers.status = status;
    r.answer.header_sent = true;
    r.answer.done = true;
    true
}

/// Takes a piece of a subrequest's body.
pub(crate) fn queue(r: &mut Request, chunk: Chunk<'_>) -> io::Result<()> {
    let Downstream::Sub(sub) = &mut r.downstream else { return Ok(()) };
    sub.length += chunk.len();
    if let Some(aside) = &sub.aside {
        aside.hold(chunk);
        return Ok(());
    }
    let most = match sub.mode {
        Mode::Discard | Mode::Hold => return Ok(()),
        Mode::Capture => *r.snapshot.location(r.location).conf.core.subrequest_output_buffer_size,
        Mode::Whole => MAX_WHOLE,
    };
    if sub.length > most {
        let text = format!("too big subrequest response: {}", sub.length);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    match chunk {
        Chunk::Bytes(b) => sub.captured.extend_from_slice(b),
        Chunk::File { file, offset, len } => {
            let before = sub.captured.len();
            sub.captured.resize(before + len as usize, 0);
            let mut at = 0;
            while at < len as usize {
                let n = rustix::io::pread(&**file, &mut sub.captured[before + at..], offset + at as u64)?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                at += n;
            }
        }
    }
    Ok(())
}

/// A subrequest waits for nobody, unless it has said as much before its turn as is held.
pub(crate) fn poll_room(r: &Request) -> Poll<()> {
    match &r.downstream {
        Downstream::Sub(SubSession { aside: Some(aside), .. }) => aside.poll_room(),
        _ => Poll::Ready(()),
    }
}

/// `post_action`: the finished request goes through the phases once more for another uri; the client sees nothing.
pub async fn post_action(r: &mut Request, target: &Complex) {
    let target = target.eval(r);
    let status = r.answer.headers.status;
    let child = r.downstream.child(Mode::Discard);
    let session = std::mem::replace(&mut r.downstream, child);
    let (keepalive, aborted) = (r.flow.keepalive, r.flow.aborted);
    r.answer.header_sent = false;
    r.answer.done = false;
    r.flow.aborted = false;
    r.flow.error_status = 0;
    r.answer.headers.clear();
    r.flow.depth = 1;
    let verdict = match r.get(target).first() {
        Some(b'@') => {
            let name = r.get(target)[1..].to_vec();
            super::finish::named_location(r, &name)
        }
        _ => super::finish::internal_redirect(r, target, Text::EMPTY),
    };
    Box::pin(phases::conclude(r, verdict)).await;
    r.flow.depth = 0;
    r.downstream = session;
    r.answer.headers.status = status;
    (r.flow.keepalive, r.flow.aborted) = (keepalive, aborted);
}
