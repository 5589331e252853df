//! The head of a request before it is packed for a connection: names and values, each with its length before it.

/// Appends a field.
pub fn push(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for text in [name, value] {
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text);
    }
}

/// What stands before the value of `:path`, which is written behind it and then closed.
pub const PATH: &[u8] = b"\x05\0\0\0:path\0\0\0\0";

/// Notes the length of a value that was written from `start` on.
pub fn close(start: usize, out: &mut [u8]) {
    let len = (out.len() - start) as u32;
    out[start - size_of::<u32>()..start].copy_from_slice(&len.to_le_bytes());
}

/// The fields in order.
pub fn iter(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut text = move || {
        let (len, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        bytes = rest;
        Some(text)
    };
    std::iter::from_fn(move || Some((text()?, text()?)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_come_back() {
        let mut bytes = Vec::new();
        super::push(b":method", b"GET", &mut bytes);
        super::push(b"x", b"", &mut bytes);
        bytes.extend_from_slice(super::PATH);
        let start = bytes.len();
        bytes.extend_from_slice(b"/a");
        super::close(start, &mut bytes);
        assert_eq!(
            super::iter(&bytes).collect::<Vec<_>>(),
            [(&b":method"[..], &b"GET"[..]), (b"x", b""), (b":path", b"/a")]
        );
    }
}
