//! What is asked of a group's peers, how often, and what counts as well. Made by `modules::health_check` when a configuration
//! is read; worked on by `prober`.

use super::matching::{Expect, Match};
use crate::tls::client::Secure;
use crate::upstream::group::Group;
use std::sync::Arc;
use std::time::Duration;

/// One check of a group.
#[derive(Clone, Debug)]
pub struct Check {
    /// Whose peers.
    pub group: Arc<Group>,
    /// Its number among the checks of the group.
    pub number: usize,
    /// When, and how results are judged.
    pub rhythm: Rhythm,
    /// Another port than that of the peer.
    pub port: Option<u16>,
    /// TLS is spoken.
    pub secure: Option<Arc<Secure>>,
    /// What is asked.
    pub ask: Ask,
    /// The word for it: `type=`.
    pub kind: &'static str,
}

impl Check {
    /// Answers are judged by variables too.
    pub fn requires_variables(&self) -> bool {
        matches!(&self.ask, Ask::Http(ask) if !ask.wanted.require.is_empty())
    }
}

/// When a peer is checked, and what follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    /// From the beginning of one check to that of the next.
    pub interval: Duration,
    /// A check comes so much later at most.
    pub jitter: Duration,
    /// A check takes no longer.
    pub limit: Duration,
    /// Until the connection stands.
    pub connect_limit: Duration,
    /// Failed in a row: the peer is unhealthy.
    pub fails: u32,
    /// Passed in a row: it is healthy again.
    pub passes: u32,
    /// A peer is not used before a check has passed.
    pub mandatory: bool,
    /// It is used after a reload if it was healthy before.
    pub persistent: bool,
    /// A connection is used for more than one check, for so long.
    pub keepalive: Option<Keep>,
}

/// How long a connection is kept for further checks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep {
    /// `keepalive_time`
    Time(Duration),
    /// `check_keepalive_requests`
    Requests(u32),
}

impl Default for Rhythm {
    /// nginx Plus' defaults.
    fn default() -> Rhythm {
        Rhythm {
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            limit: Duration::from_secs(60),
            connect_limit: Duration::from_secs(60),
            fails: 1,
            passes: 1,
            mandatory: false,
            persistent: false,
            keepalive: None,
        }
    }
}

/// What is asked of a peer.
#[derive(Clone, Debug)]
pub enum Ask {
    /// A connection; then perhaps bytes both ways. With TLS the handshake as well.
    Tcp(Talk),
    /// A SYN that is answered; the program behind the port does not see it.
    HalfOpen,
    /// A datagram; well if no refusal comes back, or what is expected.
    Udp(Talk),
    /// A request.
    Http(Arc<HttpAsk>),
    /// A FastCGI request.
    FastCgi(Arc<HttpAsk>),
    /// gRPC's health service (grpc.health.v1.Health/Check).
    Grpc(Arc<GrpcAsk>),
}

/// Bytes both ways.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    /// What is sent; nothing if empty.
    pub send: Arc<[u8]>,
    /// What has to come back.
    pub expect: Option<Arc<Expect>>,
    /// What is sent when it has.
    pub bye: &'static [u8],
}

/// A request and what answers are right.
#[derive(Clone, Debug)]
pub struct HttpAsk {
    /// Head, and body if any.
    pub request: Box<[u8]>,
    /// `HEAD`: answers have no body.
    pub is_head: bool,
    /// What has to come back.
    pub wanted: Arc<Match>,
}

/// A call of gRPC's health service.
#[derive(Clone, Debug)]
pub struct GrpcAsk {
    /// `:authority`
    pub authority: Box<[u8]>,
    /// `grpc_service`: the name that is asked about; empty: the server as a whole.
    pub service: Box<[u8]>,
    /// `grpc_status`: this counts as well too, from servers without a health service.
    pub status: Option<u32>,
}
