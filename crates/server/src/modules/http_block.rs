//! The blocks of `http`: `http`, `server`, `location`, `limit_except`; and how their levels become a snapshot's tables.

use super::core::LimitExcept;
use super::listen;
use super::order::{self, Choice};
use crate::config::pattern::Pattern;
use crate::config::{Build, ConfigLevel, Directive, Matching, Scope, http, process};
use crate::process_settings::ListenSpec;
use crate::request::Method;
use crate::request::route::{LocationTree, Port};
use crate::snapshot::{Location, Server, ServerId};
use crate::tls::settings::{Alpn, QuicProtocols};
use conf::{Contexts, Node, Problem};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    process("http", block),
    http("server", server),
    http("location", location),
    http("limit_except", limit_except),
    http("listen", listen::listen),
    http("server_name", listen::server_name),
];

/// What becomes of the `http` block.
pub struct Tables {
    /// Servers by index.
    pub servers: Vec<Server>,
    /// Levels by index.
    pub locations: Vec<Location>,
    /// Sockets.
    pub listens: Vec<ListenSpec>,
    /// What is behind them.
    pub ports: Vec<Port>,
}

fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.build.http.is_some() {
        return Err(crate::config::setters::duplicate(node));
    }
    let level = scope.child(node, Contexts::HTTP);
    scope.build.http = Some(level);
    scope.build.http_end = Some(node.close);
    Ok(())
}

fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut level = scope.child(node, Contexts::SERVER);
    level.place = Some(node.name.span);
    if level.listens.is_empty() {
        // nginx's default: port 80, or 8000 where that is not allowed.
        let port = if crate::master::is_root() { 80 } else { 8000 };
        let address = crate::process_settings::ListenAddress::Inet(([0, 0, 0, 0], port).into());
        level.listens.push(listen::Listen {
            spec: ListenSpec { deferred: true, ..ListenSpec::new(address) },
            default: false,
            proxy_protocol: false,
            ssl: false,
            http2: false,
            mqtt: false,
            deferred: false,
            options: false,
            node: node.clone(),
        });
    }
    if std::mem::take(&mut scope.build.main.tunnel.seen) {
        level.server.get_or_insert_default().allow_connect = true;
    }
    if level.server_names.is_empty() {
        level.server_names.push((listen::Name::Exact(Vec::new()), node.clone()));
    }
    scope.level.children.push(level);
    Ok(())
}

fn location(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut level = scope.build.level(Contexts::LOCATION);
    level.nameless = false;
    (level.matching, level.name) = matching(scope.build, node)?;
    check_nesting(scope.level, &level, node)?;
    if sign(&level.matching).is_some_and(|s| !scope.level.taken.insert((s, level.name.clone()))) {
        scope.build.late.push(node.problem(format!("duplicate location \"{}\"", shown(&level))));
    }
    scope.fill(node, &mut level);
    scope.level.children.push(level);
    Ok(())
}

/// What tells locations of one name apart; patterns may say the same twice.
fn sign(matching: &Matching) -> Option<char> {
    match matching {
        Matching::Prefix | Matching::PrefixFinal => Some('/'),
        Matching::Exact => Some('='),
        Matching::Named => Some('@'),
        Matching::Regex(_) | Matching::Nameless => None,
    }
}

fn shown(level: &ConfigLevel) -> String {
    let sign = if level.is_named() { "@" } else { "" };
    format!("{sign}{}", String::from_utf8_lossy(&level.name))
}

/// `location [= | ~ | ~* | ^~] name`, also with the sign and the name in one word.
fn matching(build: &mut Build<'_>, node: &Node) -> Result<(Matching, Vec<u8>), Problem> {
    let regex = |build: &mut Build<'_>, text: &[u8], caseless| -> Result<_, Problem> {
        let pattern = Pattern::compile(build, text, caseless).map_err(|t| node.problem(t))?;
        Ok((Matching::Regex(pattern), text.to_vec()))
    };
    if let [sign, name] = node.args.as_slice() {
        let name = &name.text;
        return match sign.text.as_slice() {
            b"=" => Ok((Matching::Exact, name.clone())),
            b"^~" => Ok((Matching::PrefixFinal, name.clone())),
            b"~" => regex(build, name, false),
            b"~*" => regex(build, name, true),
            _ => Err(node.problem(format!("invalid location modifier \"{}\"", sign.as_str()))),
        };
    }
    let text = &node.args[0].text;
    Ok(match text.as_slice() {
        [b'=', rest @ ..] => (Matching::Exact, rest.to_vec()),
        [b'^', b'~', rest @ ..] => (Matching::PrefixFinal, rest.to_vec()),
        [b'~', b'*', rest @ ..] => return regex(build, rest, true),
        [b'~', rest @ ..] => return regex(build, rest, false),
        [b'@', rest @ ..] => (Matching::Named, rest.to_vec()),
        _ => (Matching::Prefix, text.clone()),
    })
}

fn check_nesting(outer: &ConfigLevel, inner: &ConfigLevel, node: &Node) -> Result<(), Problem> {
    if outer.context != Contexts::LOCATION {
        return Ok(());
    }
    let (outside, inside) = (shown(outer), shown(inner));
    if matches!(outer.matching, Matching::Exact) {
        return Err(node.problem(format!("location \"{inside}\" cannot be inside the exact location \"{outside}\"")));
    }
    if outer.is_named() {
        return Err(node.problem(format!("location \"{inside}\" cannot be inside the named location \"{outside}\"")));
    }
    if inner.is_named() {
        return Err(node.problem(format!("named location \"{inside}\" can be on the server level only")));
    }
    // The text of a pattern counts as if it were a prefix.
    if !inner.is_pattern() && !inner.name.starts_with(&outer.name) {
        return Err(node.problem(format!("location \"{inside}\" is outside location \"{outside}\"")));
    }
    Ok(())
}

fn limit_except(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.core.limit_except.is_some() {
        return Err(crate::config::setters::duplicate(node));
    }
    let mut methods = Vec::new();
    for word in &node.args {
        match Method::of(word.text.to_ascii_uppercase().as_slice()) {
            Method::Other | Method::Trace | Method::Connect => {
                return Err(node.problem(format!("invalid method \"{}\"", word.as_str())));
            }
            // nginx lets HEAD through with GET.
            Method::Get => methods.extend([Method::Get, Method::Head]),
            m => methods.push(m),
        }
    }
    let child = scope.child(node, Contexts::LIMIT_EXCEPT);
    scope.level.conf.core.limit_except = Some(LimitExcept { methods, location: child.id });
    scope.level.children.push(child);
    Ok(())
}

/// Merges all levels and makes the tables. Problems are noted in `build`.
pub fn finish(build: &mut Build<'_>) -> Tables {
    let mut locations: Vec<Option<Location>> = Vec::new();
    locations.resize_with(build.locations(), || None);
    let Some(mut http) = build.http.take() else {
        return Tables { servers: Vec::new(), locations: Vec::new(), listens: Vec::new(), ports: Vec::new() };
    };
    super::finish_http(build, &mut http);
    let defaults = http.server.take().unwrap_or_default();
    let mut servers = Vec::new();
    let mut levels = std::mem::take(&mut http.children);
    for level in &mut levels {
        let mut conf = *level.server.take().unwrap_or_default();
        conf.core.merge(&defaults.core);
        conf.ssl.merge(&defaults.ssl);
        if !build.subsystem.is_stream() {
            // What a server offers by ALPN.
            let mut http2 = level.conf.http2.http2.clone();
            http2.inherit(&http.conf.http2.http2);
            let is_on = *http2 || level.listens.iter().any(|l| l.http2);
            conf.ssl.alpn.force(if is_on { Alpn::Http2 } else { Alpn::Http1 });
        }
        let mut http3 = level.conf.http3.clone();
        http3.merge(&http.conf.http3);
        let quic = level.listens.iter().any(|l| l.spec.quic);
        conf.ssl.quic.force(quic.then_some(QuicProtocols { h3: *http3.http3, hq: *http3.http3_hq }));
        let acme = conf.acme.take().and_then(|wanted| super::acme::finish_server(build, level, &wanted));
        let (mut resolver, mut timeout) = (level.conf.core.resolver.clone(), level.conf.core.resolver_timeout.clone());
        resolver.inherit(&http.conf.core.resolver);
        timeout.inherit(&http.conf.core.resolver_timeout);
        let resolver = (*resolver).clone().map(|r| (r, *timeout));
        let tls = super::ssl::finish_server(build, &conf.ssl, &super::ssl::Around { issued: acme.clone(), resolver });
        super::lua::check_server(build, level, tls.is_some());
        super::zone_sync::check_server(build, level, *conf.ssl.verify_client);
        if *conf.ssl.verify_client == crate::tls::settings::VerifyClient::On {
            super::api::guarded_by_certificates(build, level);
        }
        servers.push(Server { conf, name: level.server_name.clone().into(), root: level.id, tls, acme });
    }
    super::acme::finish_http(build, &http);
    let indexed: Vec<(ServerId, &ConfigLevel)> =
        levels.iter().enumerate().map(|(i, l)| (ServerId(i as u32), l)).collect();
    let (listens, ports) = listen::collect(build, &indexed);
    let places: Vec<_> = levels.iter().map(|l| l.place).collect();
    super::ssl::check_listens(build, &ports, &servers, &places);
    let mut participants = Choice::default();
    for level in levels {
        place(build, level, &http.conf, &mut participants, &mut locations);
    }
    let conf = http.conf;
    locations.resize_with(build.locations(), || None);
    // What is not part of http (the events block) has an index as well, and the http level's values.
    let locations = locations
        .into_iter()
        .map(|l| l.unwrap_or_else(|| nameless(&build.main, conf.clone(), &mut participants)))
        .collect();
    Tables { servers, locations, listens, ports }
}

fn nameless(main: &super::MainConf, conf: super::LocationConf, participants: &mut Choice) -> Location {
    Location {
        name: Box::default(),
        matching: Matching::Nameless,
        handler: Box::default(),
        participants: participants.of(main, &conf, 0),
        conf,
        inside: LocationTree::default(),
        nameless: true,
    }
}

/// Makes a level and those in it locations of the snapshot. Gives who has work in the rewrite phase there, its `if`s included.
fn place(
    build: &mut Build<'_>,
    mut level: ConfigLevel,
    parent: &super::LocationConf,
    participants: &mut Choice,
    all: &mut [Option<Location>],
) -> u32 {
    level.conf.merge(parent);
    super::finish_level(build, &mut level, parent);
    let mut tree = LocationTree::default();
    for child in &level.children {
        match &child.matching {
            Matching::Nameless => {}
            Matching::Prefix => tree.add_prefix(&child.name, child.id, false),
            Matching::PrefixFinal => tree.add_prefix(&child.name, child.id, true),
            Matching::Exact => tree.add_exact(&child.name, child.id),
            Matching::Regex(p) => tree.add_pattern(p.clone(), child.id),
            Matching::Named => tree.add_named(&child.name, child.id),
        }
        if child.conf.core.auto_redirect
            && matches!(child.matching, Matching::Prefix | Matching::PrefixFinal)
            && let [name @ .., b'/'] = child.name.as_slice()
        {
            tree.add_redirect(name, child.id);
        }
    }
    tree.finish();
    let mut ifs = 0;
    for child in std::mem::take(&mut level.children) {
        let is_if = child.nameless;
        let wants = place(build, child, &level.conf, participants, all);
        ifs |= if is_if { wants } else { 0 };
    }
    let wants = order::wants_of_rewrite(&build.main, &level.conf) | ifs;
    let id = level.id.0 as usize;
    all[id] = Some(Location {
        name: level.name.into(),
        matching: level.matching,
        handler: level.handler,
        participants: participants.of(&build.main, &level.conf, ifs),
        conf: level.conf,
        inside: tree,
        nameless: level.nameless,
    });
    wants
}
