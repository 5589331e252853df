//! The preread phase: looks at what the client says first, before the content handler is chosen, and keeps it for the
//! peer (nginx's `ngx_stream_ssl_preread_module`).

use super::{Session, facts};
use crate::log_error;
use crate::request::Request;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::task::Poll;
use wire::preread::{Hello, Preread, parse};

/// Reads until the ClientHello is whole, or until it is clear that there is none. The error is the session's status.
pub async fn hello(session: &mut Session) -> Result<(), u16> {
    let Session { r, socket, early } = session;
    facts(r).action = "prereading client data";
    let conf = &r.conf().stream_core;
    let size = (*conf.preread_buffer_size).max(1) as usize;
    let timer = Timer::new();
    timer.set(*conf.preread_timeout);
    loop {
        if !early.is_empty() {
            match parse(&early[..early.len().min(size)]) {
                Preread::Other => return Ok(()),
                Preread::Hello(hello) => {
                    choose_server(r, &hello);
                    facts(r).hello = Some(hello);
                    return Ok(());
                }
                Preread::Partial if early.len() >= size => {
                    log_error!(r, Error, "preread buffer full");
                    return Err(400);
                }
                Preread::Partial => {}
            }
        }
        early.reserve_exact(size - early.len());
        let got = poll_fn(|cx| match socket.poll_read(cx, early) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => timer.poll_expired(cx).map(|()| None),
        })
        .await;
        match got {
            Some(Ok(n)) if n > 0 => {}
            Some(Err(e)) => {
                log_error!(r, Info, "recv() failed ({})", crate::log::os_error(&e));
                return Err(200);
            }
            Some(Ok(_)) | None => return Err(200),
        }
    }
}

/// The server of that name, if there is one (`ngx_stream_ssl_preread_servername`).
fn choose_server(r: &mut Request, hello: &Hello) {
    let mut name = Vec::new();
    if hello.server_name.is_empty() || wire::http1::values::validate_host(&hello.server_name, &mut name).is_err() {
        return;
    }
    let shot = r.shot.clone();
    let listen = facts(r).listen;
    let site = shot.ports[listen - shot.whole().ports.len()].site(&r.client);
    let name = r.text(&name);
    // A pattern that gives up is a fault: the session ends.
    if let Ok(Some(server)) = site.find(r, name) {
        r.server = server;
        r.location = shot.server(server).root;
    }
}
