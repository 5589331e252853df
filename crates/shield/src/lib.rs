//! What protects a server from too much: rates of keys in sketches, bans, challenges, minimum rates of slow clients, limits of load that find
//! themselves. Pure: the time is an argument; nothing here knows a socket or a request. What many threads share is atomics, or locks that are never
//! waited for on the way of a request.

pub mod attack;
pub mod bans;
pub mod breaker;
pub mod challenge;
pub mod fingerprint;
pub mod hash;
pub mod limiter;
pub mod pace;
pub mod rates;
pub mod top;
pub mod vouched;
