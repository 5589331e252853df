//! The preread phase: looks at what the client says first, before the content handler is chosen, and keeps it for the
//! peer (nginx's `ngx_stream_ssl_preread_module`).

use super::{StreamSession, choose_server};
use crate::connection::incoming::Incoming;
use crate::log_error;
use crate::stream::facts::facts;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::task::Poll;
use wire::preread::{Preread, parse};

/// `ssl_preread`: reads until the ClientHello is whole, or until it is clear that there is none. The error is the session's status.
pub async fn hello(session: &mut StreamSession) -> Result<(), u16> {
    let look = |bytes: &[u8]| match parse(bytes) {
        Preread::Partial => None,
        Preread::Other => Some(None),
        Preread::Hello(hello) => Some(Some(hello)),
    };
    let limit = *session.r.conf().stream_core.preread_buffer_size;
    let Some(hello) = read_until(session, limit, look).await? else { return Ok(()) };
    let r = &mut session.r;
    let mut name = Vec::new();
    if wire::http1::values::validate_host(&hello.server_name, &mut name).is_ok() {
        choose_server(r, &name);
    }
    facts(r).hello = Some(hello);
    Ok(())
}

/// What is read at once.
const PIECE: usize = 16 * 1024;

/// Reads until `look` has seen enough, at most `limit` bytes and as long as `preread_timeout`. The error is the session's status.
pub(super) async fn read_until<T>(
    session: &mut StreamSession,
    limit: u64,
    look: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, u16> {
    let StreamSession { r, incoming } = session;
    facts(r).action = "prereading client data";
    let size = limit.max(1) as usize;
    let timer = Timer::new();
    timer.set(*r.conf().stream_core.preread_timeout);
    incoming.input = incoming.take_unread();
    let Incoming { socket, input: early, .. } = incoming;
    loop {
        if !early.is_empty() {
            if let Some(seen) = look(&early[..early.len().min(size)]) {
                return Ok(seen);
            }
            if early.len() >= size {
                log_error!(r, Error, "preread buffer full");
                return Err(400);
            }
        }
        early.reserve_exact((size - early.len()).min(PIECE));
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
