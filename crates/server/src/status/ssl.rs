//! TLS handshakes: all of them, and those of a `status_zone`.

use super::tally::Tally;
use crate::snapshot::Server;
use crate::tls::verify::Failure;
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
    /// The client's certificate is not valid yet, or no more.
    Expired,
    /// The client's certificate was revoked.
    Revoked,
    /// Something else is wrong with the client's certificate.
    BadCert,
}

/// Why handshakes failed, by the API's names.
pub const CAUSES: [(&str, Event); 4] = [
    ("no_common_protocol", Event::NoProtocol),
    ("no_common_cipher", Event::NoCipher),
    ("handshake_timeout", Event::Timeout),
    ("peer_rejected_cert", Event::Rejected),
];

/// What was wrong with clients' certificates, by the API's names.
pub const VERIFY_FAILURES: [(&str, Event); 4] = [
    ("no_cert", Event::NoCert),
    ("expired_cert", Event::Expired),
    ("revoked_cert", Event::Revoked),
    ("other", Event::BadCert),
];

/// How many there are.
const WIDTH: usize = Event::BadCert as usize + 1;

/// What is counted of handshakes.
pub type Counts = Tally<WIDTH>;

/// All handshakes with clients.
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
    let cause = match error {
        None => Some(Event::Timeout),
        Some(e) => e.get_ref().and_then(|e| e.downcast_ref::<Error>()).and_then(cause),
    };
    if let Some(cause) = cause {
        note(server, cause);
    }
}

/// The client's certificate is no good.
pub fn not_verified(server: &Server, failure: Failure) {
    let event = match failure {
        f if f.is_about_time() => Event::Expired,
        f if f.is_revoked() => Event::Revoked,
        _ => Event::BadCert,
    };
    note(server, event);
}

/// Why the library gave up, where that is counted.
fn cause(error: &Error) -> Option<Event> {
    match error {
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
