//! Records of a FastCGI application, of any content: in pieces and at once they are the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::fastcgi::{Decoder, RecordError};

fn read(pieces: &[&[u8]]) -> (Result<(), RecordError>, Vec<u8>, Vec<u8>, bool) {
    let (mut decoder, mut out, mut err) = (Decoder::default(), Vec::new(), Vec::new());
    let result = pieces.iter().try_for_each(|piece| decoder.decode(piece, &mut out, &mut err));
    (result, out, err, decoder.ended)
}

fuzz_target!(|data: &[u8]| {
    let whole = read(&[data]);
    // A line end for a message takes less than its record's head.
    assert!(whole.1.len() + whole.2.len() <= data.len());
    assert_eq!(whole, read(&data.chunks(3).collect::<Vec<_>>()));
});
