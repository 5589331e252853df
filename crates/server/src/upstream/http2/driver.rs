//! The task of a connection: reads, lets the protocol work, wakes requests, writes all that came of it in one call. Never waits for
//! a request: what one does not take stays in its window.

use super::{Http2PeerConnection, OUTPUT_LIMIT, State, head};
use crate::connection::http2::link::FrameSocket;
use crate::connection::pool;
use crate::connection::socket::Socket;
use crate::log::error::Level;
use crate::upstream::sharing::Shared;
use crate::upstream::streams::Trouble;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use wire::http2::ErrorCode;
use wire::http2::connection::Event;
use wire::http2::hpack::HeaderBlock;

/// Reads of one turn, before other connections of the thread get theirs.
const STEPS: usize = 8;

thread_local! {
    /// Room for the fields of one header block.
    static FIELDS: RefCell<HeaderBlock> = RefCell::default();
}

struct Driver {
    session: Rc<Http2PeerConnection>,
    link: FrameSocket,
    /// How long it may be idle.
    timer: Timer,
    idle: bool,
    /// The peer broke the protocol: only what is written still goes out.
    failed: bool,
}

/// Drives a connection until it ends.
pub(super) async fn run(session: Rc<Http2PeerConnection>, socket: Socket) {
    let link = FrameSocket::new(socket, Vec::new(), 0);
    let mut driver = Driver { session, link, timer: Timer::new(), idle: false, failed: false };
    poll_fn(|cx| driver.turn(cx)).await;
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.session.retire();
        self.session.state.borrow_mut().end_all(&Trouble::closed());
        pool::give_buffer(std::mem::take(&mut self.link.input));
    }
}

impl Driver {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.session.life.begin_turn();
        if crate::worker::draining() {
            self.session.retire();
        }
        let end = self.work(cx);
        self.session.life.end_turn();
        end
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut full = true;
        for _ in 0..STEPS {
            if !full {
                return self.rest(cx);
            }
            full = match self.read(cx) {
                Ok(full) => full,
                Err(trouble) => {
                    self.session.state.borrow_mut().end_all(&trouble);
                    return Poll::Ready(());
                }
            };
            match self.write(cx) {
                Ok(true) => return if self.failed { Poll::Ready(()) } else { self.rest(cx) },
                Ok(false) if self.failed => return Poll::Ready(()),
                Ok(false) => {}
                Err(e) => {
                    let text = format!("send() failed ({})", crate::log::os_error(&e));
                    self.session.state.borrow_mut().end_all(&Trouble::Lost(text.into()));
                    return Poll::Ready(());
                }
            }
        }
        runtime::wake(runtime::current());
        Poll::Pending
    }

    /// Reads and works on what comes. True: there may be more, but what waits for the peer has to go first.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Trouble> {
        for _ in 0..STEPS {
            if self.failed {
                return Ok(false);
            }
            if self.session.state.borrow().wire.output().len() >= OUTPUT_LIMIT {
                return Ok(true);
            }
            match self.link.poll_fill(cx) {
                Poll::Ready(Ok(n)) if n > 0 => self.process(),
                Poll::Ready(Ok(_)) => return Err(Trouble::closed()),
                Poll::Ready(Err(e)) => return Err(Trouble::Lost(crate::log::read_error("recv()", &e).into())),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(true)
    }

    fn process(&mut self) {
        let mut fields = FIELDS.take();
        let mut state = self.session.state.borrow_mut();
        state.wire.lend_buffer(pool::take_buffer);
        self.session.life.note_heard();
        let mut goaway = false;
        loop {
            match state.wire.next(&self.link.input, &mut self.link.at, &mut fields) {
                Ok(Event::More) => break,
                Ok(Event::Goaway { last, code }) => {
                    goaway = true;
                    state.go_away(last, code);
                }
                Ok(event) => state.take(event, &self.link.input, &fields),
                Err(error) => {
                    state.wire.goaway(error.code);
                    let text = wire::said_of("upstream", &error.text);
                    if state.wire.streams().is_empty() {
                        // No request will say it.
                        let peer = &self.session.life.peer;
                        crate::log::process_line(Level::Error, format_args!("{text}, upstream: \"{peer}\""));
                    }
                    state.end_all(&Trouble::Invalid(text.as_ref().into()));
                    self.failed = true;
                    break;
                }
            }
        }
        drop(state);
        FIELDS.set(fields);
        if goaway || self.failed {
            self.session.retire();
        }
    }

    /// Writes what waits. True: the socket takes no more now.
    fn write(&mut self, cx: &mut Context<'_>) -> std::io::Result<bool> {
        let mut state = self.session.state.borrow_mut();
        let blocked = self.link.write(cx, &mut state.wire)?;
        state.relieve();
        Ok(blocked)
    }

    /// Nothing is to be done now. Ready when the connection is of no use any more.
    fn rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.session.state.borrow_mut();
        let idle = state.wire.streams().is_empty();
        if idle && self.session.life.is_retired() {
            return Poll::Ready(());
        }
        if std::mem::replace(&mut self.idle, idle) != idle {
            match idle {
                true => self.timer.set(self.session.life.keepalive.timeout),
                false => self.timer.clear(),
            }
        }
        if !idle {
            return Poll::Pending;
        }
        if let Some(buffer) = state.wire.take_buffer() {
            pool::give_buffer(buffer);
        }
        state.wire.rest();
        self.timer.poll_expired(cx)
    }
}

/// RST_STREAM
fn rejected(code: ErrorCode) -> Trouble {
    let text = format!("upstream rejected request with error {}", code.0).into();
    if code == ErrorCode::REFUSED_STREAM { Trouble::Refused(text) } else { Trouble::Invalid(text) }
}

impl State {
    fn take(&mut self, event: Event, input: &[u8], fields: &HeaderBlock) {
        match event {
            Event::Head { stream, end, .. } => self.take_head(stream, end, fields),
            Event::Data { stream, span, end } => self.take_data(stream, span.of(input), end),
            Event::Trailers { stream } => {
                let trailers = head::trailers(fields);
                let Some(s) = self.wire.stream(stream) else { return };
                match trailers {
                    Ok(trailers) => {
                        (s.data.trailers, s.data.complete) = (trailers, true);
                        s.data.wake();
                    }
                    Err(text) => self.refuse(stream, Trouble::Invalid(text)),
                }
            }
            Event::Reset { stream, code, ours } => {
                let note = self.wire.note.take().filter(|_| ours);
                let Some(s) = self.wire.stream(stream) else { return };
                match note {
                    Some(text) => s.data.fail(Trouble::Invalid(wire::said_of("upstream", &text).as_ref().into())),
                    // The answer is complete: the peer only does not want the rest of the request.
                    None if code == ErrorCode::NO_ERROR && s.data.complete => s.data.wake(),
                    None => s.data.fail(rejected(code)),
                }
            }
            Event::Window { stream: 0 } => self.wire.streams_mut().iter_mut().for_each(|s| s.data.wake()),
            Event::Window { stream } => {
                if let Some(s) = self.wire.stream(stream) {
                    s.data.wake();
                }
            }
            Event::More | Event::Refused | Event::Priority { .. } | Event::Goaway { .. } => {}
        }
    }

    fn take_head(&mut self, id: u32, end: bool, fields: &HeaderBlock) {
        let Some(s) = self.wire.stream(id) else { return };
        match s.data.take_head(fields, end) {
            Ok(found) if found.is_interim() => {}
            Ok(_) => self.wire.answered(id),
            Err(text) => self.refuse(id, Trouble::Invalid(text)),
        }
    }

    fn take_data(&mut self, id: u32, bytes: &[u8], end: bool) {
        let Some(s) = self.wire.stream(id) else { return };
        if let Err(text) = s.data.take_body(bytes, end) {
            self.refuse(id, Trouble::Invalid(text));
        }
    }

    /// What came on a stream makes no sense.
    fn refuse(&mut self, id: u32, trouble: Trouble) {
        self.wire.reset(id, ErrorCode::PROTOCOL_ERROR);
        if let Some(s) = self.wire.stream(id) {
            s.data.fail(trouble);
        }
    }

    /// Streams above `last` have not been worked on and will not be.
    fn go_away(&mut self, last: u32, code: ErrorCode) {
        let text = format!("upstream sent goaway with error {}", code.0).into();
        let trouble = if code == ErrorCode::NO_ERROR { Trouble::Refused(text) } else { Trouble::Invalid(text) };
        for s in self.wire.streams_mut().iter_mut().filter(|s| s.id > last && !s.data.complete) {
            s.data.fail(trouble.clone());
        }
    }

    /// Nothing more comes for anybody.
    fn end_all(&mut self, trouble: &Trouble) {
        for s in self.wire.streams_mut().iter_mut().filter(|s| !s.data.complete) {
            s.data.fail(trouble.clone());
        }
    }

    /// There is room in the output again for those who wait for it.
    fn relieve(&mut self) {
        if self.crowded && self.wire.output().len() < OUTPUT_LIMIT / 2 {
            self.crowded = false;
            self.wire.streams_mut().iter_mut().for_each(|s| s.data.wake());
        }
    }
}
