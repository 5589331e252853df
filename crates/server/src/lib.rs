//! The data plane of Ironweir.

/// Listening sockets.
pub mod listen {
    pub mod socket;
}
/// The error log, syslog, and the files logs are written to.
pub mod log {
    pub mod error;
    pub mod file;
    pub mod syslog;
}
pub mod master;
pub mod settings;
