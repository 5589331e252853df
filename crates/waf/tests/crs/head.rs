//! Cuts a request into line, header lines and body: for the suite, for a fuzz target and for what replays its corpus.

/// The parts of a request of HTTP/1, in borrowed bytes.
pub(crate) struct Head<'a> {
    /// Method, target and version.
    pub(crate) line: [&'a [u8]; 3],
    pub(crate) headers: Vec<(&'a [u8], &'a [u8])>,
    pub(crate) body: &'a [u8],
}

/// Cuts a request as leniently as a server that lets the rules judge it.
pub(crate) fn cut(bytes: &[u8]) -> Head<'_> {
    let mut lines = bytes.split_inclusive(|b| *b == b'\n');
    let mut at = 0;
    let first = lines.next().unwrap_or_default();
    at += first.len();
    let first = first.trim_ascii_end();
    let method_end = first.iter().position(|b| *b == b' ').unwrap_or(first.len());
    let rest = first.get(method_end + 1..).unwrap_or_default();
    let (uri, version) = match rest.iter().rposition(|b| *b == b' ') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b"HTTP/0.9"[..]),
    };
    let mut headers = Vec::new();
    for line in lines {
        at += line.len();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        headers.push((&line[..colon], line.get(colon + 1..).unwrap_or_default().trim_ascii()));
    }
    Head { line: [&first[..method_end], uri, version], headers, body: &bytes[at..] }
}
