//! Collections that outlive requests (`initcol` and its like), on their way to another process. From and to: `upgrade::zones`.

use super::steps::STORE;
use heir::{Frame, Reader, Writer};
use runtime::clock;
use waf::limits::{MAX_RECORD_VARIABLES, MAX_RECORDS};
use waf::{Kept, Stored};

/// The kind of zones that these are.
pub const ZONE: &[u8] = b"modsecurity";

/// Bytes of rows in a frame, about.
const FRAME_BYTES: usize = 256 * 1024;

fn now_s() -> u64 {
    u64::try_from(clock::wall_seconds()).unwrap_or_default()
}

/// Says all of it. Requests that are under way are not kept waiting but for one record.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    let (mut rows, now_s) = (Writer::default(), now_s());
    for which in STORE.keys() {
        let Some(record) = STORE.record(&which, now_s) else { continue };
        rows.number(which.0 as u64);
        rows.bytes(&which.1);
        rows.number(record.timeout_s);
        rows.number(record.ends_s);
        rows.number(record.variables.len() as u64);
        for (name, value, ends_s) in &record.variables {
            rows.bytes(name);
            rows.bytes(value);
            rows.number(ends_s.unwrap_or(0));
        }
        if rows.len() >= FRAME_BYTES {
            say(Frame::Zone(ZONE, b"", &std::mem::take(&mut rows).done()).write());
        }
    }
    if !rows.is_empty() {
        say(Frame::Zone(ZONE, b"", &rows.done()).write());
    }
}

/// Takes what another process said.
pub fn settle(rows: &[u8]) {
    let (mut rows, now_s) = (Reader::new(rows), now_s());
    for _ in 0..MAX_RECORDS {
        let Some((collection, key, record)) = read(&mut rows) else { return };
        STORE.restore(collection, key, record, now_s);
    }
}

fn read<'b>(rows: &mut Reader<'b>) -> Option<(Stored, &'b [u8], Kept)> {
    let collection = *Stored::ALL.get(usize::try_from(rows.number()?).ok()?)?;
    let (key, timeout_s, ends_s) = (rows.bytes()?, rows.number()?, rows.number()?);
    let variables = rows.list(MAX_RECORD_VARIABLES, |r| {
        let (name, value, ends_s) = (r.bytes()?, r.bytes()?, r.number()?);
        Some((name.into(), value.into(), (ends_s > 0).then_some(ends_s)))
    })?;
    Some((collection, key, Kept { timeout_s, ends_s, variables }))
}
