//! The text of the `Date` field, formatted once a second and thread.

use runtime::clock::wall_seconds;
use std::cell::{Cell, RefCell};

thread_local! {
    static DATE_SECOND: Cell<i64> = const { Cell::new(i64::MIN) };
    static DATE: RefCell<[u8; 29]> = const { RefCell::new([0; 29]) };
}

/// The current time as an HTTP date (RFC 9110 section 5.6.7), formatted once a second and thread.
pub fn http_date() -> [u8; 29] {
    let now = wall_seconds();
    if DATE_SECOND.get() != now {
        DATE.set(wire::date::format_http(now));
        DATE_SECOND.set(now);
    }
    DATE.with_borrow(|d| *d)
}
