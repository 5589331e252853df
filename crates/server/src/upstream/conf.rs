//! What every module with an upstream keeps for a level of the configuration, whatever its peers speak: nginx's
//! `ngx_http_upstream_conf_t`. What a protocol needs beside it is the module's.

use super::directives::parse_local;
use super::rewrite::Rewrites;
use super::settings::{SslSettings, UpstreamSettings};
use crate::cache::settings::CacheSettings;
use crate::log_error;
use crate::request::Request;
use crate::request::headers::KnownHeader as K;
use std::net::SocketAddr;
use std::sync::Arc;

/// The values of one level.
#[derive(Clone, Debug, Default)]
pub struct UpstreamConf {
    settings: UpstreamSettings,
    /// `*_cache` and its like.
    pub cache: CacheSettings,
    /// `*_ssl_*`
    pub ssl: SslSettings,
    /// A 404 is answered by the location's own page, whatever the peer says with it (memcached).
    pub intercept_not_found: bool,
    /// What is done to headers of answers on their way to the client.
    pub headers: Arc<AnswerHeaders>,
}

/// What is done to headers of answers, made once for a level.
#[derive(Debug, Default)]
pub struct AnswerHeaders {
    /// Clients do not get these: known ones as a set of bits.
    hidden: u64,
    /// And others by name.
    hidden_others: Vec<Box<[u8]>>,
    /// `proxy_redirect`, `proxy_cookie_*`.
    pub rewrites: Rewrites,
}

impl std::ops::Deref for UpstreamConf {
    type Target = UpstreamSettings;
    fn deref(&self) -> &UpstreamSettings {
        &self.settings
    }
}

impl std::ops::DerefMut for UpstreamConf {
    fn deref_mut(&mut self) -> &mut UpstreamSettings {
        &mut self.settings
    }
}

impl UpstreamConf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &UpstreamConf) {
        self.settings.merge(&parent.settings);
        self.cache.merge(&parent.cache);
        self.ssl.merge(&parent.ssl);
    }

    /// Notes what is done to headers of answers. `hidden`: what the module hides unless `*_pass_header` names it.
    pub fn set_answer_headers(&mut self, hidden: &[&[u8]], rewrites: Rewrites) {
        let mut headers = AnswerHeaders { rewrites, ..AnswerHeaders::default() };
        let passed = |name: &[u8]| self.pass_headers.iter().any(|n| n.eq_ignore_ascii_case(name));
        for name in hidden.iter().copied().chain(self.hide_headers.iter().map(|n| &**n)) {
            match K::find(name) {
                _ if passed(name) => {}
                K::Other => headers.hidden_others.push(name.into()),
                known => headers.hidden |= known.bit(),
            }
        }
        self.headers = Arc::new(headers);
    }

    /// Whether clients do not get a header of an answer.
    pub(super) fn is_hidden(&self, name: &[u8], known: K) -> bool {
        let headers = &self.headers;
        known.bit() & headers.hidden != 0
            || (known == K::Other && headers.hidden_others.iter().any(|n| n.eq_ignore_ascii_case(name)))
    }

    /// Where connections come from (`*_bind`), if the configuration says so.
    pub fn local_address(&self, r: &mut Request) -> Option<SocketAddr> {
        let bind = self.bind.as_ref()?;
        let text = bind.address.eval(r);
        let local = parse_local(r.get(text));
        if local.is_none() && !r.get(text).is_empty() {
            log_error!(r, Error, "invalid local address \"{}\"", String::from_utf8_lossy(r.get(text)));
        }
        local
    }
}
