//! `ngx.pipe`: processes that programs start, and what goes through their streams. They are the thread's, known by number to Lua, which owns
//! a guard: a process that nobody holds any more is killed. Its end is seen through its own descriptor (pidfd), so no signal is handled.

use super::operation::{Item, Operation, number};
use super::socket::failed;
use crate::log::error::Level;
use ::lua::Fault;
use ::lua::machine::add as add_function;
use memchr::memchr;
use mlua::{Lua, LuaString, MultiValue, Table};
use runtime::TaskId;
use runtime::io::{Interest, Registration};
use runtime::timer::Timer;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Processes that the programs of one thread may have at the same time.
const MAX_PROCESSES: usize = 1024;
/// Bytes that one read may gather: what a process writes without an end is not kept without an end.
const MAX_GATHERED: usize = 64 * 1024 * 1024;

/// A stream of a process; numbers as Lua knows them.
const STDIN: usize = 0;
const STDOUT: usize = 1;
const STDERR: usize = 2;
/// In `busy` and `timeouts`: its end is waited for.
const END: usize = 3;

/// What is said of something for which somebody waits already.
const BUSY: [&str; 4] = ["pipe busy writing", "pipe busy reading", "pipe busy reading", "pipe busy waiting"];

/// One end of a pipe.
struct Pipe {
    watch: Registration,
    fd: OwnedFd,
    /// What has been read and nobody has asked for.
    buffer: Vec<u8>,
    /// The process has closed its end.
    ended: bool,
}

/// How a process ended: with what, and of what kind that is.
#[derive(Clone, Copy)]
struct End {
    reason: &'static str,
    status: i32,
}

struct Process {
    pid: Pid,
    watch: Registration,
    pidfd: OwnedFd,
    streams: [Option<Pipe>; 3],
    /// `merge_stderr`
    merged: bool,
    /// Bytes that one read asks for.
    piece: usize,
    end: Option<End>,
    /// Somebody was told how it ended: nothing can be asked any more.
    told: bool,
    timeouts: [Option<Duration>; 4],
    /// Who waits: to write, to read, for the end.
    busy: [Option<TaskId>; 4],
}

type Shared = Rc<RefCell<Process>>;

thread_local! {
    static ALL: RefCell<HashMap<u32, Shared>> = RefCell::default();
    static LAST: Cell<u32> = const { Cell::new(0) };
    /// Those that were killed, and may have to be waited for.
    static DYING: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
}

/// Owned by Lua: the process goes with it.
struct Guard(u32);

impl mlua::UserData for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let gone = ALL.try_with(|all| all.borrow_mut().remove(&self.0)).ok().flatten();
        drop(gone);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.look_end().is_some() {
            return;
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        // The thread's storage may be gone already when a thread ends; so is the process then, soon.
        let _ = DYING.try_with(|dying| {
            if let Ok(pidfd) = self.pidfd.try_clone() {
                dying.borrow_mut().push(pidfd);
            }
        });
        bury();
    }
}

/// How a process ended, if it has: the kernel forgets it then.
fn reap(pidfd: &OwnedFd) -> rustix::io::Result<Option<End>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options)?;
    Ok(status.map(|status| match status.terminating_signal() {
        Some(signal) => End { reason: "signal", status: signal },
        None => End { reason: "exit", status: status.exit_status().unwrap_or(-1) },
    }))
}

/// Lets those that were killed go, as far as they have ended by now: a thread does not wait for one.
fn bury() {
    let _ = DYING.try_with(|dying| dying.borrow_mut().retain(|pidfd| matches!(reap(pidfd), Ok(None))));
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    type Spawned = (Option<u32>, mlua::Value);
    add_function(
        lua,
        raw,
        "pipe_spawn",
        |lua, (arguments, environment, merged, piece): (Table, Option<Table>, bool, f64)| -> Result<Spawned, Fault> {
            let (arguments, environment) = (texts(&arguments)?, environment.as_ref().map(texts).transpose()?);
            match spawn(arguments, environment, merged, (piece as usize).max(1)) {
                Ok(number) => {
                    let guard = lua.create_userdata(Guard(number)).map_err(|e| Fault(e.to_string()))?;
                    Ok((Some(number), mlua::Value::UserData(guard)))
                }
                Err(text) => Ok((None, mlua::Value::String(::lua::machine::made_text(lua, text.as_bytes())?))),
            }
        },
    )?;
    add_function(lua, raw, "pipe_pid", |_, number: u32| -> Result<_, Fault> {
        with(number, |p| p.pid.as_raw_nonzero().get())
    })?;
    add_function(lua, raw, "pipe_timeout", |_, (number, which, ms): (u32, usize, f64)| -> Result<_, Fault> {
        with(number, |p| {
            if let Some(timeout) = p.timeouts.get_mut(which) {
                *timeout = (ms > 0.0).then(|| Duration::from_millis(ms as u64));
            }
        })
    })?;
    add_function(lua, raw, "pipe_kill", |_, (number, signal): (u32, f64)| -> Result<_, Fault> {
        Ok(match with(number, |p| p.kill(signal as i32))? {
            Ok(()) => (Some(true), None),
            Err(text) => (None, Some(text)),
        })
    })?;
    add_function(lua, raw, "pipe_shutdown", |_, (number, which): (u32, usize)| -> Result<_, Fault> {
        Ok(match with(number, |p| p.shutdown(which))? {
            Ok(()) => (Some(true), None),
            Err(text) => (None, Some(text)),
        })
    })
}

fn texts(table: &Table) -> Result<Vec<Vec<u8>>, Fault> {
    let texts = table.sequence_values::<LuaString>().map(|t| t.map(|t| t.as_bytes().to_vec()));
    texts.collect::<mlua::Result<_>>().map_err(|e| Fault(e.to_string()))
}

fn shared(number: u32) -> Result<Shared, Fault> {
    ALL.with_borrow(|all| all.get(&number).cloned()).ok_or_else(|| Fault("not a process instance".to_owned()))
}

fn with<T>(number: u32, work: impl FnOnce(&mut Process) -> T) -> Result<T, Fault> {
    Ok(work(&mut shared(number)?.borrow_mut()))
}

fn spawn(
    arguments: Vec<Vec<u8>>,
    environment: Option<Vec<Vec<u8>>>,
    merged: bool,
    piece: usize,
) -> Result<u32, String> {
    bury();
    if ALL.with_borrow(HashMap::len) + DYING.with_borrow(Vec::len) >= MAX_PROCESSES {
        return Err("too many processes".to_owned());
    }
    let mut words = arguments.into_iter().map(std::ffi::OsString::from_vec);
    let program = words.next().ok_or("no program")?;
    let failed = |what: &str, e: io::Error| format!("{what} failed: {}", crate::log::os_error(&e));
    let (out, child_out) = io::pipe().map_err(|e| failed("pipe", e))?;
    let mut command = Command::new(&program);
    command.args(words).stdin(Stdio::piped());
    let err = match merged {
        true => {
            command.stderr(child_out.try_clone().map_err(|e| failed("pipe", e))?);
            None
        }
        false => {
            let (err, child_err) = io::pipe().map_err(|e| failed("pipe", e))?;
            command.stderr(child_err);
            Some(OwnedFd::from(err))
        }
    };
    command.stdout(child_out);
    if let Some(environment) = environment {
        command.env_clear();
        for entry in environment {
            let at = memchr(b'=', &entry).unwrap_or(entry.len());
            let value = entry.get(at + 1..).unwrap_or_default().to_vec();
            command.env(std::ffi::OsString::from_vec(entry[..at].to_vec()), std::ffi::OsString::from_vec(value));
        }
    }
    crate::master::sys::hears_signals(&mut command);
    let mut child = command.spawn().map_err(|e| failed(&format!("exec of \"{}\"", program.display()), e))?;
    // The process's ends are its own now: where it closes them, so it is seen here.
    drop(command);
    let input = child.stdin.take().map(OwnedFd::from);
    let pid = Pid::from_child(&child);
    let watched = (|| -> io::Result<_> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let watch = Registration::new(pidfd.as_fd(), Interest::Read)?;
        let stream = |fd: Option<OwnedFd>| fd.map(Pipe::new).transpose();
        Ok((pidfd, watch, [stream(input)?, stream(Some(out.into()))?, stream(err)?]))
    })();
    let (pidfd, watch, streams) = match watched {
        Ok(all) => all,
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("pidfd", e));
        }
    };
    let (timeouts, busy) = ([None; 4], [None; 4]);
    let process = Process { pid, watch, pidfd, streams, merged, piece, end: None, told: false, timeouts, busy };
    let number = LAST.get().wrapping_add(1);
    LAST.set(number);
    ALL.with_borrow_mut(|all| all.insert(number, Rc::new(RefCell::new(process))));
    super::run::log(Level::Debug, format_args!("lua pipe spawn process, pid: {pid}"));
    Ok(number)
}

impl Pipe {
    fn new(fd: OwnedFd) -> io::Result<Pipe> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Pipe { watch: Registration::new(fd.as_fd(), Interest::Both)?, fd, buffer: Vec::new(), ended: false })
    }

    /// Reads some more. False: there will be no more.
    fn poll_fill(&mut self, piece: usize) -> Poll<io::Result<bool>> {
        loop {
            if self.ended {
                return Poll::Ready(Ok(false));
            }
            if self.buffer.len() >= MAX_GATHERED {
                return Poll::Ready(Err(io::Error::other("too much data")));
            }
            ready!(self.watch.poll_readable());
            self.buffer.reserve(piece);
            let room = rustix::buffer::spare_capacity(&mut self.buffer);
            match rustix::io::read(&self.fd, room) {
                Ok(0) => self.ended = true,
                Ok(_) => return Poll::Ready(Ok(true)),
                Err(Errno::AGAIN) => self.watch.clear_readable(),
                Err(Errno::INTR) => {}
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }

    fn poll_write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.watch.poll_writable());
            match rustix::io::write(&self.fd, bytes) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::AGAIN) => self.watch.clear_writable(),
                Err(Errno::INTR) => {}
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }
}

impl Process {
    /// Looks whether it has ended.
    fn look_end(&mut self) -> Option<End> {
        if self.end.is_none() {
            self.end = match reap(&self.pidfd) {
                Ok(None) => None,
                Ok(Some(end)) => Some(end),
                // Somebody else has asked: how it ended is not known any more.
                Err(_) => Some(End { reason: "unknown", status: -1 }),
            };
        }
        self.end
    }

    /// Ready once it has ended; otherwise the running task is woken then.
    fn poll_end(&mut self) -> Poll<End> {
        if let Some(end) = self.look_end() {
            return Poll::Ready(end);
        }
        self.watch.clear_readable();
        let _ = self.watch.poll_readable();
        Poll::Pending
    }

    fn kill(&mut self, signal: i32) -> Result<(), &'static str> {
        if self.told || self.look_end().is_some() {
            return Err("exited");
        }
        let signal = Signal::from_named_raw(signal).ok_or("invalid signal")?;
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err("exited"),
            Err(_) => Err("no permission"),
        }
    }

    fn shutdown(&mut self, which: usize) -> Result<(), &'static str> {
        if which == STDERR && self.merged {
            return Err("merged to stdout");
        }
        if self.told {
            return Err("closed");
        }
        self.streams[which] = None;
        // Whoever waits for it is told.
        if let Some(task) = self.busy[which] {
            runtime::wake(task);
        }
        Ok(())
    }
}

/// Marks a stream, or the end, as waited for.
struct Busy(Shared, usize);

impl Busy {
    fn new(shared: &Shared, which: usize) -> Busy {
        shared.borrow_mut().busy[which] = Some(runtime::current());
        Busy(shared.clone(), which)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Ok(mut process) = self.0.try_borrow_mut() {
            process.busy[self.1] = None;
        }
    }
}

/// What is read.
enum Wanted {
    All,
    Line,
    Count(usize),
    Any(usize),
}

impl Wanted {
    /// How many bytes to give and to take off.
    fn look(&self, buffer: &[u8]) -> Option<(usize, usize)> {
        match self {
            Wanted::All => None,
            Wanted::Line => memchr(b'\n', buffer).map(|at| (at, at + 1)),
            Wanted::Count(count) => (buffer.len() >= *count).then_some((*count, *count)),
            Wanted::Any(most) => (!buffer.is_empty()).then(|| (buffer.len().min(*most), buffer.len().min(*most))),
        }
    }
}

/// Begins an operation: `pipe_wait`, `pipe_write`, `pipe_read`.
///
/// # Errors
/// It is none of a process.
pub fn start(kind: &str, values: &MultiValue) -> Result<Operation, Fault> {
    let of = |at: usize| values.get(at).and_then(number).unwrap_or_default();
    let shared = shared(of(0) as u32)?;
    let which = match kind {
        "pipe_wait" => END,
        "pipe_write" => STDIN,
        _ if of(1) as usize == STDERR => STDERR,
        _ => STDOUT,
    };
    let refused = {
        let p = shared.borrow();
        if which == STDERR && p.merged {
            Some("merged to stdout")
        } else if p.told {
            Some(if which == END { "exited" } else { "closed" })
        } else if p.busy[which].is_some() {
            Some(BUSY[which])
        } else if which < END && p.streams[which].is_none() {
            Some("closed")
        } else {
            None
        }
    };
    if let Some(text) = refused {
        return Ok(Box::pin(std::future::ready(failed(text))));
    }
    // From now on, and not from its first turn: who comes meanwhile is refused.
    let busy = Busy::new(&shared, which);
    let work: Operation = match which {
        END => Box::pin(wait(shared)),
        STDIN => match values.get(1) {
            Some(mlua::Value::String(text)) => Box::pin(write(shared, text.as_bytes().to_vec())),
            _ => return Err(Fault("bad data".to_owned())),
        },
        _ => {
            let count = of(3) as usize;
            let wanted = match values.get(2).and_then(|v| v.as_string().map(|t| t.to_string_lossy())).as_deref() {
                Some("all") => Wanted::All,
                Some("line") => Wanted::Line,
                Some("any") => Wanted::Any(count),
                _ => Wanted::Count(count),
            };
            Box::pin(read(shared, which, wanted))
        }
    };
    Ok(Box::pin(async move {
        let _busy = busy;
        work.await
    }))
}

/// A deadline of an operation, if it has one.
fn deadline(shared: &Shared, which: usize) -> (Timer, Option<Duration>) {
    let (timer, timeout) = (Timer::new(), shared.borrow().timeouts[which]);
    if let Some(timeout) = timeout {
        timer.set(timeout);
    }
    (timer, timeout)
}

async fn wait(shared: Shared) -> Vec<Item> {
    let (timer, _) = deadline(&shared, END);
    let end = poll_fn(|cx| {
        if let Poll::Ready(end) = shared.borrow_mut().poll_end() {
            return Poll::Ready(Some(end));
        }
        timer.poll_expired(cx).map(|()| None)
    })
    .await;
    let Some(End { reason, status }) = end else { return failed("timeout") };
    let mut p = shared.borrow_mut();
    (p.told, p.streams) = (true, [None, None, None]);
    vec![Item::Flag(reason == "exit" && status == 0), reason.into(), Item::Number(f64::from(status))]
}

async fn write(shared: Shared, bytes: Vec<u8>) -> Vec<Item> {
    let (timer, timeout) = deadline(&shared, STDIN);
    let mut at = 0;
    let result = poll_fn(|cx: &mut Context<'_>| {
        while at < bytes.len() {
            let mut p = shared.borrow_mut();
            let Some(pipe) = &mut p.streams[STDIN] else { return Poll::Ready(Err("aborted".to_owned())) };
            match pipe.poll_write(&bytes[at..]) {
                Poll::Ready(Ok(n)) => {
                    at += n;
                    timeout.iter().for_each(|t| timer.set(*t));
                }
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::BrokenPipe => {
                    p.streams[STDIN] = None;
                    return Poll::Ready(Err("closed".to_owned()));
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(super::socket::reason(&e))),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err("timeout".to_owned())),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    match result {
        Ok(()) => vec![Item::Number(bytes.len() as f64)],
        Err(why) => failed(why),
    }
}

async fn read(shared: Shared, which: usize, wanted: Wanted) -> Vec<Item> {
    let (timer, timeout) = deadline(&shared, which);
    let result = poll_fn(|cx: &mut Context<'_>| {
        loop {
            let mut p = shared.borrow_mut();
            let piece = p.piece;
            let Some(pipe) = &mut p.streams[which] else { return Poll::Ready(Err("aborted".to_owned())) };
            if let Some((give, take)) = wanted.look(&pipe.buffer) {
                let given = pipe.buffer[..give].to_vec();
                pipe.buffer.drain(..take);
                return Poll::Ready(Ok(given));
            }
            match pipe.poll_fill(piece) {
                Poll::Ready(Ok(true)) => timeout.iter().for_each(|t| timer.set(*t)),
                Poll::Ready(Ok(false)) if matches!(wanted, Wanted::All) => {
                    let given = std::mem::take(&mut pipe.buffer);
                    p.streams[which] = None;
                    return Poll::Ready(Ok(given));
                }
                Poll::Ready(Ok(false)) => return Poll::Ready(Err("closed".to_owned())),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(super::socket::reason(&e))),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err("timeout".to_owned())),
            }
        }
    })
    .await;
    match result {
        Ok(given) => vec![Item::Text(given)],
        Err(why) => {
            let mut p = shared.borrow_mut();
            let partial = p.streams[which].as_mut().map(|pipe| std::mem::take(&mut pipe.buffer)).unwrap_or_default();
            if why == "closed" {
                p.streams[which] = None;
            }
            let mut items = failed(why);
            items.push(Item::Text(partial));
            items
        }
    }
}
