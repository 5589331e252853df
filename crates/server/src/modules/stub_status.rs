//! Counts of connections and requests as a short text (nginx's `ngx_http_stub_status_module`).

use crate::config::{Directive, http};
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request, Text};
use crate::worker::counters;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("stub_status", |s, _| {
    s.level.conf.core.handler = Some(Content::Now(handler));
    Ok(())
})];

fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let page = page(&crate::listen::silent::with(&r.snapshot.listens));
    r.answer.headers.content_type = Some(Text::from("text/plain"));
    r.respond(200, page.as_bytes())
}

fn page(sum: &counters::Sum) -> String {
    format!(
        "Active connections: {} \nserver accepts handled requests\n {} {} {} \nReading: {} Writing: {} Waiting: {} \n",
        sum.active, sum.accepted, sum.handled, sum.requests, sum.reading, sum.writing, sum.waiting
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_text_that_scripts_read() {
        let sum =
            counters::Sum { accepted: 16, handled: 15, requests: 31, active: 6, reading: 1, writing: 2, waiting: 3 };
        let expected =
            "Active connections: 6 \nserver accepts handled requests\n 16 15 31 \nReading: 1 Writing: 2 Waiting: 3 \n";
        assert_eq!(page(&sum), expected);
    }
}
