//! LuaJIT for one thread and one configuration: its programs, compiled when they are first run, and coroutines that are used again.
//! Made when a thread takes a configuration; goes with the last request and timer under it.

use super::api::variables::Ways;
use super::current::{self, Phase};
use super::{api, run, watch};
use crate::log::captured;
use crate::log::error::Level;
use crate::modules::lua::chunk::{Chunk, Source};
use crate::request::Request;
use crate::snapshot::{Snapshot, ThreadSnapshot, VariableId};
use crate::status::Tally;
use ::lua::coroutine::{Coroutine, Program, Stacks};
use ::lua::interrupt::Handle;
use ::lua::machine as base;
use ::lua::shelf::Shelf;
use mlua::{Function, Lua, Table};
use runtime::TaskId;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// What `ngx` is made of on the side of Lua.
const PRELUDE: &[u8] = include_bytes!("prelude.lua");
/// Where `require` looks without `lua_package_path`: OpenResty's folders come first, as there.
const PACKAGE_PATH: &str = "/usr/local/openresty/site/lualib/?.lua;/usr/local/openresty/site/lualib/?/init.lua;/usr/local/openresty/lualib/?.lua;\
    /usr/local/openresty/lualib/?/init.lua;./?.lua;/usr/local/share/lua/5.1/?.lua;/usr/local/share/lua/5.1/?/init.lua;/usr/share/lua/5.1/?.lua;\
    /usr/share/lua/5.1/?/init.lua;/usr/local/openresty/luajit/share/lua/5.1/?.lua;/usr/local/openresty/luajit/share/lua/5.1/?/init.lua";
/// The same for libraries in C.
const PACKAGE_CPATH: &str = "/usr/local/openresty/site/lualib/?.so;/usr/local/openresty/lualib/?.so;./?.so;/usr/local/lib/lua/5.1/?.so;\
    /usr/lib/x86_64-linux-gnu/lua/5.1/?.so;/usr/lib/lua/5.1/?.so;/usr/local/openresty/luajit/lib/lua/5.1/?.so";
/// Coroutines that are kept for the next request, where nobody says how many.
pub const IDLE_THREADS: u64 = 1024;

/// See the module's head.
pub struct Machine {
    /// LuaJIT.
    pub lua: Lua,
    /// The configuration; none once nobody serves under it.
    pub snapshot: Weak<ThreadSnapshot>,
    /// The configuration's variables.
    pub names: HashMap<Box<[u8]>, VariableId>,
    /// The ways to variables by what programs call them.
    pub ways: Ways,
    programs: RefCell<Vec<Option<Program>>>,
    files: RefCell<HashMap<PathBuf, Program>>,
    idle: RefCell<Vec<Coroutine>>,
    /// Where values of programs that wait are kept.
    pub shelf: Shelf,
    /// The tables `ngx.ctx`, by themselves: their places are the numbers that lines of the log call them by.
    pub contexts: Shelf,
    /// The way into its programs.
    pub stacks: Stacks,
    most_idle: usize,
    /// `lua_max_run_time`: the time of its programs counts.
    pub bounded: bool,
    /// Another configuration has taken its place, or the process ends: timers fire now.
    pub exiting: Cell<bool>,
    /// Timers that wait, and the tasks of those whose tasks have begun.
    pub pending: Cell<usize>,
    /// See `pending`.
    pub waiting: RefCell<Vec<TaskId>>,
    /// `ngx` is there, and programs run.
    pub furnished: Cell<bool>,
    /// Timers that run.
    pub running: Cell<usize>,
    /// Bytes that it has taken when they were last counted.
    weight: Cell<usize>,
    /// For `watch`.
    handle: Arc<Handle>,
}

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Requests, and timers: `init_by_lua*` is run.
    ForRequests,
    /// `ngx.run_worker_thread`
    ForThread,
    /// Nobody: what programs there are is looked at, and none is run.
    ForLooks,
}

/// Bytes that the machines of each thread take.
static BYTES: Tally<1> = Tally::new();

/// Bytes that all machines take, as their collectors count them; what C libraries have taken is not among them.
pub fn bytes() -> u64 {
    BYTES.sums()[0]
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.handle.close();
        BYTES.mine().sub(0, self.weight.get() as u64);
    }
}

/// The machine of a thread's view of a configuration, or why there is none.
pub type Made = OnceCell<Result<Rc<Machine>, Box<str>>>;

/// Whether threads could serve under a configuration: its `init_by_lua*` is run in a machine that nobody uses. Of files of programs that
/// are not there, or are no Lua, it warns: requests would be answered with errors, though only theirs. `looks_only` (`-t`): with
/// `lua_shared_dict`, `init_by_lua*` is not run, as in ngx_lua, since it may fill dictionaries from what is there at a start only.
///
/// # Errors
/// What `init_by_lua*` has said, and why there is no machine.
pub fn try_out(snapshot: &Arc<Snapshot>, looks_only: bool) -> Result<(), String> {
    let view = Rc::new(ThreadSnapshot::new(snapshot.clone()));
    for part in std::iter::once(&view).chain(&view.stream).filter(|part| part.main.lua.is_used()) {
        let runs_none = looks_only && !part.main.lua.dicts.is_empty();
        let machine = Machine::new(part, if runs_none { Asked::ForLooks } else { Asked::ForRequests })?;
        for path in &part.main.lua.files {
            if let Err(text) = machine.load_file(part.prefix.join(path)) {
                let path = path.display();
                crate::log::process_line(Level::Warn, format_args!("Lua file \"{path}\" cannot be run: {text}"));
            }
        }
    }
    Ok(())
}

/// A thread begins to serve under a configuration: `init_by_lua*`, `init_worker_by_lua*`.
pub fn start(snapshot: &Rc<ThreadSnapshot>) {
    if !snapshot.main.lua.is_used() {
        return;
    }
    let machine = match made(snapshot) {
        Ok(machine) => machine,
        Err(text) => return crate::log::process_line(Level::Emerg, format_args!("{text}")),
    };
    if let Some(chunk) = &snapshot.main.lua.init_worker
        && let Err(text) = machine.run_alone(chunk, Phase::InitWorker)
    {
        crate::log::process_line(Level::Error, format_args!("init_worker_by_lua{} error: {text}", chunk.suffix()));
    }
}

/// A thread serves nothing new under a configuration: its timers fire once more, now.
pub fn leave(snapshot: &ThreadSnapshot) {
    let Some(Ok(machine)) = snapshot.kept.get::<Made>().get() else { return };
    machine.exiting.set(true);
    if let Some(chunk) = &snapshot.main.lua.exit_worker
        && let Err(text) = machine.run_alone(chunk, Phase::ExitWorker)
    {
        crate::log::process_line(Level::Error, format_args!("exit_worker_by_lua{} error: {text}", chunk.suffix()));
    }
    machine.waiting.borrow().iter().for_each(|task| runtime::wake(*task));
}

fn made(snapshot: &Rc<ThreadSnapshot>) -> Result<Rc<Machine>, Box<str>> {
    if let Some(made) = snapshot.kept.get::<Made>().get() {
        return made.clone();
    }
    let made = Machine::new(snapshot, Asked::ForRequests).map_err(|text| text.into_boxed_str());
    snapshot.kept.get::<Made>().get_or_init(|| made).clone()
}

/// The machine for a request; `lua_code_cache off` makes one for each.
pub fn of(r: &mut Request) -> Option<Rc<Machine>> {
    let made = if *r.conf().lua.code_cache {
        match r.snapshot.kept.get::<Made>().get() {
            Some(Ok(machine)) => return Some(machine.clone()),
            _ => made(&r.snapshot),
        }
    } else {
        let context = r.ctx.lua.get_or_insert_default();
        if let Some(machine) = &context.machine {
            return Some(machine.clone());
        }
        Machine::new(&r.snapshot, Asked::ForRequests).map_err(String::into_boxed_str)
    };
    match made {
        Ok(machine) => {
            if !*r.conf().lua.code_cache {
                r.ctx.lua.get_or_insert_default().machine = Some(machine.clone());
            }
            Some(machine)
        }
        Err(text) => {
            crate::log_error!(r, Error, "{text}");
            None
        }
    }
}

impl Machine {
    /// Makes one.
    ///
    /// # Errors
    /// What `init_by_lua*` has said, if that is asked for; out of memory.
    pub fn new(snapshot: &Rc<ThreadSnapshot>, asked: Asked) -> Result<Rc<Machine>, String> {
        let lua = base::new();
        let most = *snapshot.main.lua.max_run_time;
        if !most.is_zero() {
            watch::bound(&lua, most).map_err(|e| format!("failed to initialize Lua VM: {e}"))?;
        }
        let handle = Arc::new(Handle::new(&lua));
        // Who runs in a thread of its own keeps nobody waiting.
        if asked == Asked::ForRequests {
            watch::begin(snapshot.main.lua.names.as_slice().into(), &handle);
        }
        let shelf = Shelf::new(&lua).map_err(|e| format!("failed to initialize Lua VM: {e}"))?;
        let contexts = Shelf::new(&lua).map_err(|e| format!("failed to initialize Lua VM: {e}"))?;
        let stacks = Stacks::new(&lua, &shelf).map_err(|e| format!("failed to initialize Lua VM: {e}"))?;
        let names = snapshot.variables.iter().enumerate();
        let names = names.map(|(number, v)| (v.name.as_bytes().into(), VariableId(number as u32))).collect();
        let machine = Rc::new(Machine {
            lua,
            snapshot: Rc::downgrade(snapshot),
            names,
            ways: Ways::default(),
            programs: RefCell::default(),
            files: RefCell::default(),
            idle: RefCell::default(),
            shelf,
            contexts,
            stacks,
            most_idle: *snapshot.main.lua.thread_cache_max_entries as usize,
            bounded: !most.is_zero(),
            exiting: Cell::new(false),
            pending: Cell::new(0),
            waiting: RefCell::default(),
            furnished: Cell::new(false),
            running: Cell::new(0),
            weight: Cell::new(0),
            handle,
        });
        ::lua::regex::set_listener(|text| {
            if crate::log::error::default_enabled(Level::Debug) {
                crate::log::process_line(Level::Debug, format_args!("{text}"));
            }
        });
        let expressions = *snapshot.main.lua.regex_cache_max_entries as usize;
        ::lua::regex::configure(*snapshot.main.lua.regex_match_limit as u32, expressions);
        if asked == Asked::ForRequests {
            let reader = if snapshot.is_stream() { captured::Reader::Stream } else { captured::Reader::Http };
            captured::keep(reader, *snapshot.main.lua.capture_error_log as usize);
        }
        machine.furnish(snapshot).map_err(|e| format!("failed to initialize Lua VM: {e}"))?;
        if let Some(chunk) = snapshot.main.lua.init.as_ref().filter(|_| asked == Asked::ForRequests) {
            machine
                .run_alone(chunk, Phase::Init)
                .map_err(|text| format!("init_by_lua{} error: {text}", chunk.suffix()))?;
        }
        machine.furnished.set(true);
        Ok(machine)
    }

    /// A piece of a program has run: what the machine takes now is counted.
    pub fn weigh(&self) {
        let now = self.lua.used_memory();
        let before = self.weight.replace(now);
        BYTES.mine().add(0, (now as u64).wrapping_sub(before as u64));
    }

    /// Puts `ngx` and the paths in.
    fn furnish(self: &Rc<Machine>, snapshot: &Rc<ThreadSnapshot>) -> mlua::Result<()> {
        let lua = &self.lua;
        let raw = lua.create_table()?;
        base::add_library(lua, &raw)?;
        api::add(lua, &raw, snapshot)?;
        let package: Table = lua.globals().get("package")?;
        let conf = &snapshot.main.lua;
        let prefix = snapshot.prefix.as_os_str().as_bytes();
        for (name, given, usual) in
            [("path", &conf.package_path, PACKAGE_PATH), ("cpath", &conf.package_cpath, PACKAGE_CPATH)]
        {
            let path = given.as_deref().map_or_else(|| usual.as_bytes().to_vec(), |g| package_path(g, usual, prefix));
            package.set(name, lua.create_string(path)?)?;
        }
        // What is called while `ngx` is made may ask which machine it is.
        current::enter(None, self, Phase::Init, || lua.load(PRELUDE).set_name("=ngx").call::<()>(raw))
    }

    /// Runs a program to its end that may not wait and has no request.
    fn run_alone(self: &Rc<Machine>, chunk: &Chunk, phase: Phase) -> Result<(), String> {
        let function = match &chunk.source {
            Source::Text(text) => base::compile(&self.lua, text, &format!("={}", chunk.name))?,
            Source::File(path) => {
                let path = path.as_fixed().ok_or("the file's name may not have variables here")?;
                let snapshot = self.snapshot.upgrade().ok_or("the configuration is gone")?;
                self.load_file(snapshot.prefix.join(std::ffi::OsStr::from_bytes(path)))?
            }
        };
        let owner = current::next_owner();
        let _living = current::Living::begin(owner, None);
        current::enter_as(None, self, phase, owner, || function.call::<()>(())).map_err(|e| run::explain(&e))
    }

    fn load_file(&self, path: PathBuf) -> Result<Function, String> {
        let text = std::fs::read(&path).map_err(|e| {
            let text = crate::log::os_error(&e);
            let text = text.split_once(": ").map_or(text.as_str(), |(_, text)| text);
            format!("cannot open {} {text}", path.display())
        })?;
        // A first line for the shell is no Lua.
        let text = if text.starts_with(b"#") { [b"--", &text[..]].concat() } else { text };
        base::compile(&self.lua, &text, &format!("@{}", path.display()))
    }

    /// A program's function, made when it is first asked for. The error is a status, and has been logged.
    pub fn program(&self, r: &mut Request, chunk: &Chunk) -> Result<Program, u16> {
        match self.known(chunk) {
            Some(known) => Ok(known),
            None => self.made_program(r, chunk),
        }
    }

    /// The function of a program of the configuration's own text, if it is made.
    pub fn known(&self, chunk: &Chunk) -> Option<Program> {
        self.programs.borrow().get(chunk.number).copied().flatten()
    }

    fn made_program(&self, r: &mut Request, chunk: &Chunk) -> Result<Program, u16> {
        match &chunk.source {
            Source::Text(text) => {
                let made = base::compile(&self.lua, text, &format!("={}", chunk.name));
                let made = made.and_then(|function| self.keep_program(&function)).map_err(|e| {
                    crate::log_error!(r, Error, "failed to load inlined Lua code: {e}");
                    500u16
                })?;
                let mut programs = self.programs.borrow_mut();
                if programs.len() <= chunk.number {
                    programs.resize(chunk.number + 1, None);
                }
                programs[chunk.number] = Some(made);
                Ok(made)
            }
            Source::File(path) => {
                let path = path.eval(r);
                let path = r.snapshot.prefix.join(std::ffi::OsStr::from_bytes(r.get(path)));
                if let Some(known) = self.files.borrow().get(&path) {
                    return Ok(*known);
                }
                let status: u16 = match std::fs::File::open(&path) {
                    Ok(_) => 500,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => 404,
                    Err(_) => 503,
                };
                let made = self.load_file(path.clone()).and_then(|function| self.keep_program(&function));
                let made = made.map_err(|e| {
                    crate::log_error!(r, Error, "failed to load external Lua file \"{}\": {e}", path.display());
                    status
                })?;
                self.files.borrow_mut().insert(path, made);
                Ok(made)
            }
        }
    }

    fn keep_program(&self, function: &Function) -> Result<Program, String> {
        self.stacks.program(function).map_err(|e| e.to_string())
    }

    /// A coroutine that begins with a program.
    pub fn coroutine(&self, program: Program) -> mlua::Result<Coroutine> {
        let coroutine = self.idle_coroutine()?;
        self.stacks.begin(&coroutine, program)?;
        Ok(coroutine)
    }

    /// A coroutine that begins with a function that runs once.
    pub fn coroutine_with(&self, function: &Function) -> mlua::Result<Coroutine> {
        let coroutine = self.idle_coroutine()?;
        self.stacks.begin_with(&coroutine, function)?;
        Ok(coroutine)
    }

    fn idle_coroutine(&self) -> mlua::Result<Coroutine> {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(coroutine) => {
                debug("lua reusing cached lua thread");
                Ok(coroutine)
            }
            None => self.stacks.coroutine(),
        }
    }

    /// Takes a coroutine back that has come to its end.
    pub fn keep(&self, coroutine: Coroutine) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.most_idle {
            debug("lua caching unused lua thread");
            idle.push(coroutine);
        }
    }

    /// The configuration's own values of timers.
    pub fn timer_limits(&self) -> (u64, u64) {
        let snapshot = self.snapshot.upgrade();
        snapshot.map_or((0, 0), |s| (*s.main.lua.max_pending_timers, *s.main.lua.max_running_timers))
    }
}

/// What OpenResty says at debug.
fn debug(text: &str) {
    if crate::log::error::default_enabled(Level::Debug) {
        crate::log::process_line(Level::Debug, format_args!("{text}"));
    }
}

/// `lua_package_path`: `;;` is the usual one, `$prefix` the server's folder.
fn package_path(given: &[u8], usual: &str, prefix: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(given);
    let prefix = String::from_utf8_lossy(prefix);
    let prefix = prefix.trim_end_matches('/');
    let text = text.replace("${prefix}", prefix).replace("$prefix", prefix);
    let text = text.replace(";;", &format!(";{usual};"));
    text.trim_matches(';').as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::package_path;

    #[test]
    fn the_usual_path_stands_between_semicolons() {
        let of =
            |given: &str| String::from_utf8_lossy(&package_path(given.as_bytes(), "./?.lua", b"/srv/")).into_owned();
        assert_eq!(of("$prefix/lib/?.lua;;"), "/srv/lib/?.lua;./?.lua");
        assert_eq!(of("/a/?.lua"), "/a/?.lua");
        assert_eq!(of(";;"), "./?.lua");
    }
}
