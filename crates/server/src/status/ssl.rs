//! TLS handshakes: all of them, those of a `status_zone`, and those with a peer.

use super::tally::Tally;
use crate::snapshot::Server;
use crate::tls::client::Distrust;
use crate::tls::verify::Failure;
use crate::upstream::peer::PeerState;
use rustls::{AlertDescription as Alert, Error, PeerIncompatible};
use std::io;

/// What is counted; the numbers' places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake was completed.
    Handshake,
    /// It was not.
    Failed,
    /// It went on with an earlier session.
    Reuse,
    /// There was no version in common.
    NoProtocol,
    /// There was no cipher in common.
    NoCipher,
    /// It took too long.
    Timeout,
    /// The other side did not like our certificate.
    Rejected,
    /// The client showed no certificate where it had to.
    NoCert,
    /// The other side's certificate is not valid yet, or no more.
    Expired,
    /// The other side's certificate was revoked.
    Revoked,
    /// Something else is wrong with the other side's certificate.
    BadCert,
    /// The peer's certificate is for another name.
    WrongName,
}

/// Why handshakes failed, by the API's names.
pub const CAUSES: [(&str, Event); 4] = [
    ("no_common_protocol", Event::NoProtocol),
    ("no_common_cipher", Event::NoCipher),
    ("handshake_timeout", Event::Timeout),
    ("peer_rejected_cert", Event::Rejected),
];

/// What was wrong with certificates, by the API's names.
pub const VERIFY_FAILURES: [(&str, Event); 5] = [
    ("no_cert", Event::NoCert),
    ("expired_cert", Event::Expired),
    ("revoked_cert", Event::Revoked),
    ("hostname_mismatch", Event::WrongName),
    ("other", Event::BadCert),
];

/// How many there are.
const WIDTH: usize = Event::WrongName as usize + 1;

/// What is counted of handshakes.
pub type Counts = Tally<WIDTH>;

/// All handshakes, with clients and with peers.
pub static ALL: Counts = Tally::new();

/// What was counted.
#[derive(Clone, Copy, Debug)]
pub struct Totals([u64; WIDTH]);

impl Totals {
    /// Adds up.
    pub fn of(counts: &Counts) -> Totals {
        Totals(counts.sums())
    }

    /// How often something happened.
    pub fn count(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// Whether there was any.
    pub fn is_empty(&self) -> bool {
        self.count(Event::Handshake) + self.count(Event::Failed) == 0
    }
}

/// What a client says of a certificate it does not like.
pub const REJECTIONS: &[Alert] = &[
    Alert::BadCertificate,
    Alert::UnsupportedCertificate,
    Alert::CertificateRevoked,
    Alert::CertificateExpired,
    Alert::CertificateUnknown,
    Alert::UnknownCA,
];

/// Counts what happened to a server's handshake.
pub fn note(server: &Server, event: Event) {
    ALL.count(event as usize);
    if let Some(zone) = &server.conf.zone {
        zone.ssl.count(event as usize);
    }
}

/// A handshake failed; no error: it took too long.
pub fn failed(server: &Server, error: Option<&io::Error>) {
    note(server, Event::Failed);
    if let Some(cause) = cause(error) {
        note(server, cause);
    }
}

/// The client's certificate is no good.
pub fn not_verified(server: &Server, failure: Failure) {
    note(server, of_certificate(failure));
}

/// Counts what happened to a handshake with a peer.
pub fn note_peer(peer: &PeerState, event: Event) {
    ALL.count(event as usize);
    peer.shown.ssl.count(event as usize);
}

/// A handshake with a peer failed; no error: it took too long.
pub fn failed_peer(peer: &PeerState, error: Option<&io::Error>) {
    note_peer(peer, Event::Failed);
    if let Some(cause) = cause(error) {
        note_peer(peer, cause);
    }
}

/// The peer's certificate is no good.
pub fn distrusted_peer(peer: &PeerState, distrust: &Distrust) {
    note_peer(peer, Event::Failed);
    note_peer(
        peer,
        match distrust {
            Distrust::Chain(failure) => of_certificate(*failure),
            Distrust::Name(_) => Event::WrongName,
        },
    );
}

fn of_certificate(failure: Failure) -> Event {
    match failure {
        f if f.is_about_time() => Event::Expired,
        f if f.is_revoked() => Event::Revoked,
        _ => Event::BadCert,
    }
}

/// Why a handshake failed, where that is counted.
fn cause(error: Option<&io::Error>) -> Option<Event> {
    let Some(error) = error else { return Some(Event::Timeout) };
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::PeerIncompatible(
            PeerIncompatible::NoCipherSuitesInCommon
            | PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::NoSignatureSchemesInCommon,
        ) => Some(Event::NoCipher),
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => Some(Event::NoProtocol),
        Error::AlertReceived(alert) if REJECTIONS.contains(alert) => Some(Event::Rejected),
        _ => None,
    }
}
