//! SCGI (https://python.ca/scgi/protocol.txt): writes the netstring that goes before a request's body. Answers are CGI's.

/// The headers of a request, as they are gathered. The body's length is the first of them.
#[derive(Debug)]
pub struct Headers(Vec<u8>);

impl Headers {
    /// For a body of so many bytes.
    pub fn new(body: u64) -> Headers {
        Headers(format!("CONTENT_LENGTH\0{body}\0").into_bytes())
    }

    /// Adds one, name and value in pieces. A NUL ends a name or a value: what follows it would be taken for something else, so that
    /// what has one is left out. True: it was.
    pub fn add(&mut self, name: &[&[u8]], value: &[&[u8]]) -> bool {
        if name.iter().chain(value).any(|part| part.contains(&0)) {
            return true;
        }
        for parts in [name, value] {
            parts.iter().for_each(|part| self.0.extend_from_slice(part));
            self.0.push(0);
        }
        false
    }

    /// Appends the netstring.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.len().to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(&self.0);
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_netstring() {
        let mut headers = Headers::new(27);
        assert!(!headers.add(&[b"SCGI"], &[b"1"]));
        assert!(!headers.add(&[b"REQUEST_", b"METHOD"], &[b"PO", b"ST"]));
        assert!(headers.add(&[b"X"], &[b"a\0SCRIPT_NAME\0/admin"]));
        let mut out = Vec::new();
        headers.write(&mut out);
        assert_eq!(out, b"45:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0,");
    }
}
