//! `proxy_cache_purge ZONE KEY`: a location whose requests take answers out of a cache (`ngx_cache_purge`). The forms in which
//! the directive stands beside `proxy_cache` are in `cache::purge`.

use crate::cache::Cache;
use crate::cache::purge::{self, Style};
use crate::config::complex::Complex;
use crate::config::setting::Setting;
use crate::config::{Directive, Scope, http, setters};
use crate::log_error;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives: `proxy_cache_purge` and its like are those of the caches.
pub const DIRECTIVES: &[Directive] = &[http("cache_purge_response_type", |s, n| {
    setters::one_of(&mut s.level.conf.cache_purge.cache_purge_response_type, n, &Form::WORDS)
})];

/// The form of the page that says what was purged (nginx-modules' `ngx_cache_purge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A page for people.
    #[default]
    Html,
    /// JSON.
    Json,
    /// XML.
    Xml,
    /// A line of text.
    Text,
}

impl Form {
    const WORDS: [(&'static str, Form); 4] =
        [("html", Form::Html), ("json", Form::Json), ("xml", Form::Xml), ("text", Form::Text)];

    /// The page, and its media type.
    fn page(self, key: &[u8]) -> (Vec<u8>, &'static str) {
        let (before, after, media_type) = match self {
            Form::Html => {
                let before = "<html>\r\n<head><title>Successful purge</title></head>\r\n<body>\r\n<center><h1>Successful purge</h1>\r\n<br>Key : ";
                (before, "\r\n</center>\r\n</body>\r\n</html>\r\n", "text/html")
            }
            Form::Json => ("{\"Key\": ", "}", "application/json"),
            Form::Xml => {
                ("<?xml version=\"1.0\" encoding=\"UTF-8\"?><status><Key><![CDATA[", "]]></Key></status>", "text/xml")
            }
            Form::Text => ("Key:", "\n", "text/plain"),
        };
        let mut page = before.as_bytes().to_vec();
        match self {
            Form::Html => wire::http1::escape::escape_html(key, &mut page),
            Form::Json => {
                page.extend_from_slice(serde_json::Value::from(String::from_utf8_lossy(key)).to_string().as_bytes())
            }
            // A section of CDATA cannot have its own end in it.
            Form::Xml => {
                page.extend_from_slice(String::from_utf8_lossy(key).replace("]]>", "]]]]><![CDATA[>").as_bytes())
            }
            Form::Text => page.extend_from_slice(key),
        }
        page.extend_from_slice(after.as_bytes());
        (page, media_type)
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    cache_purge_response_type: Setting<Form>,
    /// The cache and the key.
    purges: Option<Arc<(Box<[u8]>, Complex)>>,
}

impl Conf {
    /// Blocks inside that have the location's handler have its values.
    pub fn merge(&mut self, parent: &Conf) {
        self.cache_purge_response_type.inherit(&parent.cache_purge_response_type);
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
    let form = &r.conf().cache_purge.cache_purge_response_type;
    match (found, style) {
        // That fork says so since it has the directive (2.5), and 404 before.
        (false, Style::Page) if form.is_set() => Verdict::Status(412),
        (false, _) => Verdict::Status(404),
        (true, Style::Plus) => r.respond(204, b""),
        (true, Style::Page) => {
            let (page, media_type) = (**form).page(r.get(key));
            r.answer.headers.content_type = Some(Text::from(media_type));
            r.respond(200, &page)
        }
    }
}
