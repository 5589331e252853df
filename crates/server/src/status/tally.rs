//! Numbers that all threads count: each in a block of its own, so that counting is a load and a store to a line that no
//! other thread writes; added up when somebody asks. What is counted by is an index: modules name theirs in constants.

use super::slot::{self, SLOTS};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Blocks are looked up in two steps, so that a tally of few threads is small.
const CHUNK: usize = 32;

type Block<const N: usize> = Box<[AtomicU64; N]>;
type Chunk<const N: usize> = Box<[OnceLock<Block<N>>; CHUNK]>;

/// `N` numbers. A number may also go down ([`Tally::sub`]): what is counted up by one thread and down by another is right in
/// the sum, which wraps around.
pub struct Tally<const N: usize> {
    chunks: [OnceLock<Chunk<N>>; SLOTS / CHUNK],
    /// What the sums were when they were last set to zero.
    zero: Mutex<Option<Box<[u64; N]>>>,
}

impl<const N: usize> Tally<N> {
    /// All zero.
    pub const fn new() -> Tally<N> {
        Tally { chunks: [const { OnceLock::new() }; SLOTS / CHUNK], zero: Mutex::new(None) }
    }

    /// The running thread's block.
    #[inline]
    pub fn mine(&self) -> Mine<'_, N> {
        let slot = slot::mine();
        if let Some(chunk) = self.chunks[slot / CHUNK].get()
            && let Some(block) = chunk[slot % CHUNK].get()
        {
            return Mine(block);
        }
        self.first(slot)
    }

    #[cold]
    fn first(&self, slot: usize) -> Mine<'_, N> {
        let chunk = self.chunks[slot / CHUNK].get_or_init(|| Box::new([const { OnceLock::new() }; CHUNK]));
        Mine(chunk[slot % CHUNK].get_or_init(|| Box::new([const { AtomicU64::new(0) }; N])))
    }

    /// Counts one.
    #[inline]
    pub fn count(&self, index: usize) {
        self.mine().add(index, 1);
    }

    /// The numbers of one thread, since the start.
    pub fn of(&self, slot: usize) -> [u64; N] {
        let block = self.chunks.get(slot / CHUNK).and_then(OnceLock::get).and_then(|c| c[slot % CHUNK].get());
        block.map_or([0; N], |b| std::array::from_fn(|i| b[i].load(Relaxed)))
    }

    /// The sums over all threads, since they were last set to zero.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = self.totals();
        if let Some(zero) = &*self.zero.lock().unwrap_or_else(PoisonError::into_inner) {
            sums.iter_mut().zip(zero.iter()).for_each(|(s, z)| *s = s.wrapping_sub(*z));
        }
        sums
    }

    fn totals(&self) -> [u64; N] {
        let mut sums = [0u64; N];
        for block in self.chunks.iter().filter_map(OnceLock::get).flat_map(|c| c.iter()).filter_map(OnceLock::get) {
            sums.iter_mut().zip(block.iter()).for_each(|(s, n)| *s = s.wrapping_add(n.load(Relaxed)));
        }
        sums
    }

    /// Sets the sums to zero, but for `kept`, which stay as they are.
    pub fn reset(&self, kept: &[usize]) {
        let totals = self.totals();
        let mut guard = self.zero.lock().unwrap_or_else(PoisonError::into_inner);
        let zero = guard.get_or_insert_with(|| Box::new([0; N]));
        for (index, total) in totals.into_iter().enumerate().filter(|(i, _)| !kept.contains(i)) {
            zero[index] = total;
        }
    }
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Tally::new()
    }
}

impl<const N: usize> std::fmt::Debug for Tally<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.sums().iter()).finish()
    }
}

/// Where a thread's block of a tally is, and the place ([`slot`]) that it belongs to.
pub type Here<const N: usize> = Cell<Option<(usize, Mine<'static, N>)>>;

/// Numbers of the whole program that are counted for each request: `static NAME: [N], mine_of_name;` makes the tally, and a function that
/// gives the running thread's block as [`Tally::mine`] does, but remembers where it is.
macro_rules! tally_of_program {
    ($(#[$doc:meta])* $public:vis static $name:ident: [$width:expr], $mine:ident) => {
        $(#[$doc])*
        $public static $name: $crate::status::tally::Tally<{ $width }> = $crate::status::tally::Tally::new();

        #[inline]
        fn $mine() -> $crate::status::tally::Mine<'static, { $width }> {
            thread_local! {
                static HERE: $crate::status::tally::Here<{ $width }> = const { std::cell::Cell::new(None) };
            }
            let slot = $crate::status::slot::mine();
            match HERE.get() {
                Some((at, mine)) if at == slot => mine,
                _ => {
                    let mine = $name.mine();
                    HERE.set(Some((slot, mine)));
                    mine
                }
            }
        }
    };
}
pub(crate) use tally_of_program;

/// A thread's own block. The thread is its only writer, so a load and a store do; no locked instruction is needed.
#[derive(Clone, Copy)]
pub struct Mine<'t, const N: usize>(&'t [AtomicU64; N]);

impl<const N: usize> Mine<'_, N> {
    /// Counts up.
    #[inline]
    pub fn add(self, index: usize, by: u64) {
        let n = &self.0[index];
        n.store(n.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Counts down.
    #[inline]
    pub fn sub(self, index: usize, by: u64) {
        self.add(index, by.wrapping_neg());
    }

    /// Replaces a number.
    #[inline]
    pub fn set(self, index: usize, value: u64) {
        self.0[index].store(value, Relaxed);
    }

    /// One number.
    #[inline]
    pub fn read(self, index: usize) -> u64 {
        self.0[index].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn threads_count_apart_and_the_sum_is_whole() {
        let tally: Arc<Tally<3>> = Arc::default();
        let threads: Vec<_> = (0..40)
            .map(|number| {
                let tally = tally.clone();
                std::thread::spawn(move || {
                    let _taken = slot::enter(1000 + number);
                    (0..1000).for_each(|_| tally.count(0));
                    tally.mine().sub(1, 1);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("it ends"));
        (0..40).for_each(|_| tally.count(1));
        assert_eq!(tally.sums(), [40_000, 0, 0]);
    }

    #[test]
    fn a_thread_that_has_another_place_counts_there() {
        tally_of_program! { static SOME: [1], here }
        std::thread::spawn(|| {
            here().add(0, 1);
            let before = slot::mine();
            let _taken = slot::enter(1100);
            assert_ne!(slot::mine(), before);
            (0..2).for_each(|_| here().add(0, 1));
            assert_eq!((SOME.of(before), SOME.of(slot::mine())), ([1], [2]));
        })
        .join()
        .expect("it ends");
        assert_eq!(SOME.sums(), [3]);
    }

    #[test]
    fn a_reset_keeps_what_is_there_now() {
        let tally: Tally<2> = Tally::new();
        let mine = tally.mine();
        mine.add(0, 5);
        mine.add(1, 2);
        tally.reset(&[1]);
        assert_eq!(tally.sums(), [0, 2]);
        mine.add(0, 1);
        mine.sub(1, 1);
        assert_eq!(tally.sums(), [1, 1]);
        assert_eq!(tally.of(slot::mine()), [6, 1]);
    }
}
