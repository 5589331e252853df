//! Which server, which location. From: `head`. To: `phases`. Pure look-ups in the snapshot.

use super::{Request, Text};
use crate::config::pattern::{GaveUp, Pattern};
use crate::connection::{Address, Client};
use crate::snapshot::{LocationId, ServerId, ThreadSnapshot};
use hashbrown::HashMap;
use std::cmp::Ordering;
use std::net::IpAddr;

/// The servers behind one listening socket. A socket for all addresses may stand for several `listen` addresses.
#[derive(Debug, Default)]
pub struct Port {
    /// The site for every address without one of its own.
    pub any: Site,
    /// Sites of single addresses behind a socket that listens on all.
    pub addresses: Vec<(IpAddr, Site)>,
    /// `listen ... proxy_protocol`
    pub proxy_protocol: bool,
}

impl Port {
    /// Whether TLS is spoken on any of its addresses.
    pub fn encrypted(&self) -> bool {
        self.any.ssl || self.addresses.iter().any(|(_, site)| site.ssl)
    }

    /// The servers for the address that a client connected to.
    pub fn site(&self, client: &Client) -> &Site {
        if !self.addresses.is_empty()
            && let Address::Inet(local) = crate::worker::local_address(client)
            && let Some((_, site)) = self.addresses.iter().find(|(ip, _)| *ip == local.ip())
        {
            return site;
        }
        &self.any
    }
}

/// The servers of one address by name.
#[derive(Debug, Default)]
pub struct Site {
    /// The server for names that none has.
    pub default: ServerId,
    /// All of them.
    pub servers: Vec<ServerId>,
    /// Whether names can make a difference at all.
    pub named: bool,
    /// `listen ... ssl`
    pub ssl: bool,
    /// `listen ... http2`
    pub http2: bool,
    /// `listen ... quic`
    pub quic: bool,
    /// `listen ... mqtt`
    pub mqtt: bool,
    /// `server_name a.b`
    pub exact: HashMap<Box<[u8]>, ServerId>,
    /// `*.a.b` as `.a.b`; with `true` also `a.b` itself (`.a.b`).
    pub heads: HashMap<Box<[u8]>, ServerId>,
    /// `a.b.*` as `a.b.`
    pub tails: HashMap<Box<[u8]>, ServerId>,
    /// `~...` in order.
    pub patterns: Vec<(Pattern, ServerId)>,
}

impl Site {
    /// The server for a host: exact, longest `*.x`, longest `x.*`, first pattern (`ngx_http_find_virtual_server`).
    pub fn find(&self, r: &mut Request, host: Text) -> Result<Option<ServerId>, GaveUp> {
        if !self.named {
            return Ok(None);
        }
        let name = r.get(host);
        if let Some(id) = self.find_fixed(name) {
            return Ok(Some(id));
        }
        if name.is_empty() {
            return Ok(None);
        }
        for (pattern, id) in &self.patterns {
            if pattern.exec(r, host)? {
                return Ok(Some(*id));
            }
        }
        Ok(None)
    }

    /// The same before there is a request: captures are made when it comes.
    pub fn find_early(&self, name: &[u8]) -> Result<Option<ServerId>, GaveUp> {
        if name.is_empty() {
            return Ok(None);
        }
        if let Some(id) = self.find_fixed(name) {
            return Ok(Some(id));
        }
        for (pattern, id) in &self.patterns {
            if pattern.is_match(name)? {
                return Ok(Some(*id));
            }
        }
        Ok(None)
    }

    fn find_fixed(&self, name: &[u8]) -> Option<ServerId> {
        if let Some(id) = self.exact.get(name) {
            return Some(*id);
        }
        if !self.heads.is_empty() {
            for at in memchr::memchr_iter(b'.', name) {
                // A label must stand before the dot.
                if at > 0
                    && let Some(id) = self.heads.get(&name[at..])
                {
                    return Some(*id);
                }
            }
        }
        if !self.tails.is_empty() {
            for at in memchr::memrchr_iter(b'.', name) {
                if at + 1 < name.len()
                    && let Some(id) = self.tails.get(&name[..=at])
                {
                    return Some(*id);
                }
            }
        }
        None
    }
}

/// What a look-up of a location found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// No location inside: the level itself.
    None,
    /// This one.
    Location(LocationId),
    /// This one is `/name/` with a proxy, and the uri was `/name`: a redirect.
    AutoRedirect(LocationId),
}

impl Located {
    fn or(self, around: LocationId) -> Located {
        if self == Located::None { Located::Location(around) } else { self }
    }
}

/// The locations inside a level.
#[derive(Debug, Default)]
pub struct LocationTree {
    /// Sorted by name.
    prefixes: Vec<Prefix>,
    exact: HashMap<Box<[u8]>, LocationId>,
    /// Names without their last slash, of locations that redirect there.
    redirects: HashMap<Box<[u8]>, LocationId>,
    patterns: Vec<(Pattern, LocationId)>,
    names: Vec<(Box<[u8]>, LocationId)>,
    /// There is nothing to look for.
    is_leaf: bool,
}

#[derive(Debug)]
struct Prefix {
    name: Box<[u8]>,
    id: LocationId,
    /// `^~`: no patterns after this one.
    last: bool,
    /// The longest prefix of this name that has a location too.
    shorter: Option<usize>,
}

impl LocationTree {
    /// Adds `location /x`, or `^~ /x` with `last`.
    pub fn add_prefix(&mut self, name: &[u8], id: LocationId, last: bool) {
        self.prefixes.push(Prefix { name: name.into(), id, last, shorter: None });
    }

    /// Adds `location = /x`.
    pub fn add_exact(&mut self, name: &[u8], id: LocationId) {
        self.exact.insert(name.into(), id);
    }

    /// Adds the redirect from `/x` to the location `/x/`.
    pub fn add_redirect(&mut self, name: &[u8], id: LocationId) {
        self.redirects.insert(name.into(), id);
    }

    /// Adds `location ~ x`.
    pub fn add_pattern(&mut self, pattern: Pattern, id: LocationId) {
        self.patterns.push((pattern, id));
    }

    /// Adds `location @x`, without the `@`.
    pub fn add_named(&mut self, name: &[u8], id: LocationId) {
        self.names.push((name.into(), id));
    }

    /// Call once after the last `add`.
    pub fn finish(&mut self) {
        self.is_leaf =
            self.prefixes.is_empty() && self.exact.is_empty() && self.redirects.is_empty() && self.patterns.is_empty();
        self.prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        for i in 0..self.prefixes.len() {
            let mut candidate = i.checked_sub(1);
            while let Some(c) = candidate {
                if self.prefixes[i].name.starts_with(&self.prefixes[c].name) {
                    break;
                }
                candidate = self.prefixes[c].shorter;
            }
            self.prefixes[i].shorter = candidate;
        }
    }

    /// The named location.
    pub fn named(&self, name: &[u8]) -> Located {
        match self.names.iter().find(|(n, _)| **n == *name) {
            Some((_, id)) => Located::Location(*id),
            None => Located::None,
        }
    }

    /// The location for the request's uri, nested ones included (`ngx_http_core_find_location`).
    pub fn find(&self, r: &mut Request, snapshot: &ThreadSnapshot) -> Result<Located, GaveUp> {
        Ok(self.look(r, snapshot)?.0)
    }

    /// The same, and whether it is settled. It is not where a prefix matched and no pattern inside it did: then the patterns of the
    /// levels around are asked too.
    fn look(&self, r: &mut Request, snapshot: &ThreadSnapshot) -> Result<(Located, bool), GaveUp> {
        if self.is_leaf {
            return Ok((Located::None, false));
        }
        let uri = r.get(r.head.uri);
        if let Some(id) = self.exact.get(uri) {
            return Ok((Located::Location(*id), true));
        }
        let prefix = self.longest_prefix(uri);
        if let Some(id) = self.redirects.get(uri)
            && prefix.is_none_or(|p| p.name.len() != uri.len())
        {
            return Ok((Located::AutoRedirect(*id), true));
        }
        let mut found = Located::None;
        if let Some(p) = prefix {
            let (inner, settled) = snapshot.location(p.id).inside.look(r, snapshot)?;
            found = inner.or(p.id);
            if settled {
                return Ok((found, true));
            }
        }
        if prefix.is_none_or(|p| !p.last) {
            for (pattern, id) in &self.patterns {
                if pattern.exec(r, r.head.uri)? {
                    return Ok((snapshot.location(*id).inside.look(r, snapshot)?.0.or(*id), true));
                }
            }
        }
        Ok((found, false))
    }

    fn longest_prefix(&self, uri: &[u8]) -> Option<&Prefix> {
        let mut at = match self.prefixes.binary_search_by(|p| compare(&p.name, uri)) {
            Ok(i) => Some(i),
            Err(i) => i.checked_sub(1),
        };
        while let Some(i) = at {
            let p = &self.prefixes[i];
            if uri.starts_with(&p.name) {
                return Some(p);
            }
            at = p.shorter;
        }
        None
    }
}

fn compare(name: &[u8], uri: &[u8]) -> Ordering {
    name.cmp(uri)
}
