//! Listening sockets of a thread: accepts in batches and starts a connection for each. To: `connection`.

pub mod address;
pub mod datagram;
pub mod descriptors;
mod holder;
pub mod pktinfo;
pub mod quic;
pub mod silent;
pub mod socket;
pub mod steer;

use crate::connection::{self, Address};
use crate::process_settings::{ListenAddress, ListenSpec, SocketKind};
use crate::status::listeners;
use crate::upstream;
use crate::worker::order::ListenSocket;
use address::address;
use runtime::TaskId;
use runtime::clock;
use runtime::io::{Interest, Registration};
use rustix::net::SocketFlags;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Connections accepted, and served as far as they come without waiting, before others get their turn.
const BATCH: usize = 16;
thread_local! {
    /// When it was last said that there are no descriptors, s.
    static SAID_S: Cell<u64> = const { Cell::new(0) };
}

/// Waits for a descriptor to be closed. What is open and not in use makes room.
async fn out_of_descriptors() {
    upstream::pool::drop_idle();
    connection::reuse::take_one();
    descriptors::wait().await;
}

/// A listening socket of this thread.
pub struct Listener {
    /// Its number in the thread.
    pub number: usize,
    /// What it listens on.
    pub address: ListenAddress,
    /// Stream or datagram.
    pub kind: SocketKind,
    /// The socket's name through reloads.
    pub id: u64,
    /// Which of its address's sockets it is: the kernel counts them so.
    pub place: usize,
    /// Datagrams are those of QUIC connections.
    pub quic: bool,
    /// Where its address counts.
    pub counts: Arc<listeners::Entry>,
    fd: Arc<OwnedFd>,
    registration: Registration,
    task: Cell<Option<TaskId>>,
    started: Cell<bool>,
    closed: Cell<bool>,
    /// Another process accepts what comes.
    rests: Cell<bool>,
}

impl Listener {
    /// Registers a listening socket with the thread.
    pub fn new(number: usize, socket: ListenSocket, spec: &ListenSpec) -> io::Result<Rc<Listener>> {
        let ListenSocket { id, place, fd, .. } = socket;
        let registration = Registration::new(fd.as_fd(), Interest::Read)?;
        let (task, started, closed, rests) = (Cell::new(None), Cell::new(false), Cell::new(false), Cell::new(false));
        let (address, kind, quic) = (spec.address.clone(), spec.kind, spec.quic);
        let counts = listeners::open(&address, kind, &fd);
        Ok(Rc::new(Listener {
            number,
            address,
            kind,
            id,
            place,
            quic,
            counts,
            fd,
            registration,
            task,
            started,
            closed,
            rests,
        }))
    }

    /// Begins to accept; does nothing the second time.
    pub fn start(self: &Rc<Self>) {
        if !self.started.replace(true) {
            let _ = match self.kind {
                SocketKind::Stream => runtime::spawn(accept_loop(self.clone())),
                SocketKind::Datagram if self.quic => runtime::spawn(quic::serve(self.clone())),
                SocketKind::Datagram => runtime::spawn(datagram::receive_loop(self.clone())),
            };
        }
    }

    /// Leaves connections that come to another process that has the socket, or takes them again. Datagrams belong to whom they belonged
    /// to.
    pub fn rest(&self, rests: bool) {
        self.rests.set(rests);
        if let Some(task) = self.task.get() {
            runtime::wake(task);
        }
    }

    /// Takes what waits in the queue, then stops.
    pub fn close(&self) {
        self.closed.set(true);
        if let Some(task) = self.task.get() {
            runtime::wake(task);
        }
    }
}

async fn accept_loop(listener: Rc<Listener>) {
    listener.task.set(Some(runtime::current()));
    loop {
        poll_fn(|_| match (listener.closed.get(), listener.rests.get()) {
            (true, _) => Poll::Ready(()),
            (_, true) => Poll::Pending,
            _ => listener.registration.poll_readable(),
        })
        .await;
        if listener.closed.get() {
            if !listener.rests.get() {
                accept_some(&listener, usize::MAX);
            }
            listener.registration.remove(&listener.fd);
            return;
        }
        match accept_some(&listener, BATCH) {
            Accepted::All => listener.registration.clear_readable(),
            Accepted::More => runtime::yield_now().await,
            Accepted::Exhausted => out_of_descriptors().await,
        }
    }
}

enum Accepted {
    All,
    More,
    Exhausted,
}

fn accept_some(listener: &Listener, at_most: usize) -> Accepted {
    for number in 0..at_most {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::acceptfrom_with(&listener.fd, flags) {
            Ok((fd, peer)) => {
                listener.counts.accepted();
                let remote = peer.map_or(Address::Unix(PathBuf::new()), address);
                connection::begin::start(fd, remote, listener.number, number < BATCH);
            }
            Err(e) => {
                let error = io::Error::from(e);
                match e {
                    rustix::io::Errno::AGAIN => return Accepted::All,
                    rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED => continue,
                    rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => {
                        let now_s = clock::monotonic_ms() / 1000;
                        if SAID_S.replace(now_s) != now_s {
                            crate::log::process_line(
                                crate::log::error::Level::Crit,
                                format_args!("accept4() failed ({})", crate::log::os_error(&error)),
                            );
                        }
                        return Accepted::Exhausted;
                    }
                    _ => {
                        crate::log::process_line(
                            crate::log::error::Level::Alert,
                            format_args!("accept4() failed ({})", crate::log::os_error(&error)),
                        );
                        return Accepted::All;
                    }
                }
            }
        }
    }
    Accepted::More
}
