//! The client's body on its way to an upstream: read whole before, or left to be sent on as it comes (`*_request_buffering`).

use super::conf::UpstreamConf;
use super::job::JobBody;
use crate::request::body::Stored;
use crate::request::phases::Verdict;
use crate::request::{Request, body};
use std::rc::Rc;

/// What a request's body is for the upstream.
pub struct RequestBody {
    /// What is sent.
    pub body: JobBody,
    /// Its length, where it is known before it is sent: what the client has announced, or sent.
    pub length: Option<u64>,
    /// It is sent on as it comes, and its length is not known.
    pub chunked: bool,
}

/// What the protocol and the configuration say of bodies.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// The client's body is sent at all.
    pub passed: bool,
    /// One of unknown length can be sent as it comes.
    pub of_any_length: bool,
}

/// Reads the client's body, or leaves it to be streamed.
pub async fn take(r: &mut Request, conf: &UpstreamConf, wanted: Wanted) -> Result<RequestBody, Verdict> {
    if r.is_main() && r.body.stored.is_none() {
        body::confirm_expectation(r);
    }
    // What a head announces that has no body is not said to anybody.
    let length = r.head.headers.content_length.filter(|n| *n == 0 || r.body.is_present() || r.body.stored.is_some());
    let streamable = wanted.of_any_length || !r.head.headers.chunked;
    let is_streamed = !*conf.request_buffering && wanted.passed && streamable;
    if is_streamed && r.is_main() && r.body.stored.is_none() && !r.body.is_discarded() {
        if !r.body.is_present() {
            return Ok(RequestBody { body: JobBody::None, length, chunked: false });
        }
        let chunked = r.head.headers.chunked;
        let mut first = Vec::new();
        if !body::take_preread(r, &mut first).map_err(Verdict::from)? {
            r.body.streamed = true;
            return Ok(RequestBody { body: JobBody::Stream { chunked, first, complete: false }, length, chunked });
        }
        // All of it is here: it can be sent again, and its length is known (`ngx_http_read_client_request_body`).
        let len = first.len() as u64;
        r.body.stored = Some(Rc::new(Stored { memory: first, file: None, len }));
    }
    if !r.is_main() && r.body.stored.is_none() {
        return Ok(RequestBody { body: JobBody::None, length: None, chunked: false });
    }
    if r.body.stored.is_none() && !r.body.is_present() {
        return Ok(RequestBody { body: JobBody::None, length, chunked: false });
    }
    let stored = body::read_all(r).await.map_err(Verdict::from)?;
    if r.head.headers.chunked || r.body.is_discarded() {
        r.head.headers.content_length = Some(stored.len);
    }
    let length = r.head.headers.content_length;
    let body = if wanted.passed { JobBody::Stored(stored) } else { JobBody::None };
    Ok(RequestBody { body, length, chunked: false })
}
