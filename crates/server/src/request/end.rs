//! The one end of a request, a subrequest, or a session of `stream`: what is counted, and the loggers. From: `connection`,
//! `subrequest`, `include`, `cache::lookup`, `stream`. To: the list of loggers in `modules`.

use super::Request;
use crate::connection::doing;
use crate::modules;
use crate::status::requests;

/// A logger looks at a request that is done. It never changes the answer, waits or blocks.
pub type Logger = fn(&mut Request);

/// Ends it. The last bytes of the answer have been handed to the client's connection, or never will be.
pub fn end(r: &mut Request) {
    if r.ctx.stream.is_some() {
        requests::end_session(r);
    } else if r.is_main() {
        r.doing = doing::LOGGING;
        requests::end(r);
    } else if !*r.conf().core.log_subrequest {
        return;
    }
    for logger in modules::LOGGERS {
        logger(r);
    }
}

/// Ends a client's request and makes the one that follows it (`post_action`).
pub async fn conclude(r: &mut Request) {
    end(r);
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.core;
    if !conf.post_action.is_empty() {
        super::subrequest::post_action(r, &conf.post_action.clone()).await;
    }
}
