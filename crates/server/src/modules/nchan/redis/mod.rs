//! Channels that several servers share by a Redis (`nchan_redis_*`): what one publishes is heard by the subscribers of all. Requests ask a
//! [`backend::Backend`]; `link` talks to Redis on the service thread, and puts what it hears into the channels. docs/push.md.

pub mod backend;
pub mod conf;
mod link;
pub mod session;
mod wire_up;

pub(super) use backend::{Backend, Failed, of};
