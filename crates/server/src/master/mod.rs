//! Processes.
pub mod sys;

use crate::settings::CpuSet;
pub use sys::tcp_info;

/// Pins the calling thread.
pub fn pin_thread(cpus: &CpuSet) {
    if let Err(e) = sys::pin_thread(&cpus.0) {
        crate::log::process_line(
            crate::log::error::Level::Alert,
            format_args!("sched_setaffinity() failed ({})", crate::log::os_error(&e)),
        );
    }
}

/// Whether the process has root's rights.
pub fn is_root() -> bool {
    sys::effective_uid() == 0
}

/// A user's id.
pub fn user_id(name: &str) -> Option<u32> {
    sys::user_by_name(name).map(|(uid, _)| uid)
}

/// A group's id.
pub fn group_id(name: &str) -> Option<u32> {
    sys::group_by_name(name)
}
