//! Which answers a client wants first (RFC 9218): the `Priority` header and the value of PRIORITY_UPDATE frames, a dictionary of
//! structured fields (RFC 9651 section 3.2) of which two members have a meaning: `u=3, i`.

/// A longer value is passed over: two members of some bytes each are known, and others may come.
pub const MAX_VALUE: usize = 512;
/// The least urgent.
pub const LEAST: u8 = 7;

/// What a client has said of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 first, [`LEAST`] last.
    pub urgency: u8,
    /// It is of use in parts: those of the same urgency share the way. Otherwise they come one after the other.
    pub incremental: bool,
}

impl Priority {
    /// What is assumed of an answer about which nothing was said. RFC 9218 section 4 has them one after the other; but a client that
    /// never speaks of priorities should not wait for a small answer behind a large one.
    pub const UNSAID: Priority = Priority { urgency: 3, incremental: true };
    /// What a member is that was left out.
    const DEFAULT: Priority = Priority { urgency: 3, incremental: false };
}

/// Reads a value. None: it is no dictionary, and is as good as none (RFC 9218 section 5).
pub fn parse(value: &[u8]) -> Option<Priority> {
    read(value, Priority::DEFAULT)
}

/// What the server's own header makes of what the client has said: members that are there count, the client's others stay (RFC 9218
/// section 8).
pub fn refine(said: Option<Priority>, value: &[u8]) -> Option<Priority> {
    read(value, said.unwrap_or(Priority::UNSAID))
}

fn read(value: &[u8], mut found: Priority) -> Option<Priority> {
    if value.len() > MAX_VALUE {
        return None;
    }
    let value = value.trim_ascii();
    if value.is_empty() {
        return Some(found);
    }
    for member in value.split(|b| *b == b',') {
        let member = member.trim_ascii();
        let member = &member[..memchr::memchr(b';', member).unwrap_or(member.len())];
        let (key, value) = match memchr::memchr(b'=', member) {
            Some(at) => (&member[..at], Some(&member[at + 1..])),
            None => (member, None),
        };
        if !is_key(key) {
            return None;
        }
        match (key, value) {
            // What is of another type or out of its bounds is passed over (RFC 9218 section 4).
            (b"u", Some(&[digit @ b'0'..=b'7'])) => found.urgency = digit - b'0',
            (b"i", None | Some(b"?1")) => found.incremental = true,
            (b"i", Some(b"?0")) => found.incremental = false,
            _ => {}
        }
    }
    Some(found)
}

fn is_key(key: &[u8]) -> bool {
    let first = key.first().is_some_and(|b| matches!(b, b'a'..=b'z' | b'*'));
    first && key.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_changes_what_it_names() {
        let said = Some(Priority { urgency: 5, incremental: true });
        assert_eq!(refine(said, b"u=1"), Some(Priority { urgency: 1, incremental: true }));
        assert_eq!(refine(said, b"i=?0"), Some(Priority { urgency: 5, incremental: false }));
        assert_eq!(refine(None, b"u=6"), Some(Priority { urgency: 6, incremental: true }));
        assert_eq!(refine(said, b"U"), None);
    }

    #[test]
    fn two_members_have_a_meaning() {
        let of = |urgency, incremental| Some(Priority { urgency, incremental });
        for (value, expected) in [
            ("", of(3, false)),
            ("u=5", of(5, false)),
            ("i", of(3, true)),
            ("u=0, i", of(0, true)),
            (" i=?0 ,u=7;x=1 ", of(7, false)),
            ("u=1, u=2, i, i=?0", of(2, false)),
            ("u=8, u=-1, u=\"1\", i=1, other=(a b), x", of(3, false)),
            ("U=1", None),
            ("u=1,", None),
            ("=1", None),
        ] {
            assert_eq!(parse(value.as_bytes()), expected, "{value}");
        }
        assert_eq!(parse(&vec![b' '; MAX_VALUE + 1]), None);
    }
}
