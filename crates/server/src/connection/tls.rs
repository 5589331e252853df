//! TLS on a connection, towards a client or a peer: between `socket` (bytes as the kernel has them) and whoever reads and
//! writes plain bytes. rustls keeps the keys; the buffers are ours and go back to the thread's pool when nothing is in
//! them, so that an idle connection holds its keys and no bytes. Never looks at what it carries. A connection that was parked goes on by
//! a record layer of our own (`record_layer`): the library does not take one back.

pub mod record_layer;
mod records;
pub mod secrets;

pub use records::MAX_RECORD;

use super::pool;
use super::socket::Socket;
use crate::tls::notes::{self, Traffic};
use record_layer::Layer;
use records::{Say, Sink, Step, absorb, absorb_own, count, update};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::WriteTraffic;
use rustls::{ClientConfig, CommonState, Error, ExtractedSecrets, ProtocolVersion};
use secrets::{Secrets, Suite};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Room for a whole record and the head of the next: more is read only once these are worked off.
const INCOMING: usize = MAX_RECORD + 256 + 5;
/// At most this much is encrypted before the kernel takes it. Fits a pooled buffer.
const AT_ONCE: usize = 3 * MAX_RECORD;

const GONE: &str = "nothing is asked of a connection that was taken apart";
const NO_LIBRARY: &str = "the library is asked about handshakes, and of those that come from it";

/// One end of a TLS connection.
pub struct Tls {
    socket: Socket,
    end: End,
    /// Bytes of the kernel from `at` on are not decrypted yet.
    incoming: Vec<u8>,
    at: usize,
    /// Encrypted bytes from `sent` on are not with the kernel yet.
    outgoing: Vec<u8>,
    sent: usize,
    /// Decrypted bytes from `plain_at` on were not asked for yet.
    plain: Vec<u8>,
    plain_at: usize,
    /// Plain bytes whose encryption is in `outgoing`: the writer is told of them when they are with the kernel.
    committed: usize,
    /// Payload of a record, at most.
    piece: usize,
    /// After so many more plain bytes the goodbye is said, in the same write; none: not known yet.
    last: Option<u64>,
    /// The other side says no more.
    ended: bool,
    /// No goodbye: it was said already, or nobody would hear it.
    silent: bool,
    /// The library has given up: it must not be asked again.
    broken: bool,
    /// Bytes came before the handshake was complete.
    pub early: bool,
    /// What its keys come from, where it can be parked.
    traffic: Option<Box<Traffic>>,
    updates: Updates,
}

/// What the library does not tell of changes of keys: when the other side wants ours to change, that is said with what is written next, and
/// nothing asks for it before. A connection that is taken from the library in between would speak with keys that the other side does not know.
#[derive(Clone, Copy, Default)]
struct Updates {
    /// Perhaps something is to be said: records have come that were neither plain bytes nor tickets, and nothing was written since.
    is_owed: bool,
    /// We have asked the other side for an update: one such record is its answer.
    is_awaited: bool,
}

impl Updates {
    /// So many such records have come.
    fn heard(&mut self, count: usize) {
        let answers = usize::from(count > 0 && std::mem::take(&mut self.is_awaited));
        self.is_owed |= count > answers;
    }
}

/// The accepting end of an idle connection, on its way to another thread.
pub struct Moving {
    end: End,
    piece: usize,
    traffic: Option<Box<Traffic>>,
    updates: Updates,
}

enum End {
    Server(UnbufferedServerConnection),
    /// It was parked.
    Own(Box<Layer>),
    /// It was taken away, and nobody asks any more.
    Moved,
    /// With the number of the peer.
    Client(UnbufferedClientConnection, u32),
}

impl End {
    fn library(&self) -> Option<&CommonState> {
        match self {
            End::Server(c) => Some(c),
            End::Client(c, _) => Some(c),
            End::Own(_) | End::Moved => None,
        }
    }

    fn is_handshaking(&self) -> bool {
        self.library().is_some_and(CommonState::is_handshaking)
    }

    /// How many tickets have come to the library; none before its handshake is over.
    fn settled(&self) -> Option<u32> {
        match self {
            End::Server(c) => (!c.is_handshaking()).then_some(0),
            End::Client(c, _) => (!c.is_handshaking()).then(|| c.tls13_tickets_received()),
            End::Own(_) | End::Moved => None,
        }
    }

    /// What the library's records are made with: it lets go of the connection.
    fn into_secrets(self) -> Option<ExtractedSecrets> {
        match self {
            End::Server(c) => c.dangerous_into_kernel_connection().ok().map(|(secrets, _)| secrets),
            End::Client(c, _) => c.dangerous_into_kernel_connection().ok().map(|(secrets, _)| secrets),
            End::Own(_) | End::Moved => None,
        }
    }
}

impl Tls {
    /// The accepting end. `incoming` has been read from the socket already; `piece` is the payload of a record.
    pub fn server(socket: Socket, end: UnbufferedServerConnection, incoming: Vec<u8>, piece: usize) -> Box<Tls> {
        Tls::new(socket, End::Server(end), incoming, piece)
    }

    /// The accepting end of a connection that another thread had.
    pub fn moved(socket: Socket, keys: Moving) -> Box<Tls> {
        let mut tls = Tls::new(socket, keys.end, Vec::new(), keys.piece);
        (tls.traffic, tls.updates) = (keys.traffic, keys.updates);
        tls
    }

    /// The accepting end of a connection that was parked; `incoming` has been read from the socket already.
    pub fn resumed(socket: Socket, secrets: Secrets, incoming: Vec<u8>) -> Box<Tls> {
        let piece = usize::from(secrets.piece);
        Tls::new(socket, End::Own(Box::new(Layer::new(secrets))), incoming, piece)
    }

    /// These bytes, which are encrypted already, go out before anything else.
    pub fn say_first(&mut self, sealed: &[u8]) {
        self.outgoing.extend_from_slice(sealed);
    }

    /// Takes the socket and the keys away, if nothing is between them.
    pub fn take_apart(&mut self) -> Option<(Socket, Moving)> {
        if !self.is_at_rest() {
            return None;
        }
        let end = self.take_end();
        let moving = Moving { end, piece: self.piece, traffic: self.traffic.take(), updates: self.updates };
        Some((std::mem::replace(&mut self.socket, Socket::none()), moving))
    }

    /// Takes the socket and the secrets away, if nothing is between them and it is a connection of TLS 1.3 with a cipher that the record
    /// layer here has.
    pub fn freeze(&mut self) -> Option<(Socket, Secrets)> {
        if !self.may_freeze() {
            return None;
        }
        let secrets = match self.take_end() {
            End::Own(layer) => layer.secrets().clone(),
            End::Moved => return None,
            library => {
                let suite = Suite::of(library.library()?.negotiated_cipher_suite()?.suite())?;
                let is_client = matches!(library, End::Client(..));
                let first = self.traffic.take()?;
                // From here on there is no way back: it is over where this fails.
                let now = library.into_secrets()?;
                Secrets::of(suite, is_client, &first, &now, self.piece)?
            }
        };
        Some((std::mem::replace(&mut self.socket, Socket::none()), secrets))
    }

    /// Whether [`Tls::freeze`] takes it apart now.
    pub fn may_freeze(&mut self) -> bool {
        if !self.can_freeze() {
            return false;
        }
        // The tickets of the handshake wait for the first answer, of which there is none yet for who has only asked.
        if !self.broken && self.process(None, Say::Nothing).is_ok() && self.say_update().is_ok() {
            let _ = self.flush_now(false);
        }
        // What the library has to say would be lost with it.
        self.is_at_rest() && self.can_freeze() && !self.end.library().is_some_and(CommonState::wants_write)
    }

    /// Whatever the library has to say of keys is said now.
    fn say_update(&mut self) -> Result<(), Error> {
        if !self.updates.is_owed || !self.is_at_rest() {
            return Ok(());
        }
        match &mut self.end {
            End::Server(c) => update(c.process_tls_records(&mut []))?,
            End::Client(c, _) => update(c.process_tls_records(&mut []))?,
            End::Own(_) | End::Moved => {}
        }
        self.updates = Updates { is_owed: false, is_awaited: true };
        self.process(None, Say::Nothing).map(drop)
    }

    /// Whether [`Tls::freeze`] takes it apart, as far as that depends on what was agreed.
    pub fn can_freeze(&self) -> bool {
        match &self.end {
            End::Own(layer) => layer.is_at_rest(),
            end => end.library().is_some_and(|c| {
                let suite = c.negotiated_cipher_suite().and_then(|suite| Suite::of(suite.suite()));
                let is_known = suite.is_some() && self.traffic.is_some();
                is_known && c.protocol_version() == Some(ProtocolVersion::TLSv1_3)
            }),
        }
    }

    /// Nothing is under way in either direction.
    pub fn is_at_rest(&self) -> bool {
        let is_empty = self.incoming.is_empty() && self.outgoing.is_empty() && self.plain.is_empty();
        let is_here = !matches!(self.end, End::Moved);
        is_empty && is_here && !self.ended && !self.silent && !self.broken && !self.end.is_handshaking()
    }

    /// What is left says nothing any more, no goodbye either.
    fn take_end(&mut self) -> End {
        (self.silent, self.broken) = (true, true);
        std::mem::replace(&mut self.end, End::Moved)
    }

    /// It says nothing any more: what it said last was not taken.
    pub fn give_up(&mut self) {
        (self.silent, self.broken) = (true, true);
    }

    /// The asking end. Sessions are kept for `peer`.
    ///
    /// # Errors
    /// The library cannot make use of the configuration.
    pub fn client(
        socket: Socket,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        peer: u32,
    ) -> Result<Box<Tls>, Error> {
        notes::work_on(peer);
        let end = UnbufferedClientConnection::new(config, name)?;
        let mut tls = Tls::new(socket, End::Client(end, peer), Vec::new(), MAX_RECORD);
        tls.process(None, Say::Nothing)?;
        Ok(tls)
    }

    fn new(socket: Socket, end: End, incoming: Vec<u8>, piece: usize) -> Box<Tls> {
        Box::new(Tls {
            socket,
            end,
            incoming,
            at: 0,
            outgoing: Vec::new(),
            sent: 0,
            plain: Vec::new(),
            plain_at: 0,
            committed: 0,
            piece: piece.clamp(1, MAX_RECORD),
            last: None,
            ended: false,
            silent: false,
            broken: false,
            early: false,
            traffic: None,
            updates: Updates::default(),
        })
    }

    /// What is known of the connection, by its handshake: version, cipher, certificates.
    pub fn state(&self) -> &CommonState {
        self.end.library().expect(NO_LIBRARY)
    }

    /// Whether the handshake goes on.
    pub fn is_handshaking(&self) -> bool {
        self.end.is_handshaking()
    }

    /// The socket below.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// See [`Tls::socket`].
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Lets the library work on what came, and encrypts what is to be said when it may: true when it was. Plain bytes go to
    /// `buf` as far as there is room.
    fn process(&mut self, mut buf: Option<&mut Vec<u8>>, say: Say<'_>) -> Result<bool, Error> {
        if self.broken {
            return Err(Error::General("the connection is broken".into()));
        }
        let mut said = false;
        loop {
            let Tls { end, incoming, at, outgoing, plain, piece, early, .. } = self;
            let before = end.settled();
            let bytes = &mut incoming[*at..];
            let mut sink = Sink { outgoing, plain: buf.as_deref_mut(), rest: plain, heard: 0 };
            let (discard, result) = match end {
                End::Own(layer) => {
                    said = !matches!(say, Say::Nothing);
                    absorb_own(layer, bytes, &mut sink, say)
                }
                End::Server(c) => absorb(
                    c.process_tls_records(bytes),
                    &mut sink,
                    |mut records, sink| {
                        while let Some(record) = records.next_record() {
                            *early = true;
                            sink.plain(record?.payload);
                        }
                        Ok(())
                    },
                    |w, sink| {
                        said = true;
                        say.encrypt(w, sink, *piece)
                    },
                ),
                End::Client(c, peer) => {
                    notes::work_on(*peer);
                    let write = |w: &mut WriteTraffic<'_, _>, sink: &mut Sink<'_>| {
                        said = true;
                        say.encrypt(w, sink, *piece)
                    };
                    absorb(c.process_tls_records(bytes), &mut sink, |_, _| Ok(()), write)
                }
                End::Moved => unreachable!("{GONE}"),
            };
            let heard = sink.heard;
            if let Some(tickets) = before {
                self.note_updates(discard, heard, tickets);
                // What is written takes along what is to be said.
                self.updates.is_owed &= !(said && matches!(say, Say::Bytes(_)));
            }
            self.at += discard;
            if self.at == self.incoming.len() {
                self.incoming.clear();
                self.at = 0;
            }
            match result {
                Ok(Step::Again) => {}
                Ok(Step::Blocked) => return Ok(said),
                Ok(Step::Ended) => {
                    // Said once by the library; what is to be written still can be.
                    if std::mem::replace(&mut self.ended, true) {
                        return Ok(said);
                    }
                }
                Err(e) => {
                    (self.silent, self.broken) = (true, true);
                    self.take_alert();
                    return Err(e);
                }
            }
        }
    }

    /// Of this many bytes the library made so many records of plain bytes, and before that had taken so many tickets.
    fn note_updates(&mut self, used: usize, plain: usize, tickets: u32) {
        if used == 0 {
            return;
        }
        let tickets = self.end.settled().unwrap_or(tickets).saturating_sub(tickets) as usize;
        let records = count(&self.incoming[self.at..self.at + used]);
        // Where they are not to be told apart there may have been one.
        self.updates.heard(records.map_or(1, |records| records.saturating_sub(plain + tickets)));
    }

    /// After an error: what the library has to say to the other side. It must see no more bytes.
    fn take_alert(&mut self) {
        let Tls { end, outgoing, plain, .. } = self;
        let mut sink = Sink { outgoing, plain: None, rest: plain, heard: 0 };
        while end.library().is_some_and(CommonState::wants_write) {
            let (_, result) = match end {
                End::Server(c) => absorb(c.process_tls_records(&mut []), &mut sink, |_, _| Ok(()), |_, _| Ok(())),
                End::Client(c, _) => absorb(c.process_tls_records(&mut []), &mut sink, |_, _| Ok(()), |_, _| Ok(())),
                End::Own(_) | End::Moved => unreachable!("{GONE}"),
            };
            if !matches!(result, Ok(Step::Again)) {
                break;
            }
        }
        let _ = self.flush_now(false);
    }

    /// Takes one step of the handshake with the bytes that are there, without reading or writing any.
    pub fn advance(&mut self) -> io::Result<()> {
        let result = self.process(None, Say::Nothing);
        self.note_traffic();
        result.map(drop).map_err(broken)
    }

    /// What the library has noted was of this connection, and is not to be found by the next one.
    fn note_traffic(&mut self) {
        if let Some(traffic) = notes::take_traffic() {
            self.traffic = Some(traffic);
        }
    }

    /// Goes on with the handshake until it is complete, or a request came with it as early data. The last flight (session
    /// tickets) leaves with the first answer, or when there is nothing to read.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.end.is_handshaking() && (!self.early || self.plain.is_empty()) {
            if let Poll::Ready(Err(e)) = self.poll_flush(cx) {
                return Poll::Ready(Err(e));
            }
            if ready!(self.poll_more(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.advance()?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads bytes of the kernel.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.incoming.capacity() == 0 {
            self.incoming = pool::take_buffer();
        }
        if self.at > 0 {
            self.incoming.drain(..self.at);
            self.at = 0;
        }
        if self.incoming.capacity() < INCOMING && self.incoming.len() * 2 > self.incoming.capacity() {
            self.incoming.reserve(INCOMING - self.incoming.len());
        }
        if self.incoming.capacity() == self.incoming.len() {
            // A handshake message may take several records; the library bounds its size.
            self.incoming.reserve(INCOMING);
        }
        let result = self.socket.poll_read(cx, &mut self.incoming);
        if !matches!(result, Poll::Ready(Ok(n)) if n > 0) {
            self.rest();
        }
        result
    }

    /// Gives back what holds nothing.
    fn rest(&mut self) {
        if self.incoming.is_empty() {
            pool::give_buffer(std::mem::take(&mut self.incoming));
        }
        if self.outgoing.is_empty() {
            pool::give_buffer(std::mem::take(&mut self.outgoing));
        }
    }

    /// See [`Socket::poll_read`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let before = buf.len();
        loop {
            self.take_plain(buf);
            if buf.len() == before && !self.ended && self.at < self.incoming.len() {
                self.process(Some(buf), Say::Nothing).map_err(broken)?;
            }
            if buf.len() > before {
                self.rest();
                return Poll::Ready(Ok(buf.len() - before));
            }
            if self.ended {
                return Poll::Ready(Ok(0));
            }
            match self.poll_more(cx)? {
                Poll::Ready(0) => {
                    self.ended = true;
                    return Poll::Ready(Ok(0));
                }
                Poll::Ready(_) => _ = self.process(Some(buf), Say::Nothing).map_err(broken)?,
                Poll::Pending => {
                    // Nobody is going to write for a while: what the library has to say leaves now.
                    self.flush_now(false)?;
                    return Poll::Pending;
                }
            }
        }
    }

    fn take_plain(&mut self, buf: &mut Vec<u8>) {
        if self.plain.is_empty() {
            return;
        }
        let rest = &self.plain[self.plain_at..];
        let n = rest.len().min(buf.capacity() - buf.len());
        buf.extend_from_slice(&rest[..n]);
        self.plain_at += n;
        if self.plain_at == self.plain.len() {
            pool::give_buffer(std::mem::take(&mut self.plain));
            self.plain_at = 0;
        }
    }

    /// See [`Socket::try_read`].
    pub fn try_read(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match self.poll_read(&mut cx, buf) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// See [`Socket::poll_readable`]. What the kernel has may turn out to be no plain bytes.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.plain.is_empty() || self.ended {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_readable(cx)
    }

    /// Works off what is no plain bytes (tickets, key updates). Ready when there are some, or the end, or an error.
    pub fn poll_noise(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.plain.is_empty() || self.ended {
                return Poll::Ready(());
            }
            match self.poll_more(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
            if self.process(None, Say::Nothing).is_err() || self.flush_now(false).is_err() {
                return Poll::Ready(());
            }
        }
    }

    /// Whether bytes wait that nobody has asked for, or must still come: closed now, the other side would see a reset.
    pub fn expects_more(&self) -> bool {
        !self.plain.is_empty() || self.at < self.incoming.len() || self.end.is_handshaking()
    }

    /// See [`Socket::try_write`]. Bytes are told of as written when their encryption is with the kernel; until then the
    /// caller offers the same bytes again.
    pub fn try_write(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        if self.committed == 0 {
            if bytes.is_empty() {
                return Ok(0);
            }
            let bytes = &bytes[..bytes.len().min(AT_ONCE)];
            if self.outgoing.capacity() == 0 {
                self.outgoing = pool::take_buffer();
            }
            if !self.process(None, Say::Bytes(bytes)).map_err(broken)? {
                // Nobody writes before the handshake allows it.
                return Err(io::Error::other("TLS handshake is not complete"));
            }
            self.committed = bytes.len();
            if let Some(last) = &mut self.last {
                *last = last.saturating_sub(bytes.len() as u64);
                if *last == 0 {
                    self.encrypt_goodbye();
                }
            }
        }
        if !self.flush_now(more)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = self.committed.min(bytes.len());
        self.committed -= n;
        Ok(n)
    }

    /// See [`Socket::try_write_two`]: small pieces leave in one record.
    pub fn try_write_two(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        if first.is_empty() || second.is_empty() {
            return self.try_write(if first.is_empty() { second } else { first }, false);
        }
        let mut both = pool::take_buffer();
        both.extend_from_slice(first);
        both.extend_from_slice(&second[..second.len().min(AT_ONCE.saturating_sub(first.len()))]);
        let result = self.try_write(&both, false);
        pool::give_buffer(both);
        result
    }

    /// See [`Socket::try_sendfile`]: the file is read in pieces.
    pub fn try_sendfile(&mut self, file: BorrowedFd<'_>, offset: &mut u64, len: usize) -> io::Result<usize> {
        if self.committed > 0 {
            // Nothing is read of bytes that were read before.
            let room = vec![0; self.committed.min(len)];
            let n = self.try_write(&room, false)?;
            *offset += n as u64;
            return Ok(n);
        }
        let mut buffer = pool::take_buffer();
        buffer.resize(len.min(AT_ONCE), 0);
        let result = match rustix::io::pread(file, &mut buffer[..], *offset) {
            Ok(0) => Ok(0),
            Ok(n) => self.try_write(&buffer[..n], false),
            Err(e) => Err(e.into()),
        };
        pool::give_buffer(buffer);
        if let Ok(n) = &result {
            *offset += *n as u64;
        }
        result
    }

    /// Writes encrypted bytes as far as the kernel takes them; `more` as in [`Socket::try_write`]. False: some are left.
    fn flush_now(&mut self, more: bool) -> io::Result<bool> {
        while self.sent < self.outgoing.len() {
            match self.socket.try_write(&self.outgoing[self.sent..], more) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => {
                    self.silent = true;
                    return Err(e);
                }
            }
        }
        if self.sent > 0 {
            self.outgoing.clear();
            self.sent = 0;
            pool::give_buffer(std::mem::take(&mut self.outgoing));
        }
        Ok(true)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            let Tls { socket, outgoing, sent, .. } = self;
            let rest = &outgoing[*sent..];
            self.sent += ready!(socket.poll_write_with(cx, |s| s.try_write(rest, false)))?;
        }
        self.flush_now(false).map(|_| ()).into()
    }

    /// Only `bytes` more are written: the goodbye leaves with the last of them, which spares a packet.
    pub fn end_after(&mut self, bytes: u64) {
        // Those that the writer was not told of yet are encrypted already.
        self.last = Some(bytes.saturating_sub(self.committed as u64));
    }

    /// Says that nothing more comes (`close_notify`), once and without waiting. The end of the connection must follow: both leave in
    /// one packet.
    pub fn say_goodbye(&mut self) {
        self.encrypt_goodbye();
        let _ = self.flush_now(true);
    }

    fn encrypt_goodbye(&mut self) {
        if !std::mem::replace(&mut self.silent, true) {
            let _ = self.process(None, Say::Goodbye);
        }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // What a panic left is not to be trusted.
        if !std::thread::panicking() {
            self.say_goodbye();
        }
    }
}

impl AsFd for Tls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn broken(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
