//! What a QUIC connection is told of our limits, from the `http3_*` and `quic_*` values of the server its address stands for.

use super::bursts::Bursts;
use super::{keys, tokens};
use crate::modules::core;
use crate::modules::http3::Conf;
use crate::tls::quic::Handshakes;
use quinn_proto::{
    IdleTimeout, Incoming, MtuDiscoveryConfig, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt,
};
use std::sync::Arc;
use std::time::Duration;

/// One-way streams that a client may have open: its control stream and the two of QPACK (RFC 9114 section 6.2).
const ONE_WAY_STREAMS: u32 = 3;
/// What a client may have sent on all streams together that nobody has read.
const MAX_RECEIVE: u64 = 8 * 1024 * 1024;
/// What one connection may have sent that has not been acknowledged: at 100 ms this is 20 MB/s.
const MAX_SEND: u64 = 2 * 1024 * 1024;
/// Bytes of a handshake that came out of order.
const HANDSHAKE_BUFFER: usize = 32 * 1024;
/// New connections that wait to be looked at.
const MAX_INCOMING: usize = 1024;
/// The largest datagram that the loopback of Linux carries (its MTU is 65536), by IP version 6.
const LARGEST: u16 = 65_488;
/// How long an address counts as checked, as in nginx.
const TOKEN_LIFETIME: Duration = Duration::from_secs(600);
/// Early packets of those, together.
const INCOMING_BYTES: u64 = 1024 * 1024;

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On this machine.
    Inside,
    /// Somewhere in a network.
    Outside,
}

/// What connections begin with.
#[derive(Default)]
pub(super) struct Configs {
    /// Those of clients on this machine.
    pub inside: Option<Arc<ServerConfig>>,
    /// All others.
    pub outside: Option<Arc<ServerConfig>>,
}

/// The library's configuration. None of it: it lacks what it needs.
pub(super) fn configs(conf: &Conf, core: &core::Conf) -> Configs {
    let of = |way, mut config: ServerConfig| {
        config.transport_config(Arc::new(transport(way, conf, core)));
        Arc::new(config)
    };
    match config(conf) {
        Some(config) => {
            Configs { inside: Some(of(Way::Inside, config.clone())), outside: Some(of(Way::Outside, config)) }
        }
        None => Configs::default(),
    }
}

fn transport(way: Way, conf: &Conf, core: &core::Conf) -> TransportConfig {
    let streams = (*conf.http3_max_concurrent_streams).min(1 << 32);
    let each = (*conf.http3_stream_buffer_size).max(1);
    let number = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(number(streams));
    transport.max_concurrent_uni_streams(ONE_WAY_STREAMS.into());
    transport.stream_receive_window(number(each));
    transport.receive_window(number((streams + u64::from(ONE_WAY_STREAMS)).saturating_mul(each).min(MAX_RECEIVE)));
    transport.send_window(MAX_SEND);
    transport.max_idle_timeout(IdleTimeout::try_from(idle(core)).ok());
    transport.crypto_buffer_size(HANDSHAKE_BUFFER);
    transport.datagram_receive_buffer_size(None);
    transport.enable_segmentation_offload(*conf.quic_gso);
    transport.congestion_controller_factory(Arc::new(Bursts));
    let mut search = MtuDiscoveryConfig::default();
    if way == Way::Inside {
        search.upper_bound(LARGEST);
    }
    transport.mtu_discovery_config(Some(search));
    transport
}

fn config(conf: &Conf) -> Option<ServerConfig> {
    let host_key = conf.quic_host_key.as_deref().unwrap_or(keys::own());
    let handshakes = Handshakes::new(*conf.quic_active_connection_id_limit)?;
    let mut config = ServerConfig::new(Arc::new(handshakes), Arc::new(keys::tokens(host_key)));
    let mut validation = ValidationTokenConfig::default();
    validation.sent(1).lifetime(TOKEN_LIFETIME).log(tokens::used());
    config.validation_token_config(validation);
    config.max_incoming(MAX_INCOMING).incoming_buffer_size_total(INCOMING_BYTES);
    Some(config)
}

/// Whether a client is on this machine: its packets never leave it.
pub(super) fn is_inside(incoming: &Incoming) -> bool {
    let remote = incoming.remote_address().ip().to_canonical();
    remote.is_loopback() || incoming.local_ip().is_some_and(|local| local.to_canonical() == remote)
}

/// A silent connection is over after this. nginx takes `keepalive_timeout`, which ends waits for slow upstreams too: here that
/// is our own deadline, and QUIC's is at least a minute.
fn idle(core: &core::Conf) -> Duration {
    const LEAST: Duration = Duration::from_secs(60);
    (*core.keepalive_timeout).max(LEAST)
}
