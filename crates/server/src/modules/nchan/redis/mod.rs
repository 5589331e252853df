//! Channels that several servers share by a Redis (`nchan_redis_*`): what one publishes is heard by the subscribers of all. Requests ask a
//! [`backend::Backend`]; `link` talks to Redis on the service thread, and puts what it hears into the channels; of a Redis Cluster there is one for
//! each node, and `cluster` says whose turn it is. docs/push.md.

pub mod backend;
mod cluster;
pub mod conf;
pub mod given;
mod link;
mod open;
pub mod session;
mod slots;
mod stats;
mod wire_up;
