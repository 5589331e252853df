//! A thread's connections on their way to another process, or to other threads: those that are parked from one end of the table to the
//! other, those with tasks as they come, a batch at a time. From: `hand_over`, `within`. What is not answered for goes on here.

use super::line::ThreadLine;
use crate::connection::parked;
use crate::master::channel::Handle;
use crate::worker;
use crate::worker::departure::{self, Stay, To, Traveller};
use heir::{Batch, Frame, MOST_RECORDS, Reader, Secret};
use runtime::timer::sleep;
use std::collections::HashSet;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use zeroize::Zeroize;

/// Turns of the loop without anybody who wants to go: those with tasks have all had theirs.
const QUIET_TURNS: usize = 3;
/// No descriptor is free: somebody gives one back in this time.
const NO_DESCRIPTOR: Duration = Duration::from_millis(1);

/// Goes on as long as the lines do. `gone` counts those that went; `done` is called when all have that can, or none does.
pub(super) async fn run(lines: Vec<OwnedFd>, to: To, gone: Arc<AtomicU64>, done: Box<dyn FnOnce() + Send>) {
    let links: io::Result<Vec<ThreadLine>> = lines.into_iter().map(ThreadLine::new).collect();
    let Ok(links) = links else { return done() };
    departure::open(to);
    let mut way = Way { links, next: 0, told: HashSet::new(), gone, done: Some(done) };
    // Whatever ended it, nobody is there any more.
    let _ = way.run().await;
    for traveller in departure::close() {
        (traveller.stay)(traveller.files, Stay::Unanswered);
    }
    way.done.into_iter().for_each(|done| done());
    worker::set_left(false);
}

/// Channels are over there: who hears them here, and cannot go, is told so.
pub(super) fn tell_all() {
    worker::set_left(true);
    runtime::wake_all();
    parked::ask_all();
}

struct Way {
    /// To threads of the other process.
    links: Vec<ThreadLine>,
    next: usize,
    /// Generations whose names were said, and on which link.
    told: HashSet<(usize, u64)>,
    gone: Arc<AtomicU64>,
    done: Option<Box<dyn FnOnce() + Send>>,
}

impl Way {
    async fn run(&mut self) -> io::Result<()> {
        let (mut from, mut quiet) = (Some(0), 0);
        loop {
            let mut batch = departure::take(MOST_RECORDS);
            let room = MOST_RECORDS - batch.len();
            if let Some(at) = from.as_mut().filter(|_| room > 0) {
                match parked::depart(at, room) {
                    Some(more) => batch.extend(more),
                    None => from = None,
                }
            }
            if !batch.is_empty() {
                quiet = 0;
                departure::set_on_the_way(true);
                let sent = self.send(batch).await;
                departure::set_on_the_way(false);
                sent?;
            } else if from.is_some() {
                sleep(NO_DESCRIPTOR).await;
            } else if quiet < QUIET_TURNS {
                quiet += 1;
            } else {
                self.done.take().into_iter().for_each(|done| done());
                self.rest().await?;
            }
            runtime::yield_now().await;
        }
    }

    /// Waits until somebody else wants to go, or a line ends.
    async fn rest(&mut self) -> io::Result<()> {
        poll_fn(|_| {
            if departure::has_some() {
                return Poll::Ready(Ok(()));
            }
            for link in &mut self.links {
                if let Poll::Ready(heard) = link.poll_hear() {
                    // Nothing is said unasked.
                    return Poll::Ready(Err(heard.err().unwrap_or(io::ErrorKind::InvalidData.into())));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Has a batch go. Those that were not answered for when the line ends stay.
    async fn send(&mut self, batch: Vec<Traveller>) -> io::Result<()> {
        self.next = (self.next + 1) % self.links.len();
        let (mut frame, mut files, mut others) = (Batch::default(), Vec::new(), Vec::new());
        for traveller in batch {
            let Traveller { papers, files: own, stay } = traveller;
            let own: Vec<Arc<OwnedFd>> = own.into_iter().map(Arc::new).collect();
            let sealed = papers.cover.as_ref().map_or(&[][..], |cover| &cover.sealed);
            frame.push(papers.kind, own.len() as u8, &papers.bytes, sealed);
            files.extend(own.iter().map(|fd| fd.clone() as Handle));
            others.push((own, stay, papers));
        }
        let all: Vec<_> = others.iter().map(|(own, _, papers)| (papers, own.len())).collect();
        let answer = self.ask(frame.done(), files, &all).await;
        let taken = answer.as_ref().map_or(&[][..], Vec::as_slice);
        for (number, (own, stay, _)) in others.into_iter().enumerate() {
            let why = match taken.get(number) {
                Some(true) => {
                    self.gone.fetch_add(1, Relaxed);
                    continue;
                }
                Some(false) => Stay::Refused,
                None => Stay::Unanswered,
            };
            stay(own.into_iter().filter_map(Arc::into_inner).collect(), why);
        }
        answer.map(drop)
    }

    /// Has an answer for papers with their descriptors.
    async fn ask(
        &mut self,
        frame: Vec<u8>,
        files: Vec<Handle>,
        all: &[(&departure::Papers, usize)],
    ) -> io::Result<Vec<bool>> {
        let (number, told) = (self.next, &mut self.told);
        let link = &mut self.links[number];
        for (papers, _) in all {
            let generation = Reader::new(&papers.bytes).number().unwrap_or(0);
            if told.insert((number, generation)) {
                link.say(&papers.names.table(), Vec::new()).await?;
            }
        }
        let secrets = all.iter().flat_map(|(papers, files)| papers.secrets().into_iter().take(*files));
        let secrets: Vec<Secret<'_>> = secrets.map(Secret).collect();
        if secrets.iter().any(|secret| !secret.0.is_empty()) {
            let mut keys = Frame::Keys(secrets).write();
            let said = link.say_secret(&keys).await;
            keys[..].zeroize();
            said?;
        }
        link.say(&frame, files).await?;
        let heard = link.hear().await?;
        match Frame::read(&heard.bytes) {
            Ok(Frame::Answer(taken)) => Ok(taken),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(e) => Err(io::Error::other(e.to_string())),
        }
    }
}
