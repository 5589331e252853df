//! Who could not accept for lack of descriptors, and who tells them that there is one again.

use runtime::TaskId;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// How long a thread that is out of descriptors waits at most before it tries to accept again: other threads may have closed some.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(20);

thread_local! {
    /// Those who could not accept for lack of descriptors.
    static WITHOUT: RefCell<Vec<TaskId>> = const { RefCell::new(Vec::new()) };
}

/// A connection of the thread was closed: whoever ran out of descriptors tries again at once.
pub fn one_is_free() {
    // The thread's storage may be gone already when a thread ends.
    let _ = WITHOUT.try_with(|waiting| waiting.borrow_mut().drain(..).for_each(runtime::wake));
}

/// Waits for a descriptor to be closed.
pub(super) async fn wait() {
    WITHOUT.with_borrow_mut(|waiting| waiting.push(runtime::current()));
    let timer = Timer::new();
    timer.set(OUT_OF_DESCRIPTORS);
    let mine = runtime::current();
    let is_free = || WITHOUT.with_borrow(|waiting| !waiting.contains(&mine));
    poll_fn(|cx| if is_free() { Poll::Ready(()) } else { timer.poll_expired(cx) }).await;
    WITHOUT.with_borrow_mut(|waiting| waiting.retain(|task| *task != mine));
}
