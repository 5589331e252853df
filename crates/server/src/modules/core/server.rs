//! What the core says of a server: `listen`'s neighbours on the level of `http` and `server`.

use crate::config::complex::Complex;
use crate::merged_values;
use std::sync::Arc;
use std::time::Duration;

merged_values! {
    /// Values of `http` and `server` level.
    pub struct ServerSettings {
        /// First buffer for heads.
        client_header_buffer_size: u64 = 1024,
        /// How long a head may take.
        client_header_timeout: Duration = Duration::from_secs(60),
        /// Number and size of further buffers for heads.
        large_client_header_buffers: (usize, usize) = (4, 8192),
        /// Headers with unusual names are dropped.
        ignore_invalid_headers: bool = true,
        /// Underscores are usual.
        underscores_in_headers: bool = false,
        /// `//` is `/`.
        merge_slashes: bool = true,
        /// Lines a head may have.
        max_headers: u64 = 1000,
        /// When one of them is true, the body is read before a location is looked for.
        client_body_early_read: Arc<Vec<Complex>> = Arc::default(),
    }
}
