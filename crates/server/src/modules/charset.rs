//! Names the charset of answers and recodes them (nginx's `ngx_http_charset_filter_module`). The tables themselves are in
//! `charset_tables`.

use super::charset_tables::{Decoder, Map, Recoding};
use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::log_error;
use crate::merged_values;
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use conf::{Node, Problem, Word};
use std::io;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("charset", |s, n| {
        let choice = if n.args[0] == "off" { Choice::Off } else { choice(s.build, &n.args[0]) };
        setters::value(&mut s.level.conf.charset.charset, n, choice)
    }),
    http("source_charset", |s, n| {
        let choice = choice(s.build, &n.args[0]);
        setters::value(&mut s.level.conf.charset.source_charset, n, choice)
    }),
    http("override_charset", |s, n| setters::flag(&mut s.level.conf.charset.override_charset, n)),
    http("charset_types", |s, n| TypeSet::set(&mut s.level.conf.charset.charset_types, s.build, n, DEFAULT_TYPES[0])),
    http("charset_map", map),
];

const DEFAULT_TYPES: &[&str] =
    &["text/html", "text/xml", "text/plain", "text/vnd.wap.wml", "application/javascript", "application/rss+xml"];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// What the answer is to be in.
        charset: Choice = Choice::Off,
        /// What it is in, where it does not say itself.
        source_charset: Choice = Choice::Off,
        /// An upstream's answer that names its charset is recoded as well.
        override_charset: bool = false,
        /// The types that have a charset.
        charset_types: TypeSet = TypeSet::of(DEFAULT_TYPES),
    }
}

/// A charset as a directive names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None.
    Off,
    /// By its index in [`Main`].
    Known(usize),
    /// The value of a variable.
    Variable(VariableId),
}

/// What there is once.
#[derive(Debug, Default)]
pub struct Main {
    names: Vec<Box<[u8]>>,
    maps: Vec<Pair>,
    /// Missing maps that have been reported.
    missing: Vec<(usize, usize)>,
}

/// Two charsets and the ways between them.
#[derive(Debug)]
struct Pair {
    from: usize,
    to: usize,
    there: Arc<Recoding>,
    back: Arc<Recoding>,
}

impl Main {
    fn find(&self, name: &[u8]) -> Option<usize> {
        self.names.iter().position(|n| n.eq_ignore_ascii_case(name))
    }

    fn add(&mut self, name: &[u8]) -> usize {
        self.find(name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        })
    }

    fn recoding(&self, from: usize, to: usize) -> Option<&Arc<Recoding>> {
        self.maps.iter().find_map(|p| match (p.from, p.to) {
            ends if ends == (from, to) => Some(&p.there),
            ends if ends == (to, from) => Some(&p.back),
            _ => None,
        })
    }
}

fn choice(build: &mut Build<'_>, word: &Word) -> Choice {
    match word.text.strip_prefix(b"$") {
        Some(name) => Choice::Variable(build.variables.index(name)),
        None => Choice::Known(build.main.charset.add(&word.text)),
    }
}

fn map(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [from_word, to_word] = node.args.as_slice() else { unreachable!("the table says two") };
    let names = || format!("\"{}\" and \"{}\"", from_word.as_str(), to_word.as_str());
    let main = &mut scope.build.main.charset;
    let (from, to) = (main.add(&from_word.text), main.add(&to_word.text));
    if from == to {
        return Err(node.problem(format!("\"charset_map\" between the same charsets {}", names())));
    }
    if from_word.text.eq_ignore_ascii_case(b"utf-8") {
        let text = "\"charset_map\" with \"utf-8\" charset should be given in the second column";
        return Err(node.problem(text.to_owned()));
    }
    if main.recoding(from, to).is_some() {
        return Err(node.problem(format!("duplicate \"charset_map\" between {}", names())));
    }
    let mut map = Map::new(to_word.text.eq_ignore_ascii_case(b"utf-8"));
    for row in node.children().iter().filter(|row| row.name != "include") {
        let [value] = row.args.as_slice() else { return Err(row.problem("invalid parameters number".to_owned())) };
        if let Err(wrong) = map.add(&row.name.text, &value.text) {
            let text = format!("invalid value \"{}\"", String::from_utf8_lossy(wrong));
            return Err(row.problem(text));
        }
    }
    let (there, back) = map.finish();
    main.maps.push(Pair { from, to, there: Arc::new(there), back: Arc::new(back) });
    Ok(())
}

/// Charsets that differ need a map.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    let conf = &level.conf.charset;
    let (Choice::Known(to), Choice::Known(from)) = (*conf.charset, *conf.source_charset) else { return };
    let main = &mut build.main.charset;
    if from == to || main.recoding(from, to).is_some() || main.missing.contains(&(from, to)) {
        return;
    }
    main.missing.push((from, to));
    let name = |i: usize| String::from_utf8_lossy(&main.names[i]);
    let text = format!("no \"charset_map\" between the charsets \"{}\" and \"{}\"", name(from), name(to));
    build.problems.push(Problem::bare(text));
}

/// A charset at run time.
struct Charset {
    name: Text,
    /// Its index, if a directive names it.
    known: Option<usize>,
}

impl Charset {
    fn named(r: &Request, name: Text) -> Charset {
        Charset { name, known: r.snapshot.main.charset.find(r.get(name)) }
    }

    /// `None`: nginx fails for a variable without a value.
    fn chosen(r: &mut Request, choice: Choice) -> Option<Option<Charset>> {
        match choice {
            Choice::Off => Some(None),
            Choice::Known(index) => {
                let snapshot = r.snapshot.clone();
                let name = r.text(&snapshot.main.charset.names[index]);
                Some(Some(Charset { name, known: Some(index) }))
            }
            Choice::Variable(id) => {
                let name = r.variable(id)?;
                Some(Some(Charset::named(r, name)))
            }
        }
    }
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let to = match destination(r) {
        Some(Some(to)) => to,
        Some(None) => return Filtered::Next,
        None => return Filtered::Broken,
    };
    let from = match r.answer.headers.charset.filter(|c| !r.get(*c).is_empty()) {
        Some(own) => Some(Charset::named(r, own)),
        None => match Charset::chosen(r, *r.conf().charset.source_charset) {
            Some(from) => from,
            None => return Filtered::Broken,
        },
    };
    match from {
        None => set_charset(r, to.name),
        Some(from) => recode(r, &from, &to),
    }
    Filtered::Next
}

/// The charset that the answer is to be in, if any (`ngx_http_destination_charset`).
fn destination(r: &mut Request) -> Option<Option<Charset>> {
    if !r.is_main() {
        return Some(r.flow.main_charset.map(|name| Charset::named(r, name)));
    }
    let choice = *r.conf().charset.charset;
    if choice == Choice::Off && r.answer.headers.override_charset.is_none() {
        return Some(None);
    }
    if r.answer.headers.content_type.is_none_or(|t| r.get(t).is_empty()) {
        return Some(None);
    }
    if let Some(name) = r.answer.headers.override_charset.filter(|c| !r.get(*c).is_empty()) {
        let charset = Charset::named(r, name);
        if charset.known.is_none() {
            log_error!(r, Error, "unknown charset \"{}\" to override", String::from_utf8_lossy(r.get(name)));
            return Some(None);
        }
        return Some(Some(charset));
    }
    if choice == Choice::Off {
        return Some(None);
    }
    let conf = &r.conf().charset;
    let wanted = match r.answer.headers.charset {
        Some(c) if !r.get(c).is_empty() => *conf.override_charset,
        _ => conf.charset_types.fits(r),
    };
    if wanted { Charset::chosen(r, choice) } else { Some(None) }
}

/// Redirects have none: old browsers took it for that of the next page (`ngx_http_set_charset`).
fn set_charset(r: &mut Request, name: Text) {
    if r.is_main() {
        r.answer.headers.charset = if matches!(r.answer.headers.status, 301 | 302) { None } else { Some(name) };
    }
}

fn recode(r: &mut Request, from: &Charset, to: &Charset) {
    if r.get(from.name).eq_ignore_ascii_case(r.get(to.name)) {
        return set_charset(r, to.name);
    }
    let snapshot = r.snapshot.clone();
    if let (Some(from), Some(to_index)) = (from.known, to.known) {
        if r.answer.headers.find(K::ContentEncoding).is_some_and(|v| !r.get(v).is_empty()) {
            return;
        }
        if let Some(recoding) = snapshot.main.charset.recoding(from, to_index) {
            set_charset(r, to.name);
            return add_filter(r, recoding);
        }
    }
    let text = |name| String::from_utf8_lossy(r.get(name));
    let (from, to) = (text(from.name), text(to.name));
    log_error!(r, Error, "no \"charset_map\" between the charsets \"{from}\" and \"{to}\"");
}

fn add_filter(r: &mut Request, recoding: &Arc<Recoding>) {
    if recoding.changes_length() && r.is_main() {
        r.answer.headers.content_length = None;
    }
    r.answer.in_memory = true;
    let decoder = Decoder::new(recoding.clone());
    r.answer.body_filters.push(Box::new(Recode { decoder, room: Vec::new(), file: Vec::new() }));
}

/// The body filter.
struct Recode {
    decoder: Decoder,
    room: Vec<u8>,
    /// Where pieces of files are read to.
    file: Vec<u8>,
}

impl BodyFilter for Recode {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let Recode { decoder, room, file } = self;
        chunk.pieces(last, file, |piece, last| {
            room.clear();
            decoder.recode(piece, room);
            if room.is_empty() && !last { Ok(()) } else { rest.push(r, Chunk::Bytes(room), last) }
        })
    }
}
