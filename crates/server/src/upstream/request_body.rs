//! The client's body on its way to an upstream: read whole before, or left to be sent on as it comes (`*_request_buffering`).

use super::conf::UpstreamConf;
use super::job::JobBody;
use crate::request::phases::Verdict;
use crate::request::{Request, body};

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
    let length = r.head.headers.content_length;
    let streamable = wanted.of_any_length || !r.head.headers.chunked;
    if !*conf.request_buffering && wanted.passed && streamable && r.is_main() && r.body.stored.is_none() {
        if !r.body.is_present() {
            return Ok(RequestBody { body: JobBody::None, length, chunked: false });
        }
        r.body.streamed = true;
        let chunked = r.head.headers.chunked;
        let mut first = Vec::new();
        let complete = body::take_preread(r, &mut first).map_err(Verdict::from)?;
        if complete && chunked {
            // All of it is here, so its length is known (`r->reading_body`).
            let length = Some(first.len() as u64);
            r.head.headers.content_length = length;
            return Ok(RequestBody {
                body: JobBody::Stream { chunked: false, first, complete },
                length,
                chunked: false,
            });
        }
        return Ok(RequestBody { body: JobBody::Stream { chunked, first, complete }, length, chunked });
    }
    if !r.is_main() && r.body.stored.is_none() {
        return Ok(RequestBody { body: JobBody::None, length: None, chunked: false });
    }
    if r.body.stored.is_none() && !r.body.is_present() {
        return Ok(RequestBody { body: JobBody::None, length, chunked: false });
    }
    let stored = body::read_all(r).await.map_err(Verdict::from)?;
    if r.head.headers.chunked {
        r.head.headers.content_length = Some(stored.len);
    }
    let length = r.head.headers.content_length;
    let body = if wanted.passed { JobBody::Stored(stored) } else { JobBody::None };
    Ok(RequestBody { body, length, chunked: false })
}
