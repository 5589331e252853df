//! Rates at which an interface may send, where a token bucket (`tbf`) says so. From: rtnetlink. To: the stress tool's preflight.

use crate::links;
use crate::netlink::{Netlink, attributes, bytes_at};

/// `RTM_GETQDISC`, the size of `struct tcmsg`, attributes of `linux/rtnetlink.h` and of `linux/pkt_sched.h`.
const GET_QDISC: u16 = 38;
const INFO: usize = 20;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
/// Where the rate is in `struct tc_ratespec`, which stands first in `struct tc_tbf_qopt`: bytes a second.
const RATE: usize = 8;

/// Bits a second; none: nothing limits it, or nothing that is known here.
pub fn limit(interface: &str) -> Option<u64> {
    let index = links::index(interface)?;
    let mut found = None;
    let mut message = [0; INFO];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    Netlink::route().ok()?.dump(GET_QDISC, &message, |_, m| found = read(m, index).or(found)).ok()?;
    found
}

/// The rate of one message, if it is about this interface's token bucket.
pub fn read(message: &[u8], interface: i32) -> Option<u64> {
    if message.len() < INFO || i32::from_ne_bytes(bytes_at(message, 4)) != interface {
        return None;
    }
    let all = || attributes(&message[INFO..]);
    all().find(|a| a.0 == KIND).filter(|a| a.1 == b"tbf\0")?;
    let options = all().find(|a| a.0 == OPTIONS)?.1;
    let of = |kind| attributes(options).find(move |a| a.0 == kind).map(|a| a.1);
    let bytes = match of(TBF_RATE64) {
        Some(rate) => u64::from_ne_bytes(bytes_at(rate, 0)),
        None => u64::from(u32::from_ne_bytes(bytes_at(of(TBF_PARAMETERS)?, RATE))),
    };
    (bytes > 0).then(|| bytes.saturating_mul(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::put_attribute;

    fn message(kind: &[u8], interface: i32, rate: u32) -> Vec<u8> {
        let mut message = vec![0; INFO];
        message[4..8].copy_from_slice(&interface.to_ne_bytes());
        put_attribute(&mut message, KIND, kind);
        let (mut parameters, mut options) = (vec![0; 36], Vec::new());
        parameters[RATE..RATE + 4].copy_from_slice(&rate.to_ne_bytes());
        put_attribute(&mut options, TBF_PARAMETERS, &parameters);
        put_attribute(&mut message, OPTIONS, &options);
        message
    }

    #[test]
    fn a_token_bucket_has_a_rate() {
        let ours = message(b"tbf\0", 2, 1_250_000);
        assert_eq!(read(&ours, 2), Some(10_000_000));
        assert_eq!(read(&ours, 3), None, "another interface");
        assert_eq!(read(&message(b"fq_codel\0", 2, 1), 2), None);
        (0..ours.len()).for_each(|cut| _ = read(&ours[..cut], 2));
        assert_eq!(limit("lo"), None);
        assert_eq!(limit("none9"), None);
    }
}
