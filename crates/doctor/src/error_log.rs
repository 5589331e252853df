//! Telling lines of error logs, as facts: what was said, how often, and how long ago. From: the logs that configurations name. To: `rules`.

use crate::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

/// Of a log, its end is read.
const READ: u64 = 1 << 20;
/// Logs that are read.
const MOST_LOGS: usize = 64;
/// Of a line so much is kept.
const LONGEST: usize = 500;

/// What lines are looked for: each is a part of a line.
pub(crate) const TELLING: &[&str] = &[
    "failed: no memory in ",
    "could not allocate node in ",
    "worker_connections are not enough",
    "(24: Too many open files)",
    "no live upstreams while connecting",
];

/// Lines of one log that say the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The log.
    pub log: String,
    /// The last of them.
    pub text: String,
    /// How many there are.
    pub count: u64,
    /// How long ago the last one was written, seconds; none: it has no time.
    pub ago_s: Option<u64>,
}

/// Reads logs. One that cannot be read says nothing.
pub(crate) fn telling(logs: &[String]) -> Vec<Told> {
    let each = |log: &String| {
        let text = tail(log, READ).ok()?;
        // Times in a log are those of its machine, wherever that is; its last line is as old as the file.
        let written = std::fs::metadata(log).and_then(|m| m.modified()).ok();
        let since = written.and_then(|at| at.elapsed().ok()).map_or(0, |d| d.as_secs());
        Some(of_text(log, &text, since))
    };
    logs.iter().take(MOST_LOGS).filter_map(each).flatten().collect()
}

/// The end of a file.
pub(crate) fn tail(path: &str, most: u64) -> std::io::Result<String> {
    let mut file = files::regular(path.as_ref())?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `since`: how long ago the last line was written.
pub fn of_text(log: &str, text: &str, since: u64) -> Vec<Told> {
    let mut found: BTreeMap<usize, (u64, &str)> = BTreeMap::new();
    for line in text.lines() {
        if let Some(at) = TELLING.iter().position(|part| line.contains(part)) {
            let entry = found.entry(at).or_default();
            *entry = (entry.0 + 1, line);
        }
    }
    let last = text.lines().rev().find_map(seconds);
    let told = |(_, (count, line)): (usize, (u64, &str))| {
        let between = last.zip(seconds(line)).map(|(last, at)| last.saturating_sub(at));
        let end = line.char_indices().nth(LONGEST).map_or(line.len(), |(at, _)| at);
        Told {
            log: log.to_owned(),
            text: line[..end].to_owned(),
            count,
            ago_s: between.map(|s| s.saturating_add(since)),
        }
    };
    found.into_iter().map(told).collect()
}

/// `2026/11/22 10:00:00 [crit] ...`: seconds since some day, to be compared with those of the same log.
fn seconds(line: &str) -> Option<u64> {
    let (date, rest) = line.split_once(' ')?;
    let three = |text: &str, by: char| -> Option<[u64; 3]> {
        let all: Vec<u64> = text.split(by).map_while(|n| n.parse().ok()).collect();
        all.try_into().ok()
    };
    let [year, month, day] = three(date, '/')?;
    let [hour, minute, second] = three(rest.split(' ').next()?, ':')?;
    if year > 9_999 || !(1..=12).contains(&month) || day > 31 || hour > 24 || minute > 60 || second > 61 {
        return None;
    }
    // Days of the proleptic calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026/11/22 23:59:58 [crit] 7#7: *1 ngx_slab_alloc() failed: no memory in limit_conn_zone \"a\", client: 1.2.3.4\n\
                       2026/11/22 23:59:59 [crit] 7#7: *2 ngx_slab_alloc() failed: no memory in limit_conn_zone \"a\", client: 1.2.3.4\n\
                       no time\n\
                       2026/11/23 00:00:09 [notice] 7#7: signal 1 (SIGHUP) received\nhalf a";

    #[test]
    fn lines_are_counted_and_dated_by_the_end_of_their_log() {
        let told = of_text("e.log", LOG, 100);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].count, told[0].ago_s, told[0].log.as_str()), (2, Some(110), "e.log"));
        assert!(told[0].text.starts_with("2026/11/22 23:59:59"), "{told:?}");
        let undated = of_text("e.log", "worker_connections are not enough", 5);
        assert_eq!(undated[0].ago_s, None);
        (0..LOG.len()).filter(|n| LOG.is_char_boundary(*n)).for_each(|n| _ = of_text("e", &LOG[..n], 0));
    }

    #[test]
    fn days_follow_each_other() {
        for (a, b) in [
            ("2024/02/28 23:59:59 x", "2024/02/29 00:00:00 x"),
            ("2025/12/31 23:59:59 x", "2026/01/01 00:00:00 x"),
            ("2023/02/28 23:59:59 x", "2023/03/01 00:00:00 x"),
        ] {
            assert_eq!(seconds(b).unwrap() - seconds(a).unwrap(), 1, "{a}");
        }
        assert!(
            ["", "2026/13/01 00:00:00 x", "2026/11 00:00:00 x", "a b c", "0000/01/01 00:00:00 x"]
                .iter()
                .all(|l| seconds(l).is_none())
        );
    }
}
