//! The clock of the examples that measure.

/// Nanoseconds that this thread has had of a processor: what else runs on the machine does not count.
pub(crate) fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
