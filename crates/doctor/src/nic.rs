//! `ironweir nic`: rates of interfaces, line by line.

use crate::command::{finish, is_printed, print};
use crate::options::{NIC, Options};
use crate::text::number;
use machine::links::{self, Link, LinkCounts};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the command. `arguments` are those behind `nic`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish("nic", NIC.parse(arguments).and_then(|o| run(&o, version)))
}

fn run(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = NIC.about(o, version) {
        print(&text);
        return Ok(0);
    }
    let pause = o.duration("interval", Duration::from_secs(1))?.max(Duration::from_millis(10));
    let count = if o.has("count") { o.number("count", 1.0)? as u64 } else { u64::MAX };
    let in_bytes = match o.value("unit") {
        None | Some("bits") => false,
        Some("bytes") => true,
        Some(other) => return Err(format!("--unit {other}: bits or bytes")),
    };
    let read = || links::read().map_err(|e| format!("rtnetlink: {e}"));
    let mut before = read()?;
    if let Some(name) = o.words.iter().find(|w| before.iter().all(|l| l.name != **w)) {
        return Err(format!("{name}: there is no such interface"));
    }
    if !o.has("json") {
        print(&head(in_bytes));
    }
    let mut began = Instant::now();
    for _ in 0..count {
        std::thread::sleep(pause);
        let (now, seconds) = (read()?, began.elapsed().as_secs_f64());
        began = Instant::now();
        for link in now.iter().filter(|l| o.words.is_empty() || o.words.contains(&l.name)) {
            let Some(old) = before.iter().find(|b| b.name == link.name) else { continue };
            let counts = link.counts.since(&old.counts);
            let text =
                if o.has("json") { object(link, &counts, seconds) } else { line(link, &counts, seconds, in_bytes) };
            if !is_printed(&text) {
                // A pipe whose reader has seen enough.
                return Ok(0);
            }
        }
        before = now;
    }
    Ok(0)
}

fn head(in_bytes: bool) -> String {
    let unit = if in_bytes { "MB/s" } else { "Mbit/s" };
    let columns =
        [&format!("rx {unit}"), &format!("tx {unit}"), "rx pps", "tx pps", "rx B", "tx B", "drops", "errors", "full"];
    format!("{:<12}{}\n", "interface", columns.map(|c| format!("{c:>12}")).concat())
}

fn line(link: &Link, c: &LinkCounts, seconds: f64, in_bytes: bool) -> String {
    let rate = |bytes: u64| bytes as f64 * if in_bytes { 1.0 } else { 8.0 } / 1e6 / seconds;
    let pps = |packets: u64| number((packets as f64 / seconds).round() as u64);
    let size = |bytes: u64, packets: u64| bytes.checked_div(packets).unwrap_or(0);
    let full = link.speed.map(|s| format!("{:.0} %", c.rx_bytes.max(c.tx_bytes) as f64 * 800.0 / s as f64 / seconds));
    format!(
        "{:<12}{:>12.2}{:>12.2}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
        link.name,
        rate(c.rx_bytes),
        rate(c.tx_bytes),
        pps(c.rx_packets),
        pps(c.tx_packets),
        size(c.rx_bytes, c.rx_packets),
        size(c.tx_bytes, c.tx_packets),
        c.rx_dropped + c.tx_dropped + c.rx_missed,
        c.rx_errors + c.tx_errors,
        full.as_deref().unwrap_or("-")
    )
}

fn object(link: &Link, c: &LinkCounts, seconds: f64) -> String {
    json!({ "interface": link.name, "seconds": seconds, "is_up": link.is_up, "speed": link.speed, "added": c })
        .to_string()
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let link = Link { name: "eth0".into(), speed: Some(1_000_000_000), ..Link::default() };
        let c = LinkCounts { rx_bytes: 125_000_000, rx_packets: 250_000, rx_missed: 3, ..LinkCounts::default() };
        let words = |bytes| line(&link, &c, 2.0, bytes).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(false), ["eth0", "500.00", "0.00", "125,000", "0", "500", "0", "3", "0", "50", "%"]);
        assert_eq!(words(true)[1], "62.50");
        assert_eq!(head(false).len(), line(&link, &c, 2.0, false).len());
    }
}
