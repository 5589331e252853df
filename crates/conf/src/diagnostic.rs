//! What is wrong with a configuration, in nginx's words, and how it is shown.

use crate::tree::{Source, Span};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The configuration cannot be used.
    Emerg,
    /// It can, but probably does not mean what was wanted.
    Warn,
    /// Good to know.
    Notice,
}

impl Level {
    /// nginx's word.
    pub fn name(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Warn => "warn",
            Level::Notice => "notice",
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub level: Level,
    /// The text, without the place.
    pub message: String,
    /// Where.
    pub span: Option<Span>,
}

impl Problem {
    /// A problem that makes the configuration unusable.
    pub fn emerg(span: Span, message: impl Into<String>) -> Problem {
        Problem { level: Level::Emerg, message: message.into(), span: Some(span) }
    }

    /// A problem without a place.
    pub fn bare(message: impl Into<String>) -> Problem {
        Problem { level: Level::Emerg, message: message.into(), span: None }
    }

    /// `message in FILE:LINE`, as nginx writes it after `nginx: [emerg] `.
    pub fn render_line(&self, sources: &[Source]) -> String {
        let Some((span, source)) = self.place(sources) else { return self.message.clone() };
        if source.command_line {
            return format!("{} in command line", self.message);
        }
        format!("{} in {}:{}", self.message, source.path.display(), span.line)
    }

    /// The line of the source with carets under the words, for a terminal.
    pub fn render_excerpt(&self, sources: &[Source]) -> Option<String> {
        let (span, source) = self.place(sources)?;
        let (start, end) = (span.start as usize, (span.end as usize).min(source.text.len()));
        let start = start.min(end);
        let line_start = memchr::memrchr(b'\n', &source.text[..start]).map_or(0, |i| i + 1);
        let line_end = memchr::memchr(b'\n', &source.text[start..]).map_or(source.text.len(), |i| start + i);
        let line = String::from_utf8_lossy(&source.text[line_start..line_end]).replace('\t', " ");
        let before = String::from_utf8_lossy(&source.text[line_start..start]).chars().count();
        let under = String::from_utf8_lossy(&source.text[start..end.min(line_end)]).chars().count().max(1);
        let number = source.line_of(span.start).to_string();
        let margin = " ".repeat(number.len());
        Some(format!("{margin} |\n{number} | {line}\n{margin} | {}{}", " ".repeat(before), "^".repeat(under)))
    }

    fn place<'s>(&self, sources: &'s [Source]) -> Option<(Span, &'s Source)> {
        let span = self.span?;
        Some((span, sources.get(span.file.0 as usize)?))
    }
}
