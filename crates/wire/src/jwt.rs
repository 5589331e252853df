//! JSON Web Tokens in their compact forms: signed, three parts in base64url (RFC 7515 section 7.1), or encrypted, five (RFC 7516
//! section 7.1). What the JSON in them says, and whether signature or seal is right, is for others.

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

/// An encrypted token, cut up and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encrypted<'t> {
    /// The header as it came: the seal is over it as well.
    pub protected: &'t [u8],
    /// The header, JSON.
    pub header: Vec<u8>,
    /// The key that the content is sealed with, sealed itself.
    pub key: Vec<u8>,
    /// What the seal begins with.
    pub iv: Vec<u8>,
    /// The content.
    pub content: Vec<u8>,
    /// What proves it.
    pub tag: Vec<u8>,
}

/// Cuts an encrypted token up.
///
/// # Errors
/// See [`NoToken`].
pub fn parse_encrypted(text: &[u8]) -> Result<Encrypted<'_>, NoToken> {
    if text.len() > MAX_TOKEN {
        return Err(NoToken::TooLong);
    }
    let mut parts = text.splitn(6, |b| *b == b'.');
    let parts = std::array::from_fn(|_| parts.next());
    let [Some(protected), Some(key), Some(iv), Some(content), Some(tag), None] = parts else {
        return Err(NoToken::Parts(text.split(|b| *b == b'.').count()));
    };
    Ok(Encrypted {
        protected,
        header: decode(protected)?,
        key: decode(key)?,
        iv: decode(iv)?,
        content: decode(content)?,
        tag: decode(tag)?,
    })
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
        let sealed = parse_encrypted(b"e30..AAEC.Zg.AQ").expect("it is one");
        assert_eq!((sealed.protected, sealed.key.len(), sealed.content.as_slice()), (&b"e30"[..], 0, &b"f"[..]));
        assert_eq!(parse_encrypted(b"a.b.c"), Err(NoToken::Parts(3)));
        assert_eq!(parse_encrypted(b"a.b.c.d.e.f"), Err(NoToken::Parts(6)));
    }
}
