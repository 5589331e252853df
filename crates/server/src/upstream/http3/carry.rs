//! Streams as requests hold them (`crate::upstream::streams`): opened, read on in, written to, released.

use super::{Http3PeerConnection, OUTPUT_LIMIT, StreamState, code, connect};
use crate::connection::pool as buffers;
use crate::request::Request;
use crate::upstream::failure::Failure;
use crate::upstream::http2::fields;
use crate::upstream::job::Job;
use crate::upstream::sharing::Key;
use crate::upstream::streams::{Answer, Asked, Carrier};
use crate::upstream::upload::Upload;
use quinn_proto::{Dir, StreamId};
use runtime::timer::Timer;
use std::rc::Rc;
use wire::http3::ErrorCode;
use wire::http3::frame::{self, kind};
use wire::http3::qpack::encoder;

impl Carrier for Http3PeerConnection {
    type Id = StreamId;

    async fn connect(
        r: &mut Request,
        asked: &Asked<'_>,
        key: Option<Key>,
        timer: &Timer,
    ) -> Result<Rc<Http3PeerConnection>, Failure> {
        connect::connect(r, asked, key, timer).await
    }

    fn begin(&self, r: &mut Request, job: &Job, upload: Option<&Upload>) -> Option<StreamId> {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.quic.streams().open(Dir::Bi) else {
            state.exhausted = true;
            return None;
        };
        let mut section = Vec::with_capacity(job.head.len());
        encoder::begin(&mut section);
        fields::iter(&job.head).for_each(|(name, value)| encoder::field(name, value, &mut section));
        let mut s = StreamState { answer: Answer::new(job.is_head), last: upload.is_none(), ..StreamState::default() };
        frame::write_head(kind::HEADERS, section.len(), &mut s.output);
        s.output.extend_from_slice(&section);
        r.attempts.current().sent += s.output.len() as u64;
        state.streams.insert(id, s);
        state.pump(id);
        Some(id)
    }

    fn answer<V>(&self, id: StreamId, with: impl FnOnce(&mut Answer) -> V) -> Option<V> {
        self.state.borrow_mut().streams.get_mut(&id).map(|s| with(&mut s.answer))
    }

    fn taken(&self, id: StreamId) {
        // There is room for what QUIC has kept back, and the peer is to hear of it.
        self.state.borrow_mut().read_answer(id);
        self.life.changed();
    }

    fn send(&self, id: StreamId, piece: &[u8], end: bool) -> usize {
        let mut state = self.state.borrow_mut();
        let Some(s) = state.streams.get_mut(&id) else { return piece.len() };
        if s.stopped || s.answer.trouble.is_some() {
            // Nobody wants it; what comes of the request is the answer's business.
            return piece.len();
        }
        let n = piece.len().min(OUTPUT_LIMIT.saturating_sub(s.output.len()));
        if n > 0 {
            frame::write_head(kind::DATA, n, &mut s.output);
            s.output.extend_from_slice(&piece[..n]);
        }
        s.last |= end && n == piece.len();
        if n < piece.len() {
            s.answer.task = Some(runtime::current());
        }
        self.life.changed();
        n
    }

    fn send_end(&self, id: StreamId) {
        if let Some(s) = self.state.borrow_mut().streams.get_mut(&id) {
            s.last = true;
            self.life.changed();
        }
    }

    fn release(&self, id: StreamId) {
        let mut state = self.state.borrow_mut();
        let Some(s) = state.streams.remove(&id) else { return };
        if !s.answer.complete {
            let _ = state.quic.recv_stream(id).stop(code(ErrorCode::REQUEST_CANCELLED));
        }
        if !s.finished {
            let _ = state.quic.send_stream(id).reset(code(ErrorCode::REQUEST_CANCELLED));
        }
        buffers::give_buffer(s.answer.input);
        self.life.changed();
    }
}
