//! Text that others wrote, as a terminal may be shown it: what a server, a peer or a file says must not steer the operator's
//! screen. Whoever prints such text prints it through [`plain`], and no other way.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Characters that are shown of one text; longer ones end in `...`.
const LONGEST: usize = 1024;

/// The text with whatever a terminal would act on made visible: control characters (C0, C1, delete) as `\x1b`, and those that
/// are not seen or turn the writing around (Unicode Standard Annex 9) as `\u{202e}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_long = text.len() > LONGEST && text.chars().nth(LONGEST).is_some();
    if !is_long && !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len().min(LONGEST) + 16);
    for c in text.chars().take(LONGEST) {
        let written = match u32::from(c) {
            _ if !steers(c) => {
                out.push(c);
                Ok(())
            }
            code @ ..=0xff => write!(out, "\\x{code:02x}"),
            code => write!(out, "\\u{{{code:x}}}"),
        };
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    if is_long {
        out.push_str("...");
    }
    Cow::Owned(out)
}

/// The same for bytes, which need not be text.
pub fn plain_bytes(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes)).into_owned()
}

/// The same for text of several lines, each as [`plain`] gives it.
pub fn lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether a terminal does something else with a character than to show it.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_seen() {
        assert_eq!(plain("/a?b=\u{e4}"), "/a?b=\u{e4}");
        assert!(matches!(plain("plain"), Cow::Borrowed(_)));
        assert_eq!(plain("a\x1b]0;x\x07b\r\n"), "a\\x1b]0;x\\x07b\\x0d\\x0a");
        assert_eq!(plain("\u{9b}31m"), "\\x9b31m");
        assert_eq!(plain("gpj\u{202e}exe"), "gpj\\u{202e}exe");
        assert_eq!(plain_bytes(b"\xff\x7f"), "\u{fffd}\\x7f");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = plain(&"\u{e4}".repeat(LONGEST + 1)).into_owned();
        assert_eq!(long.chars().count(), LONGEST + 3);
        assert_eq!(plain(&"x".repeat(LONGEST)).len(), LONGEST);
    }
}
