//! The functions that programs call most, on LuaJIT's own stack: arguments are looked at where they lie and results are pushed, without
//! references, locks and protected calls between. What is rare stays with `machine::add`; such a function says so by [`Call::give_other`],
//! and the prelude calls the other one. One of the files with `unsafe`.
//!
//! What holds for all of it: a [`Call`] lives only while LuaJIT is in the C function that it is made for, so its state is valid and its
//! arguments stay on the stack. Nothing here calls Lua, but a function may by `coroutine.rs`, which does it on the same stack. Only "out of memory" could leave a function by LuaJIT's own way, which ends the
//! process as it does with mlua: so texts have a limit, and the server's memory is what limits the rest.
#![allow(
    unsafe_code,
    reason = "crossing into Lua is what such calls cost; a C function on the stack is the cheapest way"
)]

use crate::Fault;
use crate::machine::{FAULT, OTHER};
use crate::shelf::{Shelf, Slot};
use mlua::ffi;
use mlua::{Function, Lua, Table, UserData, Value};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

/// Results of one call: LuaJIT guarantees 20 places (`LUA_MINSTACK`); the rest is room to work in.
const MAX_RESULTS: u32 = 8;
/// Bytes of a text that is given; LuaJIT's own limit is twice that.
const MAX_TEXT: usize = 1 << 30;
/// Places that walking one table takes: a key, a value, and a metatable.
const WALK: c_int = 8;

/// A call of Lua's to the server.
pub struct Call {
    pub(crate) state: *mut ffi::lua_State,
    arguments: c_int,
    given: Cell<u32>,
    /// How many results there is room for.
    most: Cell<u32>,
    /// More were to be given than there can be room for.
    full: Cell<bool>,
}

thread_local! {
    /// The stack of the quick function that is at work. mlua does not know of it.
    static RUNNING: Cell<*mut ffi::lua_State> = const { Cell::new(std::ptr::null_mut()) };
}

/// The stack of the quick function that is at work, where it is the innermost of the server's.
pub(crate) fn running() -> Option<*mut ffi::lua_State> {
    Some(RUNNING.get()).filter(|state| !state.is_null())
}

/// As long as this is held no quick function is at work: another function of the server's is, or a program.
pub(crate) struct Outside(*mut ffi::lua_State);

impl Outside {
    pub(crate) fn begin() -> Outside {
        Outside(RUNNING.replace(std::ptr::null_mut()))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind<'c> {
    /// `nil`, or no argument.
    Nil,
    /// `ngx.null`
    Null,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(&'c [u8]),
    /// A table.
    Table,
    /// All else, with its name.
    Other(&'static str),
}

impl Kind<'_> {
    /// Lua's name for what it is.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Nil => "nil",
            Kind::Null => "userdata",
            Kind::Flag(_) => "boolean",
            Kind::Number(_) => "number",
            Kind::Text(_) => "string",
            Kind::Table => "table",
            Kind::Other(name) => name,
        }
    }
}

type Quick = Box<dyn Fn(&Call) -> Result<(), Fault>>;

/// Keeps a function as long as Lua has it.
struct Holder(#[allow(dead_code, reason = "its address is what the C function has")] Box<Quick>);

impl UserData for Holder {}

/// Puts a function into a table. A fault comes back as its mark and its text, as with `machine::add`.
///
/// # Errors
/// Out of memory.
pub fn add(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(&Call) -> Result<(), Fault> + 'static,
) -> mlua::Result<()> {
    table.raw_set(name, make(lua, function)?)
}

/// Makes such a function.
///
/// # Errors
/// Out of memory.
pub fn make(lua: &Lua, function: impl Fn(&Call) -> Result<(), Fault> + 'static) -> mlua::Result<Function> {
    let holder = Holder(Box::new(Box::new(function)));
    let address: *const Quick = &*holder.0;
    let holder = lua.create_userdata(holder)?;
    // SAFETY: the closure pushes two values and takes them off again for one function, as `lua_pushcclosure` says; the state is the one
    // that mlua lends. The userdata is the function's second value: what the first points to lives as long as the function.
    unsafe {
        lua.exec_raw(holder, |state| {
            ffi::lua_pushlightuserdata(state, address.cast_mut().cast::<c_void>());
            ffi::lua_insert(state, -2);
            ffi::lua_pushcclosure(state, enter, 2);
        })
    }
}

/// Makes a table outside of a call: `fill` gets it as what was given last, and gives nothing more.
///
/// # Errors
/// Out of memory.
pub fn table(lua: &Lua, named: usize, fill: impl FnOnce(&Call)) -> mlua::Result<Table> {
    // SAFETY: the state is the one that mlua lends, in a C function of its own with the usual room; the call ends with the closure.
    unsafe {
        lua.exec_raw((), |state| {
            let call = Call::on(state, 0);
            call.give_table(0, named);
            fill(&call);
        })
    }
}

/// What LuaJIT calls.
unsafe extern "C-unwind" fn enter(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the first value of the function is the address that `add` has put there, and the second keeps what is there alive. LuaJIT
    // gives a valid state with its arguments on the stack.
    let (function, call) = unsafe {
        let function = ffi::lua_touserdata(state, ffi::lua_upvalueindex(1)).cast::<Quick>().cast_const();
        (&*function, Call::on(state, ffi::lua_gettop(state)))
    };
    let before = RUNNING.replace(state);
    // A panic must not run through LuaJIT's frames.
    let called = catch_unwind(AssertUnwindSafe(|| function(&call)));
    RUNNING.set(before);
    let text = match called {
        Ok(Ok(())) => return call.given.get() as c_int,
        Ok(Err(fault)) => fault.0,
        Err(_) => "the server's own fault: a panic".to_owned(),
    };
    // SAFETY: what a half-done call has pushed is taken off; then there is room for two values.
    unsafe { ffi::lua_settop(state, call.arguments) };
    call.given.set(0);
    call.give_mark(FAULT);
    call.give_bytes(text.as_bytes());
    2
}

impl Call {
    /// What lies on a stack, and what is put there, as long as nobody else uses it.
    pub(crate) fn on(state: *mut ffi::lua_State, arguments: c_int) -> Call {
        Call { state, arguments, given: Cell::new(0), most: Cell::new(MAX_RESULTS), full: Cell::new(false) }
    }

    /// How many results were given.
    pub(crate) fn given(&self) -> c_int {
        self.given.get() as c_int
    }

    /// Whether there was no room for what was to be given.
    pub(crate) fn is_full(&self) -> bool {
        self.full.get()
    }

    /// Makes room for so many results; false: there is none, and the call fails.
    pub fn reserve(&self, results: usize) -> bool {
        let wanted = c_int::try_from(results).unwrap_or(c_int::MAX);
        // SAFETY: the state is valid.
        let has_room = unsafe { ffi::lua_checkstack(self.state, wanted.saturating_add(ffi::LUA_MINSTACK)) != 0 };
        match has_room {
            true => self.most.set(self.given.get() + wanted as u32),
            false => self.full.set(true),
        }
        has_room
    }

    /// Gives a value that is held; what cannot be given is `nil`.
    pub fn give_value(&self, lua: &Lua, value: &Value) {
        self.give(|state| {
            // SAFETY: `give` looks after the room on this stack, and the other's is asked for; the value goes from there to here.
            let pushed = lua.exec_raw_lua(|raw| unsafe {
                let from = raw.state();
                let is_there = ffi::lua_checkstack(from, 2) != 0 && raw.push_value(value).is_ok();
                if is_there {
                    ffi::lua_xmove(from, state, 1);
                }
                is_there
            });
            if !pushed {
                // SAFETY: as above.
                unsafe { ffi::lua_pushnil(state) };
            }
        });
    }

    /// Gives what is kept.
    pub fn give_kept(&self, slot: &Slot) {
        let (table, index) = slot.place();
        // SAFETY: `give` looks after the room for one, and there is room to work in; the shelf's table lies at its place of the registry.
        self.give(|state| unsafe {
            ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, table);
            ffi::lua_rawgeti_(state, -1, index);
            ffi::lua_remove(state, -2);
        });
    }

    /// Gives a new table that is kept.
    pub fn give_new_kept(&self, shelf: &Shelf) -> Slot {
        self.give_table(0, 0);
        let slot = shelf.take_place();
        let (table, index) = slot.place();
        // SAFETY: as above; the new table lies on top.
        unsafe {
            ffi::lua_rawgeti_(self.state, ffi::LUA_REGISTRYINDEX, table);
            ffi::lua_pushvalue(self.state, -2);
            ffi::lua_rawseti_(self.state, -2, index);
            ffi::lua_settop(self.state, -2);
        }
        slot
    }

    /// Gives a guard of a number.
    pub fn give_guard(&self, guards: &Guards, number: u32) {
        // SAFETY: `give` looks after the room for one, and there is room to work in. The new value has the bytes that are written.
        self.give(|state| unsafe {
            ffi::lua_newuserdata(state, size_of::<u32>()).cast::<u32>().write_unaligned(number);
            ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, guards.place);
            ffi::lua_setmetatable(state, -2);
        });
    }

    /// Gives a fault's mark, which its text follows.
    pub fn give_fault_mark(&self) {
        self.give_mark(FAULT);
    }

    /// How many arguments there are.
    pub fn count(&self) -> usize {
        self.arguments as usize
    }

    /// An argument, the first is 1.
    pub fn argument(&self, number: usize) -> Kind<'_> {
        if number == 0 || number > self.arguments as usize {
            return Kind::Nil;
        }
        self.kind(number as c_int)
    }

    /// An argument that is a number.
    pub fn number(&self, number: usize) -> Option<f64> {
        match self.argument(number) {
            Kind::Number(n) => Some(n),
            _ => None,
        }
    }

    /// What lies at a place of the stack that is there.
    fn kind(&self, index: c_int) -> Kind<'_> {
        // SAFETY: the state is valid (see the file's head), the place is there; a text is looked at only where there is one, so nothing
        // is converted in place, and it lives as long as it is on the stack or in the table that it was found in.
        unsafe {
            match ffi::lua_type(self.state, index) {
                ffi::LUA_TNIL | ffi::LUA_TNONE => Kind::Nil,
                ffi::LUA_TBOOLEAN => Kind::Flag(ffi::lua_toboolean(self.state, index) != 0),
                ffi::LUA_TNUMBER => Kind::Number(ffi::lua_tonumber(self.state, index)),
                ffi::LUA_TSTRING => {
                    let mut len = 0;
                    let text = ffi::lua_tolstring(self.state, index, &raw mut len);
                    Kind::Text(slice::from_raw_parts(text.cast::<u8>(), len))
                }
                ffi::LUA_TTABLE => Kind::Table,
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(self.state, index).is_null() => Kind::Null,
                ffi::LUA_TLIGHTUSERDATA => Kind::Other("lightuserdata"),
                ffi::LUA_TFUNCTION => Kind::Other("function"),
                ffi::LUA_TTHREAD => Kind::Other("thread"),
                ffi::LUA_TUSERDATA => Kind::Other("userdata"),
                _ => Kind::Other("cdata"),
            }
        }
    }

    /// One result more.
    fn give(&self, push: impl FnOnce(*mut ffi::lua_State)) {
        assert!(self.given.get() < self.most.get(), "a call gives a few results");
        self.given.set(self.given.get() + 1);
        push(self.state);
    }

    /// Gives `nil`.
    pub fn give_nil(&self) {
        // SAFETY: `give` looks after the room; so below.
        self.give(|state| unsafe { ffi::lua_pushnil(state) });
    }

    /// Gives a boolean.
    pub fn give_flag(&self, flag: bool) {
        // SAFETY: as above.
        self.give(|state| unsafe { ffi::lua_pushboolean(state, c_int::from(flag)) });
    }

    /// Gives a number.
    pub fn give_number(&self, number: f64) {
        // SAFETY: as above.
        self.give(|state| unsafe { ffi::lua_pushnumber(state, number) });
    }

    /// Gives a text.
    pub fn give_bytes(&self, bytes: &[u8]) {
        assert!(bytes.len() < MAX_TEXT, "a text is smaller than 1 GB");
        // SAFETY: as above; the bytes are copied.
        self.give(|state| unsafe { ffi::lua_pushlstring_(state, bytes.as_ptr().cast(), bytes.len()) });
    }

    /// Says that the other function of this name has to be called: the arguments are not for this one.
    pub fn give_other(&self) {
        self.give_mark(OTHER);
    }

    fn give_mark(&self, mark: usize) {
        // SAFETY: as above; nobody looks at what it points to.
        self.give(|state| unsafe { ffi::lua_pushlightuserdata(state, mark as *mut c_void) });
    }

    /// Gives a table with room for so many elements and named values.
    pub fn give_table(&self, elements: usize, named: usize) {
        // SAFETY: as above.
        self.give(|state| unsafe { ffi::lua_createtable(state, elements as c_int, named as c_int) });
    }

    /// Gives an argument back.
    pub fn give_argument(&self, number: usize) {
        assert!((1..=self.arguments as usize).contains(&number), "there is such an argument");
        // SAFETY: as above, and the argument is there.
        self.give(|state| unsafe { ffi::lua_pushvalue(state, number as c_int) });
    }

    /// Puts a text, or `false` for none, at an index of the table that was given last.
    pub fn set_index(&self, index: usize, text: Option<&[u8]>) {
        self.in_last_table(|state| {
            push_text(state, text);
            // SAFETY: the table lies under the value (`in_last_table`).
            unsafe { ffi::lua_rawseti_(state, -2, index as c_int) };
        });
    }

    /// Puts a text, or `false` for none, under a name into the table that was given last.
    pub fn set_name(&self, name: &[u8], text: Option<&[u8]>) {
        self.in_last_table(|state| {
            push_text(state, Some(name));
            push_text(state, text);
            // SAFETY: the table lies under key and value (`in_last_table`).
            unsafe { ffi::lua_rawset(state, -3) };
        });
    }

    /// Puts a number under a name into the table that was given last.
    pub fn set_number(&self, name: &[u8], number: f64) {
        self.in_last_table(|state| {
            push_text(state, Some(name));
            // SAFETY: the table lies under key and value (`in_last_table`).
            unsafe {
                ffi::lua_pushnumber(state, number);
                ffi::lua_rawset(state, -3);
            }
        });
    }

    /// Puts a boolean under a name into the table that was given last.
    pub fn set_flag(&self, name: &[u8], flag: bool) {
        self.in_last_table(|state| {
            push_text(state, Some(name));
            // SAFETY: the table lies under key and value (`in_last_table`).
            unsafe {
                ffi::lua_pushboolean(state, c_int::from(flag));
                ffi::lua_rawset(state, -3);
            }
        });
    }

    /// Puts a table under a name into the table that was given last; `fill` sees it as the last one. Two deep at most, for the room.
    pub fn set_table(&self, name: &[u8], elements: usize, named: usize, fill: impl FnOnce(&Call)) {
        self.in_last_table(|state| {
            push_text(state, Some(name));
            // SAFETY: there is room for two such pairs and what is put into the inner one.
            unsafe { ffi::lua_createtable(state, elements as c_int, named as c_int) };
            fill(self);
            // SAFETY: `fill` has only put something into the table that lies on top; under it are its key and the outer table.
            unsafe { ffi::lua_rawset(state, -3) };
        });
    }

    fn in_last_table(&self, work: impl FnOnce(*mut ffi::lua_State)) {
        assert!(self.given.get() > 0 && self.kind(-1) == Kind::Table, "the last result is a table");
        work(self.state);
    }

    /// Looks at an argument that may be a table of tables.
    pub fn walk(&self, number: usize) -> Place<'_> {
        assert!((1..=self.arguments as usize).contains(&number), "there is such an argument");
        Place { call: self, index: number as c_int }
    }
}

/// Values of Lua's that stand for something of the server's by a number, which is let go of when the collector finds that nobody has them.
pub struct Guards {
    /// Where their metatable lies.
    place: c_int,
}

impl Guards {
    /// With what is to be done for each number that goes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(lua: &Lua, let_go: fn(u32)) -> mlua::Result<Guards> {
        // SAFETY: the table lies under its function, whose value is the address of another; both are taken off.
        let table: Table = unsafe {
            lua.exec_raw((), |state| {
                ffi::lua_createtable(state, 0, 1);
                push_text(state, Some(b"__gc"));
                ffi::lua_pushlightuserdata(state, let_go as *mut c_void);
                ffi::lua_pushcclosure(state, guard_goes, 1);
                ffi::lua_rawset(state, -3);
            })?
        };
        Ok(Guards { place: register(lua, &table)? })
    }
}

/// The collector has found a guard. A program may call it, too, with whatever it likes.
unsafe extern "C-unwind" fn guard_goes(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: LuaJIT gives a valid state. The function's value is the address of a function of this type, as `Guards::new` has put it
    // there. Bytes are read only of a value that has so many.
    unsafe {
        let let_go = ffi::lua_touserdata(state, ffi::lua_upvalueindex(1));
        if ffi::lua_type(state, 1) == ffi::LUA_TUSERDATA && ffi::lua_objlen(state, 1) == size_of::<u32>() {
            let number = ffi::lua_touserdata(state, 1).cast::<u32>().read_unaligned();
            let let_go = std::mem::transmute::<*mut c_void, fn(u32)>(let_go);
            // A panic must not run through LuaJIT's frames; whoever looks after numbers has said what is wrong.
            let _ = catch_unwind(AssertUnwindSafe(|| let_go(number)));
        }
    }
    0
}

/// Keeps a table in the registry: the place where it lies.
pub(crate) fn register(lua: &Lua, table: &Table) -> mlua::Result<c_int> {
    let place = Cell::new(0);
    // SAFETY: the table lies on top, and is taken off.
    unsafe { lua.exec_raw::<()>(table, |state| place.set(ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX)))? };
    Ok(place.get())
}

/// Takes away what a registered table has at an index. Whether it could.
pub(crate) fn take_away(lua: &Lua, table: c_int, index: c_int) -> bool {
    // SAFETY: room is asked for and left as it was. `nil` at an index that is there makes nothing, so nothing can fail.
    lua.exec_raw_lua(|raw| unsafe {
        let state = raw.state();
        if ffi::lua_checkstack(state, 2) == 0 {
            return false;
        }
        ffi::lua_rawgeti_(state, ffi::LUA_REGISTRYINDEX, table);
        ffi::lua_pushnil(state);
        ffi::lua_rawseti_(state, -2, index);
        ffi::lua_settop(state, -2);
        true
    })
}

/// Pushes a text, or `false`: at most two at a time, which is within the room that a call has.
fn push_text(state: *mut ffi::lua_State, text: Option<&[u8]>) {
    assert!(text.is_none_or(|text| text.len() < MAX_TEXT), "a text is smaller than 1 GB");
    // SAFETY: the state is that of the call that goes on; the bytes are copied.
    unsafe {
        match text {
            Some(text) => ffi::lua_pushlstring_(state, text.as_ptr().cast(), text.len()),
            None => ffi::lua_pushboolean(state, 0),
        }
    }
}

/// A value that lies on the stack while its parts are looked at.
#[derive(Clone, Copy)]
pub struct Place<'c> {
    call: &'c Call,
    index: c_int,
}

impl<'c> Place<'c> {
    /// What it is.
    pub fn kind(self) -> Kind<'c> {
        self.call.kind(self.index)
    }

    /// Whether there is room to look at parts of a table.
    fn has_room(self) -> bool {
        // SAFETY: the state is valid.
        unsafe { ffi::lua_checkstack(self.call.state, WALK) != 0 }
    }

    /// Shows keys and values of a table until `show` breaks off or fails.
    ///
    /// # Errors
    /// What `show` says; there is no room.
    pub fn pairs(
        self,
        mut show: impl FnMut(Place<'c>, Place<'c>) -> Result<ControlFlow<()>, Fault>,
    ) -> Result<(), Fault> {
        if self.kind() != Kind::Table || !self.has_room() {
            return Err(Fault("too deep for the stack".to_owned()));
        }
        let state = self.call.state;
        // SAFETY: `index` is that of a table, and stays so: everything pushed meanwhile lies above it. Keys are never converted, so
        // `lua_next` finds its way. `show` leaves the stack as it was (each walk here takes off what it has put on).
        unsafe {
            let top = ffi::lua_gettop(state);
            ffi::lua_pushnil(state);
            while ffi::lua_next(state, self.index) != 0 {
                let (key, value) =
                    (Place { call: self.call, index: top + 1 }, Place { call: self.call, index: top + 2 });
                let shown = show(key, value);
                if !matches!(shown, Ok(ControlFlow::Continue(()))) {
                    ffi::lua_settop(state, top);
                    return shown.map(drop);
                }
                ffi::lua_settop(state, top + 1);
            }
        }
        Ok(())
    }

    /// Begins to look at the parts of a table one after the other. None: there is no room.
    pub(crate) fn visit(self) -> Option<Visit<'c>> {
        // SAFETY: the state is valid.
        let top = unsafe { ffi::lua_gettop(self.call.state) };
        (self.kind() == Kind::Table && self.has_room()).then_some(Visit { table: self, top, begun: false })
    }

    /// How many elements a table has, as `#` without metamethods.
    pub fn length(self) -> usize {
        // SAFETY: the place is there; `lua_objlen` takes any value.
        unsafe { ffi::lua_objlen(self.call.state, self.index) }
    }

    /// Which of some arguments is the table's metatable.
    pub fn is_marked<const N: usize>(self, arguments: [usize; N]) -> [bool; N] {
        let state = self.call.state;
        // SAFETY: the place is there; the metatable is taken off again. Arguments that are not there are equal to nothing.
        unsafe {
            if !self.has_room() || ffi::lua_getmetatable(state, self.index) == 0 {
                return [false; N];
            }
            let found = arguments.map(|number| ffi::lua_rawequal(state, -1, number as c_int) != 0);
            ffi::lua_pop(state, 1);
            found
        }
    }
}

/// A table whose parts are looked at one after the other, for as long as somebody wants. What is shown lies on the stack until the next is
/// shown; a visit of a table in it ends before that.
pub(crate) struct Visit<'c> {
    table: Place<'c>,
    top: c_int,
    begun: bool,
}

impl<'c> Visit<'c> {
    /// The next key and its value. None: there are no more, and nothing of this visit lies on the stack.
    pub(crate) fn pair(&mut self) -> Option<(Place<'c>, Place<'c>)> {
        let (call, top) = (self.table.call, self.top);
        assert!(self.table.kind() == Kind::Table, "a visit outlives none that began after it");
        // SAFETY: as in `pairs`: the table stays where it is, since everything that is pushed lies above it; above `top` lies the key that
        // `lua_next` goes on from, as it was found, and whatever later visits have left is taken off first.
        unsafe {
            if self.begun {
                ffi::lua_settop(call.state, top + 1);
            } else {
                ffi::lua_settop(call.state, top);
                ffi::lua_pushnil(call.state);
                self.begun = true;
            }
            (ffi::lua_next(call.state, self.table.index) != 0)
                .then_some((Place { call, index: top + 1 }, Place { call, index: top + 2 }))
        }
    }

    /// The element at an index.
    pub(crate) fn element(&mut self, index: usize) -> Place<'c> {
        let (call, top) = (self.table.call, self.top);
        assert!(self.table.kind() == Kind::Table, "a visit outlives none that began after it");
        // SAFETY: as in `pair`.
        unsafe {
            ffi::lua_settop(call.state, top);
            ffi::lua_rawgeti_(call.state, self.table.index, index as c_int);
        }
        Place { call, index: top + 1 }
    }

    /// Ends it: what was shown is taken off the stack.
    pub(crate) fn end(self) {
        // SAFETY: what lies above `top` is this visit's.
        unsafe { ffi::lua_settop(self.table.call.state, self.top) };
    }
}

/// What is made in tables, however deep: the result of a call that gives nothing else. Each table lies on the stack until it is closed, so
/// that depth takes Lua's stack and not the thread's.
pub(crate) struct Maker<'c> {
    call: &'c Call,
    /// Of each open table how many elements it has so far; of one with names: that it has such.
    open: Vec<Option<u32>>,
    has_key: bool,
}

impl<'c> Maker<'c> {
    /// For a call that has given nothing yet.
    pub(crate) fn new(call: &'c Call) -> Maker<'c> {
        assert_eq!(call.given.get(), 0, "what is made is the only result");
        Maker { call, open: Vec::new(), has_key: false }
    }

    /// Whether the innermost table has elements (`true`) or names. None: no table is open.
    pub(crate) fn is_list(&self) -> Option<bool> {
        self.open.last().map(Option::is_some)
    }

    /// Opens a table of elements, whose metatable is an argument, or one of names. False: there is no room for one more.
    pub(crate) fn open(&mut self, is_list: bool, metatable: Option<usize>) -> bool {
        assert!(self.is_list() != Some(false) || std::mem::take(&mut self.has_key), "a table in one of names has one");
        let state = self.call.state;
        // SAFETY: room is asked for first, for the table and a key and a value in it. The metatable is a table among the arguments.
        unsafe {
            if ffi::lua_checkstack(state, WALK) == 0 {
                return false;
            }
            ffi::lua_createtable(state, 0, 0);
            if let Some(number) = metatable.filter(|number| self.call.argument(*number) == Kind::Table) {
                ffi::lua_pushvalue(state, number as c_int);
                ffi::lua_setmetatable(state, -2);
            }
        }
        self.open.push(is_list.then_some(0));
        true
    }

    /// Says under which name the next value of the innermost table stands.
    pub(crate) fn key(&mut self, name: &[u8]) {
        assert!(self.is_list() == Some(false) && !self.has_key, "a name belongs to a value of a table of names");
        push_text(self.call.state, Some(name));
        self.has_key = true;
    }

    /// Makes a value that is no table.
    pub(crate) fn value(&mut self, value: Kind<'_>) {
        let state = self.call.state;
        // SAFETY: a call has room for a few values, and each open table has asked for more (`open`).
        unsafe {
            match value {
                Kind::Null => ffi::lua_pushlightuserdata(state, std::ptr::null_mut()),
                Kind::Flag(flag) => ffi::lua_pushboolean(state, c_int::from(flag)),
                Kind::Number(number) => ffi::lua_pushnumber(state, number),
                Kind::Text(text) => push_text(state, Some(text)),
                Kind::Nil | Kind::Table | Kind::Other(_) => ffi::lua_pushnil(state),
            }
        }
        self.store();
    }

    /// Closes the innermost table: it is a value of the one around it now.
    pub(crate) fn close(&mut self) {
        assert!(!self.has_key && self.open.pop().is_some(), "a table is open");
        self.has_key = self.open.last().is_some_and(Option::is_none);
        self.store();
    }

    /// The value that lies on top goes to where it belongs: without a table it is the result.
    fn store(&mut self) {
        let state = self.call.state;
        match self.open.last_mut() {
            None => self.call.give(|_| {}),
            Some(Some(count)) => {
                *count += 1;
                // SAFETY: the table lies under the value.
                unsafe { ffi::lua_rawseti_(state, -2, *count as c_int) };
            }
            Some(None) => {
                assert!(std::mem::take(&mut self.has_key), "a value of a table of names has one");
                // SAFETY: the table lies under key and value, and the key is a text.
                unsafe { ffi::lua_rawset(state, -3) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_sees_its_arguments_and_gives_results() {
        let lua = crate::machine::new();
        let function = make(&lua, |call| {
            let kinds = (1..=call.count()).map(|number| format!("{:?}", call.argument(number)));
            call.give_bytes(kinds.collect::<Vec<_>>().join(" ").as_bytes());
            call.give_table(0, 1);
            call.set_table(b"inner", 1, 0, |inner| inner.set_index(1, Some(b"x")));
            Ok(())
        });
        lua.globals().set("f", function.unwrap()).unwrap();
        let said = lua.load("local kinds, t = f(nil, true, 1.5, 'a', {}, print) return kinds .. t.inner[1]");
        let said = said.eval::<String>().unwrap();
        assert_eq!(said, "Nil Flag(true) Number(1.5) Text([97]) Table Other(\"function\")x");
    }

    #[test]
    fn a_guard_s_number_is_let_go_of() {
        thread_local! {
            static GONE: std::cell::RefCell<Vec<u32>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        let lua = crate::machine::new();
        let guards = Guards::new(&lua, |number| GONE.with_borrow_mut(|gone| gone.push(number))).unwrap();
        let function = make(&lua, move |call| {
            call.give_guard(&guards, call.number(1).unwrap_or_default() as u32);
            Ok(())
        });
        lua.globals().set("guard", function.unwrap()).unwrap();
        lua.load("kept, other = guard(7), guard(8) other = nil collectgarbage() collectgarbage()").exec().unwrap();
        assert_eq!(GONE.take(), [8]);
        // Whatever a program calls it with.
        lua.load("local f = debug.getmetatable(kept).__gc f() f(nil) f(1) f({}) f(io.stdout) f(print)").exec().unwrap();
        assert_eq!(GONE.take(), []);
        drop(lua);
        assert_eq!(GONE.take(), [7]);
    }

    /// What was pushed before is gone; the next call works as if there had been none.
    #[test]
    fn a_fault_or_a_panic_is_told() {
        let lua = crate::machine::new();
        let function = make(&lua, |call| match call.number(1) {
            Some(1.0) => {
                call.give_nil();
                Err("refused".into())
            }
            Some(2.0) => panic!("a mistake of ours"),
            _ => {
                call.give_flag(true);
                Ok(())
            }
        });
        lua.globals().set("f", function.unwrap()).unwrap();
        for (number, text) in
            [(1, "userdata refused"), (2, "userdata the server's own fault: a panic"), (3, "boolean ")]
        {
            let program = format!("local mark, text = f({number}) return type(mark) .. ' ' .. (text or '')");
            assert_eq!(lua.load(program).eval::<String>().unwrap(), text);
        }
    }
}
