//! Single values as nginx reads them: sizes, times, flags, numbers, percentages, rates. Bytes in, number out, `None` if
//! it is none; what to say then is in [`crate::Problem`]. All bounded by what nginx's 64-bit types hold.

/// The largest value of nginx's signed types (`ssize_t`, `off_t`, `ngx_int_t` on 64 bits).
const MAX: u64 = i64::MAX as u64;

/// A decimal number (`ngx_atoi`): digits only, at least one.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit).filter(|&number| number <= MAX)
    })
}

/// A decimal fraction in units of 10^-`places` (`ngx_atofp`): `fixed(b"10.5", 2)` is 1050. More places are refused.
pub fn fixed(text: &[u8], places: usize) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &text[..0]),
    };
    if text.is_empty() || fraction.len() > places {
        return None;
    }
    let padding = std::iter::repeat_n(&b'0', places - fraction.len());
    let digits: Vec<u8> = whole.iter().chain(fraction).chain(padding).copied().collect();
    number(&digits)
}

/// A percentage in hundredths of a percent: `10%` is 1000, `0.5%` is 50.
pub fn percent(text: &[u8]) -> Option<u64> {
    fixed(text.strip_suffix(b"%")?, 2)
}

/// A size in bytes with `k` or `m` (`ngx_parse_size`).
pub fn size(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20)])
}

/// A file offset or limit in bytes with `k`, `m` or `g` (`ngx_parse_offset`).
pub fn offset(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20), (b'g', 30)])
}

fn scaled(text: &[u8], units: &[(u8, u32)]) -> Option<u64> {
    let (&last, digits) = text.split_last()?;
    match units.iter().find(|(unit, _)| *unit == last.to_ascii_lowercase()) {
        Some(&(_, shift)) => number(digits)?.checked_mul(1 << shift).filter(|&bytes| bytes <= MAX),
        None => number(text),
    }
}

/// A count and a size of buffers, neither zero (`ngx_conf_set_bufs_slot`).
pub fn buffers(count: &[u8], bytes: &[u8]) -> Option<(u64, u64)> {
    let count = number(count).filter(|&count| count != 0)?;
    let bytes = size(bytes).filter(|&bytes| bytes != 0)?;
    Some((count, bytes))
}

/// `on` or `off` in any case.
pub fn flag(text: &[u8]) -> Option<bool> {
    choice(text, &[("on", true), ("off", false)])
}

/// The value of a word among a few, in any case (`ngx_conf_set_enum_slot`).
pub fn choice<T: Copy>(text: &[u8], choices: &[(&str, T)]) -> Option<T> {
    choices.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(text)).map(|&(_, value)| value)
}

/// A time in milliseconds (`ngx_parse_time`): `500ms`, `1h30m`, `10` (seconds). Units from large to small; no `M`, `y`.
pub fn milliseconds(text: &[u8]) -> Option<u64> {
    time(text, Resolution::Milliseconds)
}

/// A time in seconds (`ngx_parse_time`): `1y6M`, `1h 30m`, `10`. No `ms`.
pub fn seconds(text: &[u8]) -> Option<u64> {
    time(text, Resolution::Seconds)
}

#[derive(Clone, Copy, PartialEq)]
enum Resolution {
    Milliseconds,
    Seconds,
}

/// The order in which units may follow one another.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Step {
    Start,
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    /// After a number without a unit and a space; nothing with a unit may follow.
    Last,
}

fn time(text: &[u8], resolution: Resolution) -> Option<u64> {
    let milliseconds = resolution == Resolution::Milliseconds;
    let per_second = if milliseconds { 1000 } else { 1 };
    let mut step = if milliseconds { Step::Month } else { Step::Start };
    let mut total = 0u64;
    let mut any_digit = false;
    let mut rest = text;
    loop {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = if digits == 0 { 0 } else { number(&rest[..digits])? };
        any_digit |= digits > 0;
        rest = &rest[digits..];
        if rest.is_empty() {
            let total = bounded_sum(total, value, per_second)?;
            return any_digit.then_some(total);
        }
        let (unit, length) = unit_of(rest, resolution)?;
        let (limit, reached, seconds) = unit;
        if step >= limit {
            return None;
        }
        step = reached;
        let scale = if reached == Step::Millisecond { 1 } else { seconds * per_second };
        total = bounded_sum(total, value, scale)?;
        rest = &rest[length..];
        rest = &rest[rest.iter().take_while(|&&byte| byte == b' ').count()..];
    }
}

fn bounded_sum(total: u64, value: u64, scale: u64) -> Option<u64> {
    total.checked_add(value.checked_mul(scale)?).filter(|&sum| sum <= MAX)
}

/// A unit: the step that must not have been reached before it, the step it reaches, its seconds; and its length.
fn unit_of(text: &[u8], resolution: Resolution) -> Option<((Step, Step, u64), usize)> {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let same = |step, seconds| Some(((step, step, seconds), 1));
    match text {
        [b'm', b's', ..] if resolution == Resolution::Seconds => None,
        [b'm', b's', ..] => Some(((Step::Millisecond, Step::Millisecond, 0), 2)),
        [b'y', ..] => same(Step::Year, 365 * DAY),
        [b'M', ..] => same(Step::Month, 30 * DAY),
        [b'w', ..] => same(Step::Week, 7 * DAY),
        [b'd', ..] => same(Step::Day, DAY),
        [b'h', ..] => same(Step::Hour, HOUR),
        [b'm', ..] => same(Step::Minute, MINUTE),
        [b's', ..] => same(Step::Second, 1),
        [b' ', ..] => Some(((Step::Second, Step::Last, 1), 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"9223372036854775807"), Some(MAX));
        for bad in [&b""[..], b"9223372036854775808", b"99999999999999999999999", b"-1", b"+1", b"1 ", b"0x1"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size(b"10"), Some(10));
        assert_eq!(size(b"8k"), Some(8192));
        assert_eq!(size(b"1M"), Some(1 << 20));
        assert_eq!(offset(b"2G"), Some(2 << 30));
        for bad in [&b""[..], b"k", b"1g", b"1kk", b"k1", b"1.5m", b"9007199254740992k"] {
            assert_eq!(size(bad), None, "{bad:?}");
        }
        assert_eq!(offset(b"8589934592g"), None);
        assert_eq!(buffers(b"8", b"4k"), Some((8, 4096)));
        assert_eq!(buffers(b"0", b"4k"), None);
    }

    #[test]
    fn times() {
        let ms = [
            ("10", 10_000),
            ("500ms", 500),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1s5ms", 1_005),
            ("1m30", 90_000),
            ("1w", 604_800_000),
            ("0", 0),
            ("5 5", 10_000),
            ("1h s", 3_600_000),
        ];
        for (text, expected) in ms {
            assert_eq!(milliseconds(text.as_bytes()), Some(expected), "{text}");
        }
        let bad = [
            "",
            "s",
            "1x",
            "1M",
            "1y",
            "5s1h",
            "1m1m",
            "1ms1s",
            "5 5s",
            "1s ms1ms",
            "-1",
            " ",
            "9223372036854775807",
            "9223372036854775808ms",
            "1s 1 1",
        ];
        for text in bad {
            assert_eq!(milliseconds(text.as_bytes()), None, "{text}");
        }
        assert_eq!(milliseconds(b"9223372036854775807ms"), Some(MAX));
        assert_eq!(seconds(b"1y6M"), Some(365 * 86_400 + 180 * 86_400));
        assert_eq!(seconds(b"9223372036854775807"), Some(MAX));
        for text in ["5ms", "1M1y", "9223372036854775807m", "9223372036854775807 1"] {
            assert_eq!(seconds(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_rest() {
        assert_eq!(flag(b"On"), Some(true));
        assert_eq!(flag(b"OFF"), Some(false));
        assert_eq!(flag(b"yes"), None);
        assert_eq!(percent(b"10%"), Some(1000));
        assert_eq!(percent(b"0.5%"), Some(50));
        assert_eq!(percent(b".5%"), Some(50));
        for bad in [&b"%"[..], b"10", b"1.234%", b"1.2.3%", b"x%"] {
            assert_eq!(percent(bad), None, "{bad:?}");
        }
    }
}
