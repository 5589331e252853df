//! The one end of a request, a subrequest, or a session of `stream`: what is counted, and the loggers. From: `connection`,
//! `subrequest`, `include`, `cache::lookup`, `stream`. To: the loggers of its location.

use super::Request;
use crate::connection::action;
use crate::status::requests;

/// Ends it. The last bytes of the answer have been handed to the client's connection, or never will be.
pub fn end(r: &mut Request) {
    if r.ctx.stream.is_some() {
        requests::end_session(r);
    } else if r.is_main() {
        r.action = action::LOGGING;
        requests::end(r);
    } else if !*r.conf().core.log_subrequest {
        return;
    }
    let snapshot = r.snapshot.clone();
    for logger in &snapshot.location(r.location).participants.loggers {
        logger(r);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.underway.counts() && crate::worker::cutting() && self.has_its_bytes() {
            cut_off(self);
        }
    }
}

/// `worker_shutdown_timeout` has passed. A request without a head is logged with 000, or with 499 where it was a stream's, as nginx does.
fn cut_off(r: &mut Request) {
    if let Some(facts) = &mut r.ctx.stream {
        facts.status = 200;
    } else if !r.answer.header_sent && r.answer.headers.status == 0 && r.downstream.stream().is_some() {
        r.answer.headers.status = 499;
    }
    end(r);
}

/// Ends a client's request and makes the one that follows it (`post_action`).
pub async fn conclude(r: &mut Request) {
    end(r);
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.core;
    if !conf.post_action.is_empty() {
        super::subrequest::post_action(r, &conf.post_action.clone()).await;
    }
}
