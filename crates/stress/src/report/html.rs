//! One self-contained page: numbers, verdict, and curves drawn with uPlot, which stands in the page itself.

use super::json::Summary;
use super::{binary, metric, time};
use std::fmt::Write;

const PAGE: &str = include_str!("assets/page.html");
const SCRIPT: &str = include_str!("assets/page.js");
const UPLOT: &str = include_str!("assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("assets/uPlot.min.css");

/// The page.
pub fn page(summary: &Summary) -> String {
    let data = serde_json::to_string(summary).unwrap_or_default().replace("</", "<\\/");
    let mut numbers = String::new();
    let l = &summary.latency_us;
    let us = |v: f64| time(v * 1e3);
    let at_least = if summary.verdict.valid { "" } else { "≥ " };
    let errors = summary.errors.get("total").copied().unwrap_or(0);
    let wanted = summary.wanted_rps.map(|rate| ("wanted/s", metric(rate)));
    let rows = [
        ("requests/s", format!("{at_least}{}", metric(summary.rps))),
        ("p50", us(l.p50)),
        ("p90", us(l.p90)),
        ("p99", us(l.p99)),
        ("p99.9", us(l.p99_9)),
        ("max", us(l.max)),
        ("requests", summary.requests.to_string()),
        ("errors", errors.to_string()),
        ("read", format!("{}B", binary(summary.bytes_read as f64))),
    ];
    let (first, rest) = rows.split_at(1);
    for (name, value) in first.iter().cloned().chain(wanted).chain(rest.iter().cloned()) {
        let _ = write!(numbers, "<div><b>{}</b><span>{name}</span></div>", escape(&value));
    }
    let verdict = &summary.verdict;
    let word = if verdict.valid { "" } else { " · INVALID as a number of the target" };
    let evidence: String = verdict.evidence.iter().map(|e| format!("<li>{}</li>", escape(e))).collect();
    let mut page = PAGE.to_owned();
    let parts = [
        ("@STYLE@", UPLOT_STYLE),
        ("@URL@", &escape(&summary.url)),
        ("@HOW@", &escape(&how(summary))),
        ("@DATE@", &escape(&date(summary.began_unix))),
        ("@VERSION@", &escape(&summary.version)),
        ("@COMMAND@", &escape(&summary.command)),
        ("@STATUSES@", &statuses(summary)),
        ("@NUMBERS@", &numbers),
        ("@LIMIT@", &format!("{}{word}", verdict.limit.name())),
        ("@CLASS@", if verdict.valid { "good" } else { "bad" }),
        ("@EVIDENCE@", &evidence),
        (
            "@PARTIAL@",
            &summary.partial.as_deref().map(|p| format!("<p>PARTIAL: {}</p>", escape(p))).unwrap_or_default(),
        ),
        ("@UPLOT@", UPLOT),
        ("@SCRIPT@", SCRIPT),
        ("@DATA@", &data),
    ];
    for (mark, text) in parts {
        page = page.replace(mark, text);
    }
    page
}

/// When the run began, in UTC, as RFC 9110 writes dates.
fn date(unix: f64) -> String {
    String::from_utf8_lossy(&wire::date::format_http(unix as i64)).into_owned()
}

/// Answers by status, and failures by kind.
fn statuses(s: &Summary) -> String {
    let kinds = s.errors.iter().filter(|(kind, n)| **n > 0 && !matches!(kind.as_str(), "total" | "status"));
    let rows = s
        .statuses
        .iter()
        .map(|(status, n)| (format!("status {status}"), n))
        .chain(kinds.map(|(kind, n)| (kind.clone(), n)));
    let all = (s.requests + s.errors.get("unanswered").copied().unwrap_or(0)).max(1);
    let row = |(name, n): (String, &u64)| {
        let part = *n as f64 / all as f64 * 100.0;
        format!("<tr><td>{}</td><td>{n}</td><td>{part:.2} %</td></tr>", escape(&name))
    };
    rows.map(row).collect()
}

fn how(s: &Summary) -> String {
    let pace = match s.wanted_rps {
        Some(rate) => format!("open loop: {} requests/s wanted, {} answered", metric(rate), metric(s.rps)),
        None => "closed loop".to_owned(),
    };
    format!("{pace}, {} threads, {} connections, {}", s.threads, s.connections, time(s.duration_s * 1e9))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('@', "&#64;")
}
