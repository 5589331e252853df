//! Drives a program's coroutines: the entry thread and the light threads that it spawns. A coroutine that has to wait yields what it
//! waits for; the request's own task waits for it, and resumes the coroutine with what came of it.
//!
//! ```text
//!   resume ──> ended ───────────────> whoever joins it; when all have: the phase goes on
//!          ──> yields WAIT, kind ───> an operation that is polled with the request's task; its result resumes
//!          ──> yields exit, exec ───> the phase ends, and all coroutines with it
//!          ──> error ───────────────> entry: logged, 500; light thread: logged, told to whoever joins it
//! ```

use super::coroutine::Coroutine;
use super::current::{self, Phase};
use super::machine::Machine;
use super::worker_thread::Plain;
use super::{capture, pipe, raw, semaphore, socket, worker_thread};
use crate::log::error::Level;
use crate::request::{Request, body, flow};
use ::lua::Fault;
use ::lua::machine::{fault_mark, is_wait, nothing};
use ::lua::shelf::Bundle;
use mlua::{Function, IntoLua, Lua, MultiValue, Value};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Light threads that one request may have at the same time.
const MAX_THREADS: usize = 10_000;

/// How a program ended.
pub enum End {
    /// All its coroutines have come to their ends.
    Done,
    /// `ngx.exit`
    Exit(i64),
    /// `ngx.exec`; where to stands in the request's context.
    Exec,
    /// `ngx.req.set_uri(uri, true)`
    Jump,
    /// An error, which was logged.
    Failed,
    /// The client is gone.
    Broken,
}

/// What an operation gives back to the program.
pub enum Item {
    /// `nil`
    Nil,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(Vec<u8>),
    /// A mistake of the program's, which is raised.
    Fault(Fault),
    /// The program ends: nothing goes back to it.
    End(End),
    /// What another machine has given.
    Plain(Plain),
    /// The answer of a subrequest.
    Answer(Box<capture::Answer>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Item {
        Item::Text(text.as_bytes().to_vec())
    }
}

/// An operation that is waited for.
pub type Operation = Pin<Box<dyn Future<Output = Vec<Item>>>>;

enum State {
    /// In the queue.
    Ready,
    Waits(Operation),
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
}

struct Run<'m> {
    machine: &'m Rc<Machine>,
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

/// Runs a program to its end.
pub async fn run(
    r: Option<&mut Request>,
    machine: &Rc<Machine>,
    function: &Function,
    arguments: MultiValue,
    phase: Phase,
) -> End {
    match machine.coroutine(function) {
        Ok(entry) => run_entry(r, machine, entry, arguments, phase, None).await,
        Err(_) => End::Failed,
    }
}

/// The same for a coroutine that begins with a program. `note`: what lines in the log end with, of one without a request.
pub async fn run_entry(
    mut r: Option<&mut Request>,
    machine: &Rc<Machine>,
    entry: Coroutine,
    arguments: MultiValue,
    phase: Phase,
    note: Option<Rc<str>>,
) -> End {
    let owner = if r.is_none() { current::next_owner() } else { 0 };
    let _living = r.is_none().then(|| current::Living::begin(owner, note));
    let (threads, ready) = (vec![Some(Light::new(entry, None))], VecDeque::from([(0, Given::Values(arguments))]));
    let (free, numbers) = (Vec::new(), HashMap::new());
    let mut run = Run { machine, threads, free, numbers, ready, on_abort: None, abandoned: false, owner };
    loop {
        let step = poll_fn(|cx| {
            let owner = run.owner;
            let polled = current::enter_as(r.as_deref_mut(), machine, phase, owner, || run.poll(cx));
            match r.as_deref_mut() {
                Some(r) if polled.is_pending() => match run.is_abandoned(r, cx) {
                    true => current::enter(Some(r), machine, phase, || run.abandon(cx)),
                    false => {
                        r.downstream.lend_buffers();
                        polled
                    }
                },
                _ => polled,
            }
        })
        .await;
        let (index, result) = match (step, r.as_deref_mut()) {
            (Step::End(end), Some(r)) if !matches!(end, End::Done) && body::is_gathered_in_part(r) => {
                run.threads.clear();
                if matches!(end, End::Exit(_)) && has_content(r, phase) {
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
                if let (End::Done, Some(Some(entry))) = (&end, run.threads.into_iter().next()) {
                    machine.keep(entry.coroutine);
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
        run.ready.push_back((index, Given::Values(result)));
    }
}

impl Run<'_> {
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
                let index = self.begin(Light::new(coroutine, None));
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
                if let State::Waits(operation) = &mut light.state
                    && let Poll::Ready(mut items) = operation.as_mut().poll(cx)
                {
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
        let light = self.threads[index].as_ref()?;
        let (result, has_yielded) = light.coroutine.resume(match given {
            Given::Values(values) => values,
            Given::Items(items) => values(&self.machine.lua, items),
        });
        match result {
            Err(error) if index == 0 => {
                log(Level::Error, format_args!("lua entry thread aborted: runtime error: {}", explain(&error)));
                Some(Step::End(End::Failed))
            }
            Err(error) => {
                let text = explain(&error);
                log(Level::Error, format_args!("lua user thread aborted: runtime error: {text}"));
                let first = told_to_joiner(&text);
                let text = first.into_lua(&self.machine.lua).unwrap_or(Value::Nil);
                self.ended(index, false, MultiValue::from_iter([text]));
                None
            }
            Ok(mut values) if has_yielded => {
                if !is_wait(values.front()) {
                    // A plain `coroutine.yield`: the others have their turn.
                    self.ready.push_back((index, Given::none()));
                    self.shelve(index);
                    return None;
                }
                values.pop_front();
                let kind = values.pop_front();
                self.wait(index, kind.as_ref(), values)
            }
            Ok(values) => {
                self.ended(index, true, values);
                None
            }
        }
    }

    /// It goes on later, when others have had their turn.
    fn shelve(&mut self, index: usize) {
        if let Some(light) = &mut self.threads[index] {
            light.coroutine.shelve(&self.machine.shelf);
        }
    }

    /// A number for one more.
    fn begin(&mut self, light: Light) -> usize {
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
        light.coroutine.shelve(&self.machine.shelf);
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
            "exit" => {
                let status = arguments.pop_front().and_then(|v| v.as_f64().or(v.as_i64().map(|i| i as f64)));
                let status = status.map_or(0, |s| s as i64);
                // NGX_ERROR, and what closes the connection, end everything.
                if !matches!(status, -1 | 408 | 444 | 499) && self.refuses_end(index) {
                    return None;
                }
                log(Level::Debug, format_args!("lua exit with code {status}"));
                return Some(Step::End(End::Exit(status)));
            }
            "exec" | "jump" if self.refuses_end(index) => return None,
            "exec" => return Some(Step::End(End::Exec)),
            "jump" => return Some(Step::End(End::Jump)),
            "flush" if current::request(|r| Ok(r.ctx.stream.is_some())) == Ok(true) => {
                self.shelve(index);
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
                let mut coroutine = Coroutine::from(thread);
                coroutine.shelve(&self.machine.shelf);
                let items = match self.on_abort.replace(coroutine) {
                    None => vec![Item::Number(1.0)],
                    Some(_) => vec![Item::Nil, "duplicate call".into()],
                };
                self.ready.push_front((index, Given::Items(items)));
                return None;
            }
            "sleep" => Ok(sleep(arguments.pop_front().and_then(|v| number(&v)).unwrap_or(0.0))),
            "semaphore" => semaphore::wait(&arguments),
            "capture" => capture::start(arguments),
            "worker_thread" => worker_thread::start(arguments),
            "pipe_wait" | "pipe_read" | "pipe_write" => pipe::start(kind, &arguments),
            _ => socket::start(kind, &arguments),
        };
        match started {
            Ok(operation) => {
                if let Some(light) = &mut self.threads[index] {
                    (light.state, light.captures) = (State::Waits(operation), kind == "capture");
                    light.coroutine.shelve(&self.machine.shelf);
                }
            }
            Err(fault) => self.ready.push_front((index, Given::Items(vec![Item::Fault(fault)]))),
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
            let fault = Item::Fault(Fault("attempt to abort with pending subrequests".to_owned()));
            self.ready.push_front((index, Given::Items(vec![fault])));
        }
        refuses
    }

    /// `ngx.thread.spawn`: the new one runs first; the one that made it goes on when those before it had their turn.
    fn spawn(&mut self, index: usize, mut arguments: MultiValue) {
        let alive = self.threads.len() - self.free.len();
        let Some(Value::Thread(thread)) = arguments.pop_front() else { return };
        if alive >= MAX_THREADS {
            let refused = vec![Item::Fault(Fault("too many light threads".to_owned()))];
            self.ready.push_front((index, Given::Items(refused)));
            return;
        }
        self.ready.push_back((index, Given::Values(MultiValue::from_iter([Value::Thread(thread.clone())]))));
        self.shelve(index);
        let made = self.begin(Light::new(thread.into(), Some(index)));
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
        self.shelve(index);
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

/// A number, or a text that is one.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(*i as f64),
        Value::Number(n) => Some(*n),
        Value::String(text) => text.to_str().ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// Values of Lua of what an operation gave back.
fn values(lua: &Lua, items: Vec<Item>) -> MultiValue {
    let mut out = MultiValue::with_capacity(items.len());
    for item in items {
        let value = match item {
            Item::Nil => Ok(Value::Nil),
            Item::Flag(flag) => Ok(Value::Boolean(flag)),
            Item::Number(number) => Ok(Value::Number(number)),
            Item::Text(text) => lua.create_string(text).map(Value::String),
            Item::Plain(plain) => plain.into_lua(lua),
            // It was seen before.
            Item::End(_) => continue,
            Item::Answer(answer) => answer.into_table(lua).map(Value::Table),
            Item::Fault(fault) => {
                out.push_back(fault_mark());
                lua.create_string(fault.0).map(Value::String)
            }
        };
        out.push_back(value.unwrap_or(Value::Nil));
    }
    out
}

/// What whoever waits for a light thread is told of its error: of one that `error` raised its own text, without the place. So
/// OpenResty does, which gives the arguments of `error`.
fn told_to_joiner(text: &str) -> &str {
    let (first, trace) = text.split_once("\nstack traceback:").unwrap_or((text, ""));
    let raised = trace.trim_start_matches("\ncoroutine 0:").trim_start().starts_with("[C]: in function 'error'");
    let place = first.find(": ").filter(|at| raised && first[..*at].ends_with(|c: char| c.is_ascii_digit()));
    place.map_or(first, |at| &first[at + 2..])
}

fn end_of(e: body::BodyError) -> End {
    match e {
        body::BodyError::Status(status) => End::Exit(i64::from(status)),
        body::BodyError::Gone => End::Broken,
    }
}

/// `ngx.req.read_body`. The program's other light threads run meanwhile.
fn read_body() -> Operation {
    Box::pin(poll_fn(|cx| {
        let read = current::request(|r| Ok(body::poll_all(r, cx).map_err(end_of)));
        match read {
            Ok(read) => read.map(|read| read.err().into_iter().map(Item::End).collect()),
            Err(fault) => Poll::Ready(vec![Item::Fault(fault)]),
        }
    }))
}

/// `ngx.flush(true)`, as [`read_body`].
fn flush() -> Operation {
    let mut flush = None;
    Box::pin(poll_fn(move |cx| {
        let flushed = current::request(|r| {
            let flushed = flow::poll_flush_now(r, &mut flush, cx);
            if let Poll::Ready(Err(verdict)) = flushed {
                // The program hears of it and goes on, as under ngx_lua; the request comes to this in the end.
                r.ctx.lua.get_or_insert_default().failed = Some(verdict);
            }
            Ok(flushed)
        });
        match flushed {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => Poll::Ready(vec![Item::Number(1.0)]),
            Ok(Poll::Ready(Err(_))) => Poll::Ready(vec![Item::Nil, super::api::answer::LOST.into()]),
            Err(fault) => Poll::Ready(vec![Item::Fault(fault)]),
        }
    }))
}

/// Says so when a sleep is given up.
struct Asleep(bool);

impl Drop for Asleep {
    fn drop(&mut self) {
        if !self.0 {
            log(Level::Debug, format_args!("lua clean up the timer for pending ngx.sleep"));
        }
    }
}

/// `ngx.sleep`; no time at all lets the others go first.
fn sleep(seconds: f64) -> Operation {
    // Made now: a sleep that is given up before its first turn is one, too.
    let asleep = Asleep(false);
    log(Level::Debug, format_args!("lua ready to sleep for {} ms", (seconds * 1000.0) as u64));
    Box::pin(async move {
        let mut asleep = asleep;
        if seconds < 0.001 {
            runtime::yield_now().await;
        } else {
            runtime::timer::sleep(Duration::from_secs_f64(seconds.min(f64::from(u32::MAX)))).await;
        }
        asleep.0 = true;
        if log_is_on(Level::Debug) {
            let uri = current::connection(|r| {
                let (uri, args) = (r.get(r.head.uri), r.get(r.head.args));
                Ok(format!("{}?{}", String::from_utf8_lossy(uri), String::from_utf8_lossy(args)))
            });
            let uri = uri.unwrap_or_else(|_| "?".to_owned());
            log(Level::Debug, format_args!("lua sleep timer expired: \"{uri}\""));
        }
        Vec::new()
    })
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
