//! JSON Web Tokens in their compact form (RFC 7515 section 7.1): three parts in base64url. What the JSON in them says, and whether
//! the signature is right, is for others.

use crate::encoding::{Alphabet, base64_decode};

/// Longer tokens are refused: a request's head has no room for them by default.
pub const MAX_TOKEN: usize = 32 * 1024;

/// A token, cut up and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'t> {
    /// What is signed: header and payload as they came, with the dot.
    pub signed: &'t [u8],
    /// The header, JSON.
    pub header: Vec<u8>,
    /// The payload, JSON if it holds claims.
    pub payload: Vec<u8>,
    /// The signature.
    pub signature: Vec<u8>,
}

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// It is longer than [`MAX_TOKEN`].
    TooLong,
    /// It has not three parts, or five: a token that is encrypted.
    Parts(usize),
    /// A part is not base64url.
    Encoding,
}

/// Cuts a token up.
///
/// # Errors
/// See [`NoToken`].
pub fn parse(text: &[u8]) -> Result<Token<'_>, NoToken> {
    if text.len() > MAX_TOKEN {
        return Err(NoToken::TooLong);
    }
    let mut parts = text.split(|b| *b == b'.');
    let (Some(header), Some(payload), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(NoToken::Parts(text.split(|b| *b == b'.').count()));
    };
    let signed = &text[..header.len() + 1 + payload.len()];
    Ok(Token { signed, header: decode(header)?, payload: decode(payload)?, signature: decode(signature)? })
}

/// Decodes base64url without padding.
///
/// # Errors
/// [`NoToken::Encoding`]
pub fn decode(text: &[u8]) -> Result<Vec<u8>, NoToken> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let plain = text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    match base64_decode(text, Alphabet::Url, &mut out) {
        Ok(()) if plain => Ok(out),
        _ => Err(NoToken::Encoding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_cut_at_their_dots() {
        let token = parse(b"eyJhIjoxfQ.e30.AAEC").expect("it is one");
        assert_eq!((token.header.as_slice(), token.payload.as_slice()), (&b"{\"a\":1}"[..], &b"{}"[..]));
        assert_eq!((token.signed, token.signature.as_slice()), (&b"eyJhIjoxfQ.e30"[..], &[0, 1, 2][..]));
        assert_eq!(parse(b"a.b"), Err(NoToken::Parts(2)));
        assert_eq!(parse(b"a.b.c.d.e"), Err(NoToken::Parts(5)));
        assert_eq!(parse(b"e30.e30.a+b="), Err(NoToken::Encoding));
        assert_eq!(parse(b"e30.e30.").map(|t| t.signature), Ok(vec![]));
        assert_eq!(parse(&[b'a'; MAX_TOKEN + 1]), Err(NoToken::TooLong));
    }
}
