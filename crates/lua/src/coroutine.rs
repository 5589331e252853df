//! Programs and their coroutines on LuaJIT's own stacks: what a run is given is pushed there and what it gives is looked at where it lies,
//! without references, protected calls and moves between. One of the files with `unsafe`.
//!
//! What holds for all of it: a [`Stacks`] has its machine, so that lives; coroutines lie on the machine's shelf, so the collector leaves
//! them alone; and a [`Values`] borrows its coroutine, which therefore
//! is neither resumed nor begun anew before what it shows is taken off. Only "out of memory" could leave
//! a function by LuaJIT's own way, as in `quick.rs`.
#![allow(
    unsafe_code,
    reason = "what a run costs beside its program is how it is entered and left; LuaJIT's own functions are the cheapest way"
)]

use crate::machine::WAIT;
use crate::quick::{self, Call, Kind};
use crate::shelf::{Shelf, Slot};
use mlua::{Error, Function, Lua, MultiValue, Value, ffi};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Places that are there for what a run is given, and to work in: as many as a function in C has.
const ROOM: c_int = ffi::LUA_MINSTACK;

/// A function that stays as long as its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    place: c_int,
    /// Its machine's registry.
    owner: *const c_void,
}

/// A coroutine of a machine's.
pub struct Coroutine {
    state: *mut ffi::lua_State,
    /// Where it lies.
    slot: Slot,
}

/// The way into the programs of one machine.
pub struct Stacks {
    lua: Lua,
    shelf: Shelf,
    registry: *const c_void,
    /// What coroutines are made with; it never runs.
    nobody: Function,
    /// What makes tracebacks of errors.
    handler: Program,
    /// The metatable of errors that are values of mlua's.
    failures: *const c_void,
}

/// What became of a coroutine that went on.
pub enum Resumed<'c> {
    /// It has ended, with these values.
    Ended(Values<'c>),
    /// It has yielded these.
    Yielded(Values<'c>),
    /// It has raised an error, and is of no use any more.
    Failed(Error),
}

/// Values that lie on a stack. Those of a coroutine are taken off when this goes: to its program it has none.
pub struct Values<'c> {
    call: Call,
    are_taken: bool,
    coroutine: PhantomData<&'c mut Coroutine>,
}

impl Drop for Values<'_> {
    fn drop(&mut self) {
        if self.are_taken {
            // SAFETY: the coroutine is there, and nobody has gone on with it.
            unsafe { ffi::lua_settop(self.call.state, 0) };
        }
    }
}

impl Values<'_> {
    /// All that lies on a stack, whose state is valid as long as nobody goes on with it.
    fn on(state: *mut ffi::lua_State) -> Self {
        Values::new(state, false)
    }

    /// The same of a coroutine that has come to a stop.
    fn of_coroutine(state: *mut ffi::lua_State) -> Self {
        Values::new(state, true)
    }

    fn new(state: *mut ffi::lua_State, are_taken: bool) -> Self {
        // SAFETY: the callers have a valid state.
        let count = unsafe { ffi::lua_gettop(state) };
        Values { call: Call::on(state, count), are_taken, coroutine: PhantomData }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.call.count()
    }

    /// What one of them is; the first is 1.
    pub fn kind(&self, number: usize) -> Kind<'_> {
        self.call.argument(number)
    }

    /// Whether a coroutine waits for something of the server's, which the other values say.
    pub fn is_wait(&self) -> bool {
        // SAFETY: the state is valid, and nobody looks at what the mark points to.
        self.kind(1) == Kind::Other("lightuserdata")
            && unsafe { ffi::lua_touserdata(self.call.state, 1) } as usize == WAIT
    }

    /// One of them as a value that is held.
    pub fn value(&self, lua: &Lua, number: usize) -> Value {
        if number == 0 || number > self.count() {
            return Value::Nil;
        }
        let from = self.call.state;
        // SAFETY: both stacks have room for one more, which is taken off again; the value is there.
        lua.exec_raw_lua(|raw| unsafe {
            let to = raw.state();
            if ffi::lua_checkstack(from, 1) == 0 || ffi::lua_checkstack(to, 2) == 0 {
                return Value::Nil;
            }
            ffi::lua_pushvalue(from, number as c_int);
            ffi::lua_xmove(from, to, 1);
            raw.pop_value()
        })
    }

    /// Those from a number on.
    pub fn from(&self, lua: &Lua, first: usize) -> MultiValue {
        (first..=self.count()).map(|number| self.value(lua, number)).collect()
    }
}

impl Coroutine {
    /// What tells it from others, as long as it is held; of mlua's `Thread` its pointer.
    pub fn address(&self) -> *const c_void {
        self.state.cast_const().cast()
    }
}

/// What `to_pointer` says of a machine's registry.
fn registry(state: *mut ffi::lua_State) -> *const c_void {
    // SAFETY: the callers have a valid state.
    unsafe { ffi::lua_topointer(state, ffi::LUA_REGISTRYINDEX) }
}

/// Puts a function where it stays.
fn keep(lua: &Lua, function: &Function) -> mlua::Result<Program> {
    let program = Cell::new(Program { place: 0, owner: std::ptr::null() });
    // SAFETY: the function lies on top, and is taken off.
    unsafe {
        lua.exec_raw::<()>(function, |state| {
            let place = ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            program.set(Program { place, owner: registry(state) });
        })?;
    }
    Ok(program.get())
}

impl Stacks {
    /// For a machine and its shelf.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(lua: &Lua, shelf: &Shelf) -> mlua::Result<Stacks> {
        let failing = lua.create_function(|_, ()| Err::<(), _>(Error::runtime("")))?;
        let failures = Cell::new(std::ptr::null());
        // SAFETY: the function is called without arguments, and its error has a metatable, which lives as long as the machine.
        let handler: Function = unsafe {
            lua.exec_raw(failing, |state| {
                ffi::lua_pcall(state, 0, 1, 0);
                if ffi::lua_getmetatable(state, -1) != 0 {
                    failures.set(ffi::lua_topointer(state, -1));
                }
                ffi::lua_settop(state, 0);
                ffi::lua_pushlightuserdata(state, failures.get().cast_mut());
                ffi::lua_pushcclosure(state, traced, 1);
            })?
        };
        let nobody = lua.create_function(|_, ()| Ok(()))?;
        let handler = keep(lua, &handler)?;
        let (lua, shelf) = (lua.clone(), shelf.clone());
        Ok(Stacks { lua, shelf, registry: handler.owner, nobody, handler, failures: failures.get() })
    }

    /// A function that may be run again and again.
    ///
    /// # Errors
    /// Out of memory.
    pub fn program(&self, function: &Function) -> mlua::Result<Program> {
        keep(&self.lua, function)
    }

    /// A new coroutine, without anything to run.
    ///
    /// # Errors
    /// Out of memory.
    pub fn coroutine(&self) -> mlua::Result<Coroutine> {
        let coroutine = self.adopt(&self.lua.create_thread(self.nobody.clone())?)?;
        // SAFETY: it is this machine's, and has not begun.
        unsafe { ffi::lua_settop(coroutine.state, 0) };
        Ok(coroutine)
    }

    /// A coroutine that a program has made.
    ///
    /// # Errors
    /// Out of memory.
    pub fn adopt(&self, thread: &mlua::Thread) -> mlua::Result<Coroutine> {
        let slot = self.shelf.put(thread)?;
        Ok(Coroutine { state: thread.state(), slot })
    }

    /// Whether a coroutine is one of this machine's.
    fn owns(&self, coroutine: &Coroutine) -> bool {
        coroutine.slot.is_on(&self.shelf)
    }

    /// Gives a coroutine a program to begin with.
    ///
    /// # Errors
    /// It has begun and not ended.
    pub fn begin(&self, coroutine: &Coroutine, program: Program) -> mlua::Result<()> {
        assert!(self.owns(coroutine) && program.owner == self.registry, "what is of another machine is not run");
        let state = coroutine.state;
        // SAFETY: it is this machine's, runs nothing, and there is room for one value on an empty stack.
        unsafe {
            if !is_idle(state) {
                return Err(Error::CoroutineUnresumable);
            }
            ffi::lua_settop(state, 0);
            ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, program.place);
        }
        Ok(())
    }

    /// The same for a function that runs once.
    ///
    /// # Errors
    /// As [`Stacks::begin`].
    pub fn begin_with(&self, coroutine: &Coroutine, function: &Function) -> mlua::Result<()> {
        assert!(self.owns(coroutine), "what is of another machine is not run");
        let state = coroutine.state;
        // SAFETY: as in `begin`; the other stack has room for one value, which is taken off.
        self.lua.exec_raw_lua(|raw| unsafe {
            if !is_idle(state) {
                return Err(Error::CoroutineUnresumable);
            }
            let from = raw.state();
            if ffi::lua_checkstack(from, 1) == 0 {
                return Err(Error::StackError);
            }
            ffi::lua_settop(state, 0);
            raw.push(function)?;
            ffi::lua_xmove(from, state, 1);
            Ok(())
        })
    }

    /// Lets a coroutine go on with what it is given.
    pub fn resume<'c>(&self, coroutine: &'c mut Coroutine, give: impl FnOnce(&Call)) -> Resumed<'c> {
        assert!(self.owns(coroutine), "what is of another machine is not run");
        let state = coroutine.state;
        // SAFETY: it is this machine's. What it has yielded was taken off (`Values`), and where it begins its function lies on the stack; one
        // that has ended, or runs, has none. `give` pushes as many values as it counts.
        unsafe {
            let is_new = match ffi::lua_status(state) {
                ffi::LUA_YIELD => true,
                status => status == ffi::LUA_OK && ffi::lua_gettop(state) > 0 && !has_frames(state),
            };
            if !is_new {
                return Resumed::Failed(Error::CoroutineUnresumable);
            }
            if ffi::lua_checkstack(state, ROOM) == 0 {
                return Resumed::Failed(Error::StackError);
            }
            let call = Call::on(state, 0);
            give(&call);
            if call.is_full() {
                return Resumed::Failed(Error::StackError);
            }
            let status = ffi::lua_resume_(state, call.given());
            match status {
                ffi::LUA_OK => Resumed::Ended(Values::of_coroutine(state)),
                ffi::LUA_YIELD => Resumed::Yielded(Values::of_coroutine(state)),
                status => Resumed::Failed(self.failed(state, status)),
            }
        }
    }

    /// Runs a program that may not wait, on the stack of whoever runs. Its first value.
    ///
    /// # Errors
    /// What the program has raised.
    pub fn call(&self, program: Program) -> mlua::Result<Value> {
        self.enter(program, 1, |state| {
            let values = Values::on(state);
            values.value(&self.lua, values.count())
        })
    }

    /// The same for a program whose values nobody wants.
    ///
    /// # Errors
    /// As [`Stacks::call`].
    pub fn run(&self, program: Program) -> mlua::Result<()> {
        self.enter(program, 0, |_| ())
    }

    fn enter<R>(
        &self,
        program: Program,
        results: c_int,
        show: impl FnOnce(*mut ffi::lua_State) -> R,
    ) -> mlua::Result<R> {
        assert!(program.owner == self.registry, "what is of another machine is not run");
        // Within a quick function mlua does not know on which stack it is.
        let state = match quick::running().filter(|state| registry(*state) == self.registry) {
            Some(state) => state,
            None => self.lua.exec_raw_lua(|raw| raw.state()),
        };
        // SAFETY: the state is the one that runs, and is left as it was; a call may be made there, as it is one of C's functions that
        // does so, or nobody runs.
        unsafe {
            let top = ffi::lua_gettop(state);
            if ffi::lua_checkstack(state, ROOM) == 0 {
                return Err(Error::StackError);
            }
            ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, self.handler.place);
            ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, program.place);
            let outside = quick::Outside::begin();
            let status = ffi::lua_pcall(state, 0, results, top + 1);
            drop(outside);
            let shown = match status {
                ffi::LUA_OK => Ok(show(state)),
                status => Err(self.error_on(state, status)),
            };
            ffi::lua_settop(state, top);
            shown
        }
    }

    /// What a coroutine has raised, which lies on its stack, with where it was.
    fn failed(&self, thread: *mut ffi::lua_State, status: c_int) -> Error {
        if status == ffi::LUA_ERRMEM {
            return Error::MemoryError(text_on(thread));
        }
        // SAFETY: the error lies on top of the coroutine's stack, which is there as long as its coroutine; the texts are made where an error
        // of theirs is caught.
        let told = unsafe {
            self.lua.exec_raw::<Value>((), |state| {
                ffi::lua_xmove(thread, state, 1);
                if !is_failure(state, self.failures) {
                    trace(state, thread);
                }
            })
        };
        match told {
            Ok(Value::Error(error)) => *error,
            Ok(Value::String(text)) => Error::RuntimeError(text.to_string_lossy()),
            Ok(other) => Error::RuntimeError(other.type_name().to_owned()),
            Err(error) => error,
        }
    }

    /// What lies on top as an error, after a protected call with the handler.
    fn error_on(&self, state: *mut ffi::lua_State, status: c_int) -> Error {
        // SAFETY: the state is the one of the call.
        if unsafe { is_failure(state, self.failures) } {
            let values = Values::on(state);
            if let Value::Error(error) = values.value(&self.lua, values.count()) {
                return *error;
            }
        }
        match status {
            ffi::LUA_ERRMEM => Error::MemoryError(text_on(state)),
            _ => Error::RuntimeError(text_on(state)),
        }
    }
}

/// The text that lies on top.
fn text_on(state: *mut ffi::lua_State) -> String {
    let values = Values::on(state);
    match values.kind(values.count()) {
        Kind::Text(text) => String::from_utf8_lossy(text).into_owned(),
        other => other.name().to_owned(),
    }
}

/// Whether something runs in a coroutine, or has called another that runs.
unsafe fn has_frames(state: *mut ffi::lua_State) -> bool {
    let mut place = MaybeUninit::<ffi::lua_Debug>::uninit();
    // SAFETY: the caller's state is valid; what is written is not read here.
    unsafe { ffi::lua_getstack(state, 0, place.as_mut_ptr()) != 0 }
}

/// Whether a coroutine has not begun, or has come to its end.
unsafe fn is_idle(state: *mut ffi::lua_State) -> bool {
    // SAFETY: the caller's state is valid.
    unsafe { ffi::lua_status(state) == ffi::LUA_OK && !has_frames(state) }
}

/// Whether the error that lies on top is a value of mlua's.
unsafe fn is_failure(state: *mut ffi::lua_State, failures: *const c_void) -> bool {
    // SAFETY: there is a value, and room for one more.
    unsafe {
        if ffi::lua_type(state, -1) != ffi::LUA_TUSERDATA || ffi::lua_getmetatable(state, -1) == 0 {
            return false;
        }
        let is_failure = ffi::lua_topointer(state, -1) == failures;
        ffi::lua_settop(state, -2);
        is_failure
    }
}

/// Puts a text with a traceback in place of the error that lies on top.
unsafe fn trace(state: *mut ffi::lua_State, thread: *mut ffi::lua_State) {
    // SAFETY: there is a value and room for its text, which takes its place; for the traceback, which takes that one's, room is asked for.
    unsafe {
        let text = ffi::luaL_tolstring(state, -1, std::ptr::null_mut());
        ffi::lua_remove(state, -2);
        if ffi::lua_checkstack(state, ffi::LUA_TRACEBACK_STACK) != 0 {
            ffi::luaL_traceback(state, thread, text, 0);
            ffi::lua_remove(state, -2);
        }
    }
}

/// The handler of errors: what LuaJIT calls where one is raised.
unsafe extern "C-unwind" fn traced(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: LuaJIT calls it with the error on top; room is asked for. The function has the errors' metatable with it.
    unsafe {
        let failures = ffi::lua_touserdata(state, ffi::lua_upvalueindex(1)).cast_const();
        if ffi::lua_checkstack(state, 2) != 0 && !is_failure(state, failures) {
            trace(state, state);
        }
    }
    1
}

impl std::fmt::Debug for Stacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stacks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;
    use std::rc::Rc;

    fn stacks() -> (Lua, Stacks) {
        let lua = machine::new();
        let shelf = Shelf::new(&lua).expect("a shelf");
        let stacks = Stacks::new(&lua, &shelf).expect("stacks");
        (lua, stacks)
    }

    fn begun(lua: &Lua, stacks: &Stacks, text: &str) -> (Coroutine, Program) {
        let function = machine::compile(lua, text.as_bytes(), "=test").expect("a program");
        let (program, coroutine) = (stacks.program(&function).expect("room"), stacks.coroutine().expect("room"));
        stacks.begin(&coroutine, program).expect("it has not begun");
        (coroutine, program)
    }

    fn failure(resumed: Resumed<'_>) -> String {
        match resumed {
            Resumed::Failed(error) => error.to_string(),
            Resumed::Ended(_) => "ended".to_owned(),
            Resumed::Yielded(_) => "yielded".to_owned(),
        }
    }

    #[test]
    fn a_coroutine_is_run_again_and_again() {
        let (lua, stacks) = stacks();
        let text = "local a, b = coroutine.yield('first', ...) return a, b, coroutine.running() ~= nil";
        let (mut coroutine, program) = begun(&lua, &stacks, text);
        for round in 0..300 {
            let Resumed::Yielded(values) = stacks.resume(&mut coroutine, |call| call.give_number(f64::from(round)))
            else {
                panic!("it yields")
            };
            assert_eq!((values.kind(1), values.kind(2)), (Kind::Text(b"first"), Kind::Number(f64::from(round))));
            assert!(!values.is_wait() && values.value(&lua, 3).is_nil());
            drop(values);
            assert!(stacks.begin(&coroutine, program).is_err(), "it has not ended");
            let Resumed::Ended(values) = stacks.resume(&mut coroutine, |call| {
                call.give_bytes(b"x");
                call.give_table(0, 1);
                call.set_flag(b"on", true);
            }) else {
                panic!("it ends")
            };
            assert_eq!((values.count(), values.kind(1), values.kind(3)), (3, Kind::Text(b"x"), Kind::Flag(true)));
            let Value::Table(table) = values.value(&lua, 2) else { panic!("a table") };
            assert!(table.get::<bool>("on").expect("a flag"));
            drop(values);
            if round % 7 == 0 {
                lua.gc_collect().expect("room");
            }
            stacks.begin(&coroutine, program).expect("it has ended");
        }
    }

    #[test]
    fn what_cannot_go_on_says_so() {
        let (lua, stacks) = stacks();
        let mut coroutine = stacks.coroutine().expect("room");
        assert!(failure(stacks.resume(&mut coroutine, |_| ())).contains("non-resumable"), "it has nothing to run");
        let (mut coroutine, program) = begun(&lua, &stacks, "return 1");
        assert_eq!(failure(stacks.resume(&mut coroutine, |_| ())), "ended");
        // Nor can its program go on with it.
        let value = coroutine.slot.value::<mlua::Thread>().expect("it is kept");
        let told = lua.load("return select(2, coroutine.resume(...))").call::<String>(value).expect("a text");
        assert_eq!(told, "cannot resume dead coroutine");
        stacks.begin(&coroutine, program).expect("it has ended");
        // One that its program has ended itself.
        let thread: mlua::Thread =
            lua.load("local co = coroutine.create(function() end) coroutine.resume(co) return co").eval().expect("one");
        let mut adopted = stacks.adopt(&thread).expect("room");
        assert_eq!(adopted.address(), thread.to_pointer());
        assert!(failure(stacks.resume(&mut adopted, |_| ())).contains("non-resumable"));
        // One that is another's caller.
        let function = lua.create_function(|_, ()| Ok(())).expect("a function");
        stacks.begin_with(&coroutine, &function).expect("it has not begun");
        assert_eq!(failure(stacks.resume(&mut coroutine, |_| ())), "ended");
    }

    #[test]
    fn errors_are_those_that_mlua_tells() {
        let (lua, stacks) = stacks();
        let fails = lua.create_function(|_, ()| Err::<(), _>(Error::runtime("ours"))).expect("a function");
        lua.globals().set("fails", fails).expect("a table");
        for text in [
            "error('said')",
            "local function deep() error({}) end deep()",
            "error(setmetatable({}, { __tostring = function() return 'of its own' end }))",
            "error(setmetatable({}, { __tostring = function() error('no text') end }))",
            "error()",
            "fails()",
            "local t = nil return t.x",
            "local function again() return again() + 1 end return again()",
        ] {
            let (mut coroutine, program) = begun(&lua, &stacks, text);
            let function = machine::compile(&lua, text.as_bytes(), "=test").expect("a program");
            let thread = lua.create_thread(function.clone()).expect("room");
            let same = |ours: &str, theirs: &str| {
                // Addresses of tables differ, and how deep a stack is when it is full.
                let plain = |text: &str| {
                    let (text, _) = text.split_once("0x").unwrap_or((text, ""));
                    text.chars().take(200).collect::<String>()
                };
                assert_eq!(plain(ours), plain(theirs), "{text}");
            };
            let told = thread.resume::<()>(()).expect_err("it fails").to_string();
            same(&failure(stacks.resume(&mut coroutine, |_| ())), &told);
            assert!(stacks.begin(&coroutine, program).is_err(), "{text}: what has failed is not used again");
            let told = function.call::<()>(()).expect_err("it fails").to_string();
            same(&stacks.run(program).expect_err("it fails").to_string(), &told);
        }
    }

    /// A quick function may run a program: on the stack that it was called on.
    #[test]
    fn a_quick_function_runs_a_program() {
        let (lua, stacks) = stacks();
        let stacks = Rc::new(stacks);
        let inner = "return coroutine.running()";
        let inner =
            stacks.program(&machine::compile(&lua, inner.as_bytes(), "=inner").expect("a program")).expect("room");
        let own = stacks.clone();
        let quick = quick::make(&lua, move |call| {
            let address = match own.call(inner).map_err(|e| e.to_string())? {
                Value::Thread(thread) => thread.to_pointer().addr(),
                _ => 0,
            };
            call.give_number(address as f64);
            Ok(())
        });
        lua.globals().set("quick", quick.expect("a function")).expect("a table");
        let (mut coroutine, _) =
            begun(&lua, &stacks, "local own = quick() return own, coroutine.wrap(function() return quick() end)()");
        let own = coroutine.address().addr() as f64;
        let Resumed::Ended(values) = stacks.resume(&mut coroutine, |_| ()) else { panic!("it ends") };
        assert_eq!(values.kind(1), Kind::Number(own));
        assert!(
            matches!(values.kind(2), Kind::Number(other) if other != own && other != 0.0),
            "the inner one is its own"
        );
    }
}
