//! `ngx.run_worker_thread`: a function of a module runs in a thread of a `thread_pool`, in a machine of that thread, and the program that has
//! called waits. What goes there and comes back is copied: nothing of a machine crosses threads.

use super::current::{self, ANSWERING, Phase};
use super::machine::{Asked, Machine};
use super::operation::{Item, Operation};
use super::run;
use crate::process_settings::PoolSize;
use crate::snapshot::{Snapshot, ThreadSnapshot};
use ::lua::Fault;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tokio::sync::oneshot;

/// How deep tables may nest.
const MAX_DEPTH: usize = 100;
/// Machines of such threads where `lua_worker_thread_vm_pool_size` says nothing else.
pub const MACHINES: u64 = 10;

/// A value that may go to another machine.
#[derive(Debug)]
pub enum Plain {
    /// `nil`
    Nil,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(Box<[u8]>),
    /// A table of them.
    Table(Vec<(Plain, Plain)>),
}

impl Plain {
    fn of(value: &Value, depth: usize) -> Result<Plain, String> {
        Ok(match value {
            Value::Nil => Plain::Nil,
            Value::Boolean(flag) => Plain::Flag(*flag),
            Value::Integer(number) => Plain::Number(*number as f64),
            Value::Number(number) => Plain::Number(*number),
            Value::String(text) => Plain::Text(text.as_bytes().as_ref().into()),
            Value::Table(_) if depth >= MAX_DEPTH => {
                return Err(format!("suspicious circular references, table depth exceed max depth: {MAX_DEPTH}"));
            }
            Value::Table(table) => {
                let pair = |pair: mlua::Result<(Value, Value)>| {
                    let (key, value) = pair.map_err(|e| e.to_string())?;
                    Ok((Plain::of(&key, depth + 1)?, Plain::of(&value, depth + 1)?))
                };
                Plain::Table(table.pairs().map(pair).collect::<Result<_, String>>()?)
            }
            other => return Err(format!("unsupported Lua type: {}", other.type_name())),
        })
    }

    /// In another machine.
    pub fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Plain::Nil => Value::Nil,
            Plain::Flag(flag) => Value::Boolean(flag),
            Plain::Number(number) => Value::Number(number),
            Plain::Text(text) => Value::String(lua.create_string(text)?),
            Plain::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.into_lua(lua)?, value.into_lua(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}

/// What a thread is asked for.
struct Question {
    snapshot: Arc<Snapshot>,
    is_stream: bool,
    module: String,
    function: String,
    arguments: Vec<Plain>,
}

/// What came of it, or why nothing did.
type Answer = Result<Vec<Plain>, String>;

struct Call {
    question: Question,
    answer: oneshot::Sender<Answer>,
}

type Calls = SyncSender<Call>;

/// By the names of their pools, which keep the size that they have begun with.
static POOLS: LazyLock<Mutex<HashMap<Box<str>, Calls>>> = LazyLock::new(Mutex::default);
/// Machines that such threads have.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The pool of a name; none where the configuration has none of that name.
fn pool(snapshot: &Snapshot, name: &str) -> Option<Calls> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = pools.get(name) {
        return Some(known.clone());
    }
    let known = snapshot.process.thread_pools.iter().find(|pool| *pool.name == *name).cloned();
    let size = known.or_else(|| (name == "default").then(PoolSize::default_pool))?;
    let (calls, receiver) = sync_channel(size.max_queue);
    let receiver = Arc::new(Mutex::new(receiver));
    // One without a machine could only refuse.
    let most = *snapshot.main.lua.worker_thread_vm_pool_size as usize;
    for number in 0..size.threads.min(most).max(1) {
        let receiver = receiver.clone();
        let thread = std::thread::Builder::new().name(format!("lua {name} {number}"));
        let started = thread.spawn(move || serve(&receiver));
        if started.is_err() && number == 0 {
            return None;
        }
    }
    pools.insert(name.into(), calls.clone());
    Some(calls)
}

/// A thread of a pool.
fn serve(calls: &Mutex<Receiver<Call>>) {
    let mut own: Option<Own> = None;
    loop {
        let call = calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(call) = call else { return };
        let Call { question, answer } = call;
        // Whoever has asked may be gone.
        let _ = answer.send(run(&mut own, question));
    }
}

/// A thread's machine, for one configuration.
struct Own {
    of: Arc<Snapshot>,
    machine: Rc<Machine>,
    /// The machine has no more than a weak one.
    _view: Rc<ThreadSnapshot>,
}

impl Own {
    fn new(call: &Question) -> Result<Own, String> {
        let most = *call.snapshot.main.lua.worker_thread_vm_pool_size as usize;
        if COUNT.fetch_add(1, Relaxed) >= most {
            COUNT.fetch_sub(1, Relaxed);
            return Err("no available Lua vm".to_owned());
        }
        let whole = Rc::new(ThreadSnapshot::new(call.snapshot.clone()));
        let view = match &whole.stream {
            Some(stream) if call.is_stream => stream.clone(),
            _ => whole,
        };
        match Machine::new(&view, Asked::ForThread) {
            Ok(machine) => Ok(Own { of: call.snapshot.clone(), machine, _view: view }),
            Err(text) => {
                COUNT.fetch_sub(1, Relaxed);
                Err(text)
            }
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Relaxed);
    }
}

fn run(own: &mut Option<Own>, call: Question) -> Answer {
    if own.as_ref().is_none_or(|own| !Arc::ptr_eq(&own.of, &call.snapshot)) {
        *own = None;
        *own = Some(Own::new(&call)?);
    }
    let Some(Own { machine, .. }) = own else { return Err("no available Lua vm".to_owned()) };
    let lua = &machine.lua;
    let values = current::enter(None, machine, Phase::Init, || -> mlua::Result<MultiValue> {
        let require: Function = lua.globals().get("require")?;
        let module: Table = require.call(call.module.as_str())?;
        let function: Function = module.get(call.function.as_str())?;
        let arguments = call.arguments.into_iter().map(|plain| plain.into_lua(lua));
        function.call(arguments.collect::<mlua::Result<MultiValue>>()?)
    });
    let values = values.map_err(|e| run::explain(&e))?;
    let plain = |value: &Value| Plain::of(value, 0).map_err(|text| format!("{text} in the return value"));
    values.iter().map(plain).collect()
}

/// `ngx.run_worker_thread(pool, module, function, ...)`
///
/// # Errors
/// It has no place in the running phase, or is called with something else.
pub fn start(mut values: MultiValue) -> Result<Operation, Fault> {
    current::need(ANSWERING)?;
    if values.len() < 3 {
        return Err(Fault("expecting at least 3 arguments".to_owned()));
    }
    let mut name = |what: &str| match values.pop_front() {
        Some(Value::String(text)) => Ok(text.to_string_lossy()),
        _ => Err(Fault(format!("{what} should be a string"))),
    };
    let (pool_name, module, function) = (name("threadpool")?, name("module name")?, name("function name")?);
    let snapshot = current::machine()?.snapshot.upgrade().ok_or("the configuration is gone")?;
    let plain = |value: &Value| Plain::of(value, 0);
    let arguments = match values.iter().map(plain).collect::<Result<Vec<_>, String>>() {
        Ok(arguments) => arguments,
        Err(text) => return Ok(refused(format!("{text} in the argument"))),
    };
    let Some(calls) = pool(snapshot.whole(), &pool_name) else {
        return Ok(refused(format!("thread pool {pool_name} not found")));
    };
    let (answer, heard) = oneshot::channel();
    let question =
        Question { snapshot: snapshot.whole().clone(), is_stream: snapshot.is_stream(), module, function, arguments };
    match calls.try_send(Call { question, answer }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return Ok(refused("thread pool queue is full".to_owned())),
        Err(TrySendError::Disconnected(_)) => return Ok(refused("the threads of the pool are gone".to_owned())),
    }
    Ok(Box::pin(async move {
        match heard.await {
            Ok(Ok(values)) => std::iter::once(Item::Flag(true)).chain(values.into_iter().map(Item::Plain)).collect(),
            Ok(Err(text)) => vec![Item::Flag(false), Item::Text(text.into_bytes())],
            Err(_) => vec![Item::Flag(false), "the thread has ended".into()],
        }
    }))
}

fn refused(text: String) -> Operation {
    Box::pin(std::future::ready(vec![Item::Flag(false), Item::Text(text.into_bytes())]))
}
