//! A request gets a stream: of a connection that is there, one that is being opened, or a new one. Its head goes out with it.

use super::{Asked, Carrier, Stream};
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::upstream::exchange::{self, Event, poll_end};
use crate::upstream::failure::Failure;
use crate::upstream::framing::Framing;
use crate::upstream::job::Job;
use crate::upstream::pool::Connection;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::sharing::{self, Offered, Opening};
use crate::upstream::upload::Upload;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Opens a stream. `fresh`: no connection that is older than this try.
pub async fn open<C: Carrier>(r: &mut Request, asked: Asked<'_>, fresh: bool) -> Result<Box<Connection>, Failure> {
    let Asked { job, conf, chosen, started_ms } = asked;
    let timer = Timer::new();
    timer.set(r.attempts.connect_timeout(conf));
    loop {
        match sharing::find::<C>(job, chosen, fresh.then_some(started_ms)) {
            Offered::Ready(session) => {
                r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
                if let Some(stream) = begin(r, job, &session) {
                    return Ok(connection(timer, stream));
                }
            }
            Offered::Opening(opening) => wait(r, conf, &timer, &opening).await?,
            Offered::Nothing(slot) => {
                let session = C::connect(r, &asked, slot.as_ref().map(|s| s.key()), &timer).await?;
                r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
                let Some(stream) = begin(r, job, &session) else {
                    session.retire();
                    log_error!(r, Error, "upstream allows no streams");
                    return Err(Failure::of(next::ERROR, false, false));
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

fn connection<C: Carrier>(timer: Timer, stream: Stream<C>) -> Box<Connection> {
    let mut connection = Connection::new(Socket::none(), timer, None);
    connection.framing = Framing::Stream(Box::new(stream));
    connection
}

/// Sends the head on a new stream. None: there is no room after all.
fn begin<C: Carrier>(r: &mut Request, job: &Job, session: &Rc<C>) -> Option<Stream<C>> {
    let upload = Upload::new(r, &job.body);
    let id = session.begin(r, job, upload.as_ref())?;
    let life = session.life();
    let reused = life.note_opened();
    life.changed();
    if life.is_worn() {
        session.retire();
    }
    Some(Stream::new(session.clone(), id, upload, reused))
}

/// Waits for a connection that another request opens.
async fn wait(r: &mut Request, conf: &UpstreamSettings, timer: &Timer, opening: &Opening) -> Result<(), Failure> {
    let watch = exchange::watches_client(r, conf);
    let event = poll_fn(|cx| match opening.is_done() {
        true => Poll::Ready(Event::Done(())),
        false => poll_end(r, cx, timer, watch),
    })
    .await;
    match event {
        Event::Done(()) => Ok(()),
        Event::TimedOut => Err(Failure::timed_out(r, false)),
        Event::ClientGone => Err(exchange::client_gone(r)),
    }
}
