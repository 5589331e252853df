//! A thread's connections on their way to another process, or to other threads: those that are parked from the end of the table to its
//! beginning, those with tasks as they come, a batch at a time. From: `hand_over`, `within`. What is not answered for goes on here.

use super::line::ThreadLine;
use crate::connection::parked;
use crate::worker;
use crate::worker::departure::{self, Papers, Stay, To, Traveller};
use heir::{Batch, Frame, MOST_RECORDS, Reader, Secret};
use runtime::timer::sleep;
use std::collections::{BTreeSet, VecDeque};
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
    generations: BTreeSet<u64>,
    /// Dictionaries that it knows.
    dictionaries: Vec<u8>,
    /// Nothing that is heard on it is of use any more: which answer is whose would not be known.
    is_over: bool,
}

/// What is done with one that stays.
type Stays = Box<dyn FnOnce(Vec<OwnedFd>, Stay)>;

/// A batch that is not answered for yet.
struct Said {
    /// By this link.
    link: usize,
    /// It has left as a whole.
    is_whole: bool,
    /// What becomes of each, and how many descriptors it has.
    all: Vec<(Stays, usize)>,
    /// The descriptors of all of them.
    files: Arc<Vec<OwnedFd>>,
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
        let (count, mut frame) = (batch.len(), Batch::default());
        let (mut files, mut all, mut papers_of_all) =
            (Vec::with_capacity(count), Vec::with_capacity(count), Vec::with_capacity(count));
        for Traveller { papers, files: own, stay } in batch {
            let sealed = papers.cover.as_ref().map_or(&[][..], |cover| &cover.sealed);
            frame.push(papers.kind, own.len() as u8, &papers.bytes, sealed);
            papers_of_all.push((papers, own.len()));
            all.push((stay, own.len()));
            files.extend(own);
        }
        let files = Arc::new(files);
        self.said.push_back(Said { link: self.next, is_whole: false, all, files: files.clone() });
        let link = &mut self.links[self.next];
        link.tell_terms(&papers_of_all).await?;
        link.line.say_with(&frame.done(), &files).await?;
        self.said.iter_mut().for_each(|said| said.is_whole = true);
        Ok(())
    }

    /// Hears what became of the first batch under way. Those that were not answered for when the line ends stay.
    async fn hear(&mut self) -> io::Result<()> {
        let Some(Said { link, is_whole, all, files }) = self.said.pop_front() else { return Ok(()) };
        let answer = match is_whole {
            true => self.links[link].hear_answer().await,
            false => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let taken = answer.as_ref().map_or(&[][..], Vec::as_slice);
        let mut files = Arc::into_inner(files).expect("what was said, or forgotten, has no other owner").into_iter();
        let mut gone = Vec::with_capacity(files.len());
        for (number, (stay, count)) in all.into_iter().enumerate() {
            let own = files.by_ref().take(count);
            match taken.get(number) {
                Some(true) => {
                    gone.extend(own);
                    self.gone.fetch_add(1, Relaxed);
                }
                Some(false) => stay(own.collect(), Stay::Refused),
                None => stay(own.collect(), Stay::Unanswered),
            }
        }
        rings::close_all(gone);
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
        Link { line, generations: BTreeSet::new(), dictionaries: Vec::new(), is_over: false }
    }

    /// Says what papers mean by their numbers, and what their connections are encrypted with.
    async fn tell_terms(&mut self, all: &[(Papers, usize)]) -> io::Result<()> {
        for (papers, _) in all {
            let generation = Reader::new(&papers.bytes).number().unwrap_or(0);
            if self.generations.insert(generation) {
                self.line.say(&papers.names.table()).await?;
            }
            if let Some(dictionary) = &papers.dictionary
                && !self.dictionaries.contains(&dictionary.number)
            {
                self.dictionaries.push(dictionary.number);
                self.line.say(&Frame::Dictionary(dictionary.number, &dictionary.text).write()).await?;
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
        if self.is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let heard = self.line.hear().await;
        let answer = heard.and_then(|heard| match Frame::read(&heard.bytes) {
            Ok(Frame::Answer(taken)) => Ok(taken),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(e) => Err(io::Error::other(e.to_string())),
        });
        self.is_over |= answer.is_err();
        answer
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

#[cfg(test)]
mod tests {
    use super::super::line::Line;
    use super::*;
    use crate::worker::departure::Names;
    use heir::{Kind, Table};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::cell::RefCell;
    use std::ops::Range;
    use std::rc::Rc;

    struct Nothing;

    impl Names for Nothing {
        fn generation(&self) -> u64 {
            1
        }

        fn table(&self) -> Vec<u8> {
            Frame::Table(Table::default()).write()
        }
    }

    /// Who has stayed, with how many descriptors, and why.
    type Stayed = Rc<RefCell<Vec<(usize, usize, Stay)>>>;

    fn batch(numbers: Range<usize>, stayed: &Stayed) -> Vec<Traveller> {
        let traveller = |number: usize| {
            let stayed = stayed.clone();
            let files = (0..=number % 2).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
            let stay = move |files: Vec<OwnedFd>, why| stayed.borrow_mut().push((number, files.len(), why));
            Traveller { papers: Papers::new(Kind::Idle, vec![1], Rc::new(Nothing)), files, stay: Box::new(stay) }
        };
        numbers.map(traveller).collect()
    }

    /// What is left of batches that were said by a line: the answer to the first is heard.
    fn left_of_batches(answer: &'static [u8]) -> (u64, Vec<(usize, usize, Stay)>) {
        let (stayed, gone) = (Stayed::default(), Arc::new(AtomicU64::new(0)));
        let (all, count) = (stayed.clone(), gone.clone());
        let work = async move {
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let (ours, theirs) = pair.unwrap();
            let mut theirs = Line::new(theirs);
            let links = vec![Link::new(ThreadLine::new(ours).unwrap())];
            let mut way = Way { links, next: 0, said: VecDeque::new(), gone: count, done: None };
            way.send(batch(0..3, &all)).await.unwrap();
            way.send(batch(3..5, &all)).await.unwrap();
            theirs.say(answer, Vec::new()).unwrap();
            theirs.say(answer, Vec::new()).unwrap();
            drop(theirs);
            way.send(batch(5..7, &all)).await.unwrap_err();
            way.hear_out().await;
            all.borrow_mut().push((7, 0, Stay::Untold));
        };
        runtime::run(runtime::Hooks::NONE, work).unwrap();
        let mut stayed = stayed.take();
        assert_eq!(stayed.pop(), Some((7, 0, Stay::Untold)), "all of it was done");
        (gone.load(Relaxed), stayed)
    }

    fn unanswered(number: usize) -> (usize, usize, Stay) {
        (number, number % 2 + 1, Stay::Unanswered)
    }

    #[test]
    fn what_was_not_answered_for_stays_with_its_descriptors() {
        let refused = |number| (number, number % 2 + 1, Stay::Refused);
        let stayed = vec![refused(1), unanswered(2), refused(4), unanswered(5), unanswered(6)];
        assert_eq!(left_of_batches(&[heir::VERSION, 9, 2, 1, 0]), (2, stayed));
    }

    #[test]
    fn behind_what_is_no_answer_there_is_none() {
        assert_eq!(left_of_batches(&[heir::VERSION, 4]), (0, (0..7).map(unanswered).collect()));
    }
}
