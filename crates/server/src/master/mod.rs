//! The master: a small process without threads that reads the configuration, holds the listening sockets and log
//! files, and keeps one worker process running through reloads, crashes and binary upgrades.
//!
//! ```text
//! run: load -> directories, log files, sockets -> daemon -> pid file -> cycle (signals, channel) -> exit
//! ```
//! The program plugs in with a [`Service`]; the worker side gets a [`WorkerStart`] and talks through its [`MasterLink`].

/// How commands ask the running master.
pub mod ask;
pub mod balancer;
mod bans;
mod canary;
pub mod channel;
mod cycle;
mod directories;
mod link;
mod message;
mod pidfile;
mod process;
mod signals;
mod start;
/// Thin safe functions over system calls.
pub mod sys;
mod title;
mod upgrade;
mod workers;

use crate::listen::socket::Listener;
use crate::log::file::OpenFiles;
use crate::process_settings::{DirectorySpec, ErrorLogSpec, ListenSpec, ProcessSettings};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

pub use bans::{Ban, BanSet};
pub use canary::Terms;
pub use directories::create_directories;
pub use link::{MasterLink, Order, Reload, Reopen, Reporter, Try};
pub use message::Tried;
pub use process::pin_thread;
pub use signals::{number_of as signal_number, send as signal_master};
pub use start::Refused;
pub use title::set as set_title;

/// The exit code of a worker that must not be started again, as in nginx.
pub const FATAL: i32 = 2;

/// A worker: runs in a process of its own (or a thread, with `master_process off`) and returns its exit code.
pub type Worker = Box<dyn FnOnce(WorkerStart) -> i32 + Send>;

/// What the master runs.
pub trait Service {
    /// Reads and checks the configuration, at start and on every reload, with the master's rights. Starts no threads.
    /// What is wrong is returned as texts for the error log, empty if the service has written them already.
    fn load(&mut self) -> Result<Plan, Vec<String>>;

    /// The same with another file in the place of the main one, for a canary.
    fn load_other(&mut self, file: &std::path::Path) -> Result<Plan, Vec<String>> {
        Err(vec![format!("{} cannot be tried out here", file.display())])
    }

    /// The code of a worker. It is called once for each worker; what it captures is copied by fork.
    fn worker(&self) -> Worker;

    /// The code of the process of the kernel's balancer, which keeps all rights. Its exit code is 0 unless it failed.
    fn balancer(&self) -> fn(balancer::BalancerLine) -> i32;
}

/// What a configuration asks of the master.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Processes and threads.
    pub process: ProcessSettings,
    /// Listening sockets, one spec for each address.
    pub listens: Vec<ListenSpec>,
    /// The main level's `error_log`s.
    pub error_logs: Vec<ErrorLogSpec>,
    /// Paths of access logs and of other levels' error logs. Those of `error_logs` need not be named.
    pub log_files: Vec<PathBuf>,
    /// Directories the worker writes to, made and given to its user.
    pub directories: Vec<DirectorySpec>,
    /// Files that the worker replaces (`state`): their directories have to be the worker's.
    pub state_files: Vec<PathBuf>,
    /// Sets of the kernel that the worker may have addresses put into.
    pub ban_sets: Vec<BanSet>,
    /// What the worker builds its snapshot from. Opaque.
    pub payload: Arc<[u8]>,
    /// What the kernel's balancer is to do; none if it has nothing to do. Opaque.
    pub balancer: Option<Arc<[u8]>>,
    /// What workers hear of it where nobody is there to say anything. Opaque.
    pub balancer_report: Option<Arc<[u8]>>,
}

/// What a worker starts with: it runs as its user, in its working directory, without threads.
pub struct WorkerStart {
    /// Number of the configuration.
    pub generation: u64,
    /// Its process settings; `threads` and `cpu_affinity` are the worker's to apply.
    pub process: ProcessSettings,
    /// See [`Plan::payload`].
    pub payload: Arc<[u8]>,
    /// The listening sockets.
    pub listeners: Vec<Listener>,
    /// The log files, open.
    pub files: OpenFiles,
    /// The line to a process whose connections this one goes on with.
    pub predecessor: Option<OwnedFd>,
    /// Memory that outlives this process.
    pub memory: Option<Outliving>,
    /// The line to the master. Call [`MasterLink::applied`] once all threads accept.
    pub link: MasterLink,
}

/// Anonymous files (memfd) of worker processes, which the master has as well.
#[derive(Clone, Debug)]
pub struct Outliving {
    /// This process's.
    pub own: Arc<OwnedFd>,
    /// That of the one before, if it has crashed.
    pub before: Option<Arc<OwnedFd>>,
}

/// How the program was started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command line, the program's name first: a binary upgrade runs it again.
    pub arguments: Vec<OsString>,
    /// Name and version for the log: `nginx/1.31.5`.
    pub version: String,
}

/// Runs the server until it is told to stop. Set the log of before the configuration with
/// `log::error::set_default_log` and `mirror_to_stderr(true)` first. Call it before any thread is started.
pub fn run(service: &mut dyn Service, options: Options) -> ExitCode {
    start::run(service, options)
}

/// Tries everything that a start would open, for `-t`. All that fails is logged; a server that runs notices nothing.
pub fn try_out(plan: &Plan) -> Result<(), Refused> {
    start::try_out(plan)
}

pub use sys::{last_packet_ms, tcp_info, tcp_progress};

/// Whether the process has root's rights.
pub fn is_root() -> bool {
    sys::effective_uid() == 0
}

/// A user's id.
pub fn user_id(name: &str) -> Option<u32> {
    sys::user_by_name(name).map(|(uid, _)| uid)
}

/// A group's id.
pub fn group_id(name: &str) -> Option<u32> {
    sys::group_by_name(name)
}
