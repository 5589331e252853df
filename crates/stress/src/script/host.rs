//! The operating system's thread that a state lives on: it makes the state, and then does what others ask it to do with it, one after the
//! other. So no state crosses threads. Ends when the script is dropped.

use super::state::State;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

type Work = Box<dyn FnOnce(&mut State) + Send>;

enum Job {
    Do(Work),
    End,
}

/// The way to such a thread.
#[derive(Clone)]
pub(super) struct Host {
    jobs: Sender<Job>,
    id: Arc<Mutex<Option<ThreadId>>>,
    /// It serves a run: whoever asks meanwhile would wait for the run's end.
    is_running: Arc<AtomicBool>,
}

/// What a thread of a script that is gone answers.
const GONE: &str = "the script's thread has ended";

impl Host {
    /// A thread of this number with the state that `make` makes. Its error is the state's.
    pub(super) fn start(
        number: usize,
        make: impl FnOnce(&Host) -> mlua::Result<State> + Send + 'static,
    ) -> Result<Host, String> {
        let (jobs, waiting) = channel();
        let host = Host { jobs, id: Arc::default(), is_running: Arc::default() };
        let (told, hears) = channel();
        let own = host.clone();
        let serve = move || {
            *own.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
            let made = make(&own).map_err(|e| e.to_string());
            drop(own);
            match made {
                Ok(state) => {
                    let _ = told.send(Ok(()));
                    serve(state, &waiting);
                }
                Err(text) => {
                    let _ = told.send(Err(text));
                }
            }
        };
        let spawned = std::thread::Builder::new().name(format!("client {number}")).spawn(serve);
        spawned.map_err(|e| format!("thread {number}: {e}"))?;
        hears.recv().map_err(|_| GONE.to_owned())??;
        Ok(host)
    }

    pub(super) fn is_this_thread(&self) -> bool {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) == Some(std::thread::current().id())
    }

    /// Does something with the state and waits for what comes of it.
    ///
    /// # Errors
    /// It is in a run, or has ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, String> {
        if self.is_running.load(Ordering::Relaxed) {
            return Err("a thread cannot be asked by others while it runs".to_owned());
        }
        let (told, hears) = channel();
        let job = Job::Do(Box::new(move |state| {
            let _ = told.send(work(state));
        }));
        self.jobs.send(job).map_err(|_| GONE.to_owned())?;
        hears.recv().map_err(|_| GONE.to_owned())
    }

    /// Serves a run with the state; does not wait for its end.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn run(&self, work: impl FnOnce(&State) + Send + 'static) -> Result<(), String> {
        self.is_running.store(true, Ordering::Relaxed);
        let is_running = self.is_running.clone();
        let job = Job::Do(Box::new(move |state| {
            work(state);
            is_running.store(false, Ordering::Relaxed);
        }));
        self.jobs.send(job).map_err(|_| GONE.to_owned())
    }

    /// Ends the thread, when it has done what it was asked before.
    pub(super) fn end(&self) {
        let _ = self.jobs.send(Job::End);
    }
}

fn serve(mut state: State, jobs: &Receiver<Job>) {
    while let Ok(Job::Do(work)) = jobs.recv() {
        work(&mut state);
    }
}
