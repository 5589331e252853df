//! Parsers of outside bytes under inputs that are nearly right: none panics. The fuzz targets go further, where there is nightly.

#![allow(missing_docs, reason = "tests")]

/// Changes a seed in a few places, by a sequence that is the same on every run.
fn mutated(seed: &[u8], state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state as usize
    };
    let mut bytes = seed.to_vec();
    for _ in 0..1 + next() % 4 {
        let at = next() % (bytes.len() + 1);
        match next() % 4 {
            0 if at < bytes.len() => bytes[at] = next() as u8,
            1 => bytes.insert(at, b"\\\"'/|%<>&;:=\r\n-[](){}\0\xff"[next() % 23]),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let from = next() % (bytes.len() + 1);
                let piece: Vec<u8> = bytes[from.min(at)..from.max(at)].to_vec();
                bytes.splice(at..at, piece);
            }
        }
        bytes.truncate(4_096);
    }
    bytes
}

fn each(folder: &str, times: usize, parser: fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{folder}", env!("CARGO_MANIFEST_DIR"));
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for file in std::fs::read_dir(&folder).expect("a corpus").flatten() {
        let seed = std::fs::read(file.path()).expect("a seed");
        parser(&seed);
        let mut current = seed.clone();
        for round in 0..times {
            // Some changes add up, others begin anew.
            current = mutated(if round % 8 == 0 { &seed } else { &current }, &mut state);
            parser(&current);
        }
    }
}

#[test]
fn rules() {
    each("waf_rules", 1_500, waf::fuzz::rules);
}

#[test]
fn multipart() {
    each("waf_multipart", 20_000, |body| {
        waf::fuzz::multipart(body);
        let at = body.iter().position(|b| *b == b'\n').unwrap_or(0);
        waf::fuzz::multipart_with(&body[..at], &body[at..]);
    });
}

#[test]
fn json() {
    each("waf_json", 20_000, waf::fuzz::json);
}

#[test]
fn xml() {
    each("waf_xml", 20_000, waf::fuzz::xml);
}

#[test]
fn urlencoded_and_transformations() {
    each("waf_urlencoded", 20_000, |text| {
        waf::fuzz::urlencoded(text);
        (0..=40).for_each(|which| waf::fuzz::transform(which, text));
    });
}
