//! `dashboard`: a page in the browser that draws what the API says. One self-contained document, part of the binary; it asks
//! the API of the same server (`/api`, or the path that is given) once a second. Source: `dashboard/` (docs/decisions/0013).

use crate::config::{Directive, Scope, http, setters};
use crate::merged_values;
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request, Text, body};
use aws_lc_rs::digest;
use conf::{Node, Problem};
use std::sync::{Arc, LazyLock};
use wire::encoding::{Alphabet, base64_encode};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("dashboard", directive)];

/// Where the API is unless it is said.
const API: &str = "/api";

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Where the API is.
        api: Arc<str> = API.into(),
    }
}

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/", $name))
    };
}

/// The page's script: files in this order share one scope.
const SCRIPT: &[&str] = &[
    source!("vendor/uPlot.iife.min.js"),
    "(() => {\n\"use strict\";\n",
    source!("app/format.js"),
    source!("app/numbers.js"),
    source!("app/view.js"),
    source!("app/charts.js"),
    source!("app/main.js"),
    "})();",
];

struct Page {
    /// The document, but for the API's path.
    document: String,
    /// What the browser may do with it: run this script, and ask this server.
    policy: String,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let script = SCRIPT.concat();
    let style = [source!("vendor/uPlot.min.css"), source!("style.css")].concat();
    let mut hash = Vec::new();
    base64_encode(digest::digest(&digest::SHA256, script.as_bytes()).as_ref(), Alphabet::Standard, &mut hash);
    let hash = String::from_utf8_lossy(&hash);
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = source!("page.html").replace("@STYLE@", &style).replace("@SCRIPT@", &script);
    Page { document: page, policy }
});

fn directive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if let Some(word) = node.args.first() {
        let path = word.text.strip_prefix(b"api=").filter(|p| p.first() == Some(&b'/'));
        let path = path.ok_or_else(|| node.problem(format!("invalid parameter \"{}\"", word.as_str())))?;
        let mut escaped = Vec::new();
        wire::http1::escape::escape_html(path, &mut escaped);
        setters::value(&mut scope.level.conf.dashboard.api, node, String::from_utf8_lossy(&escaped).into())?;
    }
    scope.level.conf.core.handler = Some(Content::Now(handler));
    Ok(())
}

fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    if let Err(status) = body::discard_arrived(r) {
        return Verdict::Status(status);
    }
    let page = PAGE.document.replacen("@API@", &r.conf().dashboard.api, 1);
    r.answer.headers.content_type = Some(Text::from("text/html; charset=utf-8"));
    for (name, value) in [
        ("Content-Security-Policy", PAGE.policy.as_str()),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    ] {
        r.answer.headers.push(Text::from(name), Text::Fixed(value.as_bytes()));
    }
    r.respond(200, page.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_asks_nobody_else() {
        let page = &PAGE.document;
        assert!(page.contains("uPlot") && page.contains("async function look()") && page.contains(".tiles"));
        assert!(!page.contains("@SCRIPT@") && !page.contains("@STYLE@") && page.matches("@API@").count() == 1);
        assert!(!page.contains("src=\"") && !page.contains("<link rel=\"stylesheet\""), "nothing is loaded");
        assert!(page.len() < 130_000, "{}", page.len());
    }
}
