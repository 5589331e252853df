//! TLS of a session's client: the handshake that `http` has as well, and what the session makes of it (nginx's
//! `ngx_stream_ssl_module`). From: the access phase. To: the preread phase, which sees plain bytes.

use super::{StreamSession, choose_server};
use crate::connection::arrival::Arrival;
use crate::connection::handshake::{self, Accepted};
use crate::log::error::Level;
use crate::log_error;
use crate::modules::ssl::{self, Trouble};
use crate::request::Request;
use crate::status;
use crate::stream::facts::facts;
use std::io;

/// Accepts TLS, goes on with the server that was asked for, and looks at the client's certificate. The error is the session's status.
pub(super) async fn accept(session: &mut StreamSession, listen: usize) -> Result<(), u16> {
    let StreamSession { r, incoming } = session;
    facts(r).action = handshake::ACTION;
    let (snapshot, client) = (r.snapshot.clone(), r.client.clone());
    let arrival = Arrival::at_stream(&snapshot, &client, listen);
    match handshake::accept(incoming, arrival, Some(r)).await {
        Accepted::Encrypted => {}
        Accepted::Plain => {
            status::ssl::failed(snapshot.server(r.server), Some(&io::ErrorKind::InvalidData.into()));
            let text = "SSL_do_handshake() failed (SSL: wrong version number)";
            arrival.line(handshake::ACTION, Level::Info, format_args!("{text}"));
            return Err(500);
        }
        Accepted::Over => return Err(500),
    }
    if let Some(name) = client.tls.get().and_then(|facts| facts.server_name.as_deref()) {
        choose_server(r, name.as_bytes());
    }
    verify(r)
}

/// `ssl_verify_client`
fn verify(r: &mut Request) -> Result<(), u16> {
    match ssl::verify_client(r) {
        Ok(()) => return Ok(()),
        Err(Trouble::NotVerified(failure)) => log_error!(r, Info, "client SSL certificate verify error: ({failure})"),
        Err(Trouble::NoCertificate) => log_error!(r, Info, "client sent no required SSL certificate"),
    }
    Err(500)
}
