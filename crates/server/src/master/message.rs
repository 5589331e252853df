//! What master and worker say to each other, as bytes. Between them is `channel`. Reads only within bounds.

use super::Terms;
use super::balancer::Order;
use super::bans::{Ban, BanSet};
use super::channel::{Frame, Handle};
use crate::listen::socket::{ListenSocket, Listener};
use crate::log::file::LogFile;
use crate::process_settings::{ListenAddress, SocketKind};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const RELOAD: u8 = 1;
const REOPEN: u8 = 2;
const QUIT: u8 = 3;
const TERMINATE: u8 = 4;
const APPLIED: u8 = 5;
const FAILED: u8 = 6;
const DONE: u8 = 7;
const REPORT: u8 = 8;
const REALS: u8 = 9;
const SETUP: u8 = 10;
const DRAIN: u8 = 11;
const CLEAR: u8 = 12;
const LEAVE: u8 = 13;
const TRIAL: u8 = 14;
const END_TRIAL: u8 = 15;
const TRIED: u8 = 16;
const BAN: u8 = 17;
const HAND_OVER: u8 = 18;
const HANDED_OVER: u8 = 19;
const HANDING_OVER: u8 = 20;

/// What a worker process has open already, so that it is not sent again.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    pub(super) sockets: HashSet<u64>,
    pub(super) files: BTreeSet<PathBuf>,
}

impl Known {
    /// What a worker that has `listeners` and `files` knows.
    pub(super) fn of(listeners: &[Listener], files: &[Arc<LogFile>]) -> Known {
        Known {
            sockets: listeners.iter().flat_map(|l| &l.sockets).map(|socket| socket.id).collect(),
            files: files.iter().map(|file| file.path().to_owned()).collect(),
        }
    }
}

/// `QUIT` and `TERMINATE` have no content.
pub(super) fn quit() -> (Vec<u8>, Vec<Handle>) {
    (vec![QUIT], Vec::new())
}

/// See [`quit`].
pub(super) fn terminate() -> (Vec<u8>, Vec<Handle>) {
    (vec![TERMINATE], Vec::new())
}

/// Another process is about to go on with what this one has: `line` leads there.
pub(super) fn hand_over(line: Handle) -> (Vec<u8>, Vec<Handle>) {
    (vec![HAND_OVER], vec![line])
}

/// The canary is over.
pub(super) fn end_trial() -> (Vec<u8>, Vec<Handle>) {
    (vec![END_TRIAL], Vec::new())
}

/// A canary, with the log files that `known` lacks.
pub(super) fn trial(
    generation: u64,
    payload: &[u8],
    terms: Terms,
    files: &[Arc<LogFile>],
    known: &Known,
) -> (Vec<u8>, Vec<Handle>) {
    let mut out = Writer { bytes: vec![TRIAL] };
    let mut fds: Vec<Handle> = Vec::new();
    out.number(generation);
    out.text(payload);
    [u64::from(terms.share), terms.minimum, terms.ms].into_iter().for_each(|n| out.number(n));
    out.files(files, known, &mut fds);
    (out.bytes, fds)
}

/// A new configuration, with the descriptors that `known` lacks.
pub(super) fn reload(
    generation: u64,
    payload: &[u8],
    listeners: &[Listener],
    files: &[Arc<LogFile>],
    known: &Known,
) -> (Vec<u8>, Vec<Handle>) {
    let mut out = Writer { bytes: vec![RELOAD] };
    let mut fds: Vec<Handle> = Vec::new();
    out.number(generation);
    out.text(payload);
    out.number(listeners.len() as u64);
    for listener in listeners {
        out.address(&listener.address);
        out.number(listener.kind as u64);
        out.number(listener.first as u64);
        out.number(listener.sockets.len() as u64);
        for socket in &listener.sockets {
            out.number(socket.id);
            if !known.sockets.contains(&socket.id) {
                out.number(1);
                fds.push(Arc::clone(&socket.fd) as Handle);
            } else {
                out.number(0);
            }
        }
    }
    out.files(files, known, &mut fds);
    (out.bytes, fds)
}

/// Log files opened anew.
pub(super) fn reopen(files: &[Arc<LogFile>]) -> (Vec<u8>, Vec<Handle>) {
    let mut out = Writer { bytes: vec![REOPEN] };
    out.number(files.len() as u64);
    files.iter().for_each(|file| out.text(file.path().as_os_str().as_bytes()));
    (out.bytes, files.iter().map(|file| Arc::clone(file) as Handle).collect())
}

/// What the kernel's balancer has done, for the worker.
pub(super) fn report(bytes: &[u8]) -> (Vec<u8>, Vec<Handle>) {
    ([&[REPORT], bytes].concat(), Vec::new())
}

/// To the process of the kernel's balancer: a configuration, and news of real servers. Opaque here.
pub(super) fn setup(bytes: &[u8]) -> Vec<u8> {
    [&[SETUP], bytes].concat()
}

/// See [`setup`].
pub(super) fn reals(bytes: &[u8]) -> Vec<u8> {
    [&[REALS], bytes].concat()
}

/// How the process of the kernel's balancer is to end.
pub(super) fn end(end: End) -> Vec<u8> {
    let mut out = Writer { bytes: Vec::new() };
    match end {
        End::Leave => out.bytes.push(LEAVE),
        End::Clear => out.bytes.push(CLEAR),
        End::Drain(at_most) => {
            out.bytes.push(DRAIN);
            out.number(at_most.map_or(0, |time| (time.as_millis() as u64).max(1)));
        }
    }
    out.bytes
}

/// An end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Packets go on by what is pinned: another process is, or will be, there.
    Leave,
    /// Nothing is balanced any more.
    Clear,
    /// No flow begins any more, and nothing is balanced when the last one has ended, or after this time.
    Drain(Option<Duration>),
}

/// What the process of the kernel's balancer is told.
pub(super) fn read_to_balancer(frame: &Frame) -> Option<Order> {
    let mut input = Reader { bytes: &frame.bytes, fds: Vec::new().into_iter() };
    Some(match input.byte()? {
        SETUP => Order::Setup(input.bytes.to_vec()),
        REALS => Order::Reals(input.bytes.to_vec()),
        LEAVE => Order::Leave,
        CLEAR => Order::Clear,
        DRAIN => Order::Drain(Some(input.number()?).filter(|ms| *ms > 0).map(Duration::from_millis)),
        _ => return None,
    })
}

/// What the worker receives.
#[derive(Debug)]
pub(super) enum ToWorker {
    Report(Vec<u8>),
    Reload(ReloadMessage),
    Reopen(Vec<(PathBuf, OwnedFd)>),
    Trial(TrialMessage),
    EndTrial,
    HandOver(OwnedFd),
    Quit,
    Terminate,
}

/// A new configuration.
#[derive(Debug)]
pub(super) struct ReloadMessage {
    pub(super) generation: u64,
    pub(super) payload: Vec<u8>,
    pub(super) listeners: Vec<Listener>,
    pub(super) files: Vec<(PathBuf, Option<OwnedFd>)>,
}

/// A canary.
#[derive(Debug)]
pub(super) struct TrialMessage {
    pub(super) generation: u64,
    pub(super) payload: Vec<u8>,
    pub(super) terms: Terms,
    pub(super) files: Vec<(PathBuf, Option<OwnedFd>)>,
}

/// A message could not be read; of the generation, if that far was read.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) generation: Option<u64>,
}

impl ToWorker {
    /// Reads a message. `current` are the listeners whose sockets are not sent again.
    pub(super) fn read(frame: Frame, current: &[Listener]) -> Result<ToWorker, Unreadable> {
        let mut generation = None;
        let mut input = Reader { bytes: &frame.bytes, fds: frame.fds.into_iter() };
        read_to_worker(&mut input, current, &mut generation).ok_or(Unreadable { generation })
    }
}

fn read_to_worker(input: &mut Reader<'_>, current: &[Listener], generation_read: &mut Option<u64>) -> Option<ToWorker> {
    Some(match input.byte()? {
        QUIT => ToWorker::Quit,
        TERMINATE => ToWorker::Terminate,
        REPORT => ToWorker::Report(input.bytes.to_vec()),
        END_TRIAL => ToWorker::EndTrial,
        HAND_OVER => ToWorker::HandOver(input.fds.next()?),
        TRIAL => {
            let generation = input.number()?;
            let payload = input.text()?.to_vec();
            let terms =
                Terms { share: u32::try_from(input.number()?).ok()?, minimum: input.number()?, ms: input.number()? };
            ToWorker::Trial(TrialMessage { generation, payload, terms, files: input.files()? })
        }
        REOPEN => {
            let mut files = Vec::new();
            for _ in 0..input.number()? {
                files.push((input.path()?, input.fds.next()?));
            }
            ToWorker::Reopen(files)
        }
        RELOAD => {
            let generation = input.number()?;
            *generation_read = Some(generation);
            let payload = input.text()?.to_vec();
            let listeners = read_listeners(input, current)?;
            let files = input.files()?;
            ToWorker::Reload(ReloadMessage { generation, payload, listeners, files })
        }
        _ => return None,
    })
}

fn read_listeners(input: &mut Reader<'_>, current: &[Listener]) -> Option<Vec<Listener>> {
    let open: BTreeMap<u64, &ListenSocket> =
        current.iter().flat_map(|l| &l.sockets).map(|socket| (socket.id, socket)).collect();
    let mut listeners = Vec::new();
    for _ in 0..input.number()? {
        let address = input.address()?;
        let kind = if input.number()? == SocketKind::Stream as u64 { SocketKind::Stream } else { SocketKind::Datagram };
        let first = input.number()? as usize;
        let mut sockets = Vec::new();
        for _ in 0..input.number()? {
            let id = input.number()?;
            let new = input.number()? == 1;
            sockets.push(if new {
                ListenSocket { id, fd: Arc::new(input.fds.next()?) }
            } else {
                (*open.get(&id)?).clone()
            });
        }
        // What another process reads is the master's to hold.
        listeners.push(Listener { address, kind, sockets, first, held: Vec::new() });
    }
    Some(listeners)
}

/// What the master receives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToMaster {
    /// All threads run this configuration.
    Applied(u64),
    /// The configuration could not be taken; the one before runs on.
    Failed(u64, String),
    /// Nothing of this configuration is in use any more.
    Done(u64),
    /// The worker: real servers of the kernel's balancer have changed. Opaque here.
    Reals(Vec<u8>),
    /// The balancer's process: what was done. Opaque here.
    Report(Vec<u8>),
    /// How a canary goes, or how it ended.
    Tried(u64, Tried, String),
    /// An address for a set of the kernel.
    Ban(Ban),
    /// Another process goes on with what this worker had: so many connections.
    HandedOver(u64),
    /// It goes on with so many, and more are on their way.
    HandingOver(u64),
}

/// What is said of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It serves.
    Goes,
    /// It is worse, or could not be judged: the worker has taken it back.
    Over,
    /// It is not worse, and is to be kept.
    Good,
}

impl ToMaster {
    /// As bytes.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::new() };
        match self {
            ToMaster::Applied(generation) => {
                out.bytes.push(APPLIED);
                out.number(*generation);
            }
            ToMaster::Failed(generation, text) => {
                out.bytes.push(FAILED);
                out.number(*generation);
                // More than a packet would not fit, more than a log line would not be seen.
                out.text(&text.as_bytes()[..text.len().min(crate::log::error::MAX_LINE)]);
            }
            ToMaster::Tried(generation, tried, text) => {
                out.bytes.push(TRIED);
                out.number(*generation);
                out.number(*tried as u64);
                out.text(&text.as_bytes()[..text.len().min(crate::log::error::MAX_LINE)]);
            }
            ToMaster::HandedOver(count) => {
                out.bytes.push(HANDED_OVER);
                out.number(*count);
            }
            ToMaster::HandingOver(count) => {
                out.bytes.push(HANDING_OVER);
                out.number(*count);
            }
            ToMaster::Done(generation) => {
                out.bytes.push(DONE);
                out.number(*generation);
            }
            ToMaster::Reals(bytes) => {
                out.bytes.push(REALS);
                out.bytes.extend_from_slice(bytes);
            }
            ToMaster::Report(bytes) => {
                out.bytes.push(REPORT);
                out.bytes.extend_from_slice(bytes);
            }
            ToMaster::Ban(ban) => {
                out.bytes.push(BAN);
                out.number(ban.set.family.into());
                out.text(ban.set.table.as_bytes());
                out.text(ban.set.name.as_bytes());
                out.text(ban.address.to_string().as_bytes());
                out.number(ban.ms);
            }
        }
        out.bytes
    }

    /// Reads what [`ToMaster::write`] wrote.
    pub(super) fn read(frame: &Frame) -> Option<ToMaster> {
        let mut input = Reader { bytes: &frame.bytes, fds: Vec::new().into_iter() };
        Some(match input.byte()? {
            APPLIED => ToMaster::Applied(input.number()?),
            FAILED => ToMaster::Failed(input.number()?, String::from_utf8_lossy(input.text()?).into_owned()),
            DONE => ToMaster::Done(input.number()?),
            HANDED_OVER => ToMaster::HandedOver(input.number()?),
            HANDING_OVER => ToMaster::HandingOver(input.number()?),
            REALS => ToMaster::Reals(input.bytes.to_vec()),
            REPORT => ToMaster::Report(input.bytes.to_vec()),
            TRIED => {
                let generation = input.number()?;
                let tried = [Tried::Goes, Tried::Over, Tried::Good].get(input.number()? as usize).copied()?;
                ToMaster::Tried(generation, tried, String::from_utf8_lossy(input.text()?).into_owned())
            }
            BAN => {
                let family = u8::try_from(input.number()?).ok()?;
                let (table, name) = (input.word()?.into(), input.word()?.into());
                let address = input.word()?.parse().ok()?;
                ToMaster::Ban(Ban { set: BanSet { family, table, name }, address, ms: input.number()? })
            }
            _ => return None,
        })
    }
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    fn files(&mut self, files: &[Arc<LogFile>], known: &Known, fds: &mut Vec<Handle>) {
        self.number(files.len() as u64);
        for file in files {
            self.text(file.path().as_os_str().as_bytes());
            let new = !known.files.contains(file.path());
            self.number(u64::from(new));
            if new {
                fds.push(Arc::clone(file) as Handle);
            }
        }
    }

    fn address(&mut self, address: &ListenAddress) {
        match address {
            ListenAddress::Inet(address) => {
                self.number(0);
                self.text(address.to_string().as_bytes());
            }
            ListenAddress::Unix(path) => {
                self.number(1);
                self.text(path.as_os_str().as_bytes());
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    fds: std::vec::IntoIter<OwnedFd>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let n = self.number()?;
        self.take(usize::try_from(n).ok()?)
    }

    fn files(&mut self) -> Option<Vec<(PathBuf, Option<OwnedFd>)>> {
        let mut files = Vec::new();
        for _ in 0..self.number()? {
            let path = self.path()?;
            let new = self.number()? == 1;
            files.push((path, if new { Some(self.fds.next()?) } else { None }));
        }
        Some(files)
    }

    fn word(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.text()?).ok()
    }

    fn path(&mut self) -> Option<PathBuf> {
        self.text().map(|text| Path::new(OsStr::from_bytes(text)).to_owned())
    }

    fn address(&mut self) -> Option<ListenAddress> {
        match self.number()? {
            0 => std::str::from_utf8(self.text()?).ok()?.parse().ok().map(ListenAddress::Inet),
            _ => self.path().map(ListenAddress::Unix),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::listen::socket::Listeners;
    use crate::master::channel::Channel;
    use crate::process_settings::ListenSpec;

    fn pass(message: (Vec<u8>, Vec<Handle>)) -> Frame {
        let (mut a, mut b) = Channel::pair().unwrap();
        a.queue(&message.0, message.1);
        a.flush().unwrap();
        b.receive().unwrap().unwrap()
    }

    #[test]
    fn a_reload_keeps_known_sockets_and_brings_new_ones() {
        let spec = ListenSpec::new(ListenAddress::Inet("127.0.0.1:0".parse().unwrap()));
        let listeners = Listeners::default().open(std::slice::from_ref(&spec), 1).unwrap().list;
        let null = Arc::new(LogFile::open(Path::new("/dev/null")).unwrap());
        let frame = pass(reload(7, b"conf", &listeners, &[Arc::clone(&null)], &Known::default()));
        assert_eq!(frame.fds.len(), 2);
        let ToWorker::Reload(first) = ToWorker::read(frame, &[]).unwrap() else { panic!() };
        assert_eq!((first.generation, first.payload.as_slice()), (7, &b"conf"[..]));
        assert_eq!(first.listeners[0].sockets[0].id, listeners[0].sockets[0].id);
        assert!(first.files[0].1.is_some());

        let known = Known::of(&listeners, &[Arc::clone(&null)]);
        let frame = pass(reload(8, b"conf", &listeners, &[null], &known));
        assert!(frame.fds.is_empty());
        let ToWorker::Reload(second) = ToWorker::read(frame, &first.listeners).unwrap() else { panic!() };
        assert!(Arc::ptr_eq(&second.listeners[0].sockets[0].fd, &first.listeners[0].sockets[0].fd));
    }

    #[test]
    fn a_reload_without_its_descriptors_is_refused() {
        let spec = ListenSpec::new(ListenAddress::Inet("127.0.0.1:0".parse().unwrap()));
        let listeners = Listeners::default().open(std::slice::from_ref(&spec), 1).unwrap().list;
        let mut frame = pass(reload(7, b"conf", &listeners, &[], &Known::default()));
        frame.fds.clear();
        assert_eq!(ToWorker::read(frame, &[]).unwrap_err().generation, Some(7));
    }

    #[test]
    fn answers_are_read_as_written() {
        let long = ToMaster::Reals(vec![7; 100_000]);
        let tried = ToMaster::Tried(5, Tried::Over, "worse".to_owned());
        let done = ToMaster::Done(u64::MAX);
        let set = BanSet { family: 2, table: "t".into(), name: "s".into() };
        let ban = ToMaster::Ban(Ban { set, address: "2001:db8::1".parse().unwrap(), ms: 5 });
        for answer in [
            ToMaster::Applied(3),
            ToMaster::HandedOver(8),
            ToMaster::HandingOver(9),
            ToMaster::Failed(4, "no".to_owned()),
            done,
            long,
            tried,
            ban,
        ] {
            let frame = Frame { bytes: answer.write(), fds: Vec::new() };
            assert_eq!(ToMaster::read(&frame), Some(answer));
        }
    }
}
