//! A plan goes into the maps: only what has changed is written, and in an order in which no packet meets a half of it. A real
//! server that leaves keeps its number, and its flows, until the keeper sees that it has none; so does a virtual server.

use crate::kernel::{Maps, Place, chain};
use crate::layout::{
    Addr, Back, BackKey, Field, Port, QuicKey, Real, RecentKeys, Secret, Service, ServiceKey, choice, real_flag,
    service_flag,
};
use crate::plan::{Choice, Mode, Plan, Protocol, RealServer, RealState, SOURCES_MAX, VirtualServer};
use crate::ring::{self, Member};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// Makes the maps say what the plan says. Flows that are there stay where they are.
pub fn apply(maps: &mut Maps, plan: &Plan) -> Result<(), String> {
    let problems = plan.problems();
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    put_secret(maps)?;
    if !maps.recent_begun {
        forget_recent(maps)?;
    }
    let mut state = State::read(maps)?;
    let wanted: HashSet<ServiceKey> = plan.services.iter().map(key_of).collect();
    maps.known_reals.clear();
    for (key, id) in state.ids.clone() {
        if !wanted.contains(&key) {
            state.retire(maps, id)?;
        }
    }
    let sources = put_sources(maps, plan)?;
    let mut backs = HashMap::new();
    let mut quic = HashMap::new();
    for service in &plan.services {
        let id = state.put_service(maps, plan, service, &sources)?;
        note_backs(&state, service, id, &mut backs, &mut quic);
    }
    same_entries(&mut maps.backs, backs.iter().map(|(k, v)| (k.encode(), v.encode())).collect())?;
    same_entries(&mut maps.quic_ids, quic)
}

/// New flows avoid a real server from now on, or no longer. One value is looked at, where `apply` looks at all of them: this may come many
/// times a second.
pub fn mark(maps: &mut Maps, place: &Place, full: bool) -> Result<(), String> {
    let Some(index) = maps.known_reals.get(place).copied() else { return Ok(()) };
    let mut real = Real::decode(&maps.reals.get(&index, 0).map_err(|e| chain(&e))?);
    real.flags = if full { real.flags | real_flag::FULL } else { real.flags & !real_flag::FULL };
    maps.reals.set(index, real.encode(), 0).map_err(|e| chain(&e))
}

/// What cookies are made with, once for as long as the maps are there: cookies outlive this process.
fn put_secret(maps: &mut Maps) -> Result<(), String> {
    if maps.secrets.get(&0, 0).map_err(|e| chain(&e))?.iter().any(|byte| *byte != 0) {
        return Ok(());
    }
    let secret: [u8; Secret::SIZE] = random()?;
    maps.secrets.set(0, secret, 0).map_err(|e| chain(&e))
}

/// Empties the index of recent flows, by new keys: nothing in it is found any more, and packets go by the table until it is filled anew.
pub fn forget_recent(maps: &mut Maps) -> Result<(), String> {
    let Some(map) = &mut maps.recent_keys else { return Ok(()) };
    let mut keys = RecentKeys::decode(&random()?);
    (keys.lines, keys.zero) = (maps.recent_lines, 0);
    map.set(0, keys.encode(), 0).map_err(|e| chain(&e))?;
    maps.recent_begun = true;
    Ok(())
}

/// Bytes that nobody can foresee.
fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(got) if got == N => Ok(bytes),
        Ok(got) => Err(format!("the kernel gave {got} random bytes of {N}")),
        Err(e) => Err(format!("the kernel gives no random bytes: {e}")),
    }
}

fn key_of(service: &VirtualServer) -> ServiceKey {
    ServiceKey {
        addr: service.address.ip().into(),
        port: Port(service.address.port()),
        proto: service.protocol.number(),
        zero: 0,
    }
}

/// What is in the maps.
struct State {
    ids: HashMap<ServiceKey, u32>,
    services: Vec<Service>,
    reals: Vec<Real>,
    /// Numbers of real servers, by the number of their virtual one; and those that are free.
    of_service: HashMap<u32, Vec<usize>>,
    free: BTreeSet<usize>,
    free_ids: BTreeSet<u32>,
    /// Where parts of the map of slots begin, and how long they are.
    parts: BTreeMap<u32, u32>,
}

/// A number that nobody has.
fn is_free(real: &Real) -> bool {
    real.addr == Addr::default()
}

impl State {
    fn read(maps: &Maps) -> Result<State, String> {
        let mut ids = HashMap::new();
        for entry in maps.service_ids.iter() {
            let (key, id) = entry.map_err(|e| chain(&e))?;
            ids.insert(ServiceKey::decode(&key), u32::from_ne_bytes(id));
        }
        let services = maps.services.iter().map(|s| s.map(|s| Service::decode(&s))).collect::<Result<Vec<_>, _>>();
        let reals = maps.reals.iter().map(|r| r.map(|r| Real::decode(&r))).collect::<Result<Vec<_>, _>>();
        let (services, reals) = (services.map_err(|e| chain(&e))?, reals.map_err(|e| chain(&e))?);
        let mut of_service = HashMap::<u32, Vec<usize>>::new();
        for (index, real) in reals.iter().enumerate().filter(|(_, real)| !is_free(real)) {
            of_service.entry(real.service).or_default().push(index);
        }
        let free = reals.iter().enumerate().filter(|(_, real)| is_free(real)).map(|(index, _)| index).collect();
        let known: HashSet<u32> = ids.values().copied().collect();
        let is_free_id = |(id, service): &(u32, &Service)| service.used == 0 && !known.contains(id);
        let free_ids = (0..).zip(&services).filter(is_free_id).map(|(id, _)| id).collect();
        let used = services.iter().filter(|s| s.used == 1 && s.slots > 0);
        let parts = used.map(|s| (s.ring, ring::extent(s.slots as usize))).collect();
        Ok(State { ids, services, reals, of_service, free, free_ids, parts })
    }

    /// The service begins no flow any more: who opens one is the stack's guest. What its flows still send goes on to its real servers, or is
    /// reset, as it is with a real server that has left. The keeper takes it out with the last of them.
    fn retire(&mut self, maps: &mut Maps, id: u32) -> Result<(), String> {
        let mut service = self.services[id as usize];
        if service.retired != 0 {
            return Ok(());
        }
        if service.slots > 0 {
            self.parts.remove(&service.ring);
        }
        maps.known_rings.remove(&id);
        (service.slots, service.cookies, service.retired) = (0, 0, 1);
        service.flags &= !(service_flag::ADOPT_RETURN | service_flag::AFFINITY);
        let reset = if service.flags & service_flag::DROP_REMOVED != 0 { real_flag::RESET } else { 0 };
        self.set_service(maps, id, service)?;
        for index in self.of_service.get(&id).cloned().unwrap_or_default() {
            let mut real = self.reals[index];
            (real.flags, real.weight) = (real_flag::GONE | (real.flags & real_flag::RESET) | reset, 0);
            self.set_real(maps, index, real)?;
        }
        Ok(())
    }

    /// Where a service's slots begin: where they are, if they still fit there, or in another part of the map.
    fn place_slots(&mut self, maps: &mut Maps, id: u32, slots: usize) -> Result<u32, String> {
        let now = self.services[id as usize];
        let wanted = ring::extent(slots);
        let has = if now.used == 1 && now.slots > 0 { ring::extent(now.slots as usize) } else { 0 };
        if slots == 0 || has == wanted {
            return Ok(now.ring);
        }
        maps.known_rings.remove(&id);
        let mut at = 0;
        for (begin, length) in &self.parts {
            if begin - at >= wanted {
                break;
            }
            at = begin + length;
        }
        if at.checked_add(wanted).is_none_or(|end| end > maps.rings.len()) {
            return Err("no room for the tables of more virtual servers: there is more from the next start".to_owned());
        }
        self.parts.insert(at, wanted);
        Ok(at)
    }

    fn set_service(&mut self, maps: &mut Maps, id: u32, service: Service) -> Result<(), String> {
        if self.services[id as usize] != service {
            maps.services.set(id, service.encode(), 0).map_err(|e| chain(&e))?;
            self.services[id as usize] = service;
        }
        Ok(())
    }

    fn set_real(&mut self, maps: &mut Maps, index: usize, real: Real) -> Result<(), String> {
        if self.reals[index] != real {
            maps.reals.set(index as u32, real.encode(), 0).map_err(|e| chain(&e))?;
            self.reals[index] = real;
        }
        Ok(())
    }

    fn put_service(
        &mut self,
        maps: &mut Maps,
        plan: &Plan,
        service: &VirtualServer,
        sources: &HashMap<Vec<IpAddr>, u32>,
    ) -> Result<u32, String> {
        let key = key_of(service);
        let id = match self.ids.get(&key) {
            Some(id) => *id,
            None => {
                let room = maps.services.len();
                let full =
                    || format!("no room for more than {room} virtual servers: there is more from the next start");
                self.free_ids.pop_first().ok_or_else(full)?
            }
        };
        let members = self.put_reals(maps, service, id)?;
        let slots = ring::slots(service.choice, &members);
        let before = self.services[id as usize];
        let ring = self.place_slots(maps, id, slots.len())?;
        put_slots(maps, id, ring, &slots)?;
        let tunnel = |v6: bool| plan.tunnel_source(v6).map(Addr::from).unwrap_or_default();
        let value = Service {
            idle_ns: service.idle_s.saturating_mul(1_000_000_000),
            affinity_ns: service.affinity_s.saturating_mul(1_000_000_000),
            ring,
            slots: slots.len() as u32,
            seed: seed(&key),
            sources: sources.get(&service.sources).copied().unwrap_or(0),
            source_count: service.sources.len() as u32,
            port: key.port,
            gue_port: Port(service.gue_port),
            addr: key.addr,
            tunnel4: tunnel(false),
            tunnel6: tunnel(true),
            mode: service.mode.number(),
            choice: choice_number(service.choice),
            flags: flags(service),
            proto: key.proto,
            used: 1,
            cookies: if service.protocol == Protocol::Tcp && service.mode.rewrites() { service.cookies } else { 0 },
            retired: 0,
        };
        self.set_service(maps, id, value)?;
        if before.used == 1 && before.slots > 0 && (before.ring != ring || slots.is_empty()) {
            self.parts.remove(&before.ring);
        }
        if self.ids.insert(key, id).is_none() {
            maps.service_ids.insert(key.encode(), id.to_ne_bytes(), 0).map_err(|e| chain(&e))?;
        }
        Ok(id)
    }

    /// The service's real servers, and those that left it without new flows. Answers who gets new ones.
    fn put_reals(&mut self, maps: &mut Maps, service: &VirtualServer, id: u32) -> Result<Vec<Member>, String> {
        let wanted: HashSet<(Addr, Port)> =
            service.reals.iter().map(|r| (r.address.ip().into(), Port(r.address.port()))).collect();
        for index in self.of_service.get(&id).cloned().unwrap_or_default() {
            let mut real = self.reals[index];
            if !wanted.contains(&(real.addr, real.port)) {
                let reset = if service.drop_removed { real_flag::RESET } else { 0 };
                (real.flags, real.weight) = (real_flag::GONE | reset, 0);
                self.set_real(maps, index, real)?;
            }
        }
        let mut members = Vec::new();
        for server in &service.reals {
            let index = match self.find_real(id, server) {
                Some(index) => index,
                None => {
                    let room = self.reals.len();
                    let full =
                        || format!("no room for more than {room} real servers: there is more from the next start");
                    let index = self.free.pop_first().ok_or_else(full)?;
                    self.of_service.entry(id).or_default().push(index);
                    maps.active.set(index as u32, 0, 0).map_err(|e| chain(&e))?;
                    clear_counters(maps, index as u32)?;
                    index
                }
            };
            let place = (service.address, service.protocol.number(), server.address);
            maps.known_reals.insert(place, index as u32);
            let usable = server.state == RealState::Up && server.weight > 0;
            let mut bits = 0;
            bits |= if usable { real_flag::USABLE } else { 0 };
            bits |= if server.full { real_flag::FULL } else { 0 };
            bits |= if server.state == RealState::Reset { real_flag::RESET } else { 0 };
            let real = Real {
                addr: server.address.ip().into(),
                port: Port(server.address.port()),
                flags: bits,
                service: id,
                weight: if usable { server.weight } else { 0 },
                mtu: self.reals[index].mtu,
            };
            self.set_real(maps, index, real)?;
            if usable {
                members.push(Member { index: index as u32, name: server.address.to_string(), weight: server.weight });
            }
        }
        Ok(members)
    }

    fn find_real(&self, id: u32, server: &RealServer) -> Option<usize> {
        let (addr, port) = (Addr::from(server.address.ip()), Port(server.address.port()));
        let is = |index: &usize| self.reals[*index].addr == addr && self.reals[*index].port == port;
        self.of_service.get(&id)?.iter().copied().find(is)
    }
}

/// Slots that are the same are not written: a table changes by about a hundredth when one of a hundred servers comes.
fn put_slots(maps: &mut Maps, id: u32, ring: u32, slots: &[u32]) -> Result<(), String> {
    let known = maps.known_rings.remove(&id).filter(|(at, _)| *at == ring).map(|(_, known)| known).unwrap_or_default();
    for ((at, real), place) in (ring..).zip(slots).zip(0..) {
        // What this process wrote it need not read.
        let before = match known.get(place) {
            Some(before) => *before,
            None => maps.rings.get(&at, 0).map_err(|e| chain(&e))?,
        };
        if before != *real {
            maps.rings.set(at, *real, 0).map_err(|e| chain(&e))?;
        }
    }
    maps.known_rings.insert(id, (ring, slots.to_vec()));
    Ok(())
}

/// Full NAT's source addresses one after the other; services with the same ones share them.
fn put_sources(maps: &mut Maps, plan: &Plan) -> Result<HashMap<Vec<IpAddr>, u32>, String> {
    let mut places = HashMap::new();
    let mut next = 0;
    for service in plan.services.iter().filter(|s| s.mode == Mode::FullNat) {
        if places.contains_key(&service.sources) {
            continue;
        }
        places.insert(service.sources.clone(), next);
        for source in &service.sources {
            if next >= SOURCES_MAX {
                return Err(format!("more than {SOURCES_MAX} source addresses"));
            }
            let mut bytes = [0; Addr::SIZE];
            Addr::from(*source).put(&mut bytes);
            maps.sources.set(next, bytes, 0).map_err(|e| chain(&e))?;
            next += 1;
        }
    }
    Ok(places)
}

fn note_backs(
    state: &State,
    service: &VirtualServer,
    id: u32,
    backs: &mut HashMap<BackKey, Back>,
    quic: &mut HashMap<[u8; QuicKey::SIZE], u32>,
) {
    for server in &service.reals {
        let Some(index) = state.find_real(id, server) else { continue };
        if service.mode == Mode::Nat {
            let proto = service.protocol.number();
            let key = BackKey { addr: server.address.ip().into(), port: Port(server.address.port()), proto, zero: 0 };
            backs.entry(key).and_modify(|b| b.many = 1).or_insert(Back { service: id, real: index as u32, many: 0 });
        }
        if let (true, Some(server_id)) = (service.quic, server.server_id) {
            quic.insert(QuicKey { service: id, server_id, zero: 0 }.encode(), index as u32);
        }
    }
}

/// The map holds these entries and no others.
fn same_entries<K: aya::Pod + Eq + std::hash::Hash, V: aya::Pod + PartialEq>(
    map: &mut aya::maps::HashMap<aya::maps::MapData, K, V>,
    wanted: HashMap<K, V>,
) -> Result<(), String> {
    let there: Vec<K> = map.keys().collect::<Result<_, _>>().map_err(|e| chain(&e))?;
    for key in there.iter().filter(|key| !wanted.contains_key(key)) {
        map.remove(key).map_err(|e| chain(&e))?;
    }
    for (key, value) in &wanted {
        if !map.get(key, 0).is_ok_and(|v| v == *value) {
            map.insert(key, value, 0).map_err(|e| chain(&e))?;
        }
    }
    Ok(())
}

/// Takes a service out of the maps: its address is the stack's again, and so is what its flows still send.
pub(crate) fn remove_service(maps: &mut Maps, id: u32, service: &Service) -> Result<(), String> {
    let key = ServiceKey { addr: service.addr, port: service.port, proto: service.proto, zero: 0 };
    maps.service_ids.remove(&key.encode()).map_err(|e| chain(&e))?;
    maps.services.set(id, Service::default().encode(), 0).map_err(|e| chain(&e))?;
    for index in 0..maps.reals.len() {
        let real = Real::decode(&maps.reals.get(&index, 0).map_err(|e| chain(&e))?);
        if !is_free(&real) && real.service == id {
            free_real(maps, index)?;
        }
    }
    // Its number may be another's from now on.
    forget_recent(maps)
}

/// The number is free again.
pub(crate) fn free_real(maps: &mut Maps, index: u32) -> Result<(), String> {
    maps.reals.set(index, Real::default().encode(), 0).map_err(|e| chain(&e))?;
    maps.active.set(index, 0, 0).map_err(|e| chain(&e))?;
    clear_counters(maps, index)
}

/// A real server that gets a number begins at zero.
fn clear_counters(maps: &mut Maps, index: u32) -> Result<(), String> {
    let count = maps.counters.get(&index, 0).map_err(|e| chain(&e))?.len();
    let zero = aya::maps::PerCpuValues::try_from(vec![[0; crate::layout::Counters::SIZE]; count])
        .map_err(|e| e.to_string())?;
    maps.counters.set(index, zero, 0).map_err(|e| chain(&e))
}

fn choice_number(choice: Choice) -> u8 {
    match choice {
        Choice::Maglev | Choice::SourceHash => choice::HASH,
        Choice::RoundRobin => choice::TURN,
        Choice::LeastConn => choice::LEAST,
    }
}

fn flags(service: &VirtualServer) -> u8 {
    let bits = [
        (service.reset && service.protocol == Protocol::Tcp, service_flag::RESET),
        (service.adopt_return && service.mode == Mode::Nat, service_flag::ADOPT_RETURN),
        (service.affinity_s > 0, service_flag::AFFINITY),
        (service.choice == Choice::Maglev, service_flag::HASH_PORT),
        (service.quic, service_flag::QUIC),
        (service.drop_removed, service_flag::DROP_REMOVED),
    ];
    bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit)
}

/// The same for every balancer of the service.
fn seed(key: &ServiceKey) -> u32 {
    key.encode().iter().fold(0x811c_9dc5, |h, byte| (h ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
