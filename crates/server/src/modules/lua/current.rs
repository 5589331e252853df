//! What a function that a program calls works on: the request, the phase, the machine. They are lent to the program while it runs and
//! taken back when it waits; between turns nothing of a request is in Lua's hands.

use super::machine::Machine;
use crate::request::Request;
use ::lua::Fault;
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

scoped_thread_local!(static mut REQUEST: Request);

thread_local! {
    static PHASE: Cell<Phase> = const { Cell::new(Phase::Init) };
    static MACHINE: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// `init_by_lua*`
    Init,
    /// `init_worker_by_lua*`
    InitWorker,
    /// `exit_worker_by_lua*`
    ExitWorker,
    /// `set_by_lua*`
    Set,
    /// `server_rewrite_by_lua*`
    ServerRewrite,
    /// `rewrite_by_lua*`
    Rewrite,
    /// `access_by_lua*`
    Access,
    /// `precontent_by_lua*`
    Precontent,
    /// `content_by_lua*`
    Content,
    /// `header_filter_by_lua*`
    HeaderFilter,
    /// `body_filter_by_lua*`
    BodyFilter,
    /// `log_by_lua*`
    Log,
    /// `ngx.timer`
    Timer,
}

impl Phase {
    /// What `ngx.get_phase` says.
    pub fn label(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::InitWorker => "init_worker",
            Phase::ExitWorker => "exit_worker",
            Phase::Set => "set",
            Phase::ServerRewrite => "server_rewrite",
            Phase::Rewrite => "rewrite",
            Phase::Access => "access",
            Phase::Precontent => "precontent",
            Phase::Content => "content",
            Phase::HeaderFilter => "header_filter",
            Phase::BodyFilter => "body_filter",
            Phase::Log => "log",
            Phase::Timer => "timer",
        }
    }

    /// What messages call it.
    pub fn context(self) -> &'static str {
        match self {
            Phase::Init => "init_by_lua*",
            Phase::InitWorker => "init_worker_by_lua*",
            Phase::ExitWorker => "exit_worker_by_lua*",
            Phase::Set => "set_by_lua*",
            Phase::ServerRewrite => "server_rewrite_by_lua*",
            Phase::Rewrite => "rewrite_by_lua*",
            Phase::Access => "access_by_lua*",
            Phase::Precontent => "precontent_by_lua*",
            Phase::Content => "content_by_lua*",
            Phase::HeaderFilter => "header_filter_by_lua*",
            Phase::BodyFilter => "body_filter_by_lua*",
            Phase::Log => "log_by_lua*",
            Phase::Timer => "ngx.timer",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// A set of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases(u16);

/// Those whose programs are coroutines and may answer.
pub const ANSWERING: Phases = Phases(
    Phase::ServerRewrite.bit()
        | Phase::Rewrite.bit()
        | Phase::Access.bit()
        | Phase::Precontent.bit()
        | Phase::Content.bit(),
);
/// Those and timers: programs that may wait.
pub const WAITING: Phases = Phases(ANSWERING.0 | Phase::Timer.bit());
/// Those that have a request whose answer's head may still be changed.
pub const BEFORE_BODY: Phases = Phases(ANSWERING.0 | Phase::Set.bit() | Phase::HeaderFilter.bit());
/// Those that have a request.
pub const OF_REQUEST: Phases = Phases(BEFORE_BODY.0 | Phase::BodyFilter.bit() | Phase::Log.bit());

impl Phases {
    /// Whether a phase is one of them.
    pub fn has(self, phase: Phase) -> bool {
        self.0 & phase.bit() != 0
    }
}

/// The phase that is running.
pub fn phase() -> Phase {
    PHASE.get()
}

/// Refuses a call that has no place in the running phase.
///
/// # Errors
/// `API disabled in the context of log_by_lua*`
pub fn need(phases: Phases) -> Result<(), Fault> {
    let phase = PHASE.get();
    if phases.has(phase) {
        return Ok(());
    }
    Err(Fault(format!("API disabled in the context of {}", phase.context())))
}

/// Puts back what was there before, whatever happens.
struct Restore(Phase, Option<Rc<Machine>>);

impl Drop for Restore {
    fn drop(&mut self) {
        PHASE.set(self.0);
        let _ = MACHINE.replace(self.1.take());
    }
}

/// Runs a piece of a program: whatever it calls works on this.
pub fn enter<T>(r: Option<&mut Request>, machine: &Rc<Machine>, phase: Phase, run: impl FnOnce() -> T) -> T {
    let _restore = Restore(PHASE.replace(phase), MACHINE.replace(Some(machine.clone())));
    match r {
        Some(r) => REQUEST.set(r, run),
        None => run(),
    }
}

/// Works on the request that the running program is about.
///
/// # Errors
/// `no request found`
pub fn request<T>(work: impl FnOnce(&mut Request) -> Result<T, Fault>) -> Result<T, Fault> {
    if !OF_REQUEST.has(PHASE.get()) || !REQUEST.is_set() {
        return match PHASE.get() {
            Phase::Init => Err(Fault("no request found".to_owned())),
            phase => Err(Fault(format!("API disabled in the context of {}", phase.context()))),
        };
    }
    REQUEST.with(work)
}

/// The same in some phases only.
///
/// # Errors
/// As [`need`], and `no request found`.
pub fn request_in<T>(phases: Phases, work: impl FnOnce(&mut Request) -> Result<T, Fault>) -> Result<T, Fault> {
    need(phases)?;
    request(work)
}

/// The machine that runs.
///
/// # Errors
/// None does.
pub fn machine() -> Result<Rc<Machine>, Fault> {
    MACHINE.with_borrow(Clone::clone).ok_or_else(|| Fault("no machine is running".to_owned()))
}
