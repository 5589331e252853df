//! What the result of a check means: when a peer is taken out and when it comes back, and when it is looked at next. Pure but
//! for the peer's state, which it writes, and the log line of a change.

use super::cause::Cause;
use super::check::{Check, Rhythm};
use super::record::Track;
use crate::health::record::FLAP_WINDOW;
use crate::log::error::Level;
use crate::log::process_line;
use crate::upstream::peer::Peer;
use runtime::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// While what is found contradicts what is held of a peer, it is looked at so many times as often.
const FASTER: u32 = 4;
/// A peer that has failed so often in a row is looked at half as often, after three times as many failures a quarter as often,
const LONG_DOWN: u32 = 10;
/// though once a minute in any case, unless it is looked at more seldom at the best of times.
const SLOWEST: Duration = Duration::from_secs(60);
/// and has to pass so many times as often in a row before it is used again.
const FLAP_PASSES: u32 = 3;

/// Notes the result of a check. One that could not be made says nothing about the peer.
pub fn note(check: &Check, peer: &Peer, result: Result<(), Cause>) {
    if let Err(cause @ Cause::Shortage(_)) = &result {
        return say_unmade(check, peer, cause);
    }
    let record = &peer.state.health;
    record.count(result.is_ok());
    let availability = peer.state.availability.now();
    let (is_failing, is_unproven) = (availability.fails(check.number), availability.lacks(check.number));
    let now_ms = clock::monotonic_ms();
    let mut notes = record.notes();
    let flapping = notes.flapping(now_ms);
    let track = &mut notes.tracks[check.number];
    track.add(result.is_ok());
    let Track { passed, failed, .. } = *track;
    match result {
        Ok(()) => {
            let needed = check.rhythm.passes * if flapping > 0 { FLAP_PASSES } else { 1 };
            let comes_back = is_failing && passed >= needed;
            if comes_back || is_unproven {
                if !availability.fails_beside(check.number) {
                    notes.active = None;
                }
                notes.changed(comes_back.then_some(now_ms));
                drop(notes);
                healthy(check, peer);
            }
        }
        Err(mut cause) => {
            let goes = is_unproven || !is_failing && failed >= check.rhythm.fails;
            if goes {
                notes.changed(Some(now_ms));
            }
            let changes = notes.flapping(now_ms);
            if changes > 0 {
                cause = Cause::Flapping { changes, within_s: FLAP_WINDOW.as_secs(), last: Box::new(cause) };
            }
            let is_news = goes || is_failing && notes.active.as_ref().map(Cause::word) != Some(cause.word());
            let text = is_news.then(|| cause.to_string());
            notes.active = Some(cause);
            drop(notes);
            unhealthy(check, peer, goes, text);
        }
    }
}

fn healthy(check: &Check, peer: &Peer) {
    peer.state.availability.set_failing(check.number, false);
    peer.state.availability.set_unproven(check.number, false);
    peer.state.recovered_ms.store(clock::monotonic_ms(), Relaxed);
    peer.state.note_use(peer.settings.policy);
    say(Level::Notice, "healthy", check, peer);
}

fn unhealthy(check: &Check, peer: &Peer, goes: bool, news: Option<String>) {
    if goes {
        peer.state.availability.set_failing(check.number, true);
        peer.state.availability.set_unproven(check.number, false);
        peer.state.health.unhealthy.fetch_add(1, Relaxed);
        peer.state.note_use(peer.settings.policy);
    }
    if let Some(text) = news {
        say(Level::Warn, &format!("unhealthy: {text}"), check, peer);
    }
}

/// Once a second, for all peers: a shortage concerns all.
fn say_unmade(check: &Check, peer: &Peer, cause: &Cause) {
    static SAID_S: AtomicU64 = AtomicU64::new(0);
    let now_s = clock::monotonic_ms() / 1000;
    if SAID_S.swap(now_s, Relaxed) != now_s {
        say(Level::Crit, &format!("not checked: {cause}"), check, peer);
    }
}

fn say(level: Level, what: &str, check: &Check, peer: &Peer) {
    let (name, group) = (&peer.name, &check.group.name);
    process_line(level, format_args!("peer is {what}, health check of peer {name} in upstream \"{group}\""));
}

impl Track {
    fn add(&mut self, passed: bool) {
        *self = match passed {
            true => Track { passed: self.passed.saturating_add(1), failed: 0, ..*self },
            false => Track { failed: self.failed.saturating_add(1), passed: 0, ..*self },
        };
    }
}

/// How long until the next check begins, counted from the beginning of this one.
pub fn pause(rhythm: &Rhythm, track: &Track, is_failing: bool) -> Duration {
    let interval = rhythm.interval;
    let unsettled = if is_failing { track.passed > 0 } else { track.failed > 0 };
    match track.failed {
        _ if unsettled => interval / FASTER,
        0..LONG_DOWN => interval,
        failed => {
            let slower = interval * if failed < LONG_DOWN * 3 { 2 } else { 4 };
            slower.min(SLOWEST.max(interval))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_while_a_peer_changes_and_slower_while_it_is_down() {
        let rhythm = Rhythm { interval: Duration::from_secs(8), ..Rhythm::default() };
        let next = |passed, failed, is_failing| pause(&rhythm, &Track { passed, failed, began_ms: 0 }, is_failing);
        assert_eq!(next(5, 0, false).as_secs(), 8);
        assert_eq!(next(0, 1, false).as_secs(), 2, "it may be going down");
        assert_eq!(next(0, 3, true).as_secs(), 8);
        assert_eq!(next(1, 0, true).as_secs(), 2, "it may be coming back");
        assert_eq!(next(0, LONG_DOWN, true).as_secs(), 16);
        assert_eq!(next(0, 3 * LONG_DOWN, true).as_secs(), 32);
        let slow = Rhythm { interval: Duration::from_secs(90), ..Rhythm::default() };
        assert_eq!(pause(&slow, &Track { passed: 0, failed: 99, began_ms: 0 }, true).as_secs(), 90);
    }
}
