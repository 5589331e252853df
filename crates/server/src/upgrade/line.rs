//! A line between two processes: frames with descriptors, for a thread that may wait, and for a task of a loop. Knows nothing of what is
//! said.

use crate::master::channel::{Channel, Frame, Handle};
use crate::master::sys;
use runtime::io::{Interest, Registration};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

/// How long the other process may take nothing of what is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// For a thread that may wait.
pub(super) struct Line {
    channel: Channel,
}

impl Line {
    pub(super) fn new(fd: OwnedFd) -> Line {
        Line { channel: Channel::of(fd) }
    }

    /// The same line once more, so that one may speak while another listens.
    pub(super) fn again(&self) -> io::Result<Line> {
        Ok(Line::new(self.channel.as_fd().try_clone_to_owned()?))
    }

    /// Says something, and waits until it has left.
    pub(super) fn say(&mut self, bytes: &[u8], files: Vec<Handle>) -> io::Result<()> {
        self.channel.queue(bytes, files);
        self.say_all()
    }

    fn say_all(&mut self) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.channel.flush()?;
            if !self.channel.is_waiting() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sys::poll_writable(self.channel.as_fd(), left)?;
        }
    }

    /// Says a secret, of which nothing is left here then.
    pub(super) fn say_secret(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.channel.queue_secret(bytes);
        self.say_all()
    }

    /// What is said next; none: not in that time.
    pub(super) fn hear(&mut self, at_most: Option<Duration>) -> io::Result<Option<Frame>> {
        let end = at_most.map(|time| Instant::now() + time);
        loop {
            if let Some(frame) = self.channel.receive()? {
                return Ok(Some(frame));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            sys::poll(&[(self.channel.as_fd(), false)], left)?;
        }
    }

    /// Ends it for all who have it, here and there.
    pub(super) fn end(&self) {
        let _ = rustix::net::shutdown(self.channel.as_fd(), rustix::net::Shutdown::Both);
    }
}

/// For a task.
pub(super) struct ThreadLine {
    channel: Channel,
    registration: Registration,
}

impl ThreadLine {
    pub(super) fn new(fd: OwnedFd) -> io::Result<ThreadLine> {
        let registration = Registration::new(fd.as_fd(), Interest::Both)?;
        Ok(ThreadLine { channel: Channel::of(fd), registration })
    }

    pub(super) async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.channel.queue(bytes, Vec::new());
        self.flush().await
    }

    /// The same with descriptors of one owner. Where that fails they are its own again.
    pub(super) async fn say_with(&mut self, bytes: &[u8], files: &Arc<Vec<OwnedFd>>) -> io::Result<()> {
        self.channel.queue_all(bytes, files);
        let said = self.flush().await;
        if said.is_err() {
            self.channel.forget();
        }
        said
    }

    async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|_| {
            loop {
                self.channel.flush()?;
                if !self.channel.is_waiting() {
                    return Poll::Ready(Ok(()));
                }
                self.registration.clear_writable();
                ready!(self.registration.poll_writable());
            }
        })
        .await
    }

    /// Says a secret, of which nothing is left here then.
    pub(super) async fn say_secret(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.channel.queue_secret(bytes);
        self.flush().await
    }

    pub(super) fn poll_hear(&mut self) -> Poll<io::Result<Frame>> {
        loop {
            if let Some(frame) = self.channel.receive()? {
                return Poll::Ready(Ok(frame));
            }
            self.registration.clear_readable();
            ready!(self.registration.poll_readable());
        }
    }

    pub(super) async fn hear(&mut self) -> io::Result<Frame> {
        poll_fn(|_| self.poll_hear()).await
    }
}
