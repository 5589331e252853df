//! A request gets a stream: of a connection that is there, one that is being opened, or a new one. Its head goes out with it.

use super::stream::Stream;
use super::{Session, StreamState, connect};
use crate::connection::socket::Socket;
use crate::request::Request;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::failure::Failure;
use crate::upstream::framing::Framing;
use crate::upstream::http2::fields;
use crate::upstream::http2::open::wait;
use crate::upstream::job::Job;
use crate::upstream::pool::Connection;
use crate::upstream::settings::UpstreamSettings;
use crate::upstream::sharing::{self, Offered, Shared};
use crate::upstream::upload::Upload;
use quinn_proto::Dir;
use runtime::clock;
use runtime::timer::Timer;
use std::rc::Rc;
use wire::http3::frame::{self, kind};
use wire::http3::qpack::encoder;

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
                let key = slot.as_ref().map(|s| s.key());
                let session = connect::connect(r, job, conf, chosen, key, &timer).await?;
                r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
                let Some(stream) = begin(r, job, &session) else {
                    session.retire();
                    return Err(connect::refused(r, "upstream allows no streams"));
                };
                match slot {
                    Some(slot) => slot.fill(session),
                    // It is this request's own.
                    None => session.retire(),
                }
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

/// Sends the head on a new stream. None: there is no room after all.
fn begin(r: &mut Request, job: &Job, session: &Rc<Session>) -> Option<Stream> {
    let mut state = session.state.borrow_mut();
    let reused = state.opened > 0;
    let Some(id) = state.quic.streams().open(Dir::Bi) else {
        state.exhausted = true;
        return None;
    };
    let upload = Upload::new(r, &job.body);
    state.opened += 1;
    let mut section = Vec::with_capacity(job.head.len());
    encoder::begin(&mut section);
    fields::iter(&job.head).for_each(|(name, value)| encoder::field(name, value, &mut section));
    let mut s = StreamState { is_head: job.is_head, last: upload.is_none(), ..StreamState::default() };
    frame::write_head(kind::HEADERS, section.len(), &mut s.output);
    s.output.extend_from_slice(&section);
    r.attempts.current().sent += s.output.len() as u64;
    state.streams.insert(id, s);
    state.pump(id);
    session.changed(&state);
    let worn = session.is_worn(&state);
    drop(state);
    if worn {
        session.retire();
    }
    Some(Stream::new(session.clone(), id, upload, reused))
}
