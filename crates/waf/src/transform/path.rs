//! Paths without detours: `normalizePath` and `normalizePathWin`.

/// Drops empty and `.` segments and resolves `..`. A relative path may begin with `..`, an absolute one may not.
pub(super) fn normalize(input: &[u8], backslashes: bool, out: &mut Vec<u8>) -> bool {
    let has_backslash = backslashes && memchr::memchr(b'\\', input).is_some();
    if !has_backslash && is_short(input) {
        return false;
    }
    let is_slash = |b: u8| b == b'/' || backslashes && b == b'\\';
    let absolute = input.first().is_some_and(|b| is_slash(*b));
    let open = input.last().is_some_and(|b| is_slash(*b));
    if absolute {
        out.push(b'/');
    }
    let root = out.len();
    // Where `..` may not go back behind: segments of `..` that nothing resolves.
    let mut floor = root;
    for segment in input.split(|b| is_slash(*b)) {
        match segment {
            b"" | b"." => {}
            b".." if out.len() > floor => {
                let cut = out[floor..].iter().rposition(|b| *b == b'/').map_or(floor, |at| floor + at);
                out.truncate(cut);
            }
            b".." if absolute => {}
            _ => {
                if out.len() > root {
                    out.push(b'/');
                }
                out.extend_from_slice(segment);
                if segment == b".." {
                    floor = out.len();
                }
            }
        }
    }
    if open && out.len() > root {
        out.push(b'/');
    }
    true
}

/// Whether nothing of a path would be dropped.
fn is_short(input: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'/', &input[at..]) {
        let next = at + found + 1;
        match &input[next..] {
            [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..] => return false,
            _ => at = next,
        }
    }
    !matches!(input, [b'.'] | [b'.', b'/', ..] | [b'.', b'.'])
}
