//! The `server` lines of a group and the peers they stand for. To: `group` (the peers in their ranks). Lines change while
//! the server runs: names are followed (`live`), and whoever may edits them (`Group::edit`), which a `state` file keeps.

use super::availability::{AtomicAvailability, Role};
use super::group::{Group, Method, Tier, Tiers};
use super::live::{self, Host};
use super::peer::{Peer, PeerSettings, PeerState, name_of, state_of};
use crate::connection::Address;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

/// Lines that a group may have: beyond, whoever adds them has lost count.
pub const MAX_SERVERS: usize = 10_000;

/// One `server` line. A name that is looked up once gives a line for each of its addresses.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number in the group. Peers of fixed lines have the number of their line.
    pub id: u32,
    /// The server as it was written.
    pub server: Box<str>,
    /// What it says of its peers.
    pub settings: PeerSettings,
    /// What it is meant for where the line was written, whatever the operator said since.
    written: Role,
    /// `backup`
    pub backup: bool,
    /// `service`
    pub service: Option<Box<str>>,
    /// Where its peers are.
    pub at: At,
}

/// Where a line's peers are.
#[derive(Clone, Debug)]
pub enum At {
    /// An address that stays, and what is known of its peer.
    Fixed(Address, Arc<PeerState>),
    /// A name that is followed, and the port where the answer has none.
    Named(Arc<Host>, u16),
}

impl At {
    /// Where what the operator says of the line is kept, since it outlives reloads.
    fn availability(&self) -> &AtomicAvailability {
        match self {
            At::Fixed(_, state) => &state.availability,
            At::Named(host, _) => &host.availability,
        }
    }
}

/// The lines of a group.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    /// What the group's states are known by.
    pub key: Box<str>,
    /// In order.
    pub lines: Vec<Line>,
    /// Numbers are given once.
    next_id: u32,
    /// Of the peers of names: by line and address.
    ids: HashMap<(u32, SocketAddr), u32>,
}

/// Why lines stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditError {
    /// The group has no `zone`, so its lines are the configuration's.
    Fixed,
    /// No line, or no peer, has this number.
    NotFound,
    /// The `zone` has room for so many servers, which are there.
    Full(usize),
    /// What is asked for cannot be; in words.
    Invalid(String),
    /// The `state` file cannot be written; in words. Nothing was changed.
    State(String),
}

impl Servers {
    /// No lines yet. `key`: see [`super::group::key_of`].
    pub fn new(key: &str) -> Servers {
        Servers { key: key.into(), ..Servers::default() }
    }

    /// Adds a line for an address.
    pub fn add_fixed(&mut self, server: &str, address: Address, settings: PeerSettings, backup: bool) -> u32 {
        let same = |l: &&Line| matches!(&l.at, At::Fixed(a, _) if *a == address);
        let ordinal = self.lines.iter().filter(same).count();
        let state = state_of(&self.key, &name_of(&address), ordinal);
        let id = self.take_id();
        let at = At::Fixed(address, state);
        let (server, written) = (server.into(), settings.role);
        self.lines.push(Line { id, server, settings, written, backup, service: None, at });
        id
    }

    /// Adds a line for a name that is followed.
    pub fn add_named(
        &mut self,
        server: &str,
        (host, port): (&str, u16),
        service: Option<&str>,
        settings: PeerSettings,
        backup: bool,
    ) -> u32 {
        let at = At::Named(Host::find(&self.key, host, service), port);
        let id = self.take_id();
        let (server, written, service) = (server.into(), settings.role, service.map(Box::from));
        self.lines.push(Line { id, server, settings, written, backup, service, at });
        id
    }

    fn take_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// What the operator said of lines before a reload still holds.
    pub fn take_roles(&mut self) {
        for line in &mut self.lines {
            line.settings.role = line.at.availability().now().role().unwrap_or(line.settings.role);
        }
    }

    /// The lines themselves have what was said of them.
    pub fn forget_roles(&self) {
        self.lines.iter().for_each(|line| line.at.availability().set_role(None));
    }

    /// Notes what the operator has said, for reloads to come. `before`: the lines before the change.
    pub fn note_roles(&self, before: &Servers) {
        for old in &before.lines {
            match self.lines.iter().find(|new| new.id == old.id) {
                None => old.at.availability().set_role(None),
                Some(new) if new.settings.role != old.settings.role => {
                    old.at.availability().set_role(None);
                    new.at.availability().set_role((new.settings.role != new.written).then_some(new.settings.role));
                }
                Some(_) => {}
            }
        }
    }

    /// Whether any of them is a name that is followed.
    pub fn has_names(&self) -> bool {
        self.lines.iter().any(|l| matches!(l.at, At::Named(..)))
    }

    /// The names that are followed.
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.lines.iter().filter_map(|l| match &l.at {
            At::Named(host, _) => Some(host),
            At::Fixed(..) => None,
        })
    }

    /// The peers as they are known now: first the fixed ones, then those of names, as in nginx. `sessions`: they get
    /// names for sessions.
    pub fn assemble(&mut self, method: &Method, sessions: bool) -> Tiers {
        let mut tiers = [Tier::default(), Tier::default()];
        for line in &self.lines {
            let At::Fixed(address, state) = &line.at else { continue };
            let peer = Peer::with_state(&line.server, address.clone(), state.clone());
            let peer = Peer { id: line.id, settings: line.settings.clone(), ..peer };
            tiers[usize::from(line.backup)].peers.push(Arc::new(peer));
        }
        for line in 0..self.lines.len() {
            self.assemble_named(line, &mut tiers);
        }
        tiers[0].alone = tiers[1].peers.is_empty();
        for tier in &mut tiers {
            tier.prepare(method, sessions);
        }
        tiers
    }

    fn assemble_named(&mut self, line: usize, tiers: &mut Tiers) {
        let Line { id: line_id, server, settings, backup, at: At::Named(host, port), .. } = &self.lines[line] else {
            return;
        };
        for place in host.places() {
            let mut address = place.address;
            if address.port() == 0 {
                address.set_port(*port);
            }
            let id = *self.ids.entry((*line_id, address)).or_insert_with(|| {
                self.next_id += 1;
                self.next_id - 1
            });
            let address = Address::Inet(address);
            let ordinal = tiers.iter().flat_map(|t| &t.peers).filter(|p| p.address == address).count();
            let peer = Peer::new(&self.key, place.target.as_deref().unwrap_or(server), address, ordinal);
            let mut settings = settings.clone();
            if settings.weight == 1 {
                settings.weight = place.weight.unwrap_or(1).max(1);
            }
            tiers[usize::from(*backup || place.backup)].peers.push(Arc::new(Peer { id, settings, ..peer }));
        }
    }

    /// The lines as a `state` file has them.
    pub fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |text, line| text + &line.text() + "\n")
    }
}

impl Line {
    /// The line as a configuration has it.
    fn text(&self) -> String {
        // An address that came of a name looked up once is kept as the address it was.
        let mut text = match &self.at {
            At::Fixed(address, _) => format!("server {}", name_of(address)),
            At::Named(..) => format!("server {} resolve", self.server),
        };
        let PeerSettings { weight, max_conns, policy, slow_start_ms, role, route, keepalive: _ } = &self.settings;
        let standard = PeerSettings::default();
        let mut number = |name: &str, value: u64, default: u64, unit: &str| {
            if value != default {
                let _ = write!(text, " {name}={value}{unit}");
            }
        };
        number("weight", u64::from(*weight), 1, "");
        number("max_conns", u64::from(*max_conns), 0, "");
        number("max_fails", u64::from(policy.max_fails), u64::from(standard.policy.max_fails), "");
        number("fail_timeout", policy.fail_timeout_s, standard.policy.fail_timeout_s, "s");
        number("slow_start", *slow_start_ms, 0, "ms");
        if let Some(service) = &self.service {
            let _ = write!(text, " service={service}");
        }
        if !route.is_empty() {
            let _ = write!(text, " route={route}");
        }
        text.push_str(if self.backup { " backup" } else { "" });
        text.push_str(match role {
            Role::Up => "",
            Role::Drain => " drain",
            Role::Down => " down",
        });
        text + ";"
    }
}

impl Group {
    /// The lines as they are now; empty for a group without `zone`.
    pub fn servers(&self) -> Vec<Line> {
        self.live.as_ref().map_or_else(Vec::new, |live| live.servers().lines)
    }

    /// Changes the lines: all threads choose among the new peers from their next request on. May wait for the disk, so
    /// not on a worker thread. If `change` fails nothing is changed.
    ///
    /// # Errors
    /// What `change` says, and see [`EditError`].
    pub fn edit<T>(
        self: &Arc<Group>,
        change: impl FnOnce(&mut Servers) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let live = self.live.as_ref().ok_or(EditError::Fixed)?;
        let done = live.edit(self, change)?;
        live::follow_names(self);
        Ok(done)
    }
}
