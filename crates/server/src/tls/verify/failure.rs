//! What is wrong with a certificate, by OpenSSL's numbers and in its words: `$ssl_client_verify` and log lines show them.

use std::fmt;

/// What is wrong with a certificate: OpenSSL's number (`X509_V_ERR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u16);

impl Failure {
    pub(super) const ISSUER: Failure = Failure(2);
    pub(super) const NO_CRL: Failure = Failure(3);
    pub(super) const CRL_SIGNATURE: Failure = Failure(8);
    pub(super) const NOT_YET: Failure = Failure(9);
    pub(super) const EXPIRED: Failure = Failure(10);
    pub(super) const CRL_NOT_YET: Failure = Failure(11);
    pub(super) const CRL_EXPIRED: Failure = Failure(12);
    pub(super) const SELF_SIGNED: Failure = Failure(18);
    pub(super) const SELF_SIGNED_IN_CHAIN: Failure = Failure(19);
    pub(super) const LOCAL_ISSUER: Failure = Failure(20);
    pub(super) const LEAF_SIGNATURE: Failure = Failure(21);
    pub(in super::super) const REVOKED: Failure = Failure(23);
    pub(super) const NO_CA: Failure = Failure(79);
    pub(super) const PATH_LENGTH: Failure = Failure(25);
    pub(super) const PURPOSE: Failure = Failure(26);
    pub(super) const CRITICAL: Failure = Failure(34);
    pub(super) const NO_CRL_SIGN: Failure = Failure(35);
    pub(super) const CRL_CRITICAL: Failure = Failure(36);
    /// A responder could not be asked, or its answer not be believed.
    pub(in super::super) const OCSP_FAILED: Failure = Failure(74);
    /// A responder does not know the certificate.
    pub(in super::super) const OCSP_UNKNOWN: Failure = Failure(75);
    pub(super) const NAME_CONSTRAINT: Failure = Failure(47);

    /// OpenSSL's text for it.
    pub fn text(self) -> &'static str {
        match self.0 {
            2 => "unable to get issuer certificate",
            3 => "unable to get certificate CRL",
            7 => "certificate signature failure",
            8 => "CRL signature failure",
            9 => "certificate is not yet valid",
            10 => "certificate has expired",
            11 => "CRL is not yet valid",
            12 => "CRL has expired",
            18 => "self-signed certificate",
            19 => "self-signed certificate in certificate chain",
            20 => "unable to get local issuer certificate",
            22 => "certificate chain too long",
            27 => "certificate not trusted",
            28 => "certificate rejected",
            50 => "application verification failure",
            62 => "hostname mismatch",
            21 => "unable to verify the first certificate",
            23 => "certificate revoked",
            79 => "invalid CA certificate",
            25 => "path length constraint exceeded",
            26 => "unsuitable certificate purpose",
            34 => "unhandled critical extension",
            35 => "key usage does not include CRL signing",
            36 => "unhandled critical CRL extension",
            // nginx's texts: OpenSSL has no part in these.
            74 => "certificate status request failed",
            75 => "certificate status unknown",
            47 => "permitted subtree violation",
            _ => "unspecified certificate verification error",
        }
    }

    /// The certificate, or one that it stands on, is not valid yet or no more.
    pub fn is_about_time(self) -> bool {
        self == Failure::NOT_YET || self == Failure::EXPIRED
    }

    /// The certificate was revoked.
    pub fn is_revoked(self) -> bool {
        self == Failure::REVOKED
    }

    /// `optional_no_ca`: only the issuer is unknown (`ngx_ssl_verify_error_optional`).
    pub fn is_unknown_issuer(self) -> bool {
        matches!(self.0, 18..=21 | 27)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.text())
    }
}
