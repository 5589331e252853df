//! Protocols without input or output: bytes and times are arguments.
