//! What is known of a client's TLS: of its ClientHello at once, of the rest when the handshake is done.

use crate::snapshot::{ServerId, ThreadSnapshot};
use crate::tls::notes::Notes;
use crate::tls::verify::Failure;
use rustls::pki_types::CertificateDer;
use rustls::{HandshakeKind, NamedGroup, ProtocolVersion, SupportedCipherSuite};
use shield::fingerprint;
use std::cell::{Cell, OnceCell};
use wire::tls::ClientHello;

/// What is known of a connection's TLS. Shared by its requests.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name that was asked for, as it was sent.
    pub asked: Option<Box<str>>,
    /// The same in lower case if a server has it: whose certificate was shown.
    pub server_name: Option<Box<str>>,
    /// The server whose settings hold.
    pub server: ServerId,
    /// Ciphers, groups and signatures that the client offers, two bytes each; kept where a variable tells them.
    offered: Option<Box<[Box<[u8]>; 3]>>,
    /// JA4 of its ClientHello; kept where a variable tells it.
    pub ja4: Option<Box<str>>,
    /// The first request came before the handshake was complete.
    pub early: Cell<bool>,
    /// What the handshake came to.
    pub done: OnceCell<Done>,
}

/// What a handshake came to.
#[derive(Clone, Debug)]
pub struct Done {
    /// The version.
    pub version: ProtocolVersion,
    /// The cipher.
    pub cipher: Option<SupportedCipherSuite>,
    /// The group of the key exchange; none where a session was resumed without one.
    pub group: Option<NamedGroup>,
    /// What ALPN came to.
    pub alpn: Option<Box<[u8]>>,
    /// Full or resumed.
    pub kind: Option<HandshakeKind>,
    /// The client's certificates, its own first.
    pub chain: Vec<CertificateDer<'static>>,
    /// What is wrong with them.
    pub verified: Result<(), Failure>,
    /// What the library noted on the way.
    pub notes: Notes,
}

impl Facts {
    /// What they take, bytes.
    pub fn bytes(&self) -> usize {
        let length = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let done = self.done.get().map_or(0, |done| {
            let session = done.notes.session_id.as_ref().map_or(0, Vec::len);
            session
                + done.alpn.as_ref().map_or(0, |alpn| alpn.len())
                + done.chain.iter().map(|c| c.len()).sum::<usize>()
        });
        let offered = self.offered.iter().flat_map(|lists| lists.iter()).map(|list| list.len()).sum::<usize>();
        size_of::<Facts>() + length(&self.asked) + length(&self.server_name) + length(&self.ja4) + offered + done
    }

    /// One of the lists of what the client offers: 0 ciphers, 1 groups, 2 signatures.
    pub fn list(&self, which: usize, name: impl Fn(u16) -> String) -> Option<String> {
        let list = &self.offered.as_ref()?[which];
        Some(wire::tls::pairs(list).map(name).collect::<Vec<_>>().join(":"))
    }

    /// The client's certificate: whether it is good, if there is one.
    pub fn verified(&self) -> Option<Result<(), Failure>> {
        self.done.get().filter(|d| !d.chain.is_empty()).map(|d| d.verified)
    }
}

/// Variables that tell what a client offers.
const OFFERED: [&str; 3] = ["ssl_ciphers", "ssl_curves", "ssl_sigalgs"];

/// What a ClientHello tells.
pub fn facts(
    snapshot: &ThreadSnapshot,
    message: &[u8],
    hello: &ClientHello,
    found: Option<&str>,
    server: ServerId,
    quic: bool,
) -> Facts {
    let asked = hello.server_name.and_then(|name| std::str::from_utf8(name.of(message)).ok());
    let wanted = snapshot.variables.iter().any(|v| OFFERED.contains(&&*v.name));
    let offered = || Box::new([hello.ciphers, hello.groups, hello.signatures].map(|list| list.of(message).into()));
    Facts {
        asked: asked.map(Into::into),
        server_name: found.map(Into::into),
        server,
        offered: wanted.then(offered),
        ja4: snapshot.variables.iter().any(|v| &*v.name == "ssl_ja4").then(|| ja4(message, hello, quic).into()),
        early: Cell::new(false),
        done: OnceCell::new(),
    }
}

fn ja4(message: &[u8], hello: &ClientHello, quic: bool) -> String {
    let alpn = hello.alpn.of(message);
    let first = alpn.first().and_then(|len| alpn.get(1..1 + usize::from(*len))).unwrap_or_default();
    let extensions: Vec<u16> = wire::tls::extension_numbers(hello.extensions.of(message)).collect();
    fingerprint::ja4(fingerprint::Hello {
        quic,
        version: hello.best_version(message),
        named: extensions.contains(&0),
        ciphers: hello.ciphers.of(message),
        extensions: &extensions,
        signatures: hello.signatures.of(message),
        alpn: first,
    })
}
