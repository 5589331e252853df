//! A context: a program with njs's library, for one request at a time. Functions of the program are called by name; what they wait for are
//! futures that `poll` drives.

use crate::program::Running;
use crate::runtime::Turn;
use crate::value::{Fault, Item, Kind, bytes_of};
use crate::{Parts, Program, library, runtime};
use rquickjs::{Array, Context, Ctx, Error, Exception, Function, IntoJs, Module, Object, Persistent, Value};
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

/// Operations that one request may wait for at the same time.
const MAX_OPERATIONS: usize = 1000;
/// Rejections that are remembered for one request.
const MAX_REJECTED: usize = 100;

/// Something that a program waits for.
pub type Operation = Pin<Box<dyn Future<Output = Result<Item, Fault>>>>;

/// What a call has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// It is over.
    Done,
    /// It waits for operations.
    Waits,
}

/// See the module's head.
pub struct Engine {
    context: Context,
    raw: Persistent<Object<'static>>,
    program: Arc<Program>,
    operations: RefCell<Vec<(u32, Operation)>>,
    cancelled: RefCell<Vec<u32>>,
    last: Cell<u32>,
    /// What the last call gave back.
    result: RefCell<Option<Persistent<Value<'static>>>>,
    rejected: RefCell<Vec<(Persistent<Value<'static>>, String)>>,
    /// Files that the program has opened, by their descriptors.
    pub(crate) files: RefCell<HashMap<i32, File>>,
}

/// A context that runs, for calls from inside.
trait Inside {
    fn run(&self, work: &mut dyn FnMut(&Ctx<'_>));
}

impl Inside for Ctx<'_> {
    fn run(&self, work: &mut dyn FnMut(&Ctx<'_>)) {
        work(self);
    }
}

#[derive(Clone, Copy)]
struct Entered<'a>(&'a dyn Inside);

scoped_thread_local!(static ENTERED: for<'a> Entered<'a>);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// The engine that runs now.
///
/// # Errors
/// None does.
pub fn current() -> Result<Rc<Engine>, Fault> {
    CURRENT.with_borrow(Clone::clone).ok_or_else(|| Fault::internal("no program is running"))
}

/// Whether a program runs on this thread: no context can be made before it is done.
pub fn is_busy() -> bool {
    ENTERED.is_set()
}

/// What natives and parts have in common in the context that runs.
///
/// # Errors
/// None runs.
pub(crate) fn raw_of<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    match current() {
        Ok(engine) => engine.raw(ctx),
        Err(fault) => Err(fault.throw(ctx)),
    }
}

/// What stays after an engine has been entered, whatever happens.
struct Restore(Option<Rc<Engine>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// QuickJS says that a promise was rejected and nobody takes it, or that somebody does now.
pub(crate) fn rejected<'js>(ctx: Ctx<'js>, promise: Value<'js>, reason: Value<'js>, is_handled: bool) {
    let Ok(engine) = current() else { return };
    if is_handled {
        let mut all = engine.rejected.borrow_mut();
        all.retain(|(known, _)| known.clone().restore(&ctx).is_ok_and(|known| known != promise));
        return;
    }
    let text = engine.shown(&ctx, reason);
    let mut all = engine.rejected.borrow_mut();
    if all.len() < MAX_REJECTED {
        all.push((Persistent::save(&ctx, promise), text));
    }
}

impl Engine {
    /// A new context: `natives` puts the server's functions in, `parts` are its side of them.
    ///
    /// # Errors
    /// The program failed when it was begun, in the words of the log.
    pub fn new(
        program: &Arc<Program>,
        parts: Parts,
        natives: impl FnOnce(&Ctx<'_>, &Object<'_>) -> rquickjs::Result<()>,
    ) -> Result<Rc<Engine>, String> {
        if is_busy() {
            return Err("no context can be made while a program runs".to_owned());
        }
        library::prepare(parts)?;
        let context = Context::full(&runtime::of_thread()).map_err(|e| e.to_string())?;
        let raw = context.with(|ctx| {
            let begun = begin(&ctx, parts, natives).map(|raw| Persistent::save(&ctx, raw));
            begun.map_err(|e| library::plain_text(&ctx, &e))
        })?;
        let engine = Rc::new(Engine {
            context,
            raw,
            program: program.clone(),
            operations: RefCell::default(),
            cancelled: RefCell::default(),
            last: Cell::new(0),
            result: RefCell::default(),
            rejected: RefCell::default(),
            files: RefCell::default(),
        });
        engine.import()?;
        Ok(engine)
    }

    /// Runs the program's modules.
    fn import(self: &Rc<Engine>) -> Result<(), String> {
        self.enter(|ctx| {
            let imported = Module::import(ctx, Program::main_name());
            drain(ctx);
            let failed = |e: &Error| self.thrown(ctx, e);
            match imported.map_err(|e| failed(&e))?.result::<Value<'_>>() {
                Some(Err(e)) => {
                    self.rejected.borrow_mut().clear();
                    Err(failed(&e))
                }
                // `await` outside of functions may wait for nothing that takes time.
                None => Err("js: top-level await has not ended".to_owned()),
                Some(Ok(_)) => Ok(()),
            }
        })
    }

    /// Runs `work` in the context, which may be running already.
    pub fn enter<T>(self: &Rc<Engine>, work: impl FnOnce(&Ctx<'_>) -> T) -> T {
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        let _running = Running::set(&self.program);
        let (mut work, mut out) = (Some(work), None);
        let mut once = |ctx: &Ctx<'_>| {
            if let Some(work) = work.take() {
                out = Some(work(ctx));
            }
        };
        if ENTERED.is_set() {
            ENTERED.with(|inside| inside.0.run(&mut once));
        } else {
            let _turn = Turn::begin();
            self.context.with(|ctx| ENTERED.set(Entered(&ctx), || once(&ctx)));
        }
        out.expect("the work was run")
    }

    fn own<'js>(&self, ctx: &Ctx<'js>, name: &str) -> rquickjs::Result<Function<'js>> {
        self.raw.clone().restore(ctx)?.get(name)
    }

    /// What natives and parts have in common.
    ///
    /// # Errors
    /// An exception.
    pub fn raw<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
        self.raw.clone().restore(ctx)
    }

    /// Calls a function of the program. `arguments` makes its arguments.
    ///
    /// # Errors
    /// What the log says of an exception.
    pub fn call(
        self: &Rc<Engine>,
        name: &str,
        arguments: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<Array<'js>>,
    ) -> Result<Called, String> {
        self.enter(|ctx| {
            *self.result.borrow_mut() = None;
            let called = (|| {
                let raw = self.raw(ctx)?;
                let arguments = arguments(ctx, &raw)?;
                raw.get::<_, Function<'_>>("call")?.call::<_, Value<'_>>((name, arguments))
            })();
            let value = called.map_err(|e| self.thrown(ctx, &e))?;
            drain(ctx);
            self.judge(ctx, value)
        })
    }

    /// Calls something of the parts' own: nothing is kept of what it gives back.
    ///
    /// # Errors
    /// What the log says of an exception.
    pub fn notify<T>(
        self: &Rc<Engine>,
        work: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<T>,
    ) -> Result<T, String> {
        self.enter(|ctx| {
            let done = self.raw(ctx).and_then(|raw| work(ctx, &raw)).map_err(|e| self.thrown(ctx, &e))?;
            drain(ctx);
            Ok(done)
        })
    }

    /// What a call gave back, once jobs have run.
    fn judge<'js>(self: &Rc<Engine>, ctx: &Ctx<'js>, value: Value<'js>) -> Result<Called, String> {
        if let Some(promise) = value.as_promise()
            && let Some(Err(e)) = promise.result::<Value<'js>>()
        {
            let text = self.thrown(ctx, &e);
            if let Ok(forgive) = self.own(ctx, "forgive") {
                let _ = forgive.call::<_, ()>((value,));
                drain(ctx);
            }
            return Err(text);
        }
        *self.result.borrow_mut() = Some(Persistent::save(ctx, value));
        Ok(if self.is_waiting() { Called::Waits } else { Called::Done })
    }

    /// The last call's value as bytes: what `setReturnValue` said, or what the function gave back; of a promise what it has come to.
    ///
    /// # Errors
    /// What the log says of an exception.
    pub fn returned(self: &Rc<Engine>) -> Result<Vec<u8>, String> {
        let result = self.result.borrow_mut().take();
        self.enter(|ctx| {
            let found = (|| {
                let set: Value<'_> = self.own(ctx, "returned")?.call(())?;
                if let Some(set) = set.as_object() {
                    return set.get::<_, Value<'_>>("value");
                }
                let value = match result {
                    Some(value) => value.restore(ctx)?,
                    None => Value::new_undefined(ctx.clone()),
                };
                match value.as_promise() {
                    Some(promise) => {
                        promise.result::<Value<'_>>().unwrap_or_else(|| Ok(Value::new_undefined(ctx.clone())))
                    }
                    None => Ok(value),
                }
            })();
            let value = found.map_err(|e| self.thrown(ctx, &e))?;
            match () {
                () if value.is_undefined() => Ok(b"undefined".to_vec()),
                () if value.is_null() => Ok(b"null".to_vec()),
                () => bytes_of(ctx, &value).map_err(|e| self.thrown(ctx, &e)),
            }
        })
    }

    /// Begins an operation for the program: the number by which the program waits for it.
    ///
    /// # Errors
    /// There are too many.
    pub fn begin(&self, operation: Operation) -> Result<u32, Fault> {
        let mut all = self.operations.borrow_mut();
        if all.len() >= MAX_OPERATIONS {
            return Err(Fault::internal("too many operations at the same time"));
        }
        let number = self.last.get().wrapping_add(1);
        self.last.set(number);
        all.push((number, operation));
        Ok(number)
    }

    /// Ends an operation that nobody waits for any more.
    pub fn cancel(&self, number: u32) {
        self.cancelled.borrow_mut().push(number);
        self.operations.borrow_mut().retain(|(known, _)| *known != number);
    }

    /// Whether the program waits for anything.
    pub fn is_waiting(&self) -> bool {
        !self.operations.borrow().is_empty()
    }

    /// Drives what the program waits for. Ready when it waits for nothing more.
    pub fn poll(self: &Rc<Engine>, cx: &mut task::Context<'_>) -> Poll<Result<(), String>> {
        loop {
            self.cancelled.borrow_mut().clear();
            // They may begin others while they are polled.
            let mut running = self.operations.take();
            let mut done = Vec::new();
            running.retain_mut(|(number, operation)| match operation.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    done.push((*number, result));
                    false
                }
                Poll::Pending => true,
            });
            let cancelled = self.cancelled.take();
            running.retain(|(number, _)| !cancelled.contains(number));
            let mut all = self.operations.borrow_mut();
            running.append(&mut all);
            *all = running;
            let is_over = all.is_empty();
            drop(all);
            if done.is_empty() {
                return if is_over { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            for (number, result) in done {
                if let Err(text) = self.settle(number, result) {
                    return Poll::Ready(Err(text));
                }
            }
        }
    }

    fn settle(self: &Rc<Engine>, number: u32, result: Result<Item, Fault>) -> Result<(), String> {
        self.enter(|ctx| {
            let settled = (|| {
                let ok = result.is_ok();
                let value = match result {
                    Ok(item) => item.into_js(ctx)?,
                    Err(fault) => error_value(ctx, &fault)?,
                };
                self.own(ctx, "settle")?.call::<_, ()>((number, ok, value))
            })();
            settled.map_err(|e| self.thrown(ctx, &e))?;
            drain(ctx);
            Ok(())
        })
    }

    /// Why nobody took a promise that was rejected: the first of them.
    pub fn unhandled(&self) -> Option<String> {
        let all = self.rejected.take();
        all.into_iter().next().map(|(_, text)| text)
    }

    /// Whether there is such a promise.
    pub fn has_unhandled(&self) -> bool {
        !self.rejected.borrow().is_empty()
    }

    /// The request is over. Gives what the log should say, and whether the context may serve another.
    pub fn reset(self: &Rc<Engine>) -> (Vec<String>, bool) {
        let mut said = Vec::new();
        self.operations.take();
        self.files.take();
        *self.result.borrow_mut() = None;
        let mut reusable = true;
        let reset = self.enter(|ctx| {
            let done = self.own(ctx, "reset").and_then(|reset| reset.call::<_, ()>(()));
            let done = done.map_err(|e| self.thrown(ctx, &e));
            drain(ctx);
            done
        });
        if let Err(text) = reset {
            said.push(format!("exit hook exception: {text}"));
            reusable = false;
        }
        if let Some(text) = self.unhandled() {
            said.push(format!("unhandled rejection: {text}"));
        }
        // What the hook has begun.
        reusable &= self.operations.take().is_empty();
        (said, reusable)
    }

    /// What the log says of an error: an exception is taken, and shown with its traceback.
    fn thrown(&self, ctx: &Ctx<'_>, error: &Error) -> String {
        match error {
            Error::Exception => self.shown(ctx, ctx.catch()),
            other => other.to_string(),
        }
    }

    fn shown<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> String {
        let shown = self.own(ctx, "failure").and_then(|f| f.call::<_, String>((value,)));
        shown.unwrap_or_else(|e| library::plain_text(ctx, &e))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Values go before their context does.
        self.rejected.take();
        self.result.take();
    }
}

/// An error as a value.
fn error_value<'js>(ctx: &Ctx<'js>, fault: &Fault) -> rquickjs::Result<Value<'js>> {
    if fault.kind == Kind::Plain {
        return Exception::from_message(ctx.clone(), &fault.text).map(|e| e.into_object().into_value());
    }
    let _ = fault.throw(ctx);
    Ok(ctx.catch())
}

/// Runs what promises have set off. What such a job throws is a promise's rejection, which is told on its own.
fn drain(ctx: &Ctx<'_>) {
    while ctx.execute_pending_job() {}
}

fn begin<'js>(
    ctx: &Ctx<'js>,
    parts: Parts,
    natives: impl FnOnce(&Ctx<'_>, &Object<'_>) -> rquickjs::Result<()>,
) -> rquickjs::Result<Object<'js>> {
    let raw = Object::new(ctx.clone())?;
    library::add(ctx, &raw)?;
    natives(ctx, &raw)?;
    library::load(ctx, &raw, library::CORE)?;
    library::load(ctx, &raw, parts.now)?;
    Ok(raw)
}

#[cfg(test)]
mod tests;
