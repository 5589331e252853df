//! Puts together what has a header with its length and a payload (WebSocket frames, MQTT packets) from pieces of any size. Small
//! ones are handed out whole; of long ones only the beginning, and the rest is passed over: nothing is kept for them.

/// A payload up to here is put together before it is looked at; of longer ones the beginning is.
pub const WHOLE: usize = 4096;

/// What a header says of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes of the header.
    pub header: usize,
    /// Bytes behind it.
    pub payload: u64,
}

/// The reading side of one connection.
#[derive(Debug, Default)]
pub struct Units {
    /// The beginning of a unit that is not complete.
    part: Vec<u8>,
    /// Bytes of a long payload that are passed over.
    skip: u64,
}

impl Units {
    /// Takes bytes as they come. `size` reads a header (nothing: it is not complete), `unit` gets each unit: its first byte, and its
    /// payload or the first [`WHOLE`] bytes of it.
    ///
    /// # Errors
    /// Those of `size` and `unit`; nothing is to be read any more then.
    pub fn feed<E>(
        &mut self,
        bytes: &[u8],
        size: impl Fn(&[u8]) -> Result<Option<Size>, E>,
        mut unit: impl FnMut(u8, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = self.pass_over(bytes);
        let mut whole = std::mem::take(&mut self.part);
        let is_joined = !whole.is_empty();
        if is_joined {
            whole.extend_from_slice(&bytes[at..]);
            at = 0;
        }
        let all = if is_joined { &whole[..] } else { bytes };
        while at < all.len() {
            let rest = &all[at..];
            let Some(Size { header, payload }) = size(rest)? else { break };
            let wanted = payload.min(WHOLE as u64) as usize;
            let Some(body) = rest.get(header..header + wanted) else { break };
            unit(rest[0], body)?;
            at += header + wanted;
            self.skip = payload - wanted as u64;
            at += self.pass_over(&all[at..]);
        }
        if at < all.len() {
            // A unit that comes byte by byte is not copied with each of them.
            self.part = match is_joined {
                true => {
                    whole.drain(..at);
                    whole
                }
                false => bytes[at..].to_vec(),
            };
        }
        Ok(())
    }

    /// How many of these bytes belong to what is passed over.
    fn pass_over(&mut self, bytes: &[u8]) -> usize {
        let passed = self.skip.min(bytes.len() as u64);
        self.skip -= passed;
        passed as usize
    }
}
