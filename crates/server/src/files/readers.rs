//! `aio threads`: a file that is not in memory is read in by a thread of a pool before it is sent, so that a slow disk stops no other
//! connection of the worker thread. From: `connection::output`. Whether a stretch is in memory is asked of the kernel (`RWF_NOWAIT`).
//! Work that takes long for another reason is handed to such a pool as well ([`Later`]; from: `modules::image_filter`).

use crate::process_settings::PoolSize;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// So much of a file is asked for, and read in, at once.
const STEP: u64 = 512 * 1024;
/// One byte of so many is asked for: the kernel reads files ahead in stretches of this size.
const SAMPLE: u64 = 64 * 1024;
/// How a thread reads: its bytes are thrown away, the pages stay in memory.
const PIECE: usize = 128 * 1024;

/// Threads that read.
#[derive(Debug)]
pub struct Pool {
    size: PoolSize,
    state: Mutex<State>,
    news: Condvar,
}

/// What a thread does; it is lent room to read into.
type Work = Box<dyn FnOnce(&mut [u8]) + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("queued", &self.queue.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Job {
    file: OwnedFd,
    from: u64,
    until: u64,
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of a size, the same for all threads and through reloads. Another size under the same name is another pool.
pub fn pool(size: &PoolSize) -> Arc<Pool> {
    static POOLS: Mutex<Option<HashMap<Arc<str>, Arc<Pool>>>> = Mutex::new(None);
    let mut pools = lock(&POOLS);
    let pools = pools.get_or_insert_default();
    if let Some(known) = pools.get(&size.name).filter(|p| p.size == *size) {
        return known.clone();
    }
    let pool = Arc::new(Pool { size: size.clone(), state: Mutex::default(), news: Condvar::new() });
    pools.insert(size.name.clone(), pool.clone());
    pool
}

impl Pool {
    /// Hands work to a thread. False: too much waits, or no thread could be started.
    fn submit(self: &Arc<Pool>, work: Work) -> bool {
        let mut state = lock(&self.state);
        if state.queue.len() >= self.size.max_queue {
            return false;
        }
        if state.idle == 0 && state.threads < self.size.threads {
            let pool = self.clone();
            let started = std::thread::Builder::new().name("file reader".into()).spawn(move || pool.work());
            state.threads += usize::from(started.is_ok());
        }
        if state.threads == 0 {
            return false;
        }
        state.queue.push_back(work);
        self.news.notify_one();
        true
    }

    fn work(&self) {
        let mut piece = vec![0; PIECE];
        loop {
            let mut state = lock(&self.state);
            state.idle += 1;
            let mut state = self.news.wait_while(state, |s| s.queue.is_empty()).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            let work = state.queue.pop_front();
            drop(state);
            let Some(work) = work else { continue };
            work(&mut piece);
        }
    }
}

impl Job {
    fn read(&self, piece: &mut [u8]) {
        let mut at = self.from;
        while at < self.until {
            let most = piece.len().min((self.until - at) as usize);
            // An error, and an end that came early, are found again by whoever sends the file.
            let Ok(n @ 1..) = rustix::io::pread(&self.file, &mut piece[..most], at) else { break };
            at += n as u64;
        }
        self.done.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }
}

/// What a thread of a pool works out, for a task that waits for it. Dropped, the work is still done and its result thrown away.
#[derive(Debug)]
pub struct Later<T>(Arc<Mutex<Slot<T>>>);

#[derive(Debug)]
struct Slot<T> {
    /// `Some(None)`: the work has panicked.
    result: Option<Option<T>>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Later<T> {
    /// Hands work over. `None`: too much waits there already, or no thread could be started.
    pub fn begin(pool: &Arc<Pool>, work: impl FnOnce() -> T + Send + 'static) -> Option<Later<T>> {
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        let theirs = slot.clone();
        let whole = move |_: &mut [u8]| {
            let result = catch_unwind(AssertUnwindSafe(work)).ok();
            let mut slot = lock(&theirs);
            slot.result = Some(result);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        };
        pool.submit(Box::new(whole)).then_some(Later(slot))
    }

    /// Ready when it is done; the task is woken then.
    pub fn poll_done(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut slot = lock(&self.0);
        if slot.result.is_some() {
            return Poll::Ready(());
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The result, once it is done. `None`: the work has panicked, or is not done.
    pub fn take(self) -> Option<T> {
        lock(&self.0).result.take().flatten()
    }
}

/// What one connection has had read in.
#[derive(Debug)]
pub struct Reader {
    pool: Arc<Pool>,
    /// A stretch of this descriptor is in memory, or cannot be brought there.
    ready: Option<(i32, u64, u64)>,
    waits: Option<Arc<Job>>,
}

impl Reader {
    /// For a connection that has nothing read in yet.
    pub fn new(pool: Arc<Pool>) -> Reader {
        Reader { pool, ready: None, waits: None }
    }

    /// How many of `len` bytes from `offset` may be sent without waiting for the disk; at least one when it is ready.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>, file: BorrowedFd<'_>, offset: u64, len: u64) -> Poll<u64> {
        if let Some(job) = &self.waits {
            *lock(&job.waker) = Some(cx.waker().clone());
            if !job.done.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            self.waits = None;
        }
        let number = file.as_raw_fd();
        if let Some((known, from, until)) = self.ready
            && known == number
            && (from..until).contains(&offset)
        {
            return Poll::Ready(until - offset);
        }
        let until = offset + len.min(STEP);
        self.ready = Some((number, offset, until));
        if is_in_memory(file, offset, until) {
            return Poll::Ready(until - offset);
        }
        let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(file, 0) else { return Poll::Ready(until - offset) };
        let waker = Mutex::new(Some(cx.waker().clone()));
        let job = Arc::new(Job { file: copy, from: offset, until, done: AtomicBool::new(false), waker });
        let theirs = job.clone();
        if !self.pool.submit(Box::new(move |piece| theirs.read(piece))) {
            return Poll::Ready(until - offset);
        }
        self.waits = Some(job);
        Poll::Pending
    }
}

/// Whether a stretch can be read without the disk, as far as one byte in [`SAMPLE`] and the last one tell.
pub fn is_in_memory(file: impl AsFd, from: u64, until: u64) -> bool {
    let mut byte = [0];
    let places = (from..until).step_by(SAMPLE as usize).chain(std::iter::once(until.saturating_sub(1)));
    places.into_iter().all(|at| {
        let read = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        // What cannot be asked (a file system without it) counts as there.
        read != Err(Errno::AGAIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_not_in_memory_is_read_in_by_a_thread() {
        let path = std::env::temp_dir().join(format!("ironweir-readers-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).expect("the file is new");
        file.write_all(&vec![7; 3 * STEP as usize / 2]).expect("there is room");
        file.sync_all().expect("it is on disk");
        let file = std::fs::File::open(&path).expect("it is there");
        let _ = std::fs::remove_file(&path);
        let len = 3 * STEP / 2;
        rustix::fs::fadvise(&file, 0, std::num::NonZeroU64::new(len), rustix::fs::Advice::DontNeed).expect("a hint");
        let was_cold = !is_in_memory(&file, 0, len);
        let pool = pool(&PoolSize { name: Arc::from("test"), threads: 2, max_queue: 8 });
        let mut reader = Reader::new(pool.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut at = 0;
        while at < len {
            let began = std::time::Instant::now();
            let n = loop {
                match reader.poll_ready(&mut cx, file.as_fd(), at, len - at) {
                    Poll::Ready(n) => break n,
                    Poll::Pending => assert!(began.elapsed().as_secs() < 20, "nobody reads"),
                }
                std::thread::yield_now();
            };
            assert!(n > 0 && n <= STEP && is_in_memory(&file, at, at + n));
            at += n;
        }
        assert_eq!(lock(&pool.state).threads > 0, was_cold);
    }

    #[test]
    fn a_full_queue_refuses() {
        let pool = pool(&PoolSize { name: Arc::from("full"), threads: 1, max_queue: 0 });
        assert!(!pool.submit(Box::new(|_| ())));
        assert!(Later::begin(&pool, || ()).is_none());
    }

    #[test]
    fn work_is_done_beside_and_a_panic_costs_only_its_own_result() {
        let pool = pool(&PoolSize { name: Arc::from("work"), threads: 1, max_queue: 8 });
        let results = [|| 1, || panic!("of the test"), || 3].map(|work: fn() -> i32| {
            let later = Later::begin(&pool, work).expect("there is room");
            let (mut cx, began) = (Context::from_waker(Waker::noop()), std::time::Instant::now());
            while later.poll_done(&mut cx).is_pending() {
                assert!(began.elapsed().as_secs() < 20, "nobody works");
                std::thread::yield_now();
            }
            later.take()
        });
        assert_eq!(results, [Some(1), None, Some(3)]);
    }
}
