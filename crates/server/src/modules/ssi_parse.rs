//! Finds SSI commands in text that comes in pieces: `<!--# command parameter="value" ... -->` (`ngx_http_ssi_parse`).
//! Knows no command.

/// A longer name of a command is an error.
const COMMAND: usize = 32;
/// A longer name of a parameter is an error.
const PARAMETER: usize = 32;
/// More parameters are an error (`NGX_HTTP_SSI_MAX_PARAMS` is asked later; this bounds memory).
const PARAMETERS: usize = 64;
const OPENING: &[u8] = b"<!--#";

/// A command as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its name.
    pub name: Vec<u8>,
    /// Names and values, in order.
    pub parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a piece of text begins with.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// So many bytes are plain text. After the opening's first bytes turned out to be text too, those go before it:
    /// `held` of them.
    Text {
        /// Bytes of `<!--` from before this piece.
        held: usize,
        /// Bytes of this piece.
        len: usize,
    },
    /// A command.
    Command(Command),
    /// Something that is none; the text is for the log.
    Error(String),
    /// The piece is used up.
    More,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// So many bytes of the opening have been seen.
    Opening(usize),
    BeforeCommand,
    Command,
    BeforeParameter,
    Parameter,
    BeforeEqual,
    BeforeValue,
    Value(u8),
    Escaped(u8),
    AfterValue,
    End0,
    End1,
    Error,
    ErrorEnd0,
    ErrorEnd1,
}

/// The parser.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    command: Command,
    error: String,
    value_length: usize,
}

impl Parser {
    /// For values of at most so many bytes.
    pub fn new(value_length: usize) -> Parser {
        Parser { value_length, ..Parser::default() }
    }

    /// How many bytes of an opening were seen and may yet be text.
    pub fn held(&self) -> &'static [u8] {
        match self.state {
            State::Opening(n) => &OPENING[..n],
            _ => b"",
        }
    }

    /// Forgets an opening that was begun; its bytes are text.
    pub fn take_held(&mut self) -> &'static [u8] {
        let held = self.held();
        if !held.is_empty() {
            self.state = State::Text;
        }
        held
    }

    /// Takes what comes next from `text`, beginning at `at`, which moves on.
    pub fn next(&mut self, text: &[u8], at: &mut usize) -> Event {
        if matches!(self.state, State::Text | State::Opening(_)) {
            return self.text(text, at);
        }
        while let Some(&byte) = text.get(*at) {
            *at += 1;
            match self.byte(byte) {
                Step::On => {}
                Step::Done => {
                    self.state = State::Text;
                    return Event::Command(std::mem::take(&mut self.command));
                }
                Step::Failed => {
                    self.state = State::Text;
                    self.command = Command::default();
                    return Event::Error(std::mem::take(&mut self.error));
                }
            }
        }
        Event::More
    }

    /// Looks for an opening. `held` bytes from before are given back as text when it is none.
    fn text(&mut self, text: &[u8], at: &mut usize) -> Event {
        let start = *at;
        let before = self.held().len();
        let mut seen = before;
        while let Some(&byte) = text.get(*at) {
            if seen == 0 {
                match memchr::memchr(b'<', &text[*at..]) {
                    Some(n) => *at += n + 1,
                    None => *at = text.len(),
                }
                seen = (text[*at - 1] == b'<') as usize;
                continue;
            }
            *at += 1;
            seen = match byte {
                _ if byte == OPENING[seen] => seen + 1,
                b'<' => 1,
                _ => 0,
            };
            if seen == OPENING.len() {
                self.state = State::BeforeCommand;
                let plain = before + (*at - start) - OPENING.len();
                return text_event(before, plain);
            }
        }
        self.state = if seen == 0 { State::Text } else { State::Opening(seen) };
        let plain = before + (*at - start) - seen;
        if plain == 0 { Event::More } else { text_event(before, plain) }
    }

    fn byte(&mut self, byte: u8) -> Step {
        let space = matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        match self.state {
            State::Text | State::Opening(_) => unreachable!("text has its own loop"),
            State::BeforeCommand if space => {}
            State::BeforeCommand => {
                self.command.name.push(byte);
                self.state = State::Command;
            }
            State::Command | State::BeforeParameter | State::AfterValue if space => self.state = State::BeforeParameter,
            State::Command | State::BeforeParameter | State::AfterValue if byte == b'-' => self.state = State::End0,
            State::Command if self.command.name.len() == COMMAND => {
                self.fail(format!("the \"{}{}...\" SSI command is too long", show(&self.command.name), byte as char));
            }
            State::Command => self.command.name.push(byte),
            State::BeforeParameter if self.command.parameters.len() == PARAMETERS => {
                self.fail(format!("too many SSI command parameters: \"{}\"", show(&self.command.name)));
            }
            State::BeforeParameter => {
                self.command.parameters.push((vec![byte], Vec::new()));
                self.state = State::Parameter;
            }
            State::AfterValue => {
                let (name, value) = self.last();
                let text = format!(
                    "unexpected \"{}\" symbol after \"{}\" value of \"{}\" parameter in \"{}\" SSI command",
                    byte as char,
                    show(value),
                    show(name),
                    show(&self.command.name)
                );
                self.fail(text);
            }
            State::Parameter | State::BeforeEqual if space => self.state = State::BeforeEqual,
            State::Parameter | State::BeforeEqual if byte == b'=' => self.state = State::BeforeValue,
            State::Parameter if byte != b'-' => self.parameter(byte),
            State::Parameter | State::BeforeEqual => self.unexpected(byte, "after", "parameter"),
            State::BeforeValue if space => {}
            State::BeforeValue if matches!(byte, b'"' | b'\'') => self.state = State::Value(byte),
            State::BeforeValue => self.unexpected(byte, "before value of", "parameter"),
            State::Value(quote) if byte == quote => self.state = State::AfterValue,
            State::Value(quote) => {
                self.value(byte, if byte == b'\\' { State::Escaped(quote) } else { self.state });
            }
            State::Escaped(quote) => self.value(byte, State::Value(quote)),
            State::End0 if byte == b'-' => self.state = State::End1,
            State::End1 if byte == b'>' => return Step::Done,
            State::End0 | State::End1 => {
                let text =
                    format!("unexpected \"{}\" symbol in \"{}\" SSI command", byte as char, show(&self.command.name));
                self.fail(text);
            }
            State::ErrorEnd1 if byte == b'>' => return Step::Failed,
            State::ErrorEnd0 if byte == b'-' => self.state = State::ErrorEnd1,
            State::Error if byte == b'-' => self.state = State::ErrorEnd0,
            State::Error | State::ErrorEnd0 | State::ErrorEnd1 => self.state = State::Error,
        }
        Step::On
    }

    fn last(&self) -> (&[u8], &[u8]) {
        self.command.parameters.last().map_or((b"", b""), |(name, value)| (name, value))
    }

    fn parameter(&mut self, byte: u8) {
        if self.last().0.len() == PARAMETER {
            let (name, command) = (show(self.last().0), show(&self.command.name));
            return self.fail(format!("too long \"{name}{}...\" parameter in \"{command}\" SSI command", byte as char));
        }
        if let Some((name, _)) = self.command.parameters.last_mut() {
            name.push(byte);
        }
    }

    fn value(&mut self, byte: u8, state: State) {
        if self.last().1.len() == self.value_length {
            let (name, value) = self.last();
            let text = format!(
                "too long \"{}{}...\" value of \"{}\" parameter in \"{}\" SSI command",
                show(value),
                byte as char,
                show(name),
                show(&self.command.name)
            );
            return self.fail(text);
        }
        if let Some((_, value)) = self.command.parameters.last_mut() {
            value.push(byte);
        }
        self.state = state;
    }

    fn unexpected(&mut self, byte: u8, place: &str, what: &str) {
        let (name, command) = (show(self.last().0), show(&self.command.name));
        let symbol = byte as char;
        self.fail(format!("unexpected \"{symbol}\" symbol {place} \"{name}\" {what} in \"{command}\" SSI command"));
        if byte == b'-' {
            self.state = State::ErrorEnd0;
        }
    }

    fn fail(&mut self, text: String) {
        self.error = text;
        self.state = State::Error;
    }
}

enum Step {
    On,
    Done,
    Failed,
}

/// `plain` bytes are text; the first of them may be from before this piece.
fn text_event(before: usize, plain: usize) -> Event {
    let held = plain.min(before);
    Event::Text { held, len: plain - held }
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text between commands, and commands as `[name a=b]`, errors as `[!]`.
    fn parse(pieces: &[&str]) -> String {
        let mut parser = Parser::new(16);
        let mut out = String::new();
        for piece in pieces {
            let (mut at, mut held) = (0, parser.held());
            loop {
                let start = at;
                match parser.next(piece.as_bytes(), &mut at) {
                    Event::More => break,
                    Event::Text { held: n, len } => {
                        out.push_str(std::str::from_utf8(&held[..n]).unwrap());
                        out.push_str(&piece[start..start + len]);
                        held = b"";
                    }
                    Event::Command(c) => {
                        out.push_str(&format!("[{}", show(&c.name)));
                        c.parameters.iter().for_each(|(n, v)| out.push_str(&format!(" {}={}", show(n), show(v))));
                        out.push(']');
                    }
                    Event::Error(_) => out.push_str("[!]"),
                }
            }
        }
        out + std::str::from_utf8(parser.take_held()).unwrap()
    }

    #[test]
    fn commands_among_text() {
        assert_eq!(parse(&["a<!--#echo var=\"x\" -->b"]), "a[echo var=x]b");
        assert_eq!(parse(&["<!--# include virtual='y' wait=\"yes\"-->"]), "[include virtual=y wait=yes]");
        assert_eq!(parse(&["<!--#endif -->x<!--#else-->"]), "[endif]x[else]");
        assert_eq!(parse(&["<<!<!-<!--<!--#a -->"]), "<<!<!-<!--[a]");
        assert_eq!(parse(&["<!-- no -->"]), "<!-- no -->");
        assert_eq!(parse(&["x<!-"]), "x<!-");
    }

    #[test]
    fn pieces_of_any_size_give_the_same() {
        let text = "a<b <!-- c --><!--#set var=\"v\" value=\"\\\"\" -->d<!--#x a-->e<!--";
        let whole = parse(&[text]);
        assert_eq!(whole, "a<b <!-- c -->[set var=v value=\\\"]d[!]e<!--");
        for size in 1..text.len() {
            let pieces: Vec<&str> = text.as_bytes().chunks(size).map(|c| std::str::from_utf8(c).unwrap()).collect();
            assert_eq!(parse(&pieces), whole, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_none() {
        assert_eq!(parse(&["<!--#a b=\"12345678901234567\" -->x"]), "[!]x");
        assert_eq!(parse(&["<!--#a b=c -->x"]), "[!]x");
        assert_eq!(parse(&["<!--#a b -->x"]), "[!]x");
        assert_eq!(parse(&["<!--#a -x -->x"]), "[!]x");
    }
}
