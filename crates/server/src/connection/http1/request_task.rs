//! Where a request is worked on. All that a request may have to wait for makes a future of 2 kB; a thread works on few at a time, and
//! each takes the place that was left last: memory that is in the processor's cache, whichever connection the request came through.
//! A connection between two requests has none of it. Measured: perf/notes/2026-11-22-loop.md.

use super::{Http1, go_on, one_request};
use crate::request::Request;
use crate::request::phases::{Back, Work};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Tasks that a thread keeps: as many as a busy one has in use at once.
const KEEP: usize = 256;

/// A request that was worked on.
pub(super) struct Done {
    pub(super) request: Box<Request>,
    /// What becomes of the connection, if it lives on.
    pub(super) then: Then,
    /// The connection, if it lives on.
    pub(super) session: Option<Box<Http1>>,
}

/// What becomes of a connection after a request.
pub(super) enum Then {
    /// It waits for the next one, so long.
    Wait(Duration),
    /// HTTP/2 begins.
    Http2,
    /// It is closed once the client has stopped sending (`lingering_time`, `lingering_timeout`).
    Linger {
        /// In all.
        time: Duration,
        /// For each read.
        each: Duration,
    },
    /// A handler has it, until it gives the request back.
    Held(Work),
}

impl Then {
    /// What is said of a connection that is gone.
    pub(super) const OVER: Then = Then::Wait(Duration::ZERO);
}

/// What a task gets to work on.
pub(super) enum New {
    /// A request whose head is to be read.
    Request(Box<Request>),
    /// One that a handler had put aside.
    Back(Back),
}

/// How a request comes to the task and leaves it.
#[derive(Default)]
struct Handoff {
    new: Cell<Option<New>>,
    done: Cell<Option<Done>>,
}

struct RequestTask {
    handoff: Rc<Handoff>,
    worker: Pin<Box<dyn Future<Output = Infallible>>>,
}

thread_local! {
    // Boxed: who waits has one word of it.
    #[allow(clippy::vec_box)]
    static FREE: RefCell<Vec<Box<RequestTask>>> = const { RefCell::new(Vec::new()) };
}

/// Works on one request. A task whose request is given up half way goes with it.
pub(super) fn work(new: New) -> Working {
    let task = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(RequestTask::new);
    task.handoff.new.set(Some(new));
    Working { task: Some(task) }
}

/// A request that is worked on.
pub(super) struct Working {
    task: Option<Box<RequestTask>>,
}

impl Future for Working {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let place = &mut self.get_mut().task;
        let Some(task) = place else { return Poll::Pending };
        if let Poll::Ready(never) = task.worker.as_mut().poll(cx) {
            match never {}
        }
        let Some(done) = task.handoff.done.take() else { return Poll::Pending };
        place.take().into_iter().for_each(give_back);
        Poll::Ready(done)
    }
}

fn give_back(task: Box<RequestTask>) {
    FREE.with_borrow_mut(|free| {
        if free.len() < KEEP {
            free.push(task);
        }
    });
}

impl RequestTask {
    fn new() -> Box<RequestTask> {
        let handoff = Rc::<Handoff>::default();
        Box::new(RequestTask { worker: Box::pin(work_at(handoff.clone())), handoff })
    }
}

async fn work_at(handoff: Rc<Handoff>) -> Infallible {
    loop {
        let new = poll_fn(|_| handoff.new.take().map_or(Poll::Pending, Poll::Ready)).await;
        let (request, then, session) = match new {
            New::Request(mut request) => {
                let (then, session) = one_request(&mut request).await;
                (request, then, session)
            }
            New::Back(Back { mut request, go_on: handler }) => {
                let (then, session) = Box::pin(go_on(&mut request, handler)).await;
                (request, then, session)
            }
        };
        handoff.done.set(Some(Done { request, then, session }));
    }
}
