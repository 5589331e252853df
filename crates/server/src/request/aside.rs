//! Includes that are worked on while those before them have the way to the client: each is a task of its own, on copies of its
//! parent's bytes and variables. What it says is held here, so much of it that no memory is spent on pages that nobody reads, and
//! its parent sends that when its turn has come. Around: `include`.
//!
//! ```text
//! include::drive ──begin──> task of the child ──hold──> Aside ──next──> include::drive ──> the client
//! ```

use super::filter::Chunk;
use super::include::{self, Deferred, Include};
use super::phases::{self, From, Verdict};
use super::subrequest::{self, Mode, Options, SubSession};
use super::{Request, Values, end, flow};
use crate::connection::Session;
use runtime::TaskId;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// What a child keeps until its parent takes it: then it waits, and its upstream with it.
const HOLD: u64 = 64 * 1024;
/// Children below this run for the first time in their own turn: each that runs at once stands on the stack of its parent.
const AT_ONCE: u8 = 6;

/// What parent and child have in common.
pub struct Aside {
    held: RefCell<Deferred>,
    /// Bytes of `held`.
    waiting: Cell<u64>,
    done: Cell<Option<Box<Request>>>,
    /// Nobody waits for it any more.
    given_up: Cell<bool>,
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
    /// Subrequests that there were.
    subrequests: u16,
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
    r.subrequests += 1;
    let aside = Rc::new(Aside {
        held: RefCell::default(),
        waiting: Cell::new(0),
        done: Cell::new(None),
        given_up: Cell::new(false),
        parent: Cell::new(TaskId::NOBODY),
        child: Cell::new(TaskId::NOBODY),
    });
    // The page's own variables are one set for all.
    r.ssi.get_or_insert_default();
    let mut session = SubSession::new(if include.set.is_some() { Mode::Capture } else { Mode::Hold });
    session.aside = include.set.is_none().then(|| aside.clone());
    let mut child = Request::new(r.shot.clone(), r.client.clone(), Session::Sub(session));
    child.copy_shared(r);
    let options = Options { mode: Mode::Capture, with_body: true, get: true };
    subrequest::prepare(&mut child, r, include.uri, include.args, &options);
    (child.limit_rate, child.limit_rate_after) = (Some(0), Some(0));
    child.in_memory = include::has_filters_behind(r);
    child.stub = include.stub.map(|text| include::stub(text, r.headers_out.content_type));
    let begun = Child {
        aside: aside.clone(),
        set: include.set,
        before: r.known_values(),
        base: r.arena.mark(),
        subrequests: r.subrequests,
    };
    let at_once = r.depth < AT_ONCE;
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
    if r.stub.is_some() && !r.output_begun && !r.aborted {
        r.response_done = false;
        let verdict = include::answer_stub(&mut r);
        Box::pin(phases::conclude(&mut r, verdict)).await;
    }
    end(&mut r);
    aside.done.set(Some(r));
    runtime::wake(aside.parent.get());
}

/// Waits for what a child whose turn has come has to say. The client may leave meanwhile.
pub(super) async fn next(r: &mut Request, child: &Child) -> Result<Next, Verdict> {
    let aside = &child.aside;
    poll_fn(|cx| {
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
            crate::log_error!(r, Info, "client prematurely closed connection");
            r.aborted = true;
            return Poll::Ready(Err(Verdict::Broken));
        }
        Poll::Pending
    })
    .await
}

/// Takes over what a child that is done has changed.
pub(super) fn end_child(r: &mut Request, child: &mut Child, mut done: Box<Request>) -> Result<(), Verdict> {
    r.subrequests = r.subrequests.saturating_add(done.subrequests - child.subrequests);
    r.take_values(&done, &child.before, child.base);
    if let Some(name) = child.set.take()
        && let Session::Sub(sub) = std::mem::take(&mut done.session)
        && done.headers_out.status < 300
        && done.output_begun
    {
        r.ssi.get_or_insert_default().borrow_mut().set(&name, sub.captured);
    }
    if done.aborted { Err(Verdict::Broken) } else { Ok(()) }
}
