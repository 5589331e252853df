//! `traceparent`: whatever comes, a parent that is read is written the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::trace_context::{format, parse};

fuzz_target!(|header: &[u8]| {
    if let Some(parent) = parse(header) {
        let written = format(&parent.trace, &parent.span, parent.sampled);
        assert_eq!(parse(&written), Some(parent));
        assert_eq!(written[3..52], header[3..52]);
    }
});
