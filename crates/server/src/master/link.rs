//! The worker's end of the line to the master: orders come from the channel and from signals, answers go back.
//! Held by the worker's control thread. Keeps track of the sockets and log files each configuration brought.

use super::bans::Ban;
use super::channel::{Channel, send_now};
use super::message::{ReloadMessage, ToMaster, ToWorker, TrialMessage, Tried};
use super::signals;
use super::sys::{self, Signals, Watch};
use crate::listen::socket::Listener;
use crate::log::error;
use crate::log::error::Errno;
use crate::log::file::OpenFiles;
use crate::server_log;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the worker is told to do.
#[derive(Debug)]
pub enum Order {
    /// Take this configuration, then answer with [`MasterLink::applied`] or [`MasterLink::failed`].
    Reload(Reload),
    /// Write out what is buffered for log files, then call [`Reopen::apply`].
    Reopen(Reopen),
    /// Serve a share of new connections with this configuration.
    Try(Try),
    /// Serve all connections with the old configuration again.
    EndTrial,
    /// Stop accepting, serve what is open, then return.
    Quit,
    /// Hand what is open to the process at the other end of this line, once it says that it is ready.
    HandOver(OwnedFd),
    /// Return at once.
    Terminate,
    /// The master is gone: serve on. Comes once.
    MasterGone,
    /// What the kernel's balancer has done; as its process wrote it.
    Balanced(Vec<u8>),
}

/// A new configuration. Its log files are in the worker's [`OpenFiles`] already.
#[derive(Debug)]
pub struct Reload {
    /// Number of the configuration: 1 is the one at start.
    pub generation: u64,
    /// What the service packed in the master.
    pub payload: Arc<[u8]>,
    /// All listening sockets: new ones, and those that stay with the id they had. Others are no longer accepted on.
    pub listeners: Vec<Listener>,
}

/// A canary. Its log files are in the worker's [`OpenFiles`] already.
#[derive(Debug)]
pub struct Try {
    /// Number of the configuration.
    pub generation: u64,
    /// What the service packed in the master.
    pub payload: Arc<[u8]>,
    /// Its share, its time, and what it is judged by.
    pub terms: super::Terms,
}

/// Log files that were moved away.
#[derive(Debug)]
pub struct Reopen {
    files: OpenFiles,
    /// Opened by the master; `None`: the worker opens them itself, it was asked by a signal.
    fresh: Option<Vec<(PathBuf, OwnedFd)>>,
}

impl Reopen {
    /// From here on all threads write to the new files.
    pub fn apply(self) {
        match self.fresh {
            Some(fresh) => {
                for (path, fd) in fresh {
                    let result = self.files.find(&path).map_or(Ok(()), |file| file.replace(fd.as_fd()));
                    report(&path, result);
                }
            }
            None => self.files.all().iter().for_each(|file| report(file.path(), file.reopen())),
        }
        error::default_log().redirect_stderr();
    }
}

fn paths(files: &OpenFiles) -> Vec<PathBuf> {
    files.all().iter().map(|file| file.path().to_owned()).collect()
}

fn report(path: &std::path::Path, result: io::Result<()>) {
    if let Err(e) = result {
        server_log!(Emerg, "open() \"{}\" failed {}", path.display(), Errno(&e));
    }
}

/// The worker's end.
pub struct MasterLink {
    watch: Watch,
    channel: Option<Channel>,
    socket: Arc<OwnedFd>,
    /// `None` where the master shares the process and takes the signals itself.
    signals: Option<Signals>,
    files: OpenFiles,
    current: Vec<Listener>,
    current_files: Vec<PathBuf>,
    incoming: Option<Incoming>,
    stopping: bool,
}

struct Incoming {
    generation: u64,
    listeners: Vec<Listener>,
    files: Vec<PathBuf>,
}

impl MasterLink {
    pub(super) fn new(
        channel: Channel,
        signals: Option<Signals>,
        files: OpenFiles,
        listeners: &[Listener],
    ) -> io::Result<MasterLink> {
        let mut fds = vec![channel.as_fd()];
        fds.extend(signals.as_ref().map(|signals| signals.as_fd()));
        Ok(MasterLink {
            watch: Watch::open(&fds)?,
            socket: channel.socket(),
            channel: Some(channel),
            signals,
            current_files: paths(&files),
            files,
            current: listeners.to_vec(),
            incoming: None,
            stopping: false,
        })
    }

    /// The next order, if there is one. Wait until the link's descriptor is readable, then ask until `None`.
    pub fn try_next(&mut self) -> Option<Order> {
        if let Some(order) = self.next_signal() {
            return Some(order);
        }
        loop {
            match self.channel.as_mut()?.receive() {
                Ok(None) => return None,
                Ok(Some(frame)) => match ToWorker::read(frame, &self.current) {
                    Ok(message) => {
                        if let Some(order) = self.order(message) {
                            return Some(order);
                        }
                    }
                    Err(unreadable) => {
                        if let Some(generation) = unreadable.generation {
                            self.failed(generation, "descriptors are missing: too many open files?");
                        }
                    }
                },
                Err(e) => {
                    if e.kind() != io::ErrorKind::UnexpectedEof {
                        server_log!(Alert, "recvmsg() from the master failed {}", Errno(&e));
                    }
                    let _ = self.watch.remove(self.socket.as_fd());
                    self.channel = None;
                    return Some(Order::MasterGone);
                }
            }
        }
    }

    /// Waits for the next order. `None`: none came in time.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<Order> {
        let end = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(order) = self.try_next() {
                return Some(order);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if let Err(e) = sys::poll(&[(self.watch.as_fd(), false)], left) {
                server_log!(Alert, "poll() failed {}", Errno(&e));
                return None;
            }
        }
    }

    fn next_signal(&mut self) -> Option<Order> {
        loop {
            let signal = self.signals.as_ref()?.next()?;
            let (action, order) = match signal.number {
                libc::SIGTERM | libc::SIGINT => (", exiting", Some(Order::Terminate)),
                libc::SIGQUIT => (", shutting down", Some(Order::Quit)),
                libc::SIGUSR1 => {
                    (", reopening logs", Some(Order::Reopen(Reopen { files: self.files.clone(), fresh: None })))
                }
                libc::SIGHUP | libc::SIGUSR2 => (", ignoring", None),
                _ => ("", None),
            };
            signals::log_received(signal, action);
            if let Some(order) = order.and_then(|order| self.once(order)) {
                return Some(order);
            }
        }
    }

    fn order(&mut self, message: ToWorker) -> Option<Order> {
        let order = match message {
            ToWorker::Quit => Order::Quit,
            ToWorker::Terminate => Order::Terminate,
            ToWorker::HandOver(line) => Order::HandOver(line),
            ToWorker::Report(bytes) => Order::Balanced(bytes),
            ToWorker::Reopen(fresh) => Order::Reopen(Reopen { files: self.files.clone(), fresh: Some(fresh) }),
            ToWorker::Reload(message) => Order::Reload(self.reload(message)),
            ToWorker::Trial(message) => {
                self.adopt(message.files);
                let TrialMessage { generation, payload, terms, .. } = message;
                Order::Try(Try { generation, payload: payload.into(), terms })
            }
            ToWorker::EndTrial => {
                self.files.retain(&self.current_files);
                Order::EndTrial
            }
        };
        self.once(order)
    }

    /// A second request for a graceful shutdown changes nothing; the first is logged.
    fn once(&mut self, order: Order) -> Option<Order> {
        match order {
            Order::Quit if std::mem::replace(&mut self.stopping, true) => return None,
            Order::Quit => server_log!(Notice, "gracefully shutting down"),
            Order::Reopen(_) => server_log!(Notice, "reopening logs"),
            _ => {}
        }
        Some(order)
    }

    fn reload(&mut self, message: ReloadMessage) -> Reload {
        let files = self.adopt(message.files);
        let ReloadMessage { generation, payload, listeners, .. } = message;
        self.incoming = Some(Incoming { generation, listeners: listeners.clone(), files });
        Reload { generation, payload: payload.into(), listeners }
    }

    /// Takes log files that came, and gives the paths of all.
    fn adopt(&mut self, sent: Vec<(PathBuf, Option<OwnedFd>)>) -> Vec<PathBuf> {
        let mut paths = Vec::with_capacity(sent.len());
        for (path, fd) in sent {
            if let Some(fd) = fd {
                self.files.adopt(path.clone(), fd);
            }
            paths.push(path);
        }
        paths
    }

    /// How the canary of this generation goes, or how it ended.
    pub fn tried(&self, generation: u64, tried: Tried, text: &str) {
        self.reporter().send(&ToMaster::Tried(generation, tried, text.to_owned()));
    }

    /// All threads run configuration `generation`: the one at start, or of a reload. What only older ones used is let go.
    pub fn applied(&mut self, generation: u64) {
        if let Some(incoming) = self.incoming.take_if(|incoming| incoming.generation == generation) {
            self.current = incoming.listeners;
            self.current_files = incoming.files;
            self.files.retain(&self.current_files);
        }
        self.reporter().send(&ToMaster::Applied(generation));
    }

    /// Configuration `generation` could not be taken; `reason` is written to the error log by the master.
    pub fn failed(&mut self, generation: u64, reason: &str) {
        if self.incoming.take_if(|incoming| incoming.generation == generation).is_some() {
            self.files.retain(&self.current_files);
        }
        self.reporter().send(&ToMaster::Failed(generation, reason.to_owned()));
    }

    /// For telling the master from other threads.
    pub fn reporter(&self) -> Reporter {
        Reporter { socket: Arc::clone(&self.socket) }
    }
}

impl AsFd for MasterLink {
    /// Readable while an order waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl std::os::fd::AsRawFd for MasterLink {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.watch.as_fd().as_raw_fd()
    }
}

/// Tells the master things, from any thread.
#[derive(Clone, Debug)]
pub struct Reporter {
    socket: Arc<OwnedFd>,
}

impl Reporter {
    /// Nothing of configuration `generation` is in use any more: the master logs its end.
    pub fn done(&self, generation: u64) {
        self.send(&ToMaster::Done(generation));
    }

    /// Another process goes on with what was open here: so many connections.
    pub fn handed_over(&self, count: u64) {
        self.send(&ToMaster::HandedOver(count));
    }

    /// It goes on with so many, and more are on their way.
    pub fn handing_over(&self, count: u64) {
        self.send(&ToMaster::HandingOver(count));
    }

    /// Real servers of the kernel's balancer have changed: passed on to its process.
    pub fn reals(&self, bytes: &[u8]) {
        self.send(&ToMaster::Reals(bytes.to_vec()));
    }

    /// Asks for an address to be put into a set of the kernel, or taken out.
    pub fn ban(&self, ban: Ban) {
        self.send(&ToMaster::Ban(ban));
    }

    fn send(&self, message: &ToMaster) {
        // A master that is gone needs no answer.
        let _ = send_now(&self.socket, &message.write());
    }
}
