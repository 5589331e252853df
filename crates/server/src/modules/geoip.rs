//! `geoip`: variables out of MaxMind's legacy databases (nginx's `ngx_http_geoip_module` and its twin in `stream`). A database is
//! read when the configuration is. The variables exist without one, and are not found then; other directives may define them.

use super::geo;
use super::realip::{self, Trusted};
use crate::config::cidr::Plain;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, both, http};
use crate::connection::Address;
use crate::log_error;
use crate::request::{Request, Text};
use crate::text;
use conf::{Node, Problem};
use std::net::IpAddr;
use std::sync::Arc;
use wire::geoip::{City, Country, Database, Edition, Fault, region_name};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("geoip_country", |s, n| {
        let opened = open(s, n, s.build.main.geoip.country.is_some(), |e| e == Edition::Country)?;
        s.build.main.geoip.country = Some(opened);
        Ok(())
    }),
    both("geoip_city", |s, n| {
        let opened = open(s, n, s.build.main.geoip.city.is_some(), |e| matches!(e, Edition::City { .. }))?;
        s.build.main.geoip.city = Some(opened);
        Ok(())
    }),
    both("geoip_org", |s, n| {
        let opened = open(s, n, s.build.main.geoip.org.is_some(), |e| e == Edition::Name)?;
        s.build.main.geoip.org = Some(opened);
        Ok(())
    }),
    http("geoip_proxy", |s, n| {
        let network = geo::network(&mut s.build.problems, n, &n.args[0].text)?;
        s.build.main.geoip.proxies.networks.push(network);
        Ok(())
    }),
    http("geoip_proxy_recursive", |s, n| {
        if std::mem::replace(&mut s.build.main.geoip.is_recursive_set, true) {
            return Err(Problem::duplicate(n));
        }
        s.build.main.geoip.proxies.recursive = n.args[0].text.eq_ignore_ascii_case(b"on");
        Ok(())
    }),
];

/// The variables, in `http` and in `stream`.
pub const VARIABLES: &[Builtin] = &[
    row("geoip_country_code", |r| country(r, |c, _| c.code)),
    row("geoip_country_code3", |r| country(r, |c, _| c.code3)),
    row("geoip_country_name", |r| country(r, country_name)),
    row("geoip_org", org),
    row("geoip_city_continent_code", |r| city(r, |r, c, _| latin(r, c.country.continent.as_bytes(), false))),
    row("geoip_city_country_code", |r| city(r, |r, c, _| latin(r, c.country.code.as_bytes(), false))),
    row("geoip_city_country_code3", |r| city(r, |r, c, _| latin(r, c.country.code3.as_bytes(), false))),
    row("geoip_city_country_name", |r| {
        city(r, |_, c, utf8| c.country.is_one().then(|| Text::from(country_name(c.country, utf8))))
    }),
    row("geoip_region", |r| city(r, |r, c, _| latin(r, c.region, false))),
    row("geoip_region_name", |r| city(r, |_, c, _| region_name(c.country.code, c.region).map(Text::from))),
    row("geoip_city", |r| city(r, |r, c, utf8| latin(r, c.name, utf8))),
    row("geoip_postal_code", |r| city(r, |r, c, _| latin(r, c.postal_code, false))),
    row("geoip_latitude", |r| city(r, |r, c, _| Some(text!(r, "{:.4}", c.latitude)))),
    row("geoip_longitude", |r| city(r, |r, c, _| Some(text!(r, "{:.4}", c.longitude)))),
    row("geoip_dma_code", |r| city(r, |r, c, _| Some(text!(r, "{}", c.dma_code)))),
    row("geoip_area_code", |r| city(r, |r, c, _| Some(text!(r, "{}", c.area_code)))),
];

/// What is kept once for `http`, and once for `stream`.
#[derive(Debug, Default)]
pub struct Main {
    country: Option<Arc<Opened>>,
    city: Option<Arc<Opened>>,
    org: Option<Arc<Opened>>,
    /// Whose addresses in `X-Forwarded-For` are believed.
    proxies: Trusted,
    is_recursive_set: bool,
}

/// A database as a directive names it.
#[derive(Debug)]
struct Opened {
    path: Box<str>,
    database: Database,
    /// `utf8`: names are given in UTF-8, not in ISO 8859-1 as they are kept.
    utf8: bool,
}

const fn row(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: false, assign: None }
}

/// `geoip_* FILE [utf8];`
fn open(scope: &Scope<'_, '_>, node: &Node, is_open: bool, fits: fn(Edition) -> bool) -> Result<Arc<Opened>, Problem> {
    if is_open {
        return Err(Problem::duplicate(node));
    }
    let (directive, path) = (node.name.as_str(), scope.build.conf_path(&node.args[0].text));
    let path = path.display();
    let bad = |e: String| node.problem(format!("{directive} database \"{path}\" cannot be used: {e}"));
    let bytes = scope
        .build
        .files
        .read(&scope.build.conf_path(&node.args[0].text))
        .map_err(|e| bad(crate::log::os_error(&e)))?;
    let utf8 = match node.args.get(1) {
        None => false,
        Some(word) if *word == "utf8" => true,
        Some(word) => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
    };
    let database = Database::new(bytes).map_err(|fault| bad(fault.to_string()))?;
    if !fits(database.edition()) {
        return Err(node.problem(format!("invalid GeoIP database \"{path}\" type:{}", database.kind())));
    }
    Ok(Arc::new(Opened { path: path.to_string().into(), database, utf8 }))
}

fn country(r: &mut Request, part: fn(&'static Country, bool) -> &'static str) -> Option<Text> {
    let opened = r.snapshot.main.geoip.country.clone()?;
    let address = address(r)?;
    let found = found(r, &opened, opened.database.country(address))?;
    Some(Text::from(part(found, opened.utf8)))
}

fn country_name(country: &'static Country, utf8: bool) -> &'static str {
    if utf8 { country.name_utf8() } else { country.name }
}

fn org(r: &mut Request) -> Option<Text> {
    let opened = r.snapshot.main.geoip.org.clone()?;
    let address = address(r)?;
    let name = found(r, &opened, opened.database.name(address))?;
    Some(if name.is_empty() { Text::EMPTY } else { latin(r, name, opened.utf8)? })
}

fn city(r: &mut Request, part: fn(&mut Request, &City<'_>, bool) -> Option<Text>) -> Option<Text> {
    let opened = r.snapshot.main.geoip.city.clone()?;
    let address = address(r)?;
    let city = found(r, &opened, opened.database.city(address))?;
    part(r, &city, opened.utf8)
}

/// What was found; what is wrong with the database goes to the log.
fn found<T>(r: &Request, opened: &Opened, result: Result<Option<T>, Fault>) -> Option<T> {
    result.unwrap_or_else(|fault| {
        log_error!(r, Error, "GeoIP database \"{}\": {fault}", opened.path);
        None
    })
}

/// A text of a record; an empty one is not found.
fn latin(r: &mut Request, text: &[u8], utf8: bool) -> Option<Text> {
    if text.is_empty() {
        return None;
    }
    if !utf8 || text.is_ascii() {
        return Some(r.text(text));
    }
    let text: String = text.iter().map(|byte| char::from(*byte)).collect();
    Some(r.text(text.as_bytes()))
}

/// The client's address, or that which trusted proxies say they had it from.
fn address(r: &Request) -> Option<IpAddr> {
    let direct = r.client.remote.borrow().clone();
    let forwarded = realip::forwarded(r, Plain::of(&direct), &r.snapshot.main.geoip.proxies);
    match (forwarded, direct) {
        (Some(named), _) => Some(named.ip()),
        (None, Address::Inet(address)) => Some(address.ip()),
        // No address: nginx asks for 255.255.255.255, which stands for none.
        (None, Address::Unix(_)) => Some(IpAddr::V4(std::net::Ipv4Addr::BROADCAST)),
    }
}
