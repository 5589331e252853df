//! Many machines: agents that run a part of a load each, and a controller that starts them together and merges what they measured.
//! gRPC. The controller's side is `fleet` and `merge`, the agent's `serve`; who may talk to whom is `security`, how they find each
//! other without being told `etcd`.

mod etcd;
mod fleet;
mod merge;
pub mod message;
mod security;
pub mod serve;

pub use fleet::Fleet;

use crate::hold::HoldSecond;
use crate::run::Record;
use crate::sample::{Sample, Second};
use crate::verdict::Evidence;
use serde::{Deserialize, Serialize};

#[allow(missing_docs, unreachable_pub, clippy::all, reason = "written by tonic-build")]
mod wire_service {
    include!(concat!(env!("OUT_DIR"), "/ironweir.Agent.rs"));
}
use wire_service::{agent_client, agent_server};

/// The largest message: histograms of a long run as pairs, or the files of a command line.
const MAX_MESSAGE: usize = 64 << 20;

/// What an agent tells of a load: seconds, and at its end its part of the result.
#[derive(Debug, Serialize, Deserialize)]
enum Event<S, P> {
    /// A second is over.
    Second(S),
    /// It is over.
    End(Box<P>),
    /// It could not begin, or broke.
    Failed(String),
}

/// A second of a load; those of all agents with one number are merged.
trait Slice: Clone {
    fn number(&self) -> u32;
    fn merge(&mut self, other: &Self);
}

impl Slice for Second {
    fn number(&self) -> u32 {
        self.number
    }

    fn merge(&mut self, other: &Second) {
        Second::merge(self, other);
    }
}

impl Slice for HoldSecond {
    fn number(&self) -> u32 {
        self.number
    }

    fn merge(&mut self, other: &HoldSecond) {
        HoldSecond::merge(self, other);
    }
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
