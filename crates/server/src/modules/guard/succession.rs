//! What guards know, on its way to another process: bans, the key of cookies, and which guards are under attack. Rates are not among it: they are as long as
//! a client needs to show them again. From and to: `upgrade::zones`.

use super::challenge;
use super::state::{self, BANS, MAX_BANS};
use heir::{Frame, Reader, Writer};
use runtime::clock;
use zeroize::Zeroizing;

/// The kind of zones that these are.
pub const ZONE: &[u8] = b"guard";

/// The name of the one that has the key of cookies, a secret.
pub const KEY: &[u8] = b"key";
/// The names of those that have rows of bans, and of attacks.
const BANNED: &[u8] = b"bans";
const ATTACKS: &[u8] = b"attacks";

/// Bytes of rows in a frame, about.
const FRAME_BYTES: usize = 256 * 1024;
/// The longest reason of a ban that is believed, bytes: a guard's name and a limit's text.
const MAX_REASON: usize = 4096;
/// An attack is believed to last no longer than this, ms: `for=` of a day.
const MAX_ATTACK_MS: u64 = 86_400_000;

/// The key's frame, which is said before all others, since it is asked for with the first request. Nothing of it is to be left but the key itself.
pub fn leave_key() -> Zeroizing<Vec<u8>> {
    let mut rows = Writer::with_room(&[], challenge::own_key().len() + 1);
    rows.bytes(challenge::own_key());
    Zeroizing::new(Frame::Zone(ZONE, KEY, &Zeroizing::new(rows.done())).write())
}

/// Says all of the rest.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    let mut frame = |name: &[u8], rows: Writer| {
        if !rows.is_empty() {
            say(Frame::Zone(ZONE, name, &rows.done()).write());
        }
    };
    let mut rows = Writer::default();
    for (subject, ban) in BANS.all(clock::wall_ms()) {
        rows.bytes(&subject.to_be_bytes());
        rows.number(ban.until_ms);
        rows.bytes(ban.reason.as_bytes());
        if rows.len() >= FRAME_BYTES {
            frame(BANNED, std::mem::take(&mut rows));
        }
    }
    frame(BANNED, rows);
    let (mut rows, now) = (Writer::default(), clock::monotonic_ms());
    for (name, state) in state::alive() {
        let left_ms = state.attack.left_ms(now);
        if left_ms > 0 {
            rows.bytes(name.as_bytes());
            rows.number(left_ms);
        }
    }
    frame(ATTACKS, rows);
}

/// Takes what another process said.
pub fn settle(name: &[u8], rows: &[u8]) {
    let mut rows = Reader::new(rows);
    match name {
        KEY => {
            let key = rows.bytes().and_then(|key| key.try_into().ok());
            key.into_iter().for_each(challenge::inherit_key);
        }
        BANNED => {
            let now = clock::wall_ms();
            for _ in 0..MAX_BANS {
                let Some((subject, until_ms, reason)) = read_ban(&mut rows) else { return };
                // The kernel has its own already, with the time that is left there.
                BANS.add(subject, until_ms, reason, now);
            }
        }
        ATTACKS => {
            let now = clock::monotonic_ms();
            while let (Some(name), Some(left_ms)) = (rows.bytes(), rows.number()) {
                for (_, state) in state::alive().iter().filter(|(known, _)| known.as_bytes() == name) {
                    state.attack.go_on_until(now + left_ms.min(MAX_ATTACK_MS));
                }
            }
        }
        _ => {}
    }
}

fn read_ban<'b>(rows: &mut Reader<'b>) -> Option<(u128, u64, &'b str)> {
    let subject = u128::from_be_bytes(rows.bytes()?.try_into().ok()?);
    let until_ms = rows.number()?;
    let reason = std::str::from_utf8(rows.bytes()?).ok().filter(|text| text.len() <= MAX_REASON)?;
    Some((subject, until_ms, reason))
}
