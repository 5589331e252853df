//! Where a program is that does not come back: another thread asks its machine, which says so at the program's next instruction, compiled or
//! not (LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`, `.cargo/config.toml`, which is made for this). While C runs nothing is said.
#![allow(unsafe_code, reason = "LuaJIT's hooks may be set by another thread, which mlua knows no way for")]

use mlua::{Lua, ffi};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// The state that a machine began with.
struct State(*mut ffi::lua_State);

// SAFETY: it is used for `lua_sethook` alone, which LuaJIT allows from another thread while the machine is open.
unsafe impl Send for State {}

/// A machine that may be asked from other threads.
pub struct Handle(Mutex<Option<State>>);

thread_local! {
    static LISTENER: Cell<Option<fn(&str)>> = const { Cell::new(None) };
}

/// Who hears, on the machine's own thread, where its program is.
pub fn set_listener(listener: fn(&str)) {
    LISTENER.set(Some(listener));
}

impl Handle {
    /// For a machine in which nothing runs yet. [`Handle::close`] has to come before the machine goes.
    pub fn new(lua: &Lua) -> Handle {
        let state = Cell::new(None);
        // SAFETY: only the address is taken: of the main state, since no coroutine runs.
        let asked = unsafe { lua.exec_raw::<()>((), |l| state.set(Some(State(l)))) };
        Handle(Mutex::new(state.take().filter(|_| asked.is_ok())))
    }

    /// Has the machine say where its program is. Whether it may: nobody else has a hook there.
    pub fn ask(&self) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(State(state)) = *state else { return false };
        // SAFETY: the machine is open as long as the lock is held; LuaJIT lets another thread set a hook that counts to one (lj_record.c).
        unsafe {
            let is_free = ffi::lua_gethookmask(state) == 0;
            if is_free {
                ffi::lua_sethook(state, Some(say), ffi::LUA_MASKCOUNT, 1);
            }
            is_free
        }
    }

    /// The machine goes: it is asked no more.
    pub fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// The hook: says where the program is, and is gone.
unsafe extern "C-unwind" fn say(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls it with the state that runs, with room for `LUA_MINSTACK` values, of which a traceback takes two.
    let text = unsafe {
        ffi::lua_sethook(state, None, 0, 0);
        ffi::luaL_traceback(state, state, std::ptr::null(), 0 as c_int);
        let mut len = 0;
        let text = ffi::lua_tolstring(state, -1, &raw mut len);
        let text = (!text.is_null()).then(|| std::slice::from_raw_parts(text.cast::<u8>(), len));
        let text = text.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        ffi::lua_settop(state, -2);
        text
    };
    if let (Some(listener), Some(text)) = (LISTENER.get(), text) {
        listener(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::time::Duration;

    thread_local! {
        static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_machine_says_where_its_program_is() {
        set_listener(|text| HEARD.with_borrow_mut(|heard| heard.push(text.to_owned())));
        let lua = crate::machine::new();
        let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = ended.clone();
        let is_over = lua.create_function(move |_, ()| Ok(flag.load(std::sync::atomic::Ordering::Relaxed)));
        lua.globals().set("is_over", is_over.expect("a function")).expect("a table");
        let handle = Arc::new(Handle::new(&lua));
        let asking = handle.clone();
        let thread = std::thread::spawn(move || {
            let mut asked = 0;
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(50));
                asked += u32::from(asking.ask());
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            asked
        });
        // The inner loop is compiled after a moment, and runs for longer than it is waited for.
        let text = "local function deep() local n = 0 for i = 1, 5e6 do n = n + i % 7 end return n end\n while not is_over() do\n deep() end";
        lua.load(text).set_name("=test").exec().expect("it runs");
        assert_eq!(thread.join().expect("it ends"), 3);
        let heard = HEARD.take();
        assert_eq!(heard.len(), 3, "{heard:?}");
        assert!(heard.iter().all(|text| text.contains("test:1: ") && text.contains("test:3: ")), "{heard:?}");
        handle.close();
        assert!(!handle.ask());
    }
}
