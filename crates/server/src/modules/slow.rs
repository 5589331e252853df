//! `client_header_min_rate`, `client_body_min_rate`, `send_min_rate`, `slow_connections_per_address`: how slow a client may be (docs/shield.md). Who waits
//! for clients looks: `connection::slow`.

pub use crate::connection::slow::total;

use crate::config::setting::Setting;
use crate::config::{Directive, http, setters};
use crate::merged_values;
use conf::{Node, Problem, value};
use shield::pace::MinRate;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("client_header_min_rate", |s, n| min_rate(&mut s.level.conf.slow.client_header_min_rate, n, HEAD_GRACE_MS)),
    http("client_body_min_rate", |s, n| min_rate(&mut s.level.conf.slow.client_body_min_rate, n, GRACE_MS)),
    http("send_min_rate", |s, n| min_rate(&mut s.level.conf.slow.send_min_rate, n, GRACE_MS)),
    http("slow_connections_per_address", |s, n| {
        setters::number(&mut s.level.conf.slow.slow_connections_per_address, n)
    }),
];

/// How long a head may be below its rate unless it is said.
const HEAD_GRACE_MS: u64 = 5_000;
/// The same of bodies and answers.
const GRACE_MS: u64 = 10_000;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Of heads.
        client_header_min_rate: MinRate = MinRate::default(),
        /// Of bodies.
        client_body_min_rate: MinRate = MinRate::default(),
        /// Of answers.
        send_min_rate: MinRate = MinRate::default(),
        /// Requests below their rate that an address may have at a time; 0: any number.
        slow_connections_per_address: u64 = 0,
    }
}

crate::inherited!(Conf, |_| true);

impl Conf {
    /// Places of an address.
    pub fn places(&self) -> u32 {
        u32::try_from(*self.slow_connections_per_address).unwrap_or(u32::MAX)
    }
}

/// `SIZE [grace=TIME]`
fn min_rate(setting: &mut Setting<MinRate>, node: &Node, grace_ms: u64) -> Result<(), Problem> {
    let bytes_per_s = value::size(&node.args[0].text).ok_or_else(|| setters::invalid(node))?;
    let mut rule = MinRate { bytes_per_s, grace_ms };
    if let Some(word) = node.args.get(1) {
        let grace = word.text.strip_prefix(b"grace=").and_then(value::milliseconds).filter(|ms| *ms > 0);
        rule.grace_ms = grace.ok_or_else(|| Problem::invalid_parameter(word))?;
    }
    setters::value(setting, node, rule)
}
