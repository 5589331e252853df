//! A thread's connections on their way to another process, or to other threads: those that are parked from the end of the table to its
//! beginning, those with tasks as they come, a batch at a time. From: `hand_over`, `within`. What is not answered for goes on here.

use super::line::ThreadLine;
use crate::connection::parked;
use crate::master::channel::Handle;
use crate::worker;
use crate::worker::departure::{self, Papers, Stay, To, Traveller};
use heir::{Batch, Frame, MOST_RECORDS, Reader, Secret};
use runtime::timer::sleep;
use std::collections::VecDeque;
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
/// Batches of a thread that are under way at most: the other side works on one while the next is made here.
const AHEAD: usize = 3;
/// Those that are under way have no more than this part of the descriptors: the kernel counts them against the user's limit, too.
const SHARE: u64 = 4;

/// Goes on as long as the lines do. `gone` counts those that went; `done` is called when all have that can, or none does.
pub(super) async fn run(lines: Vec<OwnedFd>, to: To, gone: Arc<AtomicU64>, done: Box<dyn FnOnce() + Send>) {
    let links: io::Result<Vec<ThreadLine>> = lines.into_iter().map(ThreadLine::new).collect();
    let Ok(links) = links else { return done() };
    departure::open(to);
    let links = links.into_iter().map(Link::new).collect();
    let mut way = Way { links, next: 0, said: VecDeque::new(), gone, done: Some(done) };
    // Whatever ended it, nobody is there any more.
    let _ = way.run().await;
    way.hear_out().await;
    departure::set_on_the_way(false);
    for traveller in departure::close() {
        (traveller.stay)(traveller.files, Stay::Unanswered);
    }
    way.done.into_iter().for_each(|done| done());
    worker::set_left(false);
}

/// How many batches may be under way, with as many descriptors as there are.
fn ahead() -> usize {
    let threads = worker::snapshot().process.threads.max(1) as u64;
    let batches = parked::descriptors() / SHARE / threads / MOST_RECORDS as u64;
    usize::try_from(batches).unwrap_or(AHEAD).clamp(1, AHEAD)
}

/// Channels are over there: who hears them here, and cannot go, is told so.
pub(super) fn tell_all() {
    worker::set_left(true);
    runtime::wake_all();
    parked::ask_all();
}

struct Way {
    /// To threads of the other process.
    links: Vec<Link>,
    next: usize,
    /// Batches under way, the first one first.
    said: VecDeque<Said>,
    gone: Arc<AtomicU64>,
    done: Option<Box<dyn FnOnce() + Send>>,
}

/// A line, and what was said on it once for all.
struct Link {
    line: ThreadLine,
    /// Configurations whose names the other side knows.
    generations: Vec<u64>,
    /// Dictionaries that it knows.
    dictionaries: Vec<u8>,
}

/// A batch that is not answered for yet.
struct Said {
    /// By this link.
    link: usize,
    /// It has left as a whole.
    is_whole: bool,
    all: Vec<(Vec<Arc<OwnedFd>>, Box<dyn FnOnce(Vec<OwnedFd>, Stay)>)>,
}

impl Way {
    async fn run(&mut self) -> io::Result<()> {
        let (mut from, mut quiet, ahead) = (Some(u32::MAX), 0, ahead());
        loop {
            let batch = next_batch(&mut from);
            let is_empty = batch.is_empty();
            if !is_empty {
                quiet = 0;
                departure::set_on_the_way(true);
                self.send(batch).await?;
            }
            if self.said.len() >= ahead || is_empty && !self.said.is_empty() {
                self.hear().await?;
                departure::set_on_the_way(!self.said.is_empty());
            } else if is_empty && from.is_some() {
                sleep(NO_DESCRIPTOR).await;
            } else if is_empty && quiet < QUIET_TURNS {
                quiet += 1;
            } else if is_empty {
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
                if let Poll::Ready(heard) = link.line.poll_hear() {
                    // Nothing is said unasked.
                    return Poll::Ready(Err(heard.err().unwrap_or(io::ErrorKind::InvalidData.into())));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Has a batch go, by the next link.
    async fn send(&mut self, batch: Vec<Traveller>) -> io::Result<()> {
        self.next = (self.next + 1) % self.links.len();
        let (mut frame, mut files, mut all) = (Batch::default(), Vec::new(), Vec::with_capacity(batch.len()));
        let mut papers_of_all = Vec::with_capacity(batch.len());
        for traveller in batch {
            let Traveller { papers, files: own, stay } = traveller;
            let own: Vec<Arc<OwnedFd>> = own.into_iter().map(Arc::new).collect();
            let sealed = papers.cover.as_ref().map_or(&[][..], |cover| &cover.sealed);
            frame.push(papers.kind, own.len() as u8, &papers.bytes, sealed);
            files.extend(own.iter().map(|fd| fd.clone() as Handle));
            papers_of_all.push((papers, own.len()));
            all.push((own, stay));
        }
        self.said.push_back(Said { link: self.next, is_whole: false, all });
        let link = &mut self.links[self.next];
        link.tell_terms(&papers_of_all).await?;
        link.line.say(&frame.done(), files).await?;
        self.said.iter_mut().for_each(|said| said.is_whole = true);
        Ok(())
    }

    /// Hears what became of the first batch under way. Those that were not answered for when the line ends stay.
    async fn hear(&mut self) -> io::Result<()> {
        let Some(Said { link, is_whole, all }) = self.said.pop_front() else { return Ok(()) };
        let answer = match is_whole {
            true => self.links[link].hear_answer().await,
            false => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let taken = answer.as_ref().map_or(&[][..], Vec::as_slice);
        for (number, (own, stay)) in all.into_iter().enumerate() {
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

    /// A line has ended: what was said on it, or on others, may have been answered for all the same.
    async fn hear_out(&mut self) {
        while !self.said.is_empty() {
            let _ = self.hear().await;
        }
    }
}

impl Link {
    fn new(line: ThreadLine) -> Link {
        Link { line, generations: Vec::new(), dictionaries: Vec::new() }
    }

    /// Says what papers mean by their numbers, and what their connections are encrypted with.
    async fn tell_terms(&mut self, all: &[(Papers, usize)]) -> io::Result<()> {
        for (papers, _) in all {
            let generation = Reader::new(&papers.bytes).number().unwrap_or(0);
            if !self.generations.contains(&generation) {
                self.generations.push(generation);
                self.line.say(&papers.names.table(), Vec::new()).await?;
            }
            if let Some(dictionary) = &papers.dictionary
                && !self.dictionaries.contains(&dictionary.number)
            {
                self.dictionaries.push(dictionary.number);
                self.line.say(&Frame::Dictionary(dictionary.number, &dictionary.text).write(), Vec::new()).await?;
            }
        }
        let secrets = all.iter().flat_map(|(papers, files)| papers.secrets().into_iter().take(*files));
        let secrets: Vec<Secret<'_>> = secrets.map(Secret).collect();
        if secrets.iter().any(|secret| !secret.0.is_empty()) {
            let mut keys = Frame::Keys(secrets).write();
            let said = self.line.say_secret(&keys).await;
            keys[..].zeroize();
            said?;
        }
        Ok(())
    }

    /// Which of a batch the other side goes on with.
    async fn hear_answer(&mut self) -> io::Result<Vec<bool>> {
        let heard = self.line.hear().await?;
        match Frame::read(&heard.bytes) {
            Ok(Frame::Answer(taken)) => Ok(taken),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(e) => Err(io::Error::other(e.to_string())),
        }
    }
}

/// Those that go next: first who has asked to, then who is parked. `from`: parked ones have places before this one; none, when all have been asked.
fn next_batch(from: &mut Option<u32>) -> Vec<Traveller> {
    let mut batch = departure::take(MOST_RECORDS);
    let room = MOST_RECORDS - batch.len();
    if let Some(at) = from.as_mut().filter(|_| room > 0) {
        match parked::depart(at, room) {
            Some(more) => batch.extend(more),
            None => *from = None,
        }
    }
    batch
}
