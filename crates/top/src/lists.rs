//! The lists beside the peers: zones, caches, limits, certificates, what the kernel balances. Each is a head and rows of texts, made of what the API says at two
//! moments.

use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::terminal::plain;

/// Days: a certificate that ends sooner is shown as something to be done.
const SOON_DAYS: i64 = 14;

/// Which list is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    /// The peers, which have more to them.
    #[default]
    Peers,
    Zones,
    Caches,
    Limits,
    Certificates,
    Kernel,
}

impl Tab {
    /// All of them, in the order of their keys 1 to 6.
    pub(crate) const ALL: [Tab; 6] = [Tab::Peers, Tab::Zones, Tab::Caches, Tab::Limits, Tab::Certificates, Tab::Kernel];

    /// As the foot names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tab::Peers => "peers",
            Tab::Zones => "zones",
            Tab::Caches => "caches",
            Tab::Limits => "limits",
            Tab::Certificates => "certificates",
            Tab::Kernel => "kernel",
        }
    }

    /// Where the API has it: a word for each row, and the endpoint.
    pub(crate) fn endpoints(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Tab::Peers => &[],
            Tab::Zones => &[
                ("server", "http/server_zones"),
                ("location", "http/location_zones"),
                ("stream", "stream/server_zones"),
            ],
            Tab::Caches => &[("", "http/caches")],
            Tab::Limits => &[
                ("requests", "http/limit_reqs"),
                ("connections", "http/limit_conns"),
                ("stream", "stream/limit_conns"),
            ],
            Tab::Certificates => &[("", "ironweir/certificates")],
            Tab::Kernel => &[("", "ironweir/l4")],
        }
    }

    /// What stands above the columns.
    pub(crate) fn head(self) -> &'static [&'static str] {
        match self {
            Tab::Peers => &[],
            Tab::Zones => &["zone", "kind", "now", "req/s", "4xx/s", "5xx/s", "out/s"],
            Tab::Caches => &["cache", "size", "of", "hit %", "answers/s", "misses/s"],
            Tab::Limits => &["zone", "of", "passed/s", "delayed/s", "rejected/s", "rejected"],
            Tab::Certificates => &["days", "hosts", "certificate"],
            Tab::Kernel => &["server", "of", "state", "flows", "flows/s", "in/s", "out/s", "bits/s", SIZES],
        }
    }
}

/// Packets by the bytes of their frame, percent, of what came since the last look: the numbers are upper bounds.
const SIZES: &str = "% <75 128 256 512 1024 1280 1515 more";

/// What the endpoints of a list said: the word of each, and its answer.
pub(crate) type Said = Vec<(&'static str, Value)>;

/// A row, and whether it is something to be looked at.
pub(crate) struct Line {
    pub(crate) cells: Vec<String>,
    pub(crate) bad: bool,
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Rows of a list; `seconds` lie between `before` and `now`.
pub(crate) fn rows(tab: Tab, now: &Said, before: &Said, seconds: f64) -> Vec<Line> {
    let mut rows = Vec::new();
    for (word, value) in now {
        if tab == Tab::Certificates {
            let all = value["certificates"].as_array().map(Vec::as_slice).unwrap_or_default();
            rows.extend(all.iter().map(certificate));
            continue;
        }
        if tab == Tab::Kernel {
            let was = before.iter().find(|(w, _)| w == word).map_or(&Value::Null, |(_, v)| v);
            rows.extend(kernel(value, was, seconds));
            continue;
        }
        let none = Map::new();
        let was = before.iter().find(|(w, _)| w == word).and_then(|(_, v)| v.as_object()).unwrap_or(&none);
        for (name, item) in value.as_object().into_iter().flatten() {
            let was = was.get(name).unwrap_or(item);
            let rate = |pointer: &str| number(item, pointer).saturating_sub(number(was, pointer)) as f64 / seconds;
            let name = plain(name).into_owned();
            rows.push(match tab {
                Tab::Zones => zone(name, word, item, &rate),
                Tab::Caches => cache(name, item, &rate),
                _ => limit(name, word, item, &rate),
            });
        }
    }
    if tab == Tab::Certificates {
        rows.sort_by_key(|row| row.cells[0].parse::<i64>().unwrap_or(i64::MAX));
    }
    rows
}

fn zone(name: String, kind: &str, item: &Value, rate: &dyn Fn(&str) -> f64) -> Line {
    let requests = rate("/requests") + rate("/connections");
    let answers = |class: &str| rate(&format!("/responses/{class}")) + rate(&format!("/sessions/{class}"));
    let errors = answers("5xx");
    let processing = item.get("processing").map_or_else(|| "-".to_owned(), |n| n.to_string());
    let cells = vec![
        name,
        kind.to_owned(),
        processing,
        count(requests),
        count(answers("4xx")),
        count(errors),
        bytes(rate("/sent")),
    ];
    Line { cells, bad: errors > 0.0 }
}

/// Answers of a cache that were not asked of an upstream.
const SERVED: [&str; 4] = ["hit", "stale", "updating", "revalidated"];
const ASKED: [&str; 3] = ["miss", "expired", "bypass"];

fn cache(name: String, item: &Value, rate: &dyn Fn(&str) -> f64) -> Line {
    let sum = |words: &[&str]| words.iter().map(|w| rate(&format!("/{w}/responses"))).sum::<f64>();
    let (served, asked) = (sum(&SERVED), sum(&ASKED));
    let all = served + asked;
    let part = if all > 0.0 { format!("{:.0}", served / all * 100.0) } else { "-".to_owned() };
    let most = item["max_size"].as_u64().map_or_else(|| "any".to_owned(), |n| bytes(n as f64));
    let size = bytes(number(item, "/size") as f64);
    Line { cells: vec![name, size, most, part, count(all), count(asked)], bad: false }
}

fn limit(name: String, kind: &str, item: &Value, rate: &dyn Fn(&str) -> f64) -> Line {
    let rejected = rate("/rejected");
    let cells = vec![
        name,
        kind.to_owned(),
        count(rate("/passed")),
        count(rate("/delayed")),
        count(rejected),
        number(item, "/rejected").to_string(),
    ];
    Line { cells, bad: rejected > 0.0 }
}

/// What the kernel balances: a virtual server, with the sizes of its packets, and its real ones. One that the proxy serves stands for itself.
fn kernel(now: &Value, before: &Value, seconds: f64) -> Vec<Line> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let text = |v: &Value| plain(v.as_str().unwrap_or_default()).into_owned();
    let mut lines = Vec::new();
    for service in list(now, "services") {
        let name = format!("{}/{}", text(&service["address"]), text(&service["protocol"]));
        let is_same = |other: &&Value| ["address", "protocol"].iter().all(|w| other[w] == service[w]);
        let was = list(before, "services").iter().find(is_same).cloned().unwrap_or_default();
        if service["path"] != "kernel" {
            let mut cells = vec!["-".to_owned(), name.clone(), "by the proxy".to_owned()];
            cells.resize(Tab::Kernel.head().len(), "-".to_owned());
            lines.push(Line { cells, bad: true });
            continue;
        }
        let mut cells = traffic("all".to_owned(), name.clone(), text(&service["mode"]), &service, &was, seconds);
        cells.push(sizes(&service["sizes"], &was["sizes"]));
        lines.push(Line { cells, bad: false });
        for real in list(&service, "servers") {
            let old = list(&was, "servers").into_iter().find(|r| r["server"] == real["server"]);
            let old = old.as_ref().unwrap_or(&real);
            let full = real["full"] == true;
            let state = if full { "full".to_owned() } else { text(&real["state"]) };
            let mut cells = traffic(text(&real["server"]), name.clone(), state, &real, old, seconds);
            cells.push("-".to_owned());
            lines.push(Line { cells, bad: full || real["state"] == "reset" });
        }
    }
    lines
}

/// The cells that virtual and real servers have in common.
fn traffic(who: String, of: String, state: String, now: &Value, before: &Value, seconds: f64) -> Vec<String> {
    // Without a look before there is no rate yet.
    let before = if before.is_null() { now } else { before };
    let rate = |name: &str| {
        let of = |value: &Value| value[name].as_u64().unwrap_or(0);
        of(now).saturating_sub(of(before)) as f64 / seconds
    };
    vec![
        who,
        of,
        state,
        number(now, "/active").to_string(),
        count(rate("flows")),
        count(rate("packets_in")),
        count(rate("packets_out")),
        count((rate("bytes_in") + rate("bytes_out")) * 8.0),
    ]
}

/// The share of each class of sizes, in the order of their bounds; `-` where no packet came.
fn sizes(now: &Value, before: &Value) -> String {
    let bound = |name: &str| name.trim_start_matches('<').parse().unwrap_or(u64::MAX);
    let of = |value: &Value, name: &String| value[name].as_u64().unwrap_or(0);
    let since = |(name, _): (&String, &Value)| (bound(name), of(now, name).saturating_sub(of(before, name)));
    let mut classes: Vec<(u64, u64)> = now.as_object().into_iter().flatten().map(since).collect();
    classes.sort_unstable();
    let all: u64 = classes.iter().map(|(_, packets)| packets).sum();
    if all == 0 {
        return "-".to_owned();
    }
    let share = |(_, packets): &(u64, u64)| format!("{:.0}", *packets as f64 / all as f64 * 100.0);
    classes.iter().map(share).collect::<Vec<_>>().join(" ")
}

fn certificate(item: &Value) -> Line {
    let text = |v: &Value| plain(v.as_str().unwrap_or_default()).into_owned();
    let hosts: Vec<String> = item["hosts"].as_array().into_iter().flatten().map(text).collect();
    let end = item["not_after"].as_str().and_then(seconds_of);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let days = end.map(|end| (end - now).div_euclid(86_400));
    let shown = days.map_or_else(|| "-".to_owned(), |d| d.to_string());
    Line { cells: vec![shown, hosts.join(" "), text(&item["name"])], bad: days.is_none_or(|d| d < SOON_DAYS) }
}

/// `2026-11-23T09:19:58.845Z` as Unix seconds.
fn seconds_of(time: &str) -> Option<i64> {
    let part = |range: std::ops::Range<usize>| time.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (part(0..4)?, part(5..7)?, part(8..10)?);
    let (hour, minute, second) = (part(11..13)?, part(14..16)?, part(17..19)?);
    // Days since 1970 of the civil calendar, whose year begins in March here, so that the leap day is its last.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// A number in few letters.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n if n > 0.0 && n < 10.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// Bytes in few letters.
pub(crate) fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB", n / 1e3),
        n => format!("{n:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_read() {
        assert_eq!(seconds_of("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(seconds_of("2026-11-23T09:19:58.845Z"), Some(1_795_425_598));
        assert_eq!(seconds_of("2000-02-29T12:00:00Z"), Some(951_825_600));
        assert_eq!(seconds_of("soon"), None);
    }

    #[test]
    fn rows_are_rates() {
        let of = |n: u64| json!({"z": {"requests": n, "processing": 1, "responses": {"4xx": 0, "5xx": n / 10}, "sent": n * 1000}});
        let lines = rows(Tab::Zones, &vec![("server", of(300))], &vec![("server", of(100))], 2.0);
        assert_eq!(lines[0].cells, ["z", "server", "1", "100", "0", "10", "100.0 kB"]);
        assert!(lines[0].bad);
        let cache = |hits: u64| json!({"c": {"size": 4096, "hit": {"responses": hits}, "miss": {"responses": 0}}});
        let lines = rows(Tab::Caches, &vec![("", cache(30))], &vec![("", cache(10))], 1.0);
        assert_eq!(lines[0].cells, ["c", "4.1 kB", "any", "100", "20", "0"]);
        let l4 = |n: u64| {
            let real = json!({"server": "10.0.0.1:80", "state": "up", "full": false, "active": 3, "flows": n, "packets_in": n * 10, "packets_out": n * 20, "bytes_in": n * 1000, "bytes_out": 0});
            let sizes = json!({"<75": n * 88, "<128": n * 2, "<1280": 0, "<256": 0, "<512": 0, "<1024": 0, "<1515": n * 10, "more": 0});
            json!({"services": [{"address": "10.0.0.9:80", "protocol": "tcp", "mode": "nat", "path": "kernel", "servers": [real], "sizes": sizes,
                "active": 3, "flows": n, "packets_in": n * 10, "packets_out": n * 20, "bytes_in": n * 1000, "bytes_out": 0}]})
        };
        let lines = rows(Tab::Kernel, &vec![("", l4(30))], &vec![("", l4(10))], 2.0);
        assert_eq!(
            lines[0].cells,
            ["all", "10.0.0.9:80/tcp", "nat", "3", "10", "100", "200", "80.0k", "88 2 0 0 0 0 10 0"]
        );
        assert_eq!(lines[1].cells, ["10.0.0.1:80", "10.0.0.9:80/tcp", "up", "3", "10", "100", "200", "80.0k", "-"]);
        let lines = rows(Tab::Kernel, &vec![("", l4(30))], &vec![("", l4(30))], 2.0);
        assert_eq!(lines[0].cells[8], "-", "no packet came");
        let past = json!({"certificates": [{"name": "a\u{1b}.crt", "hosts": ["x", "y"], "not_after": "1970-01-02T00:00:00Z"}]});
        let lines = rows(Tab::Certificates, &vec![("", past)], &vec![], 1.0);
        assert!(lines[0].bad && lines[0].cells[1..] == ["x y", "a\\x1b.crt"], "{:?}", lines[0].cells);
    }
}
