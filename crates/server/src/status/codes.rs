//! Statuses of answers, counted by class and by code. Codes that are known here have a number each, all others are in their
//! class alone.

use super::tally::Mine;

/// The codes with numbers of their own: those of the IANA registry, nginx's, and Cloudflare's.
const CODES: [u16; 81] = [
    100, 101, 102, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308, 400,
    401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425,
    426, 428, 429, 431, 444, 451, 494, 495, 496, 497, 499, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511, 520,
    521, 522, 523, 524, 525, 526, 527, 530, 460, 463, 561, 529,
];

/// How many numbers statuses take in a tally: five classes, then the codes.
pub const WIDTH: usize = CLASSES + CODES.len();
const CLASSES: usize = 5;
const UNKNOWN: u8 = u8::MAX;

/// The place of each status among the codes.
static PLACES: [u8; 600] = {
    let mut places = [UNKNOWN; 600];
    let mut i = 0;
    while i < CODES.len() {
        places[CODES[i] as usize] = i as u8;
        i += 1;
    }
    places
};

/// Counts an answer, in the numbers from `at` on.
#[inline]
pub fn count<const N: usize>(mine: Mine<'_, N>, at: usize, status: u16) {
    let class = (status / 100).wrapping_sub(1) as usize;
    if class >= CLASSES {
        return;
    }
    mine.add(at + class, 1);
    let place = PLACES[status as usize];
    if place != UNKNOWN {
        mine.add(at + CLASSES + place as usize, 1);
    }
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Responses {
    /// 1xx to 5xx.
    pub classes: [u64; CLASSES],
    /// Codes that there were, in order, and how often.
    pub codes: Vec<(u16, u64)>,
}

impl Responses {
    /// From the numbers that [`count`] made.
    pub fn read(numbers: &[u64]) -> Responses {
        let classes = std::array::from_fn(|i| numbers[i]);
        let codes = CODES.iter().zip(&numbers[CLASSES..]).filter(|(_, n)| **n > 0);
        let mut codes: Vec<_> = codes.map(|(code, n)| (*code, *n)).collect();
        codes.sort_unstable();
        Responses { classes, codes }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.classes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Tally;

    #[test]
    fn statuses_are_counted_by_class_and_code() {
        let tally: Tally<{ WIDTH + 1 }> = Tally::new();
        for status in [200, 200, 404, 299, 599, 101, 999, 0, 600, 99] {
            count(tally.mine(), 1, status);
        }
        let responses = Responses::read(&tally.sums()[1..]);
        assert_eq!(responses.classes, [1, 3, 0, 1, 1]);
        assert_eq!(responses.codes, [(101, 1), (200, 2), (404, 1)]);
        assert_eq!((responses.total(), tally.sums()[0]), (6, 0));
    }

    #[test]
    fn no_code_is_there_twice() {
        let mut sorted = CODES;
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|w| w[0] < w[1]));
    }
}
