//! The error log, syslog, and the files that logs are written to.

pub mod captured;
pub mod error;
pub mod file;
mod floods;
pub mod lines;
pub mod memory;
pub mod opened;
pub mod syslog;
pub mod timed;

use crate::master::sys::local_time as local;
use error::{Errno, Level};
use runtime::clock;
use std::cell::Cell;
use std::io;

/// A system error without the parentheses: `2: No such file or directory`.
pub fn os_error(error: &io::Error) -> String {
    Errno(error).to_string().trim_start_matches('(').trim_end_matches(')').to_owned()
}

/// What a read from a connection failed with; `call` is the one that nginx makes without TLS.
pub fn read_error(call: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => format!("SSL_read() failed (SSL: {error})"),
        _ => format!("{call} failed ({})", os_error(error)),
    }
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

/// The current time in the host's time zone, as log lines have it.
#[derive(Clone, Copy)]
pub struct Now {
    /// `20/Nov/2026:20:41:09 +0000`
    pub common: [u8; 26],
    /// `2026-11-20T20:41:09+00:00`
    pub iso8601: [u8; 25],
}

thread_local! {
    static NOW: Cell<(i64, Now)> = const { Cell::new((i64::MIN, Now { common: [0; 26], iso8601: [0; 25] })) };
}

/// See [`Now`]; formatted once a second and thread.
pub fn local_time() -> Now {
    let seconds = clock::wall_seconds();
    let (known, now) = NOW.get();
    if known == seconds {
        return now;
    }
    let offset = local(seconds).offset_minutes;
    let now =
        Now { common: wire::date::format_log(seconds, offset), iso8601: wire::date::format_iso8601(seconds, offset) };
    NOW.set((seconds, now));
    now
}

/// When the clock shows a time of day next, in seconds since 1970 (`ngx_next_time`, but for nights when clocks are
/// changed).
pub fn next_at(second_of_day: i64) -> i64 {
    const DAY: i64 = 24 * 60 * 60;
    let seconds = clock::wall_seconds();
    let offset = local(seconds).offset_minutes as i64 * 60;
    let midnight = (seconds + offset).div_euclid(DAY) * DAY - offset;
    let at = midnight + second_of_day;
    if at > seconds { at } else { at + DAY }
}

/// What local time is ahead of UTC, in seconds.
pub fn offset_seconds() -> i64 {
    local(clock::wall_seconds()).offset_minutes as i64 * 60
}
