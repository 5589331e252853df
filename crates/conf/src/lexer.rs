//! Cuts a configuration text into statements: words, and what ended them. Follows `ngx_conf_read_token` byte by byte,
//! its limits and its odd corners included. From: a source's text. To: load.

use crate::diagnostic::Problem;
use crate::lua;
use crate::tree::{FileId, Span, Word};

/// The longest stretch of a file from the beginning of a word (or comment) to its end, in bytes. nginx reads through a
/// buffer of this size (`NGX_CONF_BUFFER`), and what does not fit is refused. The text of `-g` is not limited.
pub const MAX_PARAMETER_BYTES: usize = 4096;

/// How many bytes of a too long parameter are shown.
const SHOWN_BYTES: usize = 10;

/// What ended a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `;`
    Semicolon,
    /// `{`
    BlockStart,
    /// `}`; the statement has no words.
    BlockEnd,
    /// End of the text; the statement has no words.
    File,
}

/// The words up to a terminator.
#[derive(Debug)]
pub struct Statement {
    /// The words; at least one before `;` and `{`.
    pub words: Vec<Word>,
    /// The terminator's kind.
    pub ended: Ended,
    /// The terminator.
    pub end: Span,
}

/// What is wrong with the text, and where reading may go on.
#[derive(Debug)]
pub struct SyntaxError {
    /// In nginx's words.
    pub problem: Problem,
    /// How to go on.
    pub resume: Resume,
}

/// How reading goes on after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// With the next statement.
    Here,
    /// After the rest of this statement.
    Statement,
    /// After a block whose `{` has been read.
    Block,
    /// Not at all: what follows would be noise.
    Stop,
}

/// Reads one text.
pub struct Lexer<'t> {
    text: &'t [u8],
    file: FileId,
    at: usize,
    line: u32,
    command_line: bool,
    stopped: bool,
}

/// A place to come back to.
#[derive(Clone, Copy)]
pub struct Mark {
    at: usize,
    line: u32,
}

impl<'t> Lexer<'t> {
    /// A lexer of a file's text.
    pub fn new(text: &'t [u8], file: FileId) -> Lexer<'t> {
        Lexer { text, file, at: 0, line: 1, command_line: false, stopped: false }
    }

    /// A lexer of the text of `-g`.
    pub fn of_command_line(text: &'t [u8], file: FileId) -> Lexer<'t> {
        Lexer { command_line: true, ..Lexer::new(text, file) }
    }

    /// Whether reading ended early, by an error after which nothing can be made out.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Gives up on the rest of the text.
    pub fn stop_reading(&mut self) {
        self.stopped = true;
    }

    /// The byte that was read last.
    pub fn place(&self) -> Span {
        self.last_byte()
    }

    /// The place of the next byte.
    pub fn mark(&self) -> Mark {
        Mark { at: self.at, line: self.line }
    }

    /// Goes back to a place.
    pub fn rewind(&mut self, mark: Mark) {
        self.at = mark.at;
        self.line = mark.line;
    }

    /// The next statement.
    pub fn statement(&mut self) -> Result<Statement, SyntaxError> {
        let mut words = Vec::new();
        if self.stopped {
            self.at = self.text.len();
        }
        loop {
            let (first, start) = match self.skip_space()? {
                None if words.is_empty() => return Ok(self.ended(words, Ended::File)),
                None => return Err(self.unexpected_end()),
                Some(found) => found,
            };
            match first {
                b';' | b'{' if words.is_empty() => {
                    let resume = if first == b'{' { Resume::Block } else { Resume::Here };
                    return Err(self.unexpected(first, resume));
                }
                b';' => return Ok(self.ended(words, Ended::Semicolon)),
                b'{' => return Ok(self.ended(words, Ended::BlockStart)),
                b'}' if !words.is_empty() => {
                    let error = self.unexpected(first, Resume::Here);
                    self.at = start;
                    return Err(error);
                }
                b'}' => return Ok(self.ended(words, Ended::BlockEnd)),
                b'"' | b'\'' => {
                    words.push(self.quoted_word(first, start)?);
                    if let Some(ended) = self.after_quote(start + 1)? {
                        return Ok(self.ended(words, ended));
                    }
                }
                _ => {
                    let (word, ended) = self.bare_word(first, start)?;
                    words.push(word);
                    if let Some(ended) = ended {
                        return Ok(self.ended(words, ended));
                    }
                }
            }
        }
    }

    /// The bytes up to the `}` that closes a Lua block whose `{` was just read, and that `}`.
    pub fn raw_block(&mut self) -> Result<(&'t [u8], Span), SyntaxError> {
        let rest = &self.text[self.at..];
        let length = match lua::body_end(rest) {
            Ok(length) => length,
            Err(open) => {
                let message = match open {
                    lua::Open::Block => {
                        "unexpected end of file, expecting terminating characters for lua code block".to_owned()
                    }
                    lua::Open::Bracket(level) => format!(
                        "Lua code block missing the closing long bracket \"]{}]\", the inlined Lua code may be too long",
                        "=".repeat(level)
                    ),
                };
                return Err(self.stop(message, self.at, self.line));
            }
        };
        self.line += memchr::memchr_iter(b'\n', &rest[..length]).count() as u32;
        self.at += length + 1;
        Ok((&rest[..length], self.last_byte()))
    }

    /// The next byte that is neither space nor comment, and its offset.
    fn skip_space(&mut self) -> Result<Option<(u8, usize)>, SyntaxError> {
        loop {
            let start = self.at;
            let line = self.line;
            match self.next(start, line, None)? {
                None => return Ok(None),
                Some(b' ' | b'\t' | b'\r' | b'\n') => {}
                Some(b'#') => {
                    while let Some(byte) = self.next(start, line, None)? {
                        if byte == b'\n' {
                            break;
                        }
                    }
                }
                Some(byte) => return Ok(Some((byte, start))),
            }
        }
    }

    /// The word after a quote, up to the same quote.
    fn quoted_word(&mut self, quote: u8, start: usize) -> Result<Word, SyntaxError> {
        let line = self.line;
        let inner = self.at;
        let mut variable = false;
        loop {
            let Some(byte) = self.next(inner, line, Some(quote))? else {
                return Err(self.unexpected_end());
            };
            if byte == b'{' && variable {
                continue;
            }
            variable = byte == b'$';
            if byte == b'\\' {
                if self.next(inner, line, Some(quote))?.is_none() {
                    return Err(self.unexpected_end());
                }
            } else if byte == quote {
                let text = unescape(&self.text[inner..self.at - 1]);
                return Ok(Word { text, span: self.span(start, self.at, self.line), quoted: true });
            }
        }
    }

    /// What ends the statement right after a closing quote: nothing if a space or `)` follows.
    /// `inner` is where the quoted text began: the parameter's length still counts from there.
    fn after_quote(&mut self, inner: usize) -> Result<Option<Ended>, SyntaxError> {
        let line = self.line;
        match self.next(inner, line, None)? {
            None => Err(self.unexpected_end()),
            Some(b' ' | b'\t' | b'\r' | b'\n') => Ok(None),
            Some(b';') => Ok(Some(Ended::Semicolon)),
            Some(b'{') => Ok(Some(Ended::BlockStart)),
            Some(b')') => {
                self.at -= 1;
                Ok(None)
            }
            Some(byte) => {
                let resume = if byte == b'}' { Resume::Here } else { Resume::Statement };
                let error = self.unexpected(byte, resume);
                self.at -= 1;
                Err(error)
            }
        }
    }

    /// The word that began with `first`, and what ended the statement if its end did.
    fn bare_word(&mut self, first: u8, start: usize) -> Result<(Word, Option<Ended>), SyntaxError> {
        let line = self.line;
        let mut variable = first == b'$';
        let mut escaped = first == b'\\';
        loop {
            let Some(byte) = self.next(start, line, None)? else {
                return Err(self.unexpected_end());
            };
            if escaped {
                escaped = false;
                continue;
            }
            if byte == b'{' && variable {
                continue;
            }
            variable = byte == b'$';
            escaped = byte == b'\\';
            let ended = match byte {
                b' ' | b'\t' | b'\r' | b'\n' => None,
                b';' => Some(Ended::Semicolon),
                b'{' => Some(Ended::BlockStart),
                _ => continue,
            };
            let end = self.at - 1;
            let text = unescape(&self.text[start..end]);
            return Ok((Word { text, span: self.span(start, end, self.line), quoted: false }, ended));
        }
    }

    /// One byte. `start` and `line` are where nginx's buffer must hold from, `quote` the open quote.
    fn next(&mut self, start: usize, line: u32, quote: Option<u8>) -> Result<Option<u8>, SyntaxError> {
        let Some(&byte) = self.text.get(self.at) else {
            return Ok(None);
        };
        if self.at - start == MAX_PARAMETER_BYTES && !self.command_line {
            return Err(self.too_long(start, line, quote));
        }
        self.at += 1;
        if byte == b'\n' {
            self.line += 1;
        }
        Ok(Some(byte))
    }

    /// Closes a statement: every word's line becomes the terminator's.
    fn ended(&self, mut words: Vec<Word>, ended: Ended) -> Statement {
        for word in &mut words {
            word.span.line = self.line;
        }
        Statement { words, ended, end: self.last_byte() }
    }

    fn unexpected(&self, byte: u8, resume: Resume) -> SyntaxError {
        let shown = String::from_utf8_lossy(std::slice::from_ref(&byte)).into_owned();
        SyntaxError { problem: Problem::emerg(self.last_byte(), format!("unexpected \"{shown}\"")), resume }
    }

    fn unexpected_end(&mut self) -> SyntaxError {
        let message = match self.command_line {
            true => "unexpected end of parameter, expecting \";\"",
            false => "unexpected end of file, expecting \";\" or \"}\"",
        };
        self.stop(message.to_owned(), self.text.len(), self.line)
    }

    fn too_long(&mut self, start: usize, line: u32, quote: Option<u8>) -> SyntaxError {
        let message = match quote {
            Some(quote) => {
                let quote = quote as char;
                format!("too long parameter, probably missing terminating \"{quote}\" character")
            }
            None => {
                let shown = String::from_utf8_lossy(&self.text[start..start + SHOWN_BYTES]);
                format!("too long parameter \"{shown}...\" started")
            }
        };
        self.stop(message, start, line)
    }

    fn stop(&mut self, message: String, start: usize, line: u32) -> SyntaxError {
        self.stopped = true;
        let end = (start + 1).min(self.text.len());
        SyntaxError { problem: Problem::emerg(self.span(start, end, line), message), resume: Resume::Stop }
    }

    fn last_byte(&self) -> Span {
        self.span(self.at.saturating_sub(1), self.at, self.line)
    }

    fn span(&self, start: usize, end: usize, line: u32) -> Span {
        Span { file: self.file, line, start: start as u32, end: end as u32 }
    }
}

/// Resolves `\"`, `\'`, `\\`, `\t`, `\r`, `\n`; every other backslash stays.
fn unescape(written: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(written.len());
    let mut rest = written;
    while let Some(backslash) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(&rest[..backslash]);
        let meant = match rest.get(backslash + 1) {
            Some(&byte @ (b'"' | b'\'' | b'\\')) => Some(byte),
            Some(b't') => Some(b'\t'),
            Some(b'r') => Some(b'\r'),
            Some(b'n') => Some(b'\n'),
            _ => None,
        };
        text.push(meant.unwrap_or(b'\\'));
        rest = &rest[backslash + if meant.is_some() { 2 } else { 1 }..];
    }
    text.extend_from_slice(rest);
    text
}
