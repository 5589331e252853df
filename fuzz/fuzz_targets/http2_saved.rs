//! A connection of HTTP/2 as another process says it was (`Connection::save`): whatever the bytes are, there is none, or one that is saved
//! as the same and takes any frames that follow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http2::connection::{Connection, Event};
use wire::http2::hpack::HeaderBlock;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (saved, bytes) = input;
    let Some(connection) = Connection::<()>::restore(saved) else { return };
    let again = connection.save().expect("one that was restored is at rest");
    let mut c = Connection::<()>::restore(&again).expect("what was saved is whole");
    assert_eq!(c.save().as_ref(), Some(&again));
    let (mut at, mut head) = (0, HeaderBlock::default());
    loop {
        let before = at;
        match c.next(bytes, &mut at, &mut head) {
            Ok(Event::More) => break,
            Ok(_) => {}
            Err(e) => {
                c.goaway(e.code);
                break;
            }
        }
        assert!(at >= before && at <= bytes.len());
    }
});
