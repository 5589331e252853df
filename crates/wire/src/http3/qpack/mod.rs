//! Field compression (RFC 9204) without dynamic tables: we allow the peer none and use none. What that costs is in
//! docs/decisions/0009-http3.md.

pub mod decoder;
pub mod encoder;
pub mod static_table;

#[cfg(test)]
mod tests;
