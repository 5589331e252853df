//! How agents and controllers find each other in etcd (gRPC, API v3). Keys of a cluster:
//! `/ironweir/stress/CLUSTER/agents/HOST:PORT`, one for each agent, with a lease that it renews, and `/ironweir/stress/CLUSTER/lock`,
//! with a lease of the controller whose run it is.

mod client;
mod membership;
mod message;
mod registration;

pub(super) use membership::Membership;
pub(super) use registration::Registration;

use crate::options::Options;
use std::time::Duration;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before something that failed is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two renewals of a lease.
const BEAT: Duration = Duration::from_secs(1);
/// `--cluster`, if it is not given.
const DEFAULT_CLUSTER: &str = "default";

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "written by tonic-build")]
mod wire_service {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.KV.rs"));
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.Lease.rs"));
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.Watch.rs"));
}

/// The keys of a cluster.
#[derive(Clone, Debug)]
struct Cluster {
    name: String,
}

impl Cluster {
    fn new(options: &Options) -> Result<Cluster, String> {
        let name = options.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER);
        let is_plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !is_plain {
            return Err(format!("--cluster {name}: letters, digits, '-', '_' and '.'"));
        }
        Ok(Cluster { name: name.to_owned() })
    }

    fn lock(&self) -> Vec<u8> {
        format!("/ironweir/stress/{}/lock", self.name).into_bytes()
    }

    /// What all agents' keys begin with.
    fn agents(&self) -> Vec<u8> {
        format!("/ironweir/stress/{}/agents/", self.name).into_bytes()
    }

    fn agent(&self, name: &str) -> Vec<u8> {
        [self.agents(), name.as_bytes().to_vec()].concat()
    }

    /// The agent that a key is of.
    fn agent_of(&self, key: &[u8]) -> Option<String> {
        let name = key.strip_prefix(&self.agents()[..])?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    }
}
