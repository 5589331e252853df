//! What is known of a client's TLS: of its ClientHello at once, of the rest when the handshake is done.

use crate::snapshot::{ServerId, ThreadSnapshot};
use crate::tls::ciphers;
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

    /// For another process. A connection that waits has shaken hands.
    pub fn write(&self, w: &mut heir::Writer) {
        for text in [&self.asked, &self.server_name, &self.ja4] {
            w.optional_bytes(text.as_deref().map(str::as_bytes));
        }
        w.number(self.server.0.into());
        w.flag(self.offered.is_some());
        self.offered.iter().flat_map(|lists| lists.iter()).for_each(|list| w.bytes(list));
        w.flag(self.early.get());
        w.flag(self.done.get().is_some());
        self.done.get().iter().for_each(|done| done.write(w));
    }

    /// What another process wrote; `terms` says what it calls its servers.
    pub fn read(r: &mut heir::Reader<'_>, terms: &heir::Terms) -> Option<Facts> {
        let mut text = || Some(r.optional_bytes()?.map(std::str::from_utf8).transpose().ok()?.map(Box::from));
        let (asked, server_name, ja4) = (text()?, text()?, text()?);
        let server = ServerId(terms.server(r.number()?)?);
        let offered = match r.flag()? {
            true => Some(Box::new([r.bytes()?.into(), r.bytes()?.into(), r.bytes()?.into()])),
            false => None,
        };
        let (early, done) = (Cell::new(r.flag()?), OnceCell::new());
        if r.flag()? {
            let _ = done.set(Done::read(r)?);
        }
        Some(Facts { asked, server_name, server, offered, ja4, early, done })
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

/// Certificates of a chain that another process may send.
const MOST_CHAIN: usize = 64;
/// How handshakes go, by number.
const KINDS: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::FullWithHelloRetryRequest, HandshakeKind::Resumed];

impl Done {
    fn write(&self, w: &mut heir::Writer) {
        let Done { version, cipher, group, alpn, kind, chain, verified, notes } = self;
        let Notes { signed_by, client_signed_by, session_id } = notes;
        w.number(u16::from(*version).into());
        let kind = kind.and_then(|kind| KINDS.iter().position(|k| *k == kind));
        w.optional(cipher.map(|cipher| u16::from(cipher.suite()).into()));
        w.optional(group.map(|group| u16::from(group).into()));
        w.optional(kind.map(|kind| kind as i64));
        w.optional(verified.err().map(|Failure(number)| number.into()));
        w.optional(signed_by.map(|scheme| u16::from(scheme).into()));
        w.optional(client_signed_by.map(|scheme| u16::from(scheme).into()));
        w.optional_bytes(alpn.as_deref());
        w.optional_bytes(session_id.as_deref());
        w.number(chain.len() as u64);
        chain.iter().for_each(|certificate| w.bytes(certificate));
    }

    fn read(r: &mut heir::Reader<'_>) -> Option<Done> {
        let version = u16::try_from(r.number()?).ok()?.into();
        let mut number = || r.optional()?.map(u16::try_from).transpose().ok();
        let cipher = number()?.map(ciphers::by_number);
        let (group, kind, failure) = (number()?, number()?, number()?);
        let (signed_by, client_signed_by) = (number()?.map(Into::into), number()?.map(Into::into));
        let alpn = r.optional_bytes()?.map(Box::from);
        let session_id = r.optional_bytes()?.map(<[u8]>::to_vec);
        Some(Done {
            version,
            // One that is not known any more is none that could be gone on with.
            cipher: cipher.map_or(Some(None), |cipher| cipher.map(Some))?,
            group: group.map(Into::into),
            alpn,
            kind: kind.and_then(|kind| KINDS.get(usize::from(kind)).copied()),
            chain: r.list(MOST_CHAIN, |r| Some(CertificateDer::from(r.bytes()?.to_vec())))?,
            verified: failure.map_or(Ok(()), |number| Err(Failure(number))),
            notes: Notes { signed_by, client_signed_by, session_id },
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use heir::{Reader, Table, Terms, Writer};
    use rustls::SignatureScheme;

    #[test]
    fn what_is_known_of_tls_is_the_same_in_another_process() {
        let facts = Facts {
            asked: Some("Example.org".into()),
            server_name: Some("example.org".into()),
            server: ServerId(1),
            offered: Some(Box::new([[1, 2].into(), [].into(), [3, 4].into()])),
            ja4: None,
            early: Cell::new(true),
            done: OnceCell::new(),
        };
        let notes = Notes {
            signed_by: Some(SignatureScheme::ED25519),
            client_signed_by: None,
            session_id: Some(vec![1, 2, 3]),
        };
        let _ = facts.done.set(Done {
            version: ProtocolVersion::TLSv1_3,
            cipher: ciphers::all_tls13().first().copied(),
            group: Some(NamedGroup::X25519MLKEM768),
            alpn: Some(b"http/1.1"[..].into()),
            kind: Some(HandshakeKind::Resumed),
            chain: vec![CertificateDer::from(vec![9; 300])],
            verified: Err(Failure(10)),
            notes,
        });
        let theirs = Table { servers: vec![&b"a"[..], b"b"], ..Table::default() };
        let ours = Table { servers: vec![&b"b"[..]], ..Table::default() };
        let mut w = Writer::default();
        facts.write(&mut w);
        let bytes = w.done();
        let terms = Terms::of(&theirs, &ours);
        let mut r = Reader::new(&bytes);
        let read = Facts::read(&mut r, &terms).unwrap();
        assert!(r.is_done());
        let expected = Facts { server: ServerId(0), ..facts };
        assert_eq!(format!("{read:?}"), format!("{expected:?}"));
        for cut in 0..bytes.len() {
            let mut r = Reader::new(&bytes[..cut]);
            assert!(Facts::read(&mut r, &terms).is_none(), "{cut}");
        }
    }
}
