//! How a command asks the running master for something (`ironweir canary`, `-t --plan`): the command listens on a socket beside the pid
//! file and sends SIGURG, which means nothing to other programs; the master connects to it, if it is root's or its own user's. The
//! connection is the command's hand on what it asked for: when it closes, however that comes, the master takes it back.
//!
//! What is handed out are the texts of the running configuration, with what is secret in them. So each side asks the kernel who the other one is
//! (`SO_PEERCRED`), whatever stands at the socket's name: its folder may be another user's, who could put a link or a socket of his own there.

use super::channel::{Channel, Frame};
use super::sys::{self, Pid};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the master may take to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request: a path and numbers.
const MOST_ASKED: usize = 64 << 10;

/// What may be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The configuration that runs: [`Reply::Shown`], then its payload in a frame of its own.
    Show,
    /// SIGHUP, with an answer once all threads of a worker accept with the new configuration: [`Reply::Kept`] or [`Reply::TakenBack`].
    Reload,
    /// The binary that is on the disk now takes over, and this one ends: [`Reply::Kept`] or [`Reply::Refused`].
    Upgrade,
    /// A configuration is tried out with a share of new connections.
    Canary {
        /// Its file, absolute.
        file: PathBuf,
        /// Ten-thousandths of new connections.
        share: u32,
        /// Requests of either configuration before anything is judged.
        minimum: u64,
        /// How long.
        seconds: f64,
    },
}

/// What the master says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The number of the configuration that runs. Its payload follows.
    Shown(u64),
    /// How it goes, for people.
    Says(String),
    /// The new configuration runs.
    Kept(String),
    /// The old configuration runs, and why.
    TakenBack(String),
    /// Nothing was done, and why.
    Refused(String),
    /// The same, for something that will soon be over.
    NotYet(String),
}

fn path(pid_file: &Path, asker: Pid) -> PathBuf {
    let mut name = pid_file.as_os_str().to_owned();
    name.push(format!(".ask.{asker}"));
    PathBuf::from(name)
}

fn new_socket(more: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | more, None)?)
}

/// The master's side: goes to whoever sent the signal.
pub(super) fn meet(pid_file: &Path, asker: Pid) -> io::Result<Channel> {
    let path = path(pid_file, asker);
    // The master waits for nobody.
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    connect(&socket, &SocketAddrUnix::new(&path)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let uid = peer.uid.as_raw();
    // A link could lead to some other service of root's.
    if peer.pid.as_raw_nonzero().get() != asker || uid != 0 && uid != sys::effective_uid() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // Nobody else is expected there, whatever becomes of the command.
    let _ = std::fs::remove_file(&path);
    Ok(Channel::of(socket).with_limits(MOST_ASKED, 0))
}

/// A connection to the running master.
pub struct Asked {
    channel: Channel,
}

/// Removes the socket's name, if the master has not.
struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks the master whose id is in `pid_file`. Errors are sentences.
pub fn ask(pid_file: &Path, request: &Request) -> Result<Asked, String> {
    let shown = pid_file.display();
    let text = std::fs::read_to_string(pid_file).map_err(|e| format!("no server runs: {shown}: {e}"))?;
    let master =
        text.trim().parse::<Pid>().ok().filter(|pid| *pid > 0).ok_or_else(|| format!("{shown} has no process id"))?;
    let path = path(pid_file, std::process::id() as Pid);
    let failed = |e: io::Error| format!("{}: {e}", path.display());
    let socket = new_socket(SocketFlags::empty()).map_err(failed)?;
    let address = SocketAddrUnix::new(&path).map_err(|e| failed(e.into()))?;
    // Left by a command of the same number that was killed.
    let _ = std::fs::remove_file(&path);
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = bind(&socket, &address);
    rustix::process::umask(mask);
    bound.map_err(|e| failed(e.into()))?;
    let _name = Name(path.clone());
    listen(&socket, 1).map_err(|e| failed(e.into()))?;
    sys::kill(master, libc::SIGURG).map_err(|e| format!("process {master} of {shown} cannot be signalled: {e}"))?;
    if !is_readable(&socket, Some(PATIENCE)) {
        return Err(format!("process {master} of {shown} does not answer: is it an Ironweir that knows this?"));
    }
    let fd = accept_with(&socket, SocketFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let peer = rustix::net::sockopt::socket_peercred(&fd).map_err(|e| failed(e.into()))?;
    if peer.pid.as_raw_nonzero().get() != master {
        return Err(format!("{}: process {} came instead of {master}", path.display(), peer.pid.as_raw_nonzero()));
    }
    let mut channel = Channel::of(fd);
    let bytes = serde_json::to_vec(request).map_err(|e| e.to_string())?;
    channel.queue(&bytes, Vec::new());
    channel.flush().map_err(failed)?;
    Ok(Asked { channel })
}

/// How long `-s reload` waits for the new configuration to serve.
const RELOAD: Duration = Duration::from_secs(20);

/// `-s reload`: returns when the new configuration serves (true), is not taken (false), or takes its time. Nothing: the master does not know
/// how to say so, and is to be signalled.
pub(super) fn reload(pid_file: &Path) -> Option<bool> {
    let mut asked = ask(pid_file, &Request::Reload).ok()?;
    match asked.next(Some(RELOAD)) {
        Ok(Reply::Kept(_)) => Some(true),
        Ok(Reply::TakenBack(why)) => {
            crate::server_log!(Emerg, "the configuration of before runs on: {why}");
            Some(false)
        }
        Ok(_) => None,
        Err(why) => {
            crate::server_log!(Warn, "the new configuration does not serve yet: {why}");
            Some(true)
        }
    }
}

fn is_readable(fd: &impl AsFd, at_most: Option<Duration>) -> bool {
    let end = at_most.map(|time| Instant::now() + time);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match sys::poll(&[(fd.as_fd(), false)], left) {
            Ok(happened) if happened.first() == Some(&true) => return true,
            Err(_) => return false,
            Ok(_) if left.is_some_and(|left| left.is_zero()) => return false,
            Ok(_) => {}
        }
    }
}

impl Asked {
    fn frame(&mut self, at_most: Option<Duration>) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.channel.receive().map_err(|_| "the server is gone".to_owned())? {
                return Ok(frame);
            }
            if !is_readable(&self.channel, at_most) {
                return Err("the server does not answer".to_owned());
            }
        }
    }

    /// The next thing the master says. `at_most`: how long to wait for it.
    pub fn next(&mut self, at_most: Option<Duration>) -> Result<Reply, String> {
        let frame = self.frame(at_most)?;
        serde_json::from_slice(&frame.bytes).map_err(|e| format!("the server says what cannot be read: {e}"))
    }

    /// The payload that follows [`Reply::Shown`].
    pub fn payload(&mut self) -> Result<Vec<u8>, String> {
        self.frame(Some(PATIENCE)).map(|frame| frame.bytes)
    }
}
