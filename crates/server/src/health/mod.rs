//! Health of peers: what is asked of them (`check`, `matching`), who asks (`prober`, `probe` and the protocols), what answers mean
//! (`require`, `verdict`) and what is known (`record`, `cause`). The switch itself is `upstream::availability`, which the choice of a peer reads:
//! nothing here is on the way of a request.

pub mod cause;
pub mod check;
pub mod fastcgi;
pub mod grpc;
pub mod hello;
pub mod http;
pub mod link;
pub mod matching;
pub mod outlier;
pub mod passive;
pub mod probe;
pub mod prober;
pub mod record;
pub mod require;
pub mod verdict;
