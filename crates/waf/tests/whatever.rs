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
fn values_for_libinjection() {
    each("waf_sqli", 300, |text| {
        let Some((cut, text)) = text.split_first() else { return };
        let (head, tail) = text.split_at(usize::from(*cut).min(text.len()));
        let (piece, tail) = tail.split_at(tail.len().min(8));
        waf::fuzz::sqli(&[head, &piece.repeat(1_000), tail].concat());
    });
}

#[test]
fn urlencoded_and_transformations() {
    each("waf_urlencoded", 20_000, |text| {
        waf::fuzz::urlencoded(text);
        (0..=40).for_each(|which| waf::fuzz::transform(which, text));
    });
}

#[test]
fn operators_and_transformations_of_a_whole_transaction() {
    let text = b"SecRuleEngine On\n\
        SecRule ARGS \"@detectSQLi\" \"id:1,phase:1,pass,t:none,t:urlDecodeUni,multiMatch,capture\"\n\
        SecRule ARGS \"@detectXSS\" \"id:2,phase:1,pass,t:none,t:htmlEntityDecode,t:jsDecode,t:cssDecode,multiMatch\"\n\
        SecRule ARGS \"@rx (a|b|%)*(\\d+)$\" \"id:3,phase:1,pass,capture,t:replaceComments,t:cmdLine,t:normalizePathWin\"\n\
        SecRule ARGS \"@verifyCC \\d{13,16}\" \"id:4,phase:1,pass,t:sqlHexDecode,t:base64DecodeExt,t:escapeSeqDecode\"\n";
    let rules = waf::Rules::load(&[waf::Source { name: "test.conf", text }], &waf::Bundle::default()).expect("rules");
    let rules = std::sync::Arc::new(rules);
    let mut state = 0x1234_5678_9abc_def1;
    let mut transaction = waf::Transaction::new(rules.clone(), None, waf::Now::default());
    let mut ask = |value: &[u8]| {
        transaction.recycle(rules.clone(), None, waf::Now::default());
        transaction.uri(b"GET", &[b"/?a=", value].concat(), b"HTTP/1.1");
        transaction.request_headers([]);
        assert_eq!(transaction.fault(), None, "{}", String::from_utf8_lossy(value));
    };
    let seeds: [&[u8]; 4] = [
        b"1' or '1'='1' union select /*!50000 a*/ from b -- x",
        b"\"><svg/onload=alert(1) style=x><!--[if<a href='java&#115;cript:x'>",
        b"%2527%u0041&#x41;\\u0041\\41 0x414243 4111111111111111",
        b"e'\\'' $$a$$ q'(x)' @@v `n` 1e5.2 {d x} /*/*!*/",
    ];
    for seed in seeds {
        let mut current = seed.to_vec();
        for round in 0..3_000 {
            current = mutated(if round % 8 == 0 { seed } else { &current }, &mut state);
            ask(&current);
        }
    }
    // Long ones of one kind take linear time: a quadratic one would not end here.
    for unit in ["'", "\"", "/*", "<", "<a ", "--", "(", "1,", "a ", "\\", "`", "x=", "%", "$$", "&#"] {
        ask(unit.repeat(60_000 / unit.len()).as_bytes());
    }
}
