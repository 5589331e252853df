//! Session tickets: the state of a session sealed for the client to keep (RFC 5077, RFC 8446 section 4.6.1). Keys come
//! from files that several machines share, or are made anew now and then. A ticket is good only where it was made: its
//! seal covers what the server asks of clients.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// What a session belongs to: certificates, and who may be a client.
pub type Scope = [u8; 32];

/// Bytes of a key's name in front of a ticket.
const NAME: usize = 16;
/// Bytes of the time within the seal.
const TIME: usize = 8;
/// Sizes of key files, as nginx has them.
const FILE_SIZES: [usize; 2] = [48, 80];
/// Plain bytes of a ticket are filled up to a multiple of this: its length tells nothing about the session.
const FILL: usize = 128;

/// A key and its name.
#[derive(Clone)]
pub struct TicketKey {
    name: [u8; NAME],
    key: Arc<LessSafeKey>,
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey")
    }
}

impl TicketKey {
    /// From the content of a file; none if it is not 48 or 80 bytes.
    pub fn from_file(content: &[u8]) -> Option<TicketKey> {
        FILE_SIZES.contains(&content.len()).then(|| TicketKey::derived(content))
    }

    fn derived(secret: &[u8]) -> TicketKey {
        let key = digest(&SHA256, secret);
        let key = UnboundKey::new(&AES_256_GCM_SIV, key.as_ref()).expect("a digest has the size of the key");
        let mut name = [0; NAME];
        name.copy_from_slice(&secret[..NAME]);
        TicketKey { name, key: Arc::new(LessSafeKey::new(key)) }
    }

    fn random() -> Option<TicketKey> {
        let mut secret = [0; 80];
        SystemRandom::new().fill(&mut secret).ok()?;
        Some(TicketKey::derived(&secret))
    }
}

/// Keys that nobody gave: one set for all servers of the process with one lifetime of tickets, so that tickets outlive
/// reloads. After a lifetime there is a new key; the one before opens tickets for as long again.
struct Own {
    lifetime: Duration,
    /// The newest first.
    keys: Vec<TicketKey>,
    since: Instant,
}

static OWN: Mutex<Vec<Own>> = Mutex::new(Vec::new());

fn own_keys(lifetime: Duration) -> Vec<TicketKey> {
    let mut all = OWN.lock().expect("nothing panics while it is locked");
    let place = all.iter().position(|o| o.lifetime == lifetime).unwrap_or_else(|| {
        all.push(Own { lifetime, keys: Vec::new(), since: Instant::now() });
        all.len() - 1
    });
    let own = &mut all[place];
    let age = own.since.elapsed();
    if own.keys.is_empty() || age > lifetime {
        // What was sealed with the last key is still good if that is not long ago.
        own.keys.truncate(if age > 2 * lifetime { 0 } else { 1 });
        own.keys.splice(0..0, TicketKey::random());
        own.since = Instant::now();
    }
    own.keys.clone()
}

/// Makes and opens the tickets of a server.
#[derive(Debug)]
pub struct Tickets {
    /// `ssl_session_ticket_key`; none: made here.
    given: Vec<TicketKey>,
    scope: Scope,
    lifetime: Duration,
}

impl Tickets {
    /// With keys of files, the first of which seals.
    pub fn new(given: Vec<TicketKey>, scope: Scope, lifetime: Duration) -> Arc<Tickets> {
        Arc::new(Tickets { given, scope, lifetime })
    }

    fn keys(&self) -> Vec<TicketKey> {
        if self.given.is_empty() { own_keys(self.lifetime) } else { self.given.clone() }
    }

    fn seal(&self, plain: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let key = self.keys().into_iter().next()?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut ticket = [&key.name[..], &nonce].concat();
        let len = u16::try_from(plain.len()).ok()?;
        let mut sealed = [&now_s.to_be_bytes()[..], &len.to_be_bytes(), plain].concat();
        sealed.resize(sealed.len().next_multiple_of(FILL), 0);
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.key.seal_in_place_append_tag(nonce, Aad::from(self.scope), &mut sealed).ok()?;
        ticket.append(&mut sealed);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys().into_iter().find(|k| k.name == name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plain = key.key.open_in_place(nonce, Aad::from(self.scope), &mut sealed).ok()?;
        let (time, plain) = plain.split_at_checked(TIME)?;
        let (len, plain) = plain.split_at_checked(2)?;
        let plain = plain.get(..usize::from(u16::from_be_bytes([len[0], len[1]])))?;
        let made = u64::from_be_bytes(time.try_into().ok()?);
        // Another machine's clock may be a little ahead.
        (now_s.saturating_sub(made) <= self.lifetime.as_secs()).then(|| plain.to_vec())
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now_s())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let plain = self.open(ticket, now_s())?;
        super::notes::session(digest(&SHA256, ticket).as_ref());
        Some(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(keys: &[u8], scope: u8) -> Arc<Tickets> {
        let given = keys.iter().map(|k| TicketKey::from_file(&[*k; 80]).expect("80 bytes")).collect();
        Tickets::new(given, [scope; 32], Duration::from_secs(300))
    }

    #[test]
    fn a_ticket_is_good_for_its_time_place_and_key() {
        let here = tickets(&[1], 0);
        let ticket = here.seal(b"state", 1000).expect("sealed");
        assert_eq!(here.open(&ticket, 1300).as_deref(), Some(&b"state"[..]));
        assert_eq!(here.open(&ticket, 1301), None);
        assert_eq!(tickets(&[2, 1], 0).open(&ticket, 1000).as_deref(), Some(&b"state"[..]));
        assert_eq!(tickets(&[2], 0).open(&ticket, 1000), None);
        assert_eq!(tickets(&[1], 9).open(&ticket, 1000), None);
        for i in 0..ticket.len() {
            let mut broken = ticket.clone();
            broken[i] ^= 1;
            assert_eq!(here.open(&broken, 1000), None, "{i}");
            assert_eq!(here.open(&ticket[..i], 1000), None, "{i}");
        }
    }

    #[test]
    fn keys_of_its_own_are_those_of_all_servers() {
        let ticket = tickets(&[], 0).encrypt(b"state").expect("sealed");
        assert_eq!(tickets(&[], 0).decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        assert!(TicketKey::from_file(&[0; 79]).is_none());
    }
}
