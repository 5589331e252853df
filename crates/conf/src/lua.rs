//! Finds the end of a `*_by_lua_block` body: Lua's strings and comments are read just so far that braces in them do
//! not count. Never judges whether the Lua is right.

/// What is still open where the text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// The block.
    Block,
    /// A long bracket with so many `=`.
    Bracket(usize),
}

/// Where the `}` that closes the body stands, given the text after the opening `{`; an error if it never comes.
pub(crate) fn body_end(text: &[u8]) -> Result<usize, Open> {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Ok(at),
            b'}' => depth -= 1,
            quote @ (b'"' | b'\'') => {
                at = short_string_end(text, at + 1, quote);
                continue;
            }
            b'-' if text.get(at + 1) == Some(&b'-') => {
                at = comment_end(text, at + 2)?;
                continue;
            }
            b'[' => {
                if let Some(level) = long_bracket(&text[at..]) {
                    at = long_end(text, at + level + 2, level)?;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    Err(Open::Block)
}

/// One past the closing quote. A line end stops it as well: Lua refuses such a string, and one stray apostrophe must not
/// swallow the rest of the file.
fn short_string_end(text: &[u8], mut at: usize, quote: u8) -> usize {
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'\n' => return at,
            byte if byte == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

fn comment_end(text: &[u8], at: usize) -> Result<usize, Open> {
    if let Some(level) = long_bracket(&text[at..]) {
        return long_end(text, at + level + 2, level);
    }
    memchr::memchr(b'\n', &text[at..]).map(|newline| at + newline).ok_or(Open::Block)
}

/// The number of `=` if the text begins with `[`, any `=`, `[`.
fn long_bracket(text: &[u8]) -> Option<usize> {
    if text.first() != Some(&b'[') {
        return None;
    }
    let level = text[1..].iter().take_while(|&&byte| byte == b'=').count();
    (text.get(level + 1) == Some(&b'[')).then_some(level)
}

/// One past the `]`, `level` times `=`, `]` that closes the long bracket whose content begins at `at`.
fn long_end(text: &[u8], mut at: usize, level: usize) -> Result<usize, Open> {
    loop {
        let next = text.get(at..).and_then(|rest| memchr::memchr(b']', rest));
        at += next.ok_or(Open::Bracket(level))? + 1;
        let equals = text[at..].iter().take_while(|&&byte| byte == b'=').count();
        if equals == level && text.get(at + level) == Some(&b']') {
            return Ok(at + level + 1);
        }
        at += equals;
    }
}

#[cfg(test)]
mod tests {
    use super::{Open, body_end};

    #[track_caller]
    fn ends_at_the_bar(marked: &str) {
        let bar = marked.find('¦').expect("the text has a mark");
        assert_eq!(body_end(marked.replacen('¦', "", 1).as_bytes()), Ok(bar), "{marked}");
    }

    #[test]
    fn braces_balance() {
        ends_at_the_bar(" local t = { a = { 1 } } ¦} }");
        ends_at_the_bar("¦}");
    }

    #[test]
    fn braces_in_strings_and_comments_do_not_count() {
        ends_at_the_bar(r#" ngx.say("}{{") ngx.say('}\'}') ¦}"#);
        ends_at_the_bar(" -- don't }\n x = 1 ¦}");
        ends_at_the_bar(" --[[ } \n } ]] ¦}");
        ends_at_the_bar(" --[==[ } ]] } ]=] ]==] ¦}");
        ends_at_the_bar(" x = [[ }{ ]] y = [=[ ]] } ]=] ¦}");
        ends_at_the_bar(" t[t[1]] = a[ b[2]] ¦}");
        ends_at_the_bar(" x = [[ok--]] ¦}");
        ends_at_the_bar(" s = 'unfinished\n ¦}");
    }

    #[test]
    fn without_end() {
        assert_eq!(body_end(b" { }"), Err(Open::Block));
        assert_eq!(body_end(b" [[ } "), Err(Open::Bracket(0)));
        assert_eq!(body_end(b" -- }"), Err(Open::Block));
        assert_eq!(body_end(b" 'a\\"), Err(Open::Block));
        assert_eq!(body_end(b" --[==[ }]]"), Err(Open::Bracket(2)));
    }
}
