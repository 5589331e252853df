//! Many machines: agents that run a part of a load each, and a controller that starts them together and merges what they measured.
//! gRPC; the controller's side is `control`, the agent's `serve`.

pub mod control;
pub mod message;
pub mod serve;

use crate::run::Record;
use crate::sample::{Sample, Second};
use crate::verdict::Evidence;
use serde::{Deserialize, Serialize};

#[allow(missing_docs, unreachable_pub, clippy::all, reason = "written by tonic-build")]
mod wire_service {
    include!(concat!(env!("OUT_DIR"), "/ironweir.Agent.rs"));
}
use wire_service::{agent_client, agent_server};

/// The largest message: histograms of a long run as pairs.
const MAX_MESSAGE: usize = 64 << 20;
/// The header that carries the token.
const TOKEN_HEADER: &str = "authorization";

/// What an agent tells of its run.
#[derive(Debug, Serialize, Deserialize)]
enum Event {
    /// A second is over.
    Second(Second),
    /// It is over.
    End(Box<Part>),
    /// It could not begin, or broke.
    Failed(String),
}

/// An agent's part of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    sample: Sample,
    on_time: u64,
    seconds: f64,
    evidence: Evidence,
    /// How long after the common start it began, nanoseconds.
    start_lag_ns: u64,
}

impl Part {
    fn new(record: Record) -> Part {
        let Record { sample, on_time, seconds, evidence, start_lag_ns, .. } = record;
        Part { sample, on_time, seconds, evidence, start_lag_ns }
    }
}

/// The token in a file: its first line.
fn read_token(path: &std::path::Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    let is_plain = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    if is_plain { Ok(token) } else { Err(format!("{}: a token is one line of visible ASCII", path.display())) }
}
