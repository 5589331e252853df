//! Reads frames (RFC 9113 section 6). Part of [`super::connection`]; resumable at every byte. What is refused, and with
//! which words, is nginx's `ngx_http_v2_state_*` where the RFC leaves a choice.

use super::connection::{Block, Connection, ConnectionError, Event, Reading, Role};
use super::flood::{Flood, MAX_CONTINUATIONS};
use super::frame::{FrameHeader, HEADER, flag, kind, setting, word};
use super::hpack::{HeaderBlock, HpackError};
use super::{DEFAULT_FRAME, ErrorCode, MAX_FRAME, MAX_WINDOW, PREFACE};
use crate::span::Span;

type Step = Result<Option<Event>, ConnectionError>;

fn fail<V>(code: ErrorCode, text: impl Into<String>) -> Result<V, ConnectionError> {
    Err(ConnectionError { code, text: text.into() })
}

fn protocol<V>(text: impl Into<String>) -> Result<V, ConnectionError> {
    fail(ErrorCode::PROTOCOL_ERROR, text)
}

impl From<Flood> for ConnectionError {
    fn from(_: Flood) -> ConnectionError {
        ConnectionError { code: ErrorCode::ENHANCE_YOUR_CALM, text: "http2 flood detected".into() }
    }
}

impl<T: Default> Connection<T> {
    /// Reads on from `input[*at..]` up to the next event; `at` moves behind what was used. On [`Event::More`] the rest of
    /// the input has to be there again, followed by more. Header fields are put into `head`.
    ///
    /// # Errors
    /// The peer broke the protocol: send [`Connection::goaway`] with the code, and close.
    pub fn next(&mut self, input: &[u8], at: &mut usize, head: &mut HeaderBlock) -> Result<Event, ConnectionError> {
        loop {
            let before = *at;
            let event = match self.reading {
                Reading::Header => {
                    let Some(header) = FrameHeader::parse(&input[*at..]) else { return Ok(Event::More) };
                    *at += HEADER;
                    self.header(header)?
                }
                Reading::Payload(header) => {
                    let Some(payload) = input.get(*at..*at + header.len) else { return Ok(Event::More) };
                    *at += header.len;
                    self.reading = Reading::Header;
                    self.payload(header, payload, head)?
                }
                Reading::Padded(header) => {
                    let Some(&padding) = input.get(*at) else { return Ok(Event::More) };
                    *at += 1;
                    self.data(header, usize::from(padding), 1)?
                }
                Reading::Data { stream, left, padding, end } => {
                    if let Some(event) = self.take_data(input, at, (stream, left, padding, end)) {
                        self.counters.bytes(*at - before);
                        return Ok(event);
                    }
                    None
                }
                Reading::Preface => {
                    let come = &input[*at..][..PREFACE.len().min(input.len() - *at)];
                    if !PREFACE.starts_with(come) {
                        return protocol("invalid connection preface");
                    }
                    if come.len() < PREFACE.len() {
                        return Ok(Event::More);
                    }
                    *at += PREFACE.len();
                    self.reading = Reading::Header;
                    None
                }
            };
            self.counters.bytes(*at - before);
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    fn header(&mut self, header: FrameHeader) -> Step {
        if let Some(block) = &self.block {
            if header.kind != kind::CONTINUATION {
                return protocol("peer sent inappropriate frame while CONTINUATION was expected");
            }
            if header.stream != block.stream {
                return protocol("peer sent CONTINUATION frame with incorrect identifier");
            }
        }
        if header.len > self.config.role.largest_taken() {
            let text = format!("peer sent too large frame of {} bytes", header.len);
            return fail(ErrorCode::FRAME_SIZE_ERROR, text);
        }
        match header.kind {
            kind::DATA => {}
            kind::PUSH_PROMISE => return protocol("peer sent PUSH_PROMISE frame"),
            kind::CONTINUATION if self.block.is_none() => {
                return protocol("peer sent unexpected CONTINUATION frame");
            }
            kind::PRIORITY_UPDATE if self.config.role == Role::Client => {
                return protocol("server sent PRIORITY_UPDATE frame");
            }
            kind::HEADERS..=kind::CONTINUATION | kind::PRIORITY_UPDATE => {
                self.check_length(header)?;
                self.reading = Reading::Payload(header);
                return Ok(None);
            }
            _ => {
                // An unknown frame is passed over (RFC 9113 section 4.1).
                self.counters.idle_frame()?;
                self.reading = Reading::Data { stream: 0, left: header.len, padding: 0, end: false };
                return Ok(None);
            }
        }
        if header.stream == 0 {
            return protocol("peer sent DATA frame with incorrect identifier");
        }
        if !header.has(flag::PADDED) {
            return self.data(header, 0, 0);
        }
        if header.len == 0 {
            return fail(ErrorCode::FRAME_SIZE_ERROR, "peer sent padded DATA frame with incorrect length: 0");
        }
        self.reading = Reading::Padded(header);
        Ok(None)
    }

    /// Lengths that cannot be right are refused before the payload is there.
    fn check_length(&self, header: FrameHeader) -> Result<(), ConnectionError> {
        let (wrong, name) = match header.kind {
            kind::PRIORITY => (header.len != 5, "PRIORITY"),
            kind::RST_STREAM => (header.len != 4, "RST_STREAM"),
            kind::PING => (header.len != 8, "PING"),
            kind::GOAWAY => (header.len < 8 || header.len > DEFAULT_FRAME, "GOAWAY"),
            kind::WINDOW_UPDATE => (header.len != 4, "WINDOW_UPDATE"),
            kind::PRIORITY_UPDATE => (header.len < 4 || header.len > DEFAULT_FRAME, "PRIORITY_UPDATE"),
            kind::SETTINGS => (!header.len.is_multiple_of(6) || header.len > DEFAULT_FRAME, "SETTINGS"),
            _ => {
                // A header block, perhaps in one large frame.
                if header.len > self.largest_block() {
                    return fail(ErrorCode::ENHANCE_YOUR_CALM, "peer sent too large header");
                }
                return Ok(());
            }
        };
        if wrong {
            let text = format!("peer sent {name} frame with incorrect length {}", header.len);
            return fail(ErrorCode::FRAME_SIZE_ERROR, text);
        }
        Ok(())
    }

    /// A DATA frame begins. `prefix`: bytes before the data, the length of the padding.
    fn data(&mut self, header: FrameHeader, padding: usize, prefix: usize) -> Step {
        let FrameHeader { len, stream, .. } = header;
        let end = header.has(flag::END_STREAM);
        if prefix > 0 && padding >= len {
            let text = format!("peer sent padded DATA frame with incorrect length: {len}, padding: {padding}");
            return protocol(text);
        }
        if len as i64 > self.recv_window {
            let window = self.recv_window;
            let text = format!(
                "peer violated connection flow control: received DATA frame length {len}, available window {window}"
            );
            return fail(ErrorCode::FLOW_CONTROL_ERROR, text);
        }
        self.recv_window -= len as i64;
        if self.recv_window < i64::from(MAX_WINDOW / 4) {
            self.send_window_update(0, (i64::from(MAX_WINDOW) - self.recv_window) as u32);
            self.recv_window = i64::from(MAX_WINDOW);
        }
        let left = len - prefix - padding;
        match left {
            0 if !end => self.counters.idle_frame()?,
            left => self.counters.payload(left),
        }
        self.reading = Reading::Data { stream: 0, left, padding, end };
        let Some(at) = self.find(stream).filter(|&at| !self.streams[at].reset) else {
            return self.data_for_nobody(stream);
        };
        let s = &mut self.streams[at];
        if len as i64 > s.recv_window {
            let text = format!(
                "peer violated flow control for stream {stream}: received DATA frame length {len}, available window {}",
                s.recv_window
            );
            return Ok(Some(self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, text)));
        }
        if s.remote_closed {
            let text = format!("peer sent DATA frame for half-closed stream {stream}");
            return Ok(Some(self.stream_error(stream, ErrorCode::STREAM_CLOSED, text)));
        }
        s.recv_window -= len as i64;
        if s.unlimited && s.recv_window < i64::from(MAX_WINDOW / 4) {
            self.open_window(stream, MAX_WINDOW);
        }
        self.reading = Reading::Data { stream, left, padding, end };
        Ok(None)
    }

    fn data_for_nobody(&mut self, stream: u32) -> Step {
        if self.is_idle(stream) {
            return protocol(format!("peer sent DATA frame for idle stream {stream}"));
        }
        if !self.was_reset(stream) && !self.goaway_sent {
            self.counters.idle_frame()?;
            self.send_reset(stream, ErrorCode::STREAM_CLOSED);
        }
        Ok(None)
    }

    /// Hands out what there is of a DATA frame, then passes over its padding. None: the frame is over.
    fn take_data(
        &mut self,
        input: &[u8],
        at: &mut usize,
        (stream, left, padding, end): (u32, usize, usize, bool),
    ) -> Option<Event> {
        let n = left.min(input.len() - *at);
        let span = Span::new(*at, *at + n);
        *at += n;
        let left = left - n;
        if left > 0 {
            self.reading = Reading::Data { stream, left, padding, end };
            return Some(if n > 0 && stream != 0 { Event::Data { stream, span, end: false } } else { Event::More });
        }
        // The padding is passed over on its own, so that the last data do not wait for it.
        let skip = if n > 0 || (stream != 0 && end) { 0 } else { padding.min(input.len() - *at) };
        *at += skip;
        let padding = padding - skip;
        self.reading = match padding {
            0 => Reading::Header,
            padding => Reading::Data { stream: 0, left: 0, padding, end: false },
        };
        if stream != 0 && (n > 0 || end) {
            if end && let Some(s) = self.stream(stream) {
                s.remote_closed = true;
            }
            return Some(Event::Data { stream, span, end });
        }
        (padding > 0 && *at == input.len()).then_some(Event::More)
    }

    fn payload(&mut self, header: FrameHeader, payload: &[u8], head: &mut HeaderBlock) -> Step {
        let FrameHeader { stream, .. } = header;
        match header.kind {
            kind::HEADERS => self.headers(header, payload, head),
            kind::CONTINUATION => self.continuation(header, payload, head),
            kind::PRIORITY => self.priority(stream, payload),
            kind::RST_STREAM => self.rst_stream(stream, payload),
            kind::SETTINGS => self.settings(header, payload),
            kind::PING => self.ping(header, payload),
            kind::GOAWAY => {
                if stream != 0 {
                    return protocol("peer sent GOAWAY frame with incorrect identifier");
                }
                self.counters.idle_frame()?;
                let last = word(payload).unwrap_or(0) & MAX_WINDOW;
                Ok(Some(Event::Goaway { last, code: ErrorCode(word(&payload[4..]).unwrap_or(0)) }))
            }
            kind::WINDOW_UPDATE => self.window_update(stream, payload),
            kind::PRIORITY_UPDATE => self.priority_update(stream, payload),
            _ => Ok(None),
        }
    }

    fn headers(&mut self, header: FrameHeader, payload: &[u8], head: &mut HeaderBlock) -> Step {
        let FrameHeader { stream, len, .. } = header;
        let prefix = usize::from(header.has(flag::PADDED)) + if header.has(flag::PRIORITY) { 5 } else { 0 };
        if len < prefix {
            let text = format!("peer sent HEADERS frame with incorrect length {len}");
            return fail(ErrorCode::FRAME_SIZE_ERROR, text);
        }
        if len == prefix {
            let text = "peer sent HEADERS frame with empty header block";
            return fail(ErrorCode::FRAME_SIZE_ERROR, text);
        }
        let mut rest = payload;
        if header.has(flag::PADDED) {
            let padding = usize::from(rest[0]);
            if padding > len - prefix {
                let text = format!("peer sent padded HEADERS frame with incorrect length: {len}, padding: {padding}");
                return protocol(text);
            }
            rest = &rest[1..rest.len() - padding];
        }
        if header.has(flag::PRIORITY) {
            let depends = word(rest).unwrap_or(0) & MAX_WINDOW;
            rest = &rest[5..];
            if depends == stream {
                return protocol(format!("peer sent HEADERS frame for stream {stream} with incorrect dependency"));
            }
        }
        self.check_head_stream(stream)?;
        let end = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            return self.block(stream, end, rest, head);
        }
        self.block = Some(Box::new(Block { bytes: rest.to_vec(), stream, end, continuations: 0 }));
        Ok(None)
    }

    /// Whether a head may come on a stream at all.
    fn check_head_stream(&mut self, stream: u32) -> Result<(), ConnectionError> {
        let last = self.last_stream;
        let wrong =
            || protocol(format!("peer sent HEADERS frame with incorrect identifier {stream}, the last was {last}"));
        if stream.is_multiple_of(2) {
            return wrong();
        }
        if self.config.role == Role::Client {
            return if stream > last { wrong() } else { Ok(()) };
        }
        if stream > last {
            self.last_stream = stream;
            return Ok(());
        }
        match self.find(stream) {
            // Trailers.
            Some(at) if !self.streams[at].remote_closed => Ok(()),
            _ if self.was_reset(stream) => Ok(()),
            _ => wrong(),
        }
    }

    fn continuation(&mut self, header: FrameHeader, payload: &[u8], head: &mut HeaderBlock) -> Step {
        let Some(mut block) = self.block.take() else {
            return protocol("peer sent unexpected CONTINUATION frame");
        };
        block.continuations += 1;
        block.bytes.extend_from_slice(payload);
        if block.bytes.len() > self.largest_block() || block.continuations > MAX_CONTINUATIONS {
            return fail(ErrorCode::ENHANCE_YOUR_CALM, "peer sent too large header");
        }
        if header.has(flag::END_HEADERS) {
            return self.block(block.stream, block.end, &block.bytes, head);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// Coded, a field is at most some bytes longer than it is; what is larger than this can only be too large.
    fn largest_block(&self) -> usize {
        2 * self.config.headers.block + DEFAULT_FRAME
    }

    /// A header block is complete.
    fn block(&mut self, stream: u32, end: bool, bytes: &[u8], head: &mut HeaderBlock) -> Step {
        head.clear();
        // Blocks of streams that nobody serves are decoded as well: the table has to follow.
        if let Err(error) = self.decoder.decode(bytes, self.config.headers, head) {
            return hpack_error(error);
        }
        self.counters.payload(bytes.len());
        match self.find(stream) {
            Some(at) => Ok(self.further_head(at, stream, end, bytes.len())),
            None if self.config.role == Role::Client || stream < self.last_stream || self.was_reset(stream) => Ok(None),
            None => self.new_request(stream, end, bytes.len()),
        }
    }

    /// A head on a stream that is there: an answer, or trailers.
    fn further_head(&mut self, at: usize, stream: u32, end: bool, len: usize) -> Option<Event> {
        let s = &mut self.streams[at];
        if s.reset {
            return None;
        }
        s.remote_closed = end;
        if self.config.role == Role::Client && !s.head_seen {
            return Some(Event::Head { stream, end, len });
        }
        if end {
            return Some(Event::Trailers { stream });
        }
        let text = format!("peer sent HEADERS frame in the middle of stream {stream}");
        Some(self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, text))
    }

    fn new_request(&mut self, stream: u32, end: bool, len: usize) -> Step {
        if self.goaway_sent {
            return Ok(None);
        }
        self.counters.check_resets()?;
        let max = self.config.max_streams;
        let mut open = self.streams.len();
        if open >= max as usize {
            // Those that were reset count no more, even if their owner does not know yet.
            open = self.streams.iter().filter(|s| !s.reset).count();
        }
        let early = !self.settings_acked && !end && self.config.stream_window < super::DEFAULT_WINDOW;
        self.new_streams += 1;
        let refusal = if open >= max as usize {
            format!("concurrent streams exceeded {open}")
        } else if self.new_streams > 2 * max {
            "peer sent too many streams at once".to_owned()
        } else if early {
            "peer sent stream with data before settings were acknowledged".to_owned()
        } else {
            self.priorities += i64::from(max);
            let mut s = self.new_stream(stream, T::default());
            s.remote_closed = end;
            s.head_seen = true;
            self.streams.push(s);
            return Ok(Some(Event::Head { stream, end, len }));
        };
        self.refused += 1;
        if self.refused > max.max(100) {
            return fail(ErrorCode::NO_ERROR, "peer sent too many refused streams");
        }
        self.send_reset(stream, ErrorCode::REFUSED_STREAM);
        self.note = Some(refusal);
        Ok(Some(Event::Refused))
    }

    fn priority(&mut self, stream: u32, payload: &[u8]) -> Step {
        self.priorities -= 1;
        if self.priorities <= 0 {
            return fail(ErrorCode::ENHANCE_YOUR_CALM, "peer sent too many PRIORITY frames");
        }
        if stream == 0 {
            return protocol("peer sent PRIORITY frame with incorrect identifier");
        }
        if word(payload).unwrap_or(0) & MAX_WINDOW == stream {
            return protocol(format!("peer sent PRIORITY frame for stream {stream} with incorrect dependency"));
        }
        self.counters.idle_frame()?;
        Ok(None)
    }

    /// RFC 9218 section 7.1. What is no value is passed over, and so is what comes for a stream that is gone.
    fn priority_update(&mut self, stream: u32, payload: &[u8]) -> Step {
        let prioritized = word(payload).unwrap_or(0) & MAX_WINDOW;
        if stream != 0 {
            return protocol("peer sent PRIORITY_UPDATE frame with incorrect identifier");
        }
        if prioritized.is_multiple_of(2) {
            return protocol(format!("peer sent PRIORITY_UPDATE frame for incorrect stream {prioritized}"));
        }
        self.counters.idle_frame()?;
        if prioritized <= self.last_stream && self.find(prioritized).is_none() {
            return Ok(None);
        }
        let priority = crate::priority::parse(&payload[4..]);
        Ok(priority.map(|priority| Event::Priority { stream: prioritized, priority }))
    }

    fn rst_stream(&mut self, stream: u32, payload: &[u8]) -> Step {
        let code = ErrorCode(word(payload).unwrap_or(0));
        if stream == 0 {
            return protocol("peer sent RST_STREAM frame with incorrect identifier");
        }
        if self.is_idle(stream) {
            return protocol(format!("peer sent RST_STREAM frame for idle stream {stream}"));
        }
        let Some(at) = self.find(stream).filter(|&at| !self.streams[at].reset) else {
            // From now on the peer knows that it is over.
            self.forget_reset(stream);
            return Ok(self.counters.idle_frame().map(|()| None)?);
        };
        self.counters.reset()?;
        let s = &mut self.streams[at];
        (s.reset, s.local_closed, s.remote_closed) = (true, true, true);
        Ok(Some(Event::Reset { stream, code, ours: false }))
    }

    fn settings(&mut self, header: FrameHeader, payload: &[u8]) -> Step {
        if header.stream != 0 {
            return protocol("peer sent SETTINGS frame with incorrect identifier");
        }
        self.counters.idle_frame()?;
        if header.has(flag::ACK) {
            if header.len != 0 {
                let text = "peer sent SETTINGS frame with the ACK flag and nonzero length";
                return fail(ErrorCode::FRAME_SIZE_ERROR, text);
            }
            self.settings_acked = true;
            return Ok(None);
        }
        let mut window = self.peer_window;
        for parameter in payload.chunks_exact(6) {
            let value = word(&parameter[2..]).unwrap_or(0);
            match u16::from_be_bytes([parameter[0], parameter[1]]) {
                setting::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    let text = format!("peer sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value {value}");
                    return fail(ErrorCode::FLOW_CONTROL_ERROR, text);
                }
                setting::INITIAL_WINDOW_SIZE => window = i64::from(value),
                setting::MAX_FRAME_SIZE if !(DEFAULT_FRAME..=MAX_FRAME).contains(&(value as usize)) => {
                    return protocol(format!("peer sent SETTINGS frame with incorrect MAX_FRAME_SIZE value {value}"));
                }
                setting::MAX_FRAME_SIZE => self.peer_frame = value as usize,
                setting::ENABLE_PUSH if value > 1 => {
                    return protocol(format!("peer sent SETTINGS frame with incorrect ENABLE_PUSH value {value}"));
                }
                setting::NO_RFC7540_PRIORITIES if value > 1 => {
                    let text = format!("peer sent SETTINGS frame with incorrect NO_RFC7540_PRIORITIES value {value}");
                    return protocol(text);
                }
                setting::HEADER_TABLE_SIZE => self.encoder.allow(value as usize),
                setting::MAX_CONCURRENT_STREAMS => self.peer_streams = value,
                _ => {}
            }
        }
        self.frame(kind::SETTINGS, flag::ACK, 0, 0);
        Ok(self.change_windows(window))
    }

    /// SETTINGS_INITIAL_WINDOW_SIZE holds for open streams too (RFC 9113 section 6.9.2).
    fn change_windows(&mut self, window: i64) -> Option<Event> {
        let change = window - self.peer_window;
        self.peer_window = window;
        if change == 0 {
            return None;
        }
        let mut overflow = None;
        for s in self.streams.iter_mut().filter(|s| !s.reset) {
            if s.send_window + change > i64::from(MAX_WINDOW) {
                overflow = Some(s.id);
            } else {
                s.send_window += change;
            }
        }
        if let Some(stream) = overflow {
            let text = format!("peer violated flow control for stream {stream}: SETTINGS made its window too large");
            return Some(self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, text));
        }
        (change > 0).then_some(Event::Window { stream: 0 })
    }

    fn ping(&mut self, header: FrameHeader, payload: &[u8]) -> Step {
        if header.stream != 0 {
            return protocol("peer sent PING frame with incorrect identifier");
        }
        self.counters.idle_frame()?;
        if !header.has(flag::ACK) {
            self.frame(kind::PING, flag::ACK, 0, payload.len());
            self.out.extend_from_slice(payload);
        }
        Ok(None)
    }

    fn window_update(&mut self, stream: u32, payload: &[u8]) -> Step {
        let increment = word(payload).unwrap_or(0) & MAX_WINDOW;
        if stream != 0 && self.is_idle(stream) {
            return protocol(format!("peer sent WINDOW_UPDATE frame for idle stream {stream}"));
        }
        if increment == 0 {
            return protocol("peer sent WINDOW_UPDATE frame with incorrect window increment 0");
        }
        self.counters.idle_frame()?;
        if self.counters.is_crumbling() {
            return Err(Flood.into());
        }
        let not_allowed = |who: &str, window: i64| {
            format!(
                "peer violated {who}: received WINDOW_UPDATE frame with window increment {increment} \
                 not allowed for window {window}"
            )
        };
        if stream == 0 {
            if self.send_window + i64::from(increment) > i64::from(MAX_WINDOW) {
                let text = not_allowed("connection flow control", self.send_window);
                return fail(ErrorCode::FLOW_CONTROL_ERROR, text);
            }
            self.send_window += i64::from(increment);
            return Ok(Some(Event::Window { stream: 0 }));
        }
        let Some(at) = self.find(stream).filter(|&at| !self.streams[at].reset) else { return Ok(None) };
        let s = &mut self.streams[at];
        if s.send_window + i64::from(increment) > i64::from(MAX_WINDOW) {
            let text = not_allowed(&format!("flow control for stream {stream}"), s.send_window);
            return Ok(Some(self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, text)));
        }
        s.send_window += i64::from(increment);
        Ok(Some(Event::Window { stream }))
    }

    /// Whether nobody has ever used a stream's number.
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream || stream.is_multiple_of(2)
    }

    /// The peer's error costs it a stream.
    fn stream_error(&mut self, stream: u32, code: ErrorCode, text: String) -> Event {
        self.note = Some(text);
        self.reset(stream, code);
        Event::Reset { stream, code, ours: true }
    }
}

fn hpack_error<V>(error: HpackError) -> Result<V, ConnectionError> {
    let (code, text) = match error {
        HpackError::Truncated => (ErrorCode::FRAME_SIZE_ERROR, "peer sent header block with incorrect length"),
        HpackError::TooLong => {
            (ErrorCode::COMPRESSION_ERROR, "peer sent header block with too long header index value")
        }
        HpackError::BadIndex => (ErrorCode::COMPRESSION_ERROR, "peer sent invalid hpack table index"),
        HpackError::BadHuffman => (ErrorCode::COMPRESSION_ERROR, "peer sent invalid encoded header field"),
        HpackError::BadTableSize => (ErrorCode::COMPRESSION_ERROR, "peer sent invalid table size update"),
        HpackError::FieldTooLarge => (ErrorCode::ENHANCE_YOUR_CALM, "peer sent too large header field"),
        HpackError::BlockTooLarge => (ErrorCode::ENHANCE_YOUR_CALM, "peer sent too large header"),
    };
    fail(code, text)
}
