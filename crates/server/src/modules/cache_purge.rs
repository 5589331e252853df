//! `proxy_cache_purge ZONE KEY`: a location whose requests take answers out of a cache (`ngx_cache_purge`). The forms in which
//! the directive stands beside `proxy_cache` are in `cache::purge`.

use crate::cache::Cache;
use crate::cache::purge::{self, Style};
use crate::config::Scope;
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use std::sync::Arc;

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// The cache and the key.
    purges: Option<Arc<(Box<[u8]>, Complex)>>,
}

impl Conf {
    /// Blocks inside that have the location's handler have its values.
    pub fn merge(&mut self, parent: &Conf) {
        if self.purges.is_none() {
            self.purges.clone_from(&parent.purges);
        }
    }
}

crate::inherited!(Conf, |_| true);

/// Whether the words are a zone and a key: then the location is one that purges.
pub fn takes(scope: &mut Scope<'_, '_>, node: &Node) -> Result<bool, Problem> {
    let [zone, key] = node.args.as_slice() else { return Ok(false) };
    let is_zone = scope.build.main.cache.caches.iter().any(|cache| *cache.zone.name == *zone.text);
    if !is_zone || !scope.level.context.intersects(conf::Contexts::LOCATION) {
        return Ok(false);
    }
    let key = Complex::compile(scope.build, key)?;
    let conf = &mut scope.level.conf;
    conf.cache_purge.purges = Some(Arc::new((zone.text.as_slice().into(), key)));
    conf.core.handler = Some(Content::Later(handler));
    Ok(true)
}

fn handler(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let snapshot = r.snapshot.clone();
        let Some(purges) = r.conf().cache_purge.purges.clone() else { return Verdict::Decline };
        let cache = snapshot.main.cache.caches.iter().find(|cache| *cache.zone.name == *purges.0).cloned();
        let Some(cache) = cache else {
            log_error!(r, Error, "cache \"{}\" not found", String::from_utf8_lossy(&purges.0));
            return Verdict::Status(500);
        };
        let key = purges.1.eval(r);
        if r.has_fault() {
            return Verdict::Status(500);
        }
        answer(r, cache, key, Style::Page).await
    })
}

/// Purges what a key names, and answers.
pub async fn answer(r: &mut Request, cache: Arc<Cache>, key: Text, style: Style) -> Verdict {
    if let Err(status) = crate::request::body::discard_arrived(r) {
        return Verdict::Status(status);
    }
    let found = match r.get(key).strip_suffix(b"*") {
        Some(prefix) => {
            let keys = purge::Keys::From(prefix.to_vec());
            crate::service::blocking(move || purge::all(&cache, &keys)).await.unwrap_or(0) > 0
        }
        // Its variants have names of their own, which only their files tell.
        None if purge::varies(&cache, r.get(key)) => {
            let keys = purge::Keys::One(r.get(key).to_vec());
            crate::service::blocking(move || purge::all(&cache, &keys)).await.unwrap_or(0) > 0
        }
        None => purge::exact(&cache, r.get(key)),
    };
    match (found, style) {
        (false, _) => Verdict::Status(404),
        (true, Style::Plus) => r.respond(204, b""),
        (true, Style::Page) => {
            let mut page = b"<html>\r\n<head><title>Successful purge</title></head>\r\n<body>\r\n<center><h1>Successful purge</h1>\r\n<br>Key : ".to_vec();
            wire::http1::escape::escape_html(r.get(key), &mut page);
            page.extend_from_slice(b"\r\n</center>\r\n</body>\r\n</html>\r\n");
            r.answer.headers.content_type = Some(Text::from("text/html"));
            r.respond(200, &page)
        }
    }
}
