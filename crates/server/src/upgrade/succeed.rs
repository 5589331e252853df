//! The worker that goes on with what another had: its control thread's part. From: `serve`, when its threads are there. To: `arrive`, on
//! each of its threads.

use super::arrive;
use super::hand_over::{accept, hear};
use super::line::Line;
use super::zones;
use crate::connection;
use crate::log::error::Level;
use crate::log::process_line;
use crate::modules::nchan::succession::{self, Hearing};
use crate::worker;
use crate::worker::order::Order;
use heir::Frame;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use zeroize::Zeroize;

/// Connections wait to be accepted for so long at most: until then channels and zones have to be here.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where threads take orders.
type Threads = Vec<UnboundedSender<Order>>;

/// The line to the process before.
pub struct Succession {
    line: Option<Line>,
}

impl Succession {
    /// This process goes as well. The one before, if it is there still, is in charge again.
    pub fn end(&self) {
        self.line.iter().for_each(Line::end);
    }
}

/// Says that this worker is ready, and takes what comes. Its threads accept when channels and zones are here, or that takes too long.
pub fn succeed(line: OwnedFd, threads: Threads) -> Succession {
    let line = Line::new(line);
    let again = line.again().ok();
    let begin = threads.clone();
    let work = move || {
        let mut heir = Heir { line, threads, accepts: false };
        if let Err(e) = heir.run()
            && e.kind() != io::ErrorKind::UnexpectedEof
        {
            let text = crate::log::os_error(&e);
            process_line(Level::Error, format_args!("what another process had could not be taken over ({text})"));
        }
        heir.accept();
        succession::expect_no_more();
    };
    if std::thread::Builder::new().name("succeed".to_owned()).spawn(work).is_err() {
        worker::begin_at_rest(false);
        accept(&begin, true);
    }
    Succession { line: again }
}

struct Heir {
    line: Line,
    threads: Threads,
    accepts: bool,
}

impl Heir {
    fn accept(&mut self) {
        if !std::mem::replace(&mut self.accepts, true) {
            worker::begin_at_rest(false);
            accept(&self.threads, true);
        }
    }

    /// Waits until groups in a Redis are heard, and says so: their clients come then.
    fn hear(&mut self, groups: Vec<Vec<u8>>) -> io::Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        if !hear(&self.threads, groups, Hearing::Begins) {
            let text = "Redis is slow to answer: clients of MQTT that come from the process before may miss messages by filters with wildcards";
            process_line(Level::Warn, format_args!("{text}"));
        }
        self.line.say(&Frame::Ready(self.threads.len() as u64).write(), Vec::new())
    }

    fn run(&mut self) -> io::Result<()> {
        succession::expect();
        self.line.say(&Frame::Ready(self.threads.len() as u64).write(), Vec::new())?;
        let mut end = Some(Instant::now() + PATIENCE);
        let mut shared = Vec::new();
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let Some(mut heard) = self.line.hear(left)? else {
                end = None;
                if self.accepts {
                    succession::expect_no_more();
                    continue;
                }
                process_line(
                    Level::Warn,
                    format_args!("the process before is slow to say what it has: not waiting for it"),
                );
                self.accept();
                continue;
            };
            match Frame::read(&heard.bytes).map_err(|e| io::Error::other(e.to_string()))? {
                Frame::Channels(all) => all.iter().for_each(succession::settle),
                Frame::Zone(kind, name, rows) => {
                    let is_secret = zones::is_secret(kind, name);
                    if kind == succession::FILTERS
                        && !self.accepts
                        && succession::is_shared(name)
                        && shared.last().is_none_or(|g| g != name)
                    {
                        shared.push(name.to_vec());
                    }
                    zones::settle(kind, name, rows);
                    if is_secret {
                        heard.bytes[..].zeroize();
                    }
                }
                Frame::Settled => {
                    self.hear(std::mem::take(&mut shared))?;
                    self.accept();
                    end = Some(Instant::now() + PATIENCE);
                }
                Frame::Late(late) => succession::hear(&late),
                Frame::Lines(next) => {
                    connection::begin::number_from(next);
                    for (number, line) in heard.fds.into_iter().enumerate() {
                        let work = move || {
                            runtime::spawn(arrive::run(line));
                        };
                        let _ = self.threads[number % self.threads.len()].send(Order::Do(Box::new(work)));
                    }
                }
                Frame::Ready(_)
                | Frame::Table(_)
                | Frame::Batch(_)
                | Frame::Answer(_)
                | Frame::Keys(_)
                | Frame::Dictionary(..) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
    }
}
