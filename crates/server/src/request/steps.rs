//! What the phases are made of: handlers, what they say, and what they leave to a connection's task. No phase runs here (`phases`).

use super::Request;
use std::future::Future;
use std::pin::Pin;

/// The phases that have handlers, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before any rewrite: who the client is.
    PostRead,
    /// The server's `rewrite`, `set`, `if`, `return`.
    ServerRewrite,
    /// Those of the location.
    Rewrite,
    /// Limits.
    Preaccess,
    /// Who may, under `satisfy`.
    Access,
    /// What comes before the content: other files, copies.
    Precontent,
    /// Who answers, where the location names nobody.
    Content,
}

impl Phase {
    /// How many there are.
    pub const COUNT: usize = Phase::Content as usize + 1;
}

/// What a handler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not mine: the next handler.
    Decline,
    /// Mine, and the request may go on (nginx's `NGX_OK` of an access handler).
    Allow,
    /// The answer is out, or somebody else has the connection now.
    Answered,
    /// Answer with this status: the error page, the redirect, the plain text for it.
    Status(u16),
    /// The request was redirected inside: the phases run again from there.
    Restart(From),
    /// The client is gone; nothing more can be said.
    Broken,
}

/// Where the phases start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The beginning: a client's request.
    PostRead,
    /// With the server's rewrites: an internal redirect, a subrequest.
    ServerRewrite,
    /// After the location is known: a named location.
    Rewrite,
}

/// A handler that waits.
pub type Waiting<'r> = Pin<Box<dyn Future<Output = Verdict> + 'r>>;

/// What a handler comes to that waits now and then only: nothing is made for a wait that never comes.
pub enum Begun<'r> {
    /// It has not waited.
    Over(Verdict),
    /// It waits.
    Waits(Waiting<'r>),
}

impl Begun<'_> {
    /// What it says in the end.
    pub async fn verdict(self) -> Verdict {
        match self {
            Begun::Over(verdict) => verdict,
            Begun::Waits(waiting) => waiting.await,
        }
    }
}

/// What a connection's task does while a handler has taken the connection (`request/held.rs`).
pub type Work = Pin<Box<dyn Future<Output = Released>>>;

/// How that ends.
pub enum Released {
    /// The request is there again.
    Back(Back),
    /// The connection is parked (`connection/parked.rs`): it needs no task until it is a connection with one again.
    Parked,
}

/// What goes on with a request that is there again: answers, says that the answer is over, or takes the connection once more.
pub type GoOn = Box<dyn for<'r> FnOnce(&'r mut Request) -> Waiting<'r>>;

/// The request is there again.
pub struct Back {
    /// The request, with its session.
    pub request: Box<Request>,
    /// What goes on with it.
    pub go_on: GoOn,
}

/// A handler of a phase.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// Answers at once.
    Now(fn(&mut Request) -> Verdict),
    /// Waits; asked only when the first function says so.
    Later(fn(&Request) -> bool, for<'r> fn(&'r mut Request) -> Waiting<'r>),
    /// Waits now and then; asked as the other.
    Begins(fn(&Request) -> bool, for<'r> fn(&'r mut Request) -> Begun<'r>),
}

/// The content handler of a location: `proxy_pass`, `stub_status`, `empty_gif` ...
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Answers at once.
    Now(fn(&mut Request) -> Verdict),
    /// Waits.
    Later(for<'r> fn(&'r mut Request) -> Waiting<'r>),
    /// Waits now and then.
    Begins(for<'r> fn(&'r mut Request) -> Begun<'r>),
    /// `proxy_pass`: waits too, but so often that its state is part of the request's task, not a box of its own.
    Proxy,
}

/// Where a request would be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// `return`, a redirect, or what is wrong; none: the location's handler, or files.
    pub status: Option<u16>,
    /// Programs on the way (`rewrite_by_lua`) were not run: they may lead elsewhere.
    pub has_programs: bool,
}

/// What a header filter says.
pub enum Filtered {
    /// The next filter.
    Next,
    /// Send this status's page instead (`ngx_http_filter_finalize_request`).
    Replace(u16),
    /// Send this status's page with the head as it is now.
    Refuse(u16),
    /// Another answer than the one under way, which the filter has cleared away already.
    Instead(Verdict),
    /// Nothing can be sent.
    Broken,
}

/// A header filter.
pub type HeaderFilter = fn(&mut Request) -> Filtered;

/// A logger looks at a request that is done. It never changes the answer, waits or blocks.
pub type Logger = fn(&mut Request);

/// Who takes part in the requests of a location, each list in its order: of the many that there are only those for whom its values
/// have work.
#[derive(Clone, Debug)]
pub struct Participants {
    /// The handlers of each phase.
    pub handlers: [Box<[Handler]>; Phase::COUNT],
    /// The header filters.
    pub header_filters: Box<[HeaderFilter]>,
    /// The loggers.
    pub loggers: Box<[Logger]>,
}

impl Participants {
    /// The handlers of a phase.
    #[inline]
    pub fn handlers(&self, phase: Phase) -> &[Handler] {
        &self.handlers[phase as usize]
    }
}
