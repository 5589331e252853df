//! What a function that a program calls works on: the request, the phase, the machine. They are lent to the program while it runs and
//! taken back when it waits; between turns nothing of a request is in Lua's hands. And `ngx.ctx`, of whatever runs: what programs of a handshake
//! put into theirs belongs to the connection, and the tables of its requests fall back on it by their metatable, as OpenResty's do.

use super::machine::Machine;
pub use super::phase::{
    ANSWERING, BEFORE_BODY, HANDSHAKING, OF_CONNECTION, OF_REQUEST, Phase, Phases, UPSTREAM_HANDSHAKING, WAITING,
};
use super::watch::Running;
use crate::connection::Client;
use crate::log::error::Level;
use crate::request::Request;
use ::lua::Fault;
use ::lua::shelf::Slot;
use hashbrown::HashMap;
use mlua::{Lua, Table};
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

scoped_thread_local!(static mut REQUEST: Request);

thread_local! {
    static PHASE: Cell<Phase> = const { Cell::new(Phase::Init) };
    static OWNER: Cell<u64> = const { Cell::new(0) };
    static ALONE: RefCell<HashMap<u64, Alone>> = RefCell::default();
    static ROOT: Cell<Root> = const { Cell::new((0, 0)) };
    static LAST_OWNER: Cell<u64> = const { Cell::new(0) };
    static MACHINE: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
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
struct Restore(Phase, Option<Rc<Machine>>, u64, Root);

impl Drop for Restore {
    fn drop(&mut self) {
        PHASE.set(self.0);
        let _ = MACHINE.replace(self.1.take());
        OWNER.set(self.2);
        ROOT.set(self.3);
    }
}

/// The request, or timer, that runs: what belongs to one is not for others. A number that is given once.
pub fn owner() -> u64 {
    OWNER.get()
}

/// The client's request that it belongs to: the connection's number and which of its requests; of what has none, 0 and its own number.
pub type Root = (u64, u64);

/// The client's request of what runs.
pub fn root() -> Root {
    ROOT.get()
}

/// A number for one more of them.
pub fn next_owner() -> u64 {
    LAST_OWNER.set(LAST_OWNER.get() + 1);
    LAST_OWNER.get()
}

/// What a program without a request has instead, as long as it runs.
#[derive(Default)]
pub struct Alone {
    /// `ngx.ctx`
    pub table: Option<Slot>,
    /// What its lines in the log end with: the client and the address of the request that it comes from.
    pub note: Option<Rc<str>>,
}

/// Work with what the program that runs has instead of a request. None: it has one, or is not one that is waited for.
pub fn alone<T>(work: impl FnOnce(&mut Alone) -> T) -> Option<T> {
    if REQUEST.is_set() {
        return None;
    }
    ALONE.with_borrow_mut(|all| all.get_mut(&OWNER.get()).map(work))
}

/// Begins and ends what a program without a request has.
pub struct Living(u64);

impl Living {
    /// For the program of this number.
    pub fn begin(owner: u64, note: Option<Rc<str>>) -> Living {
        ALONE.with_borrow_mut(|all| all.insert(owner, Alone { table: None, note }));
        Living(owner)
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        super::socket::end_of(self.0);
        // The thread's storage may be gone already when a thread ends.
        let gone = ALONE.try_with(|all| all.borrow_mut().remove(&self.0));
        if let Ok(Some(gone)) = gone {
            gone.table.iter().for_each(say_context_released);
        }
    }
}

fn owner_of(r: &mut Request) -> u64 {
    let context = r.ctx.lua.get_or_insert_default();
    if context.owner == 0 {
        context.owner = next_owner();
    }
    context.owner
}

/// Runs a piece of a program: whatever it calls works on this.
pub fn enter<T>(r: Option<&mut Request>, machine: &Rc<Machine>, phase: Phase, run: impl FnOnce() -> T) -> T {
    enter_as(r, machine, phase, 0, run)
}

/// The same for what has no request, and a number of its own.
pub fn enter_as<T>(
    mut r: Option<&mut Request>,
    machine: &Rc<Machine>,
    phase: Phase,
    owner: u64,
    run: impl FnOnce() -> T,
) -> T {
    let root = r.as_deref().map_or((0, owner), |r| (r.client.number, r.client.requests.get()));
    let owner = r.as_deref_mut().map_or(owner, owner_of);
    let before = (PHASE.replace(phase), MACHINE.replace(Some(machine.clone())));
    let _restore = Restore(before.0, before.1, OWNER.replace(owner), ROOT.replace(root));
    let program = r.as_deref().and_then(|r| r.conf().lua.program(phase));
    let _running = Running::begin(program, phase, machine.bounded);
    let done = match r {
        Some(r) => REQUEST.set(r, run),
        None => run(),
    };
    machine.weigh();
    done
}

/// Works on the request that the running program is about.
///
/// # Errors
/// `no request found`
pub fn request<T>(work: impl FnOnce(&mut Request) -> Result<T, Fault>) -> Result<T, Fault> {
    of_any(OF_REQUEST, work)
}

/// The same in handshakes too, where it is what would be the connection's first request.
///
/// # Errors
/// As [`request`].
pub fn connection<T>(work: impl FnOnce(&mut Request) -> Result<T, Fault>) -> Result<T, Fault> {
    of_any(OF_CONNECTION, work)
}

fn of_any<T>(phases: Phases, work: impl FnOnce(&mut Request) -> Result<T, Fault>) -> Result<T, Fault> {
    if !phases.has(PHASE.get()) || !REQUEST.is_set() {
        return match PHASE.get() {
            Phase::Init => Err(Fault("no request found".to_owned())),
            _ => Err(Fault("API disabled in the current context".to_owned())),
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

/// A connection's `ngx.ctx`.
struct OfConnection(Slot);

impl Drop for OfConnection {
    fn drop(&mut self) {
        say_context_released(&self.0);
    }
}

/// What ngx_lua says when a table has gone.
pub fn say_context_released(slot: &Slot) {
    if crate::log::error::default_enabled(Level::Debug) {
        crate::log::process_line(Level::Debug, format_args!("lua release ngx.ctx at ref {}", slot.index()));
    }
}

/// Whether the `ngx.ctx` that a program asks for has to do with its connection's: it is that one, or is to fall back on it.
pub fn context_needs_connection(r: &Request) -> bool {
    HANDSHAKING.has(phase())
        || r.client.programs.get().is_some() && r.ctx.lua.as_ref().is_none_or(|c| c.table.is_none())
}

fn broken(e: mlua::Error) -> Fault {
    Fault(e.to_string())
}

/// `ngx.ctx`, with the number of its value. Where there is none yet it is `given`, or a new one.
///
/// # Errors
/// Nothing runs that could have one.
pub fn context(lua: &Lua, given: Option<Table>) -> Result<(Table, u64), Fault> {
    let machine = machine()?;
    let make = || given.clone().map_or_else(|| lua.create_table(), Ok).map_err(broken);
    if let Some(given) = alone(|a| context_at(&mut a.table, &machine, make)) {
        return given;
    }
    connection(|r| {
        let below = of_connection(&r.client, &machine);
        if HANDSHAKING.has(phase()) {
            return below.map_or_else(|| leave(&r.client, &machine, make()?), Ok);
        }
        context_at(&mut r.ctx.lua.get_or_insert_default().table, &machine, || {
            let table = make()?;
            if let Some((below, _)) = below {
                table.set_metatable(Some(below)).map_err(broken)?;
            }
            Ok(table)
        })
    })
}

/// Takes another table for it.
///
/// # Errors
/// As [`context`].
pub fn set_context(table: Table) -> Result<(), Fault> {
    let machine = machine()?;
    let put = || machine.contexts.put(table.clone()).map_err(broken);
    if let Some(done) = alone(|a| put().map(|slot| a.table = Some(slot))) {
        return done;
    }
    connection(|r| {
        if HANDSHAKING.has(phase()) {
            return leave(&r.client, &machine, table.clone()).map(drop);
        }
        r.ctx.lua.get_or_insert_default().table = Some(put()?);
        Ok(())
    })
}

/// What is at a place, made if there is nothing.
fn context_at(
    place: &mut Option<Slot>,
    machine: &Rc<Machine>,
    make: impl FnOnce() -> Result<Table, Fault>,
) -> Result<(Table, u64), Fault> {
    let slot = match place {
        Some(slot) => slot,
        None => place.insert(machine.contexts.put(make()?).map_err(broken)?),
    };
    Ok((slot.value().map_err(broken)?, slot.serial()))
}

/// A connection's table; none too where it is another machine's: a reload has come between.
fn of_connection(client: &Client, machine: &Machine) -> Option<(Table, u64)> {
    let left = client.programs.get()?.borrow();
    let slot = &left.as_ref()?.downcast_ref::<OfConnection>()?.0;
    slot.is_on(&machine.contexts).then(|| Some((slot.value().ok()?, slot.serial())))?
}

/// Leaves a table for the requests of a connection. As a metatable it is where they look for what they do not have.
fn leave(client: &Client, machine: &Machine, table: Table) -> Result<(Table, u64), Fault> {
    table.raw_set("__index", table.clone()).map_err(broken)?;
    let slot = machine.contexts.put(table.clone()).map_err(broken)?;
    let serial = slot.serial();
    client.cannot_park();
    let before = client.programs.get_or_init(Default::default).replace(Some(Box::new(OfConnection(slot))));
    drop(before);
    Ok((table, serial))
}
