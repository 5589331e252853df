//! What the configuration says about processes, listening sockets and error logs, as plain data.
//! Filled from directives; read by the master, the worker process and the logs. Opens and checks nothing.

use crate::log::error::Level;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The length of a listener's queue when `backlog=` is not given (nginx's `NGX_LISTEN_BACKLOG` on Linux).
pub const DEFAULT_BACKLOG: i32 = 511;

/// `thread_pool name threads=N [max_queue=N]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Its name; `default` is there without a directive.
    pub name: Arc<str>,
    /// How many threads it has at most; they are started when there is work.
    pub threads: usize,
    /// How many stretches may wait. What is more is read without the pool.
    pub max_queue: usize,
}

impl PoolSize {
    /// nginx's pool `default`.
    pub fn default_pool() -> PoolSize {
        PoolSize { name: Arc::from("default"), threads: 32, max_queue: 65536 }
    }
}

/// Processes and threads: nginx's core module.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSettings {
    /// `daemon`: leave the terminal and run in the background.
    pub daemon: bool,
    /// `master_process`: off runs master and worker in one process, for development.
    pub master_process: bool,
    /// `user`: whom the worker process runs as when started by root.
    pub user: Option<User>,
    /// `pid`: file with the master's process id.
    pub pid: PathBuf,
    /// `worker_processes`: threads of the worker process, `auto` resolved; at least 1.
    pub threads: usize,
    /// `worker_cpu_affinity`: CPUs of each thread; empty is unpinned; a thread beyond the list takes the last.
    pub cpu_affinity: Vec<CpuSet>,
    /// `worker_rlimit_nofile`: descriptors the worker process may hold.
    pub rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`: bytes of a core file.
    pub rlimit_core: Option<u64>,
    /// `working_directory` of the worker process: where a core file goes.
    pub working_directory: Option<PathBuf>,
    /// `worker_priority`: the worker's nice value.
    pub priority: i32,
    /// `env`: what the worker keeps of the environment. `TZ` is always kept.
    pub env: Vec<EnvRule>,
    /// `worker_shutdown_timeout`: how long a graceful shutdown may take. Enforced by the worker.
    pub worker_shutdown_timeout: Option<Duration>,
    /// `worker_connections`: connections a thread may have open.
    pub worker_connections: usize,
    /// `worker_parked_connections`: connections that wait and have no descriptor, a thread. None: as many as memory is there for.
    pub worker_parked_connections: Option<usize>,
    /// Some address of `proxy_bind` is `transparent`: the worker keeps the right to use foreign addresses.
    pub transparent: bool,
    /// `worker_cpu_affinity auto`: threads beyond the list start over.
    pub cpu_affinity_auto: bool,
    /// `thread_pool`: pools that read in files, for `aio threads`.
    pub thread_pools: Vec<PoolSize>,
    /// The names that `aio threads` has given, each once.
    pub pools_wanted: Vec<Box<str>>,
    /// `quic_bpf`: the kernel gives datagrams of a QUIC connection to the thread that their connection id names.
    pub quic_bpf: bool,
}

impl ProcessSettings {
    /// The pool that `aio threads` names, by its number in `pools_wanted`; nginx's `default` where the name has none.
    pub fn thread_pool(&self, wanted: u16) -> PoolSize {
        let name = self.pools_wanted.get(usize::from(wanted));
        let known = name.and_then(|name| self.thread_pools.iter().find(|p| *p.name == **name));
        known.cloned().unwrap_or_else(PoolSize::default_pool)
    }
}

impl Default for ProcessSettings {
    fn default() -> Self {
        ProcessSettings {
            daemon: true,
            master_process: true,
            user: None,
            pid: PathBuf::from("/run/nginx.pid"),
            threads: 1,
            cpu_affinity: Vec::new(),
            thread_pools: Vec::new(),
            pools_wanted: Vec::new(),
            rlimit_nofile: None,
            rlimit_core: None,
            working_directory: None,
            priority: 0,
            env: Vec::new(),
            worker_shutdown_timeout: None,
            worker_connections: 512,
            worker_parked_connections: None,
            transparent: false,
            cpu_affinity_auto: false,
            quic_bpf: true,
        }
    }
}

impl ProcessSettings {
    /// The CPUs of thread number `thread`, if threads are pinned.
    pub fn cpus_of(&self, thread: usize) -> Option<&CpuSet> {
        if self.cpu_affinity_auto && !self.cpu_affinity.is_empty() {
            return self.cpu_affinity.get(thread % self.cpu_affinity.len());
        }
        self.cpu_affinity.get(thread).or(self.cpu_affinity.last())
    }

    /// Whether a running worker process cannot take over these settings: it must be replaced by a new one.
    pub fn needs_new_process(&self, old: &ProcessSettings) -> bool {
        let rights_are_gone = self.transparent && !old.transparent;
        (&self.user, self.rlimit_nofile, self.rlimit_core, &self.working_directory, self.priority, &self.env)
            != (&old.user, old.rlimit_nofile, old.rlimit_core, &old.working_directory, old.priority, &old.env)
            || rights_are_gone
    }
}

/// A user and the group the worker process runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's name: supplementary groups are looked up by it.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub Vec<usize>);

/// One `env` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvRule {
    /// `env NAME;` keeps the value the master was started with.
    Keep(OsString),
    /// `env NAME=value;`
    Set(OsString, OsString),
}

/// Where clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenAddress {
    /// IPv4 or IPv6 address and port.
    Inet(SocketAddr),
    /// Path of a unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for ListenAddress {
    /// nginx's text: `0.0.0.0:80`, `[::]:80`, `unix:/run/x.sock`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListenAddress::Inet(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What a socket carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketKind {
    /// TCP, or a unix stream.
    #[default]
    Stream,
    /// UDP, or unix datagrams.
    Datagram,
}

/// A listening socket as one `listen` directive (or several for the same address) describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenSpec {
    /// Address, or path.
    pub address: ListenAddress,
    /// Stream or datagram.
    pub kind: SocketKind,
    /// `backlog=`: connections that may wait for accept, for each socket.
    pub backlog: i32,
    /// `rcvbuf=` in bytes.
    pub rcvbuf: Option<usize>,
    /// `sndbuf=` in bytes.
    pub sndbuf: Option<usize>,
    /// `deferred`: a connection is reported when its first bytes are there.
    pub deferred: bool,
    /// `fastopen=`: length of the queue of fast opens.
    pub fastopen: Option<u32>,
    /// `reuseport` was written: other programs may share the address from the start.
    pub reuseport: bool,
    /// `ipv6only=`: an IPv6 wildcard does not take IPv4 connections.
    pub ipv6only: bool,
    /// `so_keepalive=`.
    pub keepalive: Option<Keepalive>,
    /// `bind`, or a parameter that implies it: the address has its own socket beside a wildcard's.
    pub bind: bool,
    /// `multipath`: connections may have several paths (MPTCP, RFC 8684).
    pub multipath: bool,
    /// `quic`: datagrams are those of QUIC connections.
    pub quic: bool,
    /// `quic_bpf off`: the kernel gives a datagram to whom it likes, and threads hand it on.
    pub unsteered: bool,
    /// `xdp=`: the kernel balances packets to this address; what it leaves comes to the socket.
    pub xdp: Option<l4::plan::Mode>,
}

impl ListenSpec {
    /// Whether both ask for the same socket.
    pub fn is_same_socket(&self, other: &ListenSpec) -> bool {
        self.address == other.address && self.kind == other.kind
    }

    /// A listener with nginx's defaults.
    pub fn new(address: ListenAddress) -> ListenSpec {
        ListenSpec {
            address,
            kind: SocketKind::Stream,
            backlog: DEFAULT_BACKLOG,
            rcvbuf: None,
            sndbuf: None,
            deferred: false,
            fastopen: None,
            reuseport: false,
            ipv6only: true,
            keepalive: None,
            bind: false,
            multipath: false,
            quic: false,
            unsteered: false,
            xdp: None,
        }
    }
}

/// `so_keepalive=on|off|[idle]:[intvl]:[cnt]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// SO_KEEPALIVE itself.
    pub on: bool,
    /// TCP_KEEPIDLE, whole seconds.
    pub idle: Option<Duration>,
    /// TCP_KEEPINTVL, whole seconds.
    pub interval: Option<Duration>,
    /// TCP_KEEPCNT.
    pub count: Option<u32>,
}

/// One `error_log`.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorLogSpec {
    /// Where lines go.
    pub target: ErrorLogTarget,
    /// The least severe level that is written.
    pub level: Level,
}

/// Where an error log's lines go.
#[derive(Clone, Debug, PartialEq)]
pub enum ErrorLogTarget {
    /// Appended to a file.
    File(PathBuf),
    /// Standard error.
    Stderr,
    /// A syslog server.
    Syslog(SyslogSpec),
    /// The newest lines, in so many bytes of memory.
    Memory(u64),
}

/// `syslog:server=...,facility=...,severity=...,tag=...,nohostname`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogSpec {
    /// Where datagrams go.
    pub server: SyslogServer,
    /// RFC 3164 facility number, 0 to 23.
    pub facility: u8,
    /// RFC 3164 severity number, 0 to 7, of access log lines.
    pub severity: u8,
    /// At most 32 letters, digits and underscores.
    pub tag: String,
    /// Leave the host name out.
    pub nohostname: bool,
}

/// The address of a syslog server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogServer {
    /// UDP.
    Inet(SocketAddr),
    /// A unix datagram socket.
    Unix(PathBuf),
}

impl std::fmt::Display for SyslogServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyslogServer::Inet(address) => write!(f, "{address}"),
            SyslogServer::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A directory that must be there before the worker starts, such as `client_body_temp_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySpec {
    /// Its path; parents that are missing are created as well, and let others through.
    pub path: PathBuf,
    /// Permission bits it is created with.
    pub mode: u32,
}
