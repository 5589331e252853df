//! `multipart/form-data`: RFC 7578 and RFC 2046 section 5.1. What a lenient and a strict reader would see differently is flagged:
//! that is where attacks hide.

use crate::limits::{MAX_BOUNDARY_BYTES, MAX_PART_HEADER_BYTES, MAX_PARTS};

/// One part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// `name` of its `Content-Disposition`.
    pub name: Vec<u8>,
    /// `filename`; None: a field.
    pub filename: Option<Vec<u8>>,
    /// Some take it for a field: it has only `filename*`, which forms do not have (RFC 7578 section 4.2) and PHP passes over, or its file has no name.
    pub is_field: bool,
    /// Its header lines.
    pub headers: Vec<Vec<u8>>,
    /// What it holds.
    pub content: &'a [u8],
}

/// What is odd about a body: SecLang's `MULTIPART_...` of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) struct Flags {
    pub boundary_quoted: bool,
    pub boundary_whitespace: bool,
    pub data_before: bool,
    pub data_after: bool,
    pub header_folding: bool,
    pub invalid_header_folding: bool,
    pub invalid_quoting: bool,
    pub invalid_part: bool,
    pub lf_line: bool,
    pub crlf_line: bool,
    pub missing_semicolon: bool,
    pub unmatched_boundary: bool,
    pub too_many_parts: bool,
}

impl Flags {
    /// `MULTIPART_STRICT_ERROR`, but for a body that cannot be read at all.
    pub(crate) fn strict(&self) -> bool {
        self.boundary_quoted
            || self.boundary_whitespace
            || self.data_before
            || self.data_after
            || self.header_folding
            || self.invalid_header_folding
            || self.invalid_quoting
            || self.invalid_part
            || self.lf_line
            || self.missing_semicolon
            || self.too_many_parts
    }
}

/// A body that was read, as far as that went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Multipart<'a> {
    /// The parts.
    pub parts: Vec<Part<'a>>,
    /// What is odd.
    pub flags: Flags,
    /// Why it could not be read to its end.
    pub error: Option<String>,
    /// It has too much of something: what stands behind may be read by others.
    pub is_over: bool,
}

/// Reads a body. `content_type` is the header that names its boundary.
pub(crate) fn parse<'a>(body: &'a [u8], content_type: &[u8]) -> Multipart<'a> {
    let mut read = Multipart::default();
    let boundary = match boundary(content_type, &mut read.flags) {
        Ok(boundary) => boundary,
        Err(message) => {
            read.error = Some(message);
            return read;
        }
    };
    let mark = [b"--", boundary].concat();
    if let Err(message) = read.parts_of(body, &mark) {
        read.error = Some(message);
    }
    read
}

/// The boundary: up to 70 characters of a set, RFC 2046 section 5.1.1.
fn boundary<'a>(content_type: &'a [u8], flags: &mut Flags) -> Result<&'a [u8], String> {
    let small = content_type.to_ascii_lowercase();
    let mut places = memchr::memmem::find_iter(&small, b"boundary");
    let at = places.next().ok_or("the boundary is missing")?;
    if places.any(|other| small[other + 8..].trim_ascii_start().starts_with(b"=")) {
        return Err("there are several boundaries".to_owned());
    }
    let before = small[..at].trim_ascii_end().last();
    if !matches!(before, Some(b';' | b',')) {
        flags.missing_semicolon = true;
    }
    let rest = &content_type[at + b"boundary".len()..];
    let rest = match rest.trim_ascii_start().strip_prefix(b"=") {
        Some(value) => {
            flags.boundary_whitespace |=
                rest.first() != Some(&b'=') || value.first().is_some_and(u8::is_ascii_whitespace);
            value.trim_ascii_start()
        }
        None => return Err("the boundary has no value".to_owned()),
    };
    let value = if let Some(quoted) = rest.strip_prefix(b"\"") {
        flags.boundary_quoted = true;
        let end = memchr::memchr(b'"', quoted).ok_or("the boundary's quote is not closed")?;
        &quoted[..end]
    } else {
        let end = rest.iter().position(|b| matches!(b, b';' | b',')).unwrap_or(rest.len());
        rest[..end].trim_ascii_end()
    };
    flags.boundary_whitespace |= value.iter().any(u8::is_ascii_whitespace);
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b" '()+_,-./:=?".contains(b);
    if value.is_empty() || value.len() > MAX_BOUNDARY_BYTES || !value.iter().all(allowed) {
        return Err("the boundary is invalid".to_owned());
    }
    Ok(value)
}

impl<'a> Multipart<'a> {
    fn parts_of(&mut self, body: &'a [u8], mark: &[u8]) -> Result<(), String> {
        let mut begin: Option<usize> = None;
        let mut closed = false;
        for at in memchr::memmem::find_iter(body, mark) {
            if at > 0 && body[at - 1] != b'\n' {
                continue;
            }
            let rest = &body[at + mark.len()..];
            let last = rest.starts_with(b"--");
            let rest = if last { &rest[2..] } else { rest };
            let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
            if !line.trim_ascii().is_empty() {
                // A line that only begins like a boundary: PHP ends a part there.
                self.flags.unmatched_boundary = true;
                self.error.get_or_insert_with(|| "a line begins like the boundary".to_owned());
                if !last || closed {
                    continue;
                }
            }
            match begin {
                None if closed => self.flags.data_after = true,
                None => self.flags.data_before |= at > 0,
                Some(from) => {
                    let end = body[..at].strip_suffix(b"\r\n").map_or(at - 1, <[u8]>::len);
                    self.part(&body[from..end.max(from)])?;
                }
            }
            if last {
                self.flags.data_after |= !rest.trim_ascii().is_empty();
                (begin, closed) = (None, true);
            } else {
                self.line_end(line, rest.len() > line.len());
                let next = at + mark.len() + line.len() + 1;
                if next > body.len() {
                    return Err("the body ends behind a boundary".to_owned());
                }
                begin = Some(next);
            }
        }
        match (begin, closed) {
            (Some(_), _) => Err("the last boundary is missing".to_owned()),
            (None, false) => Err("no boundary is in the body".to_owned()),
            (None, true) => Ok(()),
        }
    }

    fn line_end(&mut self, line: &[u8], ended: bool) {
        if line.ends_with(b"\r") {
            self.flags.crlf_line = true;
        } else if ended {
            self.flags.lf_line = true;
        }
    }

    fn part(&mut self, text: &'a [u8]) -> Result<(), String> {
        if self.parts.len() == MAX_PARTS {
            (self.flags.too_many_parts, self.is_over) = (true, true);
            return Err(format!("more than {MAX_PARTS} parts"));
        }
        let mut part = Part::default();
        let mut at = 0;
        loop {
            let rest = &text[at..];
            let Some(end) = memchr::memchr(b'\n', rest) else {
                self.flags.invalid_part = true;
                return Err("the headers of a part do not end".to_owned());
            };
            at += end + 1;
            if at > MAX_PART_HEADER_BYTES {
                self.is_over = true;
                return Err(format!("more than {MAX_PART_HEADER_BYTES} bytes of headers in a part"));
            }
            self.line_end(&rest[..end], true);
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            if line.is_empty() {
                break;
            }
            if matches!(line[0], b' ' | b'\t') {
                self.flags.header_folding = true;
                let Some(before) = part.headers.last_mut() else {
                    self.flags.invalid_header_folding = true;
                    return Err("a part begins with a folded line".to_owned());
                };
                before.push(b' ');
                before.extend_from_slice(line.trim_ascii_start());
                continue;
            }
            // Where others end a line or a text. Rules see the part all the same.
            if line.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
                self.flags.invalid_part = true;
                self.error.get_or_insert_with(|| "a header of a part has a control character".to_owned());
            }
            if memchr::memchr(b':', line).is_none() {
                self.flags.invalid_part = true;
                return Err("a header of a part has no colon".to_owned());
            }
            part.headers.push(line.to_vec());
        }
        part.content = &text[at..];
        self.disposition(&mut part)?;
        self.parts.push(part);
        Ok(())
    }

    /// `Content-Disposition: form-data; name="a"; filename="b"`
    fn disposition(&mut self, part: &mut Part<'a>) -> Result<(), String> {
        let is_disposition = |line: &&Vec<u8>| {
            let at = memchr::memchr(b':', line).unwrap_or(0);
            line[..at].trim_ascii().eq_ignore_ascii_case(b"content-disposition")
        };
        let mut lines = part.headers.iter().filter(is_disposition);
        let (Some(line), None) = (lines.next(), lines.next()) else {
            self.flags.invalid_part = true;
            return Err("a part has not one Content-Disposition".to_owned());
        };
        let value = &line[memchr::memchr(b':', line).unwrap_or(0) + 1..];
        let value = value.trim_ascii();
        if value.len() < 9 || !value[..9].eq_ignore_ascii_case(b"form-data") {
            self.flags.invalid_part = true;
            return Err("a part is not form-data".to_owned());
        }
        let (mut name, mut filename, mut extended) = (None, None, None);
        let mut rest = value[9..].trim_ascii_start();
        while !rest.is_empty() {
            match rest.strip_prefix(b";") {
                Some(behind) => rest = behind.trim_ascii_start(),
                None => self.flags.missing_semicolon = true,
            }
            if rest.is_empty() {
                break;
            }
            let Some((key, value, behind)) = self.parameter(rest) else {
                self.flags.invalid_part = true;
                return Err("a parameter of Content-Disposition is invalid".to_owned());
            };
            let known = match key.to_ascii_lowercase().as_slice() {
                b"name" => Some(&mut name),
                b"filename" => Some(&mut filename),
                b"filename*" => Some(&mut extended),
                _ => None,
            };
            // What this reader does not know another one may read otherwise: `x=a'; filename=f; y=b'` is one parameter for PHP, and a field.
            let Some(place) = known else {
                self.flags.invalid_part = true;
                return Err("Content-Disposition has an unknown parameter".to_owned());
            };
            if place.replace(value).is_some() {
                self.flags.invalid_part = true;
                return Err("Content-Disposition says something twice".to_owned());
            }
            rest = behind.trim_ascii_start();
        }
        let Some(name) = name else {
            self.flags.invalid_part = true;
            return Err("a part has no name".to_owned());
        };
        part.is_field = filename.as_ref().is_none_or(Vec::is_empty);
        (part.name, part.filename) = (name, filename.or(extended));
        Ok(())
    }

    /// `key=token` or `key="quoted"`; returns what is behind.
    fn parameter<'t>(&mut self, text: &'t [u8]) -> Option<(&'t [u8], Vec<u8>, &'t [u8])> {
        let at = memchr::memchr(b'=', text)?;
        // With a blank before the sign it is another name to PHP.
        let key = &text[..at];
        if key.iter().any(u8::is_ascii_whitespace) {
            return None;
        }
        let rest = text[at + 1..].trim_ascii_start();
        let Some(quoted) = rest.strip_prefix(b"\"") else {
            self.flags.invalid_quoting |= rest.first() == Some(&b'\'');
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            return Some((key, rest[..end].trim_ascii().to_vec(), &rest[end..]));
        };
        let mut value = Vec::new();
        let mut at = 0;
        loop {
            match *quoted.get(at)? {
                b'"' => return Some((key, value, &quoted[at + 1..])),
                b'\\' if matches!(quoted.get(at + 1), Some(b'"' | b'\\')) => {
                    value.push(quoted[at + 1]);
                    at += 2;
                }
                byte => {
                    value.push(byte);
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &[u8] = b"multipart/form-data; boundary=XX";

    #[test]
    fn parts_are_found() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"a\\\"b\"\r\n\r\none\r\n--XX\r\n\
            Content-Disposition: form-data; name=f; filename=\"x.php\"\r\nContent-Type: text/plain\r\n\r\n--X\r\ntwo\r\n--XX--\r\n";
        let read = parse(body, TYPE);
        assert_eq!(read.error, None);
        assert_eq!((read.parts[0].name.as_slice(), read.parts[0].content), (&b"a\"b"[..], &b"one"[..]));
        assert_eq!(read.parts[1].filename.as_deref(), Some(&b"x.php"[..]));
        assert_eq!((read.parts[1].content, read.parts[1].headers.len()), (&b"--X\r\ntwo"[..], 2));
        assert!(!read.flags.strict(), "{:?}", read.flags);
    }

    #[test]
    fn what_is_odd_is_flagged() {
        let flags = |body: &[u8], kind: &[u8]| parse(body, kind).flags;
        let plain = b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--\r\n";
        assert!(flags(plain, b"multipart/form-data; boundary=\"XX\"").boundary_quoted);
        assert!(flags(plain, b"multipart/form-data; boundary = XX").boundary_whitespace);
        assert!(flags(plain, b"multipart/form-data boundary=XX").missing_semicolon);
        assert!(flags(&[b"x\r\n", &plain[..]].concat(), TYPE).data_before);
        assert!(flags(&[&plain[..], b"x"].concat(), TYPE).data_after);
        assert!(flags(b"--XX\nContent-Disposition: form-data; name=a\n\n1\n--XX--\n", TYPE).lf_line);
        assert!(flags(b"--XX\r\nContent-Disposition: form-data;\r\n name=a\r\n\r\n1\r\n--XX--", TYPE).header_folding);
        assert!(flags(b"--XX\r\nContent-Disposition: form-data; name='a'\r\n\r\n1\r\n--XX--", TYPE).invalid_quoting);
        assert!(
            flags(b"--XX\r\nContent-Disposition: form-data; name=\"a\" filename=b\r\n\r\n1\r\n--XX--", TYPE)
                .missing_semicolon
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |body: &[u8], kind: &[u8]| parse(body, kind).error.unwrap_or_default();
        assert_eq!(error(b"", b"multipart/form-data"), "the boundary is missing");
        assert!(error(b"", b"multipart/form-data; boundary=a; boundary=b").contains("several"));
        assert!(error(b"", b"multipart/form-data; boundary=a{b").contains("invalid"));
        assert!(error(b"x", TYPE).contains("no boundary"));
        assert!(error(b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1", TYPE).contains("last boundary"));
        assert!(error(b"--XX\r\nX: y\r\n\r\n1\r\n--XX--", TYPE).contains("Content-Disposition"));
        assert!(error(b"--XX\r\nContent-Disposition: form-data\r\n\r\n1\r\n--XX--", TYPE).contains("no name"));
        assert!(
            error(b"--XX\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\n1\r\n--XX--", TYPE).contains("twice")
        );
        assert!(error(b"--XX\r\n--XX--", TYPE).contains("do not end"));
        for odd in ["filename =a", "filename=\"a\rb\"", "filename=\"a\0\"", "x\r; filename=a"] {
            let body = format!("--XX\r\nContent-Disposition: form-data; name=a; {odd}\r\n\r\n1\r\n--XX--");
            let read = parse(body.as_bytes(), TYPE);
            assert!(read.flags.strict() && read.error.is_some(), "{odd:?}");
        }
        let junk = b"--XX\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n1\r\n--XXjunk\r\n2\r\n--XX--";
        assert!(error(junk, TYPE).contains("like the boundary"));
        assert_eq!(parse(junk, TYPE).parts[0].content, b"1\r\n--XXjunk\r\n2");
        for odd in ["x=a", "x=a'; filename=f; y=b'", "filename**=a", "NAMES=a", "x=\"\"; filename=a"] {
            let body = format!("--XX\r\nContent-Disposition: form-data; name=a; {odd}\r\n\r\n1\r\n--XX--");
            assert!(error(body.as_bytes(), TYPE).contains("unknown parameter"), "{odd}");
        }
    }

    #[test]
    fn what_some_take_for_a_field_is_one() {
        for (filename, is_field) in [
            ("", true),
            ("; filename=\"\"", true),
            ("; filename=", true),
            ("; filename*=UTF-8''x", true),
            ("; filename=x", false),
            ("; filename=\"x\"; filename*=UTF-8''x", false),
            ("; filename=\"\"; filename*=UTF-8''x", true),
        ] {
            let body = format!("--XX\r\nContent-Disposition: form-data; name=a{filename}\r\n\r\n1\r\n--XX--");
            let read = parse(body.as_bytes(), TYPE);
            assert_eq!((read.error, read.parts[0].is_field), (None, is_field), "{filename}");
        }
    }
}
