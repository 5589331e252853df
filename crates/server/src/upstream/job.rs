//! What is asked of the peers of a group: by the protocol's module (`modules::proxy`, `modules::fastcgi`), for `retry`.

use super::group::Group;
use super::memcached::Asked;
use crate::log_error;
use crate::request::Request;
use crate::request::body::Stored;
use crate::request::phases::Verdict;
use crate::tls::client::Secure;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// What is asked of the peers of a group.
pub struct Job {
    /// Whom to ask.
    pub group: Arc<Group>,
    /// The request's head, and a body that the configuration gives.
    pub head: Vec<u8>,
    /// The client's body.
    pub body: JobBody,
    /// The answer has no body whatever its head says.
    pub is_head: bool,
    /// The connection may be used again.
    pub keepalive: bool,
    /// Where to connect from.
    pub local: Option<SocketAddr>,
    /// What the peers speak.
    pub protocol: Protocol,
    /// Makes the request anew, for programs that change the request between tries.
    pub remake: Option<Remake>,
}

/// Makes a request anew.
pub type Remake = Rc<dyn Fn(&mut Request) -> Result<Remade, Verdict>>;

/// A request that was made anew.
pub struct Remade {
    /// See [`Job`].
    pub head: Vec<u8>,
    /// Its body; none: as before.
    pub body: Option<JobBody>,
}

/// What a program (`ngx.balancer`) wants otherwise from now on.
#[derive(Debug, Default)]
pub struct Changes {
    /// The name that TLS asks for, and that the peer must have.
    pub name: Option<Box<[u8]>>,
    /// TLS or none.
    pub tls: Option<bool>,
    /// Where to connect from.
    pub local: Option<SocketAddr>,
    /// The head is made anew.
    pub recreate: bool,
}

impl Changes {
    /// Whether there is anything.
    pub fn is_any(&self) -> bool {
        self.name.is_some() || self.tls.is_some() || self.local.is_some() || self.recreate
    }
}

impl Job {
    /// Takes changes in.
    ///
    /// # Errors
    /// They cannot be; why has been logged.
    pub fn change(&mut self, r: &mut Request, changes: Changes) -> Result<(), Verdict> {
        if let Some(local) = changes.local {
            (self.local, self.keepalive) = (Some(local), false);
        }
        if let (Protocol::Http3(secure), Some(name)) = (&mut self.protocol, &changes.name) {
            secure.rename(name);
        }
        if let Protocol::Http1(secure) | Protocol::Http2(secure) = &mut self.protocol {
            match (&secure, changes.tls) {
                (None, Some(true)) => {
                    log_error!(
                        r,
                        Error,
                        "a program wants TLS to the upstream, which \"proxy_pass http://\" has no settings for"
                    );
                    return Err(Verdict::Status(500));
                }
                (Some(_), Some(false)) => {
                    *secure = None;
                    r.attempts.scheme = "http://";
                }
                _ => {}
            }
            if let (Some(secure), Some(name)) = (secure, &changes.name) {
                secure.rename(name);
            }
        }
        match &self.remake {
            Some(remake) if changes.recreate => {
                let Remade { head, body } = (remake.clone())(r)?;
                self.head = head;
                if let Some(body) = body {
                    self.body = body;
                }
            }
            None if changes.recreate => {
                log_error!(r, Error, "the request to this kind of upstream cannot be made anew");
                return Err(Verdict::Status(500));
            }
            _ => {}
        }
        Ok(())
    }

    /// TLS, if it is spoken.
    pub(super) fn secure(&self) -> Option<&Secure> {
        match &self.protocol {
            Protocol::Http1(secure) | Protocol::Http2(secure) | Protocol::Cgi(secure) => secure.as_deref(),
            Protocol::Http3(secure) => Some(secure),
            Protocol::FastCgi(_) | Protocol::Memcached(_) | Protocol::Tunnel => None,
        }
    }

    /// What a connection must have been made for.
    pub(super) fn identity(&self) -> Option<&Arc<[u8]>> {
        self.secure().map(|s| &s.identity)
    }

    /// `fastcgi_catch_stderr`
    pub(super) fn caught(&self) -> &[Box<[u8]>] {
        match &self.protocol {
            Protocol::FastCgi(f) => &f.caught,
            _ => &[],
        }
    }
}

/// What peers speak, with TLS below it or not.
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1(Option<Box<Secure>>),
    /// HTTP/2: the head is a list of `http2::fields`.
    Http2(Option<Box<Secure>>),
    /// HTTP/3: the head is the same list.
    Http3(Box<Secure>),
    /// FastCGI.
    FastCgi(FastCgi),
    /// Something else whose answers are CGI's, and whose requests are a head and a body: uwsgi, SCGI.
    Cgi(Option<Box<Secure>>),
    /// memcached.
    Memcached(Asked),
    /// Whatever the client speaks with them: a connection is all that is asked for.
    Tunnel,
}

/// What is different with FastCGI.
#[derive(Clone, Debug)]
pub struct FastCgi {
    /// The application leaves the connection open.
    pub keep: bool,
    /// `fastcgi_catch_stderr`
    pub caught: Arc<Vec<Box<[u8]>>>,
}

/// The body that goes with a job.
pub enum JobBody {
    /// None, or part of `head`.
    None,
    /// Read whole before.
    Stored(Rc<Stored>),
    /// Sent on as it comes; in chunks where its length is unknown.
    Stream {
        /// Chunks.
        chunked: bool,
        /// What came with the head: whoever sends nonsense there is refused before a peer hears of it.
        first: Vec<u8>,
        /// That is all.
        complete: bool,
    },
}
