//! Server side includes (nginx's `ngx_http_ssi_filter_module`): the directives, and the filter that sends the text between
//! commands. Commands are found by `ssi_parse` and done by `ssi_commands`; includes run in `request::include`.

use super::ignored;
use super::ssi_commands::{self, Outcome};
use super::ssi_date;
use super::ssi_parse::{Command, Event, Parser};
use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::variables::Builtin;
use crate::config::{Directive, http};
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Held, Rest};
use crate::request::include::Include;
use crate::request::respond::Filtered;
use crate::request::{Request, Text};
use crate::{log_error, merged_values};
use runtime::clock;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("ssi", |s, n| setters::flag(&mut s.level.conf.ssi.ssi, n)),
    http("ssi_silent_errors", |s, n| setters::flag(&mut s.level.conf.ssi.ssi_silent_errors, n)),
    http("ssi_last_modified", |s, n| setters::flag(&mut s.level.conf.ssi.ssi_last_modified, n)),
    http("ssi_value_length", |s, n| setters::size(&mut s.level.conf.ssi.ssi_value_length, n)),
    http("ssi_types", |s, n| TypeSet::set(&mut s.level.conf.ssi.ssi_types, s.build, n, "text/html")),
    // They tune nginx's buffers: text is never copied here where it stands alone.
    http("ssi_ignore_recycled_buffers", ignored::any),
    http("ssi_min_file_chunk", ignored::size),
];

/// What the module knows.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "date_local", evaluate: |r| date(r, false), volatile: true, assign: None },
    Builtin { name: "date_gmt", evaluate: |r| date(r, true), volatile: true, assign: None },
];

const ERROR: &[u8] = b"[an error occurred while processing the directive]";
const TIME_FORMAT: &[u8] = b"%A, %d-%b-%Y %H:%M:%S %Z";

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether answers are looked through.
        ssi: bool = false,
        /// Commands that fail say nothing.
        ssi_silent_errors: bool = false,
        /// `Last-Modified` stays.
        ssi_last_modified: bool = false,
        /// How long a parameter's value may be.
        ssi_value_length: u64 = 255,
        /// The types of answers that are looked through.
        ssi_types: TypeSet = TypeSet::of(&["text/html"]),
    }
}

/// What one request keeps for itself.
#[derive(Debug, Default)]
pub struct Context {
    /// `config timefmt`
    pub time_format: Option<Rc<[u8]>>,
}

/// A `block` by its name.
type Block = (Box<[u8]>, Rc<Vec<u8>>);

/// What all requests for one page share.
#[derive(Debug, Default)]
pub struct Shared {
    variables: Vec<(Box<[u8]>, Vec<u8>)>,
    /// `block`s, by name.
    pub blocks: Vec<Block>,
    /// The groups of the last expression that matched, the whole match first.
    pub captures: Vec<Vec<u8>>,
}

impl Shared {
    /// A variable's value; names are in lower case.
    pub fn variable(&self, name: &[u8]) -> Option<&[u8]> {
        if let [digit @ b'0'..=b'9', ..] = name
            && name.len() == 1
            && let Some(group) = self.captures.get((digit - b'0') as usize)
        {
            return Some(group);
        }
        self.variables.iter().find(|(n, _)| **n == *name).map(|(_, v)| v.as_slice())
    }

    /// Bytes of all values.
    pub fn size(&self) -> usize {
        self.variables.iter().map(|(_, value)| value.len()).sum()
    }

    /// Gives a variable a value.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) {
        match self.variables.iter_mut().find(|(n, _)| **n == *name) {
            Some((_, v)) => *v = value,
            None => self.variables.push((name.into(), value)),
        }
    }
}

/// How `echo` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    None,
    /// For a URI.
    Url,
    /// For a page.
    Entity,
}

/// Where an `if` stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conditional {
    /// Outside.
    #[default]
    None,
    /// After `if` or `elif`.
    If,
    /// After `else`.
    Else,
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let conf = &r.conf().ssi;
    if !*conf.ssi || r.answer.headers.content_length == Some(0) || !conf.ssi_types.fits(r) || r.is_body_unwanted() {
        return Filtered::Next;
    }
    let (keep_time, silent, length) =
        (*conf.ssi_last_modified, *conf.ssi_silent_errors, *conf.ssi_value_length as usize);
    if r.is_main() {
        r.clear_content_length();
        r.clear_accept_ranges();
        r.clear_validators(keep_time);
    }
    r.answer.in_memory = true;
    r.answer.deferred.get_or_insert_default();
    r.answer.body_filters.push(Box::new(Ssi {
        parser: Parser::new(length),
        state: State { silent, ..State::default() },
        waiting: false,
        stuffed: false,
        held: VecDeque::new(),
        room: Vec::new(),
    }));
    Filtered::Next
}

/// What commands work on.
pub struct State {
    /// What is ready to be sent.
    pub out: Vec<u8>,
    /// Text is sent.
    pub output: bool,
    /// A branch of the `if` has been sent.
    pub chosen: bool,
    /// Where the `if` stands.
    pub conditional: Conditional,
    /// Text goes to the last of the blocks.
    pub block: bool,
    /// Of the last `echo` that named one.
    pub encoding: Encoding,
    /// `config errmsg`
    pub error_message: Vec<u8>,
    silent: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            out: Vec::new(),
            output: true,
            chosen: false,
            conditional: Conditional::None,
            block: false,
            encoding: Encoding::Entity,
            error_message: ERROR.to_vec(),
            silent: false,
        }
    }
}

impl State {
    /// Text, and commands that are text for now.
    pub fn text(&mut self, r: &mut Request, text: &[u8]) {
        if self.output {
            self.out.extend_from_slice(text);
        } else if self.block
            && let Some(shared) = &r.ctx.ssi_shared
            && let Some((_, block)) = shared.borrow_mut().blocks.last_mut()
        {
            Rc::make_mut(block).extend_from_slice(text);
        }
    }

    fn failed(&mut self) {
        if !self.silent {
            self.out.extend_from_slice(&self.error_message);
        }
    }
}

/// The body filter.
struct Ssi {
    parser: Parser,
    state: State,
    /// For an include whose answer later commands may depend on.
    waiting: bool,
    /// For the client to take what has been made.
    stuffed: bool,
    /// What came meanwhile.
    held: VecDeque<Held>,
    /// Where pieces of files are read to.
    room: Vec<u8>,
}

impl Ssi {
    fn feed(&mut self, r: &mut Request, piece: &[u8], last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        if self.waiting || self.stuffed {
            self.held.push_back(Held::Piece(piece.to_vec(), last));
            return Ok(());
        }
        let mut at = 0;
        let opening = self.parser.held();
        loop {
            let start = at;
            match self.parser.next(piece, &mut at) {
                Event::More => break,
                Event::Text { held: 0, len }
                    if len == piece.len() && self.state.output && self.state.out.is_empty() =>
                {
                    return rest.push(r, Chunk::Bytes(piece), last);
                }
                Event::Text { held, len } => {
                    self.state.text(r, &opening[..held]);
                    self.state.text(r, &piece[start..start + len]);
                }
                Event::Error(text) => {
                    log_error!(r, Error, "{text}");
                    self.state.failed();
                }
                Event::Command(command) => {
                    self.command(r, command, rest)?;
                    if self.waiting {
                        self.held.push_front(Held::Piece(piece[at..].to_vec(), last));
                        return Ok(());
                    }
                    if self.state.out.len() as u64 >= PIECE && at < piece.len() {
                        // Values may be much longer than the commands that name them: the client first takes these.
                        self.stuffed = true;
                        self.held.push_front(Held::Piece(piece[at..].to_vec(), last));
                        return self.flush(r, false, rest);
                    }
                }
            }
        }
        if last {
            let held = self.parser.take_held();
            self.state.text(r, held);
        }
        self.flush(r, last, rest)
    }

    fn command(&mut self, r: &mut Request, command: Command, rest: &mut Rest<'_>) -> io::Result<()> {
        match ssi_commands::run(r, &mut self.state, command) {
            Outcome::Done => {}
            Outcome::Failed => self.state.failed(),
            Outcome::Include { include, wait } => {
                self.flush(r, false, rest)?;
                rest.include(r, include)?;
                self.waiting = wait;
            }
        }
        Ok(())
    }

    fn flush(&mut self, r: &mut Request, last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        if self.state.out.is_empty() && !last {
            return Ok(());
        }
        let result = rest.push(r, Chunk::Bytes(&self.state.out), last);
        self.state.out.clear();
        result
    }
}

impl BodyFilter for Ssi {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let mut room = std::mem::take(&mut self.room);
        let result = chunk.pieces(last, &mut room, |piece, last| self.feed(r, piece, last, &mut rest));
        self.room = room;
        result
    }

    fn include(&mut self, r: &mut Request, include: Include, mut rest: Rest<'_>) -> io::Result<()> {
        if self.waiting || self.stuffed {
            self.held.push_back(Held::Include(include));
            return Ok(());
        }
        let held = self.parser.take_held();
        self.state.text(r, held);
        self.flush(r, false, &mut rest)?;
        rest.include(r, include)
    }

    fn is_waiting(&self) -> bool {
        self.waiting
    }

    fn is_stuffed(&self) -> bool {
        self.stuffed
    }

    fn resume(&mut self, r: &mut Request, mut rest: Rest<'_>) -> io::Result<()> {
        (self.waiting, self.stuffed) = (false, false);
        while !self.waiting
            && !self.stuffed
            && let Some(held) = self.held.pop_front()
        {
            match held {
                Held::Piece(piece, last) => self.feed(r, &piece, last, &mut rest)?,
                Held::Include(include) => rest.include(r, include)?,
            }
        }
        Ok(())
    }
}

fn date(r: &mut Request, gmt: bool) -> Option<Text> {
    let format = r.ctx.ssi.time_format.clone();
    let format = format.as_deref().unwrap_or(TIME_FORMAT);
    let text = ssi_date::format(clock::wall_seconds(), gmt, format)?;
    Some(r.text(&text))
}
