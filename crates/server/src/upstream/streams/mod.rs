//! What HTTP/2 and HTTP/3 towards peers have in common: an answer comes in a stream of a connection that requests share. Above it is
//! `super::framing`, below it a [`Carrier`] (`super::http2`, `super::http3`), which knows frames; which connection is `super::sharing`.
//!
//! ```text
//! open.rs     a request gets its stream, and its head goes out
//! stream.rs   what comes, as the request reads it; its body out
//! ```

mod open;
mod stream;

pub use open::open;
pub use stream::Stream;

use super::choose::SelectedPeer;
use super::failure::Failure;
use super::http2::head::{self, HeadFacts};
use super::job::Job;
use super::settings::UpstreamSettings;
use super::sharing::{Key, Shared};
use super::upload::Upload;
use crate::connection::pool as buffers;
use crate::request::Request;
use runtime::TaskId;
use runtime::timer::Timer;
use std::rc::Rc;
use wire::http2::hpack::HeaderBlock;

/// A connection whose streams requests hold.
pub trait Carrier: Shared {
    /// A stream's number.
    type Id: Copy + 'static;

    /// A new connection that stands, verified. `key`: requests share it.
    fn connect(
        r: &mut Request,
        asked: &Asked<'_>,
        key: Option<Key>,
        timer: &Timer,
    ) -> impl Future<Output = Result<Rc<Self>, Failure>>;
    /// Sends a request's head on a new stream. None: there is no room after all.
    fn begin(&self, r: &mut Request, job: &Job, upload: Option<&Upload>) -> Option<Self::Id>;
    /// What has come on a stream. None: it is gone.
    fn answer<V>(&self, id: Self::Id, with: impl FnOnce(&mut Answer) -> V) -> Option<V>;
    /// The request has taken all that was there: the peer may send on.
    fn taken(&self, id: Self::Id);
    /// Takes as much of a piece of the body as may go now ([`super::upload::Outlet::send`]).
    fn send(&self, id: Self::Id, piece: &[u8], end: bool) -> usize;
    /// The body is over.
    fn send_end(&self, id: Self::Id);
    /// The request needs the stream no longer.
    fn release(&self, id: Self::Id);
}

/// Whom a request asks, and how.
pub struct Asked<'a> {
    /// What.
    pub job: &'a Job,
    /// With which values.
    pub conf: &'a UpstreamSettings,
    /// Whom.
    pub chosen: &'a SelectedPeer,
    /// When the try began, ms of the monotonic clock.
    pub started_ms: u64,
}

/// What has come of an answer on a stream.
#[derive(Default)]
pub struct Answer {
    /// Heads as text and what follows of the body, not read yet.
    pub(super) input: Vec<u8>,
    /// Why nothing more comes, if that is not the answer's end.
    pub(super) trouble: Option<Trouble>,
    /// What its `Content-Length` leaves to come.
    left: Option<u64>,
    /// It has no body whatever its head says.
    is_head: bool,
    /// Its own head was there, not only one of the 1xx kind.
    pub(super) head_seen: bool,
    /// It is complete.
    pub(super) complete: bool,
    /// Something of it has come.
    pub(super) heard: bool,
    pub(super) trailers: Trailers,
    /// The request's, while it waits.
    pub(super) task: Option<TaskId>,
}

/// Names and values of trailers, in order.
pub(super) type Trailers = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Why a stream came to nothing, with the log's words.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// The connection ended, or failed.
    Lost(Rc<str>),
    /// The peer says that it has done nothing: the request may be sent again.
    Refused(Rc<str>),
    /// What came makes no sense, or the peer gave up.
    Invalid(Rc<str>),
}

impl Trouble {
    /// The peer closed the connection.
    pub(super) fn closed() -> Trouble {
        Trouble::Lost("upstream prematurely closed connection".into())
    }
}

impl Answer {
    /// `is_head`: it will have no body whatever its head says.
    pub(super) fn new(is_head: bool) -> Answer {
        Answer { is_head, ..Answer::default() }
    }

    /// Wakes the request if it waits.
    pub(super) fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            runtime::wake_first(task);
        }
    }

    /// Nothing more comes.
    pub(super) fn fail(&mut self, trouble: Trouble) {
        self.trouble.get_or_insert(trouble);
        self.wake();
    }

    /// A head has come. `end`: nothing follows it. The error is for the log.
    pub(super) fn take_head(&mut self, fields: &HeaderBlock, end: bool) -> Result<HeadFacts, Rc<str>> {
        self.heard = true;
        if self.input.capacity() == 0 {
            self.input = buffers::take_buffer();
        }
        let found = head::write(fields, end, self.is_head, &mut self.input)?;
        if !found.is_interim() {
            self.head_seen = true;
            self.left = found.length.filter(|_| !self.is_head);
        }
        self.complete |= end;
        self.wake();
        Ok(found)
    }

    /// Some of the body has come. The error is for the log.
    pub(super) fn take_body(&mut self, bytes: &[u8], end: bool) -> Result<(), Rc<str>> {
        if !self.head_seen {
            // What stands before a head would be read as one (RFC 9113 section 8.1).
            return Err("upstream sent DATA before HEADERS".into());
        }
        if self.left.is_some_and(|left| bytes.len() as u64 > left) {
            return Err("upstream sent response body larger than indicated content length".into());
        }
        self.left = self.left.map(|left| left - bytes.len() as u64);
        self.input.extend_from_slice(bytes);
        self.complete |= end;
        self.wake();
        Ok(())
    }
}
