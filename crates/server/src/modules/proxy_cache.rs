//! `proxy_cache` and its like (the cache part of nginx's `ngx_http_proxy_module` and `ngx_http_upstream`). What the words
//! mean and what is done is in `cache`; where `proxy_pass` asks it, in `proxy`.

use crate::cache::{lookup, settings};
use crate::cache_directives;
use crate::config::set;
use crate::config::variables::Builtin;
use crate::config::{Directive, http};
use crate::request::Text;
use crate::upstream::settings::next;

/// The directives.
pub const DIRECTIVES: &[Directive] = cache_directives!("proxy", proxy);

/// The one that only HTTP upstreams need: others have no HEAD.
pub const CONVERT_HEAD: &[Directive] =
    &[http("proxy_cache_convert_head", |s, n| set::flag(&mut s.level.conf.proxy.cache.convert_head, n))];

/// The variables, of all modules with a cache.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "upstream_cache_status",
        evaluate: |r| r.attempts.cache.map(|s| Text::from(s.text())),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "upstream_cache_last_modified",
        evaluate: lookup::known_last_modified,
        volatile: true,
        assign: None,
    },
    Builtin { name: "upstream_cache_etag", evaluate: lookup::known_etag, volatile: true, assign: None },
];
