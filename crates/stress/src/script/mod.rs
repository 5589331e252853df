//! wrk's scripts: Lua (LuaJIT) with the hooks `setup init delay request response done` and `wrk.format`. Every client thread has
//! a Lua state of its own, as in wrk; `setup` and `done` run in the first state. A state lives on the thread that it is for.

mod done;
mod host;
mod state;
mod thread;

use crate::plan::Plan;
use crate::plan::url::Url;
use crate::run::Record;
use done::Told;
use host::Host;
pub(crate) use state::State;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use thread::Thread;

/// A script, in one state for each thread.
pub struct Script {
    threads: Vec<(Host, Thread)>,
    failure: Failed,
}

/// Why a hook failed, the first that did.
type Failed = Arc<Mutex<Option<String>>>;

/// What a state is made of.
#[derive(Clone)]
struct Settings {
    /// What messages call the script.
    name: String,
    text: Vec<u8>,
    url: Url,
    method: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Script in {} states", self.threads.len())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // States know each other's threads: none would end by itself.
        self.threads.iter().for_each(|(host, _)| host.end());
    }
}

impl Script {
    /// Loads a script (`file` is its name, `text` what stands in it) into a state for each thread, and calls `setup` for each.
    ///
    /// # Errors
    /// Lua's own message.
    pub fn load(file: &Path, text: &[u8], arguments: &[String], plan: &Plan) -> Result<Script, String> {
        let settings = Settings {
            name: format!("@{}", file.display()),
            text: text.to_vec(),
            url: plan.url.clone(),
            method: plan.method.clone(),
            headers: plan.headers.clone(),
            body: plan.body.clone(),
        };
        let mut script = Script { threads: Vec::new(), failure: Failed::default() };
        for number in 0..plan.threads {
            let (settings, failure) = (settings.clone(), script.failure.clone());
            let (told, hears) = std::sync::mpsc::channel();
            let host = Host::start(number, move |host| {
                let thread = Thread::new(host.clone());
                let _ = told.send(thread.clone());
                state::make(&settings, thread, failure)
            })?;
            let thread = hears.recv().map_err(|e| e.to_string())?;
            script.threads.push((host, thread));
        }
        let threads: Vec<Thread> = script.threads.iter().map(|(_, thread)| thread.clone()).collect();
        script.ask(0, move |state| {
            let Some(setup) = state::hook(&state.lua, "setup")? else { return Ok(()) };
            threads.into_iter().try_for_each(|thread| setup.call::<()>(state.lua.create_userdata(thread)?))
        })?;
        for number in 0..plan.threads {
            let arguments = arguments.to_vec();
            script.ask(number, move |state| state.begin(&arguments))?;
        }
        Ok(script)
    }

    /// Does something with a thread's state.
    fn ask<T: Send + 'static>(
        &self,
        thread: usize,
        work: impl FnOnce(&mut State) -> mlua::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        self.threads[thread].0.ask(move |state| work(state).map_err(|e| e.to_string()))?
    }

    /// Why a hook failed during the run, if one did: the numbers are of something else then.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does a thread's part of a run where its state is; does not wait for its end.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) fn run(&self, thread: usize, work: impl FnOnce(&State) + Send + 'static) -> Result<(), String> {
        self.threads[thread].0.run(work)
    }

    /// Where the script sends a thread, if not to the URL's host.
    pub(crate) fn address(&self, thread: usize) -> Option<SocketAddr> {
        self.threads[thread].1.address()
    }

    /// The request of each thread that has no `request` of its own: all threads' first one's.
    pub(crate) fn fixed_request(&self) -> Option<Vec<u8>> {
        let found =
            self.ask(0, |state| state.lua.globals().get::<mlua::LuaString>("__fixed").map(|s| s.as_bytes().to_vec()));
        found.ok()
    }

    /// What the script has printed goes out before what is printed next: Lua writes through C's buffer, which is not ours. A script
    /// that has closed its output has nothing there.
    pub fn flush(&self) {
        let _ = self.ask(0, |state| state.lua.load("io.stdout:flush()").exec());
    }

    /// Calls `done`.
    ///
    /// # Errors
    /// Lua's own message.
    pub fn done(&self, record: &Record) -> Result<(), String> {
        let told = Told::of(record);
        self.ask(0, move |state| {
            let Some(done) = state::hook(&state.lua, "done")? else { return Ok(()) };
            done.call(told.arguments(&state.lua)?)
        })
    }
}

/// The requests that some bytes are: a script may send several at once. At least one.
pub(crate) fn requests_in(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let (one, left) = take_request(rest?);
        rest = Some(left).filter(|left| !left.is_empty());
        Some(one)
    })
}

/// The first of them, and what follows it.
fn take_request(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return (bytes, &[]) };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    bytes.split_at((end + 4).saturating_add(length.unwrap_or(0)).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_requests_at_once() {
        let bytes =
            b"GET / HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 6\r\n\r\n\r\n\r\nabGET /c HTTP/1.1\r\n\r\n";
        let lengths: Vec<usize> = requests_in(bytes).map(<[u8]>::len).collect();
        assert_eq!(lengths, [18, 45, 19]);
        assert_eq!(requests_in(b"").count(), 1);
    }
}
