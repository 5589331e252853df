//! A request is refused by the shield: its page shows an id from now on, and why it was refused is remembered under that id.

use super::variables;
use crate::request::{Request, Text};
use crate::status::refusals::{Refusal, note, text};
use runtime::clock;
use std::fmt;

/// Remembers why a request is refused with a status, by `$request_id`.
pub fn refused(r: &mut Request, status: u16, by: &'static str, why: fmt::Arguments<'_>) {
    if let Some(id) = variables::request_id(r) {
        refused_as(r, id, status, by, why);
    }
}

/// The same by another id.
pub fn refused_as(r: &mut Request, id: Text, status: u16, by: &'static str, why: fmt::Arguments<'_>) {
    r.ctx.shown_id = Some(id);
    let request = [r.get(r.head.method_name), b" ", r.get(r.head.target)].concat();
    note(Refusal {
        id: text(r.get(id)),
        at_ms: clock::wall_ms(),
        client: r.client.remote.borrow().host().to_string().into(),
        request: text(&request),
        status,
        by,
        why: text(why.to_string().as_bytes()),
    });
}
