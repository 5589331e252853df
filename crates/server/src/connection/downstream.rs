//! Where a request's answer goes: a connection, a stream of one, or a parent request. Requests and modules ask it. What kind it is, only
//! `connection` and `request::{body, respond, flow}` match on, which move the bytes; who needs a connection of HTTP/1 to itself (tunnels, sockets
//! of programs, channels) asks for that ([`Downstream::http1`]).

use super::http1::Http1;
use super::stream::Stream;
use super::tls::Tls;
use super::{http2, http3, pool};
use crate::request::phases;
use crate::request::subrequest::{Mode, SubSession};
use std::task::{Context, Poll};

/// Where a request's answer goes.
#[derive(Default)]
pub enum Downstream {
    /// Nowhere: the request is between two owners.
    #[default]
    None,
    /// An HTTP/1 connection.
    Http1(Box<Http1>),
    /// A stream of an HTTP/2 connection.
    Http2(http2::Http2Stream),
    /// A stream of an HTTP/3 connection.
    Http3(http3::Http3Stream),
    /// A parent request.
    Sub(SubSession),
    /// The request is over for now: its handler has taken the connection.
    Held(phases::Work),
}

/// What is spoken with the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1, or nothing of its own: a subrequest.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
    /// HTTP/0.9 over QUIC.
    Hq,
}

impl Downstream {
    /// For a subrequest of the request whose answer goes here.
    pub fn child(&self, mode: Mode) -> Downstream {
        Downstream::Sub(SubSession::new(mode, self))
    }

    /// The stream, where the connection has streams.
    pub fn stream(&self) -> Option<&dyn Stream> {
        match self {
            Downstream::Http2(stream) => Some(stream),
            Downstream::Http3(stream) => Some(stream),
            Downstream::Http1(_) | Downstream::Sub(_) | Downstream::Held(_) | Downstream::None => None,
        }
    }

    /// The connection, where the request has one to itself.
    pub fn http1(&self) -> Option<&Http1> {
        if let Downstream::Http1(http) = self { Some(http) } else { None }
    }

    /// As [`Downstream::http1`], to change it.
    pub fn http1_mut(&mut self) -> Option<&mut Http1> {
        if let Downstream::Http1(http) = self { Some(http) } else { None }
    }

    /// What is spoken.
    pub fn protocol(&self) -> Protocol {
        match self {
            Downstream::Http2(_) => Protocol::Http2,
            Downstream::Http3(stream) if stream.is_hq() => Protocol::Hq,
            Downstream::Http3(_) => Protocol::Http3,
            Downstream::Http1(_) | Downstream::Sub(_) | Downstream::Held(_) | Downstream::None => Protocol::Http1,
        }
    }

    /// The answer goes out in chunks (`Transfer-Encoding: chunked`).
    pub fn is_chunked(&self) -> bool {
        self.http1().is_some_and(|http| http.chunked)
    }

    /// Answers to requests before this one wait on the same connection.
    pub fn has_output(&self) -> bool {
        self.http1().is_some_and(|http| !http.output.is_empty())
    }

    /// A connection of its own on which nothing waits, neither to be read nor to be written.
    pub fn is_quiet(&self) -> bool {
        self.http1().is_some_and(|http| http.unread().is_empty() && http.output.is_empty())
    }

    /// The TLS handshake goes on: what has come is early data.
    pub fn is_handshaking(&self) -> bool {
        match self {
            Downstream::Http1(http) => http.incoming.socket.tls().is_some_and(Tls::is_handshaking),
            Downstream::Sub(sub) => sub.handshaking,
            other => other.stream().is_some_and(|stream| stream.is_handshaking()),
        }
    }

    /// Somebody else than the client is waited for: buffers with nothing in them go back to the thread's pool. What comes then, or is
    /// said, takes one again.
    pub fn lend_buffers(&mut self) {
        if let Downstream::Http1(http) = self {
            http.lend_input();
            if http.output.is_empty() {
                pool::give_buffer(http.output.take_buffer());
            }
        }
    }

    /// Ready when the client has gone away.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Downstream::Http1(http) => http.incoming.socket.poll_closed(cx),
            other => other.stream().map_or(Poll::Pending, |stream| stream.poll_gone()),
        }
    }

    /// What comes in small pieces leaves at once (`tcp_nodelay`).
    pub fn set_nodelay(&mut self) {
        if let Some(http) = self.http1_mut() {
            http.incoming.set_nodelay();
        }
    }

    /// What a subrequest has collected ([`Mode::Capture`], [`Mode::Whole`]); `None` where this is no subrequest.
    pub fn take_captured(&mut self) -> Option<Vec<u8>> {
        if let Downstream::Sub(sub) = self { Some(std::mem::take(&mut sub.captured)) } else { None }
    }

    /// Queues a head that another one follows (100, 103).
    pub fn informational(&mut self, status: u16, reason: &str, lines: &mut dyn Iterator<Item = (&[u8], &[u8])>) {
        match self {
            Downstream::Http1(http) => {
                let mut out = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
                for (name, value) in lines {
                    out.extend_from_slice(name);
                    out.extend_from_slice(b": ");
                    out.extend_from_slice(value);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"\r\n");
                http.output.push_bytes(&out);
            }
            Downstream::Http2(stream) => http2::informational(stream, status, lines),
            Downstream::Http3(stream) => http3::informational(stream, status, lines),
            Downstream::Sub(_) | Downstream::Held(_) | Downstream::None => {}
        }
    }
}
