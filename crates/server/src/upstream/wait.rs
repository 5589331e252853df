//! A request in its group's queue: for a peer with room, or for room below `concurrency_limit`. From: `retry`.
//! Who is first is called when a connection ends; it looks now and then as well, since peers also come back by themselves.

use super::choose::{self, SelectedPeer, Selection};
use super::exchange::poll_client_gone;
use super::group::Group;
use super::queue::{InVain, Line};
use super::shed::{Permit, Refused, Shed};
use crate::request::Request;
use runtime::clock;
use runtime::timer::Timer;
use shield::limiter::Priority;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// How often the first in the row looks without having been called.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for a peer. The selection begins anew with every look.
pub(super) async fn for_peer(
    r: &mut Request,
    group: &Arc<Group>,
    line: &Line,
    selection: &mut Selection,
) -> Result<SelectedPeer, InVain> {
    until(r, line, |r| {
        *selection = Selection::begin(group).0;
        Ok(choose::choose(r, group, selection))
    })
    .await
}

/// Waits for room.
pub(super) async fn for_room(
    r: &mut Request,
    shed: &Arc<Shed>,
    line: &Line,
    priority: Priority,
) -> Result<Permit, InVain> {
    until(r, line, |_| match shed.enter(priority) {
        Ok(permit) => Ok(Some(permit)),
        Err(Refused::Breaker) => Err(InVain::NoRoom),
        Err(Refused::Concurrency) => Ok(None),
    })
    .await
}

/// Stands in the row until `look` has found something; only who is first looks.
async fn until<T>(
    r: &mut Request,
    line: &Line,
    mut look: impl FnMut(&mut Request) -> Result<Option<T>, InVain>,
) -> Result<T, InVain> {
    let place = line.queue.enter(line.most).ok_or(InVain::NoRoom)?;
    let end_ms = clock::monotonic_ms() + line.timeout.as_millis() as u64;
    let timer = Timer::new();
    loop {
        let left = Duration::from_millis(end_ms.saturating_sub(clock::monotonic_ms()));
        if left.is_zero() {
            return Err(InVain::NoRoom);
        }
        timer.set(left.min(LOOK));
        let gone = poll_fn(|cx| {
            if poll_client_gone(r, cx).is_ready() {
                return Poll::Ready(true);
            }
            if place.poll_called(cx).is_ready() || timer.poll_expired(cx).is_ready() {
                return Poll::Ready(false);
            }
            Poll::Pending
        })
        .await;
        if gone {
            return Err(InVain::ClientGone);
        }
        if place.is_first()
            && let Some(found) = look(r)?
        {
            return Ok(found);
        }
    }
}
