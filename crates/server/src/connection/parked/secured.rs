//! A resident whose connection is one of TLS 1.3: what it says is encrypted when it says it, and what its client says is decrypted then. In
//! between there are the secrets and what has begun to come of a record. The resident inside sees plain bytes only.

use super::{Kind, Next, Ready, Resident, Watch, Words};
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::connection::tls::record_layer::{Fault, Heard, Layer, whole};
use crate::connection::tls::secrets::{SecretBytes, Secrets};
use crate::worker::departure::{CoverPapers, Papers, Stay};
use std::io;
use std::time::Duration;

pub(super) struct Secured {
    inner: Box<dyn Resident>,
    cover: Cover,
}

/// What is left of TLS on a connection.
pub(super) struct Cover {
    /// Nothing that could be used where somebody has panicked in between.
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

/// Why a connection is over whose secrets are not known any more.
const LOST: &str = "the keys of the connection were given up";

impl Work {
    /// It goes on with what another process, or a task, has not said.
    fn of(incoming: &[u8], answer: &[u8], plain: usize) -> Option<Box<Work>> {
        let work = Work { incoming: incoming.into(), answer: answer.into(), plain, ..Work::default() };
        (!work.is_idle()).then(|| Box::new(work))
    }

    /// Whether it holds nothing.
    fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.answer.is_empty() && self.sealed == 0 && !self.is_over()
    }

    /// Whether nothing goes on as before.
    fn is_over(&self) -> bool {
        self.has_ended || self.is_broken || self.over.is_some()
    }
}

impl Cover {
    pub(super) fn new(secrets: &Secrets) -> Cover {
        Cover { secrets: secrets.to_bytes(), work: None }
    }

    /// What another process had.
    pub(super) fn read(secrets: SecretBytes, sealed: &[u8]) -> Option<Cover> {
        Secrets::from_bytes(&secrets)?;
        let mut r = heir::Reader::new(sealed);
        let (incoming, answer, plain) = (r.bytes()?, r.bytes()?, usize::try_from(r.number()?).ok()?);
        r.is_done().then(|| Cover { secrets, work: Work::of(incoming, answer, plain) })
    }

    /// The same of one on which nothing was under way.
    pub(super) fn at_rest(secrets: SecretBytes) -> Option<Cover> {
        Secrets::from_bytes(&secrets).map(|_| Cover { secrets, work: None })
    }

    /// For another process.
    fn papers(&self) -> CoverPapers {
        let mut w = heir::Writer::default();
        let (incoming, answer, plain) =
            self.work.as_ref().map_or((&[][..], &[][..], 0), |work| (&work.incoming, &work.answer, work.plain));
        w.bytes(incoming);
        w.bytes(answer);
        w.number(plain as u64);
        CoverPapers { secrets: SecretBytes::copy(&self.secrets), sealed: w.done() }
    }

    /// The connection again.
    pub(super) fn socket(self, socket: Socket) -> Socket {
        let work = self.work.map_or_else(Work::default, |work| *work);
        let Some(secrets) = Secrets::from_bytes(&self.secrets) else {
            // Nothing can be said on it, no goodbye either.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            return socket;
        };
        let mut tls = Tls::resumed(socket, secrets, work.incoming);
        tls.say_first(&work.answer);
        if work.has_ended || work.is_broken || work.sealed > 0 {
            tls.give_up();
        }
        Socket::encrypted(tls)
    }
}

impl Secured {
    pub(super) fn new(inner: Box<dyn Resident>, cover: Cover) -> Secured {
        Secured { inner, cover }
    }

    /// Works with the record layer, and keeps what that changes. None: nothing is known of it any more.
    fn with_layer<T>(&mut self, work: impl FnOnce(&mut Layer, &mut dyn Resident, &mut Work) -> T) -> Option<T> {
        let mut layer = Layer::new(Secrets::from_bytes(&self.cover.secrets)?);
        // A panic in between leaves records that nobody has counted: with the same numbers others would be encrypted alike.
        self.cover.secrets.forget();
        let result = work(&mut layer, &mut *self.inner, self.cover.work.get_or_insert_default());
        self.cover.secrets = layer.secrets().to_bytes();
        Some(result)
    }

    /// Whether somebody has panicked between two states of the record layer.
    fn is_lost(&self) -> bool {
        self.cover.secrets.is_forgotten()
    }

    /// Gives memory back that holds nothing.
    fn rest(&mut self) {
        self.cover.work.take_if(|work| work.is_idle());
    }

    fn seal(&mut self, words: &Words) -> Option<Words> {
        let sealed = self.with_layer(|layer, _, work| {
            let mut out = Vec::new();
            layer.write(words.bytes(), &mut out);
            (work.sealed, work.plain) = (out.len(), words.bytes().len());
            out
        });
        sealed.map(|out| Words::Own(out.into()))
    }

    fn goodbye(&mut self) -> Option<Words> {
        let sealed = self.with_layer(|layer, _, work| {
            let mut out = Vec::new();
            layer.say_goodbye(&mut out);
            (work.sealed, work.plain, work.has_ended) = (out.len(), 0, true);
            out
        });
        sealed.map(|out| Words::Own(out.into()))
    }
}

impl Secured {
    /// What the resident says, encrypted; a goodbye before the end.
    fn said(&mut self, next: Next) -> Next {
        let is_silent = self.cover.work.as_ref().is_some_and(|work| work.has_ended || work.is_broken);
        match next {
            Next::Say(words) => self.seal(&words).map_or(Next::Close, Next::Say),
            Next::Close if !is_silent => self.goodbye().map_or(Next::Close, Next::Say),
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
        size_of::<Secured>() + self.cover.secrets.len() + self.inner.bytes()
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
        self.cover.work.get_or_insert_default().is_broken = true;
        self.inner.stalled();
    }

    fn refused(&mut self) {
        self.inner.refused();
    }

    fn patience(&self) -> Duration {
        match &self.cover.work {
            // Who does not take the goodbye at once goes without.
            Some(work) if work.has_ended => Duration::ZERO,
            _ => self.inner.patience(),
        }
    }

    fn wrote(&mut self, count: usize) {
        let Some(work) = &mut self.cover.work else { return };
        work.sealed = work.sealed.saturating_sub(count);
        if work.sealed == 0 {
            let plain = std::mem::take(&mut work.plain);
            self.inner.wrote(plain);
            self.rest();
        }
    }

    fn next(&mut self) -> Next {
        if self.is_lost() {
            self.inner.gone(Some(io::Error::other(LOST)));
            return match self.inner.next() {
                Next::Leave => Next::Leave,
                _ => Next::Close,
            };
        }
        if let Some(work) = &mut self.cover.work
            && !work.answer.is_empty()
        {
            let answer = std::mem::take(&mut work.answer);
            work.sealed = answer.len();
            return Next::Say(Words::Own(answer.into()));
        }
        let rest = match self.inner.next() {
            Next::Rest(until_ms) => until_ms,
            next => return self.said(next),
        };
        let Some(over) = self.cover.work.as_mut().and_then(|work| work.over.take()) else { return Next::Rest(rest) };
        self.inner.gone(over.map(|fault| io::Error::new(io::ErrorKind::InvalidData, fault.to_string())));
        let next = self.inner.next();
        self.said(next)
    }

    fn leave(self: Box<Self>, socket: Socket) {
        let Secured { inner, cover } = *self;
        inner.leave(cover.socket(socket));
    }

    fn travel(&mut self, rest: &[u8]) -> Option<Papers> {
        if self.is_lost() || self.cover.work.as_ref().is_some_and(|work| work.is_over()) {
            return None;
        }
        // What is left of what it was saying is encrypted: it goes on as it is.
        let mut papers = self.inner.travel(&[])?;
        if !rest.is_empty() {
            let work = self.cover.work.get_or_insert_default();
            work.answer.splice(0..0, rest.iter().copied());
            work.sealed = 0;
        }
        papers.cover = Some(self.cover.papers());
        Some(papers)
    }

    fn goes_along(&self) -> Option<Option<SecretBytes>> {
        let is_at_rest = self.cover.work.as_ref().is_none_or(|work| work.is_idle());
        (is_at_rest && !self.is_lost()).then(|| Some(SecretBytes::copy(&self.cover.secrets)))
    }

    fn companion(&self) -> Option<u32> {
        self.inner.companion()
    }

    fn stay(self: Box<Self>, ready: Ready, why: Stay) {
        let Secured { inner, cover } = *self;
        inner.stay(Ready { cover: Some(cover), ..ready }, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::tls::secrets::SecretBytes;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Panics about what it hears; says the same thing again and again.
    struct Rash {
        is_gone: bool,
    }

    impl Resident for Rash {
        fn kind(&self) -> Kind {
            Kind::WebSocket
        }
        fn bytes(&self) -> usize {
            0
        }
        fn watch(&self) -> Watch {
            Watch::Words
        }
        fn settled(&mut self, _: u32) {}
        fn hear(&mut self, _: &[u8]) {
            panic!("as the test wants it");
        }
        fn gone(&mut self, _: Option<io::Error>) {
            self.is_gone = true;
        }
        fn stalled(&mut self) {}
        fn refused(&mut self) {}
        fn patience(&self) -> Duration {
            Duration::ZERO
        }
        fn wrote(&mut self, _: usize) {}
        fn next(&mut self) -> Next {
            if self.is_gone { Next::Leave } else { Next::Say(Words::Own(b"hello"[..].into())) }
        }
        fn leave(self: Box<Self>, mut socket: Socket) {
            assert!(socket.tls().is_none());
            assert!(socket.try_write(b"plain", false).is_err(), "nothing is said any more");
        }
    }

    fn secrets() -> SecretBytes {
        let numbers = |bytes: &[u8]| bytes.repeat(8);
        let head = [&[0x13, 0x01, 0, 0x40, 0x00][..], &numbers(&[0]), &numbers(&[0])].concat();
        SecretBytes::copy(&[head, vec![7; 32], vec![7; 32]].concat())
    }

    /// Secrets in use by whoever sends to it: both directions have the same.
    fn record(plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Layer::new(Secrets::from_bytes(&secrets()).unwrap()).write(plain, &mut out);
        out
    }

    #[test]
    fn nothing_is_encrypted_behind_a_panic() {
        let mut cover = Secured::new(Box::new(Rash { is_gone: false }), Cover::read(secrets(), b"\0\0\0").unwrap());
        let bytes = cover.bytes();
        let Next::Say(Words::Own(first)) = cover.next() else { panic!("it has something to say") };
        cover.wrote(first.len());
        assert!(catch_unwind(AssertUnwindSafe(|| cover.hear(&record(b"what it is about")))).is_err());
        assert!(cover.travel(&[]).is_none());
        assert!(matches!(cover.next(), Next::Leave), "it says nothing more, and is to go");
        assert_eq!(cover.bytes(), bytes);
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        Box::new(cover).leave(Socket::new(ours.into()));
        assert_eq!(std::io::Read::read(&mut theirs, &mut [0; 10]).unwrap(), 0);
    }

    #[test]
    fn what_is_under_way_goes_with_it() {
        struct Mute(Rash);
        impl Resident for Mute {
            fn kind(&self) -> Kind {
                self.0.kind()
            }
            fn bytes(&self) -> usize {
                0
            }
            fn watch(&self) -> Watch {
                Watch::Words
            }
            fn settled(&mut self, _: u32) {}
            fn hear(&mut self, _: &[u8]) {}
            fn gone(&mut self, _: Option<io::Error>) {}
            fn stalled(&mut self) {}
            fn refused(&mut self) {}
            fn patience(&self) -> Duration {
                Duration::ZERO
            }
            fn wrote(&mut self, count: usize) {
                assert_eq!(count, 5, "plain bytes are told of");
            }
            fn next(&mut self) -> Next {
                self.0.next()
            }
            fn leave(self: Box<Self>, _: Socket) {}
        }
        let mute = || Box::new(Mute(Rash { is_gone: false }));
        let mut cover = Secured::new(mute(), Cover::read(secrets(), b"\0\0\0").unwrap());
        let Next::Say(Words::Own(first)) = cover.next() else { panic!("it has something to say") };
        let incoming = record(b"half of this has come");
        cover.hear(&incoming[..20]);
        let work = cover.cover.work.as_mut().unwrap();
        (work.answer, work.sealed) = (first[3..].to_vec(), 0);
        let papers = cover.cover.papers();
        let mut there = Secured::new(mute(), Cover::read(papers.secrets, &papers.sealed).unwrap());
        assert!(matches!(there.next(), Next::Say(Words::Own(rest)) if *rest == first[3..]));
        there.wrote(first.len() - 3);
        there.hear(&incoming[20..]);
        assert!(!there.is_lost() && there.cover.work.is_none());
        // The next record has the next number.
        assert!(matches!(there.next(), Next::Say(Words::Own(next)) if next.len() == first.len() && next != first));
    }
}
