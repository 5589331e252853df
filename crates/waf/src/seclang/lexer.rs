//! SecLang's text as directives: lines that end in a backslash go on, words stand in quotes or between blanks.
//! After this: [`super::load`] follows `Include` and says what a directive means.

use crate::limits::MAX_DIRECTIVE_BYTES;

/// One directive as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The first word.
    pub name: String,
    /// The other words, without their quotes.
    pub args: Vec<Vec<u8>>,
    /// The line that it begins on, from 1.
    pub line: u32,
}

/// A line that cannot be cut into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The line that the directive begins on.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

/// Cuts a text into directives. What is broken is an item of its own, and reading goes on behind it.
pub(crate) fn statements(text: &[u8]) -> impl Iterator<Item = Result<Statement, Broken>> + '_ {
    let mut lines = Lines { text, at: 0, line: 1 };
    let mut buffer = Vec::new();
    std::iter::from_fn(move || {
        loop {
            let line = lines.logical(&mut buffer)?;
            let words = buffer.trim_ascii();
            if words.is_empty() || words[0] == b'#' {
                continue;
            }
            if buffer.len() > MAX_DIRECTIVE_BYTES {
                let message = format!("a directive of more than {MAX_DIRECTIVE_BYTES} bytes");
                return Some(Err(Broken { line, message }));
            }
            return Some(words_of(words, line));
        }
    })
}

struct Lines<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
}

impl Lines<'_> {
    /// Reads a line with those that continue it. Comments are not continued: a rule that is commented out has a `#` before
    /// each of its lines.
    fn logical(&mut self, buffer: &mut Vec<u8>) -> Option<u32> {
        buffer.clear();
        let first = self.line;
        if self.at >= self.text.len() {
            return None;
        }
        loop {
            let rest = &self.text[self.at..];
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            self.at += (end + 1).min(rest.len());
            self.line += 1;
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            let is_comment = buffer.is_empty() && line.trim_ascii_start().first() == Some(&b'#');
            match line.strip_suffix(b"\\") {
                Some(head) if !is_comment && self.at < self.text.len() => {
                    // What stands before a continued line's text is its indentation.
                    let head = if buffer.is_empty() { head } else { head.trim_ascii_start() };
                    buffer.extend_from_slice(head);
                    if buffer.len() > MAX_DIRECTIVE_BYTES {
                        return Some(first);
                    }
                }
                _ => {
                    let line = if buffer.is_empty() { line } else { line.trim_ascii_start() };
                    buffer.extend_from_slice(line);
                    return Some(first);
                }
            }
        }
    }
}

fn words_of(text: &[u8], line: u32) -> Result<Statement, Broken> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if text[at].is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let (word, next) =
            word(text, at).ok_or_else(|| Broken { line, message: "a quote is not closed".to_owned() })?;
        words.push(word);
        at = next;
    }
    let name = String::from_utf8_lossy(&words.remove(0)).into_owned();
    Ok(Statement { name, args: words, line })
}

/// Reads one word; returns it and where the next begins. In quotes a backslash only keeps a quote from ending the word: all
/// others belong to the expression or the action that the word holds.
fn word(text: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    let quote = text[at];
    if quote != b'"' && quote != b'\'' {
        while at < text.len() && !text[at].is_ascii_whitespace() {
            word.push(text[at]);
            at += 1;
        }
        return Some((word, at));
    }
    at += 1;
    loop {
        let byte = *text.get(at)?;
        if byte == quote {
            return Some((word, at + 1));
        }
        if byte == b'\\' {
            let next = *text.get(at + 1)?;
            if next != quote {
                word.push(b'\\');
            }
            word.push(next);
            at += 2;
            continue;
        }
        word.push(byte);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Result<Statement, Broken>> {
        statements(text.as_bytes()).collect()
    }

    #[test]
    fn words_stand_in_quotes_and_lines_go_on() {
        let text = "# a comment \\\n\nSecRule ARGS \"@rx a\\\"b\\\\d\" \\\n   \"id:1,\\\n    pass\"\r\nSecMarker END\n";
        let read = all(text);
        let first = read[0].as_ref().unwrap();
        assert_eq!((first.name.as_str(), first.line), ("SecRule", 3));
        assert_eq!(first.args, [b"ARGS".to_vec(), b"@rx a\"b\\\\d".to_vec(), b"id:1,pass".to_vec()]);
        assert_eq!(read[1].as_ref().unwrap().line, 6);
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn an_open_quote_is_named_with_its_line() {
        let read = all("SecMarker A\nSecRule ARGS \"@rx a\nSecMarker B");
        assert_eq!(read[1], Err(Broken { line: 2, message: "a quote is not closed".to_owned() }));
        assert_eq!(read[2].as_ref().unwrap().args[0], b"B");
    }
}
