//! Which program has an address that we were to listen on: asked of `/proc` when a bind has failed, and only then. Without root's
//! rights, or in another network namespace, nobody may be found.

use crate::process_settings::{ListenAddress, ListenSpec, SocketKind};
use std::net::IpAddr;
use std::path::Path;

/// The state of a listening socket in `/proc/net/tcp` (TCP_LISTEN).
const LISTENING: &str = "0A";
/// Columns of `/proc/net/tcp` and `udp`: local address, state, inode.
const COLUMNS: [usize; 3] = [1, 3, 9];
/// A process with more descriptors is not looked through.
const MAX_DESCRIPTORS: usize = 100_000;

/// A program that has the address, as text for the log: `process 123 (nginx)`.
pub(super) fn of(spec: &ListenSpec) -> Option<String> {
    let ListenAddress::Inet(address) = &spec.address else { return None };
    let names = if spec.kind == SocketKind::Stream { ["tcp", "tcp6"] } else { ["udp", "udp6"] };
    let is_stream = spec.kind == SocketKind::Stream;
    let tables = names.iter().filter_map(|name| std::fs::read_to_string(format!("/proc/net/{name}")).ok());
    let inodes: Vec<String> = tables
        .flat_map(|table| {
            table.lines().skip(1).filter_map(|l| inode(l, address.ip(), address.port(), is_stream)).collect::<Vec<_>>()
        })
        .collect();
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    if wanted.is_empty() {
        return None;
    }
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| has_open(*pid, &wanted))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", wire::terminal::plain(name.trim_end())))
}

/// The inode of a line's socket, if that is where `ip` and `port` are: on the same address, or one of both is for all.
fn inode(line: &str, ip: IpAddr, port: u16, is_stream: bool) -> Option<String> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [local, state, inode] = COLUMNS.map(|at| columns.get(at).copied());
    let (host, local_port) = local?.rsplit_once(':')?;
    if u16::from_str_radix(local_port, 16).ok()? != port || (is_stream && state? != LISTENING) {
        return None;
    }
    // Words of 32 bits in the machine's order; an IPv6 socket may have IPv4 addresses too.
    let word = |at: usize| host.get(at..at + 8).and_then(|w| u32::from_str_radix(w, 16).ok());
    let same = match ip {
        IpAddr::V4(v4) => host.len() == 8 && word(0) == Some(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            let of = |at: usize| octets.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
            host.len() == 32 && (0..4).all(|i| word(i * 8) == of(i * 4))
        }
    };
    let is_wildcard = host.bytes().all(|b| b == b'0');
    (same || is_wildcard || ip.is_unspecified()).then(|| inode.map(str::to_owned)).flatten()
}

fn has_open(pid: u32, wanted: &[String]) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let links = descriptors.take(MAX_DESCRIPTORS).flatten().filter_map(|d| std::fs::read_link(d.path()).ok());
    let mut links = links;
    links.any(|link| wanted.iter().any(|w| Path::new(w) == link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let local = IpAddr::from([127, 0, 0, 1]);
        if cfg!(target_endian = "little") {
            assert_eq!(inode(line, local, 8080, true).as_deref(), Some("4711"));
        }
        assert_eq!(inode(line, IpAddr::from([0, 0, 0, 0]), 8080, true).as_deref(), Some("4711"));
        assert_eq!(inode(line, IpAddr::from([10, 0, 0, 1]), 8080, true), None);
        assert_eq!(inode(line, local, 8081, true), None);
        assert_eq!(inode("", local, 8081, true), None);
    }

    #[test]
    fn our_own_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let spec = ListenSpec::new(ListenAddress::Inet(listener.local_addr().expect("it is bound")));
        let found = of(&spec).unwrap_or_default();
        assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
    }
}
