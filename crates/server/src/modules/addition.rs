//! Other answers before and after an answer (nginx's `ngx_http_addition_filter_module`): `add_before_body`,
//! `add_after_body`.

use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::{Directive, http};
use crate::merged_values;
use crate::request::Request;
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::include::Include;
use crate::request::respond::Filtered;
use crate::request::subrequest;
use std::io;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("add_before_body", |s, n| {
        setters::value(&mut s.level.conf.addition.add_before_body, n, n.args[0].text.as_slice().into())
    }),
    http("add_after_body", |s, n| {
        setters::value(&mut s.level.conf.addition.add_after_body, n, n.args[0].text.as_slice().into())
    }),
    http("addition_types", |s, n| TypeSet::set(&mut s.level.conf.addition.addition_types, s.build, n, "text/html")),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The uri of what comes first.
        add_before_body: Arc<[u8]> = Arc::from(&b""[..]),
        /// The uri of what comes last.
        add_after_body: Arc<[u8]> = Arc::from(&b""[..]),
        /// The types of answers that get it.
        addition_types: TypeSet = TypeSet::of(&["text/html"]),
    }
}

crate::inherited!(Conf, |_| true);

impl Conf {
    /// Whether anything comes before or after an answer.
    pub fn adds(&self) -> bool {
        !self.add_before_body.is_empty() || !self.add_after_body.is_empty()
    }
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    if r.answer.headers.status != 200 || !r.is_main() {
        return Filtered::Next;
    }
    let conf = &r.conf().addition;
    if !conf.adds() || !conf.addition_types.fits(r) {
        return Filtered::Next;
    }
    let (before, after) = (Arc::clone(&conf.add_before_body), Arc::clone(&conf.add_after_body));
    r.clear_content_length();
    r.clear_accept_ranges();
    r.weaken_etag();
    r.answer.deferred.get_or_insert_default();
    r.answer.body_filters.push(Box::new(Addition { before: Some(before), after }));
    Filtered::Next
}

struct Addition {
    /// Until the body begins.
    before: Option<Arc<[u8]>>,
    after: Arc<[u8]>,
}

impl BodyFilter for Addition {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if let Some(uri) = self.before.take() {
            add(r, &uri, &mut rest)?;
        }
        if !last || self.after.is_empty() {
            return rest.push(r, chunk, last);
        }
        rest.push(r, chunk, false)?;
        add(r, &self.after, &mut rest)?;
        rest.push(r, Chunk::Bytes(b""), true)
    }
}

fn add(r: &mut Request, uri: &[u8], rest: &mut Rest<'_>) -> io::Result<()> {
    if uri.is_empty() {
        return Ok(());
    }
    if !subrequest::is_allowed(r, uri) {
        return Err(io::Error::other("the subrequest was refused"));
    }
    rest.include(r, Include { uri: uri.into(), args: [].into(), set: None, stub: None, own: None })
}
