//! Streams as requests hold them (`crate::upstream::streams`): opened, read on in, written to, released.

use super::{HEADERS, Http2PeerConnection, OUTPUT_LIMIT, STREAM_WINDOW, State, driver, fields};
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::request::Request;
use crate::upstream::exchange;
use crate::upstream::failure::Failure;
use crate::upstream::job::Job;
use crate::upstream::pool::Connection;
use crate::upstream::sharing::{self, Key, Life};
use crate::upstream::streams::{Answer, Asked, Carrier};
use crate::upstream::upload::Upload;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use wire::http2::ErrorCode;
use wire::http2::connection::{Config, Connection as Wire, Role};

impl Carrier for Http2PeerConnection {
    type Id = u32;

    async fn connect(
        r: &mut Request,
        asked: &Asked<'_>,
        key: Option<Key>,
        _timer: &Timer,
    ) -> Result<Rc<Http2PeerConnection>, Failure> {
        let Asked { job, conf, chosen, started_ms } = *asked;
        let Connection { socket, .. } = *exchange::open(r, job, conf, chosen, started_ms).await?;
        Ok(Http2PeerConnection::start(socket, Life::new(job, chosen, key)))
    }

    fn begin(&self, r: &mut Request, job: &Job, upload: Option<&Upload>) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let id = state.wire.open(Answer::new(job.is_head))?;
        state.wire.lend_buffer(buffers::take_buffer);
        let sent = state.wire.send_head(id, upload.is_none(), |encoder, out| {
            fields::iter(&job.head).for_each(|(name, value)| encoder.field(name, value, out));
        });
        r.attempts.current().sent += sent as u64;
        Some(id)
    }

    fn answer<V>(&self, id: u32, with: impl FnOnce(&mut Answer) -> V) -> Option<V> {
        self.state.borrow_mut().wire.stream(id).map(|s| with(&mut s.data))
    }

    fn taken(&self, id: u32) {
        let mut state = self.state.borrow_mut();
        if state.wire.receivable(id) < STREAM_WINDOW / 2 {
            state.wire.open_window(id, STREAM_WINDOW);
            self.life.changed();
        }
    }

    fn send(&self, id: u32, piece: &[u8], end: bool) -> usize {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let mut done = 0;
        state.wire.lend_buffer(buffers::take_buffer);
        while done < piece.len() && state.wire.output().len() < OUTPUT_LIMIT {
            let left = piece.len() - done;
            let wanted = left.min(state.wire.largest_frame());
            let n = wanted.min(state.wire.sendable(id));
            if n == 0 {
                break;
            }
            let bytes = &piece[done..done + n];
            let fill = |out: &mut Vec<u8>| {
                out.extend_from_slice(bytes);
                Ok::<_, Infallible>(())
            };
            let Ok(()) = state.wire.send_data(id, n, end && n == left, n < wanted, fill);
            done += n;
        }
        if done > 0 {
            self.life.changed();
        }
        if done < piece.len() {
            state.crowded |= state.wire.output().len() >= OUTPUT_LIMIT;
            if let Some(s) = state.wire.stream(id) {
                s.data.task = Some(runtime::current());
            }
        }
        done
    }

    fn send_end(&self, id: u32) {
        if self.state.borrow_mut().wire.send_end(id) > 0 {
            self.life.changed();
        }
    }

    fn release(&self, id: u32) {
        let mut state = self.state.borrow_mut();
        if let Some(answer) = state.wire.release(id, ErrorCode::CANCEL) {
            buffers::give_buffer(answer.input);
        }
        // It may have been the last one, or its end has to be told.
        if state.wire.streams().is_empty() || !state.wire.output().is_empty() {
            self.life.changed();
        }
    }
}

impl Http2PeerConnection {
    /// Takes over a connection that stands; a task drives it from now on.
    fn start(socket: Socket, life: Life) -> Rc<Http2PeerConnection> {
        let config = Config {
            role: Role::Client,
            max_streams: 0,
            stream_window: STREAM_WINDOW,
            headers: HEADERS,
            extended_connect: false,
        };
        let mut wire = Wire::new(config);
        // The peer's word on a new connection comes later than the first requests, and it would refuse those beyond.
        if let Some(allowed) = life.key().and_then(|key| sharing::least(key, Http2PeerConnection::allowed_streams)) {
            // At least the stream that it is opened for.
            wire.assume_streams(allowed.max(1));
        }
        let session = Rc::new(Http2PeerConnection { life, state: RefCell::new(State { wire, crowded: false }) });
        runtime::spawn(driver::run(session.clone(), socket));
        session
    }
}
