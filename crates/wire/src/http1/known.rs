//! The header names the server acts on, found by length, three letters and one comparison.

macro_rules! known_headers {
    ($($variant:ident = $name:literal,)*) => {
        /// A header the server acts on; every other one is [`KnownHeader::Other`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum KnownHeader {
            /// A header that is only carried.
            #[default]
            Other,
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        const TABLE: &[(KnownHeader, &str)] = &[$((KnownHeader::$variant, $name),)*];
    };
}

known_headers! {
    Accept = "Accept",
    AcceptEncoding = "Accept-Encoding",
    AcceptLanguage = "Accept-Language",
    AcceptRanges = "Accept-Ranges",
    Age = "Age",
    Authorization = "Authorization",
    CacheControl = "Cache-Control",
    Connection = "Connection",
    ContentDisposition = "Content-Disposition",
    ContentEncoding = "Content-Encoding",
    ContentLength = "Content-Length",
    ContentRange = "Content-Range",
    ContentType = "Content-Type",
    Cookie = "Cookie",
    Date = "Date",
    Depth = "Depth",
    Destination = "Destination",
    Etag = "ETag",
    Expect = "Expect",
    Expires = "Expires",
    Host = "Host",
    IfMatch = "If-Match",
    IfModifiedSince = "If-Modified-Since",
    IfNoneMatch = "If-None-Match",
    IfRange = "If-Range",
    IfUnmodifiedSince = "If-Unmodified-Since",
    KeepAlive = "Keep-Alive",
    LastEventId = "Last-Event-ID",
    LastModified = "Last-Modified",
    Link = "Link",
    Location = "Location",
    Origin = "Origin",
    Overwrite = "Overwrite",
    Pragma = "Pragma",
    ProxyAuthorization = "Proxy-Authorization",
    ProxyConnection = "Proxy-Connection",
    Range = "Range",
    Referer = "Referer",
    Refresh = "Refresh",
    SecWebSocketAccept = "Sec-WebSocket-Accept",
    SecWebSocketExtensions = "Sec-WebSocket-Extensions",
    SecWebSocketKey = "Sec-WebSocket-Key",
    SecWebSocketProtocol = "Sec-WebSocket-Protocol",
    SecWebSocketVersion = "Sec-WebSocket-Version",
    Server = "Server",
    SetCookie = "Set-Cookie",
    Status = "Status",
    Te = "TE",
    Trailer = "Trailer",
    TransferEncoding = "Transfer-Encoding",
    Upgrade = "Upgrade",
    UserAgent = "User-Agent",
    Vary = "Vary",
    Via = "Via",
    WwwAuthenticate = "WWW-Authenticate",
    XAccelBuffering = "X-Accel-Buffering",
    XAccelCharset = "X-Accel-Charset",
    XAccelExpires = "X-Accel-Expires",
    XAccelLimitRate = "X-Accel-Limit-Rate",
    XAccelRedirect = "X-Accel-Redirect",
    XForwardedFor = "X-Forwarded-For",
    XRealIp = "X-Real-IP",
}

// A set of them is a word.
const _: () = assert!(TABLE.len() < 64, "known headers are counted in bits of 64");

impl KnownHeader {
    /// The header called `name`, in any case.
    #[inline]
    pub fn find(name: &[u8]) -> Self {
        if name.is_empty() {
            return Self::Other;
        }
        let entry = SLOTS[slot(name)];
        if entry == 0 {
            return Self::Other;
        }
        let (header, known) = TABLE[entry as usize - 1];
        if is_same(name, known.as_bytes()) { header } else { Self::Other }
    }

    /// A bit of its own in a set of headers; the one of [`KnownHeader::Other`] stands for all unknown ones.
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// The name as nginx writes it; empty for [`KnownHeader::Other`].
    pub fn name(self) -> &'static str {
        match (self as usize).checked_sub(1) {
            Some(at) => TABLE[at].1,
            None => "",
        }
    }
}

/// Compares without case, eight bytes a step, the last ones together with some that were compared before. Measured: a
/// quarter of the cost of `eq_ignore_ascii_case`.
#[inline]
fn is_same(name: &[u8], known: &[u8]) -> bool {
    if name.len() != known.len() {
        return false;
    }
    if let (Some(name_end), Some(known_end)) = (name.last_chunk::<8>(), known.last_chunk::<8>()) {
        let mut words = name.as_chunks::<8>().0.iter().zip(known.as_chunks::<8>().0);
        return words.all(|(a, b)| is_same_word(*a, *b)) && is_same_word(*name_end, *known_end);
    }
    match (name.first_chunk::<4>(), known.first_chunk::<4>(), name.last_chunk::<4>(), known.last_chunk::<4>()) {
        (Some(a), Some(b), Some(c), Some(d)) => is_same_word(join(*a, *c), join(*b, *d)),
        _ => name.eq_ignore_ascii_case(known),
    }
}

fn join([a, b, c, d]: [u8; 4], [e, f, g, h]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// `known` has letters, digits and hyphens only. They differ from others of the same kind in more than the bit of case, but
/// digits and hyphens differ in it alone from control characters, which have neither of two bits.
#[inline(always)]
fn is_same_word(name: [u8; 8], known: [u8; 8]) -> bool {
    const CASE: u64 = 0x2020_2020_2020_2020;
    const NO_CONTROL: u64 = 0x4040_4040_4040_4040;
    let (name, known) = (u64::from_ne_bytes(name), u64::from_ne_bytes(known));
    (name ^ known) & !CASE == 0 && (name | (name << 1)) & NO_CONTROL == NO_CONTROL
}

/// Slots of the hash table: large enough that no two names of the list share one (checked when it is compiled).
const SLOT_COUNT: usize = 512;

static SLOTS: [u8; SLOT_COUNT] = slots();

/// Where a name stands in the table. Case does not matter: letters differ in the bit 0x20 only.
#[inline(always)]
const fn slot(name: &[u8]) -> usize {
    let [first, middle, last] = [name[0], name[name.len() / 2], name[name.len() - 1]];
    let letters =
        (first | 0x20) as usize * MIX_FIRST + (middle | 0x20) as usize * MIX_MIDDLE + (last | 0x20) as usize * MIX_LAST;
    (name.len() * MIX_LENGTH + letters) % SLOT_COUNT
}

// Found by search; any four numbers do that pass the assertion in `slots`.
const MIX_LENGTH: usize = 289;
const MIX_FIRST: usize = 107;
const MIX_MIDDLE: usize = 219;
const MIX_LAST: usize = 487;

const fn slots() -> [u8; SLOT_COUNT] {
    let mut slots = [0; SLOT_COUNT];
    let mut at = 0;
    while at < TABLE.len() {
        let name = TABLE[at].1.as_bytes();
        let slot = slot(name);
        assert!(slots[slot] == 0, "two header names share a slot: choose other factors");
        slots[slot] = at as u8 + 1;
        at += 1;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_name_in_any_case() {
        for &(header, name) in TABLE {
            assert_eq!(KnownHeader::find(name.as_bytes()), header);
            assert_eq!(KnownHeader::find(name.to_lowercase().as_bytes()), header);
            assert_eq!(KnownHeader::find(name.to_uppercase().as_bytes()), header);
            assert_eq!(header.name(), name);
        }
        for other in ["", "X", "Hosts", "Hxst", "Content-Lengthy", "Dnt"] {
            assert_eq!(KnownHeader::find(other.as_bytes()), KnownHeader::Other);
        }
    }
}
