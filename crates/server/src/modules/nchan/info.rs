//! What subscribers say of themselves (`nchan_subscriber_info`), by the names of their channels. From: `subscribe`, `feed`. To: `groups`. Bounded;
//! knows nothing of subscribers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// What one says is cut off there: it is for people.
const MAX_BYTES: usize = 1024;
/// All of it together; who comes later says nothing.
const MAX_TOTAL: usize = 64 * 1024 * 1024;

/// By number, in the order of their coming.
type Answers = BTreeMap<u64, Box<[u8]>>;

#[derive(Default)]
struct Table {
    next: u64,
    bytes: usize,
    /// By channel.
    all: HashMap<Box<[u8]>, Answers>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a subscriber has said, as long as it is one.
pub(super) struct Said {
    number: u64,
    channels: Box<[Box<[u8]>]>,
}

impl Said {
    /// A subscriber of these channels says this. None: there is no room for more.
    pub(super) fn new(channels: &[&[u8]], text: &[u8]) -> Option<Said> {
        let text = &text[..text.len().min(MAX_BYTES)];
        let mut table = table();
        let bytes = text.len() * channels.len();
        if table.bytes + bytes > MAX_TOTAL {
            return None;
        }
        table.bytes += bytes;
        table.next += 1;
        let number = table.next;
        for channel in channels {
            table.all.entry((*channel).into()).or_default().insert(number, text.into());
        }
        Some(Said { number, channels: channels.iter().map(|channel| Box::from(*channel)).collect() })
    }

    /// The same once more, for another process.
    pub(super) fn text(&self) -> Box<[u8]> {
        let table = table();
        let first = self.channels.first().and_then(|channel| table.all.get(channel)?.get(&self.number));
        first.cloned().unwrap_or_default()
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let mut table = table();
        for channel in &self.channels {
            let Some(said) = table.all.get_mut(channel) else { continue };
            let bytes = said.remove(&self.number).map_or(0, |text| text.len());
            if said.is_empty() {
                table.all.remove(channel);
            }
            table.bytes -= bytes;
        }
    }
}

/// What the subscribers of channels have said, a line each.
pub(super) fn lines<'c>(channels: impl IntoIterator<Item = &'c [u8]>) -> Vec<u8> {
    let table = table();
    let said = channels.into_iter().filter_map(|channel| table.all.get(channel)).flat_map(BTreeMap::values);
    let mut out = Vec::new();
    for text in said {
        // A client's words are in it, which make no lines of their own.
        out.extend(text.iter().map(|b| if b.is_ascii_control() { b'?' } else { *b }));
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_gone_says_nothing_more() {
        let (one, two): (&[u8], &[u8]) = (b"g/info/1", b"g/info/2");
        let first = Said::new(&[one, two], b"first").expect("there is room");
        let second = Said::new(&[two], b"a\nb").expect("there is room");
        assert_eq!((lines([one]), lines([two])), (b"first\n".to_vec(), b"first\na?b\n".to_vec()));
        assert_eq!(&*first.text(), b"first");
        drop(first);
        assert_eq!((lines([one]), lines([one, two])), (Vec::new(), b"a?b\n".to_vec()));
        let long = Said::new(&[one], &[b'x'; 5000]).expect("there is room");
        assert_eq!(lines([one]).len(), MAX_BYTES + 1);
        drop((second, long));
        assert!(lines([one, two]).is_empty());
    }
}
