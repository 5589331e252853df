//! A check by an HTTP request: sends it, reads the answer as far as it may matter, judges it.

use super::cause::Cause;
use super::check::HttpAsk;
use super::link::ProbeLink;
use super::matching::{self, MAX_BODY};
use super::require;
use crate::upstream::peer::Peer;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::known::KnownHeader as K;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::values::{contains_ignoring_case, parse_content_length};
use wire::http1::{Parsed, Version};

/// The longest head of an answer.
const MAX_HEAD: usize = 64 * 1024;

/// An answer.
pub(super) struct Answer<'b> {
    pub(super) head: &'b ResponseHead,
    /// What the head was read from.
    pub(super) bytes: &'b [u8],
    pub(super) body: &'b [u8],
}

impl matching::Answer for Answer<'_> {
    fn status(&self) -> u16 {
        self.head.status
    }

    fn header<'a>(&'a self, name: &'a [u8]) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        let lines = self.head.headers.iter();
        let lines = lines.filter(move |l| l.name.of(self.bytes).eq_ignore_ascii_case(name));
        Box::new(lines.map(|l| l.value.of(self.bytes)))
    }

    fn body(&self) -> &[u8] {
        self.body
    }
}

/// Asks. True: the connection may be used again.
///
/// # Errors
/// What is wrong with the answer.
pub async fn ask(link: &mut ProbeLink, ask: &HttpAsk, peer: &Peer) -> Result<bool, Cause> {
    link.send(&ask.request).await?;
    let mut bytes = Vec::new();
    let (head, len) = read_head(link, &mut bytes).await?;
    let mut body = Vec::new();
    let complete = if ask.is_head || matches!(head.status, 204 | 304) {
        bytes.len() == len
    } else {
        read_body(link, &head, &mut bytes, len, &mut body).await?
    };
    ask.wanted.judge(&Answer { head: &head, bytes: &bytes, body: &body })?;
    require::judge(&ask.wanted.require, peer, &bytes, &head)?;
    let closes =
        head.headers.iter().any(|l| l.known == K::Connection && contains_ignoring_case(l.value.of(&bytes), b"close"));
    Ok(complete && !closes && head.version >= Version::HTTP11)
}

/// The head, and how many bytes it has.
async fn read_head(link: &mut ProbeLink, bytes: &mut Vec<u8>) -> Result<(ResponseHead, usize), Cause> {
    let (mut parser, mut head) = (ResponseParser::default(), ResponseHead::default());
    loop {
        if link.receive(bytes).await? == 0 {
            return Err(if bytes.is_empty() { Cause::Closed } else { nonsense("an answer cut short") });
        }
        match parser.parse(bytes, &mut head) {
            Ok(Parsed::Complete { len }) if (100..200).contains(&head.status) && head.status != 101 => {
                bytes.drain(..len);
                parser = ResponseParser::default();
                if bytes.is_empty() {
                    continue;
                }
                // What follows an interim answer stands in the buffer already.
                match parser.parse(bytes, &mut head) {
                    Ok(Parsed::Complete { len }) => return Ok((head, len)),
                    Ok(_) => {}
                    Err(_) => return Err(nonsense("a head that cannot be read")),
                }
            }
            Ok(Parsed::Complete { .. }) if head.version == Version::HTTP09 => {
                return Err(nonsense(&format!("no HTTP: \"{}\"", matching::shown(bytes))));
            }
            Ok(Parsed::Complete { len }) => return Ok((head, len)),
            Ok(_) if bytes.len() > MAX_HEAD => return Err(nonsense("a head without an end")),
            Ok(_) => {}
            Err(_) => return Err(nonsense("a head that cannot be read")),
        }
    }
}

/// The body from `at` on, as far as it is looked at. True: all of it, and nothing behind it.
async fn read_body(
    link: &mut ProbeLink,
    head: &ResponseHead,
    bytes: &mut Vec<u8>,
    at: usize,
    body: &mut Vec<u8>,
) -> Result<bool, Cause> {
    let chunked = head.header(K::TransferEncoding).is_some();
    let length = head.header(K::ContentLength).and_then(|l| parse_content_length(l.value.of(bytes)));
    let mut rest = bytes.split_off(at);
    let mut decoder = Decoder::new(Trailers::Drop);
    let mut read = 0;
    loop {
        if chunked {
            loop {
                match decoder.decode(&rest, &mut read) {
                    Ok(Event::Data(span)) => body.extend_from_slice(span.of(&rest)),
                    Ok(Event::More) => break,
                    Ok(Event::End | Event::Trailers) => return Ok(read == rest.len()),
                    Err(_) => return Err(nonsense("an invalid chunked body")),
                }
            }
            (rest, read) = (Vec::new(), 0);
        } else {
            body.append(&mut rest);
            if let Some(length) = length
                && body.len() as u64 >= length
            {
                let exact = body.len() as u64 == length;
                body.truncate(length as usize);
                return Ok(exact);
            }
        }
        if body.len() >= MAX_BODY {
            body.truncate(MAX_BODY);
            return Ok(false);
        }
        if link.receive(&mut rest).await? == 0 {
            let whole = !chunked && length.is_none();
            return if whole { Ok(false) } else { Err(nonsense("a body cut short")) };
        }
    }
}

/// What came is not what the protocol says.
pub(super) fn nonsense(text: &str) -> Cause {
    Cause::Protocol(text.into())
}
