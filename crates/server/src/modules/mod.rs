//! nginx's modules, one file each: what it does, its directives, its configuration, its behaviour, its tests.
//! Here stands who takes part in what, and in which order. Adding a module is one file and its lines here.

pub mod access;
pub mod acme;
pub mod addition;
pub mod api;
pub mod auth_basic;
pub mod auth_jwt;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod browser;
pub mod cache_purge;
mod cgi;
pub mod charset;
pub mod charset_tables;
pub mod core;
pub mod dashboard;
pub mod dav;
pub mod disable_symlinks;
pub mod echo;
pub mod empty_gif;
pub mod encoded;
pub mod fancyindex;
pub mod fastcgi;
pub mod flv;
pub mod geo;
pub mod geoip2;
pub mod grpc;
pub mod guard;
pub mod gunzip;
pub mod gzip;
pub mod gzip_rules;
pub mod gzip_static;
pub mod headers;
pub mod headers_more;
pub mod health_check;
pub mod http2;
pub mod http3;
pub mod http_block;
pub mod ignored;
pub mod index;
pub mod js;
pub mod keyval;
pub mod keyval_state;
pub mod keyval_store;
pub mod limit_conn;
pub mod limit_req;
pub mod limits;
pub mod listen;
pub mod load_module;
pub mod log;
mod log_format;
pub mod lua;
pub mod map;
pub mod memcached;
pub mod mirror;
pub mod modsecurity;
pub mod mp4;
pub mod nchan;
pub mod not_modified;
pub mod open_file_cache;
pub mod otel;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod root;
pub mod scgi;
pub mod secure_link;
pub mod set_misc;
pub mod shed;
pub mod slice;
pub mod slow;
pub mod split_clients;
pub mod ssi;
pub mod ssi_commands;
pub mod ssi_date;
pub mod ssi_parse;
pub mod ssl;
pub mod ssl_caches;
pub mod ssl_variables;
pub mod static_files;
pub mod status_zone;
pub mod sticky;
pub mod stream_block;
pub mod stream_core;
pub mod stream_mqtt;
pub mod stream_proxy;
pub mod stream_variables;
pub mod stub_status;
pub mod sub;
pub mod subs_filter;
pub mod sysguard;
pub mod tengine_check;
pub mod try_files;
pub mod tunnel;
pub mod upstream_block;
pub mod upstream_server;
pub mod upstream_state;
pub mod upstream_variables;
pub mod userid;
pub mod uwsgi;
pub mod variables;
pub mod xdp;
pub mod zstd;

use crate::config::shared::Shared;
use crate::config::variables::{Builtin, Prefix};
use crate::config::{Build, ConfigLevel, Directive, Subsystem};
use crate::request::end::Logger;
use crate::request::include;
use crate::request::phases::{Handler, Phase};
use crate::request::respond::HeaderFilter;
use crate::tls::hooks::{self, Hook};
use conf::Contexts;
use dav::ext as dav_ext;
use std::collections::HashMap;
use std::sync::OnceLock;

/// The directives of all modules.
const DIRECTIVES: &[&[Directive]] = &[
    process::DIRECTIVES,
    load_module::DIRECTIVES,
    http_block::DIRECTIVES,
    http2::DIRECTIVES,
    http3::DIRECTIVES,
    core::DIRECTIVES,
    root::DIRECTIVES,
    ssl::DIRECTIVES,
    acme::DIRECTIVES,
    rewrite::DIRECTIVES,
    set_misc::DIRECTIVES,
    log::DIRECTIVES,
    headers::DIRECTIVES,
    headers_more::DIRECTIVES,
    access::DIRECTIVES,
    slow::DIRECTIVES,
    guard::DIRECTIVES,
    sysguard::DIRECTIVES,
    shed::DIRECTIVES,
    limit_conn::DIRECTIVES,
    limit_req::DIRECTIVES,
    map::DIRECTIVES,
    geo::DIRECTIVES,
    geoip2::DIRECTIVES,
    split_clients::DIRECTIVES,
    realip::DIRECTIVES,
    referer::DIRECTIVES,
    auth_basic::DIRECTIVES,
    auth_jwt::DIRECTIVES,
    auth_request::DIRECTIVES,
    userid::DIRECTIVES,
    secure_link::DIRECTIVES,
    mirror::DIRECTIVES,
    modsecurity::DIRECTIVES,
    proxy::DIRECTIVES,
    proxy::COMMON_DIRECTIVES,
    proxy::HEADER_DIRECTIVES,
    proxy::BUFFERING_DIRECTIVES,
    proxy::cache::DIRECTIVES,
    proxy::cache::CONVERT_HEAD,
    proxy::ssl::DIRECTIVES,
    proxy::ssl::STREAM_DIRECTIVES,
    fastcgi::DIRECTIVES,
    fastcgi::COMMON_DIRECTIVES,
    fastcgi::HEADER_DIRECTIVES,
    fastcgi::BUFFERING_DIRECTIVES,
    fastcgi::CACHE_DIRECTIVES,
    scgi::DIRECTIVES,
    scgi::COMMON_DIRECTIVES,
    scgi::HEADER_DIRECTIVES,
    scgi::BUFFERING_DIRECTIVES,
    scgi::CACHE_DIRECTIVES,
    uwsgi::DIRECTIVES,
    uwsgi::COMMON_DIRECTIVES,
    uwsgi::HEADER_DIRECTIVES,
    uwsgi::BUFFERING_DIRECTIVES,
    uwsgi::CACHE_DIRECTIVES,
    proxy::ssl::UWSGI_DIRECTIVES,
    memcached::DIRECTIVES,
    memcached::COMMON_DIRECTIVES,
    tunnel::DIRECTIVES,
    tunnel::COMMON_DIRECTIVES,
    grpc::DIRECTIVES,
    grpc::COMMON_DIRECTIVES,
    grpc::HEADER_DIRECTIVES,
    proxy::ssl::GRPC_DIRECTIVES,
    upstream_block::DIRECTIVES,
    upstream_server::DIRECTIVES,
    sticky::DIRECTIVES,
    health_check::DIRECTIVES,
    tengine_check::DIRECTIVES,
    open_file_cache::DIRECTIVES,
    disable_symlinks::DIRECTIVES,
    gzip_rules::DIRECTIVES,
    brotli::DIRECTIVES,
    zstd::DIRECTIVES,
    gzip::DIRECTIVES,
    gunzip::DIRECTIVES,
    charset::DIRECTIVES,
    addition::DIRECTIVES,
    sub::DIRECTIVES,
    subs_filter::DIRECTIVES,
    ssi::DIRECTIVES,
    slice::DIRECTIVES,
    index::DIRECTIVES,
    random_index::DIRECTIVES,
    fancyindex::DIRECTIVES,
    autoindex::DIRECTIVES,
    dav::DIRECTIVES,
    dav::ext::DIRECTIVES,
    mp4::DIRECTIVES,
    flv::DIRECTIVES,
    browser::DIRECTIVES,
    gzip_static::DIRECTIVES,
    try_files::DIRECTIVES,
    empty_gif::DIRECTIVES,
    echo::DIRECTIVES,
    stub_status::DIRECTIVES,
    status_zone::DIRECTIVES,
    api::DIRECTIVES,
    prometheus::DIRECTIVES,
    dashboard::DIRECTIVES,
    otel::DIRECTIVES,
    keyval::DIRECTIVES,
    nchan::DIRECTIVES,
    nchan::mqtt::DIRECTIVES,
    nchan::redis::conf::DIRECTIVES,
    lua::DIRECTIVES,
    js::DIRECTIVES,
    lua::stream::DIRECTIVES,
    stream_block::DIRECTIVES,
    stream_core::DIRECTIVES,
    stream_proxy::DIRECTIVES,
    stream_mqtt::DIRECTIVES,
    xdp::DIRECTIVES,
];

/// The variables of all modules.
const VARIABLES: &[&[Builtin]] = &[
    variables::VARIABLES,
    http2::VARIABLES,
    http3::VARIABLES,
    proxy::VARIABLES,
    proxy::cache::VARIABLES,
    fastcgi::VARIABLES,
    upstream_variables::VARIABLES,
    realip::VARIABLES,
    referer::VARIABLES,
    browser::VARIABLES,
    userid::VARIABLES,
    secure_link::VARIABLES,
    auth_jwt::VARIABLES,
    gzip::VARIABLES,
    brotli::VARIABLES,
    zstd::VARIABLES,
    limit_conn::VARIABLES,
    limit_req::VARIABLES,
    guard::VARIABLES,
    shed::VARIABLES,
    ssi::VARIABLES,
    echo::VARIABLES,
    slice::VARIABLES,
    ssl_variables::VARIABLES,
    acme::VARIABLES,
    otel::VARIABLES,
    nchan::VARIABLES,
];

/// The variables of all modules in `stream`, beside those of `http` that mean the same there.
const STREAM_VARIABLES: &[&[Builtin]] =
    &[stream_variables::VARIABLES, stream_mqtt::VARIABLES, realip::VARIABLES, limit_conn::VARIABLES];

/// Rules for variables with a prefix.
const PREFIXES: &[&[Prefix]] = &[variables::PREFIXES, upstream_variables::PREFIXES, auth_jwt::PREFIXES];

/// A handler's place in a phase: whether a level has anything for it to do, and the handler.
pub type Step = (fn(&LocationConf) -> bool, Handler);

/// nginx's phases, in its order: who takes part in each, in the order in which they run. Any of them may wait. The
/// find-config phase is none of these: it is nobody's (`request/phases.rs`).
const PHASES: [&[Step]; Phase::COUNT] = [
    // Post-read: before any rewrite, with the server's values.
    &[(|_| true, Handler::Now(acme::handler)), (|c| !c.realip.from.is_empty(), Handler::Now(realip::handler))],
    // Server-rewrite.
    &[
        (|c| !c.rewrite.is_empty(), Handler::Now(rewrite::server_handler)),
        (|c| c.lua.server_rewrite.is_some(), lua::SERVER_REWRITE),
    ],
    // Rewrite.
    &[
        (|c| c.guard.guard.is_some(), Handler::Now(guard::handler)),
        (|c| c.guard.guard.is_some(), guard::DELAY),
        (|c| c.lua.rewrite.is_some(), lua::REWRITE_FIRST),
        (|c| c.modsecurity.is_on(), Handler::Now(modsecurity::begin)),
        (|c| !c.rewrite.is_empty(), Handler::Now(rewrite::handler)),
        (|c| c.headers_more.changes_request(), Handler::Now(headers_more::handler)),
        (|c| c.lua.rewrite.is_some(), lua::REWRITE),
    ],
    // Preaccess.
    &[
        (|c| c.otel.is_of_use(), Handler::Now(otel::handler)),
        (|c| !c.realip.from.is_empty(), Handler::Now(realip::handler)),
        (|c| *c.sysguard.sysguard, Handler::Now(sysguard::handler)),
        (|c| !c.limit_req.limits.is_empty(), Handler::Now(limit_req::handler)),
        (|c| !c.limit_req.limits.is_empty(), limit_req::DELAY),
        (|c| !c.limit_conn.limits.is_empty(), Handler::Now(limit_conn::handler)),
        (|c| c.modsecurity.is_anywhere(), modsecurity::BODY),
        (|c| c.modsecurity.is_anywhere(), Handler::Now(modsecurity::judge_request)),
    ],
    // Access: `satisfy` says how its verdicts are taken together.
    &[
        (|c| c.lua.access.is_some(), lua::ACCESS_FIRST),
        (|c| !c.access.rules.is_empty(), Handler::Now(access::handler)),
        (|c| c.auth_basic.user_file.is_some(), auth_basic::HANDLER),
        (|c| c.auth_jwt.is_on(), auth_jwt::HANDLER),
        (|c| c.auth_request.uri.is_some(), auth_request::HANDLER),
        (|c| c.lua.access.is_some(), lua::ACCESS),
        (|c| c.js.access.is_some(), js::ACCESS),
    ],
    // Precontent.
    &[
        (|c| c.lua.precontent.is_some(), lua::PRECONTENT_FIRST),
        (|c| c.try_files.list.is_some(), Handler::Now(try_files::handler)),
        (|c| !c.mirror.mirror.is_empty(), mirror::HANDLER),
        (|c| c.lua.precontent.is_some(), lua::PRECONTENT),
    ],
    // Content, for locations without a content handler of their own.
    &[
        (|_| true, Handler::Now(random_index::handler)),
        (|_| true, Handler::Now(index::handler)),
        (|c| *c.fancyindex.fancyindex, Handler::Now(fancyindex::handler)),
        (|_| true, Handler::Now(autoindex::handler)),
        (|c| *c.dav.dav_methods != 0, dav::HANDLER),
        (|c| *c.dav_ext.dav_ext_methods != 0, dav::ext::HANDLER),
        (|c| *c.brotli.brotli_static != gzip_static::Mode::Off, Handler::Now(brotli::handler)),
        (|c| *c.zstd.zstd_static != gzip_static::Mode::Off, Handler::Now(zstd::handler)),
        (|_| true, Handler::Now(gzip_static::handler)),
        (|_| true, Handler::Now(static_files::handler)),
    ],
];

/// The steps of a phase.
#[inline]
pub fn steps(phase: Phase) -> &'static [Step] {
    PHASES[phase as usize]
}

/// Phases in which a level has anything to do, a bit each: most have none, and pass by without asking each handler.
#[derive(Clone, Copy, Debug)]
pub struct Busy(u8);

impl Busy {
    /// Asks each step of each phase.
    pub fn of(conf: &LocationConf) -> Busy {
        let bit = |(number, steps): (usize, &&[Step])| u8::from(steps.iter().any(|(wanted, _)| wanted(conf))) << number;
        Busy(PHASES.iter().enumerate().map(bit).sum())
    }

    /// Whether anybody has anything to do in a phase.
    #[inline]
    pub fn has(self, phase: Phase) -> bool {
        self.0 & 1 << phase as u8 != 0
    }
}

/// Hooks of TLS handshakes with clients for which the ClientHello is enough, in their order: which server is meant comes first.
pub const CLIENT_HELLO_HOOKS: &[Hook] =
    &[Hook::Now(hooks::server_by_name), Hook::Now(acme::proof_hook), lua::ssl::CLIENT_HELLO];

/// Hooks that settle which certificate is shown, in their order. The server's settings are known.
pub const CERTIFICATE_HOOKS: &[Hook] = &[Hook::Now(ssl::certificate_hook), lua::ssl::PROTOCOLS, lua::ssl::CERTIFICATE];

/// Loggers, in the order in which they look at a request that is done.
pub const LOGGERS: &[Logger] =
    &[sysguard::logger, modsecurity::logger, otel::logger, lua::logger, log::logger, js::finish];

/// Header filters in the order in which they run.
pub const HEADER_FILTERS: &[HeaderFilter] = &[
    slice::filter,
    not_modified::filter,
    headers_more::filter,
    lua::header_filter,
    js::header_filter,
    headers::filter,
    userid::filter,
    gunzip::filter,
    modsecurity::ANSWER_FILTER,
    addition::filter,
    echo::filter,
    sub::filter,
    subs_filter::filter,
    charset::filter,
    ssi::filter,
    include::filter,
    brotli::filter,
    zstd::filter,
    gzip::filter,
    range::filter,
    gzip_rules::vary_filter,
];

macro_rules! conf_of {
    ($module:ident) => { $module::Conf };
    ($module:ident shared) => { Shared<$module::Conf> };
}

macro_rules! location_confs {
    ($($(#[$meta:meta])* $module:ident $($shared:ident)?,)*) => {
        /// The values that modules keep for each level of `http`.
        #[derive(Clone, Debug, Default)]
        pub struct LocationConf { $($(#[$meta])* pub $module: conf_of!($module $($shared)?),)* }
        impl LocationConf {
            /// Takes from the level around what this one does not set.
            pub fn merge(&mut self, parent: &LocationConf) {
                $(self.$module.merge(&parent.$module);)*
            }
        }
    };
}

location_confs! {
    /// The http core.
    core,
    /// `http2`, `http2_chunk_size`.
    http2,
    /// `http3`, `quic_retry`.
    http3,
    /// `return`, `rewrite`, `set`, `if`.
    rewrite,
    /// `access_log`.
    log,
    /// `proxy_pass`.
    proxy shared,
    /// `fastcgi_pass`.
    fastcgi shared,
    /// `scgi_pass`.
    scgi shared,
    /// `uwsgi_pass`.
    uwsgi shared,
    /// `memcached_pass`.
    memcached shared,
    /// `tunnel_pass`.
    tunnel shared,
    /// `grpc_pass`.
    grpc shared,
    /// `add_header`, `expires`.
    headers,
    /// `more_set_headers` and its kin.
    headers_more shared,
    /// `allow`, `deny`.
    access,
    /// `client_header_min_rate` and its like.
    slow shared,
    /// `guard`.
    guard shared,
    /// `sysguard`.
    sysguard shared,
    /// `shed_priority`.
    shed shared,
    /// `limit_conn`.
    limit_conn,
    /// `limit_req`.
    limit_req,
    /// `set_real_ip_from`.
    realip,
    /// `valid_referers`.
    referer,
    /// `auth_basic`.
    auth_basic,
    /// `auth_jwt`.
    auth_jwt shared,
    /// `userid`.
    userid shared,
    /// `secure_link`.
    secure_link,
    /// `mirror`.
    mirror,
    /// `auth_request`.
    auth_request,
    /// `modsecurity`.
    modsecurity shared,
    /// `open_file_cache`.
    open_file_cache,
    /// `disable_symlinks`.
    disable_symlinks,
    /// `gzip_vary`, `gzip_proxied` and others.
    gzip_rules,
    /// `gzip`.
    gzip,
    /// `brotli`.
    brotli shared,
    /// `zstd`.
    zstd shared,
    /// `gunzip`.
    gunzip,
    /// `charset`.
    charset,
    /// `add_before_body`, `add_after_body`.
    addition,
    /// `sub_filter`.
    sub,
    /// `echo`.
    echo shared,
    /// `proxy_cache_purge` in a location of its own.
    cache_purge shared,
    /// `subs_filter`.
    subs_filter shared,
    /// `ssi`.
    ssi,
    /// `slice`.
    slice,
    /// `index`.
    index,
    /// `random_index`.
    random_index,
    /// `fancyindex`.
    fancyindex shared,
    /// `autoindex`.
    autoindex,
    /// `gzip_static`.
    gzip_static,
    /// `try_files`.
    try_files,
    /// `status_zone` of a location.
    status_zone,
    /// `api`.
    api,
    /// `health_check`.
    health_check,
    /// `mp4_max_buffer_size`.
    mp4 shared,
    /// `modern_browser`, `ancient_browser`.
    browser shared,
    /// `dav_methods`.
    dav shared,
    /// `dav_ext_methods`.
    dav_ext shared,
    /// `dashboard`.
    dashboard,
    /// `otel_trace` and its like.
    otel,
    /// `nchan_pubsub` and its like.
    nchan shared,
    /// `content_by_lua` and its like.
    lua shared,
    /// `js_content` and its like.
    js shared,
    /// The stream core.
    stream_core,
    /// `proxy_pass` in `stream`.
    stream_proxy shared,
    /// `mqtt`, `mqtt_preread`.
    stream_mqtt shared,
    /// `xdp_timeout_reset` and its like.
    xdp shared,
}

/// The values that modules keep once for all of `http`.
#[derive(Debug, Default)]
pub struct MainConf {
    /// `log_format`.
    pub log: log::Main,
    /// `upstream` blocks.
    pub upstream: upstream_block::Main,
    /// `ssl_*`
    pub ssl: ssl::Main,
    /// `acme_issuer`.
    pub acme: acme::Main,
    /// `proxy_ssl_*`
    pub proxy_ssl: proxy::ssl::Main,
    /// `open_file_cache`.
    pub open_file_cache: open_file_cache::Main,
    /// `charset_map`, and the names of charsets.
    pub charset: charset::Main,
    /// `debug_connection`: clients about which everything is logged.
    pub debug_connections: Vec<crate::config::cidr::Cidr>,
    /// Names of zones.
    pub zones: crate::zone::Names,
    /// `proxy_cache_path` and its like.
    pub cache: crate::cache::Main,
    /// `limit_conn_zone`.
    pub limit_conn: limit_conn::Main,
    /// `limit_req_zone`.
    pub limit_req: limit_req::Main,
    /// `guard` blocks.
    pub guard: guard::Main,
    /// `keyval_zone`.
    pub keyval: keyval::Main,
    /// `health_check`, `match`.
    pub health: health_check::Main,
    /// `otel_exporter`.
    pub otel: otel::Main,
    /// `api write=on`.
    pub api: api::Main,
    /// `modsecurity_rules`.
    pub modsecurity: modsecurity::Main,
    /// `nchan_shared_memory_size`.
    pub nchan: nchan::Main,
    /// `tunnel_pass`.
    pub tunnel: tunnel::Main,
    /// `dav_ext_lock_zone`.
    pub dav_locks: Vec<std::sync::Arc<dav::locks::Zone>>,
    /// `geoip2_proxy`.
    pub geoip2: geoip2::Main,
    /// How many `set_rotate` there are.
    pub set_rotates: usize,
    /// `lua_shared_dict` and its like.
    pub lua: lua::Main,
    /// `xdp_interfaces` and its like.
    pub xdp: xdp::Main,
    /// `js_shared_dict_zone` and its like.
    pub js: js::Main,
    /// `load_module`.
    pub load_module: load_module::Main,
}

/// A zone that may outlive a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: Box<[u8]>,
    /// What it counts by, or is made of, beside its size.
    pub by: Box<[u8]>,
    /// Where its state is in this process: two configurations that share it have the same place.
    pub place: usize,
}

impl Kept {
    /// A zone with its state.
    pub fn new<T>(name: &[u8], by: &[u8], state: &std::sync::Arc<T>) -> Kept {
        Kept { name: name.into(), by: by.into(), place: std::sync::Arc::as_ptr(state) as usize }
    }
}

impl MainConf {
    /// The zones whose state can be compared with another configuration's of this process.
    pub fn kept(&self) -> Vec<Kept> {
        let caches = self.cache.caches.iter().map(|c| Kept::new(&c.zone.name, b"", &c.zone));
        let locks = self.dav_locks.iter().map(|zone| Kept::new(zone.name(), b"", zone));
        let dicts = self.lua.dicts.iter().map(|d| Kept::new(d.name.as_bytes(), b"", d));
        let counted = self.limit_conn.kept().chain(self.limit_req.kept()).chain(self.keyval.kept());
        counted.chain(caches).chain(locks).chain(dicts).collect()
    }

    /// Zones with entries: name, and pages in use and free.
    pub fn zone_pages(&self) -> impl Iterator<Item = (&[u8], usize, usize)> {
        self.limit_conn.pages().chain(self.limit_req.pages()).chain(self.keyval.pages())
    }
}

/// What modules keep for one request. Emptied by an internal redirect.
#[derive(Debug, Default)]
pub struct RequestContexts {
    /// What the request does for a cache.
    pub cache: Option<Box<crate::cache::caching::Caching>>,
    /// What the request changes that a cache may have.
    pub cache_change: Option<Box<crate::cache::lookup::Change>>,
    /// `slice`: the parts of the answer.
    pub slice: Option<Box<slice::Slice>>,
    /// What is too old is being updated beside the request.
    pub cache_update: Option<tokio::sync::oneshot::Receiver<()>>,
    /// The answer is also written to a file.
    pub store: Option<crate::upstream::store::Store>,
    /// `proxy_pass`.
    pub proxy: proxy::Context,
    /// The client's address before `realip` replaced it.
    pub realip: Option<std::rc::Rc<crate::connection::Address>>,
    /// `userid`.
    pub userid: Option<userid::Identity>,
    /// `$secure_link_expires`, once `$secure_link` was asked for.
    pub secure_link_expires: Option<crate::request::Text>,
    /// Whether the answer may be compressed.
    pub gzip: gzip_rules::State,
    /// `$gzip_ratio`.
    pub gzip_totals: gzip::Totals,
    /// `$brotli_ratio`, `$zstd_ratio`.
    pub encoded: encoded::Totals,
    /// `limit_conn`: the places that the request holds.
    pub limit_conn: limit_conn::Context,
    /// `limit_req`.
    pub limit_req: limit_req::Context,
    /// `guard`.
    pub guard: guard::Context,
    /// `sysguard`, `concurrency_limit`.
    pub shed: shed::Context,
    /// A built-in page shows the request's id.
    pub shown_id: bool,
    /// `$date_gmt`, `$date_local`.
    pub ssi: ssi::Context,
    /// What a token of `auth_jwt` says.
    pub auth_jwt: Option<Box<auth_jwt::Context>>,
    /// `$echo_it` and others.
    pub echo: Option<Box<echo::Context>>,
    /// Variables and blocks of SSI, shared by all requests for one page.
    pub ssi_shared: Option<std::rc::Rc<std::cell::RefCell<ssi::Shared>>>,
    /// The trace that the request belongs to.
    pub otel: Option<Box<otel::Context>>,
    /// The rules that the request is judged by, and what they have found.
    pub modsecurity: Option<modsecurity::Watch>,
    /// What a request does with channels.
    pub nchan: Option<std::rc::Rc<nchan::Context>>,
    /// What programs in Lua keep.
    pub lua: Option<Box<lua::Context>>,
    /// What programs in JavaScript keep.
    pub js: Option<Box<js::Context>>,
    /// This is no request but a session of `stream`: what is known of it.
    pub stream: Option<Box<crate::stream::Facts>>,
}

impl RequestContexts {
    /// As new, in place: no bytes are moved that did not change.
    pub fn reset(&mut self) {
        let RequestContexts {
            cache,
            cache_change,
            cache_update,
            slice,
            store,
            proxy,
            realip,
            userid,
            secure_link_expires,
            gzip,
            gzip_totals,
            encoded,
            limit_conn,
            limit_req,
            guard,
            shed,
            shown_id,
            ssi,
            auth_jwt,
            echo,
            ssi_shared,
            otel,
            modsecurity,
            nchan,
            lua,
            js,
            stream,
        } = self;
        *cache = Default::default();
        *cache_change = None;
        *cache_update = Default::default();
        *slice = Default::default();
        *store = Default::default();
        *proxy = Default::default();
        *realip = Default::default();
        *userid = Default::default();
        *secure_link_expires = Default::default();
        *gzip = Default::default();
        *gzip_totals = Default::default();
        *encoded = Default::default();
        *limit_conn = Default::default();
        *limit_req = Default::default();
        *guard = Default::default();
        *shed = Default::default();
        *shown_id = false;
        *ssi = Default::default();
        *auth_jwt = None;
        *echo = None;
        *ssi_shared = None;
        *otel = None;
        *modsecurity = None;
        *nchan = None;
        *lua = None;
        *js = None;
        *stream = None;
    }

    /// What is left of it after an internal redirect.
    pub fn after_redirect(self) -> RequestContexts {
        RequestContexts {
            realip: self.realip,
            gzip: self.gzip,
            limit_conn: self.limit_conn,
            limit_req: self.limit_req,
            guard: self.guard,
            shed: self.shed,
            shown_id: self.shown_id,
            otel: self.otel,
            modsecurity: self.modsecurity,
            ssi_shared: self.ssi_shared,
            auth_jwt: self.auth_jwt,
            ..RequestContexts::default()
        }
    }
}

/// Whether a module takes a directive that nginx itself does not have.
pub fn accepts(known: &conf::Known) -> bool {
    find(known.name, known.contexts).is_some()
}

/// The directive called `name` in a context.
pub fn find(name: &str, context: Contexts) -> Option<&'static Directive> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<&'static Directive>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table: HashMap<_, Vec<_>> = HashMap::new();
        for d in DIRECTIVES.iter().copied().flatten() {
            table.entry(d.name).or_default().push(d);
        }
        table
    });
    table.get(name)?.iter().find(|d| d.within.intersects(context)).copied()
}

/// Defaults of the `http` level, before anything inherits them.
pub fn finish_http(build: &mut Build<'_>, level: &mut ConfigLevel) {
    match build.subsystem {
        Subsystem::Http => {
            core::finish_http(build, level);
            modsecurity::finish_level(build, level);
        }
        Subsystem::Stream => core::finish_stream(build, level),
    }
}

/// Checks and completes a level after it has been merged with its parent.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &LocationConf) {
    if build.subsystem.is_stream() {
        stream_proxy::finish_level(build, level);
        xdp::finish_level(build, level);
        js::finish_level(build, level);
        lua::finish_level(build, level);
        return health_check::finish_level(build, level);
    }
    api::finish_level(build, level);
    proxy::finish_level(build, level, parent);
    fastcgi::finish_level(build, level, parent);
    memcached::finish_level(build, level, parent);
    tunnel::finish_level(build, level, parent);
    uwsgi::finish_level(build, level, parent);
    scgi::finish_level(build, level, parent);
    grpc::finish_level(build, level, parent);
    lua::finish_level(build, level);
    js::finish_level(build, level);
    health_check::finish_level(build, level);
    referer::finish_level(build, level, parent);
    modsecurity::finish_level(build, level);
    let _ = parent;
    log::finish_level(build, level);
    secure_link::finish_level(build, level);
    charset::finish_level(build, level);
}

/// All variables of modules.
pub fn variables(subsystem: Subsystem) -> impl Iterator<Item = &'static Builtin> {
    let (own, shared) = match subsystem {
        Subsystem::Http => (VARIABLES, None),
        Subsystem::Stream => (STREAM_VARIABLES, Some(VARIABLES)),
    };
    let shared = shared.into_iter().flatten().copied().flatten();
    let shared = shared.filter(|v| stream_variables::SHARED.contains(&v.name));
    own.iter().copied().flatten().chain(shared)
}

/// All prefix rules.
pub fn prefixes(subsystem: Subsystem) -> impl Iterator<Item = &'static Prefix> {
    let all = PREFIXES.iter().copied().flatten();
    all.filter(move |p| !subsystem.is_stream() || stream_variables::SHARED_PREFIXES.contains(&p.name))
}

/// What `-V` says: the modules that are there.
pub fn configure_arguments() -> String {
    let with = [
        "--with-compat",
        "--with-threads",
        "--with-pcre-jit",
        "--with-http_ssl_module",
        "--with-http_v2_module",
        "--with-http_v3_module",
        "--with-http_realip_module",
        "--with-http_addition_module",
        "--with-http_sub_module",
        "--with-http_dav_module",
        "--with-http_mp4_module",
        "--with-http_flv_module",
        "--with-http_auth_request_module",
        "--with-http_gunzip_module",
        "--with-http_gzip_static_module",
        "--with-http_random_index_module",
        "--with-http_secure_link_module",
        "--with-http_slice_module",
        "--with-http_stub_status_module",
        "--with-stream",
        "--with-stream_ssl_module",
        "--with-stream_realip_module",
        "--with-stream_ssl_preread_module",
        "--with-debug",
    ];
    with.join(" ")
}
