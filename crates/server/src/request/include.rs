//! Answers that other answers are put into: what a subrequest says goes to the client in its place (nginx's
//! `ngx_http_postpone_filter`). Body filters do not wait, so from the first include on an answer is queued here. `drive` begins all
//! includes at once, each a task of its own on copies of its parent's bytes and variables. What one says before its turn is held,
//! as much as is worth the memory, and sent in its turn. Filters before [`Postpone`] see the request's own body, filters after it
//! see the whole.
//!
//! ```text
//! drive ──begin──> task of the child ──hold──> Aside ──next──> drive ──> the client
//! ```

use super::body::Stored;
use super::filter::{BodyFilter, Rest};
use super::headers::{HeaderLine, KnownHeader as K};
use super::lineage::Place;
use super::phases::{self, From, Verdict};
use super::subrequest::{self, Mode, Options, SubSession};
use super::{Method, Request, Text, Values, end, flow};
use crate::connection::Downstream;
use crate::log_error;
use crate::request::chunk::{Chunk, PIECE};
use crate::request::respond::Filtered;
use runtime::TaskId;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;

/// So much may wait for the client before the next piece of the queue is looked at.
const FLUSH: u64 = 64 * 1024;
/// Includes of one answer that are under way at once.
const MAX_TOGETHER: usize = 64;

/// What a child keeps until its parent takes it: then it waits, and its upstream with it.
const HOLD: u64 = 64 * 1024;
/// Children below this run for the first time in their own turn: each that runs at once stands on the stack of its parent.
const AT_ONCE: u8 = 6;

/// A subrequest whose answer has a place in another one.
pub struct Include {
    /// Its uri. Not among its parent's bytes: each include begins with a copy of those.
    pub uri: Box<[u8]>,
    /// Its arguments.
    pub args: Box<[u8]>,
    /// Its body is a variable's value, and the client sees nothing of it.
    pub set: Option<Box<[u8]>>,
    /// What is sent if it fails or has no body.
    pub stub: Option<Rc<Vec<u8>>>,
    /// What it asks with, if not by GET and with its parent's body.
    pub own: Option<Box<Own>>,
}

/// What a subrequest asks with.
pub struct Own {
    /// The method's name.
    pub method: Box<[u8]>,
    /// A body in place of its parent's.
    pub body: Option<Stored>,
}

impl Own {
    fn give(self, child: &mut Request) {
        (child.head.method, child.head.method_name) = (Method::of(&self.method), child.text(&self.method));
        let Some(body) = self.body else { return };
        let (arena, lines) = (&mut child.arena, &mut child.head.headers.head.headers);
        lines.retain(|line| !matches!(line.known, K::ContentLength | K::TransferEncoding));
        let (name, value) = (arena.push(b"Content-Length"), arena.push(body.len.to_string().as_bytes()));
        lines.push(HeaderLine { name, value, known: K::ContentLength });
        (child.head.headers.content_length, child.head.headers.chunked) = (Some(body.len), false);
        child.body.stored = Some(Rc::new(body));
    }
}

/// The text that stands in for a subrequest without an answer.
pub struct Stub {
    text: Rc<Vec<u8>>,
    content_type: Option<Text>,
}

/// What of an answer waits for its includes.
#[derive(Default)]
pub struct Deferred(VecDeque<Piece>);

enum Piece {
    Bytes(Vec<u8>),
    File { file: Rc<OwnedFd>, offset: u64, len: u64 },
    Include(Include),
    Child(Child),
    End,
}

impl Deferred {
    pub(super) fn add(&mut self, chunk: Chunk<'_>, last: bool) {
        match chunk {
            _ if chunk.is_empty() => {}
            Chunk::Bytes(bytes) => match self.0.back_mut() {
                Some(Piece::Bytes(before)) => before.extend_from_slice(bytes),
                _ => self.0.push_back(Piece::Bytes(bytes.to_vec())),
            },
            Chunk::File { file, offset, len } => self.0.push_back(Piece::File { file: file.clone(), offset, len }),
        }
        if last {
            self.0.push_back(Piece::End);
        }
    }
}

/// The header filter: behind all filters that may include.
pub fn filter(r: &mut Request) -> Filtered {
    if r.answer.deferred.is_some() {
        r.answer.body_filters.push(Box::new(Postpone));
    }
    Filtered::Next
}

/// The place in the chain where answers of subrequests come in.
struct Postpone;

impl BodyFilter for Postpone {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        match &mut r.answer.deferred {
            Some(deferred) if !deferred.0.is_empty() => {
                deferred.add(chunk, last);
                Ok(())
            }
            _ => rest.push(r, chunk, last),
        }
    }

    fn include(&mut self, r: &mut Request, include: Include, _rest: Rest<'_>) -> io::Result<()> {
        r.answer.deferred.get_or_insert_default().0.push_back(Piece::Include(include));
        Ok(())
    }

    fn is_postpone(&self) -> bool {
        true
    }
}

/// Puts an include behind what an answer has sent so far; [`drive`] runs it. The head must have gone out with `deferred` set.
pub fn add(r: &mut Request, include: Include) {
    r.answer.deferred.get_or_insert_default().0.push_back(Piece::Include(include));
}

/// Lets the includes of an answer run and sends what they say and what stands between them, until nothing is left that can be sent now.
pub async fn drive(r: &mut Request) -> Result<(), Verdict> {
    while r.answer.deferred.is_some() {
        begin_waiting(r);
        let Some(deferred) = &mut r.answer.deferred else { return Ok(()) };
        let done = match deferred.0.pop_front() {
            // The one nearest to the client: what those before it still have would only come on top.
            None => match r.answer.body_filters.iter().rposition(|f| f.is_waiting() || f.is_stuffed()) {
                None => return Ok(()),
                Some(at) => {
                    if r.answer.body_filters[at].is_stuffed() {
                        poll_fn(|cx| super::filter::poll_stuffed(r, cx)).await;
                    }
                    let done = super::filter::resume(r, at);
                    runtime::yield_now().await;
                    done
                }
            },
            Some(Piece::Bytes(bytes)) => behind(r, Chunk::Bytes(&bytes), false),
            Some(Piece::File { file, offset, len }) => {
                let n = if has_filters_behind(r) { len.min(PIECE) } else { len };
                if n < len {
                    let rest = Piece::File { file: file.clone(), offset: offset + n, len: len - n };
                    r.answer.deferred.get_or_insert_default().0.push_front(rest);
                }
                behind(r, Chunk::File { file: &file, offset, len: n }, false)
            }
            Some(Piece::End) => behind(r, Chunk::Bytes(b""), true),
            Some(Piece::Include(include)) => {
                // There were too many before it.
                turn(r).await;
                let child = begin(r, include);
                Box::pin(go_on(r, child)).await?;
                Ok(())
            }
            Some(Piece::Child(child)) => {
                Box::pin(go_on(r, child)).await?;
                Ok(())
            }
        };
        done.map_err(|e| r.broken(&e))?;
        if r.unsent_bytes() > FLUSH {
            flow::flush_now(r).await?;
        }
    }
    Ok(())
}

/// Whether filters see what is sent behind [`Postpone`].
pub(super) fn has_filters_behind(r: &Request) -> bool {
    !r.answer.tail.is_empty() || r.answer.body_filters.last().is_some_and(|f| !f.is_postpone())
}

/// Sends a piece through the filters behind [`Postpone`].
fn behind(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    match r.answer.body_filters.iter().position(|f| f.is_postpone()) {
        Some(at) => super::filter::run_from(r, at + 1, chunk, last),
        None => r.queue(chunk, last),
    }
}

/// Begins the includes that wait, as many as may be under way at once, in their order. Those under way stand before the others, so
/// the rest of a long page is not looked at.
fn begin_waiting(r: &mut Request) {
    let (mut at, mut under_way) = (0, 0);
    while under_way < MAX_TOGETHER
        && let Some(slot) = r.answer.deferred.as_mut().and_then(|deferred| deferred.0.get_mut(at))
    {
        match slot {
            Piece::Child(_) => under_way += 1,
            Piece::Include(_) if !r.flow.lineage.as_ref().is_none_or(|lineage| lineage.has_room()) => return,
            Piece::Include(_) => {
                if let Piece::Include(include) = std::mem::replace(slot, Piece::End) {
                    let child = begin(r, include);
                    if let Some(slot) = r.answer.deferred.as_mut().and_then(|deferred| deferred.0.get_mut(at)) {
                        *slot = Piece::Child(child);
                    }
                }
                under_way += 1;
            }
            Piece::Bytes(_) | Piece::File { .. } | Piece::End => {}
        }
        at += 1;
    }
}

/// Waits until the include that is next in an answer may be begun: there is room, or what it says is what the client waits for.
async fn turn(r: &Request) {
    poll_fn(|_| match &r.flow.lineage {
        Some(lineage) if !lineage.has_room() && !is_first(r) => {
            places(r).for_each(|place| place.has_waited.set(true));
            lineage.wait(runtime::current());
            Poll::Pending
        }
        _ => Poll::Ready(()),
    })
    .await;
}

/// Whether it is the turn of what the request says, and of all it is included in.
fn is_first(r: &Request) -> bool {
    places(r).all(|place| place.has_turn.get())
}

/// Its place in its parent's answer, its parent's own, and so on.
fn places(r: &Request) -> impl Iterator<Item = &Aside> {
    std::iter::successors(r.flow.aside.as_deref(), |place| place.above.as_deref())
}

/// Sends what the include whose turn it is has said; then it has its turn again, until it is over.
async fn go_on(r: &mut Request, mut child: Child) -> Result<(), Verdict> {
    match next(r, &child).await? {
        Next::Pieces(pieces) => {
            let queue = &mut r.answer.deferred.get_or_insert_default().0;
            queue.push_front(Piece::Child(child));
            pieces.0.into_iter().rev().for_each(|piece| queue.push_front(piece));
            Ok(())
        }
        Next::Done(done) => end_child(r, &mut child, done),
    }
}

/// What stands in for an answer.
pub(super) fn stub(text: Rc<Vec<u8>>, content_type: Option<Text>) -> Box<Stub> {
    Box::new(Stub { text, content_type })
}

/// Answers a subrequest that has failed with its stub, if it has one.
pub fn answer_stub(r: &mut Request) -> Verdict {
    let Some(stub) = r.answer.stub.take() else { return Verdict::Answered };
    if !r.answer.header_sent {
        r.answer.headers.status = 200;
        r.answer.headers.content_type = stub.content_type;
        r.answer.headers.content_length = None;
        if let Err(verdict) = r.send_header() {
            return verdict;
        }
    }
    match r.send_body(Chunk::Bytes(&stub.text), true) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// What parent and child have in common.
pub struct Aside {
    held: RefCell<Deferred>,
    /// Bytes of `held`.
    waiting: Cell<u64>,
    done: Cell<Option<Box<Request>>>,
    /// Nobody waits for it any more.
    given_up: Cell<bool>,
    /// Its parent has nothing to send before it.
    has_turn: Cell<bool>,
    /// It, or one that it includes, has waited for room: it is to hear when it is first.
    has_waited: Cell<bool>,
    /// The parent's own place.
    above: Option<Rc<Aside>>,
    parent: Cell<TaskId>,
    child: Cell<TaskId>,
}

/// A parent's hold on a child. Without it the child ends.
pub struct Child {
    aside: Rc<Aside>,
    /// What becomes of its answer: a variable's value.
    set: Option<Box<[u8]>>,
    /// The parent's variables when it began, and the length of the parent's arena.
    before: Values,
    base: usize,
    /// Among those in memory.
    _place: Place,
}

/// What a child has to give.
pub(super) enum Next {
    /// Pieces of its answer.
    Pieces(Deferred),
    /// All was given: it is over.
    Done(Box<Request>),
}

impl Drop for Child {
    fn drop(&mut self) {
        self.aside.given_up.set(true);
        runtime::wake(self.aside.child.get());
    }
}

impl Aside {
    /// Takes a piece of the child's answer.
    pub(super) fn hold(&self, chunk: Chunk<'_>) {
        self.waiting.set(self.waiting.get() + chunk.len());
        self.held.borrow_mut().add(chunk, false);
        runtime::wake(self.parent.get());
    }

    /// Bytes that wait for the parent.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Ready when the child may say more. Asked by the child's task, which is woken then.
    pub(super) fn poll_room(&self) -> Poll<()> {
        if self.waiting.get() < HOLD { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Begins an include, and lets it come as far as it does without waiting.
pub(super) fn begin(r: &mut Request, include: Include) -> Child {
    let place = Place::new(r.flow.lineage.get_or_insert_default().clone());
    let aside = Rc::new(Aside {
        held: RefCell::default(),
        waiting: Cell::new(0),
        done: Cell::new(None),
        given_up: Cell::new(false),
        has_turn: Cell::new(false),
        has_waited: Cell::new(false),
        above: r.flow.aside.clone(),
        parent: Cell::new(TaskId::NOBODY),
        child: Cell::new(TaskId::NOBODY),
    });
    // The page's own variables are one set for all.
    r.ctx.ssi_shared.get_or_insert_default();
    let mut session = SubSession::new(if include.set.is_some() { Mode::Capture } else { Mode::Hold }, &r.downstream);
    session.aside = include.set.is_none().then(|| aside.clone());
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), Downstream::Sub(session));
    child.copy_shared(r);
    let options = Options { mode: Mode::Capture, with_body: true, get: true };
    let (uri, args) = (child.text(&include.uri), child.text(&include.args));
    subrequest::prepare(&mut child, r, uri, args, &options);
    if let Some(own) = include.own {
        own.give(&mut child);
    }
    child.flow.aside = Some(aside.clone());
    (child.answer.limit_rate, child.answer.limit_rate_after) = (Some(0), Some(0));
    child.answer.in_memory = has_filters_behind(r);
    child.answer.stub = include.stub.map(|text| stub(text, r.answer.headers.content_type));
    let begun =
        Child { aside: aside.clone(), set: include.set, before: r.known_values(), base: r.arena.mark(), _place: place };
    let at_once = r.flow.depth < AT_ONCE;
    let mut work = Box::pin(work(child, aside.clone()));
    let task = poll_fn(move |cx| {
        aside.child.set(runtime::current());
        if aside.given_up.get() { Poll::Ready(()) } else { work.as_mut().poll(cx) }
    });
    if at_once {
        runtime::spawn_now(task)
    } else {
        runtime::spawn(task)
    };
    begun
}

async fn work(mut r: Box<Request>, aside: Rc<Aside>) {
    Box::pin(phases::conclude(&mut r, Verdict::Restart(From::ServerRewrite))).await;
    if r.answer.stub.is_some() && !r.answer.output_begun && !r.flow.aborted {
        r.answer.done = false;
        let verdict = answer_stub(&mut r);
        Box::pin(phases::conclude(&mut r, verdict)).await;
    }
    end(&mut r);
    aside.done.set(Some(r));
    runtime::wake(aside.parent.get());
}

/// Waits for what a child whose turn has come has to say. The client may leave meanwhile.
pub(super) async fn next(r: &mut Request, child: &Child) -> Result<Next, Verdict> {
    let aside = &child.aside;
    aside.has_turn.set(true);
    let mut told = false;
    poll_fn(|cx| {
        if !told && aside.has_waited.get() && is_first(r) {
            told = true;
            runtime::wake(aside.child.get());
        }
        aside.parent.set(runtime::current());
        if aside.waiting.get() > 0 {
            aside.waiting.set(0);
            let pieces = aside.held.take();
            runtime::wake(aside.child.get());
            return Poll::Ready(Ok(Next::Pieces(pieces)));
        }
        if let Some(done) = aside.done.take() {
            return Poll::Ready(Ok(Next::Done(done)));
        }
        if flow::is_client_gone(r, cx) {
            log_error!(r, Info, "client prematurely closed connection");
            r.flow.aborted = true;
            return Poll::Ready(Err(Verdict::Broken));
        }
        Poll::Pending
    })
    .await
}

/// Takes over what a child that is done has changed.
pub(super) fn end_child(r: &mut Request, child: &mut Child, mut done: Box<Request>) -> Result<(), Verdict> {
    r.take_values(&done, &child.before, child.base);
    if let Some(name) = child.set.take()
        && let Downstream::Sub(sub) = std::mem::take(&mut done.downstream)
        && done.answer.headers.status < 300
        && done.answer.output_begun
    {
        r.ctx.ssi_shared.get_or_insert_default().borrow_mut().set(&name, sub.captured);
    }
    if done.flow.aborted { Err(Verdict::Broken) } else { Ok(()) }
}
