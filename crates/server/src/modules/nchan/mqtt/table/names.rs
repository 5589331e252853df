//! Names of sessions whose clients are parked and packed, each with where that is. There are millions, so it is lists that grow by a few places,
//! not a table that is half empty. From and to: `table`.

/// What a session's key is known by (`table::name_of`).
pub(super) type Name = [u64; 2];

/// Places that a list grows by.
const STEP: usize = 8;
/// Names of a list, in the mean, at which there are twice as many lists.
const MOST: usize = 64;

/// Where a client is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct At {
    /// The thread's number (`parked::thread`).
    pub(super) thread: u32,
    /// Its place there.
    pub(super) place: u32,
}

/// By halves, so that it is not aligned as a longer number is.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: [u32; 4],
    at: At,
}

/// What an entry takes, with its list's spare places: half a step in each of at least half of [`MOST`], and what the allocator rounds.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + 6;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Names {
    lists: Vec<Vec<Entry>>,
    count: usize,
}

fn halves(name: Name) -> [u32; 4] {
    let [a, b] = name;
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

impl Names {
    fn list(&mut self, name: [u32; 4]) -> Option<&mut Vec<Entry>> {
        // Their number is a power of two. The first half has said which part of the table this is.
        let number = name[2] as usize & self.lists.len().wrapping_sub(1);
        self.lists.get_mut(number)
    }

    /// Adds a name that is not there.
    pub(super) fn insert(&mut self, name: Name, at: At) {
        if self.count >= self.lists.len() * MOST {
            self.spread();
        }
        let name = halves(name);
        self.count += 1;
        self.list(name).into_iter().for_each(|list| push(list, Entry { name, at }));
    }

    /// Where a name is.
    pub(super) fn get(&mut self, name: Name) -> Option<At> {
        let name = halves(name);
        self.list(name)?.iter().find(|entry| entry.name == name).map(|entry| entry.at)
    }

    /// Takes a name out. Where it was.
    pub(super) fn remove(&mut self, name: Name) -> Option<At> {
        let name = halves(name);
        let list = self.list(name)?;
        let place = list.iter().position(|entry| entry.name == name)?;
        let at = list.swap_remove(place).at;
        if list.capacity() > list.len() + 2 * STEP {
            list.shrink_to(list.len() + STEP);
        }
        self.count -= 1;
        if self.count == 0 {
            self.lists = Vec::new();
        }
        Some(at)
    }

    /// Makes twice as many lists.
    fn spread(&mut self) {
        let count = (self.lists.len() * 2).max(1);
        let before = std::mem::replace(&mut self.lists, (0..count).map(|_| Vec::new()).collect());
        for entry in before.into_iter().flatten() {
            self.list(entry.name).into_iter().for_each(|list| push(list, entry));
        }
    }
}

fn push(list: &mut Vec<Entry>, entry: Entry) {
    if list.len() == list.capacity() {
        list.reserve_exact(STEP);
    }
    list.push(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as a hash would make them.
    fn name(number: u32) -> Name {
        let mix =
            |seed: u64| (u64::from(number) + 1).wrapping_mul(seed).rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [mix(0xff51_afd7_ed55_8ccd), mix(0xc4ce_b9fe_1a85_ec53)]
    }

    fn at(place: u32) -> At {
        At { thread: 3, place }
    }

    #[test]
    fn names_are_found_until_they_are_removed() {
        let mut names = Names::default();
        assert_eq!((names.get(name(1)), names.remove(name(1))), (None, None));
        (0..20_000).for_each(|number| names.insert(name(number), at(number)));
        (0..20_000).for_each(|number| assert_eq!(names.get(name(number)), Some(at(number))));
        (0..20_000).filter(|n| n % 3 > 0).for_each(|number| assert_eq!(names.remove(name(number)), Some(at(number))));
        for number in 0..20_000 {
            assert_eq!(names.get(name(number)), (number % 3 == 0).then(|| at(number)));
        }
        (0..20_000).filter(|n| n % 3 == 0).for_each(|number| assert_eq!(names.remove(name(number)), Some(at(number))));
        assert!(names.lists.is_empty() && names.count == 0);
    }

    #[test]
    fn a_name_takes_as_much_as_is_billed() {
        for count in [10_000_u32, 15_000, 20_000] {
            let mut names = Names::default();
            (0..count).for_each(|number| names.insert(name(number), at(number)));
            let block = |list: &Vec<Entry>| crate::connection::parked::block(list.capacity() * size_of::<Entry>());
            let bytes: usize = names.lists.iter().map(|list| size_of::<Vec<Entry>>() + block(list)).sum();
            let each = bytes.div_ceil(count as usize);
            println!("{count} names take {each} B each");
            assert!(each <= ENTRY_BYTES + 2, "{count} take {each} each");
        }
    }
}
