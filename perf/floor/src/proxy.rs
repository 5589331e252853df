//! A proxy that passes bytes through: one exchange at a time on each client connection, over kept backend connections.
//!
//! ```text
//!   client idle --request--> takes a backend (kept or new) --answer whole--> backend kept, client idle
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::message::{HEAD_MAX, body_length, closes, head_length};
use crate::system::{Accept, Epoll, Outcome, accept, connect, listen, read, write};

/// Serves until it is killed.
pub(crate) fn run(port: u16, backend_port: u16) -> io::Result<()> {
    let listener = listen(port, Accept::AtOnce)?;
    let epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd())?;
    let mut proxy = Proxy { epoll, ends: Vec::new(), kept: Vec::new(), buffer: vec![0; HEAD_MAX], backend_port };
    loop {
        for number in 0..proxy.epoll.wait() {
            let event = proxy.epoll.event(number);
            if event.fd == listener.as_raw_fd() {
                while let Some(fd) = accept(&listener) {
                    let fd = proxy.insert(fd, Role::Client)?;
                    proxy.readable(fd, false);
                }
            } else {
                proxy.writable(event.fd);
                proxy.readable(event.fd, event.hung_up);
            }
        }
    }
}

struct Proxy {
    epoll: Epoll,
    /// Client and backend connections by descriptor.
    ends: Vec<Option<End>>,
    /// Idle backend connections, the last used on top.
    kept: Vec<RawFd>,
    buffer: Vec<u8>,
    backend_port: u16,
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Client,
    Backend,
}

/// One connection.
struct End {
    /// Closes the connection when it is dropped.
    _fd: OwnedFd,
    role: Role,
    /// The other connection of the exchange under way.
    other: Option<RawFd>,
    /// Bytes read and not yet passed on: a head whose end has not come, or a client's next requests.
    waiting: Vec<u8>,
    /// Bytes of the body of the message under way still to come.
    body_left: usize,
    unsent: Vec<u8>,
    /// Said in a head: the connection ends with this exchange.
    closing: bool,
}

impl Proxy {
    fn insert(&mut self, fd: OwnedFd, role: Role) -> io::Result<RawFd> {
        let raw = fd.as_raw_fd();
        self.epoll.add(raw)?;
        let place = raw as usize;
        if self.ends.len() <= place {
            self.ends.resize_with(place + 1, || None);
        }
        let end =
            End { _fd: fd, role, other: None, waiting: Vec::new(), body_left: 0, unsent: Vec::new(), closing: false };
        self.ends[place] = Some(end);
        Ok(raw)
    }

    fn end(&mut self, fd: RawFd) -> Option<&mut End> {
        self.ends[fd as usize].as_mut()
    }

    fn writable(&mut self, fd: RawFd) {
        if let Some(end) = self.end(fd)
            && !end.unsent.is_empty()
        {
            let bytes = std::mem::take(&mut end.unsent);
            self.send(fd, &bytes);
        }
    }

    fn readable(&mut self, fd: RawFd, hung_up: bool) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while self.end(fd).is_some() {
            match read(fd, &mut buffer) {
                Outcome::Bytes(count) => {
                    self.received(fd, &buffer[..count]);
                    if count < buffer.len() && !hung_up {
                        break;
                    }
                }
                Outcome::Later => break,
                Outcome::Closed => self.close(fd),
            }
        }
        self.buffer = buffer;
    }

    fn received(&mut self, fd: RawFd, bytes: &[u8]) {
        let Some(end) = self.end(fd) else { return };
        match (end.role, end.other) {
            (Role::Client, Some(_)) if end.body_left == 0 => end.waiting.extend_from_slice(bytes),
            (Role::Backend, None) => self.close(fd),
            _ if end.waiting.is_empty() => self.pass_on(fd, bytes),
            _ => {
                let mut joined = std::mem::take(&mut end.waiting);
                joined.extend_from_slice(bytes);
                self.pass_on(fd, &joined);
            }
        }
    }

    /// Passes one message (or what there is of it) to the other side.
    fn pass_on(&mut self, fd: RawFd, bytes: &[u8]) {
        let Some(end) = self.end(fd) else { return };
        let mut length = end.body_left.min(bytes.len());
        end.body_left -= length;
        if length == 0 {
            let Some(head) = head_length(bytes) else {
                end.waiting.extend_from_slice(bytes);
                return if end.waiting.len() >= HEAD_MAX {
                    self.close(fd)
                };
            };
            end.closing = closes(&bytes[..head]);
            let body = body_length(&bytes[..head]);
            length = bytes.len().min(head.saturating_add(body));
            end.body_left = head.saturating_add(body) - length;
        }
        let done = end.body_left == 0;
        end.waiting.extend_from_slice(&bytes[length..]);
        let Some(other) = self.other_of(fd) else { return self.close(fd) };
        self.send(other, &bytes[..length]);
        if done {
            self.message_done(fd, other);
        }
    }

    /// The other side of the exchange; for a client that begins one, a backend connection.
    fn other_of(&mut self, fd: RawFd) -> Option<RawFd> {
        let end = self.end(fd)?;
        if end.role == Role::Backend || end.other.is_some() {
            return end.other;
        }
        let backend = match self.kept.pop() {
            Some(kept) => kept,
            None => self.insert(connect(self.backend_port).ok()?, Role::Backend).ok()?,
        };
        self.end(fd)?.other = Some(backend);
        self.end(backend)?.other = Some(fd);
        Some(backend)
    }

    /// After a whole answer the backend is kept and the client may go on.
    fn message_done(&mut self, fd: RawFd, other: RawFd) {
        let Some(backend) = self.end(fd).filter(|end| end.role == Role::Backend) else { return };
        backend.other = None;
        if backend.closing {
            self.close(fd)
        } else {
            self.kept.push(fd)
        }
        let Some(client) = self.end(other) else { return };
        client.other = None;
        if client.closing {
            if client.unsent.is_empty() {
                self.close(other);
            }
        } else if !client.waiting.is_empty() {
            let next = std::mem::take(&mut client.waiting);
            self.pass_on(other, &next);
        }
    }

    fn send(&mut self, fd: RawFd, bytes: &[u8]) {
        let Some(end) = self.end(fd) else { return };
        let mut sent = 0;
        if end.unsent.is_empty() {
            match write(fd, bytes) {
                Outcome::Bytes(count) => sent = count,
                Outcome::Later => {}
                Outcome::Closed => return self.close(fd),
            }
        }
        end.unsent.extend_from_slice(&bytes[sent..]);
        if end.role == Role::Client && end.closing && end.other.is_none() && end.unsent.is_empty() {
            self.close(fd);
        }
    }

    fn close(&mut self, fd: RawFd) {
        let Some(end) = self.ends[fd as usize].take() else { return };
        match end.other {
            Some(other) => self.close(other),
            None if end.role == Role::Backend => self.kept.retain(|kept| *kept != fd),
            None => {}
        }
    }
}
