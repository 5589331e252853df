//! Single values as nginx reads them (`ngx_parse_size`, `ngx_parse_offset`, `ngx_parse_time`, `ngx_atoi`).

/// A whole number.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, b| {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n.checked_mul(10)?.checked_add(digit as u64).filter(|n| *n <= i64::MAX as u64)
    })
}

fn scaled(text: &[u8], units: &[(u8, u64)]) -> Option<u64> {
    let last = text.last()?.to_ascii_lowercase();
    match units.iter().find(|(unit, _)| *unit == last) {
        Some((_, scale)) => number(&text[..text.len() - 1])?.checked_mul(*scale).filter(|n| *n <= i64::MAX as u64),
        None => number(text),
    }
}

/// A size in bytes: `8k`, `1m`.
pub fn size(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 1 << 10), (b'm', 1 << 20)])
}

/// A size that may be large: `2g`.
pub fn offset(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 1 << 10), (b'm', 1 << 20), (b'g', 1 << 30)])
}

/// A time in milliseconds: `500ms`, `1m30s`; a bare number is seconds.
pub fn milliseconds(text: &[u8]) -> Option<u64> {
    time(text, true)
}

/// A time in seconds: `90`, `1h30m`.
pub fn seconds(text: &[u8]) -> Option<u64> {
    time(text, false)
}

/// Units must come in falling order and each at most once; `M` is a month of 30 days, `y` a year of 365.
fn time(text: &[u8], ms: bool) -> Option<u64> {
    let scale = if ms { 1000 } else { 1 };
    let mut total: u64 = 0;
    let mut rank = 0;
    let mut at = 0;
    if text.is_empty() {
        return None;
    }
    while at < text.len() {
        let start = at;
        while text.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        let value = number(&text[start..at])?;
        let (unit, length) = match (text.get(at), text.get(at + 1)) {
            (Some(b'm'), Some(b's')) => ("ms", 2),
            (Some(b'y'), _) => ("y", 1),
            (Some(b'M'), _) => ("M", 1),
            (Some(b'w'), _) => ("w", 1),
            (Some(b'd'), _) => ("d", 1),
            (Some(b'h'), _) => ("h", 1),
            (Some(b'm'), _) => ("m", 1),
            (Some(b's' | b' ') | None, _) => ("s", 1),
            _ => return None,
        };
        let (own, factor) = match unit {
            "y" => (1, 365 * 86400 * scale),
            "M" => (2, 30 * 86400 * scale),
            "w" => (3, 7 * 86400 * scale),
            "d" => (4, 86400 * scale),
            "h" => (5, 3600 * scale),
            "m" => (6, 60 * scale),
            "s" => (7, scale),
            _ if ms => (8, 1),
            _ => return None,
        };
        if own <= rank {
            return None;
        }
        rank = own;
        total = total.checked_add(value.checked_mul(factor)?).filter(|n| *n <= i64::MAX as u64)?;
        at += length.min(text.len() - at);
        while text.get(at) == Some(&b' ') {
            at += 1;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_nginx_s() {
        assert_eq!(size(b"8k"), Some(8192));
        assert_eq!(size(b"1g"), None);
        assert_eq!(offset(b"1G"), Some(1 << 30));
        assert_eq!(size(b""), None);
        assert_eq!(size(b"k"), None);
        assert_eq!(milliseconds(b"1m30s"), Some(90_000));
        assert_eq!(milliseconds(b"500ms"), Some(500));
        assert_eq!(milliseconds(b"75"), Some(75_000));
        assert_eq!(seconds(b"1h 30m"), Some(5400));
        assert_eq!(seconds(b"500ms"), None);
        assert_eq!(seconds(b"1s1m"), None);
        assert_eq!(seconds(b"99999999999999999999"), None);
        assert_eq!(number(b"12x"), None);
    }
}
