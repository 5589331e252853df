//! A request of any bytes through all phases of a transaction: for the fuzz target, and for what measures the requests that it found.

use crate::head::cut;
use std::sync::Arc;
use waf::{Connection, Now, Rules, Transaction};

/// Lets the rules judge a request, whatever it looks like, and an empty page for an answer.
pub(crate) fn judge(rules: &Arc<Rules>, transaction: &mut Transaction, bytes: &[u8]) {
    let head = cut(bytes);
    let [method, target, version] = head.line;
    transaction.recycle(rules.clone(), None, Now::default());
    transaction.connection(&Connection { client: "192.0.2.7".parse().ok(), ..Connection::default() });
    transaction.uri(method, target, version);
    transaction.request_headers(head.headers.iter().copied());
    transaction.request_body(head.body);
    transaction.request_body_end();
    transaction.response_headers(200, b"HTTP/1.1", [(&b"Content-Type"[..], &b"text/html"[..])]);
    transaction.response_body_end();
    transaction.logging(200);
}
