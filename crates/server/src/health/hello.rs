//! A check by the first messages of TLS: whether a ClientHello is answered by a ServerHello. No handshake is completed, so
//! certificates are not looked at, and none of ours is asked for.

use super::cause::Cause;
use super::matching::shown;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore, client::UnbufferedClientConnection};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use wire::tls::HANDSHAKE;

/// The record type of alerts (RFC 8446 section 5.1).
const ALERT: u8 = 21;
/// The first byte of all versions.
const MAJOR: u8 = 3;
/// Bytes of a record's head and of an alert.
const WHOLE_ALERT: usize = 5 + 2;
/// The type of the handshake message (RFC 8446 section 4).
const SERVER_HELLO: u8 = 2;

/// A ClientHello as this server's own as a client, without a name. Good for any number of checks: none goes on from there.
///
/// # Errors
/// The library's, in words.
pub fn client_hello() -> Result<Vec<u8>, String> {
    let nobody = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut client = UnbufferedClientConnection::new(Arc::new(config), nobody).map_err(|e| e.to_string())?;
    let UnbufferedStatus { state, .. } = client.process_tls_records(&mut []);
    let Ok(ConnectionState::EncodeTlsData(mut hello)) = state else { return Err("no ClientHello".to_owned()) };
    let mut bytes = Vec::new();
    loop {
        match hello.encode(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Err(EncodeError::InsufficientSize(e)) if e.required_size > bytes.len() => bytes.resize(e.required_size, 0),
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Whether what has come is the beginning of a ServerHello; `None`: more may make it one.
pub fn judge(came: &[u8]) -> Option<Result<(), Cause>> {
    let failed = |text: String| Some(Err(Cause::Tls(text.into())));
    match came {
        [HANDSHAKE, MAJOR, _, _, _, SERVER_HELLO, ..] => Some(Ok(())),
        [HANDSHAKE, MAJOR, _, _, _, other, ..] => {
            failed(format!("a handshake message of type {other}, no ServerHello"))
        }
        [ALERT, MAJOR, _, _, _, _, alert, ..] => {
            failed(Error::AlertReceived(AlertDescription::from(*alert)).to_string())
        }
        [] | [HANDSHAKE | ALERT] => None,
        [HANDSHAKE | ALERT, MAJOR, rest @ ..] if rest.len() + 2 < WHOLE_ALERT => None,
        _ => failed(format!("no TLS: \"{}\"", shown(came))),
    }
}

/// What is wrong when no more comes.
pub fn cut_short() -> Cause {
    Cause::Tls("peer closed connection in SSL handshake".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_one_record_that_asks_for_both_versions() {
        let hello = client_hello().expect("the library makes one");
        assert_eq!((hello[0], hello[1], hello[5]), (HANDSHAKE, MAJOR, 1));
        assert_eq!(usize::from(u16::from_be_bytes([hello[3], hello[4]])), hello.len() - 5);
    }

    #[test]
    fn answers_are_waited_for_and_told_apart() {
        let server = [HANDSHAKE, 3, 3, 0, 122, SERVER_HELLO, 0];
        (0..6).for_each(|len| assert_eq!(judge(&server[..len]), None, "{len} bytes"));
        assert_eq!(judge(&server), Some(Ok(())));
        let says = |came: &[u8]| judge(came).expect("judged").expect_err("no ServerHello").to_string();
        let alert = [ALERT, 3, 3, 0, 2, 2, 40];
        (1..7).for_each(|len| assert_eq!(judge(&alert[..len]), None, "{len} bytes"));
        assert_eq!(says(&alert), "TLS failed: received fatal alert: HandshakeFailure");
        assert_eq!(says(b"HTTP/1.1 400 Bad Request\r\n"), "TLS failed: no TLS: \"HTTP/1.1 400 Bad Request\\r\\n\"");
        assert_eq!(says(&[HANDSHAKE, 3, 3, 0, 4, 0, 0]), "TLS failed: a handshake message of type 0, no ServerHello");
    }
}
