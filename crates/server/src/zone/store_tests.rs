//! What a zone's store promises about room, age and pins.

use super::*;

/// Bit 0: pinned. Bit 1: idle.
struct Bits;

impl Policy<u32> for Bits {
    fn is_pinned(&self, state: &u32) -> bool {
        state & 1 != 0
    }

    fn is_idle(&self, state: &u32) -> bool {
        state & 2 != 0
    }
}

fn put(store: &Store<u32>, key: u32, value: u32) -> Option<(Slot, bool)> {
    store.enter(&key.to_ne_bytes(), &Bits, |state, new| {
        *state = value;
        new
    })
}

fn is_new(store: &Store<u32>, key: u32, value: u32) -> bool {
    put(store, key, value).is_some_and(|(_, new)| new)
}

#[test]
fn a_megabyte_holds_eight_thousand_states() {
    let store = Store::new(1 << 20, 80);
    let count = (0..).take_while(|key| put(&store, *key, 1).is_some()).count();
    assert!((8000..8192).contains(&count), "{count}");
}

#[test]
fn the_oldest_makes_room_unless_it_is_pinned() {
    let store = Store::new(32 * 1024, 80);
    let full = (0..).take_while(|key| put(&store, *key, 1).is_some()).count() as u32;
    let (slot, new) = put(&store, 0, 0).expect("it is there");
    assert!(!new);
    assert!(put(&store, full, 0).is_none(), "entry 1 is the oldest, and pinned");
    store.at(slot, |state| *state = 1);
    for key in 0..full {
        put(&store, key, 0);
    }
    put(&store, 0, 0);
    assert!(is_new(&store, full, 0));
    assert!(!is_new(&store, 0, 0), "it was used meanwhile");
    assert!(is_new(&store, 1, 0), "it was the oldest");
}

#[test]
fn idle_entries_go_by_themselves_and_leaving_gives_room_back() {
    let store = Store::new(32 * 1024, 80);
    put(&store, 1, 2);
    put(&store, 2, 2);
    put(&store, 3, 0);
    assert_eq!(store.used.load(Relaxed), 128);
    let (slot, _) = put(&store, 4, 1).expect("there is room");
    store.leave(slot, |state| *state == 0);
    assert_eq!(store.used.load(Relaxed), 256);
    store.leave(slot, |state| *state == 1);
    assert_eq!(store.used.load(Relaxed), 128);
    assert!(is_new(&store, 4, 0));
}

#[test]
fn threads_share_the_states_of_a_full_zone() {
    let store = Store::new(1 << 20, 80);
    std::thread::scope(|scope| {
        for seed in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..50_000u32 {
                    let key = (n.wrapping_mul(2_654_435_761) ^ seed) % 20_000;
                    store.enter(&key.to_ne_bytes(), &Bits, |state, _| *state = 0);
                }
            });
        }
    });
    let counted: usize = store.shards.iter().map(|s| s.lock().map_or(0, |s| s.table.len())).sum();
    assert_eq!(store.used.load(Relaxed), counted * 128);
    assert!(store.used.load(Relaxed) <= store.capacity);
}
