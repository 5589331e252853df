//! A sample of a machine's connections, for `sockets`: where there are very many, the kernel fills a message for each (2 us), and that alone would take
//! seconds. A filter in the request (`INET_DIAG_REQ_BYTECODE`) has it tell only of those with some ports: one of eight, spread evenly over all.

/// One connection of so many is in the sample.
pub(crate) const ONE_OF: u64 = 8;
/// Ports of the sample stand in blocks: as many of each as there are blocks of this many ports.
const BLOCK: u16 = 4096;
const TAKEN: u16 = BLOCK / ONE_OF as u16;

/// `INET_DIAG_BC_*` of `linux/inet_diag.h`.
const JUMP: u8 = 1;
const SOURCE_AT_LEAST: u8 = 2;
const SOURCE_AT_MOST: u8 = 3;
const DESTINATION_AT_LEAST: u8 = 4;
const DESTINATION_AT_MOST: u8 = 5;
/// `struct inet_diag_bc_op`, and the second one that has the port.
const OP: u16 = 4;
const COMPARE: u16 = 2 * OP;

/// Whether a port is one of the sample's.
pub(crate) fn has(port: u16) -> bool {
    port % BLOCK < TAKEN
}

/// The sample's filter: sockets of which either port is the sample's. Which of the two decides is known only when it is seen whether somebody listens on the
/// local one, so a few are told that are not in the sample.
pub(crate) fn filter() -> Vec<u8> {
    let ranges: Vec<(u16, u16)> =
        (0..=u16::MAX / BLOCK).map(|block| (block * BLOCK, block * BLOCK + (TAKEN - 1))).collect();
    either(&ranges, &ranges)
}

/// A filter for sockets with one of these local ports, which rise.
pub(crate) fn with_ports(ports: &[u16]) -> Vec<u8> {
    let ranges: Vec<(u16, u16)> = ports.iter().map(|port| (*port, *port)).collect();
    either(&ranges, &[])
}

/// A filter for sockets with one of these remote ports, which rise.
pub(crate) fn to_ports(ports: &[u16]) -> Vec<u8> {
    let ranges: Vec<(u16, u16)> = ports.iter().map(|port| (*port, *port)).collect();
    either(&[], &ranges)
}

/// Sockets whose local port is in one of these ranges or whose remote port in one of those.
///
/// A jump may only go where the ways of "yes" lead as well, and these go from each step to the next one.
fn either(local: &[(u16, u16)], remote: &[(u16, u16)]) -> Vec<u8> {
    // Of each range: at least, at most, and a jump to the end, which accepts.
    let step = 2 * COMPARE + OP;
    let (locals, both) = (step * local.len() as u16, step * (local.len() + remote.len()) as u16);
    let end = both + OP;
    let mut code = Vec::with_capacity(usize::from(end));
    let op = |code: &mut Vec<u8>, kind: u8, yes: u16, no: u16| {
        code.extend([kind, yes as u8]);
        code.extend(no.to_ne_bytes());
    };
    for (at_least, at_most, ranges, behind) in
        [(SOURCE_AT_LEAST, SOURCE_AT_MOST, local, locals), (DESTINATION_AT_LEAST, DESTINATION_AT_MOST, remote, both)]
    {
        for (first, last) in ranges {
            let here = code.len() as u16;
            // Ranges rise: below this one there is none that fits.
            op(&mut code, at_least, COMPARE, behind - here);
            op(&mut code, 0, 0, *first);
            op(&mut code, at_most, COMPARE, COMPARE + OP);
            op(&mut code, 0, 0, *last);
            op(&mut code, JUMP, OP, end - (here + 2 * COMPARE));
        }
    }
    // Beyond the end: refused.
    op(&mut code, JUMP, OP, 2 * OP);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a filter (`inet_diag_bc_run`).
    fn accepts(code: &[u8], source: u16, destination: u16) -> bool {
        let (mut at, mut left) = (0_usize, code.len() as i32);
        while left > 0 {
            let no = u16::from_ne_bytes([code[at + 2], code[at + 3]]);
            let port = || u16::from_ne_bytes([code[at + 6], code[at + 7]]);
            let yes = match code[at] {
                JUMP => false,
                SOURCE_AT_LEAST => source >= port(),
                SOURCE_AT_MOST => source <= port(),
                DESTINATION_AT_LEAST => destination >= port(),
                DESTINATION_AT_MOST => destination <= port(),
                other => panic!("{other}"),
            };
            let by = if yes { u16::from(code[at + 1]) } else { no };
            at += usize::from(by);
            left -= i32::from(by);
        }
        left == 0
    }

    #[test]
    fn one_port_of_eight_is_the_samples() {
        let code = filter();
        let none = (0..=u16::MAX).find(|p| !has(*p)).unwrap();
        assert_eq!((0..=u16::MAX).filter(|p| has(*p)).count() as u64, 65_536 / ONE_OF);
        for port in 0..=u16::MAX {
            assert_eq!((accepts(&code, port, none), accepts(&code, none, port)), (has(port), has(port)), "{port}");
        }
        assert!(accepts(&code, 4096, 8192) && !accepts(&code, none, none));
        let code = with_ports(&[80, 443]);
        let accepted: Vec<u16> = (0..=u16::MAX).filter(|port| accepts(&code, *port, 80)).collect();
        assert_eq!(accepted, [80, 443]);
        let code = to_ports(&[80, 443]);
        let accepted: Vec<u16> = (0..=u16::MAX).filter(|port| accepts(&code, 80, *port)).collect();
        assert_eq!(accepted, [80, 443]);
    }
}
