//! What the kernel has said (`/dev/kmsg`, which is what `dmesg` shows): the lines that tell of a server's troubles. Needs root where
//! `kernel.dmesg_restrict` is set.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use serde::{Deserialize, Serialize};
use std::io;

/// Bytes of one record (`CONSOLE_EXT_LOG_MAX` of the kernel).
const RECORD: usize = 8_192;
/// Records that are read: the kernel's buffer holds fewer.
const MOST_RECORDS: usize = 1 << 20;
/// Lines that are kept: the latest.
const KEPT: usize = 200;

/// What telling lines have in them. Others are not kept: facts are written down and sent to others.
const TELLING: &[&str] = &[
    "out of memory -- consider tuning tcp_mem",
    "too many orphaned sockets",
    "ossible SYN flooding",
    "table full, dropping packet",
    "eighbour table overflow",
    "neighbor table overflow",
    "table overflow!",
    "segfault at",
    "general protection",
    "traps: ",
    "trap invalid opcode",
    "Out of memory",
    "oom-kill:",
    "Memory cgroup out of memory",
    "NETDEV WATCHDOG",
    "Link is Down",
    "link is down",
    "I/O error",
    "blocked for more than",
    "time wait bucket table overflow",
    "fork rejected by pids controller",
    "file-max limit",
];

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Since the machine was started, seconds.
    pub at_s: f64,
    /// The text.
    pub text: String,
}

/// Reads the telling ones, oldest first.
///
/// # Errors
/// Without the right to.
pub fn telling() -> io::Result<Vec<Line>> {
    let fd = open("/dev/kmsg", OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let (mut lines, mut record) = (Vec::new(), vec![0; RECORD]);
    for _ in 0..MOST_RECORDS {
        match read(&fd, &mut record[..]) {
            Ok(length) => lines.extend(parse(&record[..length]).filter(is_telling)),
            // A record was overwritten while we were reading: the next read goes on behind the gap.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(e) => return Err(e.into()),
        }
        if lines.len() > 2 * KEPT {
            lines.drain(..KEPT);
        }
    }
    Ok(lines.split_off(lines.len().saturating_sub(KEPT)))
}

fn is_telling(line: &Line) -> bool {
    tells(&line.text)
}

/// Whether a line of the kernel's is one of those that tell.
pub(crate) fn tells(text: &str) -> bool {
    TELLING.iter().any(|t| text.contains(t))
}

/// `6,339,5140900,-;text`, with lines of names and values below it that begin with a blank.
pub fn parse(record: &[u8]) -> Option<Line> {
    let text = String::from_utf8_lossy(record);
    let (head, text) = text.lines().next()?.split_once(';')?;
    let at_us: u64 = head.split(',').nth(2)?.parse().ok()?;
    Some(Line { at_s: at_us as f64 / 1e6, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let line = parse(b"4,812,64123456,-;TCP: too many orphaned sockets\n SUBSYSTEM=net\n").unwrap();
        assert_eq!((line.at_s, line.text.as_str()), (64.123456, "TCP: too many orphaned sockets"));
        assert!(is_telling(&line) && parse(b"no record").is_none());
        let segfault =
            "nginx[4711]: segfault at 10 ip 000055d0c0ffee sp 00007ffd error 4 in nginx[55d0c0000000+1c8000]";
        assert!(is_telling(&Line { at_s: 0.0, text: segfault.into() }));
        assert!(!is_telling(&Line { at_s: 0.0, text: "random: crng reseeded".into() }));
    }
}
