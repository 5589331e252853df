//! The phases that programs run in, and sets of them. Knows nothing of what runs.

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// `init_by_lua*`
    Init,
    /// `init_worker_by_lua*`
    InitWorker,
    /// `exit_worker_by_lua*`
    ExitWorker,
    /// `set_by_lua*`
    Set,
    /// `server_rewrite_by_lua*`
    ServerRewrite,
    /// `rewrite_by_lua*`
    Rewrite,
    /// `access_by_lua*`
    Access,
    /// `precontent_by_lua*`
    Precontent,
    /// `content_by_lua*`
    Content,
    /// `header_filter_by_lua*`
    HeaderFilter,
    /// `body_filter_by_lua*`
    BodyFilter,
    /// `log_by_lua*`
    Log,
    /// `ngx.timer`
    Timer,
    /// `balancer_by_lua*`
    Balancer,
    /// `ssl_client_hello_by_lua*`
    ClientHello,
    /// `ssl_certificate_by_lua*`
    Certificate,
    /// `proxy_ssl_certificate_by_lua*`
    ProxyCertificate,
    /// `proxy_ssl_verify_by_lua*`
    ProxyVerify,
    /// `preread_by_lua*`, in `stream`.
    Preread,
    /// `ssl_session_fetch_by_lua*`
    SessionFetch,
    /// `ssl_session_store_by_lua*`
    SessionStore,
}

impl Phase {
    /// All of them, by their numbers.
    pub const ALL: &'static [Phase] = &[
        Phase::Init,
        Phase::InitWorker,
        Phase::ExitWorker,
        Phase::Set,
        Phase::ServerRewrite,
        Phase::Rewrite,
        Phase::Access,
        Phase::Precontent,
        Phase::Content,
        Phase::HeaderFilter,
        Phase::BodyFilter,
        Phase::Log,
        Phase::Timer,
        Phase::Balancer,
        Phase::ClientHello,
        Phase::Certificate,
        Phase::ProxyCertificate,
        Phase::ProxyVerify,
        Phase::Preread,
        Phase::SessionFetch,
        Phase::SessionStore,
    ];

    /// What `ngx.get_phase` says.
    pub fn label(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::InitWorker => "init_worker",
            Phase::ExitWorker => "exit_worker",
            Phase::Set => "set",
            Phase::ServerRewrite => "server_rewrite",
            Phase::Rewrite => "rewrite",
            Phase::Access => "access",
            Phase::Precontent => "precontent",
            Phase::Content => "content",
            Phase::HeaderFilter => "header_filter",
            Phase::BodyFilter => "body_filter",
            Phase::Log => "log",
            Phase::Timer => "timer",
            Phase::Balancer => "balancer",
            Phase::ClientHello => "ssl_client_hello",
            Phase::Certificate => "ssl_cert",
            Phase::ProxyCertificate => "proxy_ssl_cert",
            Phase::ProxyVerify => "proxy_ssl_verify",
            Phase::Preread => "preread",
            Phase::SessionFetch => "ssl_session_fetch",
            Phase::SessionStore => "ssl_session_store",
        }
    }

    /// What messages call it.
    pub fn context(self) -> &'static str {
        match self {
            Phase::Init => "init_by_lua*",
            Phase::InitWorker => "init_worker_by_lua*",
            Phase::ExitWorker => "exit_worker_by_lua*",
            Phase::Set => "set_by_lua*",
            Phase::ServerRewrite => "server_rewrite_by_lua*",
            Phase::Rewrite => "rewrite_by_lua*",
            Phase::Access => "access_by_lua*",
            Phase::Precontent => "precontent_by_lua*",
            Phase::Content => "content_by_lua*",
            Phase::HeaderFilter => "header_filter_by_lua*",
            Phase::BodyFilter => "body_filter_by_lua*",
            Phase::Log => "log_by_lua*",
            Phase::Timer => "ngx.timer",
            Phase::Balancer => "balancer_by_lua*",
            Phase::ClientHello => "ssl_client_hello_by_lua*",
            Phase::Certificate => "ssl_certificate_by_lua*",
            Phase::ProxyCertificate => "proxy_ssl_certificate_by_lua*",
            Phase::ProxyVerify => "proxy_ssl_verify_by_lua*",
            Phase::Preread => "preread_by_lua*",
            Phase::SessionFetch => "ssl_session_fetch_by_lua*",
            Phase::SessionStore => "ssl_session_store_by_lua*",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// A set of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases(u32);

/// Those whose programs are coroutines and may answer.
pub const ANSWERING: Phases = Phases(
    Phase::ServerRewrite.bit()
        | Phase::Rewrite.bit()
        | Phase::Access.bit()
        | Phase::Precontent.bit()
        | Phase::Content.bit(),
);
/// Those of a handshake with a client. There is no request yet, but what it would be of.
pub const HANDSHAKING: Phases =
    Phases(Phase::ClientHello.bit() | Phase::Certificate.bit() | Phase::SessionFetch.bit() | Phase::SessionStore.bit());
/// Those of a handshake with a peer.
pub const UPSTREAM_HANDSHAKING: Phases = Phases(Phase::ProxyCertificate.bit() | Phase::ProxyVerify.bit());
/// Those whose programs run as coroutines.
pub const WAITING: Phases = Phases(
    ANSWERING.0
        | Phase::Timer.bit()
        | HANDSHAKING.0 & !Phase::SessionStore.bit()
        | UPSTREAM_HANDSHAKING.0
        | Phase::Preread.bit(),
);
/// Those that have a request whose answer's head may still be changed.
pub const BEFORE_BODY: Phases = Phases(ANSWERING.0 | Phase::Set.bit() | Phase::HeaderFilter.bit());
/// Those that have a request.
pub const OF_REQUEST: Phases = Phases(
    BEFORE_BODY.0
        | Phase::BodyFilter.bit()
        | Phase::Log.bit()
        | Phase::Balancer.bit()
        | Phase::Preread.bit()
        | UPSTREAM_HANDSHAKING.0,
);
/// Those that have at least something that variables can be looked up in.
pub const OF_CONNECTION: Phases = Phases(OF_REQUEST.0 | HANDSHAKING.0);

impl Phases {
    /// Whether a phase is one of them.
    pub fn has(self, phase: Phase) -> bool {
        self.0 & phase.bit() != 0
    }
}
