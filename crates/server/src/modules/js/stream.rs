//! Programs in `stream`: `js_access`, `js_preread`, `js_filter`. A filter stands between the two sides of a session; what it holds back is
//! bounded, since a side is read only when what was read of it before has gone on.

use super::current::{self, with};
use super::machine;
use super::run::{complain, only};
use crate::connection::incoming::Incoming;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::stream::StreamSession;
use crate::stream::relay::End;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, Function, Object, Result};
use ::js::{Buffer, Bytes, Engine, Fault};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{self, Poll};
use std::time::Duration;

/// What is read at once.
const PIECE: usize = 16 * 1024;
/// Bytes that a program may have sent to a side that does not take them.
const MAX_HELD: usize = 16 * 1024 * 1024;
/// What a phase says that lets the session go on: allowed, or declined.
const GOES_ON: [i32; 2] = [0, -5];

/// What a program of `stream` does.
#[derive(Default)]
pub struct State {
    /// What the phase comes to: nothing, or one of nginx's codes.
    done: Option<i32>,
    /// It wants what the client sends.
    upload: bool,
    /// It wants what the peer sends.
    download: bool,
    /// What it has sent: to the client or to the peer, and whether that is the last.
    sent: Vec<(bool, Vec<u8>, bool)>,
    /// A filter runs.
    filters: bool,
}

/// See the module's head.
pub fn add(raw: &Object<'_>) -> Result<()> {
    raw.set("s_status", Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(r.ctx.stream.as_ref().map_or(0, |f| f.status)))))?;
    raw.set(
        "s_done",
        Func::from(|ctx: Ctx<'_>, code: i32| {
            with(&ctx, |r| {
                let state = state(r)?;
                state.done = Some(code);
                (state.upload, state.download) = (false, false);
                Ok(())
            })
        }),
    )?;
    raw.set(
        "s_listens",
        Func::from(|ctx: Ctx<'_>, upload: bool, download: bool| {
            with(&ctx, |r| {
                let state = state(r)?;
                (state.upload, state.download) = (upload, download);
                Ok(())
            })
        }),
    )?;
    raw.set(
        "s_send",
        Func::from(|ctx: Ctx<'_>, to_client: bool, data: Bytes, last: bool| {
            with(&ctx, |r| {
                let state = state(r)?;
                if !state.filters {
                    return Err(Fault::of_type("cannot send buffer in this handler"));
                }
                if state.sent.iter().map(|(_, data, _)| data.len()).sum::<usize>() + data.0.len() > MAX_HELD {
                    return Err(Fault::internal("too much is sent at once"));
                }
                state.sent.push((to_client, data.0, last));
                Ok(())
            })
        }),
    )
}

fn state(r: &mut Request) -> std::result::Result<&mut State, Fault> {
    let context = r.ctx.js.as_mut().ok_or_else(|| Fault::internal("there is no session here"))?;
    Ok(&mut context.session)
}

/// A look at the state, where there is a context.
fn look<T: Default>(r: &mut Request, show: impl FnOnce(&mut State) -> T) -> T {
    r.ctx.js.as_mut().map(|c| show(&mut c.session)).unwrap_or_default()
}

/// Gives a handler bytes: whether there is one.
fn event(
    r: &mut Request,
    engine: &Rc<Engine>,
    from_peer: bool,
    data: &[u8],
    last: bool,
    filters: bool,
) -> std::result::Result<bool, String> {
    current::enter(r, || {
        engine.notify(|_, raw| {
            let call: Function<'_> = raw.get("s_event")?;
            call.call::<_, bool>((from_peer, Buffer(data.to_vec()), last, filters))
        })
    })
}

/// `js_access` and `js_preread`: lets the session go on, or gives its status.
pub async fn phase(session: &mut StreamSession, name: &str, prereads: bool) -> std::result::Result<(), u16> {
    let StreamSession { r, incoming } = session;
    let Some(engine) = machine::of(r) else { return Err(500) };
    let begun = current::enter(r, || {
        engine.notify(|_, raw| raw.get::<_, Function<'_>>("s_phase")?.call::<_, ()>(()))?;
        engine.call(name, |ctx, raw| only(ctx, raw, "session"))
    });
    look(r, |s| s.filters = false);
    if let Err(text) = begun {
        complain(r, &text);
        return Err(500);
    }
    incoming.input = incoming.take_unread();
    if look(r, |s| s.upload)
        && let Err(text) = event(r, &engine, false, &incoming.input, false, false)
    {
        complain(r, &text);
        return Err(500);
    }
    let waited = wait(r, incoming, &engine, prereads).await;
    let done = look(r, |s| s.done.take());
    look(r, |s| (s.upload, s.download) = (false, false));
    waited?;
    match done {
        Some(code) if GOES_ON.contains(&code) => Ok(()),
        Some(code) => Err(u16::try_from(code).ok().filter(|c| *c >= 100).unwrap_or(500)),
        // Nothing was decided.
        None => Err(500),
    }
}

/// Waits for what the program waits for: operations, and what the client sends.
async fn wait(
    r: &mut Request,
    incoming: &mut Incoming,
    engine: &Rc<Engine>,
    prereads: bool,
) -> std::result::Result<(), u16> {
    let limit = (*r.conf().stream_core.preread_buffer_size).max(1) as usize;
    let timer = Timer::new();
    if prereads {
        timer.set(*r.conf().stream_core.preread_timeout);
    }
    poll_fn(|cx| {
        loop {
            match current::enter(r, || engine.poll(cx)) {
                Poll::Ready(Err(text)) => {
                    complain(r, &text);
                    return Poll::Ready(Err(500));
                }
                Poll::Ready(Ok(())) if !look(r, |s| s.upload) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if !look(r, |s| s.upload) {
                return timer.poll_expired(cx).map(|()| Err(200));
            }
            if incoming.input.len() >= limit {
                log_error!(r, Error, "preread buffer full");
                return Poll::Ready(Err(400));
            }
            incoming.input.reserve((limit - incoming.input.len()).min(PIECE));
            let Incoming { socket, input, .. } = &mut *incoming;
            match socket.poll_read(cx, input) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Poll::Ready(Err(200)),
                Poll::Ready(Ok(_)) => {
                    let data = &incoming.input[..incoming.input.len().min(limit)];
                    if let Err(text) = event(r, engine, false, data, false, false) {
                        complain(r, &text);
                        return Poll::Ready(Err(500));
                    }
                }
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err(200)),
            }
        }
    })
    .await
}

/// One direction of a filtered session.
struct Way {
    out: Vec<u8>,
    at: usize,
    /// The side that is read has said its last.
    ended: bool,
    /// So has the program.
    last: bool,
    received: u64,
    sent: u64,
}

impl Way {
    fn new() -> Way {
        Way { out: Vec::new(), at: 0, ended: false, last: false, received: 0, sent: 0 }
    }

    fn is_pending(&self) -> bool {
        self.at < self.out.len()
    }

    /// Writes what the program has sent; true when something went.
    fn poll_write(&mut self, cx: &mut task::Context<'_>, to: &mut Socket) -> io::Result<bool> {
        let mut moved = false;
        while self.is_pending() {
            match to.poll_write_with(cx, |s| s.try_write(&self.out[self.at..], false)) {
                Poll::Ready(n) => {
                    let n = n?;
                    (self.at, self.sent, moved) = (self.at + n, self.sent + n as u64, true);
                }
                Poll::Pending => return Ok(moved),
            }
        }
        self.out.clear();
        self.at = 0;
        Ok(moved)
    }
}

/// What a filtered session came to.
pub struct Filtered {
    /// Why it is over.
    pub end: End,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// Bytes from the peer, and to it.
    pub upstream: (u64, u64),
    /// How long the peer's first byte took, ms.
    pub first_byte_ms: Option<u64>,
}

struct Filter<'f> {
    r: &'f mut Request,
    engine: Rc<Engine>,
    up: Way,
    down: Way,
}

impl Filter<'_> {
    /// Hands bytes of one side to the program, or past it.
    fn pass(&mut self, is_down: bool, data: &[u8], last: bool) -> std::result::Result<(), String> {
        let way = if is_down { &mut self.down } else { &mut self.up };
        way.received += data.len() as u64;
        way.ended |= last;
        if !event(self.r, &self.engine, is_down, data, last, true)? {
            way.out.extend_from_slice(data);
            way.last |= last;
        }
        self.collect();
        Ok(())
    }

    /// Takes what the program has sent meanwhile.
    fn collect(&mut self) {
        for (to_client, data, last) in look(self.r, |s| std::mem::take(&mut s.sent)) {
            let way = if to_client { &mut self.down } else { &mut self.up };
            way.out.extend_from_slice(&data);
            way.last |= last;
        }
    }

    fn poll_way(
        &mut self,
        cx: &mut task::Context<'_>,
        is_down: bool,
        from: &mut Socket,
        to: &mut Socket,
    ) -> std::result::Result<bool, Broken> {
        let mut moved = false;
        loop {
            let way = if is_down { &mut self.down } else { &mut self.up };
            moved |= way.poll_write(cx, to).map_err(Broken::Write)?;
            if way.is_pending() || way.ended {
                return Ok(moved);
            }
            let mut room = Vec::with_capacity(PIECE);
            match from.poll_read(cx, &mut room) {
                Poll::Ready(read) => {
                    let n = read.unwrap_or(0);
                    moved = true;
                    self.pass(is_down, &room[..n], n == 0).map_err(Broken::Program)?;
                }
                Poll::Pending => return Ok(moved),
            }
        }
    }
}

enum Broken {
    Write(io::Error),
    Program(String),
}

/// `js_filter`: copies both ways through the program until one side ends. `header` goes to the peer as it is, `first` came from the client
/// already.
pub async fn filter(
    r: &mut Request,
    name: &str,
    (client, peer): (&mut Socket, &mut Socket),
    (header, first): (Vec<u8>, Vec<u8>),
    timeout: Duration,
) -> Filtered {
    let started = clock::monotonic_ms();
    let nothing = |end| Filtered { end, received: 0, sent: 0, upstream: (0, 0), first_byte_ms: None };
    let broken = || End::Broken(io::Error::other("js_filter failed"));
    let Some(engine) = machine::of(r) else { return nothing(broken()) };
    look(r, |s| s.filters = true);
    let begun = current::enter(r, || {
        engine.notify(|_, raw| raw.get::<_, Function<'_>>("s_phase")?.call::<_, ()>(()))?;
        engine.call(name, |ctx, raw| only(ctx, raw, "session"))
    });
    if let Err(text) = begun {
        complain(r, &text);
        return nothing(broken());
    }
    let mut filter = Filter { r, engine, up: Way::new(), down: Way::new() };
    filter.up.out = header;
    if !first.is_empty()
        && let Err(text) = filter.pass(false, &first, false)
    {
        complain(filter.r, &text);
        return nothing(broken());
    }
    let timer = Timer::new();
    timer.set(timeout);
    let mut first_byte_ms = None;
    let end = poll_fn(|cx| {
        loop {
            if let Poll::Ready(Err(text)) = current::enter(filter.r, || filter.engine.poll(cx)) {
                complain(filter.r, &text);
                return Poll::Ready(broken());
            }
            filter.collect();
            let up = filter.poll_way(cx, false, client, peer);
            let moved = up.and_then(|up| Ok(filter.poll_way(cx, true, peer, client)? || up));
            let moved = match moved {
                Ok(moved) => moved,
                Err(Broken::Write(e)) => return Poll::Ready(End::Broken(e)),
                Err(Broken::Program(text)) => {
                    complain(filter.r, &text);
                    return Poll::Ready(broken());
                }
            };
            if filter.down.received > 0 && first_byte_ms.is_none() {
                first_byte_ms = Some(clock::monotonic_ms().saturating_sub(started));
            }
            let (up, down) = (&filter.up, &filter.down);
            // What goes to a side that has ended itself need not arrive.
            let rest = up.is_pending() && !down.ended || down.is_pending() && !up.ended;
            if (up.ended || down.ended || up.last || down.last) && !rest {
                return Poll::Ready(End::Closed(if down.ended { "upstream" } else { "client" }));
            }
            if !moved {
                return timer.poll_expired(cx).map(|()| End::TimedOut);
            }
            timer.set(timeout);
        }
    })
    .await;
    let (up, down) = (&filter.up, &filter.down);
    Filtered { end, received: up.received, sent: down.sent, upstream: (down.received, up.sent), first_byte_ms }
}
