//! The offer of WebSocket's extension `permessage-deflate` and the answer to it (RFC 7692 section 7.1). Each message is compressed by itself
//! here: neither side keeps what it has seen of others.

/// What a server says of what it takes.
const NAME: &[u8] = b"permessage-deflate";
/// Binary logarithms of windows (section 7.1.2).
const WINDOWS: std::ops::RangeInclusive<u8> = 8..=15;
/// Offers that are looked at: a client has one or two.
const MOST_OFFERS: usize = 16;

/// The answer to the offers in a client's `Sec-WebSocket-Extensions`, the one it likes best first; none where nothing is agreed on. `window`:
/// what messages are compressed with here.
pub fn agree<'h>(lines: impl IntoIterator<Item = &'h [u8]>, window: u8) -> Option<String> {
    let offers = lines.into_iter().flat_map(|line| line.split(|b| *b == b','));
    offers.take(MOST_OFFERS).find_map(|offer| agree_on(offer, window))
}

fn agree_on(offer: &[u8], window: u8) -> Option<String> {
    let mut words = offer.split(|b| *b == b';').map(<[u8]>::trim_ascii);
    if words.next()? != NAME {
        return None;
    }
    let mut answer = "permessage-deflate; server_no_context_takeover; client_no_context_takeover".to_owned();
    let mut seen = [false; 4];
    for word in words {
        let (name, value) = match word.iter().position(|b| *b == b'=') {
            Some(at) => (word[..at].trim_ascii_end(), Some(word[at + 1..].trim_ascii_start())),
            None => (word, None),
        };
        let number = match (name, value) {
            (b"server_no_context_takeover", None) => 0,
            (b"client_no_context_takeover", None) => 1,
            (b"client_max_window_bits", None) => 2,
            // Its window may be as large as it is by itself.
            (b"client_max_window_bits", Some(value)) => bits(value).map(|_| 2)?,
            (b"server_max_window_bits", Some(value)) => {
                if bits(value)? < window {
                    return None;
                }
                answer.push_str(&format!("; server_max_window_bits={window}"));
                3
            }
            _ => return None,
        };
        if std::mem::replace(&mut seen[number], true) {
            return None;
        }
    }
    Some(answer)
}

/// A number without leading zeros, perhaps in quotes.
fn bits(value: &[u8]) -> Option<u8> {
    let inside = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
    if inside.is_empty() || inside[0] == b'0' || !inside.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(inside).ok()?.parse().ok().filter(|bits| WINDOWS.contains(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_agreed_on_or_not() {
        let usual = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let said = |offer: &str| agree([offer.as_bytes()], 10);
        assert_eq!(said("permessage-deflate; client_max_window_bits").as_deref(), Some(usual));
        assert_eq!(said("x-webkit-deflate-frame, permessage-deflate").as_deref(), Some(usual));
        let smaller = format!("{usual}; server_max_window_bits=10");
        let offer = "permessage-deflate;server_max_window_bits=9, permessage-deflate; server_max_window_bits=\"12\"";
        assert_eq!(said(offer), Some(smaller));
        for bad in [
            "",
            "permessage-deflate; unknown",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=9",
            "permessage-deflate; client_max_window_bits=16",
            "permessage-deflate; client_max_window_bits=08",
            "permessage-deflate; client_no_context_takeover=1",
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        ] {
            assert_eq!(said(bad), None, "{bad}");
        }
    }
}
