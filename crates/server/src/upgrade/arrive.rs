//! Connections of another process that come to a thread: each goes to whom its kind belongs to, and is answered for. From: `succeed`.

use super::keys::Keys;
use super::line::ThreadLine;
use crate::connection::http1;
use crate::log::error::Level;
use crate::log::process_line;
use crate::modules::nchan;
use crate::snapshot::ThreadSnapshot;
use crate::worker;
use heir::{Frame, Kind, Reader, Record, Terms};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What numbers of a generation of the other process mean, and in which configuration of this one.
type Known = HashMap<u64, (Terms, Rc<ThreadSnapshot>)>;

/// Goes on as long as the line does.
pub(super) async fn run(line: OwnedFd) {
    let Ok(mut link) = ThreadLine::new(line) else { return };
    let mut known = Known::new();
    while let Ok(frame) = link.hear().await {
        match Frame::read(&frame.bytes) {
            Ok(Frame::Table(table)) => {
                let snapshot = worker::snapshot();
                let terms = Terms::of(&table, &Keys::of(&snapshot).table(0));
                known.insert(table.generation, (terms, snapshot));
            }
            Ok(Frame::Batch(records)) => {
                let mut files = frame.fds.into_iter();
                let take = |record: &Record<'_>| {
                    let own: Vec<OwnedFd> = files.by_ref().take(record.files.into()).collect();
                    // Some are missing where this process has too many open.
                    own.len() == usize::from(record.files) && go_on(record, own, &known)
                };
                let taken = Frame::Answer(records.iter().map(take).collect());
                if link.say(&taken.write(), Vec::new()).await.is_err() {
                    return;
                }
            }
            Ok(_) => return,
            Err(e) => return process_line(Level::Error, format_args!("connections of another process: {e}")),
        }
    }
}

/// Goes on with a connection. False: it has no place here.
fn go_on(record: &Record<'_>, mut files: Vec<OwnedFd>, known: &Known) -> bool {
    let mut r = Reader::new(record.bytes);
    let found = r.number().and_then(|generation| known.get(&generation));
    let Some((terms, snapshot)) = found else { return false };
    let r = &mut r;
    let Some(first) = files.pop() else { return false };
    match record.kind {
        Some(Kind::Idle) => http1::parked::arrive(r, first, terms, snapshot).is_ok(),
        Some(Kind::Subscriber) => nchan::arrive(r, first, terms, snapshot).is_ok(),
        None => false,
    }
}
