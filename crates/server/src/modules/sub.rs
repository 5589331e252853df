//! Replaces strings in answers (nginx's `ngx_http_sub_filter_module`): `sub_filter`, several of them, with variables.
//! Letters of either case match. What may be the beginning of a string is held back until more of the body is there.

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::{Directive, Scope, http};
use crate::merged_values;
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Held, Rest};
use crate::request::include::Include;
use crate::request::respond::{Filtered, refused};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("sub_filter", sub_filter),
    http("sub_filter_types", |s, n| TypeSet::set(&mut s.level.conf.sub.sub_filter_types, s.build, n, "text/html")),
    http("sub_filter_once", |s, n| setters::flag(&mut s.level.conf.sub.sub_filter_once, n)),
    http("sub_filter_last_modified", |s, n| setters::flag(&mut s.level.conf.sub.sub_filter_last_modified, n)),
];

/// Strings of one level (nginx's limit).
const MAX_PAIRS: usize = 255;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `sub_filter`, in order.
        pairs: Arc<Vec<Pair>> = Arc::default(),
        /// The types of answers that are searched.
        sub_filter_types: TypeSet = TypeSet::of(&["text/html"]),
        /// Each string is replaced only where it is met first.
        sub_filter_once: bool = true,
        /// `Last-Modified` stays.
        sub_filter_last_modified: bool = false,
    }
}

crate::inherited!(Conf, |_| true);

/// One `sub_filter`.
#[derive(Clone, Debug)]
pub struct Pair {
    string: Complex,
    replacement: Complex,
}

fn sub_filter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [string, replacement] = node.args.as_slice() else { unreachable!("the table says two") };
    if string.text.is_empty() {
        return Err(node.problem("empty search pattern".to_owned()));
    }
    let string = Complex::compile_bytes(scope.build, &string.text.to_ascii_lowercase());
    let string = string.map_err(|t| node.problem(t))?;
    let replacement = Complex::compile(scope.build, replacement)?;
    let pairs = Arc::make_mut(scope.level.conf.sub.pairs.entry());
    if pairs.len() == MAX_PAIRS {
        return Err(node.problem(format!("number of search patterns exceeds {MAX_PAIRS}")));
    }
    pairs.push(Pair { string, replacement });
    Ok(())
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let conf = &r.conf().sub;
    if conf.pairs.is_empty()
        || r.answer.headers.content_length == Some(0)
        || !conf.sub_filter_types.fits(r)
        || r.is_body_unwanted()
        || r.is_refusal()
    {
        return Filtered::Next;
    }
    let (pairs, once, keep_time) = (Arc::clone(&conf.pairs), *conf.sub_filter_once, *conf.sub_filter_last_modified);
    let search = Search::new(r, &pairs);
    if search.strings.is_empty() {
        return Filtered::Next;
    }
    if r.is_main() {
        r.clear_content_length();
        r.clear_validators(keep_time);
    }
    r.answer.in_memory = true;
    let replaced = vec![None; search.strings.len()];
    let (held, stuffed, room) = (Vec::new(), VecDeque::new(), Vec::new());
    r.answer.body_filters.push(Box::new(Sub { search, pairs, once, replaced, held, stuffed, room }));
    Filtered::Next
}

/// What is looked for in one answer.
struct Search {
    /// In lower case, with the number of its pair.
    strings: Vec<(Box<[u8]>, usize)>,
    /// Bytes with which a string begins.
    first: Box<[bool; 256]>,
}

enum Look {
    /// String number such, at this place.
    Match(usize, usize),
    /// What starts here may become one.
    Perhaps(usize),
    Nothing,
}

impl Search {
    fn new(r: &mut Request, pairs: &[Pair]) -> Search {
        let mut search = Search { strings: Vec::with_capacity(pairs.len()), first: Box::new([false; 256]) };
        for (number, pair) in pairs.iter().enumerate() {
            let text = pair.string.eval(r);
            let string: Box<[u8]> = r.get(text).to_ascii_lowercase().into();
            let Some(&byte) = string.first() else { continue };
            search.first[byte as usize] = true;
            search.first[byte.to_ascii_uppercase() as usize] = true;
            search.strings.push((string, number));
        }
        search
    }

    /// The leftmost place from `at` on where a string is; of several there the one that was configured first. `skip`
    /// says which are not looked for any more.
    fn find(&self, text: &[u8], mut at: usize, last: bool, skip: impl Fn(usize) -> bool) -> Look {
        while let Some(n) = text[at..].iter().position(|&b| self.first[b as usize]) {
            at += n;
            let rest = &text[at..];
            for (number, (string, _)) in self.strings.iter().enumerate() {
                let known = rest.len().min(string.len());
                if !rest[..known].eq_ignore_ascii_case(&string[..known]) || skip(number) {
                    continue;
                }
                if known == string.len() {
                    return Look::Match(at, number);
                }
                if !last {
                    return Look::Perhaps(at);
                }
            }
            at += 1;
        }
        Look::Nothing
    }
}

/// The body filter.
struct Sub {
    search: Search,
    pairs: Arc<Vec<Pair>>,
    once: bool,
    /// What each string is replaced by, once it has been met.
    replaced: Vec<Option<Text>>,
    /// The beginning of a string, perhaps.
    held: Vec<u8>,
    /// What is not looked through yet, since much came of what was.
    stuffed: VecDeque<Held>,
    /// Where pieces of files are read to.
    room: Vec<u8>,
}

impl Sub {
    fn is_done(&self) -> bool {
        self.once && self.held.is_empty() && self.stuffed.is_empty() && self.replaced.iter().all(Option::is_some)
    }

    fn piece(&mut self, r: &mut Request, piece: &[u8], last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        let text = if held.is_empty() {
            piece
        } else {
            held.extend_from_slice(piece);
            &held
        };
        let mut out: Vec<u8> = Vec::new();
        let (mut from, mut at) = (0, 0);
        let end = loop {
            let (once, replaced) = (self.once, &self.replaced);
            match self.search.find(text, at, last, |number| once && replaced[number].is_some()) {
                Look::Nothing => break text.len(),
                Look::Perhaps(place) => break place,
                Look::Match(place, number) => {
                    out.extend_from_slice(&text[from..place]);
                    let replacement = self.replacement(r, number);
                    if r.has_fault() {
                        return Err(refused(r));
                    }
                    out.extend_from_slice(r.get(replacement));
                    from = place + self.search.strings[number].0.len();
                    at = from;
                }
            }
            if out.len() as u64 >= PIECE && at < text.len() {
                // Replacements may be much longer than what they replace: the client first takes these.
                self.stuffed.push_front(Held::Piece(text[at..].to_vec(), last));
                return rest.push(r, Chunk::Bytes(&out), false);
            }
        };
        let kept = text[end..].to_vec();
        let result = if from == 0 {
            // Nothing was replaced: no copy.
            if end == 0 && !last { Ok(()) } else { rest.push(r, Chunk::Bytes(&text[..end]), last) }
        } else {
            out.extend_from_slice(&text[from..end]);
            if out.is_empty() && !last { Ok(()) } else { rest.push(r, Chunk::Bytes(&out), last) }
        };
        self.held = kept;
        result
    }

    fn replacement(&mut self, r: &mut Request, number: usize) -> Text {
        if let Some(known) = self.replaced[number] {
            return known;
        }
        let text = self.pairs[self.search.strings[number].1].replacement.eval(r);
        self.replaced[number] = Some(text);
        text
    }
}

impl BodyFilter for Sub {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if self.is_done() {
            return rest.push(r, chunk, last);
        }
        let mut room = std::mem::take(&mut self.room);
        let result = chunk.pieces(last, &mut room, |piece, last| match self.stuffed.back_mut() {
            Some(Held::Piece(held, over)) => {
                held.extend_from_slice(piece);
                *over = last;
                Ok(())
            }
            Some(Held::Include(_)) => {
                self.stuffed.push_back(Held::Piece(piece.to_vec(), last));
                Ok(())
            }
            None => self.piece(r, piece, last, &mut rest),
        });
        self.room = room;
        result
    }

    fn is_stuffed(&self) -> bool {
        !self.stuffed.is_empty()
    }

    fn resume(&mut self, r: &mut Request, mut rest: Rest<'_>) -> io::Result<()> {
        match self.stuffed.pop_front() {
            Some(Held::Piece(piece, last)) => self.piece(r, &piece, last, &mut rest),
            Some(Held::Include(include)) => self.pass(r, include, rest),
            None => Ok(()),
        }
    }

    fn include(&mut self, r: &mut Request, include: Include, rest: Rest<'_>) -> io::Result<()> {
        if self.stuffed.is_empty() {
            return self.pass(r, include, rest);
        }
        self.stuffed.push_back(Held::Include(include));
        Ok(())
    }
}

impl Sub {
    /// An include comes behind what was held before it.
    fn pass(&mut self, r: &mut Request, include: Include, mut rest: Rest<'_>) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            rest.push(r, Chunk::Bytes(&held), false)?;
        }
        rest.include(r, include)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(strings: &[&str]) -> Search {
        let mut search = Search { strings: Vec::new(), first: Box::new([false; 256]) };
        for (number, string) in strings.iter().enumerate() {
            let byte = string.as_bytes()[0];
            search.first[byte as usize] = true;
            search.first[byte.to_ascii_uppercase() as usize] = true;
            search.strings.push((string.as_bytes().into(), number));
        }
        search
    }

    fn shown(strings: &[&str], text: &str, last: bool) -> String {
        match search(strings).find(text.as_bytes(), 0, last, |_| false) {
            Look::Match(at, number) => format!("{number} at {at}"),
            Look::Perhaps(at) => format!("perhaps at {at}"),
            Look::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn the_leftmost_then_the_first() {
        assert_eq!(shown(&["aabb", "aaabb"], "xaaabb", false), "1 at 1");
        assert_eq!(shown(&["ab", "abc"], "ABC", false), "0 at 0");
        assert_eq!(shown(&["foo"], "barFOO", false), "0 at 3");
    }

    #[test]
    fn what_may_become_a_match_is_held() {
        assert_eq!(shown(&["foo"], "barfo", false), "perhaps at 3");
        assert_eq!(shown(&["foo"], "barfo", true), "nothing");
        assert_eq!(shown(&["abac"], "ababa", false), "perhaps at 2");
        assert_eq!(shown(&["foo"], "", false), "nothing");
    }
}
