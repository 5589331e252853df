//! `prometheus`: what is counted, in the text format that Prometheus scrapes (version 0.0.4), as a content handler. The
//! names are those of nginx's exporter where it has the number, so that its dashboards work.

use crate::api::memory;
use crate::config::{Directive, http};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, Text, body};
use crate::status::metrics;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("prometheus", |s, _| {
    s.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
})];

fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        if !matches!(r.head.method, Method::Get | Method::Head) {
            return Verdict::Status(405);
        }
        if let Err(status) = body::discard_arrived(r) {
            return Verdict::Status(status);
        }
        let snapshot = r.snapshot.whole().clone();
        // Of a thousand peers it is long: nobody waits for it here.
        let page = move || async move {
            let mut page = metrics::Page { text: metrics::page(&snapshot) };
            memory::add_metrics(&mut page, &snapshot);
            memory::add_port_metrics(&mut page);
            page.text
        };
        match crate::service::ask(page).await {
            Some(page) => {
                r.answer.headers.content_type = Some(Text::from("text/plain; version=0.0.4; charset=utf-8"));
                r.respond(200, page.as_bytes())
            }
            None => Verdict::Status(500),
        }
    })
}
