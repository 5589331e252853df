//! Findings for people. Names of processes and lines of logs are what others wrote: they are shown so that they do not steer a terminal. Pure.

use crate::finding::Finding;
use api_client::terminal::plain;
use std::fmt::Write;

/// Columns of a line.
const WIDTH: usize = 120;
/// Where the text of a part begins.
const INDENT: usize = 13;

/// All findings, or the sentence that there are none; then what could not be looked at.
pub fn report(findings: &[Finding], missing: &[String]) -> String {
    let mut out = String::new();
    for f in findings {
        let _ = writeln!(out, "{:<10} {}", f.weight.name(), plain(&f.what));
        for e in &f.evidence {
            part(&mut out, "seen", &format!("{} ({})", e.what, e.from));
        }
        part(&mut out, "why", &f.why);
        for cure in &f.cure {
            part(&mut out, "cure", cure);
        }
        part(&mut out, "sure", &format!("{} [{}]", f.sure.name(), f.id));
        out.push('\n');
    }
    if findings.is_empty() {
        out.push_str("Nothing is wrong.\n");
    }
    for what in missing {
        let _ = writeln!(out, "not seen: {}", plain(what));
    }
    out
}

/// A part with its name, wrapped.
fn part(out: &mut String, name: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let _ = write!(out, "  {name:<w$}", w = INDENT - 2);
    let mut column = INDENT;
    for (number, word) in plain(text).split(' ').enumerate() {
        let length = word.chars().count() + usize::from(number > 0);
        if number > 0 && column + length > WIDTH {
            let _ = write!(out, "\n{:INDENT$}", "");
            column = INDENT;
        } else if number > 0 {
            out.push(' ');
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

/// `12,345,678`.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `850 us`, `1.2 ms`, `3.4 s`.
pub fn microseconds(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// `1.5 GB`, in powers of 1,024.
pub fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Weight;

    #[test]
    fn pages() {
        assert_eq!(report(&[], &[]), "Nothing is wrong.\n");
        let f = Finding::new("x", Weight::Warning, "Too much.")
            .seen("1 of 2", "sock_diag")
            .because("w ".repeat(80))
            .cure("do it");
        let text = report(&[f], &["the log".into()]);
        assert!(text.starts_with("warning    Too much.\n  seen       1 of 2 (sock_diag)\n  why        w w"), "{text}");
        assert!(text.contains("\n  cure       do it\n  sure       certain [x]\n\nnot seen: the log\n"), "{text}");
        assert!(text.lines().all(|l| l.len() <= WIDTH));
        let steering =
            Finding::new("x", Weight::Note, "x\u{1b}]0;y\u{7}\nnote ").seen("a\r\nb", "\u{9b}2J").cure("\u{202e}");
        let shown = report(&[steering], &["\u{1b}c".into()]);
        assert!(
            shown.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}') && shown.lines().count() == 6,
            "{shown}"
        );
        assert_eq!(
            (number(1_234_567), number(12), bytes(1536), bytes(700)),
            ("1,234,567".into(), "12".into(), "1.5 kB".into(), "700 B".into())
        );
    }
}
