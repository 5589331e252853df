//! What a request is made of besides its bytes and its values: what was asked (`Head`), what is answered (`Answer`), and how far it has
//! come on its way through the phases (`Progress`). Each has its own default; a request that is used again begins with it.

use super::headers::{HeadersIn, HeadersOut};
use super::include::Aside;
use super::lineage::Lineage;
use super::{BodyFilter, MAX_URI_CHANGES, Method, Text, Version, include, pending, phases, respond};
use std::rc::Rc;

/// What a request wants its connection, or its stream, to become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Nothing else: an answer is wanted.
    #[default]
    Answer,
    /// CONNECT in a stream (RFC 9113 section 8.5, RFC 9114 section 4.4), or what has become a tunnel.
    Tunnel,
    /// CONNECT in a stream with `:protocol` (RFC 8441). It is a GET with `Upgrade` for all but the stream itself.
    WebSocket,
}

/// What was asked: request line and header lines, and what rewrites make of them.
pub struct Head {
    /// The method.
    pub method: Method,
    /// The method as it was sent.
    pub method_name: Text,
    /// The whole request line.
    pub line: Text,
    /// The target as it was sent: `$request_uri`.
    pub target: Text,
    /// The normalised path: `$uri`.
    pub uri: Text,
    /// What follows the `?`.
    pub args: Text,
    /// Whether the target was plain, so that `uri` is the same bytes as the target's path.
    pub plain_uri: bool,
    /// Whether `target` still is what `uri` came from: no rewrite, no redirect in between.
    pub valid_target: bool,
    /// The version of the request.
    pub version: Version,
    /// The scheme of an absolute target, if any.
    pub(super) scheme: Option<Text>,
    /// The header lines.
    pub headers: HeadersIn,
    /// The port of the Host header or absolute target.
    pub port: Option<u16>,
    /// What a stream is asked to become.
    pub purpose: Purpose,
}

impl Default for Head {
    fn default() -> Head {
        Head {
            method: Method::Get,
            method_name: Text::EMPTY,
            line: Text::EMPTY,
            target: Text::EMPTY,
            uri: Text::EMPTY,
            args: Text::EMPTY,
            plain_uri: false,
            valid_target: true,
            version: Version::HTTP11,
            scheme: None,
            headers: HeadersIn::default(),
            port: None,
            purpose: Purpose::Answer,
        }
    }
}

impl Head {
    /// Empties it in place: the room of the header lines is kept, and no bytes are moved.
    pub(super) fn reset(&mut self) {
        let Head {
            method,
            method_name,
            line,
            target,
            uri,
            args,
            plain_uri,
            valid_target,
            version,
            scheme,
            headers,
            port,
            purpose,
        } = self;
        (*method, *version, *scheme, *port) = (Method::Get, Version::HTTP11, None, None);
        *purpose = Purpose::Answer;
        (*plain_uri, *valid_target) = (false, true);
        for text in [method_name, line, target, uri, args] {
            *text = Text::EMPTY;
        }
        headers.clear();
    }
}

/// What is answered, and how much of it is on its way.
#[derive(Default)]
pub struct Answer {
    /// Status and header lines.
    pub headers: HeadersOut,
    /// The head has been handed to the connection.
    pub header_sent: bool,
    /// It has not been written there yet: a body filter may still refuse the answer ([`super::Request::hold_head`]).
    pub(super) head_held: bool,
    /// A body filter did: what is answered instead.
    pub(super) refused: Option<Box<respond::Refused>>,
    /// The answer has no body: HEAD, 204, 304.
    pub header_only: bool,
    /// Its last byte has been handed over.
    pub done: bool,
    /// Filters that its body goes through, outermost last.
    pub body_filters: Vec<Box<dyn BodyFilter>>,
    /// Filters need the bytes of the body: large files are sent in pieces (nginx's `filter_need_in_memory`).
    pub in_memory: bool,
    /// What is left of an answer that is sent in pieces.
    pub pending: Option<Box<pending::Pending>>,
    /// What waits for includes; there when the answer may have some.
    pub deferred: Option<Box<include::Deferred>>,
    /// An include's way on: the filters behind its parent's.
    pub tail: Vec<Box<dyn BodyFilter>>,
    /// What an include sends if it has nothing to say.
    pub(super) stub: Option<Box<include::Stub>>,
    /// Some of the body has been sent.
    pub(super) output_begun: bool,
    /// Each piece of the answer is to leave at once: filters keep nothing back.
    pub unbuffered: bool,
    /// It has a known length, and parts of it may be asked for.
    pub allow_ranges: bool,
    /// Only one range at a time: the body comes in pieces.
    pub single_range: bool,
    /// The conditions of the request were for somebody else (an upstream) to judge.
    pub disable_not_modified: bool,
    /// `limit_rate` by `X-Accel-Limit-Rate` or `set`.
    pub limit_rate: Option<u64>,
    /// `limit_rate_after` by `X-Accel-Limit-Rate` or `set`.
    pub(super) limit_rate_after: Option<u64>,
}

impl Answer {
    /// Empties it in place: the room of its lists is kept, and no bytes are moved.
    pub(super) fn reset(&mut self) {
        let Answer {
            headers,
            header_sent,
            head_held,
            refused,
            header_only,
            done,
            body_filters,
            in_memory,
            pending,
            deferred,
            tail,
            stub,
            output_begun,
            unbuffered,
            allow_ranges,
            single_range,
            disable_not_modified,
            limit_rate,
            limit_rate_after,
        } = self;
        headers.clear();
        body_filters.clear();
        tail.clear();
        (*refused, *pending, *deferred, *stub) = (None, None, None, None);
        (*limit_rate, *limit_rate_after) = (None, None);
        (*header_sent, *head_held, *header_only, *done, *in_memory) = (false, false, false, false, false);
        (*output_begun, *unbuffered, *allow_ranges, *single_range) = (false, false, false, false);
        *disable_not_modified = false;
    }
}

/// How far a request has come on its way through the phases, and what was decided there.
pub struct Progress {
    /// The handler for the content phase, when a location or `if` names one.
    pub content_handler: Option<phases::Content>,
    /// An internal redirect has been made, or this is a subrequest.
    pub internal: bool,
    /// Redirects left.
    pub(super) uri_changes: u8,
    /// The uri has been changed by a rewrite in this round.
    pub uri_changed: bool,
    /// The request is being answered by an `error_page`.
    pub error_page: bool,
    /// The status to answer with instead of the content's own (from `error_page`).
    pub error_status: u16,
    /// Whether the connection is kept after the answer.
    pub keepalive: bool,
    /// Whether unread body is to be read and thrown away before the connection is closed.
    pub lingering_close: bool,
    /// `Expect: 100-continue` was answered, or is not to be.
    pub(super) expect_tested: bool,
    /// The connection is broken or timed out; nothing more can be sent.
    pub aborted: bool,
    /// Which access verdict stood under `satisfy any`.
    pub(super) access_code: u16,
    /// The uri is added to an `alias` that belongs to a pattern (`index` and `try_files` do).
    pub add_uri_to_alias: bool,
    /// The uri is still the one the location was found by.
    pub valid_location: bool,
    /// It has its lines in the access logs: none is written twice.
    pub logged: bool,
    /// The request was there already when the one before it was answered.
    pub pipelined: bool,
    /// Which of its connection's requests it is, where several are under way at once; 0: the last one.
    pub number: u64,
    /// Depth below the client's own request, 0 for that itself.
    pub depth: u8,
    /// What the client's request and its subrequests count together, from the first of them on.
    pub lineage: Option<Rc<Lineage>>,
    /// Its place in its parent's answer, for an include.
    pub aside: Option<Rc<Aside>>,
    /// The uri of the parent, for a subrequest.
    pub(super) parent_uri: Option<Text>,
    /// The charset of the answer that a subrequest's becomes a part of.
    pub main_charset: Option<Text>,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            content_handler: None,
            internal: false,
            uri_changes: MAX_URI_CHANGES + 1,
            uri_changed: false,
            error_page: false,
            error_status: 0,
            keepalive: false,
            lingering_close: false,
            expect_tested: false,
            aborted: false,
            access_code: 0,
            add_uri_to_alias: false,
            valid_location: true,
            logged: false,
            pipelined: false,
            number: 0,
            depth: 0,
            lineage: None,
            aside: None,
            parent_uri: None,
            main_charset: None,
        }
    }
}
