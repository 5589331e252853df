//! The uwsgi protocol (https://uwsgi-docs.readthedocs.io/en/latest/Protocol.html): writes the packet that goes before a request's
//! body. Answers are CGI's or HTTP's.

/// Most that the parameters of a request may take: their length has two bytes.
pub const MAX_PARAMS: usize = u16::MAX as usize;

/// Why a packet cannot be made: its parameters, or one of them, are longer than two bytes can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(
    /// Bytes of all parameters.
    pub usize,
);

/// The parameters of a request, as they are gathered.
#[derive(Debug, Default)]
pub struct Params {
    bytes: Vec<u8>,
    /// A name or a value was too long for its own length.
    overflow: bool,
}

impl Params {
    /// Adds one, name and value in pieces.
    pub fn add(&mut self, name: &[&[u8]], value: &[&[u8]]) {
        for parts in [name, value] {
            let len: usize = parts.iter().map(|p| p.len()).sum();
            self.overflow |= len > MAX_PARAMS;
            self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
            parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        }
    }

    /// Appends the packet. `modifiers`: what kind of request it is, both 0 for WSGI. `string`: what follows the parameters in it.
    ///
    /// # Errors
    /// The parameters do not fit into one packet.
    pub fn write(&self, modifiers: (u8, u8), string: &[u8], out: &mut Vec<u8>) -> Result<(), TooLong> {
        let len = self.bytes.len() + string.len();
        if self.overflow || len > MAX_PARAMS {
            return Err(TooLong(len));
        }
        let [low, high] = (len as u16).to_le_bytes();
        out.extend_from_slice(&[modifiers.0, low, high, modifiers.1]);
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(string);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_its_parameters_with_lengths() {
        let mut params = Params::default();
        params.add(&[b"HTTP_", b"HOST"], &[b"a", b", ", b"b"]);
        params.add(&[b"X"], &[]);
        let mut out = Vec::new();
        params.write((5, 7), b"s", &mut out).expect("it is short");
        assert_eq!(out, b"\x05\x17\0\x07\x09\0HTTP_HOST\x04\0a, b\x01\0X\0\0s");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut params = Params::default();
        params.add(&[b"a"], &[&[b'x'; MAX_PARAMS - 5]]);
        assert_eq!(params.write((0, 0), b"", &mut Vec::new()), Ok(()));
        params.add(&[b"b"], &[]);
        assert_eq!(params.write((0, 0), b"", &mut Vec::new()), Err(TooLong(MAX_PARAMS + 5)));
        let mut params = Params::default();
        params.add(&[b"a"], &[&[b'x'; MAX_PARAMS + 1]]);
        assert!(params.write((0, 0), b"", &mut Vec::new()).is_err());
    }
}
