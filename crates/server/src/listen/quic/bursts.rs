//! Congestion control (CUBIC) that opens its window by strides: a client that acknowledges every few packets would otherwise be
//! answered with as few, each time by a call of its own. Around: `transport`.

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// What one call sends.
const WORTH_A_CALL: u64 = 64 * 1024;
/// So much of the window stays in flight, as a divisor: acknowledgements of the rest are on their way.
const SHARE: u64 = 4;

/// Makes the controllers of connections.
pub(super) struct Bursts;

struct Controlled {
    inner: Box<dyn Controller>,
    /// There is room, but not enough to be worth a call: nothing is to go out beside these bytes in flight.
    held: Option<u64>,
}

impl ControllerFactory for Bursts {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::new(CubicConfig::default()).build(now, current_mtu);
        Box::new(Controlled { inner, held: None })
    }
}

impl Controller for Controlled {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        let window = self.inner.window();
        let room = window.saturating_sub(in_flight);
        // Who had nothing to send has no reason to wait with what comes now.
        self.held = (!app_limited && room < WORTH_A_CALL.min(window / SHARE)).then_some(in_flight);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        // What is in flight now is not known here.
        self.held = None;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
        self.held = None;
    }

    fn window(&self) -> u64 {
        self.held.unwrap_or_else(|| self.inner.window())
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Controlled { inner: self.inner.clone_box(), held: self.held })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_by_strides() {
        let now = Instant::now();
        let mut controller = Arc::new(Bursts).build(now, 1200);
        let whole = controller.window();
        let nearly = whole - whole / SHARE + 1;
        for (in_flight, app_limited, window) in
            [(nearly, false, nearly), (nearly - 1, false, whole), (nearly, true, whole), (whole + 1, false, whole + 1)]
        {
            controller.on_end_acks(now, in_flight, app_limited, None);
            assert_eq!(controller.window(), window, "{in_flight} {app_limited}");
        }
        controller.on_congestion_event(now, now, false, 1);
        assert!(controller.window() < whole);
    }
}
