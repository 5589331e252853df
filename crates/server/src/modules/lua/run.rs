//! Drives a program's coroutines: the entry thread and the light threads that it spawns. A coroutine that has to wait yields what it
//! waits for; the request's own task waits for it, and resumes the coroutine with what came of it.
//!
//! ```text
//!   resume ──> ended ───────────────> whoever joins it; when all have: the phase goes on
//!          ──> yields WAIT, kind ───> an operation that is polled with the request's task; its result resumes
//!          ──> yields exit, exec ───> the phase ends, and all coroutines with it
//!          ──> error ───────────────> entry: logged, 500; light thread: logged, told to whoever joins it
//! ```

use super::current::{self, Phase};
use super::machine::Machine;
use super::operation::{Asleep, End, Item, Operation, SHORTEST_S, end_of, flush, give, read_body, sleep};
use super::{capture, pipe, raw, semaphore, socket, worker_thread};
use crate::log::error::Level;
use crate::request::{Request, body, flow};
use ::lua::Fault;
use ::lua::coroutine::{Coroutine, Program, Resumed, Values};
use ::lua::machine::nothing;
use ::lua::quick::{Call, Kind};
use ::lua::shelf::Bundle;
use hashbrown::HashMap;
use mlua::{IntoLua, Lua, MultiValue, Value};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Light threads that one request may have at the same time.
const MAX_THREADS: usize = 10_000;

enum State {
    /// In the queue.
    Ready,
    Waits(Operation),
    /// `ngx.sleep(0)`: the others go first. Whether its turn has begun.
    Rests(Asleep, bool),
    /// For one of these to end.
    Joins(Vec<usize>),
    /// Nobody has asked yet how.
    Ended {
        ok: bool,
        values: Bundle,
    },
}

struct Light {
    coroutine: Coroutine,
    state: State,
    /// It waits for subrequests, which nobody may cut off.
    captures: bool,
    /// Who waits for it to end.
    joiner: Option<usize>,
    /// Who has made it, while that one has not ended: somebody may still ask how it ended.
    parent: Option<usize>,
    /// How many have it for a parent.
    children: usize,
}

impl Light {
    fn new(coroutine: Coroutine, parent: Option<usize>) -> Light {
        Light { coroutine, state: State::Ready, captures: false, joiner: None, parent, children: 0 }
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }

    /// What it has waited for, once that is there.
    fn poll(&mut self, cx: &mut Context<'_>) -> Option<Vec<Item>> {
        match &mut self.state {
            State::Waits(operation) => match operation.as_mut().poll(cx) {
                Poll::Ready(items) => Some(items),
                Poll::Pending => None,
            },
            State::Rests(asleep, true) => {
                asleep.end();
                Some(Vec::new())
            }
            State::Rests(_, begun) => {
                *begun = true;
                runtime::wake(runtime::current());
                None
            }
            _ => None,
        }
    }

    fn has_subrequest(&self) -> bool {
        self.captures && matches!(self.state, State::Waits(_))
    }
}

/// What the driver has to do with the request itself.
enum Step {
    End(End),
    /// Of `stream`.
    Flush(usize),
}

/// What a coroutine goes on with.
enum Given {
    Values(MultiValue),
    /// Made into values when its turn comes: thousands may have come at once.
    Items(Vec<Item>),
}

impl Given {
    fn none() -> Given {
        Given::Values(nothing())
    }

    fn give(self, call: &Call, lua: &Lua) {
        match self {
            Given::Values(values) => {
                if call.reserve(values.len()) {
                    values.iter().for_each(|value| call.give_value(lua, value));
                }
            }
            Given::Items(items) => give(call, lua, items),
        }
    }
}

/// What a coroutine has come to.
enum Came {
    /// Its end, with these values.
    Ended(MultiValue),
    Failed(mlua::Error),
    /// A plain `coroutine.yield`.
    Yielded,
    Waits(Wait),
}

/// What a coroutine waits for.
enum Wait {
    /// `ngx.exit`
    Exit(i64),
    /// An operation that has begun; whether it is subrequests.
    Begun(Operation, bool),
    /// No time at all.
    Rest,
    Refused(Fault),
    /// What the server's values say.
    Other(MultiValue),
}

/// Looks at what a coroutine has come to. Of one that nobody asks for the values are not taken.
fn came(machine: &Machine, resumed: Resumed<'_>, is_asked_for: bool) -> Came {
    match resumed {
        Resumed::Ended(values) if is_asked_for => Came::Ended(values.from(&machine.lua, 1)),
        Resumed::Ended(_) => Came::Ended(nothing()),
        Resumed::Failed(error) => Came::Failed(error),
        Resumed::Yielded(values) if values.is_wait() => Came::Waits(wait_of(machine, &values)),
        Resumed::Yielded(_) => Came::Yielded,
    }
}

/// What most programs wait for is looked at where it lies.
fn wait_of(machine: &Machine, values: &Values<'_>) -> Wait {
    match (values.kind(2), values.kind(3)) {
        (Kind::Text(b"exit"), status) => Wait::Exit(if let Kind::Number(status) = status { status as i64 } else { 0 }),
        (Kind::Text(b"sleep"), Kind::Number(seconds)) if seconds < SHORTEST_S => Wait::Rest,
        (Kind::Text(b"sleep"), Kind::Number(seconds)) => Wait::Begun(sleep(seconds), false),
        (Kind::Text(b"capture"), _) => match capture::start(machine, values) {
            Ok(operation) => Wait::Begun(operation, true),
            Err(fault) => Wait::Refused(fault),
        },
        _ => Wait::Other(values.from(&machine.lua, 2)),
    }
}

/// A program that waits, or has light threads.
pub struct Run {
    machine: Rc<Machine>,
    phase: Phase,
    /// What it has come to already, which the request has to do with.
    first: Option<Step>,
    /// The entry thread is the first. None: it has ended and nobody can ask for it; its number is for the next.
    threads: Vec<Option<Light>>,
    free: Vec<usize>,
    /// The light threads by their coroutines: a program may have thousands, and asks for each.
    numbers: HashMap<*const c_void, usize>,
    ready: VecDeque<(usize, Given)>,
    /// What runs when the client goes.
    on_abort: Option<Coroutine>,
    abandoned: bool,
    /// Whose sockets it may use, without a request.
    owner: u64,
}

/// A program that has begun.
pub enum Begun {
    /// It has ended without waiting.
    Over(End),
    /// It goes on with [`Run::go_on`].
    Goes(Box<Run>),
}

/// Begins a program. Of one that waits for nothing that is all.
pub fn begin(r: &mut Request, machine: &Rc<Machine>, program: Program, phase: Phase) -> Begun {
    let Ok(entry) = machine.coroutine(program) else { return Begun::Over(End::Failed) };
    let mut begun =
        begin_entry(Some(&mut *r), machine, Entry { coroutine: entry, given: Given::none(), phase, owner: 0 });
    if let Begun::Goes(run) = &mut begun
        && let Some(Step::End(_)) = run.first
        && !body::is_gathered_in_part(r)
        && let Some(Step::End(end)) = run.first.take()
    {
        return Begun::Over(end);
    }
    begun
}

/// Runs a program to its end.
pub async fn run(r: &mut Request, machine: &Rc<Machine>, program: Program, phase: Phase) -> End {
    match begin(r, machine, program, phase) {
        Begun::Over(end) => end,
        Begun::Goes(run) => run.go_on(Some(r)).await,
    }
}

/// The same without a request, for a coroutine that begins with a function. `note`: what lines in the log end with.
pub async fn run_alone(machine: &Rc<Machine>, entry: Coroutine, arguments: MultiValue, note: Option<Rc<str>>) -> End {
    let owner = current::next_owner();
    let _living = current::Living::begin(owner, note);
    let given = Given::Values(arguments);
    match begin_entry(None, machine, Entry { coroutine: entry, given, phase: Phase::Timer, owner }) {
        Begun::Over(end) => end,
        Begun::Goes(run) => run.go_on(None).await,
    }
}

/// What a program begins with.
struct Entry {
    coroutine: Coroutine,
    given: Given,
    phase: Phase,
    owner: u64,
}

fn begin_entry(r: Option<&mut Request>, machine: &Rc<Machine>, entry: Entry) -> Begun {
    let Entry { mut coroutine, given, phase, owner } = entry;
    current::enter_as(r, machine, phase, owner, || {
        let resumed = machine.stacks.resume(&mut coroutine, |call| given.give(call, &machine.lua));
        match came(machine, resumed, false) {
            Came::Ended(_) => {
                machine.keep(coroutine);
                Begun::Over(End::Done)
            }
            other => {
                let mut run = Run::new(machine.clone(), coroutine, phase, owner);
                run.first = run.take(0, other);
                Begun::Goes(Box::new(run))
            }
        }
    })
}

impl Run {
    fn new(machine: Rc<Machine>, entry: Coroutine, phase: Phase, owner: u64) -> Run {
        Run {
            machine,
            phase,
            first: None,
            threads: vec![Some(Light::new(entry, None))],
            free: Vec::new(),
            numbers: HashMap::new(),
            ready: VecDeque::new(),
            on_abort: None,
            abandoned: false,
            owner,
        }
    }

    /// Goes on until the program has ended.
    pub async fn go_on(mut self: Box<Run>, mut r: Option<&mut Request>) -> End {
        loop {
            let step = match self.first.take() {
                Some(step) => step,
                None => poll_fn(|cx| self.poll_with(r.as_deref_mut(), cx)).await,
            };
            let (index, result) = match (step, r.as_deref_mut()) {
                (Step::End(end), Some(r)) if !matches!(end, End::Done) && body::is_gathered_in_part(r) => {
                    self.threads.clear();
                    if matches!(end, End::Exit(_)) && has_content(r, self.phase) {
                        // Nobody goes on with it: what has not come yet is nobody's.
                        r.flow.keepalive = false;
                        return end;
                    }
                    // A light thread was reading: whoever goes on with the request finds the whole body.
                    return match (&end, body::read_all(r).await) {
                        (End::Failed | End::Broken, _) | (_, Ok(_)) => end,
                        (_, Err(e)) => end_of(e),
                    };
                }
                (Step::End(end), _) => {
                    if let (End::Done, Some(Some(entry))) = (&end, std::mem::take(&mut self.threads).into_iter().next())
                    {
                        self.machine.keep(entry.coroutine);
                    }
                    return end;
                }
                (Step::Flush(index), Some(r)) => {
                    let timeout = *r.conf().lua.socket_send_timeout;
                    match raw::flush(r, timeout).await {
                        Ok(()) => (index, MultiValue::from_iter([Value::Integer(1)])),
                        Err(_) => return End::Broken,
                    }
                }
                (_, None) => return End::Failed,
            };
            self.ready.push_back((index, Given::Values(result)));
        }
    }

    fn poll_with(&mut self, mut r: Option<&mut Request>, cx: &mut Context<'_>) -> Poll<Step> {
        let (machine, phase, owner) = (self.machine.clone(), self.phase, self.owner);
        let polled = current::enter_as(r.as_deref_mut(), &machine, phase, owner, || self.poll(cx));
        match r {
            Some(r) if polled.is_pending() => match self.is_abandoned(r, cx) {
                true => current::enter(Some(r), &machine, phase, || self.abandon(cx)),
                false => {
                    r.downstream.lend_buffers();
                    polled
                }
            },
            _ => polled,
        }
    }

    /// Whether the client has gone, where somebody wants to know.
    fn is_abandoned(&mut self, r: &mut Request, cx: &mut Context<'_>) -> bool {
        if r.ctx.stream.is_some() {
            // Meanwhile the client gets what was said so far; that it cannot is seen when the program ends.
            let _ = raw::poll_out(r, cx);
        }
        if self.abandoned || !*r.conf().lua.check_client_abort || !r.is_main() {
            return false;
        }
        flow::is_client_gone(r, cx) || raw::is_gone(r, cx)
    }

    /// The client has gone: the program's own end for that, or the end of the program.
    fn abandon(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        self.abandoned = true;
        log(Level::Info, format_args!("client prematurely closed connection"));
        match self.on_abort.take() {
            Some(coroutine) => {
                let index = self.enlist(Light::new(coroutine, None));
                self.ready.push_back((index, Given::none()));
                self.poll(cx)
            }
            None => Poll::Ready(Step::End(End::Exit(499))),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            while let Some((index, given)) = self.ready.pop_front() {
                if let Some(step) = self.resume(index, given) {
                    return Poll::Ready(step);
                }
            }
            if self.threads.iter().flatten().all(Light::has_ended) {
                return Poll::Ready(Step::End(End::Done));
            }
            for (index, light) in self.threads.iter_mut().enumerate() {
                let Some(light) = light else { continue };
                if let Some(mut items) = light.poll(cx) {
                    if let Some(Item::End(end)) = items.pop_if(|item| matches!(item, Item::End(_))) {
                        return Poll::Ready(Step::End(end));
                    }
                    (light.state, light.captures) = (State::Ready, false);
                    self.ready.push_back((index, Given::Items(items)));
                }
            }
            if self.ready.is_empty() {
                return Poll::Pending;
            }
        }
    }

    fn resume(&mut self, index: usize, given: Given) -> Option<Step> {
        // None: it was killed meanwhile.
        let light = self.threads[index].as_mut()?;
        let machine = &*self.machine;
        let resumed = machine.stacks.resume(&mut light.coroutine, |call| given.give(call, &machine.lua));
        // Of the entry thread nobody asks how it ended.
        let came = came(machine, resumed, index != 0);
        self.take(index, came)
    }

    /// What is to be done about what a coroutine has come to.
    fn take(&mut self, index: usize, came: Came) -> Option<Step> {
        match came {
            Came::Ended(values) => self.ended(index, true, values),
            Came::Failed(error) if index == 0 => {
                log(Level::Error, format_args!("lua entry thread aborted: runtime error: {}", explain(&error)));
                return Some(Step::End(End::Failed));
            }
            Came::Failed(error) => {
                let text = explain(&error);
                log(Level::Error, format_args!("lua user thread aborted: runtime error: {text}"));
                let first = told_to_joiner(&text);
                let text = first.into_lua(&self.machine.lua).unwrap_or(Value::Nil);
                self.ended(index, false, MultiValue::from_iter([text]));
            }
            // The others have their turn.
            Came::Yielded => self.ready.push_back((index, Given::none())),
            Came::Waits(Wait::Exit(status)) => return self.exit(index, status),
            Came::Waits(Wait::Begun(operation, captures)) => self.wait_for(index, operation, captures),
            Came::Waits(Wait::Rest) => {
                if let Some(light) = &mut self.threads[index] {
                    light.state = State::Rests(Asleep::begin(0.0), false);
                }
            }
            Came::Waits(Wait::Refused(fault)) => self.refuse(index, fault),
            Came::Waits(Wait::Other(mut values)) => {
                let kind = values.pop_front();
                return self.wait(index, kind.as_ref(), values);
            }
        }
        None
    }

    /// `ngx.exit`
    fn exit(&mut self, index: usize, status: i64) -> Option<Step> {
        // NGX_ERROR, and what closes the connection, end everything.
        if !matches!(status, -1 | 408 | 444 | 499) && self.refuses_end(index) {
            return None;
        }
        log(Level::Debug, format_args!("lua exit with code {status}"));
        Some(Step::End(End::Exit(status)))
    }

    fn wait_for(&mut self, index: usize, operation: Operation, captures: bool) {
        if let Some(light) = &mut self.threads[index] {
            (light.state, light.captures) = (State::Waits(operation), captures);
        }
    }

    /// It goes on at once, with the mistake that it has made.
    fn refuse(&mut self, index: usize, fault: Fault) {
        self.ready.push_front((index, Given::Items(vec![Item::Fault(fault)])));
    }

    /// A number for one more.
    fn enlist(&mut self, light: Light) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.threads.push(None);
            self.threads.len() - 1
        });
        self.numbers.insert(light.coroutine.address(), index);
        self.threads[index] = Some(light);
        index
    }

    /// One that has ended goes, and whoever asks for it hears that it is dead.
    fn forget(&mut self, index: usize) {
        let Some(light) = self.threads[index].take() else { return };
        self.free.push(index);
        self.numbers.remove(&light.coroutine.address());
        if let Some(parent) = light.parent.and_then(|parent| self.threads[parent].as_mut()) {
            parent.children -= 1;
        }
        self.orphan(index, light.children);
        if let State::Joins(all) = &light.state {
            self.let_go(index, all);
        }
    }

    /// Those that one has made are nobody's any more: of those that have ended nobody will ask.
    fn orphan(&mut self, parent: usize, children: usize) {
        if children == 0 {
            return;
        }
        for index in 0..self.threads.len() {
            let Some(light) = self.threads[index].as_mut().filter(|light| light.parent == Some(parent)) else {
                continue;
            };
            light.parent = None;
            if light.has_ended() {
                self.forget(index);
            }
        }
    }

    /// One waits no longer for these.
    fn let_go(&mut self, joiner: usize, all: &[usize]) {
        for &at in all {
            if let Some(light) = self.threads[at].as_mut().filter(|light| light.joiner == Some(joiner)) {
                light.joiner = None;
            }
        }
    }

    /// A coroutine has ended: whoever joins it goes on.
    fn ended(&mut self, index: usize, ok: bool, values: MultiValue) {
        let Some(light) = self.threads[index].as_mut() else { return };
        let (joiner, children) = (light.joiner.take(), std::mem::take(&mut light.children));
        let nobody_asks = light.parent.is_none() && index != 0;
        if let Some(joiner) = joiner {
            if let Some(light) = self.threads[joiner].as_mut()
                && let State::Joins(all) = std::mem::replace(&mut light.state, State::Ready)
            {
                self.let_go(joiner, &all);
            }
            self.ready.push_back((joiner, Given::Values(told(ok, values))));
            self.orphan(index, children);
            return self.forget(index);
        }
        if nobody_asks {
            self.orphan(index, children);
            return self.forget(index);
        }
        // Of the entry thread nobody asks, but it is the last to go.
        let values = if index == 0 { nothing() } else { values };
        match self.machine.shelf.put_all(&self.machine.lua, values) {
            Ok(values) => light.state = State::Ended { ok, values },
            Err(_) => light.state = State::Ended { ok: false, values: Bundle::Plain(nothing()) },
        }
        self.orphan(index, children);
    }

    /// What a coroutine waits for.
    fn wait(&mut self, index: usize, kind: Option<&Value>, mut arguments: MultiValue) -> Option<Step> {
        let kind = match kind {
            Some(Value::String(kind)) => kind.to_str().ok(),
            _ => None,
        };
        let kind = kind.as_deref().unwrap_or_default();
        let started: Result<Operation, Fault> = match kind {
            "exec" | "jump" if self.refuses_end(index) => return None,
            "exec" => return Some(Step::End(End::Exec)),
            "jump" => return Some(Step::End(End::Jump)),
            "flush" if current::request(|r| Ok(r.ctx.stream.is_some())) == Ok(true) => {
                return Some(Step::Flush(index));
            }
            "flush" => Ok(flush()),
            "read_body" => Ok(read_body()),
            "spawn" => {
                self.spawn(index, arguments);
                return None;
            }
            "join" => {
                self.join(index, &arguments);
                return None;
            }
            "status" => {
                let found = arguments.front().and_then(|v| self.find(v));
                let status = match found.and_then(|at| self.threads[at].as_ref()) {
                    Some(light) if light.has_ended() => "zombie",
                    Some(_) => "running",
                    None => "dead",
                };
                self.ready.push_front((index, Given::Items(vec![status.into()])));
                return None;
            }
            "kill" => {
                let items = self.kill(index, &arguments);
                self.ready.push_front((index, Given::Items(items)));
                return None;
            }
            "on_abort" => {
                let Some(Value::Thread(thread)) = arguments.pop_front() else { return None };
                let coroutine = match self.machine.stacks.adopt(&thread) {
                    Ok(coroutine) => coroutine,
                    Err(error) => {
                        self.refuse(index, Fault(error.to_string()));
                        return None;
                    }
                };
                let items = match self.on_abort.replace(coroutine) {
                    None => vec![Item::Number(1.0)],
                    Some(_) => vec![Item::Nil, "duplicate call".into()],
                };
                self.ready.push_front((index, Given::Items(items)));
                return None;
            }
            // Now, and not when the others have had their turn: who comes first has the first place in a pool, or in its queue.
            "connect" => match socket::start(kind, &arguments) {
                Ok(mut operation) => match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(items) => {
                        self.ready.push_front((index, Given::Items(items)));
                        return None;
                    }
                    Poll::Pending => Ok(operation),
                },
                Err(fault) => Err(fault),
            },
            "semaphore" => semaphore::wait(&arguments),
            "worker_thread" => worker_thread::start(arguments),
            "pipe_wait" | "pipe_read" | "pipe_write" => pipe::start(kind, &arguments),
            _ => socket::start(kind, &arguments),
        };
        match started {
            Ok(operation) => self.wait_for(index, operation, false),
            Err(fault) => self.refuse(index, fault),
        }
        None
    }

    fn has_subrequests(&self) -> bool {
        self.threads.iter().flatten().any(Light::has_subrequest)
    }

    /// Whether a subrequest is under way, so that the coroutine that wants to end the program gets an error instead.
    fn refuses_end(&mut self, index: usize) -> bool {
        let refuses = self.has_subrequests();
        if refuses {
            self.refuse(index, Fault("attempt to abort with pending subrequests".to_owned()));
        }
        refuses
    }

    /// `ngx.thread.spawn`: the new one runs first; the one that made it goes on when those before it had their turn.
    fn spawn(&mut self, index: usize, mut arguments: MultiValue) {
        let alive = self.threads.len() - self.free.len();
        let Some(Value::Thread(thread)) = arguments.pop_front() else { return };
        if alive >= MAX_THREADS {
            return self.refuse(index, Fault("too many light threads".to_owned()));
        }
        let coroutine = match self.machine.stacks.adopt(&thread) {
            Ok(coroutine) => coroutine,
            Err(error) => return self.refuse(index, Fault(error.to_string())),
        };
        self.ready.push_back((index, Given::Values(MultiValue::from_iter([Value::Thread(thread)]))));
        let made = self.enlist(Light::new(coroutine, Some(index)));
        if let Some(parent) = &mut self.threads[index] {
            parent.children += 1;
        }
        self.ready.push_front((made, Given::Values(arguments)));
    }

    fn find(&self, value: &Value) -> Option<usize> {
        let Value::Thread(thread) = value else { return None };
        let address = thread.to_pointer();
        let is_entry = || self.threads[0].as_ref().is_some_and(|entry| entry.coroutine.address() == address);
        self.numbers.get(&address).copied().or_else(|| is_entry().then_some(0))
    }

    fn join(&mut self, index: usize, arguments: &MultiValue) {
        let found: Vec<usize> = arguments.iter().filter_map(|value| self.find(value)).collect();
        let first = found.iter().copied().find(|at| self.threads[*at].as_ref().is_some_and(Light::has_ended));
        if let Some(at) = first {
            let told = match self.threads[at].as_ref().map(|light| &light.state) {
                Some(State::Ended { ok, values }) => {
                    values.values().map(|values| told(*ok, values)).unwrap_or_default()
                }
                _ => nothing(),
            };
            self.forget(at);
            self.ready.push_front((index, Given::Values(told)));
            return;
        }
        if found.is_empty() {
            let items = vec![Item::Nil, "already waited or killed".into()];
            self.ready.push_front((index, Given::Items(items)));
            return;
        }
        for &at in &found {
            if let Some(light) = &mut self.threads[at] {
                light.joiner = Some(index);
            }
        }
        if let Some(light) = &mut self.threads[index] {
            light.state = State::Joins(found);
        }
    }

    fn kill(&mut self, index: usize, arguments: &MultiValue) -> Vec<Item> {
        match arguments.front().and_then(|v| self.find(v)) {
            Some(0) => vec![Item::Nil, "not user thread".into()],
            Some(at) if at == index => vec![Item::Nil, "killer not parent".into()],
            Some(at) if self.threads[at].as_ref().is_some_and(Light::has_subrequest) => {
                vec![Item::Nil, "pending subrequests".into()]
            }
            Some(at) => {
                let has_ended = self.threads[at].as_ref().is_some_and(Light::has_ended);
                self.ready.retain(|(ready, _)| *ready != at);
                self.forget(at);
                if has_ended { vec![Item::Nil, "already terminated".into()] } else { vec![Item::Number(1.0)] }
            }
            None => vec![Item::Nil, "already waited or killed".into()],
        }
    }
}

/// Whether the program has begun an answer, on a connection that a close can end behind it.
fn has_content(r: &Request, phase: Phase) -> bool {
    phase == Phase::Content && r.answer.header_sent && r.downstream.http1().is_some()
}

fn told(ok: bool, mut values: MultiValue) -> MultiValue {
    values.push_front(Value::Boolean(ok));
    values
}

/// What whoever waits for a light thread is told of its error: of one that `error` raised its own text, without the place. So
/// OpenResty does, which gives the arguments of `error`.
fn told_to_joiner(text: &str) -> &str {
    let (first, trace) = text.split_once("\nstack traceback:").unwrap_or((text, ""));
    let raised = trace.trim_start_matches("\ncoroutine 0:").trim_start().starts_with("[C]: in function 'error'");
    let place = first.find(": ").filter(|at| raised && first[..*at].ends_with(|c: char| c.is_ascii_digit()));
    place.map_or(first, |at| &first[at + 2..])
}

/// An error with its traceback, as OpenResty writes it.
pub fn explain(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::CallbackError { traceback, cause } => format!("{cause}\n{traceback}"),
        other => other.to_string(),
    };
    let text = match text.strip_prefix("nil\nstack traceback:") {
        Some(rest) => format!("unknown reason\nstack traceback:{rest}"),
        None => text,
    };
    // LuaJIT's own words for whatever has a name.
    let text = ["upvalue", "local", "method", "field", "global"]
        .iter()
        .fold(text, |text, kind| text.replace(&format!(": in {kind} '"), ": in function '"));
    text.replacen("\nstack traceback:\n", "\nstack traceback:\ncoroutine 0:\n", 1)
}

/// Whether lines of this level are written about what runs.
pub fn log_is_on(level: Level) -> bool {
    current::connection(|r| Ok(r.logs(level))).unwrap_or_else(|_| crate::log::error::default_enabled(level))
}

/// A line about what runs: the request's, if there is one.
pub fn log(level: Level, text: std::fmt::Arguments<'_>) {
    let phase = current::phase();
    let of_request = current::connection(|r| {
        if !r.logs(level) {
            return Ok(());
        }
        if current::HANDSHAKING.has(phase) {
            let (local, remote) = (crate::worker::local_address(&r.client), r.client.remote.borrow());
            let text = format_args!("{text}, context: {}, client: {}, server: {local}", phase.context(), remote.host());
            r.error_log().write(level, Some(r.client.number), text);
        } else {
            r.write_log(level, text);
        }
        Ok(())
    });
    if of_request.is_err() && crate::log::error::default_enabled(level) {
        match phase {
            Phase::Init | Phase::ExitWorker => crate::log::process_line(level, text),
            phase => {
                let note = current::alone(|a| a.note.clone()).flatten().unwrap_or_else(|| "".into());
                crate::log::process_line(level, format_args!("{text}, context: {}{note}", phase.context()));
            }
        }
    }
}
