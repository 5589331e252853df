use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

const ASK: Ask = Ask { min_uses: 1, now: 1_000_000, expire: 1600 };

fn key(n: u8) -> Digest {
    [n; 16]
}

/// Puts a file of a block in.
fn fill(index: &Index, n: u8) {
    let (slot, known) = index.enter(&key(n), &Ask { expire: 1600 + i64::from(n), ..ASK }).expect("there is room");
    assert_eq!(known, Known::New);
    index.finish(slot, 1);
}

#[test]
fn an_entry_without_a_file_is_forgotten() {
    let index = Index::new(65536);
    let (slot, known) = index.enter(&key(1), &ASK).expect("there is room");
    assert_eq!((known, index.count()), (Known::New, 1));
    assert!(!index.touch(&key(1), 1600));
    index.release(slot, Leave { forget: true, ..Leave::default() });
    assert_eq!(index.count(), 0);
    fill(&index, 1);
    assert!(index.touch(&key(1), 1600));
    let (slot, known) = index.enter(&key(1), &ASK).expect("it is there");
    assert_eq!((known, index.blocks()), (Known::Wanted { exists: true }, 1));
    index.release(slot, Leave { forget: true, ..Leave::default() });
    assert_eq!(index.count(), 1);
}

#[test]
fn uses_are_counted() {
    let index = Index::new(65536);
    let ask = Ask { min_uses: 3, ..ASK };
    for expected in [Known::New, Known::Scarce, Known::Wanted { exists: false }] {
        let (slot, known) = index.enter(&key(1), &ask).expect("there is room");
        assert_eq!(known, expected);
        index.release(slot, Leave::default());
    }
}

#[test]
fn failures_hold_for_their_time() {
    let index = Index::new(65536);
    fill(&index, 1);
    let (slot, _) = index.enter(&key(1), &ASK).expect("it is there");
    index.release(slot, Leave { error: Some((502, 1005)), ..Leave::default() });
    let at = |now: i64| {
        let (slot, known) = index.enter(&key(1), &Ask { now: now * 1000, ..ASK }).expect("it is there");
        index.release(slot, Leave { forget: true, ..Leave::default() });
        known
    };
    assert_eq!((at(1005), at(1006)), (Known::Error(502), Known::New));
    assert_eq!(index.take_oldest(), Taken::Unlink(Grave { slot, key: key(1) }), "the old file is still there");
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn one_works_and_the_others_are_woken() {
    let index = Index::new(65536);
    let (slot, _) = index.enter(&key(1), &ASK).expect("there is room");
    let until = index.try_lock(slot, 100, 50).expect("nobody has it");
    assert_eq!((until, index.try_lock(slot, 149, 50)), (150, None));
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    assert_eq!(index.wait(slot, 149, &waker), Some(150));
    assert_eq!(index.wait(slot, 149, &waker), Some(150));
    assert_eq!(index.wait(slot, 150, &waker), None, "it took too long");
    let second = index.try_lock(slot, 150, 50).expect("the first is too late");
    index.hold(slot);
    index.hold(slot);
    index.release(slot, Leave { updating: Some(until), ..Leave::default() });
    assert_eq!((woken.0.load(Relaxed), index.try_lock(slot, 160, 50)), (0, None));
    index.release(slot, Leave { updating: Some(second), ..Leave::default() });
    assert_eq!(woken.0.load(Relaxed), 1);
    assert!(index.try_lock(slot, 160, 50).is_some());
}

#[test]
fn one_updates() {
    let index = Index::new(65536);
    fill(&index, 1);
    let (slot, _) = index.enter(&key(1), &ASK).expect("it is there");
    let mine = index.begin_update(slot);
    assert!(mine.is_some() && index.begin_update(slot).is_none());
    index.release(slot, Leave { updating: mine, ..Leave::default() });
    let (slot, _) = index.enter(&key(1), &ASK).expect("it is there");
    assert!(index.begin_update(slot).is_some());
}

#[test]
fn a_full_zone_drops_the_oldest() {
    let index = Index::new(16384);
    let capacity = index.capacity;
    assert_eq!(capacity, 64);
    for n in 0..capacity as u8 {
        fill(&index, n);
    }
    assert!(index.touch(&key(0), 9_999_000) && !index.is_crowded());
    fill(&index, 100);
    assert_eq!(index.count(), capacity);
    assert!(index.is_crowded() && index.has_graves());
    assert!(!index.touch(&key(1), 9999) && index.touch(&key(0), 9999) && index.touch(&key(100), 9999));
    assert_eq!(index.enter(&key(1), &ASK), Err(Refused::Deleting));
    let Taken::Unlink(grave) = index.take_expired(0, 0) else { panic!("a file waits to be unlinked") };
    assert_eq!(grave.key, key(1));
    index.removed(grave);
    assert_eq!(index.enter(&key(1), &ASK).map(|e| e.1), Ok(Known::New));
}

#[test]
fn a_zone_of_entries_in_use_is_full() {
    let index = Index::new(16384);
    for n in 0..index.capacity as u8 {
        assert!(index.enter(&key(n), &ASK).is_ok());
    }
    assert_eq!(index.enter(&key(200), &ASK), Err(Refused::Full));
    assert!(!index.insert_found(&key(200), 1, 1));
}

#[test]
fn entries_expire_in_their_order() {
    for size in [65536, 4 << 20] {
        let index = Index::new(size);
        assert!(index.insert_found(&key(20), 7, 1599));
        (0..10).for_each(|n| fill(&index, n));
        assert_eq!((index.count(), index.blocks()), (11, 17));
        assert_eq!(index.take_expired(1598, 0), Taken::Nothing(Some(1599)));
        let mut gone = Vec::new();
        while let Taken::Unlink(grave) = index.take_expired(1604, 0) {
            index.removed(grave);
            gone.push(grave.key[0]);
        }
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 2, 3, 4, 20]);
        assert_eq!((index.count(), index.blocks()), (5, 5));
        let Taken::Unlink(grave) = index.take_oldest() else { panic!("there are files") };
        assert_eq!(grave.key, key(5));
        let (slot, _) = index.enter(&key(6), &ASK).expect("it is there");
        let Taken::Unlink(grave) = index.take_oldest() else { panic!("there are files") };
        assert_ne!(grave.key, key(6), "in use");
        index.release(slot, Leave::default());
    }
}
