//! Values by host name, with nginx's wildcards: `a.b`, `*.a.b`, `.a.b`, `a.*` (`ngx_hash_add_key`,
//! `ngx_hash_find_combined`). Used by `map` and `valid_referers`.

use hashbrown::HashMap;

/// The table. Keys are lower case.
#[derive(Clone, Debug)]
pub struct HostTable<T> {
    exact: HashMap<Box<[u8]>, T>,
    /// `*.a.b` as `.a.b`
    heads: HashMap<Box<[u8]>, T>,
    /// `a.*` as `a.`
    tails: HashMap<Box<[u8]>, T>,
}

/// Why a key was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `invalid hostname or wildcard`
    Invalid,
    /// `conflicting parameter`
    Taken,
}

impl<T> Default for HostTable<T> {
    fn default() -> HostTable<T> {
        HostTable { exact: HashMap::new(), heads: HashMap::new(), tails: HashMap::new() }
    }
}

impl Refused {
    /// nginx's text for it.
    pub fn text(self, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        match self {
            Refused::Invalid => format!("invalid hostname or wildcard \"{key}\""),
            Refused::Taken => format!("conflicting parameter \"{key}\""),
        }
    }
}

impl<T: Copy> HostTable<T> {
    /// Adds a key that is no wildcard, whatever it looks like.
    pub fn add_exact(&mut self, key: &[u8], value: T) -> Result<(), Refused> {
        put(&mut self.exact, &key.to_ascii_lowercase(), value)
    }

    /// Adds a host name or a wildcard.
    pub fn add(&mut self, key: &[u8], value: T) -> Result<(), Refused> {
        let key = key.to_ascii_lowercase();
        let stars = key.iter().filter(|b| **b == b'*').count();
        if stars > 1 || key.contains(&0) || key.windows(2).any(|w| w == b"..") {
            return Err(Refused::Invalid);
        }
        match key.as_slice() {
            [b'.', name @ ..] if !name.is_empty() => {
                put(&mut self.exact, name, value)?;
                put(&mut self.heads, &key, value)
            }
            [b'*', b'.', _, ..] => put(&mut self.heads, &key[1..], value),
            [_, .., b'.', b'*'] => put(&mut self.tails, &key[..key.len() - 1], value),
            _ if stars > 0 => Err(Refused::Invalid),
            _ => put(&mut self.exact, &key, value),
        }
    }

    /// The value for a lower case name: exact, longest `*.x`, longest `x.*`.
    pub fn find(&self, name: &[u8]) -> Option<T> {
        if let Some(v) = self.exact.get(name) {
            return Some(*v);
        }
        if !self.heads.is_empty() {
            for at in memchr::memchr_iter(b'.', name).filter(|at| *at > 0) {
                if let Some(v) = self.heads.get(&name[at..]) {
                    return Some(*v);
                }
            }
        }
        if !self.tails.is_empty() {
            for at in memchr::memrchr_iter(b'.', name).filter(|at| at + 1 < name.len()) {
                if let Some(v) = self.tails.get(&name[..=at]) {
                    return Some(*v);
                }
            }
        }
        None
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.heads.is_empty() && self.tails.is_empty()
    }
}

fn put<T>(map: &mut HashMap<Box<[u8]>, T>, key: &[u8], value: T) -> Result<(), Refused> {
    if map.contains_key(key) {
        return Err(Refused::Taken);
    }
    map.insert(key.into(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        let mut t = HostTable::default();
        for (value, key) in ["example.com", "*.example.com", ".example.org", "www.*", "a.www.*"].iter().enumerate() {
            t.add(key.as_bytes(), value).expect("a fresh key");
        }
        assert_eq!(t.find(b"example.com"), Some(0));
        assert_eq!(t.find(b"a.b.example.com"), Some(1));
        assert_eq!(t.find(b"example.org"), Some(2));
        assert_eq!(t.find(b"x.example.org"), Some(2));
        assert_eq!(t.find(b"www.example.net"), Some(3));
        assert_eq!(t.find(b"a.www.net"), Some(4));
        assert_eq!(t.find(b"www"), None);
        assert_eq!(t.find(b".example.com"), None);
        assert_eq!(t.add(b"Example.com", 9), Err(Refused::Taken));
        assert_eq!(t.add(b"*.example.org", 9), Err(Refused::Taken));
        for bad in ["a*b", "*.*", "a..b", "*a", "www.*.com"] {
            assert_eq!(t.add(bad.as_bytes(), 9), Err(Refused::Invalid), "{bad}");
        }
        t.add_exact(b"*.literal", 7).expect("no wildcard here");
        assert_eq!(t.find(b"*.literal"), Some(7));
    }
}
