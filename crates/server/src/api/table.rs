//! The endpoints, in one table: who answers a path, with which methods, in which form. The OpenAPI document is made of the
//! same table.

use super::error::Failure;
use super::fields::Wanted;
use super::schema::{Schema, TEXTS};
use super::{Call, Outcome, Verb, general, guards, http, kernel, keyvals, memory, openapi, own, upstreams};
use crate::config::Subsystem;
use crate::snapshot::Snapshot;
use serde_json::{Map, Value, json};

/// An endpoint, or several that stand below each other.
pub struct Endpoint {
    /// The path behind the version.
    pub path: &'static str,
    /// What is there.
    pub summary: &'static str,
    /// How it is answered.
    pub kind: Kind,
}

/// How an endpoint is answered.
pub enum Kind {
    /// One object, or a list.
    One {
        /// Its form.
        schema: &'static Schema,
        /// Makes it.
        show: fn(&Context) -> Result<Value, Failure>,
        /// `DELETE` sets it to zero.
        reset: Option<fn(&Snapshot)>,
    },
    /// Things with names: all of them, or one.
    Many {
        /// How all of them are shown.
        shape: Shape,
        /// The form of one.
        schema: &'static Schema,
        /// What is said when there is none of a name: code and text.
        missing: (&'static str, &'static str),
        /// All there are.
        items: fn(&Context) -> Vec<Item>,
        /// What `DELETE` sets to zero.
        resets: Resets,
    },
    /// Groups of peers, and their servers.
    Upstreams(Subsystem),
    /// Keys and values.
    Keyvals(Subsystem),
}

/// How several things are shown.
#[derive(Clone, Copy, PartialEq)]
pub enum Shape {
    /// By name.
    Map,
    /// One after the other.
    List,
}

/// What of things with names can be set to zero.
#[derive(Clone, Copy, PartialEq)]
pub enum Resets {
    /// Nothing.
    Nothing,
    /// One of them.
    One,
    /// One, or all at once.
    All,
}

/// One thing with a name.
pub struct Item {
    /// The name.
    pub name: String,
    /// What is said of it.
    pub value: Value,
    /// Sets it to zero.
    pub reset: Box<dyn Fn()>,
}

impl Item {
    /// A thing.
    pub fn new(name: impl Into<String>, value: Value, reset: impl Fn() + 'static) -> Item {
        Item { name: name.into(), value, reset: Box::new(reset) }
    }
}

/// What an endpoint is told of a call.
pub struct Context<'c> {
    /// The call.
    pub call: &'c Call,
    /// The version it is for.
    pub version: u32,
    /// `fields=`
    pub wanted: Wanted,
}

impl Context<'_> {
    /// The configuration of a subsystem; `stream` may not be there.
    pub fn subsystem(&self, subsystem: Subsystem) -> Option<&Snapshot> {
        match subsystem {
            Subsystem::Http => Some(&self.call.snapshot),
            Subsystem::Stream => self.call.snapshot.stream.as_deref(),
        }
    }
}

/// All endpoints.
pub static ENDPOINTS: &[Endpoint] = &[
    one("/", "the first level of endpoints", &TEXTS, |c| Ok(below("/", c)), None),
    one("/nginx", "the server, its configuration and its processes", &general::NGINX, general::nginx, None),
    one(
        "/processes",
        "worker processes that died",
        &general::PROCESSES,
        general::processes,
        Some(general::reset_processes),
    ),
    one(
        "/connections",
        "client connections",
        &general::CONNECTIONS,
        general::connections,
        Some(general::reset_connections),
    ),
    many(
        "/slabs",
        "zones of memory",
        &general::SLAB,
        ("SlabNotFound", "slab not found"),
        general::slabs,
        Resets::Nothing,
    ),
    one("/ssl", "TLS handshakes with clients and peers", &general::SSL, general::ssl, Some(general::reset_ssl)),
    Endpoint {
        path: "/workers",
        summary: "worker threads",
        kind: Kind::Many {
            shape: Shape::List,
            schema: &general::WORKER,
            missing: ("WorkerNotFound", "worker not found"),
            items: general::workers,
            resets: Resets::All,
        },
    },
    many(
        "/resolvers",
        "resolvers with a status_zone",
        &general::RESOLVER,
        ("ResolverZoneNotFound", "resolver zone not found"),
        general::resolvers,
        Resets::One,
    ),
    one("/http", "endpoints of http", &TEXTS, |c| Ok(below("/http/", c)), None),
    one("/http/requests", "requests of clients", &http::REQUESTS, http::requests, Some(http::reset_requests)),
    many(
        "/http/server_zones",
        "requests to servers, by status_zone",
        &http::SERVER_ZONE,
        ("ServerZoneNotFound", "server zone not found"),
        http::server_zones,
        Resets::One,
    ),
    many(
        "/http/location_zones",
        "requests in locations, by status_zone",
        &http::LOCATION_ZONE,
        ("LocationZoneNotFound", "location zone not found"),
        http::location_zones,
        Resets::One,
    ),
    many(
        "/http/caches",
        "caches of upstreams' answers",
        &http::CACHE,
        ("CacheNotFound", "cache not found"),
        http::caches,
        Resets::One,
    ),
    many(
        "/http/limit_conns",
        "limits of connections",
        &http::LIMIT_CONN,
        ("LimitConnNotFound", "limit_conn not found"),
        http::limit_conns,
        Resets::One,
    ),
    many(
        "/http/limit_reqs",
        "limits of requests",
        &http::LIMIT_REQ,
        ("LimitReqNotFound", "limit_req not found"),
        http::limit_reqs,
        Resets::One,
    ),
    Endpoint { path: "/http/upstreams", summary: "groups of peers", kind: Kind::Upstreams(Subsystem::Http) },
    Endpoint { path: "/http/keyvals", summary: "keys and values", kind: Kind::Keyvals(Subsystem::Http) },
    one("/stream", "endpoints of stream", &TEXTS, |c| Ok(below("/stream/", c)), None),
    many(
        "/stream/server_zones",
        "sessions with servers, by status_zone",
        &http::STREAM_ZONE,
        ("ServerZoneNotFound", "server zone not found"),
        http::stream_zones,
        Resets::One,
    ),
    many(
        "/stream/limit_conns",
        "limits of connections",
        &http::LIMIT_CONN,
        ("LimitConnNotFound", "limit_conn not found"),
        http::stream_limit_conns,
        Resets::One,
    ),
    Endpoint { path: "/stream/upstreams", summary: "groups of peers", kind: Kind::Upstreams(Subsystem::Stream) },
    Endpoint { path: "/stream/keyvals", summary: "keys and values", kind: Kind::Keyvals(Subsystem::Stream) },
    one("/stream/zone_sync", "zones that nodes of a cluster share", &http::ZONE_SYNC, http::zone_sync, None),
    one("/ironweir", "endpoints that nginx Plus does not have", &TEXTS, |c| Ok(below("/ironweir/", c)), None),
    one("/ironweir/access", "what the caller may do", &own::ACCESS, own::access, None),
    one("/ironweir/latency", "how long requests took", &own::LATENCY, own::latency, Some(own::reset_latency)),
    one("/ironweir/totals", "all requests, whatever zone", &own::TOTALS, own::totals, None),
    one("/ironweir/history", "the last hour in steps", &own::HISTORY, own::history, None),
    one("/ironweir/listeners", "listening addresses and their queues", &own::LISTENERS, own::listeners, None),
    one(
        "/ironweir/certificates",
        "certificates and until when they are good",
        &own::CERTIFICATES,
        own::certificates,
        None,
    ),
    one("/ironweir/threads", "worker threads: work, wait, delay of the loop", &own::THREADS, own::threads, None),
    one("/ironweir/memory", "the bill of connections, and how many more fit", &memory::MEMORY, memory::memory, None),
    one("/ironweir/ports", "local ports that connections to peers hold", &memory::PORTS, memory::ports, None),
    one("/ironweir/time", "what requests waited for", &own::TIME, own::time, None),
    one("/ironweir/why", "what is in the way, and how much more could be carried", &own::WHY, own::why, None),
    one("/ironweir/l4", "packets that the kernel balances", &kernel::L4, kernel::l4, None),
    one("/ironweir/canary", "a configuration that is tried out beside the other", &own::CANARY, own::canary, None),
    one(
        "/ironweir/modsecurity",
        "what ModSecurity's rules have found",
        &own::MODSECURITY,
        own::modsecurity,
        Some(own::reset_modsecurity),
    ),
    many(
        "/ironweir/guards",
        "guards: what they did with requests, top talkers",
        &guards::GUARD,
        ("GuardNotFound", "guard not found"),
        guards::guards,
        Resets::One,
    ),
    many(
        "/ironweir/bans",
        "banned addresses; DELETE lifts a ban",
        &guards::BAN,
        ("BanNotFound", "ban not found"),
        guards::bans,
        Resets::All,
    ),
    Endpoint {
        path: "/ironweir/refusals",
        summary: "requests that the shield has refused last, and why; one by its id",
        kind: Kind::Many {
            shape: Shape::List,
            schema: &guards::REFUSAL,
            missing: ("RefusalNotFound", "refusal not found"),
            items: guards::refusals,
            resets: Resets::Nothing,
        },
    },
    one("/ironweir/shed", "load that was shed, slow clients", &guards::SHED, guards::shed, Some(guards::reset_shed)),
    one("/openapi.json", "this table", &openapi::DOCUMENT, openapi::show, None),
];

const fn one(
    path: &'static str,
    summary: &'static str,
    schema: &'static Schema,
    show: fn(&Context) -> Result<Value, Failure>,
    reset: Option<fn(&Snapshot)>,
) -> Endpoint {
    Endpoint { path, summary, kind: Kind::One { schema, show, reset } }
}

const fn many(
    path: &'static str,
    summary: &'static str,
    schema: &'static Schema,
    missing: (&'static str, &'static str),
    items: fn(&Context) -> Vec<Item>,
    resets: Resets,
) -> Endpoint {
    Endpoint { path, summary, kind: Kind::Many { shape: Shape::Map, schema, missing, items, resets } }
}

/// The names right below a path. What is not there (`stream` without a block of it) is not named.
fn below(path: &str, context: &Context) -> Value {
    let stream = context.call.snapshot.stream.is_some();
    let names =
        ENDPOINTS.iter().filter_map(|e| e.path.strip_prefix(path)).filter(|n| !n.is_empty() && !n.contains('/'));
    names.filter(|n| stream || *n != "stream").map(|n| json!(n)).collect()
}

/// Finds who knows a path, and has the call answered. `segments`: what follows the version.
pub fn find_and_call(call: &Call, version: u32, segments: &[String]) -> Result<Outcome, Failure> {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let context = Context { call, version, wanted: Wanted::of(&call.query) };
    if segments.first() == Some(&"stream") && call.snapshot.stream.is_none() {
        return Err(Failure::path_not_found());
    }
    let found = ENDPOINTS.iter().filter_map(|e| e.rest_of(&segments).map(|rest| (e, rest)));
    let (endpoint, rest) = found.min_by_key(|(_, rest)| rest.len()).ok_or_else(Failure::path_not_found)?;
    endpoint.call(&context, rest)
}

impl Endpoint {
    /// What of a path lies below the endpoint.
    fn rest_of<'s>(&self, segments: &'s [&'s str]) -> Option<&'s [&'s str]> {
        let own: Vec<&str> = self.path.split('/').filter(|s| !s.is_empty()).collect();
        let rest = segments.strip_prefix(own.as_slice())?;
        let depth = match self.kind {
            Kind::One { .. } => 0,
            Kind::Many { .. } | Kind::Keyvals(_) => 1,
            Kind::Upstreams(_) => 3,
        };
        (rest.len() <= depth).then_some(rest)
    }

    fn call(&self, context: &Context, rest: &[&str]) -> Result<Outcome, Failure> {
        match &self.kind {
            Kind::One { show, reset, .. } => match (verb(context, reset.is_some(), &[])?, reset) {
                (Verb::Delete, Some(reset)) => {
                    reset(&context.call.snapshot);
                    Ok(Outcome::Done)
                }
                _ => show(context).map(|v| Outcome::Found(context.wanted.of_object(v))),
            },
            Kind::Many { shape, missing, items, resets, .. } => {
                let deletes = *resets == Resets::All || *resets == Resets::One && !rest.is_empty();
                let verb = verb(context, deletes, &[])?;
                let all = items(context);
                let Some(name) = rest.first() else {
                    if verb == Verb::Delete {
                        all.iter().for_each(|item| (item.reset)());
                        return Ok(Outcome::Done);
                    }
                    if *shape == Shape::List {
                        let all = all.into_iter().map(|i| context.wanted.of_object(i.value));
                        return Ok(Outcome::Found(all.collect()));
                    }
                    let all: Map<_, _> = all.into_iter().map(|i| (i.name, i.value)).collect();
                    return Ok(Outcome::Found(context.wanted.of_map(all.into())));
                };
                let item = all.into_iter().find(|i| i.name == *name);
                let item = item.ok_or_else(|| Failure::new(404, missing.0, missing.1))?;
                if verb == Verb::Delete {
                    (item.reset)();
                    return Ok(Outcome::Done);
                }
                Ok(Outcome::Found(context.wanted.of_object(item.value)))
            }
            Kind::Upstreams(subsystem) => upstreams::call(context, *subsystem, rest),
            Kind::Keyvals(subsystem) => keyvals::call(context, *subsystem, rest),
        }
    }
}

/// The call's verb, if the endpoint has it and it may be used. `deletes`: there is a `DELETE`; `others`: what else there is.
pub fn verb(context: &Context, deletes: bool, others: &[Verb]) -> Result<Verb, Failure> {
    let mut known = vec![Verb::Get];
    known.extend(others);
    known.extend(deletes.then_some(Verb::Delete));
    let names: Vec<_> = known.iter().map(|v| v.name()).collect();
    let allow = names.join(", ").replacen("GET", "GET, HEAD", 1);
    let verb = context.call.verb.filter(|v| known.contains(v)).ok_or_else(|| Failure::not_allowed(allow))?;
    if verb != Verb::Get && !context.call.write {
        return Err(Failure::method_disabled());
    }
    Ok(verb)
}
