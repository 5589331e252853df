//! Real sockets in real rings. Where the machine has none, the tests say so and pass.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn rings(most: usize) -> Option<Rings> {
    match Rings::open(most) {
        Ok(rings) => Some(rings),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

fn pair(rings: &mut Rings) -> (Spot, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let spot = rings.park(vec![here.into()]).pop().unwrap().unwrap();
    (spot, there)
}

fn next(rings: &mut Rings) -> News {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        rings.flush();
        rings.gather();
        if let Some(news) = rings.next_news() {
            return news;
        }
        assert!(Instant::now() < end, "nothing has happened");
        let mut bell = [rustix::event::PollFd::new(&rings.bell, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut bell, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
    }
}

#[test]
fn a_parked_file_is_heard_and_written_to_and_comes_back() {
    let Some(mut rings) = rings(100) else { return };
    let (spot, mut there) = pair(&mut rings);
    rings.watch(spot, 7, Side::Reading, READABLE);
    rings.flush();
    assert!(!rings.gather());
    there.write_all(b"hello").unwrap();
    let news = next(&mut rings);
    assert_eq!((news.token, news.side), (7, Side::Reading));
    let mut buffer = [0; 16];
    assert_eq!(rings.receive(spot, &mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
    assert_eq!(rings.receive(spot, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let mut all = Vec::new();
    rings.send(&[(spot, b"one"), (spot, b"two")], |n, sent| all.push((n, sent.unwrap())));
    assert_eq!(all, [(0, 3), (1, 3)]);
    there.read_exact(&mut buffer[..6]).unwrap();
    assert_eq!(&buffer[..6], b"onetwo");
    let mut back = UnixStream::from(rings.bring_back(spot).unwrap());
    assert_eq!(rings.parked(), 0);
    back.write_all(b"!").unwrap();
    there.read_exact(&mut buffer[..1]).unwrap();
    drop(back);
    assert_eq!(there.read(&mut buffer).unwrap(), 0, "no other descriptor or ring has it");
}

#[test]
fn many_come_back_at_once() {
    let Some(mut rings) = rings(1000) else { return };
    let (spots, mut there): (Vec<_>, Vec<_>) = (0..300).map(|_| pair(&mut rings)).unzip();
    for (token, spot) in (0..).zip(&spots) {
        rings.watch(*spot, token, Side::Reading, READABLE);
    }
    rings.flush();
    // Some of them are about to be told of something.
    for far in there.iter_mut().step_by(7) {
        far.write_all(b"x").unwrap();
    }
    let waits: Vec<_> = (0..).zip(&spots).map(|(token, spot)| (*spot, token, Side::Reading)).collect();
    rings.unwatch_all(&waits);
    assert!(!rings.gather(), "{:?}", rings.next_news());
    let back: Vec<_> = rings.bring_back_all(&spots).into_iter().map(|fd| UnixStream::from(fd.unwrap())).collect();
    assert_eq!(rings.parked(), 0);
    for (number, (mut back, mut far)) in back.into_iter().zip(there).enumerate() {
        let mut byte = [0; 1];
        if number % 7 == 0 {
            back.read_exact(&mut byte).unwrap();
        }
        back.write_all(b"y").unwrap();
        far.read_exact(&mut byte).unwrap();
        drop(back);
        assert_eq!(far.read(&mut byte).unwrap(), 0, "no other descriptor or ring has it");
    }
}

#[test]
fn an_end_is_told_of_and_bytes_before_it_are_not() {
    let Some(mut rings) = rings(100) else { return };
    let (spot, mut there) = pair(&mut rings);
    rings.watch(spot, 1, Side::Reading, CLOSED);
    there.write_all(b"early").unwrap();
    rings.flush();
    assert!(!rings.gather());
    there.shutdown(std::net::Shutdown::Write).unwrap();
    let news = next(&mut rings);
    assert!(news.token == 1 && news.events & (CLOSED | FAILED) != 0, "{news:?}");
    rings.close(spot);
    assert_eq!(there.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn a_wait_that_is_ended_is_not_told_of() {
    let Some(mut rings) = rings(100) else { return };
    let (spot, mut there) = pair(&mut rings);
    let (other, mut far) = pair(&mut rings);
    rings.watch(spot, 1, Side::Reading, READABLE);
    rings.watch(other, 2, Side::Reading, READABLE);
    rings.flush();
    rings.unwatch(spot, 1, Side::Reading);
    there.write_all(b"x").unwrap();
    far.write_all(b"x").unwrap();
    assert_eq!(next(&mut rings).token, 2);
    assert!(!rings.gather() && rings.next_news().is_none());
    // The same, when it has come already.
    rings.watch(spot, 1, Side::Reading, READABLE);
    rings.flush();
    rings.unwatch(spot, 1, Side::Reading);
    assert!(!rings.gather(), "{:?}", rings.next_news());
    drop(rings.bring_back(spot));
    assert_eq!(there.read(&mut [0; 8]).unwrap_or(0), 0, "a wait that was ended holds no file");
}

#[test]
fn a_full_socket_says_so_and_when_there_is_room() {
    let Some(mut rings) = rings(100) else { return };
    let (spot, mut there) = pair(&mut rings);
    let much = vec![7; 1 << 20];
    let mut taken = 0;
    let full = loop {
        let mut result = Ok(0);
        rings.send(&[(spot, &much)], |_, sent| result = sent);
        match result {
            Ok(n) => taken += n,
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    rings.watch(spot, 3, Side::Reading, READABLE);
    rings.watch(spot, 3, Side::Writing, WRITABLE);
    rings.flush();
    assert!(!rings.gather());
    let mut all = vec![0; taken];
    there.read_exact(&mut all).unwrap();
    assert_eq!(next(&mut rings).side, Side::Writing);
}

#[test]
fn there_are_more_files_than_descriptors_and_no_more_than_may_be() {
    let Some(mut rings) = rings(5000) else { return };
    // A ring holds as many as the limit says; what is beyond it goes into the next.
    let mut ends = Vec::new();
    let mut refused = 0;
    for _ in 0..60 {
        let pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let (here, there): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        for result in rings.park(here.into_iter().map(OwnedFd::from).collect()) {
            refused += usize::from(result.is_err());
        }
        let parked = rings.park(there.into_iter().map(OwnedFd::from).collect());
        refused += parked.iter().filter(|r| r.is_err()).count();
        ends.extend(parked.into_iter().flatten());
    }
    assert_eq!((rings.parked(), refused), (5000, 7000));
    let mut buffer = [0; 8];
    rings.close(ends.remove(0));
    assert_eq!(rings.receive(ends[0], &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn places_with_others_between_them_are_set_and_emptied_by_one_call() {
    let Some(mut rings) = rings(1000) else { return };
    let (mut spots, mut there): (Vec<_>, Vec<_>) = (0..60).map(|_| pair(&mut rings)).unzip();
    // Every third one goes, and others come into their places; some of them too far apart for one call.
    for _ in 0..2 {
        for step in [3, 17] {
            let places: Vec<usize> = (0..60).step_by(step).rev().collect();
            let back = rings.bring_back_all(&places.iter().map(|at| spots[*at]).collect::<Vec<_>>());
            assert!(back.iter().all(Result::is_ok));
            drop(back);
            let pairs = places.iter().map(|_| UnixStream::pair().unwrap());
            let (here, far): (Vec<OwnedFd>, Vec<_>) = pairs.map(|(here, far)| (here.into(), far)).unzip();
            for ((at, parked), far) in places.into_iter().zip(rings.park(here)).zip(far) {
                assert_eq!(there[at].read(&mut [0; 1]).unwrap(), 0, "no other descriptor or ring has it");
                (spots[at], there[at]) = (parked.unwrap(), far);
            }
        }
    }
    assert_eq!(rings.parked(), 60);
    for (spot, far) in spots.iter().zip(&mut there) {
        let mut sent = None;
        rings.send(&[(*spot, b"own")], |_, result| sent = result.ok());
        assert_eq!(sent, Some(3));
        let mut bytes = [0; 3];
        far.read_exact(&mut bytes).unwrap();
    }
}

#[test]
fn descriptors_are_closed_and_none_between_them() {
    let (mut here, mut there): (Vec<_>, Vec<_>) = (0..20).map(|_| UnixStream::pair().unwrap()).unzip();
    let (mut kept, mut far) = (here.remove(7), there.remove(7));
    close_all(here.into_iter().map(OwnedFd::from).collect());
    assert!(there.iter_mut().all(|far| far.read(&mut [0; 1]).unwrap() == 0));
    kept.write_all(b"x").unwrap();
    far.read_exact(&mut [0; 1]).unwrap();
}
