//! The record layer of a TLS 1.3 connection whose handshake is long past (RFC 8446 sections 4.6.3, 5, 6): what a connection that was parked
//! goes on with, since the library does not take a connection back. From and to: `connection::tls`, `connection::parked`. Bytes in and
//! bytes out; knows no socket.

use super::secrets::{Direction, Secrets, Suite, TAG};
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{AlertDescription, Error};
use std::fmt;

/// Type, version, length.
const HEAD: usize = 5;
/// Payload of a record (section 5.1).
const MOST_PLAIN: usize = 1 << 14;
/// What is encrypted of a record (section 5.2).
const MOST_SEALED: usize = MOST_PLAIN + 256;
/// Types of records (section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// The message `new_session_ticket`, and how long it may be (section 4.6.1).
const TICKET: u8 = 4;
const MOST_TICKET: u32 = 4 + 4 + (1 + 255) + 2 * (2 + 65_535);
/// Type, and length, of a message of the handshake.
const MESSAGE_HEAD: usize = 4;
/// The message `key_update`, and that the other side is to update, too.
const KEY_UPDATE: u8 = 24;
const REQUESTED: u8 = 1;
/// So many updates one after the other, with nothing said in between, are only work.
const MOST_UPDATES: u8 = 32;
/// Likewise tickets.
const MOST_TICKETS: u8 = 32;
/// Likewise records without anything in them.
const MOST_EMPTY: u8 = 32;
/// A key of AES-GCM is good for 2^24.5 records (section 5.5): it is changed before.
const RECORDS_FOR_A_KEY: u64 = 1 << 24;

/// What is wrong with what the other side sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has said so itself, by this alert.
    Alert(u8),
    /// A record is not what was sent.
    Forged,
    /// A record is larger than any may be.
    TooLarge,
    /// Something that has no place behind a handshake.
    Unexpected,
    /// A message that makes no sense.
    Malformed,
    /// Only work.
    Flood,
}

impl Fault {
    /// What the other side is told.
    fn alert(self) -> Option<AlertDescription> {
        match self {
            Fault::Alert(_) => None,
            Fault::Forged => Some(AlertDescription::BadRecordMac),
            Fault::TooLarge => Some(AlertDescription::RecordOverflow),
            Fault::Unexpected | Fault::Flood => Some(AlertDescription::UnexpectedMessage),
            Fault::Malformed => Some(AlertDescription::DecodeError),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Alert(number) => write!(f, "received fatal alert: {:?}", AlertDescription::from(*number)),
            Fault::Forged => f.write_str("cannot decrypt peer's message"),
            Fault::TooLarge => f.write_str("peer sent oversized record"),
            Fault::Unexpected => f.write_str("peer sent a record that has no place there"),
            Fault::Malformed => f.write_str("peer sent a malformed message"),
            Fault::Flood => f.write_str("peer sent key updates, tickets or empty records only"),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Alert(number) => Error::AlertReceived(number.into()),
            Fault::Forged => Error::DecryptError,
            Fault::TooLarge => Error::PeerSentOversizedRecord,
            other => Error::General(other.to_string()),
        }
    }
}

/// What a record was.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'r> {
    /// Plain bytes.
    Bytes(&'r [u8]),
    /// Something between the two record layers.
    Nothing,
    /// The other side says no more.
    Ended,
}

/// Both directions of a connection.
pub struct Layer {
    secrets: Secrets,
    ours: Option<Key>,
    theirs: Option<Key>,
    updates: u8,
    empty: u8,
    tickets: u8,
    message: Message,
    /// The other side wants new keys of us, before anything else is sent.
    owes_update: bool,
}

/// A message of a server that has not come whole.
#[derive(Default)]
struct Message {
    head: [u8; MESSAGE_HEAD],
    /// So many bytes of the head are there.
    known: usize,
    /// So many bytes behind the head are to come; nobody wants them.
    left: u32,
}

impl Message {
    fn has_begun(&self) -> bool {
        self.known > 0 || self.left > 0
    }
}

/// A key, made when its direction is used.
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl Key {
    fn of(suite: Suite, direction: &Direction) -> Key {
        let made = direction.key();
        let key = UnboundKey::new(suite.aead(), &made.key[..suite.aead().key_len()]);
        Key { key: LessSafeKey::new(key.expect("keys are as long as their ciphers want them")), iv: made.iv }
    }

    /// Section 5.3.
    fn nonce(&self, sequence: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(sequence.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// How long the record is that these bytes begin with. None: it is not whole yet.
///
/// # Errors
/// There is no such record.
pub fn whole(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    if head[0] != DATA {
        return Err(Fault::Unexpected);
    }
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if length > MOST_SEALED {
        return Err(Fault::TooLarge);
    }
    if length <= TAG {
        return Err(Fault::Malformed);
    }
    Ok((bytes.len() >= HEAD + length).then_some(HEAD + length))
}

impl Layer {
    /// Goes on with a connection.
    pub fn new(secrets: Secrets) -> Layer {
        Layer {
            secrets,
            ours: None,
            theirs: None,
            updates: 0,
            empty: 0,
            tickets: 0,
            message: Message::default(),
            owes_update: false,
        }
    }

    /// Whether [`Layer::secrets`] are all there is: the other side is not in the middle of a message, and is owed nothing.
    pub fn is_at_rest(&self) -> bool {
        !self.message.has_begun() && !self.owes_update
    }

    /// What is needed to go on elsewhere.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Decrypts a record, which [`whole`] has found, where it is.
    ///
    /// # Errors
    /// The connection is over; [`Layer::refuse`] tells the other side.
    pub fn open<'r>(&mut self, record: &'r mut [u8]) -> Result<Heard<'r>, Fault> {
        let Secrets { suite, theirs, .. } = &mut self.secrets;
        let key = self.theirs.get_or_insert_with(|| Key::of(*suite, theirs));
        let (head, sealed) = record.split_at_mut(HEAD);
        let nonce = key.nonce(theirs.sequence);
        let plain = key.key.open_in_place(nonce, Aad::from(&*head), sealed).map_err(|_| Fault::Forged)?;
        theirs.sequence = theirs.sequence.checked_add(1).ok_or(Fault::Flood)?;
        // Behind the payload: its type, and zeros (section 5.4).
        let end = plain.iter().rposition(|byte| *byte != 0).ok_or(Fault::Unexpected)?;
        let (kind, plain) = (plain[end], &plain[..end]);
        if plain.len() > MOST_PLAIN {
            return Err(Fault::TooLarge);
        }
        if kind == DATA && self.message.has_begun() {
            return Err(Fault::Unexpected);
        }
        match kind {
            DATA if plain.is_empty() => {
                self.empty += 1;
                if self.empty > MOST_EMPTY { Err(Fault::Flood) } else { Ok(Heard::Nothing) }
            }
            DATA => {
                (self.updates, self.empty, self.tickets) = (0, 0, 0);
                Ok(Heard::Bytes(plain))
            }
            ALERT => heard_alert(plain),
            HANDSHAKE if self.secrets.is_client => self.heard_server(plain),
            HANDSHAKE => self.heard_client(plain),
            _ => Err(Fault::Unexpected),
        }
    }

    /// The only message there is for a server after the handshake, which must be the last of its record (section 5.1). Five bytes that
    /// come in two records would be allowed, and nobody does that.
    fn heard_client(&mut self, message: &[u8]) -> Result<Heard<'static>, Fault> {
        let [KEY_UPDATE, 0, 0, 1, request] = *message else { return Err(Fault::Unexpected) };
        self.heard_update(request)
    }

    /// What a server may say after the handshake: tickets for sessions, which nobody will resume here, several in a record or one in several;
    /// and the same update, last of its record.
    fn heard_server(&mut self, mut plain: &[u8]) -> Result<Heard<'static>, Fault> {
        if plain.is_empty() {
            return Err(Fault::Unexpected);
        }
        while !plain.is_empty() {
            let Message { head, known, left } = &mut self.message;
            if *left > 0 {
                let skipped = plain.len().min(*left as usize);
                *left -= skipped as u32;
                plain = &plain[skipped..];
                continue;
            }
            let taken = plain.len().min(MESSAGE_HEAD - *known);
            head[*known..*known + taken].copy_from_slice(&plain[..taken]);
            *known += taken;
            plain = &plain[taken..];
            if *known < MESSAGE_HEAD {
                break;
            }
            *known = 0;
            match *head {
                [TICKET, high, middle, low] => {
                    *left = u32::from_be_bytes([0, high, middle, low]);
                    if *left > MOST_TICKET {
                        return Err(Fault::Malformed);
                    }
                    self.tickets += 1;
                    if self.tickets > MOST_TICKETS {
                        return Err(Fault::Flood);
                    }
                }
                [KEY_UPDATE, 0, 0, 1] => {
                    let [request] = *plain else { return Err(Fault::Unexpected) };
                    return self.heard_update(request);
                }
                _ => return Err(Fault::Unexpected),
            }
        }
        Ok(Heard::Nothing)
    }

    fn heard_update(&mut self, request: u8) -> Result<Heard<'static>, Fault> {
        if request > REQUESTED {
            return Err(Fault::Malformed);
        }
        self.updates += 1;
        if self.updates > MOST_UPDATES {
            return Err(Fault::Flood);
        }
        self.secrets.theirs.update();
        self.theirs = None;
        // However often it asks before it hears from us: once is enough (section 4.6.3).
        self.owes_update |= request == REQUESTED;
        Ok(Heard::Nothing)
    }

    /// Appends what the other side is owed, which is to leave soon.
    pub fn answer(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.owes_update) {
            self.update(out);
        }
    }

    fn update(&mut self, out: &mut Vec<u8>) {
        self.seal(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out);
        self.secrets.ours.update();
        self.ours = None;
    }

    /// Appends bytes, encrypted, a record for each piece.
    pub fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.answer(out);
        let piece = usize::from(self.secrets.piece).clamp(1, MOST_PLAIN);
        for part in bytes.chunks(piece) {
            if self.secrets.ours.sequence >= RECORDS_FOR_A_KEY {
                self.update(out);
            }
            self.seal(DATA, part, out);
        }
    }

    /// Appends `close_notify`: nothing more comes.
    pub fn say_goodbye(&mut self, out: &mut Vec<u8>) {
        self.seal(ALERT, &[1, AlertDescription::CloseNotify.into()], out);
    }

    /// Appends what tells the other side of its fault.
    pub fn refuse(&mut self, fault: Fault, out: &mut Vec<u8>) {
        if let Some(alert) = fault.alert() {
            self.seal(ALERT, &[2, alert.into()], out);
        }
    }

    /// Appends a record of a type, encrypted.
    pub(super) fn seal(&mut self, kind: u8, plain: &[u8], out: &mut Vec<u8>) {
        let Secrets { suite, ours, .. } = &mut self.secrets;
        let key = self.ours.get_or_insert_with(|| Key::of(*suite, ours));
        let start = out.len();
        let [high, low] = ((plain.len() + 1 + TAG) as u16).to_be_bytes();
        out.extend_from_slice(&[DATA, 3, 3, high, low]);
        out.extend_from_slice(plain);
        out.push(kind);
        let (head, body) = out[start..].split_at_mut(HEAD);
        let nonce = key.nonce(ours.sequence);
        let tag = key.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body);
        out.extend_from_slice(tag.expect("a record is shorter than what a cipher takes").as_ref());
        ours.sequence += 1;
    }
}

/// Section 6: the level is of no meaning.
fn heard_alert(alert: &[u8]) -> Result<Heard<'static>, Fault> {
    let [_, number] = *alert else { return Err(Fault::Malformed) };
    match AlertDescription::from(number) {
        AlertDescription::CloseNotify => Ok(Heard::Ended),
        // `close_notify` follows.
        AlertDescription::UserCanceled => Ok(Heard::Nothing),
        _ => Err(Fault::Alert(number)),
    }
}

#[cfg(test)]
mod tests;
