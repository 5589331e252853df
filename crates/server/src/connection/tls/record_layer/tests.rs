use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn secrets(suite: u16, ours: &[u8], sent: u64, theirs: &[u8], heard: u64) -> Secrets {
    end(false, suite, ours, sent, theirs, heard)
}

fn end(is_client: bool, suite: u16, ours: &[u8], sent: u64, theirs: &[u8], heard: u64) -> Secrets {
    let (piece, sent, heard) = (16384_u16.to_be_bytes(), sent.to_be_bytes(), heard.to_be_bytes());
    let all = [&suite.to_be_bytes()[..], &[u8::from(is_client)], &piece, &sent, &heard, ours, theirs].concat();
    Secrets::from_bytes(&all).unwrap()
}

/// The two ends of one connection.
fn pair(suite: u16) -> (Layer, Layer) {
    let length = if suite == 0x1302 { 48 } else { 32 };
    let (a, b) = (vec![1; length], vec![2; length]);
    (Layer::new(secrets(suite, &a, 0, &b, 0)), Layer::new(secrets(suite, &b, 0, &a, 0)))
}

/// All that is heard of what was written; `.` for what is nothing, `!` for the end.
fn hear(layer: &mut Layer, mut records: Vec<u8>) -> Result<String, Fault> {
    let mut all = String::new();
    let mut rest = &mut records[..];
    while let Some(length) = whole(rest)? {
        let (record, behind) = rest.split_at_mut(length);
        match layer.open(record)? {
            Heard::Bytes(plain) => all.push_str(&String::from_utf8_lossy(plain)),
            Heard::Nothing => all.push('.'),
            Heard::Ended => all.push('!'),
        }
        rest = behind;
    }
    assert!(rest.is_empty());
    Ok(all)
}

/// RFC 8448 section 3: the server's alert is its third record, the client's its second.
#[test]
fn records_are_those_of_rfc_8448() {
    let server = bytes("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
    let client = bytes("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
    let mut layer = Layer::new(secrets(0x1301, &server, 2, &client, 1));
    let mut out = Vec::new();
    layer.say_goodbye(&mut out);
    assert_eq!(out, bytes("17 03 03 00 13 b5 8f d6 71 66 eb f5 99 d2 47 20 cf be 7e fa 7a 88 64 a9"));
    let heard = bytes("17 03 03 00 13 c9 87 27 60 65 56 66 b7 4d 7f f1 15 3e fd 6d b6 d0 b0 e3");
    assert_eq!(hear(&mut layer, heard), Ok("!".into()));
}

#[test]
fn what_one_end_says_the_other_hears_through_updates_of_keys() {
    for suite in [0x1301, 0x1302, 0x1303] {
        let (mut a, mut b) = pair(suite);
        let mut out = Vec::new();
        a.write(b"first ", &mut out);
        a.update(&mut out);
        a.write(b"second", &mut out);
        // It asks for new keys of ours as well, twice.
        a.seal(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1], &mut out);
        a.secrets.ours.update();
        a.ours = None;
        a.write(b" third", &mut out);
        assert_eq!(hear(&mut b, out), Ok("first .second. third".into()));
        // Both go on from what is kept of them.
        let (mut a, mut b) = [a, b]
            .map(|mut layer| {
                let mut out = Vec::new();
                layer.answer(&mut out);
                (out, Layer::new(Secrets::from_bytes(&layer.secrets().to_bytes()).unwrap()))
            })
            .into();
        assert!(a.0.is_empty() && !b.0.is_empty());
        b.1.write(b"answer", &mut b.0);
        assert_eq!(hear(&mut a.1, b.0), Ok(".answer".into()));
    }
}

#[test]
fn large_texts_go_in_pieces() {
    let (mut a, mut b) = pair(0x1303);
    a.secrets.piece = 1000;
    let mut out = Vec::new();
    a.write(&[b'x'; 2500], &mut out);
    assert_eq!(out.len(), 2500 + 3 * (HEAD + 1 + TAG));
    assert_eq!(hear(&mut b, out).map(|text| text.len()), Ok(2500));
}

#[test]
fn keys_are_changed_before_they_are_worn() {
    let (mut a, mut b) = pair(0x1301);
    a.secrets.ours.sequence = RECORDS_FOR_A_KEY - 1;
    b.secrets.theirs.sequence = RECORDS_FOR_A_KEY - 1;
    let mut out = Vec::new();
    a.write(b"x", &mut out);
    a.write(b"y", &mut out);
    assert_eq!(hear(&mut b, out), Ok("x.y".into()));
    assert_eq!(a.secrets.ours.sequence, 1);
}

#[test]
fn faults_are_told_apart_and_answered() {
    let said = |kind: u8, plain: &[u8]| {
        let (mut a, mut b) = pair(0x1301);
        let mut out = Vec::new();
        a.seal(kind, plain, &mut out);
        hear(&mut b, out)
    };
    assert_eq!(said(ALERT, &[2, 42]), Err(Fault::Alert(42)));
    assert_eq!(said(ALERT, &[1, 90]), Ok(".".into()));
    assert_eq!(said(ALERT, &[1]), Err(Fault::Malformed));
    assert_eq!(said(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2]), Err(Fault::Malformed));
    assert_eq!(said(HANDSHAKE, &[1, 0, 0, 0]), Err(Fault::Unexpected));
    assert_eq!(said(20, &[1]), Err(Fault::Unexpected));
    assert_eq!(said(0, &[0, 0]), Err(Fault::Unexpected));
    assert_eq!(said(DATA, &[0; MOST_PLAIN + 1]), Err(Fault::TooLarge));
    let (mut a, mut b) = pair(0x1301);
    let mut out = Vec::new();
    a.write(b"x", &mut out);
    out[HEAD] ^= 1;
    assert_eq!(hear(&mut b, out), Err(Fault::Forged));
    let mut out = Vec::new();
    b.refuse(Fault::Forged, &mut out);
    assert_eq!(hear(&mut a, out), Err(Fault::Alert(20)));
    assert_eq!(whole(&[DATA, 3, 3, 0x41, 1]), Err(Fault::TooLarge));
    assert_eq!(whole(&[DATA, 3, 3, 0, 16]), Err(Fault::Malformed));
    assert_eq!(whole(&[21, 3, 3, 0, 2, 1, 0]), Err(Fault::Unexpected));
    assert_eq!(whole(&[DATA, 3, 3, 0, 17]), Ok(None));
}

#[test]
fn who_only_makes_work_is_sent_away() {
    let (mut a, mut b) = pair(0x1303);
    let mut out = Vec::new();
    for _ in 0..=MOST_UPDATES {
        a.update(&mut out);
    }
    assert_eq!(hear(&mut b, out), Err(Fault::Flood));
    let (mut a, mut b) = pair(0x1303);
    let mut out = Vec::new();
    for _ in 0..=MOST_EMPTY {
        a.seal(DATA, b"", &mut out);
    }
    assert_eq!(hear(&mut b, out), Err(Fault::Flood));
}

/// A server, and who has asked it.
fn server_and_client() -> (Layer, Layer) {
    let (a, b) = ([1; 32], [2; 32]);
    (Layer::new(end(false, 0x1301, &a, 0, &b, 0)), Layer::new(end(true, 0x1301, &b, 0, &a, 0)))
}

fn ticket(length: usize) -> Vec<u8> {
    [&[TICKET], &(length as u32).to_be_bytes()[1..], &vec![b't'; length]].concat()
}

#[test]
fn tickets_of_a_server_are_passed_over() {
    for size in [1, 3, 4, 5, 100, 200, 404] {
        // Two of them, in one record or in many: messages may begin and end anywhere.
        let (mut server, mut client) = server_and_client();
        let mut out = Vec::new();
        let messages = [ticket(200), ticket(196)].concat();
        messages.chunks(size).for_each(|piece| server.seal(HANDSHAKE, piece, &mut out));
        server.write(b"hello", &mut out);
        server.seal(HANDSHAKE, &[&ticket(20)[..], &[KEY_UPDATE, 0, 0, 1, 1]].concat(), &mut out);
        server.secrets.ours.update();
        server.ours = None;
        server.write(b"with new keys", &mut out);
        let records = 404_usize.div_ceil(size);
        let expected = format!("{}hello.with new keys", ".".repeat(records));
        assert_eq!(hear(&mut client, out), Ok(expected), "{size}");
        let mut answer = Vec::new();
        assert!(!client.is_at_rest());
        client.write(b"answer", &mut answer);
        assert!(client.is_at_rest());
        assert_eq!(hear(&mut server, answer), Ok(".answer".into()));
    }
}

#[test]
fn a_server_says_nothing_else_and_not_without_end() {
    let said = |kind: u8, pieces: &[&[u8]]| {
        let (mut server, mut client) = server_and_client();
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| server.seal(kind, piece, &mut out));
        (hear(&mut client, out), client.is_at_rest())
    };
    let of = |pieces: &[&[u8]]| said(HANDSHAKE, pieces);
    assert_eq!(of(&[&ticket(20)]), (Ok(".".into()), true));
    assert_eq!(of(&[&ticket(20)[..10]]), (Ok(".".into()), false));
    assert_eq!(of(&[&ticket(20)[..2]]), (Ok(".".into()), false));
    for strange in
        [&b""[..], &[13, 0, 0, 0], &[KEY_UPDATE, 0, 0, 2, 0, 0], &[KEY_UPDATE, 0, 0, 1], &[KEY_UPDATE, 0, 0, 1, 0, 4]]
    {
        assert_eq!(of(&[strange]).0, Err(Fault::Unexpected), "{strange:?}");
    }
    assert_eq!(of(&[&[KEY_UPDATE, 0, 0, 1, 2]]).0, Err(Fault::Malformed));
    let [_, high, middle, low] = (MOST_TICKET + 1).to_be_bytes();
    assert_eq!(of(&[&[TICKET, high, middle, low]]).0, Err(Fault::Malformed));
    let many = vec![ticket(20); usize::from(MOST_TICKETS) + 1];
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    assert_eq!(of(&many).0, Err(Fault::Flood));
    assert!(of(&many[1..]).0.is_ok());
    // Nothing else comes between two pieces of one.
    let (mut server, mut client) = server_and_client();
    let mut out = Vec::new();
    server.seal(HANDSHAKE, &ticket(20)[..10], &mut out);
    server.write(b"data", &mut out);
    assert_eq!(hear(&mut client, out), Err(Fault::Unexpected));
    // Who was asked is sent none.
    let (mut server, mut client) = server_and_client();
    let mut out = Vec::new();
    client.seal(HANDSHAKE, &ticket(20), &mut out);
    assert_eq!(hear(&mut server, out), Err(Fault::Unexpected));
}
