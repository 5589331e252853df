//! Values that every module with an upstream has under its own prefix (`proxy_`, `fastcgi_` ...): nginx's
//! `ngx_http_upstream_conf_t`.

use crate::config::complex::Complex;
use crate::merged_values;
use crate::temp::TempPath;
use crate::tls::settings::CacheLimits;
use crate::tls::settings::Protocols;
use std::sync::Arc;
use std::time::Duration;

/// Bits of `proxy_next_upstream`.
pub mod next {
    /// Connection errors.
    pub const ERROR: u32 = 1;
    /// Timeouts.
    pub const TIMEOUT: u32 = 1 << 1;
    /// Heads that cannot be read.
    pub const INVALID_HEADER: u32 = 1 << 2;
    /// 500
    pub const HTTP_500: u32 = 1 << 3;
    /// 502
    pub const HTTP_502: u32 = 1 << 4;
    /// 503
    pub const HTTP_503: u32 = 1 << 5;
    /// 504
    pub const HTTP_504: u32 = 1 << 6;
    /// 403
    pub const HTTP_403: u32 = 1 << 7;
    /// 404
    pub const HTTP_404: u32 = 1 << 8;
    /// 429
    pub const HTTP_429: u32 = 1 << 9;
    /// Also requests that may not be repeated.
    pub const NON_IDEMPOTENT: u32 = 1 << 10;
    /// Never.
    pub const OFF: u32 = 1 << 11;
    /// While the answer is being updated: for caches.
    pub const UPDATING: u32 = 1 << 12;
    /// There is no peer to ask. No word of its own; caches take it for [`ERROR`].
    pub const NO_LIVE: u32 = 1 << 13;

    /// The words of the directive.
    pub const WORDS: &[(&str, u32)] = &[
        ("error", ERROR),
        ("timeout", TIMEOUT),
        ("invalid_header", INVALID_HEADER),
        ("http_500", HTTP_500),
        ("http_502", HTTP_502),
        ("http_503", HTTP_503),
        ("http_504", HTTP_504),
        ("http_403", HTTP_403),
        ("http_404", HTTP_404),
        ("http_429", HTTP_429),
        ("non_idempotent", NON_IDEMPOTENT),
        ("updating", UPDATING),
        ("off", OFF),
    ];

    /// The words but those of these bits.
    pub fn words_but(bits: u32) -> Vec<(&'static str, u32)> {
        WORDS.iter().filter(|(_, bit)| bit & bits == 0).copied().collect()
    }

    /// The words of `memcached_next_upstream`.
    pub const MEMCACHED_WORDS: &[(&str, u32)] = &[
        ("error", ERROR),
        ("timeout", TIMEOUT),
        ("invalid_response", INVALID_HEADER),
        ("not_found", HTTP_404),
        ("off", OFF),
    ];

    /// The words of `tunnel_next_upstream`.
    pub const TUNNEL_WORDS: &[(&str, u32)] = &[("error", ERROR), ("timeout", TIMEOUT), ("off", OFF)];

    /// The bit for a status.
    pub fn of_status(status: u16) -> Option<u32> {
        Some(match status {
            500 => HTTP_500,
            502 => HTTP_502,
            503 => HTTP_503,
            504 => HTTP_504,
            403 => HTTP_403,
            404 => HTTP_404,
            429 => HTTP_429,
            _ => return None,
        })
    }
}

/// Bits of `proxy_ignore_headers`.
pub mod ignore {
    /// `X-Accel-Redirect`
    pub const REDIRECT: u32 = 1;
    /// `X-Accel-Expires`
    pub const EXPIRES: u32 = 1 << 1;
    /// `X-Accel-Limit-Rate`
    pub const LIMIT_RATE: u32 = 1 << 2;
    /// `X-Accel-Buffering`
    pub const BUFFERING: u32 = 1 << 3;
    /// `X-Accel-Charset`
    pub const CHARSET: u32 = 1 << 4;

    /// `Expires`
    pub const EXPIRES_HEADER: u32 = 1 << 5;
    /// `Cache-Control`
    pub const CACHE_CONTROL: u32 = 1 << 6;
    /// `Set-Cookie`
    pub const SET_COOKIE: u32 = 1 << 7;
    /// `Vary`
    pub const VARY: u32 = 1 << 8;

    /// The words of the directive.
    pub const WORDS: &[(&str, u32)] = &[
        ("X-Accel-Redirect", REDIRECT),
        ("X-Accel-Expires", EXPIRES),
        ("X-Accel-Limit-Rate", LIMIT_RATE),
        ("X-Accel-Buffering", BUFFERING),
        ("X-Accel-Charset", CHARSET),
        ("Expires", EXPIRES_HEADER),
        ("Cache-Control", CACHE_CONTROL),
        ("Set-Cookie", SET_COOKIE),
        ("Vary", VARY),
    ];
}

merged_values! {
    /// See the module's head.
    pub struct UpstreamSettings {
        /// `*_connect_timeout`
        connect_timeout: Duration = Duration::from_secs(60),
        /// `*_send_timeout`, between two writes.
        send_timeout: Duration = Duration::from_secs(60),
        /// `*_read_timeout`, between two reads.
        read_timeout: Duration = Duration::from_secs(60),
        /// `*_next_upstream`
        next_upstream: u32 = next::ERROR | next::TIMEOUT,
        /// `*_next_upstream_tries`, 0: no limit.
        next_upstream_tries: u64 = 0,
        /// `*_next_upstream_timeout`, zero: no limit.
        next_upstream_timeout: Duration = Duration::ZERO,
        /// `*_buffering`
        buffering: bool = true,
        /// `*_request_buffering`
        request_buffering: bool = true,
        /// `*_buffer_size`: room for a head.
        buffer_size: u64 = 4096,
        /// `*_buffers`: number and size.
        buffers: (u64, u64) = (8, 4096),
        /// `*_busy_buffers_size`: checked against the others. What waits for the client may fill all buffers here.
        busy_buffers_size: Option<u64> = None,
        /// `*_temp_file_write_size`: checked against the others. What was read at once is written at once here.
        temp_file_write_size: Option<u64> = None,
        /// `*_max_temp_file_size`, 0: nothing goes to a file.
        max_temp_file_size: u64 = 1024 * 1024 * 1024,
        /// `*_temp_path`
        temp_path: TempPath = TempPath::default(),
        /// `*_bind`
        bind: Option<Bind> = None,
        /// `*_socket_keepalive`
        socket_keepalive: bool = false,
        /// `*_socket_rcvbuf`, 0: the kernel's.
        socket_rcvbuf: u64 = 0,
        /// `*_socket_sndbuf`, 0: the kernel's.
        socket_sndbuf: u64 = 0,
        /// `*_ignore_client_abort`
        ignore_client_abort: bool = false,
        /// `*_intercept_errors`
        intercept_errors: bool = false,
        /// `*_limit_rate`
        limit_rate: Complex = Complex::default(),
        /// `*_pass_request_headers`
        pass_request_headers: bool = true,
        /// `*_pass_request_body`
        pass_request_body: bool = true,
        /// `*_pass_trailers`
        pass_trailers: bool = false,
        /// `*_force_ranges`
        force_ranges: bool = false,
        /// `*_ignore_headers`
        ignore_headers: u32 = 0,
        /// `*_hide_header`, lower case.
        hide_headers: Arc<Vec<Box<[u8]>>> = Arc::default(),
        /// `*_pass_header`, lower case.
        pass_headers: Arc<Vec<Box<[u8]>>> = Arc::default(),
        /// `*_store`
        store: Store = Store::Off,
        /// `*_store_access`: permission bits.
        store_access: u32 = 0o600,
    }
}

impl UpstreamSettings {
    /// Whether the sizes of buffers fit together; otherwise nginx's complaint about the directives of `prefix`.
    pub fn check_sizes(&self, prefix: &str) -> Result<(), String> {
        let (number, each) = *self.buffers;
        let one = each.max(*self.buffer_size);
        let least = format!("the maximum of the value of \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\"");
        if number < 2 {
            return Err(format!("there must be at least 2 \"{prefix}_buffers\""));
        }
        let busy = self.busy_buffers_size.unwrap_or(2 * one);
        if busy < one {
            return Err(format!("\"{prefix}_busy_buffers_size\" must be equal to or greater than {least}"));
        }
        if busy > (number - 1) * each {
            return Err(format!(
                "\"{prefix}_busy_buffers_size\" must be less than the size of all \"{prefix}_buffers\" minus one buffer"
            ));
        }
        if self.temp_file_write_size.is_some_and(|n| n < one) {
            return Err(format!("\"{prefix}_temp_file_write_size\" must be equal to or greater than {least}"));
        }
        if *self.max_temp_file_size != 0 && *self.max_temp_file_size < one {
            return Err(format!(
                "\"{prefix}_max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than {least}"
            ));
        }
        Ok(())
    }
}

/// `*_bind`
#[derive(Clone, Debug)]
pub struct Bind {
    /// Where connections come from: an address, with or without a port.
    pub address: Complex,
    /// The address need not be the machine's own (IP_TRANSPARENT).
    pub transparent: bool,
}

merged_values! {
    /// `*_ssl_*`: TLS towards peers.
    pub struct SslSettings {
        /// `*_ssl_certificate`, empty: none.
        certificate: Arc<[u8]> = Arc::from(&b""[..]),
        /// `*_ssl_certificate_key`
        certificate_key: Arc<[u8]> = Arc::from(&b""[..]),
        /// `*_ssl_certificate_cache`
        certificate_cache: Option<CacheLimits> = None,
        /// `*_ssl_password_file`: what stands in it.
        passwords: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `*_ssl_protocols`
        protocols: Protocols = Protocols { tls12: true, tls13: true },
        /// `*_ssl_ciphers`
        ciphers: Arc<[u8]> = Arc::from(&b"DEFAULT"[..]),
        /// `*_ssl_conf_command`, in order.
        conf_commands: Arc<Vec<(Vec<u8>, Vec<u8>)>> = Arc::default(),
        /// `*_ssl_name`
        name: Option<Complex> = None,
        /// `*_ssl_server_name`: the name is sent.
        server_name: bool = false,
        /// `*_ssl_verify`
        verify: bool = false,
        /// `*_ssl_verify_depth`
        verify_depth: u64 = 1,
        /// `*_ssl_trusted_certificate`
        trusted_certificate: Arc<[u8]> = Arc::from(&b""[..]),
        /// `*_ssl_crl`
        crl: Arc<[u8]> = Arc::from(&b""[..]),
        /// `*_ssl_session_reuse`
        session_reuse: bool = true,
    }
}

/// `*_store`
#[derive(Clone, Debug)]
pub enum Store {
    /// Nothing is stored.
    Off,
    /// The file of the uri.
    On,
    /// This path.
    Path(Complex),
}
