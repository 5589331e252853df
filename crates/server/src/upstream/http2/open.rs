//! A request gets a stream: of a connection that is there, one that is being opened, or a new one. Its head goes out with it.

use super::{HEADERS, STREAM_WINDOW, Session, State, Stream, StreamState, driver, fields};
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::request::Request;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::exchange::{self, poll_client_gone};
use crate::upstream::failure::Failure;
use crate::upstream::framing::Framing;
use crate::upstream::job::Job;
use crate::upstream::pool::Connection;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::sharing::{self, Offered, Opening, Shared};
use crate::upstream::upload::Upload;
use runtime::TaskId;
use runtime::clock;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use wire::http2::connection::{Config, Connection as Wire, Role};

/// Opens a stream. `fresh`: no connection that is older than this try.
pub async fn open(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    chosen: &SelectedPeer,
    fresh: bool,
    started_ms: u64,
) -> Result<Connection, Failure> {
    let timer = Timer::new();
    timer.set(r.attempts.connect_timeout(conf));
    loop {
        match sharing::find::<Session>(job, chosen, fresh.then_some(started_ms)) {
            Offered::Ready(session) => {
                r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
                if let Some(stream) = begin(r, job, &session) {
                    return Ok(connection(timer, stream));
                }
            }
            Offered::Opening(opening) => wait(r, conf, &timer, &opening).await?,
            Offered::Nothing(slot) => {
                let Connection { socket, timer, .. } = exchange::open(r, job, conf, chosen, started_ms).await?;
                let session = Session::start(socket, job, chosen, slot.as_ref().map(|s| s.key()));
                let stream = begin(r, job, &session);
                if let Some(slot) = slot {
                    slot.fill(session);
                }
                let stream = stream.expect("a new connection takes a stream");
                return Ok(connection(timer, stream));
            }
        }
    }
}

fn connection(timer: Timer, stream: Stream) -> Connection {
    let mut connection = Connection::new(Socket::none(), timer, None);
    connection.framing = Framing::Stream(Box::new(stream));
    connection
}

/// Waits for a connection that another request opens.
pub(in crate::upstream) async fn wait(
    r: &mut Request,
    conf: &UpstreamSettings,
    timer: &Timer,
    opening: &Opening,
) -> Result<(), Failure> {
    let watch = exchange::watches_client(r, conf);
    let failure = poll_fn(|cx| {
        if opening.is_done() {
            return Poll::Ready(None);
        }
        if timer.poll_expired(cx).is_ready() {
            return Poll::Ready(Some(next::TIMEOUT));
        }
        if watch && poll_client_gone(r, cx).is_ready() {
            return Poll::Ready(Some(next::ERROR));
        }
        Poll::Pending
    })
    .await;
    match failure {
        None => Ok(()),
        Some(next::TIMEOUT) => Err(Failure::timed_out(r, false)),
        Some(_) => Err(exchange::client_gone(r)),
    }
}

/// Sends the head on a new stream. None: there is no room after all.
fn begin(r: &mut Request, job: &Job, session: &Rc<Session>) -> Option<Stream> {
    let upload = Upload::new(r, &job.body);
    let mut state = session.state.borrow_mut();
    let reused = state.opened > 0;
    let id = state.wire.open(StreamState { is_head: job.is_head, ..StreamState::default() })?;
    state.opened += 1;
    state.wire.lend_buffer(buffers::take_buffer);
    let sent = state.wire.send_head(id, upload.is_none(), |encoder, out| {
        fields::iter(&job.head).for_each(|(name, value)| encoder.field(name, value, out));
    });
    r.attempts.current().sent += sent as u64;
    session.changed(&state);
    let worn = session.is_worn(&state);
    drop(state);
    if worn {
        session.retire();
    }
    Some(Stream::new(session.clone(), id, upload, reused))
}

impl Session {
    /// Takes over a connection that stands; a task drives it from now on. `key`: requests share it.
    fn start(socket: Socket, job: &Job, chosen: &SelectedPeer, key: Option<sharing::Key>) -> Rc<Session> {
        let config = Config { role: Role::Client, max_streams: 0, stream_window: STREAM_WINDOW, headers: HEADERS };
        let now = clock::monotonic_ms();
        let mut wire = Wire::new(config);
        // The peer's word on a new connection comes later than the first requests, and it would refuse those beyond.
        if let Some(allowed) = key.as_ref().and_then(|key| sharing::least(key, Session::allowed_streams)) {
            // At least the stream that it is opened for.
            wire.assume_streams(allowed.max(1));
        }
        let state =
            State { wire, task: TaskId::NOBODY, retired: key.is_none(), opened: 0, heard_ms: now, crowded: false };
        let session = Rc::new(Session {
            state: RefCell::new(state),
            // Until it runs for the first time.
            driving: Cell::new(true),
            key,
            peer: chosen.peer.name.as_ref().into(),
            began_ms: now,
            keepalive: job.group.keepalive.clone(),
        });
        runtime::spawn(driver::run(session.clone(), socket));
        session
    }
}
