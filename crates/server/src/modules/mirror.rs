//! Copies of requests to other places (nginx's `ngx_http_mirror_module`): subrequests whose answers nobody reads and
//! nobody waits for.

use crate::config::setters::{self, duplicate};
use crate::config::{Directive, Scope, http};
use crate::merged_values;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Request, body};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("mirror", mirror),
    http("mirror_request_body", |s, n| setters::flag(&mut s.level.conf.mirror.mirror_request_body, n)),
];

/// Its place in the precontent phase.
pub const HANDLER: Handler = Handler::Later(|r| r.is_main() && !r.conf().mirror.mirror.is_empty(), send);

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Where copies go.
        mirror: Arc<Vec<Box<[u8]>>> = Arc::default(),
        /// Whether copies have the body; it is read first then.
        mirror_request_body: bool = true,
    }
}

fn mirror(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let uri = &node.args[0].text;
    let setting = &mut scope.level.conf.mirror.mirror;
    if setting.is_set() && (uri == b"off" || setting.is_empty()) {
        return Err(duplicate(node));
    }
    let uris = Arc::make_mut(setting.entry());
    if uri != b"off" {
        uris.push(uri.as_slice().into());
    }
    Ok(())
}

fn send(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let snapshot = r.snapshot.clone();
        let conf = &snapshot.location(r.location).conf.mirror;
        let with_body = *conf.mirror_request_body;
        if with_body && let Err(e) = body::read_all(r).await {
            return e.into();
        }
        for uri in conf.mirror.iter() {
            let uri = r.text(uri);
            let options = Options { mode: Mode::Discard, with_body, get: false };
            if let Err(verdict) = subrequest::spawn(r, uri, r.head.args, options) {
                return verdict;
            }
        }
        Verdict::Decline
    })
}
