//! What a configuration text says: nodes of words, each knowing its place. From: lexer. To: the modules.
//! Holds no meaning: that `listen` has an address is the listen module's business.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::diagnostic::{Problem, Severity};

/// One reading of one file: an index into [`Tree::sources`]. A file that is included twice has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A place in a source.
///
/// `line` is the one nginx would report: where the *terminator* (`;` or `{`) of the word's directive stands, which in
/// a directive of many lines is not the word's own. The word's own line follows from `start`: [`Source::line_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The source.
    pub file: FileId,
    /// 1-based line for messages.
    pub line: u32,
    /// First byte, from the source's beginning.
    pub start: u32,
    /// One past the last byte; quotes are part of the span.
    pub end: u32,
}

/// One word of a directive: its text after quotes and escapes are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The value in bytes.
    pub text: Vec<u8>,
    /// Where it stands.
    pub span: Span,
    /// Whether it was written in quotes.
    pub quoted: bool,
}

impl Word {
    /// The text for messages and for comparison with what is ASCII anyway.
    pub fn as_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.text)
    }

    /// An error about this word.
    pub fn problem(&self, message: String) -> Problem {
        Problem::emerg(self.span, message)
    }
}

impl PartialEq<str> for Word {
    fn eq(&self, other: &str) -> bool {
        self.text == other.as_bytes()
    }
}

impl PartialEq<&str> for Word {
    fn eq(&self, other: &&str) -> bool {
        self.text == other.as_bytes()
    }
}

/// One directive, or one row of a `map`, `types` ... block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The first word.
    pub name: Word,
    /// The other words.
    pub args: Vec<Word>,
    /// What stands in its braces.
    pub body: Body,
    /// Its last byte: `;`, or the `}` of a block. nginx reports here what it finds at the end of a block.
    pub close: Span,
}

impl Node {
    /// The first argument; only for directives whose arity says there is one.
    pub fn first(&self) -> &Word {
        self.args.first().expect("the directive's arity was checked to be at least one")
    }

    /// An error about this directive.
    pub fn problem(&self, message: String) -> Problem {
        Problem::emerg(self.span(), message)
    }

    /// A warning about this directive.
    pub fn warning(&self, message: String) -> Problem {
        Problem::warn(self.span(), message)
    }

    /// Something worth knowing about this directive.
    pub fn notice(&self, message: String) -> Problem {
        Problem::new(Severity::Notice, self.span(), message)
    }

    /// A warning about this directive for which nginx names no place.
    pub fn warning_bare(&self, message: String) -> Problem {
        self.warning(message).placeless()
    }

    /// From the name to the last argument.
    fn span(&self) -> Span {
        let end = self.args.last().map_or(self.name.span.end, |word| word.span.end);
        Span { end, ..self.name.span }
    }

    /// The nodes in the braces; none if there are no braces.
    pub fn children(&self) -> &[Node] {
        match &self.body {
            Body::Block(nodes) => nodes,
            Body::None | Body::Raw(_) => &[],
        }
    }
}

/// What follows the words of a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// `;`
    None,
    /// `{ ... }`
    Block(Vec<Node>),
    /// The bytes between the braces of `*_by_lua_block`, as they stand.
    Raw(Vec<u8>),
}

/// One reading of a file, or the text of `-g`.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path as nginx names it in messages: the prefix and what was written. Empty for the command line.
    pub path: PathBuf,
    /// The whole text; readings of the same file share it.
    pub text: Arc<[u8]>,
    /// The path in the `include` that brought it; `None` for the main file and the command line.
    pub included_at: Option<Span>,
    /// Whether this is the text of `-g`.
    pub command_line: bool,
}

impl Source {
    /// The 1-based line on which the byte stands.
    pub fn line_of(&self, offset: u32) -> u32 {
        let before = &self.text[..(offset as usize).min(self.text.len())];
        1 + memchr::memchr_iter(b'\n', before).count() as u32
    }

    /// The 1-based column, in bytes, at which the byte stands.
    pub fn column_of(&self, offset: u32) -> u32 {
        let offset = (offset as usize).min(self.text.len());
        let line_start = memchr::memrchr(b'\n', &self.text[..offset]).map_or(0, |newline| newline + 1);
        (offset - line_start) as u32 + 1
    }
}

/// A whole configuration with its includes in place.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The directives of the main level, those of `-g` first. Nodes that did not pass [`crate::check`] are left out.
    pub nodes: Vec<Node>,
    /// Everything that was read, in order of reading.
    pub sources: Vec<Source>,
}

impl Tree {
    /// Each file once, in order of first reading, as `-T` prints them.
    pub fn files(&self) -> impl Iterator<Item = &Source> {
        let mut seen = HashSet::new();
        self.sources.iter().filter(move |source| !source.command_line && seen.insert(&source.path))
    }

    /// The source of a span.
    pub fn source(&self, span: Span) -> &Source {
        &self.sources[span.file.0 as usize]
    }

    /// Puts problems into the order in which nginx would come upon them, so that the first is the one it reports.
    /// Those without a place come last. The order of problems of one place stays.
    pub fn sort(&self, problems: &mut [Problem]) {
        problems.sort_by_cached_key(|problem| match problem.span {
            Some(span) => (false, self.reading_order(span)),
            None => (true, Vec::new()),
        });
    }

    /// How many of the sorted problems nginx comes upon before it comes to a place.
    pub fn turn(&self, sorted: &[Problem], place: Span) -> usize {
        let turn = self.reading_order(place);
        sorted.partition_point(|problem| problem.span.is_some_and(|span| self.reading_order(span) <= turn))
    }

    /// The way from the root source to the span: root, offset of each include, own offset.
    fn reading_order(&self, span: Span) -> Vec<u32> {
        let mut way = vec![span.start];
        let mut file = span.file;
        while let Some(include) = self.sources[file.0 as usize].included_at {
            way.push(include.start);
            file = include.file;
        }
        way.push(file.0);
        way.reverse();
        way
    }
}

/// Writes nodes as text that reads back as the same words.
pub fn write(nodes: &[Node]) -> Vec<u8> {
    let mut out = Vec::new();
    write_level(nodes, 0, &mut out);
    out
}

const INDENT: &[u8] = b"    ";

fn write_level(nodes: &[Node], depth: usize, out: &mut Vec<u8>) {
    for node in nodes {
        out.extend(INDENT.repeat(depth));
        write_word(&node.name, out);
        for arg in &node.args {
            out.push(b' ');
            write_word(arg, out);
        }
        match &node.body {
            Body::None => out.extend_from_slice(b";\n"),
            Body::Block(children) => {
                out.extend_from_slice(b" {\n");
                write_level(children, depth + 1, out);
                out.extend(INDENT.repeat(depth));
                out.extend_from_slice(b"}\n");
            }
            Body::Raw(text) => {
                out.extend_from_slice(b" {");
                out.extend_from_slice(text);
                out.extend_from_slice(b"}\n");
            }
        }
    }
}

fn write_word(word: &Word, out: &mut Vec<u8>) {
    if !word.quoted && !word.text.is_empty() && word.text.iter().all(|&byte| is_plain(byte)) {
        out.extend_from_slice(&word.text);
        return;
    }
    out.push(b'"');
    for &byte in &word.text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Bytes that stand for themselves anywhere in an unquoted word.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./:=*~^$,@%+!?()|&<>[]".contains(&byte)
}
