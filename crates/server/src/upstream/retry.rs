//! Asks peers of a group until one gives an answer to pass on (`proxy_next_upstream`).

use super::choose::SelectedPeer;
use super::exchange::{self, Answer};
use super::failure::{Failure, Side};
use super::job::{Job, JobBody};
use super::queue::InVain;
use super::settings::{UpstreamSettings, next};
use super::shed::{Permit, Refused};
use super::tries::Tries;
use super::wait;
use crate::connection::action;
use crate::health::passive;
use crate::log_error;
use crate::modules;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};
use crate::status::spent::Part;
use runtime::clock;

/// How often an idle connection may turn out to be dead before a fresh one is opened.
const STALE_TRIES: usize = 1;

/// Finds an answer. On `Err` the verdict is what the content handler has to return.
pub async fn find_answer(r: &mut Request, job: &mut Job, conf: &UpstreamSettings) -> Result<Answer, Verdict> {
    let mut permit = admit(r, job).await?;
    let mut tries = Tries::begin(&job.group, conf).await;
    loop {
        r.action = action::CONNECTING;
        r.spent.enter(Part::Connect);
        let chosen = choose_or_wait(r, job, &mut tries).await?;
        if r.has_fault() {
            // Something in what would be sent, or in the key that chose, has no value.
            return Err(Verdict::Status(500));
        }
        if let Some(status) = tries.refused() {
            return Err(refused(r, job, &tries, status));
        }
        let Some(chosen) = chosen else { return Err(no_live_upstreams(r, job, &tries)) };
        if let Some(changes) = tries.changes() {
            job.change(r, *changes)?;
        }
        let job = &*job;
        tries.start(r, &chosen);
        let began = clock::monotonic_ms();
        let mut chosen = chosen;
        chosen.permit = permit.take().into();
        let mut stale = 0;
        let (failure, chosen) = loop {
            match exchange::ask(r, job, conf, chosen, stale >= STALE_TRIES).await {
                Ok(answer) => match judge(r, job, conf, &tries) {
                    None => {
                        answer.chosen.head_came(r.attempts.head.status, r.attempts.current().header_ms);
                        if let Some(sticky) = &job.group.sticky {
                            sticky.answered(r, &answer.chosen.peer.session_id());
                        }
                        return Ok(answer);
                    }
                    Some(kind) => {
                        let failure = Failure::of(kind, true, false);
                        let Answer { chosen, .. } = answer;
                        chosen.head_came(r.attempts.head.status, r.attempts.current().header_ms);
                        break (failure, chosen);
                    }
                },
                Err((f, c)) if f.stale && may_repeat(r, conf, job, f.request_sent) && stale < STALE_TRIES => {
                    stale += 1;
                    chosen = c;
                    // What the dead connection took is nobody's request.
                    r.attempts.current().sent = 0;
                }
                Err(failed) => break failed,
            }
        };
        let attempt = r.attempts.current();
        attempt.response_ms = Some(clock::monotonic_ms() - began);
        if let Side::Over(status) = failure.side {
            // That is no word of the peer's: `$upstream_status` has none of it.
            r.spent.enter(Part::Own);
            r.flow.aborted |= status == 499;
            return Err(Verdict::Status(status));
        }
        attempt.status = status_of(failure.kind);
        let status = attempt.status;
        let is_its_fault = failure.is_peers_fault() && !matches!(failure.kind, next::HTTP_403 | next::HTTP_404);
        permit = chosen.permit.take();
        if let Some(permit) = &mut permit {
            if is_its_fault {
                permit.failed();
            }
            permit.again();
        }
        if is_its_fault {
            passive::failed(&chosen.peer, failure.kind, r.attempts.head.status, r.attempts.current(), conf);
        }
        if is_its_fault {
            tries.failed(r, &job.group, &chosen);
        }
        log_error!(r, Debug, "http next upstream, {:x}", failure.kind << 1);
        let wanted = *conf.next_upstream & failure.kind != 0;
        if tries.is_over() || !wanted || !may_repeat(r, conf, job, failure.request_sent) {
            r.action = action::SENDING_TO_CLIENT;
            r.spent.enter(Part::Own);
            r.attempts.failed = failure.kind;
            return Err(Verdict::Status(status));
        }
    }
}

/// Lets a request in, as far as the group can do more (`concurrency_limit`, `circuit_breaker`); it may wait for that (`queue`).
async fn admit(r: &mut Request, job: &Job) -> Result<Option<Permit>, Verdict> {
    let Some(shed) = &job.group.shed else { return Ok(None) };
    let priority = modules::shed::priority_of(r);
    // Nobody overtakes those that wait.
    let line = job.group.queue.as_ref();
    let refused = if line.is_some_and(|line| !line.queue.is_empty()) {
        Refused::Concurrency
    } else {
        match shed.enter(priority) {
            Ok(permit) => return Ok(Some(permit)),
            Err(refused) => refused,
        }
    };
    if refused == Refused::Concurrency
        && let Some(line) = line
    {
        r.spent.enter(Part::Queue);
        let waited = Box::pin(wait::for_room(r, shed, line, priority)).await;
        r.spent.enter(Part::Own);
        match waited {
            Ok(permit) => return Ok(Some(permit)),
            Err(InVain::ClientGone) => {
                r.flow.aborted = true;
                return Err(Verdict::Status(499));
            }
            Err(InVain::NoRoom) => {}
        }
    }
    r.attempts.failed = next::HTTP_503;
    Err(match refused {
        Refused::Concurrency => {
            shed.refuse();
            modules::shed::refuse(r, "concurrency")
        }
        Refused::Breaker => modules::shed::refuse(r, "breaker"),
    })
}

/// A peer; the first choice of a request may wait for one (`queue`).
async fn choose_or_wait(r: &mut Request, job: &Job, tries: &mut Tries) -> Result<Option<SelectedPeer>, Verdict> {
    let Some(line) = job.group.queue.as_ref().filter(|_| tries.selection.is_fresh() && job.group.balancer.is_none())
    else {
        return Ok(tries.choose(r, &job.group));
    };
    // Nobody overtakes those that wait.
    if line.queue.is_empty()
        && let Some(chosen) = tries.choose(r, &job.group)
    {
        return Ok(Some(chosen));
    }
    r.spent.enter(Part::Queue);
    let waited = Box::pin(wait::for_peer(r, &job.group, line, &mut tries.selection)).await;
    r.spent.enter(Part::Connect);
    match waited {
        Ok(chosen) => Ok(Some(chosen)),
        Err(InVain::NoRoom) => Ok(None),
        Err(InVain::ClientGone) => {
            r.flow.aborted = true;
            Err(Verdict::Status(499))
        }
    }
}

/// A program refuses the request.
fn refused(r: &mut Request, job: &Job, tries: &Tries, status: u16) -> Verdict {
    if status == 502 {
        return no_live_upstreams(r, job, tries);
    }
    r.action = action::SENDING_TO_CLIENT;
    r.spent.enter(Part::Own);
    Verdict::Status(status)
}

fn no_live_upstreams(r: &mut Request, job: &Job, tries: &Tries) -> Verdict {
    tries.no_live_upstreams(r, &job.group, 502);
    r.action = action::SENDING_TO_CLIENT;
    r.spent.enter(Part::Own);
    r.attempts.failed = next::NO_LIVE;
    Verdict::Status(502)
}

/// A request that was sent may only be repeated when that does no harm, and when its body is still there.
fn may_repeat(r: &Request, conf: &UpstreamSettings, job: &Job, sent: bool) -> bool {
    if !sent {
        return true;
    }
    if matches!(job.body, JobBody::Stream { .. }) {
        return false;
    }
    let harmful = matches!(r.head.method, Method::Post | Method::Lock | Method::Patch);
    !harmful || *conf.next_upstream & next::NON_IDEMPOTENT != 0
}

/// Whether an answer's status is a reason to ask another peer.
fn judge(r: &Request, job: &Job, conf: &UpstreamSettings, tries: &Tries) -> Option<u32> {
    let kind = next::of_status(r.attempts.head.status)?;
    let wanted = *conf.next_upstream & kind != 0;
    (wanted && tries.may_go_on() && may_repeat(r, conf, job, true)).then_some(kind)
}

fn status_of(kind: u32) -> u16 {
    match kind {
        next::TIMEOUT | next::HTTP_504 => 504,
        next::HTTP_500 => 500,
        next::HTTP_503 => 503,
        next::HTTP_403 => 403,
        next::HTTP_404 => 404,
        next::HTTP_429 => 429,
        _ => 502,
    }
}
