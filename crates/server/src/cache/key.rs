//! What entries are called: the MD5 of their key, or of their key and what of the request makes a variant (`Vary`).
//! Knows no request: headers are handed in.

use super::format::Digest;
use md5::{Digest as _, Md5};

/// Headers in which white space and the division into lines do not count.
const LISTS: [&[u8]; 3] = [b"accept-charset", b"accept-encoding", b"accept-language"];

/// The name of a key.
pub fn digest(key: &[u8]) -> Digest {
    Md5::digest(key).into()
}

/// Appends `/levels/name` of a file, as nginx lays them out: levels are cut from the end of the name.
pub fn write_name(key: &Digest, levels: &[u8], out: &mut Vec<u8>) {
    let mut name = [0; 32];
    for (byte, digits) in key.iter().zip(name.chunks_exact_mut(2)) {
        digits[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        digits[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    let mut end = name.len();
    for level in levels {
        let start = end - usize::from(*level);
        out.push(b'/');
        out.extend_from_slice(&name[start..end]);
        end = start;
    }
    out.push(b'/');
    out.extend_from_slice(&name);
}

/// The key that a file's name stands for.
pub fn parse_name(name: &[u8]) -> Option<Digest> {
    let name: &[u8; 32] = name.try_into().ok()?;
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let mut key = [0; 16];
    for (byte, digits) in key.iter_mut().zip(name.chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(key)
}

/// The name of the variant that a request asks for (`ngx_http_file_cache_vary`). `vary`: the answer's header; `headers`:
/// gives the values of a header of the request, by name in lower case, in their order.
pub fn variant<'v, I: Iterator<Item = &'v [u8]>>(main: &Digest, vary: &[u8], headers: impl Fn(&[u8]) -> I) -> Digest {
    let mut md5 = Md5::new_with_prefix(main);
    for name in words(vary) {
        let name = name.to_ascii_lowercase();
        md5.update(&name);
        md5.update(b":");
        let mut separator: &[u8] = b"";
        let mut add = |text: &[u8]| {
            md5.update(separator);
            md5.update(text);
            separator = b",";
        };
        for value in headers(&name) {
            if LISTS.contains(&&*name) {
                words(value).for_each(&mut add);
            } else {
                add(value);
            }
        }
        md5.update(b"\r\n");
    }
    md5.finalize().into()
}

fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| matches!(b, b' ' | b',')).filter(|w| !w.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_levels() {
        let key = digest(b"http://localhost/");
        let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
        let name = |levels: &[u8]| {
            let mut out = Vec::new();
            write_name(&key, levels, &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(name(&[]), format!("/{hex}"));
        assert_eq!(name(&[1, 2]), format!("/{}/{}/{hex}", &hex[31..], &hex[29..31]));
        assert_eq!(parse_name(hex.as_bytes()), Some(key));
        assert_eq!((parse_name(b"x"), parse_name(&[b'g'; 32])), (None, None));
    }

    #[test]
    fn variants() {
        let main = digest(b"k");
        let of = |vary: &str, headers: &'static [(&str, &str)]| {
            variant(&main, vary.as_bytes(), |name| {
                let name = String::from_utf8_lossy(name).into_owned();
                headers.iter().filter(move |h| h.0 == name).map(|h| h.1.as_bytes())
            })
        };
        let gzip: &[_] = &[("accept-encoding", "gzip, br")];
        assert_eq!(of("Accept-Encoding", gzip), of(" accept-encoding,", &[("accept-encoding", "gzip,br")]));
        assert_eq!(
            of("Accept-Encoding", gzip),
            of("accept-encoding", &[("accept-encoding", "gzip"), ("accept-encoding", "br")])
        );
        assert_ne!(of("Accept-Encoding", gzip), of("Accept-Encoding", &[]));
        assert_ne!(of("Foo", &[("foo", "a, b")]), of("Foo", &[("foo", "a,b")]));
        assert_ne!(of("Foo", &[("foo", "a")]), of("Foo, Bar", &[("foo", "a")]));
    }
}
