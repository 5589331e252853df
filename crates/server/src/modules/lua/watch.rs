//! Programs that run away: while one runs, nobody else of its thread is served. One that has run for a second without waiting is named in
//! the log, by a thread that looks at what the workers say of themselves; `lua_max_run_time` ends it, at a place that its traceback shows.

use super::phase::Phase;
use crate::log::error::Level;
use ::lua::interrupt::{self, Handle};
use mlua::debug::Debug;
use mlua::{HookTriggers, Lua, VmState};
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a program may run before it is named.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the threads are looked at.
const EVERY: Duration = Duration::from_millis(250);
/// Instructions between two looks at the clock, where programs are bounded.
const INSTRUCTIONS: u32 = 10_000;
/// The same once the time is over: whoever catches the error gets it again at once.
const EACH: u32 = 1;
/// How long a machine is waited for that is asked where its program is.
const ANSWER: Duration = Duration::from_millis(50);
/// Functions of ours that may stand between the clock and the program.
const INNER: usize = 8;
/// What a bounded machine has otherwise.
const BOUNDED: &[u8] = include_bytes!("bounded.lua");

/// What a thread says of the program that it runs.
#[derive(Default)]
struct Seen {
    thread: String,
    /// Which run it is; odd while one goes on.
    run: AtomicU64,
    /// The program's number, plus one; 0: it has none.
    program: AtomicU32,
    phase: AtomicU32,
    /// The programs of the configuration that the thread has taken last, by their numbers.
    names: Mutex<Arc<[Box<str>]>>,
    /// Its machines, which may be asked where their programs are.
    machines: Mutex<Vec<Weak<Handle>>>,
    /// What one of them has answered.
    traced: Mutex<Option<String>>,
    answered: Condvar,
}

static ALL: Mutex<Vec<Weak<Seen>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: RefCell<Option<Arc<Seen>>> = const { RefCell::new(None) };
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Why the program that runs is being ended, and where it was.
    static OVER: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// This thread takes a configuration with these programs, and a machine for them.
pub fn begin(names: Arc<[Box<str>]>, machine: &Arc<Handle>) {
    interrupt::set_listener(answer);
    static WATCHING: Once = Once::new();
    MINE.with_borrow_mut(|mine| {
        let seen = mine.get_or_insert_with(|| {
            let thread = std::thread::current().name().unwrap_or("a thread").to_owned();
            let seen = Arc::new(Seen { thread, ..Seen::default() });
            ALL.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&seen));
            seen
        });
        *seen.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
        let mut machines = seen.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.retain(|known| known.strong_count() > 0);
        machines.push(Arc::downgrade(machine));
    });
    WATCHING.call_once(|| {
        // Without it nothing is named, and all else goes on.
        let _ = std::thread::Builder::new().name("lua watch".to_owned()).spawn(watch);
    });
}

/// A piece of a program runs as long as this is held.
pub struct Running {
    /// Another one was under way: a filter, say, under a program that answers.
    within: bool,
}

impl Running {
    /// It begins. `program`: its number, if it has one. `bounded`: its time counts.
    pub fn begin(program: Option<usize>, phase: Phase, bounded: bool) -> Running {
        let within = MINE.with_borrow(|mine| {
            let Some(seen) = mine else { return true };
            // Nobody else writes it.
            let run = seen.run.load(Ordering::Relaxed);
            if run & 1 == 1 {
                return true;
            }
            seen.program.store(program.map_or(0, |number| number as u32 + 1), Ordering::Relaxed);
            seen.phase.store(phase as u32, Ordering::Relaxed);
            seen.run.store(run + 1, Ordering::Relaxed);
            false
        });
        if bounded && !within {
            BEGAN.set(Some(Instant::now()));
        }
        Running { within }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.within {
            // The thread's storage may be gone already when a thread ends.
            let _ = MINE.try_with(|mine| {
                if let Some(seen) = &*mine.borrow() {
                    seen.run.store(seen.run.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            });
            BEGAN.set(None);
            let _ = OVER.try_with(RefCell::take);
        }
    }
}

/// Ends programs of a machine that run longer without waiting: until the program's entry is left, each instruction raises the error. They are
/// interpreted, since what is compiled looks at no clock.
///
/// # Errors
/// Out of memory.
pub fn bound(lua: &Lua, most: Duration) -> mlua::Result<()> {
    let is_over = lua.create_function(move |lua, ()| {
        let is_over = ran_beyond(most).is_some();
        if is_over {
            look(lua, EACH, most)?;
        }
        Ok(is_over)
    })?;
    lua.load(BOUNDED).set_name("=ngx").call::<()>(is_over)?;
    look(lua, INSTRUCTIONS, most)
}

/// How long the program has run, if that is too long.
fn ran_beyond(most: Duration) -> Option<Duration> {
    BEGAN.get().map(|began| began.elapsed()).filter(|ran| *ran > most)
}

/// Looks at the clock each time so many instructions have run.
fn look(lua: &Lua, instructions: u32, most: Duration) -> mlua::Result<()> {
    let triggers = HookTriggers::new().every_nth_instruction(instructions);
    lua.set_global_hook(triggers, move |lua, _| {
        let Some(ran) = ran_beyond(most) else {
            // Another program runs now, with time of its own.
            if instructions == EACH {
                look(lua, INSTRUCTIONS, most)?;
            }
            return Ok(VmState::Continue);
        };
        if instructions != EACH {
            look(lua, EACH, most)?;
        }
        Err(mlua::Error::RuntimeError(over(lua, ran)))
    })
}

/// What is raised: always what was said first, which shows where the time went.
fn over(lua: &Lua, ran: Duration) -> String {
    let known = OVER.with_borrow(Clone::clone);
    known.unwrap_or_else(|| {
        // Level 0: what the hook has interrupted.
        let place = (0..INNER).find_map(|level| lua.inspect_stack(level, place).flatten()).unwrap_or_default();
        let text = format!("{place}lua_max_run_time: the program has run for {} ms without waiting", ran.as_millis());
        let traced = lua.traceback(Some(&text), 0).map_or_else(|_| text, |traced| traced.to_string_lossy());
        OVER.set(Some(traced.clone()));
        traced
    })
}

/// A place in a program as errors begin with it; none in what is ours.
fn place(at: &Debug<'_>) -> Option<String> {
    let source = at.source().short_src.filter(|source| source != "ngx")?;
    at.current_line().map(|line| format!("{source}:{line}: "))
}

/// Looks at the threads.
fn watch() {
    let mut known: Vec<(Arc<Seen>, u64, Instant, bool)> = Vec::new();
    loop {
        std::thread::sleep(EVERY);
        clock::refresh();
        {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|seen| seen.strong_count() > 0);
            for seen in all.iter().filter_map(Weak::upgrade) {
                if !known.iter().any(|(k, ..)| Arc::ptr_eq(k, &seen)) {
                    known.push((seen, 0, Instant::now(), false));
                }
            }
        }
        // A thread that has ended holds its part no more.
        known.retain(|(seen, ..)| Arc::strong_count(seen) > 1);
        for (seen, run, since, told) in &mut known {
            let now = seen.run.load(Ordering::Relaxed);
            if now != *run {
                (*run, *since, *told) = (now, Instant::now(), false);
            } else if now & 1 == 1 && !*told && since.elapsed() >= PATIENCE {
                *told = true;
                tell(seen, since.elapsed());
            }
        }
    }
}

/// A machine of this thread says where its program is.
fn answer(text: &str) {
    MINE.with_borrow(|mine| {
        let Some(seen) = mine else { return };
        // Asked as well, but idle until now: nobody waits for that.
        if seen.run.load(Ordering::Relaxed) & 1 == 1 {
            *seen.traced.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
            seen.answered.notify_all();
        }
    });
}

/// Where a thread's program is, if it says so soon.
fn ask(seen: &Seen) -> Option<String> {
    let machines = seen.machines.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut traced = seen.traced.lock().unwrap_or_else(PoisonError::into_inner);
    *traced = None;
    let asked = machines.iter().filter_map(Weak::upgrade).filter(|machine| machine.ask()).count();
    if asked == 0 {
        return None;
    }
    let waited = seen.answered.wait_timeout_while(traced, ANSWER, |traced| traced.is_none());
    waited.unwrap_or_else(PoisonError::into_inner).0.take()
}

fn tell(seen: &Seen, ran: Duration) {
    let number = seen.program.load(Ordering::Relaxed) as usize;
    let names = seen.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let phase =
        Phase::ALL.get(seen.phase.load(Ordering::Relaxed) as usize).map_or("a program", |phase| phase.context());
    let name = number.checked_sub(1).and_then(|at| names.get(at)).map_or(phase, |name| name);
    let (thread, ms) = (&seen.thread, ran.as_millis());
    let traced = ask(seen).map_or_else(String::new, |traced| format!("\n{traced}"));
    crate::log::process_line(
        Level::Error,
        format_args!(
            "{name} has kept {thread} for {ms} ms without waiting: nobody else is served there meanwhile{traced}"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_ended_where_it_is() {
        let lua = ::lua::machine::new();
        bound(&lua, Duration::from_millis(20)).expect("a hook");
        begin(Arc::from(Vec::new()), &Arc::new(Handle::new(&lua)));
        let run = |text: &str| {
            let _running = Running::begin(None, Phase::Content, true);
            lua.load(text).set_name("=test").exec().map_err(|e| e.to_string())
        };
        assert_eq!(run("local n = 0 for i = 1, 1000 do n = n + i end"), Ok(()));
        let text = run("local function f()\n while true do end\n end\n f()").expect_err("it runs away");
        assert!(text.contains("test:2: lua_max_run_time: the program has run for"), "{text}");
        // mlua calls a function as newer Lua does: `in local 'f'`.
        assert!(text.contains("test:2: in local 'f'"), "{text}");
        // Whoever catches it gets no further.
        for text in [
            "while true do pcall(function() while true do end end) end",
            "return pcall(function() while true do end end)",
            "return xpcall(function() while true do end end, function() while true do end end)",
            "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
            "jit.on() while true do local _ = 1 + 1 end",
            "pcall(debug.sethook) while true do end",
            "local function again() pcall(again) return again() end again()",
        ] {
            let said = run(text).expect_err("it is ended");
            assert!(said.contains("lua_max_run_time"), "{text}: {said}");
        }
        // The next one has its own time.
        assert_eq!(run("return 1"), Ok(()));
    }
}
