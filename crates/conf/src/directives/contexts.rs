//! The places in which a directive may stand, as a set.

/// A set of contexts; the current place is a set of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts(u16);

impl Contexts {
    /// The main level.
    pub const MAIN: Contexts = Contexts(1);
    /// `events {}`
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// `http {}`
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// `server {}` in `http {}`
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// `if {}` in a server
    pub const IF_IN_SERVER: Contexts = Contexts(1 << 4);
    /// `location {}`
    pub const LOCATION: Contexts = Contexts(1 << 5);
    /// `if {}` in a location
    pub const IF_IN_LOCATION: Contexts = Contexts(1 << 6);
    /// `limit_except {}`
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    /// `upstream {}` in `http {}`
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// `mail {}`
    pub const MAIL: Contexts = Contexts(1 << 9);
    /// `server {}` in `mail {}`
    pub const MAIL_SERVER: Contexts = Contexts(1 << 10);
    /// `stream {}`
    pub const STREAM: Contexts = Contexts(1 << 11);
    /// `server {}` in `stream {}`
    pub const STREAM_SERVER: Contexts = Contexts(1 << 12);
    /// `upstream {}` in `stream {}`
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 13);
    /// `acme_issuer {}`
    pub const ACME_ISSUER: Contexts = Contexts(1 << 14);
    /// `oidc_provider {}`
    pub const OIDC_PROVIDER: Contexts = Contexts(1 << 15);
    /// Both kinds of `if`.
    pub const IF_ANY: Contexts = Contexts::IF_IN_SERVER.union(Contexts::IF_IN_LOCATION);
    /// `http {}` and what is in it, but for `upstream {}`.
    pub const HTTP_ALL: Contexts = Contexts::HTTP
        .union(Contexts::SERVER)
        .union(Contexts::LOCATION)
        .union(Contexts::IF_ANY)
        .union(Contexts::LIMIT_EXCEPT);
    /// `stream {}` and its servers.
    pub const STREAM_ALL: Contexts = Contexts::STREAM.union(Contexts::STREAM_SERVER);
    /// Everywhere.
    pub const ANY: Contexts = Contexts(u16::MAX);

    const NAMES: [(&'static str, Contexts); 17] = [
        ("main", Contexts::MAIN),
        ("events", Contexts::EVENTS),
        ("http", Contexts::HTTP),
        ("server", Contexts::SERVER),
        ("if-in-server", Contexts::IF_IN_SERVER),
        ("location", Contexts::LOCATION),
        ("if-in-location", Contexts::IF_IN_LOCATION),
        ("limit_except", Contexts::LIMIT_EXCEPT),
        ("upstream", Contexts::UPSTREAM),
        ("mail", Contexts::MAIL),
        ("mail-server", Contexts::MAIL_SERVER),
        ("stream", Contexts::STREAM),
        ("stream-server", Contexts::STREAM_SERVER),
        ("stream-upstream", Contexts::STREAM_UPSTREAM),
        ("acme_issuer", Contexts::ACME_ISSUER),
        ("oidc_provider", Contexts::OIDC_PROVIDER),
        ("any", Contexts::ANY),
    ];

    /// Both sets together.
    pub const fn union(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Whether all of `other` are in the set.
    pub const fn contains(self, other: Contexts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in the set.
    pub const fn intersects(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names in the set, for documentation.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES[..16].iter().filter(move |(_, context)| self.contains(*context)).map(|&(name, _)| name)
    }

    /// The set in a row of the directive table.
    pub(super) fn parse(names: &str) -> Contexts {
        let one = |name: &str| Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, context)| context);
        names
            .split(' ')
            .map(|name| one(name).expect("a context in the table is known"))
            .fold(Contexts(0), Contexts::union)
    }
}
