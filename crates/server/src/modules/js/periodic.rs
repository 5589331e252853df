//! `js_periodic`: functions that run from time to time, without a client. Each is a task of its thread; what it runs for looks like a request
//! of its location.

use super::machine::{self, Pool};
use super::run::{complain, only};
use crate::connection::{Address, Client, Downstream};
use crate::request::Request;
use crate::snapshot::{LocationId, ThreadSnapshot};
use ::js::{Called, Engine};
use runtime::timer::Timer;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// In which worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// In the first.
    First,
    /// In all.
    All,
    /// In those whose place has a mark.
    Mask(Vec<bool>),
}

/// One function.
#[derive(Debug)]
pub struct Periodic {
    /// Its name.
    pub function: Box<str>,
    /// From one beginning to the next.
    pub interval: Duration,
    /// Up to so much later, by chance.
    pub jitter: Duration,
    /// In which worker threads.
    pub affinity: Affinity,
    /// Whose values hold.
    pub location: LocationId,
}

/// A thread begins to serve under a configuration.
pub fn start(snapshot: &Rc<ThreadSnapshot>) {
    for periodic in snapshot.main.js.periodic.iter().filter(|p| p.is_here()) {
        runtime::spawn(live(Rc::downgrade(snapshot), periodic.clone()));
    }
}

/// A thread serves nothing new under it.
pub fn leave(snapshot: &ThreadSnapshot) {
    snapshot.kept.get::<Pool>().exiting.set(true);
    snapshot.kept.get::<Pool>().tasks.borrow().iter().for_each(|task| runtime::wake(*task));
}

/// Which worker thread this is.
fn worker() -> usize {
    let thread = std::thread::current();
    thread.name().and_then(|n| n.strip_prefix("worker ")?.parse().ok()).unwrap_or(0)
}

impl Periodic {
    fn is_here(&self) -> bool {
        match &self.affinity {
            Affinity::First => worker() == 0,
            Affinity::All => true,
            Affinity::Mask(mask) => mask.get(worker()).copied().unwrap_or(false),
        }
    }

    /// Until the next time; the first is at once.
    fn pause(&self, is_first: bool) -> Duration {
        let mut byte = [0; 4];
        let _ = aws_lc_rs::rand::fill(&mut byte);
        let part = f64::from(u32::from_ne_bytes(byte)) / f64::from(u32::MAX);
        let pause = if is_first { Duration::from_millis(1) } else { self.interval };
        pause + self.jitter.mul_f64(part)
    }
}

async fn live(snapshot: Weak<ThreadSnapshot>, periodic: Arc<Periodic>) {
    let task = runtime::current();
    if let Some(snapshot) = snapshot.upgrade() {
        snapshot.kept.get::<Pool>().tasks.borrow_mut().push(task);
    }
    let mut is_first = true;
    let is_over = || snapshot.upgrade().is_none_or(|s| s.kept.get::<Pool>().exiting.get());
    loop {
        let timer = Timer::new();
        timer.set(periodic.pause(std::mem::take(&mut is_first)));
        poll_fn(|cx| if is_over() { Poll::Ready(()) } else { timer.poll_expired(cx) }).await;
        let Some(snapshot) = snapshot.upgrade().filter(|s| !s.kept.get::<Pool>().exiting.get()) else { return };
        turn(&snapshot, &periodic).await;
    }
}

/// One run. One that is not done when the next is due delays it; one that waits when the configuration goes is given up.
async fn turn(snapshot: &Rc<ThreadSnapshot>, periodic: &Periodic) {
    let client = Client::new(0, Address::Unix(Default::default()), 0, std::rc::Weak::new());
    let mut r = Request::new(snapshot.clone(), client, Downstream::None);
    r.location = periodic.location;
    r.started_ms = runtime::clock::wall_ms();
    if snapshot.whole().stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, snapshot.snapshot())) {
        r.ctx.stream = Some(Box::default());
    }
    let Some(engine) = machine::of(&mut r) else { return };
    if let Err(text) = run(&mut r, &engine, periodic, snapshot).await {
        complain(&r, &text);
    }
    super::finish(&mut r);
}

async fn run(
    r: &mut Request,
    engine: &Rc<Engine>,
    periodic: &Periodic,
    snapshot: &Rc<ThreadSnapshot>,
) -> Result<(), String> {
    let called = super::current::enter(r, || engine.call(&periodic.function, |ctx, raw| only(ctx, raw, "periodic")));
    if called? == Called::Done {
        return Ok(());
    }
    poll_fn(|cx| {
        if snapshot.kept.get::<Pool>().exiting.get() {
            return Poll::Ready(Ok(()));
        }
        super::current::enter(r, || engine.poll(cx))
    })
    .await
}
