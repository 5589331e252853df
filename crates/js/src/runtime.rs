//! QuickJS for one thread: its bounds, and where modules come from. All contexts of a thread share it.

use crate::engine;
use crate::program;
use crate::unsafety;
use rquickjs::loader::{ImportAttributes, Loader, Resolver};
use rquickjs::module::Declared;
use rquickjs::{Ctx, Error, Module, Object, Result, Runtime, Value};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// Bytes that all programs of a thread may have at once; who wants more gets an exception (`out of memory`).
pub(crate) const MEMORY: usize = 512 * 1024 * 1024;
/// Bytes of the thread's stack for JavaScript: a worker thread has 2 MB, and what JavaScript calls needs some of it.
const STACK: usize = 512 * 1024;
/// Bytes that are made before cycles are looked for.
const GARBAGE: usize = 4 * 1024 * 1024;
/// How long a program may compute in one go. Others of the thread wait that long, so it is an end for what never ends, and no limit for
/// work.
pub(crate) const LONGEST_TURN: Duration = Duration::from_secs(5);

thread_local! {
    // Never freed: a thread's last contexts may go after its thread-local values have gone.
    static RUNTIME: ManuallyDrop<Runtime> = ManuallyDrop::new(make());
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn make() -> Runtime {
    let runtime = Runtime::new().expect("a thread that begins has room for an empty machine");
    runtime.set_memory_limit(MEMORY);
    runtime.set_max_stack_size(STACK);
    runtime.set_gc_threshold(GARBAGE);
    runtime.set_interrupt_handler(Some(Box::new(|| UNTIL.get().is_some_and(|until| Instant::now() > until))));
    runtime.set_host_promise_rejection_tracker(Some(Box::new(engine::rejected)));
    runtime.set_loader(Modules, Modules);
    runtime
}

/// The thread's.
pub(crate) fn of_thread() -> Runtime {
    RUNTIME.with(|runtime| Runtime::clone(runtime))
}

/// Bytes that programs of the thread have.
pub(crate) fn memory() -> u64 {
    u64::try_from(of_thread().memory_usage().memory_used_size).unwrap_or(0)
}

/// A turn of a program: from here on it is bounded, until this is dropped.
pub(crate) struct Turn(Option<Instant>);

impl Turn {
    /// Begins.
    pub(crate) fn begin() -> Turn {
        Turn(UNTIL.replace(Some(Instant::now() + LONGEST_TURN)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        UNTIL.set(self.0);
    }
}

/// While a program is compiled its modules are files; while it runs they are what was compiled.
struct Modules;

impl Resolver for Modules {
    fn resolve<'js>(
        &mut self,
        _: &Ctx<'js>,
        base: &str,
        name: &str,
        _: Option<ImportAttributes<'js>>,
    ) -> Result<String> {
        program::resolve(base, name).ok_or_else(|| Error::new_resolving_message(base, name, "Cannot find module"))
    }
}

impl Loader for Modules {
    fn load<'js>(
        &mut self,
        ctx: &Ctx<'js>,
        name: &str,
        _: Option<ImportAttributes<'js>>,
    ) -> Result<Module<'js, Declared>> {
        if let Some(code) = program::code(name) {
            let module = unsafety::load(ctx, &code)?;
            if program::BUILT_IN.contains(&name)
                && let Ok(engine) = engine::current()
            {
                let modules: Object<'js> = engine.raw(ctx)?.get("modules")?;
                module.meta()?.set("value", modules.get::<_, Value<'js>>(name)?)?;
            }
            return Ok(module);
        }
        program::compile_module(ctx, name)
    }
}
