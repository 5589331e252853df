//! `ngx.timer`: programs that run later, without a request. A timer is a task; it waits, then it counts as running.

use super::current::{self, Phase};
use super::machine::Machine;
use super::run;
use crate::log::error::Level;
use ::lua::Fault;
use ::lua::coroutine::Coroutine;
use ::lua::shelf::{Bundle, Slot};
use mlua::{Function, MultiValue, Value};
use runtime::TaskId;
use runtime::timer::Timer;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Makes a timer: `delay` seconds, whether it runs again and again, what, and with which arguments. The text says why not.
///
/// # Errors
/// There is no machine.
pub fn make(
    delay: f64,
    repeated: bool,
    function: Function,
    arguments: MultiValue,
) -> Result<Option<&'static str>, Fault> {
    if current::phase() == Phase::ExitWorker {
        return Err(Fault(format!("API disabled in the context of {}", Phase::ExitWorker.context())));
    }
    let machine = current::machine()?;
    if machine.exiting.get() && delay > 0.0 {
        return Ok(Some("process exiting"));
    }
    if machine.pending.get() as u64 >= machine.timer_limits().0 {
        return Ok(Some("too many pending timers"));
    }
    let pending = Pending::new(&machine);
    let delay = Duration::from_secs_f64(delay.min(f64::from(u32::MAX)));
    let broken = |e: mlua::Error| Fault(e.to_string());
    let work = Work {
        function: machine.shelf.put(function).map_err(broken)?,
        arguments: machine.shelf.put_all(&machine.lua, arguments).map_err(broken)?,
        note: note(),
    };
    runtime::spawn(live(machine, pending, delay, repeated, Rc::new(work)));
    Ok(None)
}

/// What a timer runs.
struct Work {
    function: Slot,
    arguments: Bundle,
    /// What its lines in the log end with.
    note: Option<Rc<str>>,
}

impl Work {
    /// A coroutine that begins with it, and its arguments.
    fn begin(&self, machine: &Machine, premature: bool) -> mlua::Result<(Coroutine, MultiValue)> {
        let mut values = self.arguments.values()?;
        values.push_front(Value::Boolean(premature));
        Ok((machine.coroutine_with(&self.function.value()?)?, values))
    }

    /// Where its function is defined.
    fn place(&self) -> String {
        let info = self.function.value::<Function>().map(|function| function.info()).ok();
        let line = info.as_ref().and_then(|info| info.line_defined).unwrap_or(0);
        format!("{}:{line}", info.and_then(|info| info.source).unwrap_or_default())
    }
}

/// What the timer's lines in the log end with: whose request has made it.
fn note() -> Option<Rc<str>> {
    let of_request = current::request(|r| {
        if r.ctx.stream.is_some() {
            return Ok(None);
        }
        let listen = &r.snapshot.listens[crate::worker::port_of(&r.snapshot, r.client.listener)].address;
        Ok(Some(format!(", client: {}, server: {listen}", r.client.remote.borrow().host()).into()))
    });
    of_request.ok().flatten().or_else(|| current::alone(|a| a.note.clone()).flatten())
}

/// What OpenResty says at debug.
fn debug(text: &str) {
    if crate::log::error::default_enabled(Level::Debug) {
        crate::log::process_line(Level::Debug, format_args!("{text}"));
    }
}

/// Among those that wait, as long as it does.
struct Pending(Rc<Machine>);

impl Pending {
    fn new(machine: &Rc<Machine>) -> Pending {
        machine.pending.set(machine.pending.get() + 1);
        Pending(machine.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}

/// The task, to be woken when the machine goes.
struct Waiting<'m>(&'m Machine, TaskId);

impl<'m> Waiting<'m> {
    fn new(machine: &'m Machine) -> Waiting<'m> {
        let task = runtime::current();
        machine.waiting.borrow_mut().push(task);
        Waiting(machine, task)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.borrow_mut();
        if let Some(at) = waiting.iter().position(|t| *t == self.1) {
            waiting.swap_remove(at);
        }
    }
}

/// Among those that run.
struct Running(Rc<Machine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

/// Waits, then runs what is to be run. One that runs again and again waits for its next time meanwhile, as another.
async fn live(machine: Rc<Machine>, pending: Pending, delay: Duration, repeated: bool, work: Rc<Work>) {
    // What it runs under stays as long as it does.
    let snapshot = machine.snapshot.upgrade();
    let premature = wait(&machine, delay).await;
    drop(pending);
    if repeated && !premature {
        let again = (machine.clone(), Pending::new(&machine), work.clone());
        // Its type would be a part of itself.
        let next: Pin<Box<dyn Future<Output = ()>>> = Box::pin(live(again.0, again.1, delay, true, again.2));
        runtime::spawn(next);
    }
    run_now(&machine, &work, premature).await;
    drop(snapshot);
}

/// Waits until the time has come. True: it has not, and the machine goes.
async fn wait(machine: &Machine, delay: Duration) -> bool {
    let _waiting = Waiting::new(machine);
    let timer = Timer::new();
    timer.set(delay);
    poll_fn(|cx| {
        if machine.exiting.get() && !delay.is_zero() {
            return Poll::Ready(true);
        }
        timer.poll_expired(cx).map(|()| false)
    })
    .await
}

async fn run_now(machine: &Rc<Machine>, work: &Work, premature: bool) {
    let most = machine.timer_limits().1;
    if machine.running.get() as u64 >= most {
        let place = work.place();
        return crate::log::process_line(
            Level::Alert,
            format_args!(
                "lua failed to run timer with function defined at {place}: {most} lua_max_running_timers are not enough"
            ),
        );
    }
    machine.running.set(machine.running.get() + 1);
    let _running = Running(machine.clone());
    debug("lua ngx.timer expired");
    if let Ok((entry, values)) = work.begin(machine, premature) {
        run::run_alone(machine, entry, values, work.note.clone()).await;
    }
    debug("http lua close fake http connection");
}
