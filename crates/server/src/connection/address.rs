//! An address of either end of a connection. Of nobody else's: who knows addresses need not know connections.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a connection comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address with a port.
    Inet(SocketAddr),
    /// A unix socket; clients usually have no path.
    Unix(PathBuf),
}

impl Address {
    /// The address without port: `$remote_addr`.
    pub fn host(&self) -> Host<'_> {
        Host(self)
    }

    /// Appends what [`Address::host`] shows. IPv4 by hand: every line of an access log begins with it, and the
    /// formatting machinery takes as long as the rest of the line.
    pub fn write_host(&self, out: &mut Vec<u8>) {
        if let Address::Inet(SocketAddr::V4(a)) = self {
            for (i, octet) in a.ip().octets().into_iter().enumerate() {
                if i > 0 {
                    out.push(b'.');
                }
                crate::request::status::write_decimal(u64::from(octet), out);
            }
            return;
        }
        use std::io::Write;
        let _ = write!(out, "{}", self.host());
    }

    /// The port, 0 for unix sockets.
    pub fn port(&self) -> u16 {
        match self {
            Address::Inet(a) => a.port(),
            Address::Unix(_) => 0,
        }
    }
}

impl std::fmt::Display for Address {
    /// With the port: `127.0.0.1:80`, `unix:/path`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Inet(a) => write!(f, "{a}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Shows an address as nginx does in variables and logs.
pub struct Host<'a>(&'a Address);

impl std::fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Address::Inet(a) => write!(f, "{}", a.ip()),
            Address::Unix(_) => f.write_str("unix:"),
        }
    }
}
