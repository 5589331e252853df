//! nginx's modules, one file each: what it does, its directives, its configuration, its behaviour, its tests.
//! Here stands what the configuration may say, and where modules keep their values; in `order`, who takes part in what, and in which order.
//! Adding a module is one file and its lines in these two.

pub mod access;
pub mod acme;
pub mod addition;
pub mod api;
pub mod auth_basic;
pub mod auth_jwt;
pub mod auth_oidc;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod browser;
pub mod cache_purge;
mod cgi;
pub mod charset;
pub mod charset_tables;
pub mod check_status;
pub mod concat;
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
pub mod geoip;
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
pub mod image_filter;
pub mod index;
pub mod js;
pub mod keyval;
pub mod keyval_state;
pub mod keyval_store;
pub mod limit_conn;
pub mod limit_req;
pub mod limit_shared;
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
pub mod order;
pub mod otel;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod proxy_connect;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod refusals;
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
pub mod vts;
pub mod xdp;
pub mod zone_sync;
pub mod zstd;

use crate::config::shared::Shared;
use crate::config::variables::{Builtin, Prefix};
use crate::config::{Build, ConfigLevel, Directive, Subsystem};
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
    geoip::DIRECTIVES,
    geoip2::DIRECTIVES,
    split_clients::DIRECTIVES,
    realip::DIRECTIVES,
    referer::DIRECTIVES,
    auth_basic::DIRECTIVES,
    auth_jwt::DIRECTIVES,
    auth_oidc::DIRECTIVES,
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
    proxy_connect::DIRECTIVES,
    grpc::DIRECTIVES,
    grpc::COMMON_DIRECTIVES,
    grpc::HEADER_DIRECTIVES,
    proxy::ssl::GRPC_DIRECTIVES,
    upstream_block::DIRECTIVES,
    upstream_server::DIRECTIVES,
    sticky::DIRECTIVES,
    health_check::DIRECTIVES,
    tengine_check::DIRECTIVES,
    check_status::DIRECTIVES,
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
    image_filter::DIRECTIVES,
    ssi::DIRECTIVES,
    slice::DIRECTIVES,
    index::DIRECTIVES,
    random_index::DIRECTIVES,
    concat::DIRECTIVES,
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
    cache_purge::DIRECTIVES,
    vts::DIRECTIVES,
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
    zone_sync::DIRECTIVES,
    proxy::ssl::ZONE_SYNC_DIRECTIVES,
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
    geoip::VARIABLES,
    referer::VARIABLES,
    browser::VARIABLES,
    userid::VARIABLES,
    secure_link::VARIABLES,
    auth_jwt::VARIABLES,
    auth_oidc::VARIABLES,
    gzip::VARIABLES,
    brotli::VARIABLES,
    zstd::VARIABLES,
    limit_conn::VARIABLES,
    limit_req::VARIABLES,
    guard::VARIABLES,
    modsecurity::VARIABLES,
    shed::VARIABLES,
    ssi::VARIABLES,
    echo::VARIABLES,
    proxy_connect::VARIABLES,
    slice::VARIABLES,
    ssl_variables::VARIABLES,
    acme::VARIABLES,
    otel::VARIABLES,
    nchan::VARIABLES,
];

/// The variables of all modules in `stream`, beside those of `http` that mean the same there.
const STREAM_VARIABLES: &[&[Builtin]] =
    &[stream_variables::VARIABLES, stream_mqtt::VARIABLES, realip::VARIABLES, geoip::VARIABLES, limit_conn::VARIABLES];

/// Rules for variables with a prefix.
const PREFIXES: &[&[Prefix]] =
    &[variables::PREFIXES, upstream_variables::PREFIXES, auth_jwt::PREFIXES, auth_oidc::PREFIXES];

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
    /// `auth_oidc`.
    auth_oidc shared,
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
    addition shared,
    /// `sub_filter`.
    sub shared,
    /// `set_base32_alphabet`.
    set_misc shared,
    /// `echo`.
    echo shared,
    /// `proxy_cache_purge` in a location of its own.
    cache_purge shared,
    /// `subs_filter`.
    subs_filter shared,
    /// `image_filter`.
    image_filter shared,
    /// `ssi`.
    ssi,
    /// `slice`.
    slice,
    /// `index`.
    index,
    /// `random_index`.
    random_index,
    /// `concat`.
    concat shared,
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
    /// `vhost_traffic_status` and its like.
    vts shared,
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
    /// `zone_sync` and its like.
    zone_sync shared,
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
    /// Zones that other machines have, too.
    pub limit_shared: limit_shared::Main,
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
    /// There is a `slice` somewhere.
    pub slices: bool,
    /// `geoip_country` and its like.
    pub geoip: geoip::Main,
    /// `geoip2_proxy`.
    pub geoip2: geoip2::Main,
    /// `upstream_list`.
    pub upstream_lists: set_misc::Lists,
    /// How many `set_rotate` there are.
    pub set_rotates: usize,
    /// `lua_shared_dict` and its like.
    pub lua: lua::Main,
    /// `xdp_interfaces` and its like.
    pub xdp: xdp::Main,
    /// `js_shared_dict_zone` and its like.
    pub js: js::Main,
    /// `vhost_traffic_status_zone`.
    pub vts: vts::Main,
    /// `oidc_provider`.
    pub auth_oidc: auth_oidc::Main,
    /// `load_module`.
    pub load_module: load_module::Main,
    /// `zone_sync`.
    pub zone_sync: zone_sync::Main,
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
    pub cache: Option<Box<crate::cache::context::Caching>>,
    /// What the request changes that a cache may have.
    pub cache_change: Option<Box<crate::cache::context::Change>>,
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
    /// A built-in page shows this id of the request.
    pub shown_id: Option<crate::request::Text>,
    /// `image_filter` has refused the answer: what is said instead is no picture.
    pub picture_refused: bool,
    /// `$date_gmt`, `$date_local`.
    pub ssi: ssi::Context,
    /// What a token of `auth_jwt` says.
    pub auth_jwt: Option<Box<auth_jwt::Context>>,
    /// A client's session with its provider.
    pub auth_oidc: Option<Box<auth_oidc::LoginSession>>,
    /// `$echo_it` and others.
    pub echo: Option<Box<echo::Context>>,
    /// Variables and blocks of SSI, shared by all requests for one page.
    pub ssi_shared: Option<std::rc::Rc<std::cell::RefCell<ssi::Shared>>>,
    /// The trace that the request belongs to.
    pub otel: Option<Box<otel::Context>>,
    /// The rules that the request is judged by, and what they have found.
    pub modsecurity: Option<modsecurity::Watch>,
    /// `$modsecurity_rules`, once the request is done.
    pub modsecurity_rules: Option<crate::request::Text>,
    /// What a request does with channels.
    pub nchan: Option<std::rc::Rc<nchan::Context>>,
    /// What programs in Lua keep.
    pub lua: Option<Box<lua::Context>>,
    /// What programs in JavaScript keep.
    pub js: Option<Box<js::Context>>,
    /// This is no request but a session of `stream`: what is known of it.
    pub stream: Option<Box<crate::stream::facts::Facts>>,
}

/// Takes out what there is.
#[inline]
fn empty<T>(place: &mut Option<T>) {
    if place.is_some() {
        *place = None;
    }
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
            picture_refused,
            ssi,
            auth_jwt,
            auth_oidc,
            echo,
            ssi_shared,
            otel,
            modsecurity,
            modsecurity_rules,
            nchan,
            lua,
            js,
            stream,
        } = self;
        // Most requests have none of these: a look is cheaper than a store.
        empty(cache);
        empty(cache_change);
        empty(cache_update);
        empty(slice);
        empty(store);
        empty(realip);
        empty(auth_jwt);
        empty(auth_oidc);
        empty(echo);
        empty(ssi_shared);
        empty(otel);
        empty(modsecurity);
        empty(nchan);
        empty(lua);
        empty(js);
        empty(stream);
        *proxy = Default::default();
        *userid = Default::default();
        *secure_link_expires = None;
        *gzip = Default::default();
        *gzip_totals = Default::default();
        *encoded = Default::default();
        *limit_conn = Default::default();
        *limit_req = Default::default();
        *guard = Default::default();
        *shed = Default::default();
        *shown_id = None;
        *picture_refused = false;
        *ssi = Default::default();
        *modsecurity_rules = None;
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
            auth_oidc: self.auth_oidc,
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
        zone_sync::finish_level(build, level);
        xdp::finish_level(build, level, parent);
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
    auth_jwt::finish_level(build, level);
    auth_oidc::finish_level(build, level);
}

/// All variables of modules.
pub fn builtins(subsystem: Subsystem) -> impl Iterator<Item = &'static Builtin> {
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
        "--with-http_image_filter_module",
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
