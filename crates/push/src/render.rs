//! Messages in the forms that subscribers want, other than plain.

use crate::message::Message;

/// An event (WHATWG HTML, section 9.2.6): each line of the message is a line of data. A line may end with CR, LF or both there.
pub(crate) fn eventsource(message: &Message, event: &[u8], id: &[u8], out: &mut Vec<u8>) {
    if !event.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event);
        out.push(b'\n');
    }
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id);
    out.push(b'\n');
    let mut rest = message.data();
    loop {
        let end = rest.iter().position(|b| matches!(b, b'\r' | b'\n'));
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
        out.push(b'\n');
        let Some(end) = end else { break };
        let both = rest[end] == b'\r' && rest.get(end + 1) == Some(&b'\n');
        rest = &rest[end + 1 + usize::from(both)..];
    }
    out.push(b'\n');
}

/// The payload of a frame under the subprotocol `ws+meta.nchan`: what is known of the message, an empty line, the message.
pub fn with_meta(message: &Message, id: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id);
    if !message.content_type().is_empty() {
        out.extend_from_slice(b"\ncontent-type: ");
        out.extend_from_slice(message.content_type());
    }
    out.extend_from_slice(b"\n\n");
    out.extend_from_slice(message.data());
}

/// A part of multipart/mixed (RFC 2046 section 5.1), which ends with the boundary of the next, so that a reader has it at once.
pub fn multipart_part(message: &Message, tags: &[u8], boundary: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\nLast-Modified: ");
    out.extend_from_slice(&wire::date::format_http(message.id.time));
    out.extend_from_slice(b"\r\nEtag: ");
    out.extend_from_slice(tags);
    if !message.content_type().is_empty() {
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(message.content_type());
    }
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(message.data());
    out.extend_from_slice(b"\r\n--");
    out.extend_from_slice(boundary);
}
