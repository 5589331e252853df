//! Who takes part in requests, handshakes and the lives of threads, and in which order: phases, header filters, loggers, hooks of TLS and of threads.
//! What runs requests does not name this file, or every module would lead back to itself by way of the request: a location of the snapshot has the lists with it.

use super::{
    LocationConf, MainConf, access, acme, addition, auth_basic, auth_jwt, auth_oidc, auth_request, autoindex, brotli,
    charset, concat, dav, echo, fancyindex, guard, gunzip, gzip, gzip_rules, gzip_static, headers, headers_more,
    image_filter, index, js, limit_conn, limit_req, log, lua, mirror, modsecurity, not_modified, otel, random_index,
    range, realip, rewrite, slice, ssi, ssl, static_files, sub, subs_filter, sysguard, try_files, userid, vts, zstd,
};
use crate::request::include;
use crate::request::steps::{Handler, HeaderFilter, Logger, Participants, Phase};
use crate::snapshot::ThreadHook;
use crate::tls::hooks::{self, Asked, Hook};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

/// What stands in a list, and whether a level has work for it. Who acts on what a request carries from elsewhere says always.
type Listed<T> = (fn(&Level<'_>) -> bool, T);

/// What is known when lists are made: a level's values, and those that are set once for all.
struct Level<'c> {
    main: &'c MainConf,
    conf: &'c LocationConf,
}

impl Deref for Level<'_> {
    type Target = LocationConf;

    fn deref(&self) -> &LocationConf {
        self.conf
    }
}

/// nginx's phases, in its order: who takes part in each, in the order in which they run. Any of them may wait. The
/// find-config phase is none of these: it is nobody's (`request/phases.rs`).
static PHASES: [&[Listed<Handler>]; Phase::COUNT] = [
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
        (|c| c.guard.delays(), guard::DELAY),
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
        (|c| c.vts.limits(), Handler::Now(vts::limit::handler)),
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
        (|c| c.auth_oidc.is_on(), auth_oidc::HANDLER),
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
        (|c| *c.concat.concat, Handler::Now(concat::handler)),
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

/// Hooks of TLS handshakes with clients for which the ClientHello is enough, in their order: which server is meant comes first.
const CLIENT_HELLO_HOOKS: &[Hook] =
    &[Hook::Now(hooks::server_by_name), Hook::Now(acme::proof_hook), lua::ssl::CLIENT_HELLO];

/// Hooks that settle which certificate is shown, in their order. The server's settings are known.
const CERTIFICATE_HOOKS: &[Hook] = &[
    Hook::Now(ssl::certificate_hook),
    lua::ssl::PROTOCOLS,
    lua::ssl_session::FETCH,
    lua::ssl::CERTIFICATE,
    lua::ssl_session::STORAGE,
];

/// Who looks at a handshake that has come to its good end, in their order.
const SHAKEN_HOOKS: &[fn(&mut Asked<'_>)] = &[lua::ssl_session::store];

/// Loggers, in the order in which they look at a request that is done.
const LOGGERS: &[Listed<Logger>] = &[
    (|c| c.sysguard.sysguard_rt.is_some(), sysguard::logger),
    (|c| c.modsecurity.is_anywhere(), modsecurity::logger),
    (|c| c.main.otel.exports(), otel::logger),
    (|c| c.lua.log.is_some(), lua::logger),
    (|c| c.vts.counts(&c.main.vts), vts::logger),
    (|c| c.log.is_on(), log::logger),
    (|c| c.main.js.imports, js::finish),
];

/// Header filters in the order in which they run.
const HEADER_FILTERS: &[Listed<HeaderFilter>] = &[
    (|c| c.main.slices, slice::filter),
    (|_| true, not_modified::filter),
    (|c| c.headers_more.changes_answer(), headers_more::filter),
    (|c| c.lua.header_filter.is_some() || c.lua.body_filter.is_some(), lua::header_filter),
    (|c| c.js.header_filter.is_some() || c.js.body_filter.0.is_some(), js::header_filter),
    (|c| !c.headers.is_empty(), headers::filter),
    (|c| c.userid.sends_cookies(), userid::filter),
    (|c| *c.gunzip.gunzip, gunzip::filter),
    (|c| c.modsecurity.is_anywhere(), modsecurity::ANSWER_FILTER),
    (|c| c.addition.adds(), addition::filter),
    (|c| c.echo.surrounds(), echo::filter),
    (|c| !c.sub.pairs.is_empty(), sub::filter),
    (|c| !c.subs_filter.pairs.is_empty(), subs_filter::filter),
    (|c| c.image_filter.is_on(), image_filter::filter),
    (|_| true, charset::filter),
    (|c| *c.ssi.ssi, ssi::filter),
    (|_| true, include::filter),
    (|c| *c.brotli.brotli, brotli::filter),
    (|c| *c.zstd.zstd, zstd::filter),
    (|c| *c.gzip.gzip, gzip::filter),
    (|_| true, range::filter),
    (|c| *c.gzip_rules.gzip_vary, gzip_rules::vary_filter),
];

/// Who has work when a thread begins to serve under a configuration and when it serves nothing new under it, in their order.
pub const THREAD_HOOKS: &[ThreadHook] = &[
    ThreadHook { begin: lua::start, leave: lua::leave },
    ThreadHook { begin: js::periodic::start, leave: js::periodic::leave },
];

/// Makes the lists of locations. Most are the same: they are made once.
#[derive(Default)]
pub struct Choice {
    made: HashMap<Wanted, Arc<Participants>>,
}

/// Who is wanted, a bit for each.
#[derive(PartialEq, Eq, Hash)]
struct Wanted {
    handlers: [u32; Phase::COUNT],
    header_filters: u32,
    loggers: u32,
}

impl Choice {
    /// Who takes part where these values are in force. `ifs`: what the blocks of `if` there want ([`wants_of_rewrite`]); the phase that leads into
    /// them goes on with the list that it began with.
    pub fn of(&mut self, main: &MainConf, conf: &LocationConf, ifs: u32) -> Arc<Participants> {
        let level = &Level { main, conf };
        let mut handlers = PHASES.map(|steps| bits(steps, level));
        handlers[Phase::Rewrite as usize] |= ifs;
        let wanted = Wanted { handlers, header_filters: bits(HEADER_FILTERS, level), loggers: bits(LOGGERS, level) };
        let made = self.made.entry(wanted).or_insert_with_key(|wanted| {
            Arc::new(Participants {
                handlers: std::array::from_fn(|phase| chosen(PHASES[phase], wanted.handlers[phase])),
                header_filters: chosen(HEADER_FILTERS, wanted.header_filters),
                loggers: chosen(LOGGERS, wanted.loggers),
            })
        });
        made.clone()
    }
}

/// Who has work in the rewrite phase with these values, a bit for each.
pub fn wants_of_rewrite(main: &MainConf, conf: &LocationConf) -> u32 {
    bits(PHASES[Phase::Rewrite as usize], &Level { main, conf })
}

fn bits<T>(list: &[Listed<T>], level: &Level<'_>) -> u32 {
    list.iter().enumerate().map(|(place, (wanted, _))| u32::from(wanted(level)) << place).sum()
}

fn chosen<T: Copy>(list: &[Listed<T>], bits: u32) -> Box<[T]> {
    list.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1).map(|(_, (_, one))| *one).collect()
}

/// Gives the hooks to those who run them. Does nothing the second time.
pub fn install() {
    hooks::install(CLIENT_HELLO_HOOKS, CERTIFICATE_HOOKS, SHAKEN_HOOKS);
}
