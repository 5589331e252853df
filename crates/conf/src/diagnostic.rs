//! What is wrong with a configuration, in nginx's words, and how it is shown: one line as nginx prints it, and for a
//! terminal the line of source with carets. From: lexer, load, the modules. To: the command line and the error log.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::tree::{Node, Source, Span, Word};

/// How bad it is, the worst first. `Emerg` and `Crit` keep the configuration from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is wrong.
    Emerg,
    /// A file of it cannot be read.
    Crit,
    /// It works, but likely not as meant.
    Warn,
    /// Worth knowing.
    Notice,
}

impl Severity {
    /// nginx's word in brackets.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Emerg => "emerg",
            Severity::Crit => "crit",
            Severity::Warn => "warn",
            Severity::Notice => "notice",
        }
    }

    /// Whether a configuration with such a problem must not be used.
    pub fn is_fatal(self) -> bool {
        matches!(self, Severity::Emerg | Severity::Crit)
    }
}

/// One finding about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub level: Severity,
    /// What it is, without the place.
    pub message: String,
    /// Where it is; `None` if it is about the whole.
    pub span: Option<Span>,
    /// nginx names no place for it; the span only tells when nginx comes upon it.
    pub is_placeless: bool,
    /// What would mend it, as a sentence for people: shown below the line.
    pub help: Option<String>,
}

impl Problem {
    /// A problem of any level, with or without a place.
    pub fn new(level: Severity, span: impl Into<Option<Span>>, message: impl Into<String>) -> Problem {
        Problem { level, message: message.into(), span: span.into(), is_placeless: false, help: None }
    }

    /// An error at a place.
    pub fn emerg(span: impl Into<Option<Span>>, message: impl Into<String>) -> Problem {
        Problem::new(Severity::Emerg, span, message)
    }

    /// An error about the whole.
    pub fn bare(message: impl Into<String>) -> Problem {
        Problem::emerg(None, message)
    }

    /// The same without naming its place; it keeps its turn among the others.
    pub fn placeless(self) -> Problem {
        Problem { is_placeless: true, ..self }
    }

    /// The same with what would mend it.
    pub fn with_help(self, help: Option<String>) -> Problem {
        Problem { help, ..self }
    }

    /// A warning at a place.
    pub fn warn(span: impl Into<Option<Span>>, message: impl Into<String>) -> Problem {
        Problem::new(Severity::Warn, span, message)
    }

    /// `"x" directive COMPLAINT`: how nginx reports what a setter returns, such as `is duplicate`.
    pub fn directive(node: &Node, complaint: &str) -> Problem {
        Problem::emerg(node.name.span, format!("\"{}\" directive {complaint}", node.name.as_str()))
    }

    /// `"x" directive is duplicate`
    pub fn duplicate(node: &Node) -> Problem {
        Problem::directive(node, "is duplicate")
    }

    /// `"x" directive invalid value`: what the size, offset and time setters say.
    pub fn invalid_value(node: &Node) -> Problem {
        Problem::directive(node, "invalid value")
    }

    /// `"x" directive invalid number`: what the number setter says.
    pub fn invalid_number(node: &Node) -> Problem {
        Problem::directive(node, "invalid number")
    }

    /// `invalid value "v"`: what the setters of enumerations and bit masks say.
    pub fn invalid_choice(value: &Word) -> Problem {
        Problem::emerg(value.span, format!("invalid value \"{}\"", value.as_str()))
    }

    /// `duplicate value "v"`: a warning of the bit mask setter.
    pub fn duplicate_choice(value: &Word) -> Problem {
        Problem::warn(value.span, format!("duplicate value \"{}\"", value.as_str()))
    }

    /// `invalid parameter "p"`
    pub fn invalid_parameter(parameter: &Word) -> Problem {
        Problem::emerg(parameter.span, format!("invalid parameter \"{}\"", parameter.as_str()))
    }

    /// `invalid number of arguments in "x" directive`
    pub fn invalid_arguments(node: &Node) -> Problem {
        let message = format!("invalid number of arguments in \"{}\" directive", node.name.as_str());
        Problem::emerg(node.name.span, message)
    }

    /// `invalid value "v" in "x" directive, it must be "on" or "off"`
    pub fn invalid_flag(node: &Node, value: &Word) -> Problem {
        let (value_text, name) = (value.as_str(), node.name.as_str());
        let message = format!("invalid value \"{value_text}\" in \"{name}\" directive, it must be \"on\" or \"off\"");
        Problem::emerg(value.span, message)
    }

    /// The warning about a directive that has a new name: `ngx_conf_deprecated`.
    pub fn deprecated(node: &Node, new_name: &str) -> Problem {
        let old_name = node.name.as_str();
        let message = format!("the \"{old_name}\" directive is deprecated, use the \"{new_name}\" directive instead");
        Problem::warn(node.name.span, message)
    }

    /// `CALL "path" failed (2: No such file or directory)`; `call` is as nginx writes it: `open()`, `glob()`.
    pub fn io(span: impl Into<Option<Span>>, call: &str, path: &Path, error: &io::Error) -> Problem {
        Problem::emerg(span, format!("{call} \"{}\" failed ({})", path.display(), errno_text(error)))
    }

    /// `message in FILE:LINE`, the form of nginx's error lines after the level; `message in command line` for `-g`.
    pub fn render_line(&self, sources: &[Source]) -> String {
        let message = &self.message[..self.message.floor_char_boundary(MAX_MESSAGE_BYTES)];
        let Some((span, source)) = self.place(sources).filter(|_| !self.is_placeless) else {
            return message.to_owned();
        };
        match source.command_line {
            true => format!("{message} in command line"),
            false => format!("{message} in {}:{}", source.path.display(), span.line),
        }
    }

    /// The line of source with carets under the place, without a final newline; empty if there is no place. For
    /// terminals: control characters in the source are not passed on.
    pub fn render_excerpt(&self, sources: &[Source]) -> String {
        let Some((span, source)) = self.place(sources) else {
            return String::new();
        };
        let number = source.line_of(span.start).to_string();
        let column = source.column_of(span.start) as usize - 1;
        let line_start = (span.start as usize).min(source.text.len()) - column;
        let rest = &source.text[line_start..];
        let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
        let marked_end = (column + (span.end.saturating_sub(span.start)) as usize).min(line.len()).max(column);

        let window_start = column.saturating_sub(EXCERPT_BEFORE);
        let window_end = line.len().min(window_start + EXCERPT_BYTES);
        let before = printable(&line[window_start..column.min(window_end)]);
        let marked = printable(&line[column.min(window_end)..marked_end.min(window_end)]);
        let after = printable(&line[marked_end.min(window_end)..window_end]);

        let mut out = String::new();
        let margin = " ".repeat(number.len());
        let carets = "^".repeat(marked.chars().count().max(1));
        let _ = writeln!(out, "  {number} | {before}{marked}{after}");
        let _ = write!(out, "  {margin} | {}{carets}", " ".repeat(before.chars().count()));
        out
    }

    fn place<'s>(&self, sources: &'s [Source]) -> Option<(Span, &'s Source)> {
        let span = self.span?;
        Some((span, sources.get(span.file.0 as usize)?))
    }
}

/// Where nginx cuts a message off, in bytes (`NGX_MAX_CONF_ERRSTR`).
const MAX_MESSAGE_BYTES: usize = 1024;
/// How much of a long line an excerpt shows, in bytes: what fits a terminal with a margin.
const EXCERPT_BYTES: usize = 120;
/// How much of it stands before the marked place.
const EXCERPT_BEFORE: usize = 60;

/// Text in which every character takes one cell and does nothing to the terminal.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// `2: No such file or directory`, as nginx's `ngx_log_errno` writes it within its parentheses.
pub fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    let Some(code) = error.raw_os_error() else {
        return text;
    };
    let suffix = format!(" (os error {code})");
    format!("{code}: {}", text.strip_suffix(suffix.as_str()).unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tree::FileId;

    fn source(text: &str, command_line: bool) -> Source {
        Source { path: "/c/nginx.conf".into(), text: Arc::from(text.as_bytes()), included_at: None, command_line }
    }

    fn problem(start: u32, end: u32) -> Problem {
        Problem::emerg(Span { file: FileId(0), line: 7, start, end }, "odd \"x\"")
    }

    #[test]
    fn line_forms() {
        assert_eq!(problem(0, 1).render_line(&[source("x", false)]), "odd \"x\" in /c/nginx.conf:7");
        assert_eq!(problem(0, 1).render_line(&[source("x", true)]), "odd \"x\" in command line");
        assert_eq!(problem(0, 1).placeless().render_line(&[source("x", false)]), "odd \"x\"");
        assert_eq!(Problem::bare("no events").render_line(&[]), "no events");
    }

    #[test]
    fn excerpt_marks_the_word() {
        let text = "events {}\n\tfoo  bär\u{1b}[31m x;\n";
        let start = text.find("bär").expect("it is there") as u32;
        let shown = problem(start, start + 4).render_excerpt(&[source(text, false)]);
        assert_eq!(shown, "  2 |  foo  bär [31m x;\n    |       ^^^");
    }

    #[test]
    fn excerpt_of_odd_places() {
        for text in ["", "\n", "a", &"y".repeat(500)] {
            for (start, end) in [(0, 0), (0, 1), (1, 400), (499, 500), (600, 700), (3, 2)] {
                let shown = problem(start, end).render_excerpt(&[source(text, false)]);
                assert!(shown.contains('^') && shown.len() < 400, "{shown}");
            }
        }
    }

    #[test]
    fn errno_form() {
        let error = io::Error::from_raw_os_error(2);
        let problem = Problem::io(None, "open()", Path::new("/x"), &error);
        assert_eq!(problem.message, "open() \"/x\" failed (2: No such file or directory)");
    }
}
