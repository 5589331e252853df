//! Records of a TLS connection: what the library makes of bytes that came, and what it makes of those that are to go.
//! No socket here. Around: `connection::tls`, which has the buffers.

use super::record_layer::{self, Heard, Layer};
use rustls::Error;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, ReadEarlyData, UnbufferedStatus, WriteTraffic};

/// The largest payload of a record (RFC 8446 section 5.1).
pub const MAX_RECORD: usize = 16 * 1024;
/// What a record adds to its payload at most: head, content type, tag, and the nonce of TLS 1.2.
const RECORD_OVERHEAD: usize = 5 + 1 + 16 + 8;

/// How far the library got with what it was given.
pub(super) enum Step {
    /// There is more to do.
    Again,
    /// It needs more bytes.
    Blocked,
    /// The other side said goodbye.
    Ended,
}

/// What is to be said.
#[derive(Clone, Copy)]
pub(super) enum Say<'b> {
    Nothing,
    Bytes(&'b [u8]),
    /// `close_notify`
    Goodbye,
}

impl Say<'_> {
    pub(super) fn encrypt<D>(
        self,
        writer: &mut WriteTraffic<'_, D>,
        sink: &mut Sink<'_>,
        piece: usize,
    ) -> Result<(), Error> {
        match self {
            Say::Nothing => Ok(()),
            Say::Bytes(bytes) => encrypt(writer, sink, bytes, piece),
            Say::Goodbye => sink.encode(|out| {
                writer.queue_close_notify(out).map_err(|e| match e {
                    EncryptError::InsufficientSize(e) => e.required_size,
                    EncryptError::EncryptExhausted => 0,
                })
            }),
        }
    }
}

/// What the library produced.
pub(super) struct Sink<'b> {
    pub(super) outgoing: &'b mut Vec<u8>,
    /// Plain bytes go here as far as there is room, then to `rest`.
    pub(super) plain: Option<&'b mut Vec<u8>>,
    pub(super) rest: &'b mut Vec<u8>,
    /// Records of plain bytes.
    pub(super) heard: usize,
}

impl Sink<'_> {
    pub(super) fn plain(&mut self, mut bytes: &[u8]) {
        if let Some(out) = &mut self.plain
            && self.rest.is_empty()
        {
            let n = (out.capacity() - out.len()).min(bytes.len());
            out.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
        }
        self.rest.extend_from_slice(bytes);
    }

    fn encode(&mut self, mut put: impl FnMut(&mut [u8]) -> Result<usize, usize>) -> Result<(), Error> {
        let start = self.outgoing.len();
        let mut room = 0;
        loop {
            self.outgoing.resize(start + room, 0);
            match put(&mut self.outgoing[start..]) {
                Ok(n) => {
                    self.outgoing.truncate(start + n);
                    return Ok(());
                }
                Err(needed) if needed > room => room = needed,
                Err(_) => {
                    self.outgoing.truncate(start);
                    return Err(Error::EncryptError);
                }
            }
        }
    }
}

/// Takes one step. How many bytes were used up, and how far it got.
pub(super) fn absorb<D>(
    status: UnbufferedStatus<'_, '_, D>,
    sink: &mut Sink<'_>,
    early: impl FnOnce(ReadEarlyData<'_, '_, D>, &mut Sink<'_>) -> Result<(), Error>,
    traffic: impl FnOnce(&mut WriteTraffic<'_, D>, &mut Sink<'_>) -> Result<(), Error>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let result = match state {
        Err(e) => Err(e),
        Ok(ConnectionState::ReadTraffic(mut records)) => loop {
            match records.next_record() {
                None => break Ok(Step::Again),
                Some(Ok(record)) => {
                    discard += record.discard;
                    sink.heard += 1;
                    sink.plain(record.payload);
                }
                Some(Err(e)) => break Err(e),
            }
        },
        Ok(ConnectionState::ReadEarlyData(records)) => early(records, sink).map(|()| Step::Again),
        Ok(ConnectionState::EncodeTlsData(mut data)) => sink
            .encode(|out| {
                data.encode(out).map_err(|e| match e {
                    EncodeError::InsufficientSize(e) => e.required_size,
                    EncodeError::AlreadyEncoded => 0,
                })
            })
            .map(|()| Step::Again),
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // `outgoing` keeps it until the kernel takes it.
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Blocked),
        Ok(ConnectionState::WriteTraffic(mut writer)) => traffic(&mut writer, sink).map(|()| Step::Blocked),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
        Ok(_) => Ok(Step::Blocked),
    };
    (discard, result)
}

/// Has the library say that it changes its keys, which it asks of the other side as well.
pub(super) fn update<D>(status: UnbufferedStatus<'_, '_, D>) -> Result<(), Error> {
    match status.state? {
        ConnectionState::WriteTraffic(writer) => writer.refresh_traffic_keys(),
        _ => Ok(()),
    }
}

/// How many records these bytes are. None: they are something else by now, since the library puts messages together in its place.
pub(super) fn count(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        bytes = rest.get(usize::from(u16::from_be_bytes([head[3], head[4]]))..)?;
        count += 1;
    }
    bytes.is_empty().then_some(count)
}

/// Encrypts `bytes`, a record for each `piece`.
fn encrypt<D>(writer: &mut WriteTraffic<'_, D>, sink: &mut Sink<'_>, bytes: &[u8], piece: usize) -> Result<(), Error> {
    for part in bytes.chunks(piece) {
        let start = sink.outgoing.len();
        sink.outgoing.resize(start + part.len() + RECORD_OVERHEAD, 0);
        match writer.encrypt(part, &mut sink.outgoing[start..]) {
            Ok(n) => sink.outgoing.truncate(start + n),
            Err(EncryptError::InsufficientSize(_)) => {
                sink.outgoing.truncate(start);
                sink.encode(|out| {
                    writer.encrypt(part, out).map_err(|e| match e {
                        EncryptError::InsufficientSize(e) => e.required_size,
                        EncryptError::EncryptExhausted => 0,
                    })
                })?;
            }
            Err(EncryptError::EncryptExhausted) => {
                sink.outgoing.truncate(start);
                return Err(Error::EncryptError);
            }
        }
    }
    Ok(())
}

/// The same by the record layer of a connection that was parked. Takes all records that are whole, and says what is to be said.
pub(super) fn absorb_own(
    layer: &mut Layer,
    bytes: &mut [u8],
    sink: &mut Sink<'_>,
    say: Say<'_>,
) -> (usize, Result<Step, Error>) {
    let mut used = 0;
    let refused = loop {
        let length = match record_layer::whole(&bytes[used..]) {
            Ok(Some(length)) => length,
            Ok(None) => break None,
            Err(fault) => break Some(fault),
        };
        match layer.open(&mut bytes[used..used + length]) {
            Ok(Heard::Bytes(plain)) => sink.plain(plain),
            Ok(Heard::Nothing) => {}
            // What follows the end is not read (RFC 8446 section 6.1).
            Ok(Heard::Ended) => return (bytes.len(), Ok(Step::Ended)),
            Err(fault) => break Some(fault),
        }
        used += length;
    };
    if let Some(fault) = refused {
        layer.refuse(fault, sink.outgoing);
        return (used, Err(fault.into()));
    }
    match say {
        Say::Nothing => layer.answer(sink.outgoing),
        Say::Bytes(bytes) => layer.write(bytes, sink.outgoing),
        Say::Goodbye => layer.say_goodbye(sink.outgoing),
    }
    (used, Ok(Step::Blocked))
}
