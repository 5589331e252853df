//! `@pm`, `@pmFromFile`, `@pmf`: one of many phrases, anywhere in the value; case does not matter.

use crate::prefilter::Need;
use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind};

/// A list of phrases.
#[derive(Debug)]
pub(crate) struct Pm {
    automaton: AhoCorasick,
    need: Need,
}

impl Pm {
    /// Phrases between blanks. `|41 42|` is bytes by their hexadecimal digits, as in Snort's rules.
    pub(crate) fn words(text: &[u8]) -> Result<Pm, String> {
        Pm::build(decoded(text).split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty()))
    }

    /// Phrases of files, one a line; lines that begin with `#` are comments.
    pub(crate) fn lines(files: &[Vec<u8>]) -> Result<Pm, String> {
        let lines = files.iter().flat_map(|f| f.split(|b| *b == b'\n')).map(<[u8]>::trim_ascii);
        Pm::build(lines.filter(|l| !l.is_empty() && l[0] != b'#'))
    }

    fn build<'a>(phrases: impl Iterator<Item = &'a [u8]>) -> Result<Pm, String> {
        let phrases: Vec<&[u8]> = phrases.collect();
        if phrases.is_empty() {
            return Err("a list of phrases is empty".to_owned());
        }
        let automaton = AhoCorasickBuilder::new()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::NoncontiguousNFA))
            .build(&phrases)
            .map_err(|e| e.to_string())?;
        Ok(Pm { automaton, need: Need::of_phrases(phrases.into_iter()) })
    }

    /// What a value must have to hold a phrase.
    pub(crate) fn need(&self) -> Need {
        self.need.clone()
    }

    /// Where the first phrase stands.
    pub(crate) fn find(&self, text: &[u8]) -> Option<(u32, u32)> {
        self.automaton.find(text).map(|m| (m.start() as u32, m.end() as u32))
    }
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut parts = text.split(|b| *b == b'|');
    out.extend_from_slice(parts.next().unwrap_or_default());
    let parts: Vec<&[u8]> = parts.collect();
    let mut at = 0;
    while at < parts.len() {
        let digits: Option<Vec<u8>> = parts[at]
            .split(|b| *b == b' ')
            .map(|d| std::str::from_utf8(d).ok().filter(|d| d.len() == 2).and_then(|d| u8::from_str_radix(d, 16).ok()))
            .collect();
        match digits {
            Some(bytes) if at + 1 < parts.len() => {
                out.extend(bytes);
                out.extend_from_slice(parts[at + 1]);
                at += 2;
            }
            _ => {
                out.push(b'|');
                out.extend_from_slice(parts[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_any_case() {
        let pm = Pm::words(b"foo bar |41 42|c").unwrap();
        assert_eq!(pm.find(b"xxBAR"), Some((2, 5)));
        assert_eq!(pm.find(b"xabcx"), Some((1, 4)));
        assert_eq!(pm.find(b"fo ba"), None);
        assert!(Pm::lines(&[b"# only\n\n".to_vec()]).is_err());
        assert_eq!(Pm::lines(&[b"# a\nb c\r\nd".to_vec()]).unwrap().find(b"ab c"), Some((1, 4)));
    }
}
