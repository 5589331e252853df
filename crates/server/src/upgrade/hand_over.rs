//! The worker that goes: its control thread's part of the way to another process. From: `serve`. To: `leave`, on each of its threads.

use super::leave;
use super::line::Line;
use super::zones;
use crate::connection;
use crate::log::error::Level;
use crate::log::process_line;
use crate::master::Reporter;
use crate::master::channel::Handle;
use crate::modules::nchan::succession::{self, Hearing};
use crate::worker::departure::To;
use crate::worker::order::Order;
use heir::Frame;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// How long a thread may take to stop accepting, and how long none of its connections may go, before the others go on without it.
const STUCK: Duration = Duration::from_secs(10);
/// A Redis whose channels have clients that go may take so long to be heard.
const HEARING: Duration = Duration::from_secs(2);
/// Whoever waits for all connections hears so often how many have gone.
const SAY: Duration = Duration::from_secs(2);
/// Lines of a thread: there may be more threads there than here.
const MOST_LINES: usize = 16;

/// Where threads take orders.
type Threads = Vec<UnboundedSender<Order>>;

/// What is under way.
pub struct HandOver {
    step: Arc<AtomicU8>,
    gone: Arc<AtomicU64>,
}

/// The other process is not ready; connections are on their way; all have gone that could, or nobody takes them any more.
const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const OVER: u8 = 2;

impl HandOver {
    /// Whether the other process was ready: a shutdown waits for what is on its way.
    pub fn has_begun(&self) -> bool {
        self.step.load(Relaxed) != WAITS
    }

    /// How many connections have gone so far.
    pub fn gone(&self) -> u64 {
        self.gone.load(Relaxed)
    }

    /// Whether nothing is on its way any more.
    pub fn is_over(&self) -> bool {
        self.step.load(Relaxed) == OVER
    }
}

/// Hands what this worker has to the process at the other end of a line, once that is ready. In a thread of its own, as long as the line
/// lasts.
pub fn hand_over(line: OwnedFd, threads: Threads, reporter: Reporter) -> HandOver {
    let step = Arc::new(AtomicU8::new(WAITS));
    let gone = Arc::new(AtomicU64::new(0));
    let (steps, count, mut line) = (step.clone(), gone.clone(), Line::new(line));
    let work = move || {
        // It has to read its configuration first, or may never come.
        let ready = line.hear(None);
        let Ok(Some(ready)) = ready else { return steps.store(OVER, Relaxed) };
        let Ok(Frame::Ready(heirs)) = Frame::read(&ready.bytes) else {
            steps.store(OVER, Relaxed);
            return process_line(Level::Error, format_args!("the new process says what this one does not know"));
        };
        steps.store(BEGUN, Relaxed);
        let given = give(&mut line, &threads, heirs, &count, &reporter);
        steps.store(OVER, Relaxed);
        let is_whole = given.is_ok();
        match given {
            Ok(()) => reporter.handed_over(count.load(Relaxed)),
            Err(e) => {
                let text = crate::log::os_error(&e);
                process_line(Level::Error, format_args!("connections could not be handed over ({text})"));
            }
        }
        // The line lasts as long as both processes do, and nothing more is said on it. Where not all was said both serve on their own.
        while is_whole && let Ok(Some(_)) = line.hear(None) {}
        line.end();
        process_line(
            Level::Notice,
            format_args!("the line to the process that was handed connections has ended: this one serves on"),
        );
        succession::stay();
        accept(&threads, true);
    };
    // Without a thread nothing goes, and the end of the line tells the other process.
    let _ = std::thread::Builder::new().name("hand over".to_owned()).spawn(work);
    HandOver { step, gone }
}

/// Has all threads accept connections, or leave them to another process.
pub(super) fn accept(threads: &Threads, accepts: bool) {
    let (done, heard) = mpsc::channel();
    for thread in threads {
        let _ = thread.send(Order::Accept(accepts, done.clone()));
    }
    drop(done);
    for _ in threads {
        if heard.recv_timeout(STUCK).is_err() {
            return;
        }
    }
}

/// Waits until groups in a Redis are heard. False: that has taken too long.
pub(super) fn hear(threads: &Threads, groups: Vec<Vec<u8>>, hearing: Hearing) -> bool {
    let (done, heard) = mpsc::channel();
    let work = move || {
        succession::hear_groups(groups, hearing, move || {
            let _ = done.send(());
        });
    };
    threads[0].send(Order::Do(Box::new(work))).is_ok() && heard.recv_timeout(HEARING).is_ok()
}

/// Channels and zones first, then the connections of all threads, which count those that went.
fn give(line: &mut Line, threads: &Threads, heirs: u64, gone: &Arc<AtomicU64>, reporter: &Reporter) -> io::Result<()> {
    accept(threads, false);
    let speaker = Arc::new(Mutex::new(line.again()?));
    let say = |bytes: &[u8], files| speaker.lock().unwrap_or_else(PoisonError::into_inner).say(bytes, files);
    let late = speaker.clone();
    let mut said = Ok(());
    succession::leave(
        |frame| {
            if said.is_ok() {
                said = say(&frame, Vec::new());
            }
        },
        move |frame| late.lock().unwrap_or_else(PoisonError::into_inner).say(&frame, Vec::new()).is_ok(),
    );
    zones::leave(|frame| {
        if said.is_ok() {
            said = say(&frame, Vec::new());
        }
    });
    said?;
    say(&Frame::Settled.write(), Vec::new())?;
    let shared = succession::shared_groups();
    if !shared.is_empty() {
        // What Redis tells comes to both processes for a while: the other one hears it before any client goes, and this one what was told before.
        line.hear(Some(HEARING))?;
        hear(threads, shared, Hearing::CatchesUp);
    }
    let each = (heirs as usize).div_ceil(threads.len().max(1)).clamp(1, MOST_LINES);
    let (mut ours, mut theirs) = (Vec::new(), Vec::<Handle>::new());
    for _ in 0..threads.len() * each {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        ours.push(a);
        theirs.push(Arc::new(b));
    }
    say(&Frame::Lines(connection::begin::next_number()).write(), theirs)?;
    let (done, heard) = mpsc::channel();
    let mut ours = ours.into_iter();
    for thread in threads {
        let (lines, done, gone) = (ours.by_ref().take(each).collect(), done.clone(), gone.clone());
        let done = Box::new(move || {
            let _ = done.send(());
            leave::tell_all();
        });
        let work = move || {
            runtime::spawn(leave::run(lines, To::Process, gone, done));
        };
        let _ = thread.send(Order::Do(Box::new(work)));
    }
    drop(done);
    let (mut before, mut end) = (0, Instant::now() + STUCK);
    loop {
        match heard.recv_timeout(SAY) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let now = gone.load(Relaxed);
                if std::mem::replace(&mut before, now) != now {
                    reporter.handing_over(now);
                    end = Instant::now() + STUCK;
                } else if Instant::now() >= end {
                    break;
                }
            }
        }
    }
    say(&succession::gone(), Vec::new())
}
