//! A fixed answer to every request head: one read and one write for a request, however many are in one read.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::message::{HEAD_MAX, closes, head_length};
use crate::system::{Accept, Epoll, Outcome, accept, listen, read, write, write_last};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: floor\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx";
const LAST_ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: floor\r\nContent-Type: text/plain\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
/// Answers written at once.
const BATCH: usize = 256;
/// A line of a log around the request's own. What changes with a request is the least: its line.
const LINE_START: &[u8] = b"127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] \"";
const LINE_END: &[u8] = b"\" 200 1 \"-\" \"-\"\n";

/// Serves until it is killed. `log`: where lines go, those of a turn in one write.
pub(crate) fn run(port: u16, when: Accept, log: Option<File>) -> io::Result<()> {
    let listener = listen(port, when)?;
    let mut epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd())?;
    let lines = log.as_ref().map(|_| Vec::new());
    let mut server =
        Server { connections: Vec::new(), buffer: vec![0; HEAD_MAX], answers: ANSWER.repeat(BATCH), lines };
    loop {
        for number in 0..epoll.wait() {
            let event = epoll.event(number);
            if event.fd == listener.as_raw_fd() {
                while let Some(fd) = accept(&listener) {
                    server.begin(fd, &epoll)?;
                }
            } else {
                server.go_on(event.fd, event.hung_up);
            }
        }
        if let (Some(mut log), Some(lines)) = (log.as_ref(), &mut server.lines)
            && !lines.is_empty()
        {
            log.write_all(lines)?;
            lines.clear();
        }
    }
}

struct Server {
    /// By descriptor.
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
    answers: Vec<u8>,
    lines: Option<Vec<u8>>,
}

struct Connection {
    fd: OwnedFd,
    /// The beginning of a head whose end has not come yet.
    partial: Vec<u8>,
    unsent: Vec<u8>,
    closing: bool,
}

impl Server {
    /// Tries the first read before the connection is registered: one that asks, is answered and closes never is.
    fn begin(&mut self, fd: OwnedFd, epoll: &Epoll) -> io::Result<()> {
        let mut connection = Connection { fd, partial: Vec::new(), unsent: Vec::new(), closing: false };
        if connection.serve(&mut self.buffer, &self.answers, &mut self.lines, false) {
            let fd = connection.fd.as_raw_fd();
            epoll.add(fd)?;
            let place = fd as usize;
            if self.connections.len() <= place {
                self.connections.resize_with(place + 1, || None);
            }
            self.connections[place] = Some(connection);
        }
        Ok(())
    }

    fn go_on(&mut self, fd: RawFd, hung_up: bool) {
        let place = &mut self.connections[fd as usize];
        if let Some(connection) = place
            && !(connection.flush() && connection.serve(&mut self.buffer, &self.answers, &mut self.lines, hung_up))
        {
            *place = None;
        }
    }
}

impl Connection {
    /// Reads and answers until nothing is left. False when the connection is over.
    fn serve(&mut self, buffer: &mut [u8], answers: &[u8], lines: &mut Option<Vec<u8>>, hung_up: bool) -> bool {
        loop {
            let count = match read(self.fd.as_raw_fd(), buffer) {
                Outcome::Bytes(count) => count,
                Outcome::Later => return true,
                Outcome::Closed => return false,
            };
            if !self.answer(&buffer[..count], answers, lines) {
                return false;
            }
            // A short read has emptied the socket; only a hang-up can be behind it, of which a later event tells.
            if count < buffer.len() && !hung_up {
                return true;
            }
        }
    }

    fn answer(&mut self, bytes: &[u8], answers: &[u8], lines: &mut Option<Vec<u8>>) -> bool {
        let joined;
        let mut rest = bytes;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            rest = &joined;
        }
        let mut requests = 0;
        while let Some(length) = head_length(rest) {
            let (head, after) = rest.split_at(length);
            rest = after;
            if let Some(lines) = lines {
                let line = head.split(|byte| *byte == b'\r').next().unwrap_or(head);
                [LINE_START, line, LINE_END].iter().for_each(|part| lines.extend_from_slice(part));
            }
            if closes(head) {
                self.closing = true;
                break;
            }
            requests += 1;
        }
        while requests > 0 {
            let batch = requests.min(BATCH);
            if !self.send(&answers[..batch * ANSWER.len()]) {
                return false;
            }
            requests -= batch;
        }
        if self.closing {
            return self.send(LAST_ANSWER) && !self.unsent.is_empty();
        }
        self.partial.extend_from_slice(rest);
        self.partial.len() < HEAD_MAX
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        let mut sent = 0;
        if self.unsent.is_empty() {
            let write = if self.closing { write_last } else { write };
            match write(self.fd.as_raw_fd(), bytes) {
                Outcome::Bytes(count) => sent = count,
                Outcome::Later => {}
                Outcome::Closed => return false,
            }
        }
        self.unsent.extend_from_slice(&bytes[sent..]);
        true
    }

    fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match write(self.fd.as_raw_fd(), &self.unsent) {
                Outcome::Bytes(count) => drop(self.unsent.drain(..count)),
                Outcome::Later => return true,
                Outcome::Closed => return false,
            }
        }
        !self.closing
    }
}
