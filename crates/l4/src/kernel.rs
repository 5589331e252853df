//! Loads the program, pins it with its maps under a folder of a BPF file system, and attaches it. What is pinned outlives
//! the process: packets go on while nobody runs, and the next process finds flows as they are.

use crate::layout::{
    Addr, Affinity, AffinityKey, Back, BackKey, Counters, Field, Flow, FlowKey, FragmentKey, LEAST_MAX, LINKS, Link,
    QuicKey, RING_SLOTS, Real, RecentKeys, Secret, Service, ServiceKey,
};
use crate::plan::{Choice, Mode, Plan, REALS_MAX, REALS_ROOM, SERVICES_MAX, SERVICES_ROOM, SOURCES_MAX, VirtualServer};
use crate::ring::extent;
use crate::{former, links};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The program, as clang made it of `bpf/l4.bpf.c`.
static PROGRAM: &[u8] = aya::include_bytes_aligned!("../bpf/l4.o");
/// The programs for the other ends, of `bpf/decap.bpf.c`.
static OTHERS: &[u8] = aya::include_bytes_aligned!("../bpf/decap.o");
/// Destinations whose next hop each CPU remembers (`HOPS`): the program's, and not to be changed here.
const HOPS: u32 = 1024;
/// Entries in a line of the index of recent flows (`RECENT_WAYS`), of which each of full NAT takes two; and its fewest lines.
const RECENT_WAYS: u32 = 4;
const RECENT_MIN: u32 = 256;
/// Bytes of such a line: one of the processor's cache.
pub const RECENT_LINE: usize = 64;
const PROGRAM_NAME: &str = "ironweir_l4";
/// Changes with `types.h`, so that no process reads maps of another version's layout.
const LAYOUT: &str = "v2";
/// Where everything is pinned unless it is said.
pub const PINS: &str = "/sys/fs/bpf/ironweir-l4";
/// What tells a BPF file system from others (`BPF_FS_MAGIC` in linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// A folder that stands at the top of a BPF file system that was mounted for pins: it goes with them.
const MOUNTED: &str = "mounted-for-pins";
/// Files that the kernel puts at the top of each.
const OF_THE_KERNEL: [&str; 2] = ["maps.debug", "progs.debug"];
/// What was pinned by versions whose index of recent flows has other words in it.
const FORMER: &str = "recent";

/// All maps that user space reads or writes, by the names they have in `bpf/maps.h`.
pub struct Maps {
    /// Which service an address and port is.
    pub service_ids: HashMap<MapData, [u8; ServiceKey::SIZE], [u8; 4]>,
    /// Services by number.
    pub services: Array<MapData, [u8; Service::SIZE]>,
    /// Real servers by number.
    pub reals: Array<MapData, [u8; Real::SIZE]>,
    /// Flows each real server has.
    pub active: Array<MapData, u64>,
    /// Whose turn it is.
    pub turns: Array<MapData, u64>,
    /// Maglev tables and lists of turns.
    pub rings: Array<MapData, u32>,
    /// Full NAT's source addresses.
    pub sources: Array<MapData, [u8; Addr::SIZE]>,
    /// Flows.
    pub flows: HashMap<MapData, [u8; FlowKey::SIZE], [u8; Flow::SIZE]>,
    /// Datagrams in fragments.
    pub fragments: HashMap<MapData, [u8; FragmentKey::SIZE], [u8; Flow::SIZE]>,
    /// Clients and where their last flow went.
    pub affinities: HashMap<MapData, [u8; AffinityKey::SIZE], [u8; Affinity::SIZE]>,
    /// Services by their real servers' addresses.
    pub backs: HashMap<MapData, [u8; BackKey::SIZE], [u8; Back::SIZE]>,
    /// Real servers by the number in QUIC's connection ids.
    pub quic_ids: HashMap<MapData, [u8; QuicKey::SIZE], u32>,
    /// Counters of real servers.
    pub counters: PerCpuArray<MapData, [u8; Counters::SIZE]>,
    /// What SYN cookies are made with.
    pub secrets: Array<MapData, [u8; Secret::SIZE]>,
    /// What the index of recent flows is hashed with; none with the maps of a version that has no such index.
    pub recent_keys: Option<Array<MapData, [u8; RecentKeys::SIZE]>>,
    /// That index, as bytes; none with the maps of such a version.
    pub recent: Option<Array<MapData, [u8; RECENT_LINE]>>,
    /// Lines of that index.
    pub recent_lines: u32,
    /// This process has given it keys.
    pub recent_begun: bool,
    /// Link addresses of interfaces.
    pub links: Option<Array<MapData, [u8; Link::SIZE]>>,
    /// Counters of the whole.
    pub events: PerCpuArray<MapData, u64>,
    /// Entries that `flows` has room for.
    pub flow_room: u32,
    /// What this process has put into the parts of `rings`, by service: where its part begins, and its slots.
    pub known_rings: std::collections::HashMap<u32, (u32, Vec<u32>)>,
    /// Numbers of the real servers of the plan that was put in last.
    pub known_reals: std::collections::HashMap<Place, u32>,
}

/// A real server of a virtual one: that one's address and protocol, and its own address.
pub type Place = (SocketAddr, u8, SocketAddr);

/// Names of maps, and how many entries each has beside a plan.
fn sizes(plan: &Plan) -> Vec<(&'static str, u32)> {
    // A flow of NAT has an entry for each direction.
    let flows = plan.flow_room().saturating_mul(2);
    let is_wide = plan.services.iter().any(|s| s.mode == Mode::FullNat);
    // User space reads these now and then, one entry a call: so they are no larger than they need to be.
    let services = twice(plan.services.len()).clamp(SERVICES_ROOM, SERVICES_MAX);
    let reals = twice(plan.real_count()).clamp(REALS_ROOM, REALS_MAX);
    vec![
        ("service_ids", services),
        ("services", services),
        ("turns", services),
        ("rings", ring_room(plan)),
        ("reals", reals),
        ("active", reals),
        ("real_counters", reals),
        ("backs", reals),
        ("quic_ids", reals),
        ("sources", SOURCES_MAX),
        ("flows", flows),
        ("recent_lines", (flows / RECENT_WAYS).saturating_mul(if is_wide { 2 } else { 1 }).max(RECENT_MIN)),
        ("recent_keys", 1),
        ("fragments", (flows / 16).max(1024)),
        ("affinities", (flows / 4).max(1024)),
        ("events", crate::layout::EVENTS.len() as u32),
        ("hops", HOPS),
        ("resets", 65536),
        ("syn_rates", services),
        ("secrets", 1),
    ]
}

fn twice(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX).saturating_mul(2)
}

/// Slots for the virtual servers of a plan, and for [`SERVICES_ROOM`] more with a Maglev table each.
fn ring_room(plan: &Plan) -> u32 {
    let most = |s: &VirtualServer| match s.choice {
        Choice::Maglev | Choice::SourceHash => RING_SLOTS as usize,
        Choice::RoundRobin => s.reals.iter().fold(0, |sum: usize, r| sum.saturating_add(r.weight as usize)),
        Choice::LeastConn => LEAST_MAX,
    };
    let now = plan.services.iter().map(|s| extent(most(s))).fold(0, u32::saturating_add);
    now.saturating_add(SERVICES_ROOM * RING_SLOTS)
}

/// The entries of a map that is pinned: the loader takes it as it is, and would not know how large that is.
fn pinned_size(pin: &Path) -> Option<u32> {
    MapData::from_pin(pin).ok()?.info().ok().map(|info| info.max_entries())
}

/// How pins of links begin: of the driver's XDP, and of generic XDP, which a link does not say of itself.
const PREFIXES: [(&str, bool); 2] = [("link-", true), ("generic-", false)];

/// A link that has lost its pin is taken off its interface by the kernel's own work, a moment later: so often, and so long, is waited.
const DETACH_TRIES: u32 = 50;
const DETACH_PAUSE: Duration = Duration::from_millis(10);

/// What was found pinned for an interface.
#[derive(PartialEq)]
enum Known {
    None,
    /// It has the program now.
    Taken,
    /// It was of the other kind.
    TakenAway,
}

/// The program in the kernel, loaded by this process.
pub struct Kernel {
    ebpf: Ebpf,
    /// Its maps.
    pub maps: Maps,
    /// Flows that were reset, for the keeper.
    pub resets: RingBuf<MapData>,
    /// Interfaces that this process has given the program to.
    pub interfaces: BTreeSet<String>,
    /// What is worth a line in a log: what was pinned was another version's.
    pub warning: Option<String>,
}

impl Kernel {
    /// Loads the program. With `pins`, its maps are those that are pinned there already, or new ones are pinned.
    ///
    /// Errors say what the kernel refused, the verifier's words included.
    pub fn load(plan: &Plan, pins: Option<&Path>) -> Result<Kernel, String> {
        let sizes = sizes(plan);
        let folder = pins.map(|pins| pins.join(LAYOUT));
        let mut loader = EbpfLoader::new();
        let mut warning = None;
        if let Some(folder) = &folder {
            make_folder(folder)?;
            let _ = std::fs::remove_file(folder.join(FORMER));
            warning = take_from_others(folder, &sizes)?;
        }
        for (name, size) in &sizes {
            let pin = folder.as_ref().map(|folder| folder.join(name));
            loader.map_max_entries(name, pin.as_deref().and_then(pinned_size).unwrap_or(*size));
            if let Some(pin) = pin {
                loader.map_pin_path(name, pin);
            }
        }
        // Goes with the program, which looks at no other: so it is not pinned.
        loader.map_max_entries("links", LINKS);
        let mut ebpf = loader.load(PROGRAM).map_err(|e| format!("cannot load the program's maps: {}", chain(&e)))?;
        program(&mut ebpf, PROGRAM_NAME)?.load().map_err(|e| format!("cannot load the program: {}", chain(&e)))?;
        let maps = Maps::from(|name| ebpf.take_map(name).ok_or_else(|| format!("the program has no map \"{name}\"")))?;
        let resets = ebpf.take_map("resets").ok_or("the program has no map \"resets\"")?;
        let resets = RingBuf::try_from(resets).map_err(|e| chain(&e))?;
        Ok(Kernel { ebpf, maps, resets, interfaces: BTreeSet::new(), warning })
    }

    /// Attaches the program to an interface and pins the link, or puts it in the place of the one that is pinned there.
    /// The answer says whether it is the driver's XDP (true) or generic XDP.
    pub fn attach(&mut self, interface: &str, generic: bool, pins: &Path) -> Result<bool, String> {
        self.interfaces.insert(interface.to_owned());
        links::put(&mut self.maps, &self.interfaces)?;
        let known = self.take_over(interface, generic, pins)?;
        if known == Known::Taken {
            return Ok(!generic);
        }
        let program = program(&mut self.ebpf, PROGRAM_NAME)?;
        let mut attach = || match program.attach(interface, if generic { XdpMode::Skb } else { XdpMode::Driver }) {
            Err(e) if !generic && !is_unknown(&e) => (program.attach(interface, XdpMode::Skb).map_err(|_| e), false),
            other => (other, !generic),
        };
        let (mut id, mut native) = attach();
        let mut tries = if known == Known::TakenAway { DETACH_TRIES } else { 0 };
        while id.is_err() && tries > 0 {
            std::thread::sleep(DETACH_PAUSE);
            tries -= 1;
            (id, native) = attach();
        }
        let id = id.map_err(|e| format!("{interface}: cannot attach XDP: {}", chain(&e)))?;
        let link = program.take_link(id).map_err(|e| chain(&e))?;
        let link = FdLink::try_from(link).map_err(|e| chain(&e))?;
        let prefix = PREFIXES[usize::from(!native)].0;
        let pin = pins.join(LAYOUT).join(format!("{prefix}{interface}"));
        link.pin(&pin).map_err(|e| format!("{}: {}", pin.display(), chain(&e)))?;
        Ok(native)
    }

    /// Puts the program in the place of the one that is pinned for an interface. One of the other kind is taken away.
    fn take_over(&mut self, interface: &str, generic: bool, pins: &Path) -> Result<Known, String> {
        let mut known = Known::None;
        for (prefix, native) in PREFIXES {
            let pin = pins.join(LAYOUT).join(format!("{prefix}{interface}"));
            let Ok(pinned) = PinnedLink::from_pin(&pin) else { continue };
            if native != generic {
                let link = XdpLink::try_from(FdLink::from(pinned)).map_err(|e| chain(&e))?;
                let program = program(&mut self.ebpf, PROGRAM_NAME)?;
                if let Ok(id) = program.attach_to_link(link) {
                    // The pin holds the link; ours may go.
                    drop(program.take_link(id).map_err(|e| chain(&e))?);
                    return Ok(Known::Taken);
                }
                // The interface the link was for is gone, and with it what the link did.
            }
            std::fs::remove_file(&pin).map_err(|e| format!("{}: {e}", pin.display()))?;
            known = Known::TakenAway;
        }
        Ok(known)
    }

    /// The program itself, for `BPF_PROG_TEST_RUN`.
    pub fn program(&mut self) -> Result<&mut Xdp, String> {
        program(&mut self.ebpf, PROGRAM_NAME)
    }
}

/// Keeps the links that another version has pinned, and not its maps. The answer says so.
fn take_from_others(folder: &Path, sizes: &[(&'static str, u32)]) -> Result<Option<String>, String> {
    let names: Vec<&str> = sizes.iter().map(|(name, _)| *name).collect();
    let pins = folder.parent().unwrap_or(folder);
    let versions = former::gather(pins, folder, |name| device_of(name).is_some())?;
    let misshapen = former::forget_misshapen(folder, PROGRAM, &names)?;
    let why = match (versions.is_empty(), misshapen) {
        (false, _) => format!("of version {}, this one's is {LAYOUT}", versions.join(", ")),
        (true, Some(map)) => format!("of another version (\"{map}\" has another size)"),
        (true, None) => return Ok(None),
    };
    Ok(Some(format!(
        "xdp_pins {}: the maps that were there are {why}: new ones are made, which know no flow that began before; where servers are chosen by hash \
         (\"maglev\", \"hash\") those go on, others end",
        pins.display()
    )))
}

/// The interface whose link has this pin.
fn device_of(pin: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|(prefix, _)| pin.strip_prefix(prefix))
}

fn is_unknown(e: &aya::programs::ProgramError) -> bool {
    matches!(e, aya::programs::ProgramError::UnknownInterface { .. })
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program \"{name}\""))?;
    program.try_into().map_err(|e| chain(&e))
}

/// The programs for the other ends, not yet loaded: `ironweir_decap` and `ironweir_pass`.
pub fn others() -> Result<Ebpf, String> {
    Ebpf::load(OTHERS).map_err(|e| chain(&e))
}

/// Whether the kernel takes a program from this process: one that does nothing is loaded, and gone again.
pub fn try_out() -> Result<(), String> {
    program(&mut others()?, "ironweir_pass")?.load().map_err(|e| chain(&e))
}

/// Takes the program off an interface that it was attached to with these pins. Packets there go by it from now on.
pub fn detach(interface: &str, pins: &Path) -> Result<(), String> {
    for (prefix, _) in PREFIXES {
        let pin = pins.join(LAYOUT).join(format!("{prefix}{interface}"));
        match std::fs::remove_file(&pin) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", pin.display())),
            _ => {}
        }
    }
    Ok(())
}

/// Bytes that the kernel holds for the table of flows, as `/proc/self/fdinfo` says.
pub fn memory(maps: &Maps) -> Option<u64> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fdinfo") else { return None };
    let wanted = format!("max_entries:\t{}", maps.flow_room);
    let text = |e: std::fs::DirEntry| std::fs::read_to_string(e.path()).ok();
    let found =
        folder.flatten().filter_map(text).find(|text| text.contains("map_type:\t9\n") && text.contains(&wanted))?;
    found.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

/// Attaches `ironweir_decap` (a real server's end of tunnels) or `ironweir_pass` to an interface, pinned under `pins`.
pub fn attach_other(name: &str, interface: &str, generic: bool, pins: &Path) -> Result<(), String> {
    let folder = pins.join(LAYOUT);
    make_folder(&folder)?;
    let mut ebpf = others()?;
    let program = program(&mut ebpf, name)?;
    program.load().map_err(|e| chain(&e))?;
    let mode = if generic { XdpMode::Skb } else { XdpMode::Default };
    let id = program.attach(interface, mode).map_err(|e| format!("{interface}: {}", chain(&e)))?;
    let link = program.take_link(id).map_err(|e| chain(&e))?;
    let link = FdLink::try_from(link).map_err(|e| chain(&e))?;
    let pin = folder.join(format!("link-{interface}"));
    link.pin(&pin).map_err(|e| format!("{}: {}", pin.display(), chain(&e)))?;
    Ok(())
}

impl Maps {
    /// The maps of a balancer that runs, or ran, with these pins.
    pub fn open(pins: &Path) -> Result<Maps, String> {
        let folder = pins.join(LAYOUT);
        if !folder.join("services").exists() {
            let others = former::folders(pins, &folder);
            let whose = if others.is_empty() { "no balancer has" } else { "a balancer of another version has" };
            return Err(format!("{whose} its maps in {}", pins.display()));
        }
        Maps::from(|name| {
            let path = folder.join(name);
            let data = MapData::from_pin(&path).map_err(|e| format!("{}: {}", path.display(), chain(&e)))?;
            Map::from_map_data(data).map_err(|e| chain(&e))
        })
    }

    fn from(mut map: impl FnMut(&str) -> Result<Map, String>) -> Result<Maps, String> {
        macro_rules! take {
            ($name:literal) => {
                map($name)?.try_into().map_err(|e| format!("map \"{}\": {}", $name, chain(&e)))?
            };
        }
        let flows = map("flows")?;
        let flow_room = match &flows {
            Map::LruHashMap(data) => data.info().map_err(|e| chain(&e))?.max_entries(),
            _ => 0,
        };
        let recent: Option<Array<MapData, [u8; RECENT_LINE]>> =
            map("recent_lines").ok().and_then(|lines| lines.try_into().ok());
        Ok(Maps {
            flow_room,
            recent_lines: recent.as_ref().map_or(0, |lines| lines.len()),
            recent,
            recent_begun: false,
            recent_keys: map("recent_keys").ok().and_then(|keys| keys.try_into().ok()),
            known_rings: std::collections::HashMap::new(),
            known_reals: std::collections::HashMap::new(),
            service_ids: take!("service_ids"),
            services: take!("services"),
            reals: take!("reals"),
            active: take!("active"),
            turns: take!("turns"),
            rings: take!("rings"),
            sources: take!("sources"),
            flows: flows.try_into().map_err(|e| format!("map \"flows\": {}", chain(&e)))?,
            fragments: take!("fragments"),
            affinities: take!("affinities"),
            backs: take!("backs"),
            quic_ids: take!("quic_ids"),
            secrets: take!("secrets"),
            links: map("links").ok().and_then(|links| links.try_into().ok()),
            counters: take!("real_counters"),
            events: take!("events"),
        })
    }
}

pub(crate) fn said(path: &Path, e: &std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

/// The path, or the nearest folder around it that is there, is in a BPF file system.
fn is_bpf_fs(path: &Path) -> Result<bool, String> {
    let mut existing: PathBuf = path.to_owned();
    while !existing.exists() && existing.pop() {}
    let kind = rustix::fs::statfs(&existing).map_err(|e| said(&existing, &e.into()))?.f_type;
    Ok(kind as i64 == BPF_FS_MAGIC)
}

/// Why nothing can be pinned in a folder; none if it can. A BPF file system that is mounted over it would hide what is in it.
pub fn unfit_for_pins(pins: &Path) -> Option<String> {
    match is_bpf_fs(pins) {
        Ok(true) => return None,
        Ok(false) => {}
        Err(text) => return Some(text),
    }
    let is_empty = match std::fs::read_dir(pins) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => true,
        Err(e) => return Some(said(pins, &e)),
    };
    (!is_empty).then(|| {
        format!(
            "{}: a BPF file system would be mounted there, and hide what is in the folder: take an empty one, or one below /sys/fs/bpf",
            pins.display()
        )
    })
}

/// Makes the folder, and a BPF file system around it if there is none: outside one nothing can be pinned.
fn make_folder(folder: &Path) -> Result<(), String> {
    let top = folder.parent().unwrap_or(folder);
    if !is_bpf_fs(top)? {
        if let Some(text) = unfit_for_pins(top) {
            return Err(text);
        }
        std::fs::create_dir_all(top).map_err(|e| said(top, &e))?;
        rustix::mount::mount(c"bpf", top, c"bpf", rustix::mount::MountFlags::empty(), None)
            .map_err(|e| said(top, &e.into()))?;
        let mark = top.join(MOUNTED);
        std::fs::create_dir(&mark).map_err(|e| said(&mark, &e))?;
    }
    std::fs::create_dir_all(folder).map_err(|e| said(folder, &e))
}

/// Takes away the BPF file system that was mounted for these pins, once nothing of ours or another's is in it.
fn unmount(pins: &Path) -> Result<(), String> {
    let mark = pins.join(MOUNTED);
    let is_own = |name: &std::ffi::OsStr| name == MOUNTED || OF_THE_KERNEL.iter().any(|own| name == *own);
    let is_last = std::fs::read_dir(pins).is_ok_and(|mut all| all.all(|e| e.is_ok_and(|e| is_own(&e.file_name()))));
    if !is_last || !mark.exists() {
        return Ok(());
    }
    std::fs::remove_dir(&mark).map_err(|e| said(&mark, &e))?;
    rustix::mount::unmount(pins, rustix::mount::UnmountFlags::empty()).map_err(|e| said(pins, &e.into()))
}

/// Detaches everything that is pinned and forgets it: flows, counters, all.
pub fn clear(pins: &Path) -> Result<(), String> {
    let folder = pins.join(LAYOUT);
    if !former::folders(pins, &folder).is_empty() {
        std::fs::create_dir_all(&folder).map_err(|e| said(&folder, &e))?;
        former::gather(pins, &folder, |name| device_of(name).is_some())?;
    }
    clear_of(pins, |_| true)
}

/// The same for the maps, and on the interfaces that are meant: on others there may be other programs of ours.
pub fn clear_of(pins: &Path, is_meant: impl Fn(&str) -> bool) -> Result<(), String> {
    let folder = pins.join(LAYOUT);
    let mut others = false;
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let device = name.to_str().and_then(device_of);
        if device.is_some_and(|device| !is_meant(device)) {
            others = true;
            continue;
        }
        std::fs::remove_file(entry.path()).map_err(|e| format!("{}: {e}", entry.path().display()))?;
    }
    if others {
        return Ok(());
    }
    std::fs::remove_dir(&folder).map_err(|e| said(&folder, &e))?;
    unmount(pins)
}

/// An error with all its causes in one line.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}
