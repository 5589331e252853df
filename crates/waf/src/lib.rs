//! A web application firewall's engine: rules in SecLang (ModSecurity's language, version 3) and transactions that they judge.
//!
//! It knows no socket, no clock and no thread: bytes, addresses and the time are arguments. The way of the data, with types and
//! files, is in `docs/waf.md`.
//!
//! ```
//! use std::sync::Arc;
//! use waf::{Connection, Disk, Now, Rules, Source, Transaction};
//!
//! let text = br#"SecRuleEngine On
//! SecRule ARGS:q "@contains <script" "id:1,phase:1,deny,status:403,t:lowercase,msg:'script in a query'""#;
//! let rules = Rules::load(&[Source { name: "example.conf", text }], &Disk).expect("a rule set");
//! let mut transaction = Transaction::new(Arc::new(rules), None, Now { epoch_ms: 0, utc_offset_s: 0 });
//! transaction.connection(&Connection { client: "192.0.2.1".parse().ok(), ..Connection::default() });
//! assert!(transaction.uri(b"GET", b"/?q=%3CScript%3E", b"HTTP/1.1").is_none());
//! let refused = transaction.request_headers([(&b"Host"[..], &b"example.org"[..])]).expect("an intervention");
//! assert_eq!(refused.status, 403);
//! ```

mod audit;
mod body;
mod expand;
mod gate;
mod geo;
mod keyed;
pub mod limits;
mod memo;
mod names;
mod operator;
mod prefilter;
mod problem;
mod rule;
mod rules;
mod seclang;
mod select;
mod settings;
mod settled;
mod store;
mod texts;
mod transaction;
mod transform;
mod variable;
mod watchers;

pub use problem::{Place, Problem};
pub use rule::Sanitise;
pub use rules::{Rules, Source};
pub use seclang::files::{Bundle, Disk, Files};
pub use settings::{AuditEngine, Engine, LimitAction, Settings, XmlArguments};
pub use store::{Kept, Memory, Store, Update, Variables};
pub use transaction::{Connection, Fault, Intervention, Match, Now, Transaction};
pub use variable::Stored;

/// What fuzz targets call: parsers of outside bytes, none of which may panic or take long.
pub mod fuzz {
    use super::*;

    /// Reads a rule text with no files around.
    pub fn rules(text: &[u8]) {
        drop(Rules::load(&[Source { name: "fuzz.conf", text }], &Bundle::default()));
    }

    /// Reads a body with a boundary of `X`.
    pub fn multipart(body: &[u8]) {
        let read = body::multipart::parse(body, b"multipart/form-data; boundary=X");
        let total: usize = read.parts.iter().map(|p| p.content.len()).sum();
        assert!(total <= body.len(), "parts do not overlap");
    }

    /// Reads the value of a `Content-Type` and a body.
    pub fn multipart_with(content_type: &[u8], body: &[u8]) {
        body::multipart::parse(body, content_type);
    }

    /// Reads JSON.
    pub fn json(text: &[u8]) {
        drop(body::json::parse(text, limits::MAX_JSON_DEPTH, limits::ARGUMENTS, &mut |_, _| {}));
    }

    /// Asks libinjection of a value: one that is long is judged as libinjection judges all of it, or is not decided.
    pub fn sqli(text: &[u8]) {
        operator::sqli_agrees(text);
    }

    /// Reads XML.
    pub fn xml(text: &[u8]) {
        drop(body::xml::parse(text, None));
        let arguments = body::xml::Arguments { left: limits::ARGUMENTS, give: &mut |_, _| {} };
        drop(body::xml::parse(text, Some(arguments)));
    }

    /// Reads arguments.
    pub fn urlencoded(text: &[u8]) {
        body::urlencoded::parse(text, b'&', limits::ARGUMENTS, |_, _| {});
    }

    /// Applies a transformation, chosen by a number, to a value.
    pub fn transform(which: u8, text: &[u8]) {
        let mut out = Vec::new();
        transform::by_number(which).apply(text, None, &mut out);
    }
}
