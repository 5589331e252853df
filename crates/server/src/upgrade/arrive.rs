//! Connections of another process that come to a thread: each goes to whom its kind belongs to, and is answered for. From: `succeed`.

use super::keys::Keys;
use super::line::ThreadLine;
use crate::connection::http1;
use crate::connection::http2;
use crate::connection::parked::Ready;
use crate::connection::tls::secrets::SecretBytes;
use crate::log::error::Level;
use crate::log::process_line;
use crate::modules::nchan;
use crate::snapshot::ThreadSnapshot;
use crate::upstream::tunnel;
use crate::worker;
use heir::{Frame, Kind, Reader, Record, Secret, Terms};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use zeroize::Zeroize;

/// What numbers of a generation of the other process mean, and in which configuration of this one.
type Known = BTreeMap<u64, (Terms, Rc<ThreadSnapshot>)>;

/// Goes on as long as the line does.
pub(super) async fn run(line: OwnedFd) {
    let Ok(mut link) = ThreadLine::new(line) else { return };
    let mut known = Known::new();
    let mut dictionaries: Vec<(u8, Rc<[u8]>)> = Vec::new();
    let mut keys: Vec<Option<SecretBytes>> = Vec::new();
    while let Ok(mut frame) = link.hear().await {
        match Frame::read(&frame.bytes) {
            Ok(Frame::Keys(secrets)) => {
                let own = |secret: &Secret<'_>| (!secret.0.is_empty()).then(|| SecretBytes::copy(secret.0));
                keys = secrets.iter().map(own).collect();
                frame.bytes[..].zeroize();
            }
            Ok(Frame::Table(table)) => {
                let snapshot = worker::snapshot();
                let mut terms = Terms::of(&table, &Keys::of(&snapshot).table(0));
                dictionaries.iter().for_each(|(number, text)| terms.learn(*number, text));
                known.insert(table.generation, (terms, snapshot));
            }
            Ok(Frame::Dictionary(number, text)) => {
                let text: Rc<[u8]> = text.into();
                known.values_mut().for_each(|(terms, _)| terms.learn(number, &text));
                dictionaries.retain(|(before, _)| *before != number);
                dictionaries.push((number, text));
            }
            Ok(Frame::Batch(records)) => {
                if records.iter().any(|record| matches!(record.kind, Some(Kind::Mqtt | Kind::Session))) {
                    nchan::succession::catch_up().await;
                }
                let mut files = frame.fds.into_iter();
                let mut keys = std::mem::take(&mut keys).into_iter();
                let take = |record: &Record<'_>| {
                    let own = files.by_ref().take(record.files.into());
                    let own: Vec<_> = own.map(|fd| (fd, keys.next().flatten())).collect();
                    // Some are missing where this process has too many open.
                    own.len() == usize::from(record.files) && go_on(record, own, &known)
                };
                let taken = Frame::Answer(records.iter().map(take).collect());
                if link.say(&taken.write()).await.is_err() {
                    return;
                }
            }
            Ok(_) => return,
            Err(e) => return process_line(Level::Error, format_args!("connections of another process: {e}")),
        }
    }
}

/// Goes on with a connection. False: it has no place here.
fn go_on(record: &Record<'_>, files: Vec<(OwnedFd, Option<SecretBytes>)>, known: &Known) -> bool {
    let mut r = Reader::new(record.bytes);
    let found = r.number().and_then(|generation| known.get(&generation));
    let Some((terms, snapshot)) = found else { return false };
    let r = &mut r;
    if record.kind == Some(Kind::Session) {
        return nchan::mqtt::session_arrives(r, snapshot).is_some();
    }
    let Some((ready, more)) = Ready::arrived(files, record.sealed) else { return false };
    match (record.kind, more) {
        (Some(Kind::Idle), None) => http1::parked::arrive(r, ready, terms, snapshot).is_some(),
        (Some(Kind::Subscriber), None) => nchan::arrive(r, ready, terms, snapshot).is_some(),
        (Some(Kind::Mqtt), None) => nchan::mqtt::arrive(r, ready, terms, snapshot).is_some(),
        (Some(Kind::Tunnel), Some(peer)) => tunnel::arrive(r, ready, peer, terms, snapshot).is_some(),
        (Some(Kind::Http2), None) => http2::parked::arrive(r, ready, terms, snapshot).is_some(),
        _ => false,
    }
}
