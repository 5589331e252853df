//! `pass`: the connection goes on as if it had come to another listener of the configuration, without a second socket
//! (nginx's `ngx_stream_pass_module`). From: the phases of the first session. To: those of the second.

use super::{End, StreamSession, begin};
use crate::connection::http1::Http1;
use crate::connection::incoming::Incoming;
use crate::connection::{Address, Client};
use crate::log_error;
use crate::modules::{listen, upstream_server};
use crate::process_settings::{ListenAddress, SocketKind};
use crate::request::Request;
use std::rc::Rc;

/// How often a connection may be passed on (`NGX_STREAM_PASS_MAX_PASSES`).
const MAX_PASSES: usize = 10;
/// The address is a name.
pub const NO_ADDRESSES: &str = "no addresses";

/// The address in a `pass`. Names are not looked up, neither here nor in nginx: the text may be a client's, and its session
/// must not stop the others of its thread. Errors are nginx's texts.
pub fn parse(text: &str) -> Result<Address, String> {
    let none = || NO_ADDRESSES.to_owned();
    if !text.starts_with("unix:") && matches!(listen::place(text, 0)?, listen::Place::Name(..)) {
        return Err(none());
    }
    upstream_server::resolve(text, 0)?.into_iter().next().ok_or_else(none)
}

/// Finds the listener.
pub fn hand_over(r: &mut Request) -> End {
    let snapshot = r.snapshot.clone();
    let text = snapshot.location(r.location).conf.stream_core.pass.eval(r);
    if r.has_fault() {
        return End::Status(500);
    }
    let text = String::from_utf8_lossy(r.get(text)).into_owned();
    let address = match parse(&text) {
        Ok(address) => address,
        Err(e) => {
            log_error!(r, Error, "{e} in pass \"{text}\"");
            return End::Status(500);
        }
    };
    let fits = |l: &&crate::process_settings::ListenSpec| l.kind == SocketKind::Stream && is_for(&l.address, &address);
    let whole = snapshot.whole();
    let listen = whole.listens.iter().position(|l| fits(&l));
    let listener = listen.and_then(|listen| {
        Some((listen, crate::worker::listener_at(&whole.listens[listen].address, SocketKind::Stream)?))
    });
    let Some((listen, listener)) = listener else {
        log_error!(r, Error, "port not found for \"{text}\"");
        return End::Status(200);
    };
    let client = r.client.passed_to(listener, address);
    let next = whole.ports.iter().chain(&snapshot.ports).nth(listen);
    if let Some(facts) = r.client.tls.get()
        && !next.is_some_and(|port| port.encrypted() && port.site(&client).ssl)
    {
        // What is plain for the next listener came by TLS.
        let _ = client.tls.set(facts.clone());
    }
    End::Passed(client)
}

/// A listener for all addresses takes every address of its family.
fn is_for(listen: &ListenAddress, address: &Address) -> bool {
    match (listen, address) {
        (ListenAddress::Inet(l), Address::Inet(a)) => {
            l == a || (l.ip().is_unspecified() && l.port() == a.port() && l.is_ipv4() == a.is_ipv4())
        }
        (ListenAddress::Unix(l), Address::Unix(a)) => l == a,
        _ => false,
    }
}

/// Goes on with the connection: as a session of `stream`, which is given back, or in `http`.
pub async fn receive(incoming: Incoming, client: Rc<Client>, passes: usize) -> Option<StreamSession> {
    if passes > MAX_PASSES {
        crate::log::process_line(crate::log::error::Level::Error, format_args!("*{} stream pass cycle", client.number));
        return None;
    }
    if crate::worker::is_of_stream(&client) {
        return begin(client, false).map(|r| StreamSession { r, incoming });
    }
    crate::connection::begin::serve_http(Http1::new(incoming), client).await;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_but_no_names() {
        assert_eq!(parse("127.0.0.1:81").map(|a| a.to_string()), Ok("127.0.0.1:81".to_owned()));
        assert!(matches!(parse("unix:/a"), Ok(Address::Unix(_))));
        assert_eq!(parse("localhost:81").err().as_deref(), Some(NO_ADDRESSES));
        assert_eq!(parse("127.0.0.1").err().as_deref(), Some("no port"));
    }
}
