//! Where HTTP/1.1 messages end, and whether they ask to close: all the floor knows of the protocol.

use crate::system::find;

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Heads longer than this close the connection.
pub(crate) const HEAD_MAX: usize = 64 * 1024;

/// Whether a head asks to close. The names as our load generators and backends write them.
pub(crate) fn closes(head: &[u8]) -> bool {
    find(head, b"onnection: close").is_some()
}

/// The length of the first whole head in `bytes`.
pub(crate) fn head_length(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < HEAD_END.len() {
        return None;
    }
    find(bytes, HEAD_END).map(|end| end + HEAD_END.len())
}

/// The body's length by `Content-Length`; none is 0.
pub(crate) fn body_length(head: &[u8]) -> usize {
    let Some(name) = find(head, b"ontent-Length: ").or_else(|| find(head, b"ontent-length: ")) else {
        return 0;
    };
    let digits = head[name + b"ontent-Length: ".len()..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0usize, |length, digit| length.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_bodies() {
        let message = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\nConnection: close\r\n\r\nbody";
        let head = head_length(message).expect("a whole head");
        assert_eq!(&message[head..], b"body");
        assert_eq!(body_length(&message[..head]), 17);
        assert!(closes(&message[..head]));
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r"), None);
        assert_eq!(head_length(b"\r\n"), None);
        assert_eq!(body_length(b"GET / HTTP/1.1\r\n\r\n"), 0);
    }
}
