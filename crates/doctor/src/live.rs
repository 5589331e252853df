//! Open connections by the port they came to, for who plans a reload of a server on this machine.

use machine::sockets::Sockets;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// What the kernel counts now.
#[derive(Clone, Debug, Default)]
pub struct Connections(BTreeMap<u16, u64>);

/// Asks the kernel (`sock_diag`; no rights are needed).
pub fn connections() -> std::io::Result<Connections> {
    let sockets = Sockets::read()?;
    Ok(Connections(sockets.listeners.iter().map(|l| (l.port, l.connections)).collect()))
}

impl Connections {
    /// Those to the port of an address, in any state but TIME_WAIT.
    pub fn to(&self, address: SocketAddr) -> u64 {
        self.0.get(&address.port()).copied().unwrap_or(0)
    }
}
