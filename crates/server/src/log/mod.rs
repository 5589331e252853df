//! The error log, syslog, and the files that logs are written to.

pub mod error;
pub mod file;
pub mod syslog;

use crate::master::sys::{LocalTime, local_time as local};
use crate::worker::clock;
use error::{Errno, Level};
use std::io;

/// A system error without the parentheses: `2: No such file or directory`.
pub fn os_error(error: &io::Error) -> String {
    Errno(error).to_string().trim_start_matches('(').trim_end_matches(')').to_owned()
}

/// A line of the main error log, about no request.
pub fn process_line(level: Level, message: std::fmt::Arguments<'_>) {
    if error::default_enabled(level) {
        error::default_log().write(level, None, message);
    }
}

/// The host's name.
pub fn hostname() -> &'static str {
    syslog::hostname()
}

/// The current time in the host's time zone.
pub struct Now {
    seconds: i64,
    offset_minutes: i32,
}

/// See [`Now`].
pub fn local_time() -> Now {
    let seconds = clock::wall_seconds();
    let local: LocalTime = local(seconds);
    let as_utc = wire::date::days_from_civil(local.year as i64, local.month as u8, local.day as u8) * 86400
        + local.hour as i64 * 3600
        + local.minute as i64 * 60
        + local.second as i64;
    Now { seconds, offset_minutes: ((as_utc - seconds) / 60) as i32 }
}

impl Now {
    /// What local time is ahead of UTC.
    pub fn offset_seconds(&self) -> i64 {
        i64::from(self.offset_minutes) * 60
    }

    /// `20/Nov/2026:20:41:09 +0000`
    pub fn common(&self) -> [u8; 26] {
        wire::date::format_log(self.seconds, self.offset_minutes)
    }

    /// `2026-11-20T20:41:09+00:00`
    pub fn iso8601(&self) -> [u8; 25] {
        wire::date::format_iso8601(self.seconds, self.offset_minutes)
    }
}
