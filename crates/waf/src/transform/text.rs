//! Transformations that make texts plain: case, blanks, comments, zeros, parity.

use super::is_space;

/// The no-break space of ISO 8859-1, which counts as a blank.
const NO_BREAK_SPACE: u8 = 0xa0;

/// Replaces bytes one by one.
pub(super) fn map_bytes(input: &[u8], out: &mut Vec<u8>, map: impl Fn(u8) -> u8) -> bool {
    if input.iter().all(|b| map(*b) == *b) {
        return false;
    }
    out.extend(input.iter().map(|b| map(*b)));
    true
}

/// Keeps some bytes.
pub(super) fn keep(input: &[u8], out: &mut Vec<u8>, wanted: impl Fn(u8) -> bool) -> bool {
    if input.iter().all(|b| wanted(*b)) {
        return false;
    }
    out.extend(input.iter().copied().filter(|b| wanted(*b)));
    true
}

/// A byte whose eighth bit makes the number of its bits even (0) or odd (1).
pub(super) fn with_parity(byte: u8, odd: u32) -> u8 {
    let seven = byte & 0x7f;
    if seven.count_ones() % 2 == odd { seven } else { seven | 0x80 }
}

pub(super) fn remove_whitespace(input: &[u8], out: &mut Vec<u8>) -> bool {
    let blank = |b: u8| is_space(b) || b == NO_BREAK_SPACE;
    if !input.iter().any(|b| blank(*b)) {
        return false;
    }
    for (at, byte) in input.iter().enumerate() {
        let begins_space = *byte == 0xc2 && input.get(at + 1) == Some(&NO_BREAK_SPACE);
        if !blank(*byte) && !begins_space {
            out.push(*byte);
        }
    }
    true
}

pub(super) fn compress_whitespace(input: &[u8], out: &mut Vec<u8>) -> bool {
    let blank = |b: u8| is_space(b) || b == NO_BREAK_SPACE;
    let plain =
        |at: usize| !blank(input[at]) || input[at] == b' ' && !input.get(at + 1).is_some_and(|next| blank(*next));
    if (0..input.len()).all(plain) {
        return false;
    }
    let mut was_blank = false;
    for byte in input {
        let is_blank = blank(*byte);
        match (is_blank, was_blank) {
            (true, false) => out.push(b' '),
            (true, true) => {}
            (false, _) => out.push(*byte),
        }
        was_blank = is_blank;
    }
    true
}

pub(super) fn trim(input: &[u8], out: &mut Vec<u8>, left: bool, right: bool) -> bool {
    let mut text = input;
    while let [first, rest @ ..] = text
        && left
        && is_space(*first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && right
        && is_space(*last)
    {
        text = rest;
    }
    out.extend_from_slice(text);
    text.len() != input.len()
}

/// What shells ignore in commands is dropped: quotes, carets and backslashes, blanks before `/` and `(`; `,` and `;` are blanks.
pub(super) fn command_line(input: &[u8], out: &mut Vec<u8>) -> bool {
    let mut was_blank = false;
    for byte in input {
        match byte {
            b'"' | b'\'' | b'\\' | b'^' => {}
            b' ' | b',' | b';' | b'\t' | b'\r' | b'\n' => {
                if !was_blank {
                    out.push(b' ');
                }
                was_blank = true;
            }
            b'/' | b'(' => {
                if was_blank {
                    out.pop();
                }
                was_blank = false;
                out.push(*byte);
            }
            _ => {
                was_blank = false;
                out.push(byte.to_ascii_lowercase());
            }
        }
    }
    out != input
}

/// Every C comment becomes one blank, one that is not closed too.
pub(super) fn replace_comments(input: &[u8], out: &mut Vec<u8>) -> bool {
    let mut rest = input;
    let mut changed = false;
    while let Some(at) = memchr::memmem::find(rest, b"/*") {
        changed = true;
        out.extend_from_slice(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + 2..];
        rest = memchr::memmem::find(rest, b"*/").map_or(&[][..], |end| &rest[end + 2..]);
    }
    out.extend_from_slice(rest);
    changed
}

/// Drops C and HTML comments, and what stands behind `--` and `#`.
pub(super) fn remove_comments(input: &[u8], out: &mut Vec<u8>) -> bool {
    let mut rest = input;
    while let Some(first) = rest.first() {
        let skip = |mark: &[u8], from: usize| {
            let end = memchr::memmem::find(&rest[from..], mark);
            end.map_or(&[][..], |end| &rest[from + end + mark.len()..])
        };
        rest = if rest.starts_with(b"/*") {
            skip(b"*/", 2)
        } else if rest.starts_with(b"<!--") {
            skip(b"-->", 4)
        } else if rest.starts_with(b"--") || *first == b'#' {
            &[]
        } else {
            out.push(*first);
            &rest[1..]
        };
    }
    out.len() != input.len()
}

/// Drops the marks of comments and keeps what they hold.
pub(super) fn remove_comment_marks(input: &[u8], out: &mut Vec<u8>) -> bool {
    let mut rest = input;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'/' | b'*' | b'<' | b'-' | b'#')) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let mark = match rest {
            [b'<', b'!', b'-', b'-', ..] => 4,
            [b'-', b'-', b'>', ..] => 3,
            [b'/', b'*', ..] | [b'*', b'/', ..] | [b'-', b'-', ..] => 2,
            [b'#', ..] => 1,
            _ => 0,
        };
        if mark == 0 {
            out.push(rest[0]);
        }
        rest = &rest[mark.max(1)..];
    }
    out.extend_from_slice(rest);
    out.len() != input.len()
}
