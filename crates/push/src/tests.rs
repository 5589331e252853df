//! Channels as publishers and subscribers see them, without sockets or clocks.

#![allow(clippy::unwrap_used)]

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::task::{Wake, Waker};

const KEEP: Keep = Keep { length: 3, seconds: 60, accounting: false, channel_timeout: 5 };
const ANY: Options = Options { existing_only: false, max_subscribers: 0, accounting: false, channel_timeout: 5 };

fn draft(data: &str) -> Draft<'_> {
    Draft { data: data.as_bytes(), ..Draft::default() }
}

fn say(store: &Store, name: &str, data: &str, now: i64) -> Published {
    store.publish(name.as_bytes(), draft(data), KEEP, now).unwrap()
}

fn hear(store: &Store, names: &[&str], start: &Start<'_>, now: i64) -> Subscription {
    let names: Vec<&[u8]> = names.iter().map(|n| n.as_bytes()).collect();
    store.subscribe(&names, start, &Mailbox::new(), ANY, now).unwrap()
}

/// All that comes: the message's bytes and the id it comes with.
fn all(subscription: &mut Subscription, now: i64) -> Vec<String> {
    let mut got = Vec::new();
    while let Next::Message(m) = subscription.next(now) {
        let mut id = Vec::new();
        subscription.write_id(&mut id);
        got.push(format!("{}={}", String::from_utf8_lossy(&id), String::from_utf8_lossy(m.data())));
    }
    got
}

#[test]
fn a_buffer_keeps_the_newest_and_ids_count_within_a_second() {
    let store = Store::new();
    for n in 1..=5 {
        say(&store, "/a", &format!("m{n}"), 100);
    }
    let last = say(&store, "/a", "m6", 101);
    assert_eq!(last.id, Id { time: 101, tag: 0 });
    assert_eq!(last.info, Info { messages: 3, subscribers: 0, requested: None, last: Some(last.id) });
    assert_eq!(all(&mut hear(&store, &["/a"], &Start::OLDEST, 101), 101), ["100:3=m4", "100:4=m5", "101:0=m6"]);
    assert_eq!(store.sums().messages, 3);
}

#[test]
fn subscribers_begin_where_they_want() {
    let store = Store::new();
    for n in 1..=3 {
        say(&store, "/a", &format!("m{n}"), 100);
    }
    let first = |start: Start<'_>| all(&mut hear(&store, &["/a"], &start, 100), 100).first().cloned();
    assert_eq!(first(Start::Number(2)).as_deref(), Some("100:1=m2"));
    assert_eq!(first(Start::Number(9)), None);
    assert_eq!(first(Start::Number(-1)).as_deref(), Some("100:2=m3"));
    assert_eq!(first(Start::Number(-9)).as_deref(), Some("100:0=m1"));
    assert_eq!(first(Start::Newest), None);
    assert_eq!(first(Start::After(&Position::parse(b"100:1").unwrap())).as_deref(), Some("100:2=m3"));
    // What it had is gone from the buffer: the oldest that is there.
    assert_eq!(first(Start::After(&Position::parse(b"7:1").unwrap())).as_deref(), Some("100:0=m1"));
    // From another life of the server: it hears what comes next.
    let mut future = hear(&store, &["/a"], &Start::After(&Position::parse(b"900:1").unwrap()), 100);
    assert_eq!(all(&mut future, 100).len(), 0);
    say(&store, "/a", "m4", 100);
    assert_eq!(all(&mut future, 100), ["100:3=m4"]);
}

#[test]
fn several_channels_come_in_the_order_of_publishing_and_may_be_resumed_anywhere() {
    let store = Store::new();
    for (name, data, now) in
        [("/a", "1", 10), ("/b", "2", 10), ("/a", "3", 10), ("/b", "4", 11), ("/c", "5", 12), ("/a", "6", 12)]
    {
        say(&store, name, data, now);
    }
    let names = ["/a", "/b", "/c"];
    let whole = all(&mut hear(&store, &names, &Start::OLDEST, 12), 12);
    assert_eq!(whole[0], "10:[0],-,-=1");
    assert_eq!(whole[1], "10:0,[0],-=2");
    assert_eq!(whole[4], "12:-,-,[0]=5");
    for at in 0..whole.len() {
        let id = whole[at].split('=').next().unwrap();
        let position = Position::parse(id.as_bytes()).unwrap();
        assert_eq!(all(&mut hear(&store, &names, &Start::After(&position), 12), 12), whole[at + 1..], "after {id}");
    }
}

#[test]
fn messages_go_when_their_time_is_over_and_channels_when_nobody_needs_them() {
    let store = Store::new();
    say(&store, "/a", "m", 100);
    let mut waiting = hear(&store, &["/b"], &Start::OLDEST, 100);
    assert_eq!(all(&mut hear(&store, &["/a"], &Start::OLDEST, 160), 160).len(), 0);
    for _ in 0..limits::PARTS {
        store.sweep(170);
    }
    let sums = store.sums();
    assert_eq!((sums.messages, sums.channels, sums.subscribers), (0, 1, 1));
    say(&store, "/b", "x", 170);
    assert_eq!(all(&mut waiting, 170).len(), 1);
    drop(waiting);
    for _ in 0..2 * limits::PARTS {
        store.sweep(400);
    }
    assert_eq!(store.sums().memory, 0);
}

#[test]
fn ids_never_come_twice_whatever_becomes_of_channel_or_clock() {
    let store = Store::new();
    let first = say(&store, "/a", "1", 100).id;
    assert!(store.delete(b"/a", 100).is_some() && store.delete(b"/a", 100).is_none());
    let second = say(&store, "/a", "2", 100).id;
    let third = say(&store, "/a", "3", 50).id;
    assert!(first < second && second < third, "{first} {second} {third}");
    assert_eq!(third.time, 100);
}

#[test]
fn who_reads_gets_more_than_the_buffer_has_and_who_does_not_read_is_told_what_was_lost() {
    let store = Store::new();
    let mut reader = hear(&store, &["/a"], &Start::Newest, 100);
    let mut late = hear(&store, &["/a"], &Start::Newest, 100);
    for n in 0..100 {
        say(&store, "/a", &n.to_string(), 100);
    }
    assert_eq!(all(&mut reader, 100).len(), 100);
    assert_eq!(all(&mut hear(&store, &["/a"], &Start::OLDEST, 100), 100).len(), 3);
    say(&store, "/a", "later", 100 + limits::TRAIL_SECONDS + 1);
    assert!(matches!(late.next(106), Next::Lost));
    drop(late);
    assert_eq!(all(&mut reader, 106), ["106:0=later"]);
    let before = store.sums().memory;
    for n in 0..10_000 {
        say(&store, "/a", &n.to_string(), 106);
    }
    assert!(store.sums().memory < before + 2 * 300 * limits::TRAIL_MESSAGES as u64, "{}", store.sums().memory);
    assert!(matches!(reader.next(106), Next::Lost));
}

#[test]
fn nothing_is_kept_where_nothing_is_stored_but_for_those_who_are_there() {
    let store = Store::new();
    let keep = Keep { length: 0, ..KEEP };
    let mut there = hear(&store, &["/a"], &Start::OLDEST, 1);
    let published = store.publish(b"/a", draft("x"), keep, 1).unwrap();
    assert_eq!(published.info.messages, 0);
    assert_eq!(all(&mut there, 1), ["1:0=x"]);
    assert_eq!(all(&mut hear(&store, &["/a"], &Start::OLDEST, 1), 1).len(), 0);
}

#[test]
fn limits_hold() {
    let store = Store::new();
    let keep = Keep { accounting: true, ..KEEP };
    let group = store.group(b"g");
    group.set_limits(Lasting::Always, |l| (l.channels, l.messages, l.subscribers) = (2, 3, 1));
    for _ in 0..2 {
        store.publish(b"g/a", draft("x"), keep, 1).unwrap();
    }
    store.publish(b"g/b", draft("x"), keep, 1).unwrap();
    assert_eq!(store.publish(b"g/c", draft("x"), keep, 1), Err(Refused::GroupChannels));
    assert_eq!(store.publish(b"g/a", draft("x"), keep, 1), Err(Refused::GroupMessages));
    let options = Options { accounting: true, max_subscribers: 2, ..ANY };
    let (mailbox, names) = (Mailbox::new(), [&b"g/a"[..], b"g/b"]);
    assert!(store.subscribe(&names, &Start::OLDEST, &mailbox, options, 1).is_err());
    assert_eq!(group.totals().subscribers, 0, "what was attached is given back");
    let one = store.subscribe(&names[..1], &Start::OLDEST, &mailbox, options, 1).unwrap();
    let two = store.subscribe(&names[..1], &Start::OLDEST, &mailbox, options, 1);
    assert_eq!(two.err(), Some(Refused::GroupSubscribers));
    let existing = Options { existing_only: true, ..options };
    let none = store.subscribe(&[b"g/none"], &Start::OLDEST, &mailbox, existing, 1);
    assert_eq!(none.err(), Some(Refused::NoChannel));
    drop(one);
    assert_eq!(group.totals(), Totals { channels: 2, subscribers: 0, messages: 3, memory: group.totals().memory });
    store.delete_group(b"g", 1);
    assert_eq!((group.totals().channels, group.totals().messages), (0, 0));
    store.set_memory(10_000);
    assert_eq!(store.publish(b"g/a", draft(&"x".repeat(20_000)), KEEP, 1), Err(Refused::Memory));
}

#[test]
fn who_subscribes_to_a_channel_that_is_deleted_is_told() {
    let store = Store::new();
    say(&store, "/a", "x", 1);
    let mut two = hear(&store, &["/a", "/b"], &Start::OLDEST, 1);
    assert_eq!(store.delete(b"/a", 1).map(|i| (i.messages, i.subscribers)), Some((1, 1)));
    assert!(matches!(two.next(1), Next::Deleted));
}

struct Counted(AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_thread_is_woken_once_for_what_it_has_not_looked_at() {
    let store = Store::new();
    let (mailbox, counted) = (Mailbox::new(), Arc::new(Counted(AtomicUsize::new(0))));
    let waker = Waker::from(counted.clone());
    let mut changed = Vec::new();
    mailbox.take(&waker, &mut changed);
    let _two: Vec<_> = (0..2).map(|_| store.subscribe(&[b"/a"], &Start::OLDEST, &mailbox, ANY, 1).unwrap()).collect();
    for _ in 0..10 {
        say(&store, "/a", "x", 1);
    }
    assert_eq!(counted.0.load(Relaxed), 1);
    mailbox.take(&waker, &mut changed);
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].name(), b"/a");
}

#[test]
fn threads_that_publish_at_once_give_each_id_once_and_readers_lose_nothing() {
    let store = Arc::new(Store::new());
    let mut reader = hear(&store, &["/a"], &Start::Newest, 1);
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (store, barrier) = (store.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                (0..500).map(|n| say(&store, "/a", "x", 1 + n / 100).id).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut ids: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2000);
    assert_eq!(all(&mut reader, 5).len(), 2000);
}

#[test]
fn events_have_a_line_of_data_for_each_line() {
    let store = Store::new();
    let draft = Draft { data: b"a\nb\r\nc\n", event: b"ev\nid: 1", content_type: b"text/plain", ..Draft::default() };
    store.publish(b"/a", draft, KEEP, 9).unwrap();
    let mut reader = hear(&store, &["/a"], &Start::OLDEST, 9);
    let Next::Message(m) = reader.next(9) else { panic!("it is there") };
    assert_eq!(m.eventsource(), b"event: ev\nid: 9:0\ndata: a\ndata: b\ndata: c\ndata: \n\n");
    let mut meta = Vec::new();
    with_meta(&m, b"9:0", &mut meta);
    assert_eq!(meta, b"id: 9:0\ncontent-type: text/plain\n\na\nb\r\nc\n");
    assert_eq!(m.frame()[..2], [0x81, 7]);
}

#[test]
fn texts_that_are_no_ids_are_refused() {
    for good in ["1:0", "1450755280:[3],-", "1:-,[0],7"] {
        Position::parse(good.as_bytes()).unwrap_or_else(|_| panic!("{good}"));
    }
    for bad in ["", "1", ":", "1:", "1:x", "x:1", "1:[1", "1:1,,2", "-1:0", "1:99999999999", "99999999999999999999:1"] {
        assert!(Position::parse(bad.as_bytes()).is_err(), "{bad}");
    }
    assert!(Position::parse_tags(1, "1,".repeat(300).trim_end_matches(',').as_bytes()).is_err());
}

/// What is published to channels that a filter names, with their ids; in each channel in order.
#[test]
fn a_filter_hears_channels_that_are_and_will_be() {
    let (store, mailbox) = (Store::new(), Mailbox::new());
    say(&store, "g/a/b", "before", 1);
    let mut all = store.subscribe_filter(b"g", b"a/+", &mailbox, Options::default(), 1).unwrap();
    let mut same = store.subscribe_filter(b"g", b"a/+", &mailbox, Options::default(), 1).unwrap();
    let published = say(&store, "g/a/b", "1", 1);
    assert_eq!(published.info.subscribers, 2);
    say(&store, "g/a/c", "2", 2);
    say(&store, "g/a", "no", 2);
    say(&store, "h/a/b", "no", 2);
    let mut heard = Vec::new();
    while let Next::Message(m) = all.next(2) {
        heard.push((m.topic().unwrap().to_vec(), m.data().to_vec()));
    }
    assert_eq!(heard, [(b"a/b".to_vec(), b"1".to_vec()), (b"a/c".to_vec(), b"2".to_vec())]);
    assert!(matches!(same.next(2), Next::Message(_)));
    drop((all, same));
    (0..200).for_each(|_| store.sweep(10));
    assert_eq!(say(&store, "g/a/b", "3", 10).info.subscribers, 0);
    assert!(!store.group(b"g").has_filters());
}

#[test]
fn what_is_retained_stays_until_it_is_replaced() {
    let store = Store::new();
    let put = |name: &[u8], data: &str, expiry| {
        let marks = Marks { retain: true, expiry, ..Marks::default() };
        let draft = Draft { data: data.as_bytes(), marks, ..Draft::default() };
        store.publish(name, draft, Keep { length: 0, ..KEEP }, 1).unwrap();
    };
    let before = store.sums().memory;
    put(b"g/a/1", "one", None);
    put(b"g/a/2", "two", Some(10));
    put(b"g/a/1", "uno", None);
    let group = store.group(b"g");
    let of = |id: &[u8], now| group.retained_of(id, now).map(|m| m.data().to_vec());
    assert_eq!(
        (of(b"a/1", 1000), of(b"a/2", 10), of(b"a/2", 11)),
        (Some(b"uno".to_vec()), Some(b"two".to_vec()), None)
    );
    let (first, _) = group.next_retained(b"a/+", None, 5).unwrap();
    let (second, _) = group.next_retained(b"a/+", Some(&first), 5).unwrap();
    assert_eq!((&*first, &*second), (&b"a/1"[..], &b"a/2"[..]));
    assert!(group.next_retained(b"a/+", Some(&second), 5).is_none());
    drop(group);
    (0..200).for_each(|_| store.sweep(5000));
    assert!(store.group(b"g").retained_of(b"a/1", 5000).is_some());
    put(b"g/a/1", "", None);
    (0..200).for_each(|_| store.sweep(9000));
    assert_eq!(store.sums().memory, before);
}

/// Messages of elsewhere keep their ids, and come once.
#[test]
fn a_channel_that_is_followed() {
    let (store, mailbox) = (Store::new(), Mailbox::new());
    let channel = store.follow(b"g/a", 100).unwrap();
    let mut packed = Vec::new();
    Packed::write(&draft("x"), 0, 50, &mut packed);
    let packed = Packed::read(&packed).unwrap();
    let accept = |time, tag| {
        store.accept(&channel, Arrived { id: Id { time, tag }, packed, length: 5, to: Whom::All }, 100).unwrap()
    };
    assert!(accept(50, 0).is_some() && accept(50, 1).is_some() && accept(50, 1).is_none() && accept(49, 9).is_none());
    // What is older than what has come is there for who subscribes later.
    assert!(accept(40, 0).is_none());
    let mut sub = store.subscribe(&[b"g/a"], &Start::OLDEST, &mailbox, Options::default(), 100).unwrap();
    let ids: Vec<i64> = std::iter::from_fn(|| match sub.next(100) {
        Next::Message(m) => Some(m.id.time),
        _ => None,
    })
    .collect();
    assert_eq!(ids, [40, 49, 50, 50]);
    let at = Position::parse(b"60:0").unwrap();
    let mut sub = store.subscribe(&[b"g/a"], &Start::After(&at), &mailbox, Options::default(), 100).unwrap();
    assert!(accept(60, 0).is_some() && accept(60, 1).is_some());
    let Next::Message(message) = sub.next(100) else { panic!("a message") };
    assert_eq!((message.id, matches!(sub.next(100), Next::Nothing)), (Id { time: 60, tag: 1 }, true));
    let other = Mailbox::new();
    sub.move_to(&other);
    accept(61, 0);
    assert!(matches!(sub.next(100), Next::Message(_)));
}

/// What filters cost is billed, and given back with the last who hears by one.
#[test]
fn filters_are_billed_and_go_with_who_hears_by_them() {
    let store = Store::new();
    let mailbox = Mailbox::new();
    let other = store.subscribe_filter(b"g", b"x/#", &mailbox, ANY, 5).unwrap();
    let before = store.sums().memory;
    let filters: Vec<String> = (0..100).map(|n| format!("a/{n}/+/b/#")).collect();
    let mut all: Vec<_> =
        filters.iter().map(|f| store.subscribe_filter(b"g", f.as_bytes(), &mailbox, ANY, 5).unwrap()).collect();
    let again = store.subscribe_filter(b"g", filters[0].as_bytes(), &mailbox, ANY, 5).unwrap();
    assert!(store.sums().memory > before + 100 * 3 * 100);
    say(&store, "g/a/7/c/b/d", "m", 5);
    assert!(matches!(all[7].next(5), Next::Message(m) if m.data() == b"m"));
    let used = store.sums().memory;
    all.clear();
    // One is still heard by; the channel that knew one of those has no use for it any more.
    assert!(store.group(b"g").has_filters() && store.sums().memory < used / 2);
    drop(again);
    mailbox.take(Waker::noop(), &mut Vec::new());
    (0..200).for_each(|_| store.sweep(500));
    assert_eq!(store.sums().memory, before);
    // No room: who is there stays.
    store.set_memory(before as usize + 10);
    assert_eq!(store.subscribe_filter(b"g", b"b/+", &mailbox, ANY, 6).unwrap_err(), Refused::Memory);
    drop(store.subscribe_filter(b"g", b"x/#", &mailbox, ANY, 6).unwrap());
    assert!(store.group(b"g").has_filters());
    drop(other);
    assert!(!store.group(b"g").has_filters());
}

/// A group of which nothing is there is forgotten: soon where its limits come with requests, never where somebody has set them.
#[test]
fn groups_are_billed_and_forgotten() {
    let store = Store::new();
    let sweep = |now| (0..200).for_each(|_| store.sweep(now));
    let limit = |l: &mut Limits| l.channels = 7;
    store.limit_group(b"asked", Lasting::Since(100), limit).unwrap();
    store.limit_group(b"set", Lasting::Always, limit).unwrap();
    store.limit_group(b"set", Lasting::Since(100), limit).unwrap();
    let both = store.sums().memory;
    assert!(both > 0);
    sweep(130);
    assert_eq!(store.sums().memory, both);
    sweep(200);
    assert_eq!(store.group(b"asked").limits(), Limits::default());
    assert_eq!(store.group(b"set").limits().channels, 7);
    sweep(201);
    assert!(store.sums().memory < both);
    store.set_memory(0);
    assert_eq!(store.limit_group(b"more", Lasting::Since(300), limit), Err(Refused::Memory));
    assert_eq!(store.limit_group(b"set", Lasting::Since(300), limit), Ok(()));
}

/// However many keep it, it is billed once.
#[test]
fn a_message_that_is_put_by_is_billed_once() {
    let store = Store::new();
    let mut subscription = hear(&store, &["/a"], &Start::Newest, 5);
    say(&store, "/a", &"x".repeat(1000), 5);
    let Next::Message(message) = subscription.next(5) else { panic!("it is there") };
    let before = store.sums().memory;
    (0..3).for_each(|_| store.put_by(&message));
    let kept = store.sums().memory;
    assert!((before + 1000..before + 2000).contains(&kept));
    (0..2).for_each(|_| store.let_go(&message));
    assert_eq!(store.sums().memory, kept);
    store.let_go(&message);
    assert_eq!(store.sums().memory, before);
}
