//! Outliers: a peer that fails much, or is much slower than the others, is set aside for a while (`outlier_ejection`; what
//! Envoy calls outlier detection). Looks at what requests found, so it costs them nothing. On the prober's thread.

use super::cause::Cause;
use crate::log::error::Level;
use crate::log::process_line;
use crate::upstream::availability::Role;
use crate::upstream::group::Group;
use crate::upstream::peer::Peer;
use runtime::{clock, timer};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often it is looked whether something is due.
const LOOK: Duration = Duration::from_millis(250);
/// A peer is only slower than the others if it is slower by so much, ms: below, it is noise.
const LEAST_GAP_MS: u64 = 5;
/// A peer that is ejected again and again stays out longer each time, so many times as long at most.
const LONGEST: u32 = 10;

/// `outlier_ejection`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outliers {
    /// Failures in a hundred that are too many.
    pub errors: Option<u64>,
    /// So many times the median of the group is too slow.
    pub latency: Option<u64>,
    /// Peers with fewer requests in an interval are not judged.
    pub requests: u64,
    /// How long requests are counted for one judgement.
    pub interval: Duration,
    /// How long a peer is out the first time.
    pub time: Duration,
    /// Peers in a hundred that may be out, whatever the reason.
    pub most: u64,
}

impl Default for Outliers {
    fn default() -> Outliers {
        Outliers {
            errors: None,
            latency: None,
            requests: 20,
            interval: Duration::from_secs(10),
            time: Duration::from_secs(30),
            most: 30,
        }
    }
}

/// What is kept of a peer between two judgements. Part of its state, so a reload does not begin anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Track {
    /// When the counts were taken (monotonic ms).
    since_ms: u64,
    before: Sample,
    /// When it comes back (monotonic ms); 0: it is not out.
    until_ms: u64,
    /// Ejections in a row.
    times: u32,
}

/// Counts of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    requests: u64,
    failed: u64,
    answers: u64,
    header_ms: u64,
}

impl Sample {
    fn of(peer: &Peer) -> Sample {
        let totals = peer.state.counts.totals();
        let failed = peer.state.unanswered.load(Relaxed) + totals.classes[4];
        Sample { requests: totals.requests, failed, answers: totals.responses, header_ms: totals.header_ms }
    }

    fn since(self, before: Sample) -> Sample {
        Sample {
            requests: self.requests.saturating_sub(before.requests),
            failed: self.failed.saturating_sub(before.failed),
            answers: self.answers.saturating_sub(before.answers),
            header_ms: self.header_ms.saturating_sub(before.header_ms),
        }
    }

    fn mean_ms(self) -> Option<u64> {
        self.header_ms.checked_div(self.answers)
    }
}

/// Watches a group until the task is ended.
pub async fn watch(group: Arc<Group>, rules: Outliers) {
    loop {
        timer::sleep(LOOK.min(rules.interval)).await;
        let tiers = group.tiers_now();
        look(&group, &rules, &tiers[0].peers, clock::monotonic_ms());
    }
}

fn look(group: &Group, rules: &Outliers, peers: &[Arc<Peer>], now_ms: u64) {
    let mut samples = Vec::new();
    for peer in peers.iter().filter(|p| p.role() != Role::Down) {
        let mut notes = peer.state.health.notes();
        let track = &mut notes.ejection;
        if track.until_ms != 0 {
            if now_ms >= track.until_ms {
                (track.until_ms, track.since_ms, track.before) = (0, now_ms, Sample::of(peer));
                notes.outlier = None;
                drop(notes);
                take_back(group, peer);
            }
            continue;
        }
        if track.since_ms == 0 {
            (track.since_ms, track.before) = (now_ms, Sample::of(peer));
        } else if now_ms - track.since_ms >= rules.interval.as_millis() as u64 {
            let sample = Sample::of(peer);
            samples.push((peer, sample.since(track.before)));
            (track.since_ms, track.before) = (now_ms, sample);
        }
    }
    samples.retain(|(_, s)| s.requests >= rules.requests);
    let median_ms = median(samples.iter().filter_map(|(_, s)| s.mean_ms()).collect());
    for (peer, sample) in &samples {
        match rules.judge(*sample, median_ms) {
            Some(cause) if has_room(rules, peers) => eject(group, rules, peer, cause, now_ms),
            Some(_) => {}
            None => peer.state.health.notes().ejection.times = 0,
        }
    }
}

/// The middle of at least three: of two nobody can say which is the odd one.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    (values.len() >= 3).then(|| values[(values.len() - 1) / 2])
}

/// Whether one peer more may be out. One always may, but never the last.
fn has_room(rules: &Outliers, peers: &[Arc<Peer>]) -> bool {
    let now_s = clock::monotonic_ms() / 1000;
    let is_out =
        |p: &&Arc<Peer>| p.role() != Role::Up || !p.state.availability.now().is_well() || p.is_set_aside(now_s);
    let out = peers.iter().filter(is_out).count();
    let most = (peers.len() as u64 * rules.most / 100).max(1) as usize;
    out < most && out + 1 < peers.len()
}

fn eject(group: &Group, rules: &Outliers, peer: &Peer, cause: Cause, now_ms: u64) {
    let text = cause.to_string();
    let mut notes = peer.state.health.notes();
    notes.outlier = Some(cause);
    let track = &mut notes.ejection;
    track.times = (track.times + 1).min(LONGEST);
    let time = rules.time * track.times;
    track.until_ms = now_ms + time.as_millis() as u64;
    drop(notes);
    peer.state.availability.set_ejected(true);
    peer.state.unavail.fetch_add(1, Relaxed);
    peer.state.note_use(peer.settings.policy);
    let (name, group, ms) = (&peer.name, &group.name, time.as_millis());
    process_line(Level::Warn, format_args!("peer {name} in upstream \"{group}\" is ejected for {ms} ms: {text}"));
}

fn take_back(group: &Group, peer: &Peer) {
    peer.state.availability.set_ejected(false);
    peer.state.recovered_ms.store(clock::monotonic_ms(), Relaxed);
    peer.state.note_use(peer.settings.policy);
    let (name, group) = (&peer.name, &group.name);
    process_line(Level::Notice, format_args!("peer {name} in upstream \"{group}\" is taken back"));
}

/// A group that has no rules any more takes back whom it ejected.
pub fn forget(group: &Group, peer: &Peer) {
    if !peer.state.availability.now().is_ejected() {
        return;
    }
    let mut notes = peer.state.health.notes();
    notes.ejection = Track::default();
    notes.outlier = None;
    drop(notes);
    take_back(group, peer);
}

impl Outliers {
    fn judge(&self, sample: Sample, median_ms: Option<u64>) -> Option<Cause> {
        let percent = (sample.failed * 100).checked_div(sample.requests)?.min(100);
        if let Some(limit) = self.errors.filter(|limit| percent >= *limit) {
            return Some(Cause::Errors { percent, limit });
        }
        let (factor, mean_ms, median_ms) = (self.latency?, sample.mean_ms()?, median_ms?);
        let slow = mean_ms >= median_ms * factor && mean_ms >= median_ms + LEAST_GAP_MS;
        slow.then_some(Cause::Latency { mean_ms, median_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_slowness_are_judged_by_their_limits() {
        let rules = Outliers { errors: Some(50), latency: Some(3), ..Outliers::default() };
        let sample = |failed, header_ms| Sample { requests: 100, failed, answers: 100, header_ms };
        assert_eq!(rules.judge(sample(49, 1000), Some(10)), None);
        assert_eq!(rules.judge(sample(50, 1000), Some(10)), Some(Cause::Errors { percent: 50, limit: 50 }));
        let slow = Some(Cause::Latency { mean_ms: 30, median_ms: 10 });
        assert_eq!(rules.judge(sample(0, 3000), Some(10)), slow);
        assert_eq!(rules.judge(sample(0, 3000), None), None);
        assert_eq!(rules.judge(sample(0, 400), Some(1)), None, "four milliseconds are noise");
        assert_eq!((median(vec![1, 9]), median(vec![9, 1, 5]), median(vec![4, 1, 2, 3])), (None, Some(5), Some(2)));
    }
}
