//! Operators that judge a value by its form: encodings, numbers of cards and persons.

use crate::prefilter::ByteSet;

/// `@validateByteRange`'s list: `32-126,9`. None: it is none.
pub(super) fn byte_ranges(text: &str) -> Option<ByteSet> {
    let mut set = ByteSet::default();
    for range in text.split(',').map(str::trim) {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u8, u8) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to {
            return None;
        }
        (from..=to).for_each(|b| set.insert(b));
    }
    Some(set)
}

/// Whether a text has a `%` that no two hexadecimal digits follow.
pub(super) fn has_invalid_url_encoding(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text).any(|at| super::super::operator::hex_pair(&text[at + 1..]).is_none())
}

/// Luhn's sum, for the numbers of cards: between 12 and 19 digits that check.
pub(super) fn is_card(text: &[u8]) -> bool {
    let digits: Vec<u32> = digits(text);
    let sum: u32 =
        digits.iter().rev().enumerate().map(|(at, d)| if at % 2 == 1 { d * 2 / 10 + d * 2 % 10 } else { *d }).sum();
    (12..=19).contains(&digits.len()) && sum.is_multiple_of(10)
}

/// Social security numbers of the United States: areas, groups and serials that are given out.
pub(super) fn is_ssn(text: &[u8]) -> bool {
    let digits = digits(text);
    if digits.len() != 9 {
        return false;
    }
    let number = |range: std::ops::Range<usize>| digits[range].iter().fold(0, |sum, d| sum * 10 + d);
    let (area, group, serial) = (number(0..3), number(3..5), number(5..9));
    let same = digits.iter().all(|d| *d == digits[0]);
    !same && area != 0 && area != 666 && area < 900 && group != 0 && serial != 0
}

/// Brazil's numbers of persons: nine digits and two that check.
pub(super) fn is_cpf(text: &[u8]) -> bool {
    let digits = digits(text);
    if digits.len() != 11 || digits.iter().all(|d| *d == digits[0]) {
        return false;
    }
    let check = |count: usize| {
        let sum: u32 = digits[..count].iter().enumerate().map(|(at, d)| d * (count as u32 + 1 - at as u32)).sum();
        match sum * 10 % 11 {
            10 => 0,
            rest => rest,
        }
    };
    check(9) == digits[9] && check(10) == digits[10]
}

/// Austria's insurance numbers: the fourth digit checks the others.
pub(super) fn is_svnr(text: &[u8]) -> bool {
    const WEIGHTS: [u32; 10] = [3, 7, 9, 0, 5, 8, 4, 2, 1, 6];
    let digits = digits(text);
    if digits.len() != 10 {
        return false;
    }
    let sum: u32 = digits.iter().zip(WEIGHTS).map(|(d, w)| d * w).sum();
    sum % 11 == digits[3]
}

fn digits(text: &[u8]) -> Vec<u32> {
    text.iter().filter_map(|b| (*b as char).to_digit(10)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_check() {
        assert!(is_card(b"4111 1111 1111 1111") && !is_card(b"4111 1111 1111 1112"));
        assert!(is_cpf(b"529.982.247-25") && !is_cpf(b"529.982.247-26") && !is_cpf(b"111.111.111-11"));
        assert!(is_ssn(b"078-05-1120") && !is_ssn(b"666-05-1120") && !is_ssn(b"078-00-1120"));
        assert!(is_svnr(b"1237010180") && !is_svnr(b"1238010180"));
    }

    #[test]
    fn ranges_and_encodings() {
        let set = byte_ranges("32-126, 9,10").unwrap();
        assert!(set.contains(b'a') && set.contains(9) && !set.contains(13));
        assert!(byte_ranges("1-300").is_none() && byte_ranges("9-3").is_none());
        assert!(
            has_invalid_url_encoding(b"a%zz") && has_invalid_url_encoding(b"%4") && !has_invalid_url_encoding(b"%41")
        );
    }
}
