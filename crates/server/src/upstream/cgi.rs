//! The heads of CGI's answers (RFC 3875 section 6), which FastCGI, uwsgi and SCGI share: headers, and `Status` in place of a status
//! line. An application behind uwsgi or SCGI may send a status line as well.

use wire::http1::known::KnownHeader as K;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};
use wire::span::Span;

/// How the head of an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// There always is one: HTTP's.
    #[default]
    Http,
    /// FastCGI has none.
    Fields,
    /// SCGI and uwsgi may have one.
    Either,
}

impl Kind {
    /// What reads it.
    pub(super) fn parser(self) -> ResponseParser {
        match self {
            Kind::Http => ResponseParser::default(),
            Kind::Fields => ResponseParser::without_status_line(),
            Kind::Either => ResponseParser::with_optional_status_line(),
        }
    }
}

/// Completes a head: `Status`, or what stands for it, where it has no status line of its own. `keep`: the application leaves the
/// connection open. The error is logged by the caller.
pub(super) fn complete(head: &mut ResponseHead, bytes: &[u8], keep: bool) -> Result<(), String> {
    // The body's end is the protocol's business.
    head.headers.retain(|h| h.known != K::TransferEncoding);
    head.present &= !K::TransferEncoding.bit();
    if head.status != 0 {
        return Ok(());
    }
    head.version = if keep { Version::HTTP11 } else { Version::HTTP10 };
    head.status_line = Span::default();
    let Some(line) = head.header(K::Status).copied() else {
        head.status = if head.header(K::Location).is_some() { 302 } else { 200 };
        return Ok(());
    };
    let value = line.value.of(bytes);
    // A fourth digit would go out as it is, and be read as who knows what.
    let is_longer = value.get(3).is_some_and(u8::is_ascii_digit);
    let digits = value.get(..3).filter(|d| !is_longer && d.iter().all(u8::is_ascii_digit));
    let code = digits.and_then(|d| std::str::from_utf8(d).ok()?.parse().ok());
    let Some(code) = code else {
        return Err(format!("upstream sent invalid status \"{}\"", String::from_utf8_lossy(value)));
    };
    head.status = code;
    if value.len() > 3 {
        head.status_line = line.value;
    }
    Ok(())
}

/// Reads a whole head again that was read before. False: it is none.
pub fn parse(head: &mut ResponseHead, bytes: &[u8], kind: Kind) -> bool {
    *head = ResponseHead::default();
    matches!(kind.parser().parse(bytes, head), Ok(Parsed::Complete { .. })) && complete(head, bytes, false).is_ok()
}
