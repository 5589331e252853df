//! A resident whose connection is one of TLS 1.3: what it says is encrypted when it says it, and what its client says is decrypted then. In
//! between there are the secrets and what has begun to come of a record. The resident inside sees plain bytes only.

use super::{Kind, Next, Resident, Watch, Words};
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::connection::tls::record_layer::{Fault, Heard, Layer, whole};
use crate::connection::tls::secrets::{SecretBytes, Secrets};
use std::io;
use std::time::Duration;

pub(super) struct Secured {
    inner: Box<dyn Resident>,
    secrets: SecretBytes,
    work: Option<Box<Work>>,
}

/// What few residents have.
#[derive(Default)]
struct Work {
    /// What has come of a record.
    incoming: Vec<u8>,
    /// What the record layer itself has to say, before anything else.
    answer: Vec<u8>,
    /// What is being written: encrypted bytes that are not written yet, and the plain bytes that they stand for.
    sealed: usize,
    plain: usize,
    /// The goodbye has been said.
    has_ended: bool,
    /// What is written next would not be understood.
    is_broken: bool,
    /// The client has said that nothing more comes, or what is wrong with what came: the resident is told when it has dealt with what came
    /// before.
    over: Option<Option<Fault>>,
}

const OURS: &str = "these bytes were secrets";

impl Secured {
    pub(super) fn new(inner: Box<dyn Resident>, secrets: &Secrets) -> Secured {
        Secured { inner, secrets: secrets.to_bytes(), work: None }
    }

    /// Works with the record layer, and keeps what that changes.
    fn with_layer<T>(&mut self, work: impl FnOnce(&mut Layer, &mut dyn Resident, &mut Work) -> T) -> T {
        let mut layer = Layer::new(Secrets::from_bytes(&self.secrets).expect(OURS));
        let result = work(&mut layer, &mut *self.inner, self.work.get_or_insert_default());
        self.secrets = layer.secrets().to_bytes();
        result
    }

    /// Gives memory back that holds nothing.
    fn rest(&mut self) {
        let is_idle = |work: &mut Box<Work>| {
            let is_empty = work.incoming.is_empty() && work.answer.is_empty() && work.sealed == 0;
            is_empty && !work.has_ended && !work.is_broken && work.over.is_none()
        };
        self.work.take_if(is_idle);
    }

    fn seal(&mut self, words: &Words) -> Words {
        Words::Own(self.with_layer(|layer, _, work| {
            let mut out = Vec::new();
            layer.write(words.bytes(), &mut out);
            (work.sealed, work.plain) = (out.len(), words.bytes().len());
            out.into()
        }))
    }

    fn goodbye(&mut self) -> Words {
        Words::Own(self.with_layer(|layer, _, work| {
            let mut out = Vec::new();
            layer.say_goodbye(&mut out);
            (work.sealed, work.plain, work.has_ended) = (out.len(), 0, true);
            out.into()
        }))
    }
}

impl Secured {
    /// What the resident says, encrypted; a goodbye before the end.
    fn said(&mut self, next: Next) -> Next {
        let is_silent = self.work.as_ref().is_some_and(|work| work.has_ended || work.is_broken);
        match next {
            Next::Say(words) => Next::Say(self.seal(&words)),
            Next::Close if !is_silent => Next::Say(self.goodbye()),
            other => other,
        }
    }
}

/// Decrypts all records that are whole; the resident hears what is in them.
fn open(layer: &mut Layer, inner: &mut dyn Resident, work: &mut Work) -> Result<(), Fault> {
    let mut used = 0;
    let mut result = Ok(());
    while let Some(length) = whole(&work.incoming[used..]).unwrap_or_else(|fault| {
        result = Err(fault);
        None
    }) {
        match layer.open(&mut work.incoming[used..used + length]) {
            Ok(Heard::Bytes(plain)) => inner.hear(plain),
            Ok(Heard::Nothing) => {}
            Ok(Heard::Ended) => {
                work.over = Some(None);
                used = work.incoming.len();
                break;
            }
            Err(fault) => {
                result = Err(fault);
                break;
            }
        }
        used += length;
    }
    work.incoming.drain(..used);
    work.incoming.shrink_to_fit();
    result
}

impl Resident for Secured {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn is_client(&self) -> bool {
        self.inner.is_client()
    }

    fn bytes(&self) -> usize {
        size_of::<Secured>() + self.secrets.len() + self.inner.bytes()
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }

    fn settled(&mut self, place: u32) {
        self.inner.settled(place);
    }

    fn hear(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.with_layer(|layer, inner, work| {
            work.incoming.extend_from_slice(bytes);
            match open(layer, inner, work) {
                Ok(()) => layer.answer(&mut work.answer),
                Err(fault) => {
                    layer.refuse(fault, &mut work.answer);
                    (work.is_broken, work.over) = (true, Some(Some(fault)));
                }
            }
        });
        self.rest();
    }

    fn gone(&mut self, why: Option<io::Error>) {
        self.inner.gone(why);
    }

    fn stalled(&mut self) {
        // Part of a record is with the client.
        self.work.get_or_insert_default().is_broken = true;
        self.inner.stalled();
    }

    fn refused(&mut self) {
        self.inner.refused();
    }

    fn patience(&self) -> Duration {
        match &self.work {
            // Who does not take the goodbye at once goes without.
            Some(work) if work.has_ended => Duration::ZERO,
            _ => self.inner.patience(),
        }
    }

    fn wrote(&mut self, count: usize) {
        let Some(work) = &mut self.work else { return };
        work.sealed = work.sealed.saturating_sub(count);
        if work.sealed == 0 {
            let plain = std::mem::take(&mut work.plain);
            self.inner.wrote(plain);
            self.rest();
        }
    }

    fn next(&mut self) -> Next {
        if let Some(work) = &mut self.work
            && !work.answer.is_empty()
        {
            let answer = std::mem::take(&mut work.answer);
            (work.sealed, work.plain) = (answer.len(), 0);
            return Next::Say(Words::Own(answer.into()));
        }
        let rest = match self.inner.next() {
            Next::Rest(until_ms) => until_ms,
            next => return self.said(next),
        };
        let Some(over) = self.work.as_mut().and_then(|work| work.over.take()) else { return Next::Rest(rest) };
        self.inner.gone(over.map(|fault| io::Error::new(io::ErrorKind::InvalidData, fault.to_string())));
        let next = self.inner.next();
        self.said(next)
    }

    fn leave(self: Box<Self>, socket: Socket) {
        let Secured { inner, secrets, work } = *self;
        let work = work.map_or_else(Work::default, |work| *work);
        let secrets = Secrets::from_bytes(&secrets).expect(OURS);
        let mut tls = Tls::resumed(socket, secrets, work.incoming);
        if work.has_ended || work.is_broken || work.sealed > 0 {
            tls.give_up();
        }
        inner.leave(Socket::encrypted(tls));
    }
}
