//! What a peer may cost without asking for anything: frames that are cheap to send and useless. Counted here, for the
//! attacks known as rapid reset, "made you reset" (CVE-2025-8671), CONTINUATION, SETTINGS, PING, PRIORITY and empty-frame
//! floods, and tiny windows.

/// Bytes that may pass beside payload: an eighth of all bytes and so many more have to be payload (nginx's rule).
const SLACK: u64 = 1 << 20;
/// Frames in a row that ask for nothing and carry nothing. A client that only keeps its connection warm sends one every
/// some seconds; nginx allows ten times `keepalive_requests`.
pub const MAX_IDLE_FRAMES: u32 = 10_000;
/// Streams that a client may reset, or make us reset, before they are answered, beyond those it let be answered. A browser
/// cancels what a user scrolls past; nobody cancels a thousand more than he reads.
pub const MAX_RESETS: u32 = 1_000;
/// CONTINUATION frames of one header block: enough for the largest block in pieces of a hundred bytes.
pub const MAX_CONTINUATIONS: u32 = 512;
/// DATA frames in a row that were tiny because the peer's window was.
pub const MAX_TINY_FRAMES: u32 = 10_000;
/// What counts as tiny, in bytes.
pub const TINY: usize = 64;

/// A peer that only costs: the connection is to be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood;

/// What was counted of a connection.
#[derive(Debug, Default)]
pub struct Counters {
    total: u64,
    payload: u64,
    idle_frames: u32,
    resets: u32,
    tiny_frames: u32,
}

impl Counters {
    /// How many numbers they are.
    pub(super) const NUMBERS: usize = 5;

    /// As numbers.
    pub(super) fn numbers(&self) -> [u64; Counters::NUMBERS] {
        let Counters { total, payload, idle_frames, resets, tiny_frames } = *self;
        [total, payload, idle_frames.into(), resets.into(), tiny_frames.into()]
    }

    /// What [`Counters::numbers`] were; none: they were not.
    pub(super) fn of(numbers: [u64; Counters::NUMBERS]) -> Option<Counters> {
        let [total, payload, ..] = numbers;
        let mut rest = numbers[2..].iter().map(|number| u32::try_from(*number).ok());
        let mut next = || rest.next().flatten();
        let (idle_frames, resets, tiny_frames) = (next()?, next()?, next()?);
        // Bytes of a connection: what is counted on top never comes near the end.
        let is_small = total < 1 << 62 && payload < 1 << 62;
        let is_bounded = idle_frames <= MAX_IDLE_FRAMES && resets <= MAX_RESETS && tiny_frames <= MAX_TINY_FRAMES;
        (is_small && is_bounded).then_some(Counters { total, payload, idle_frames, resets, tiny_frames })
    }

    /// Bytes that came or were sent, payload or not.
    pub fn bytes(&mut self, n: usize) {
        self.total += n as u64;
    }

    /// Bytes of requests, answers and bodies.
    pub fn payload(&mut self, n: usize) {
        self.payload += n as u64;
        self.idle_frames = 0;
    }

    /// A frame that asks for nothing.
    pub fn idle_frame(&mut self) -> Result<(), Flood> {
        self.idle_frames += 1;
        if self.idle_frames > MAX_IDLE_FRAMES || self.total / 8 > self.payload + SLACK { Err(Flood) } else { Ok(()) }
    }

    /// A stream was reset before it was answered: by the peer, or by us for what the peer sent on it.
    pub fn reset(&mut self) -> Result<(), Flood> {
        self.resets += 1;
        self.check_resets()
    }

    /// Whether that is what the peer is after.
    pub fn check_resets(&self) -> Result<(), Flood> {
        if self.resets > MAX_RESETS { Err(Flood) } else { Ok(()) }
    }

    /// A stream has come to its end.
    pub fn finished(&mut self) {
        self.resets = self.resets.saturating_sub(1);
    }

    /// A DATA frame of `n` bytes was sent; `limited`: the window was smaller than what there was to send.
    pub fn sent_data(&mut self, n: usize, limited: bool) {
        self.payload(n);
        match limited && n < TINY {
            true => self.tiny_frames += 1,
            false if n >= TINY => self.tiny_frames = 0,
            false => {}
        }
    }

    /// Whether the peer has taken its data in crumbs for too long.
    pub fn is_crumbling(&self) -> bool {
        self.tiny_frames > MAX_TINY_FRAMES
    }
}
