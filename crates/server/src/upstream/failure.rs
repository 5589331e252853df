//! Why a try at a peer gave nothing: whose fault it was, and what may follow. One type for requests and for sessions of `stream`; the
//! texts of failed connections stand here. From: the steps of a try. To: `retry`, `stream::proxy`.

use super::choose::SelectedPeer;
use super::connect;
use super::settings::next;
use crate::health::passive;
use crate::log_error;
use crate::request::Request;
use std::io;
use std::net::SocketAddr;

/// Whose fault it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer's.
    Peer,
    /// This machine's, as far as this peer goes; the next one may be asked.
    Local,
    /// The client's, or this machine's: nobody is asked any more, and this is the status.
    Over(u16),
}

/// See the top of the file.
pub struct Failure {
    /// A bit of [`next`].
    pub kind: u32,
    /// Whose fault it was.
    pub side: Side,
    /// Something of the request went out: it may not be repeated where that does harm.
    pub request_sent: bool,
    /// The connection was an idle one that turned out to be dead: no fault of the peer.
    pub stale: bool,
}

impl Failure {
    /// The peer failed. `sent`: something of the request went out. `stale`: on an idle connection that was dead already.
    pub fn of(kind: u32, sent: bool, stale: bool) -> Failure {
        Failure { kind, side: Side::Peer, request_sent: sent, stale }
    }

    /// The peer took too long. `sent`: something of the request went out.
    pub fn timed_out(r: &Request, sent: bool) -> Failure {
        log_error!(r, Error, "upstream timed out (110: Connection timed out)");
        Failure::of(next::TIMEOUT, sent, false)
    }

    /// The client is to blame, or this machine.
    pub fn over(status: u16) -> Failure {
        Failure { side: Side::Over(status), ..Failure::of(next::ERROR, false, false) }
    }

    /// No connection came about. Says so in the log, with what the operator can do about it. `local`: of `proxy_bind`.
    pub fn connecting(
        r: &Request,
        chosen: &SelectedPeer,
        local: Option<SocketAddr>,
        failed: &connect::Failed,
    ) -> Failure {
        if !failed.is_local() {
            passive::not_connected(&chosen.peer, failed);
        }
        let hint = match failed.error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => {
                ": no free local port or address; see net.ipv4.ip_local_port_range and proxy_bind"
            }
            Some(libc::EAGAIN) => ": the peer's accept queue is full; see its backlog and net.core.somaxconn",
            Some(libc::EMFILE | libc::ENFILE) => ": out of descriptors; see worker_rlimit_nofile",
            _ => "",
        };
        let what = match (failed.at_once, failed.call, local) {
            (true, "connect()", _) => format!("connect() to {}", chosen.peer.name),
            (_, "bind()", Some(local)) => format!("bind({local})"),
            (_, call, _) => call.to_owned(),
        };
        let text = crate::log::os_error(&failed.error);
        if failed.at_once && !is_network(&failed.error) {
            log_error!(r, Crit, "{what} failed ({text}){hint}");
        } else {
            log_error!(r, Error, "{what} failed ({text}){hint}");
        }
        if failed.is_ours() {
            return Failure::over(500);
        }
        let side = if failed.is_local() { Side::Local } else { Side::Peer };
        Failure { side, ..Failure::of(next::ERROR, false, false) }
    }

    /// Whether the peer is to blame for it.
    pub fn is_peers_fault(&self) -> bool {
        self.side == Side::Peer
    }
}

/// What the network does; anything else that makes a connection fail at once is this machine's fault.
fn is_network(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let unreachable = matches!(e.kind(), Kind::NetworkDown | Kind::NetworkUnreachable | Kind::HostUnreachable);
    unreachable || matches!(e.kind(), Kind::ConnectionRefused | Kind::ConnectionReset | Kind::WouldBlock)
}
