//! A line of the access log as `log_format` describes it: compiled when the configuration is read, written for each request.
//! Part of `log`.

use crate::config::complex::variable_name;
use crate::config::{Build, Subsystem};
use crate::request::status::write_decimal;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use runtime::clock;

/// A compiled `log_format`.
#[derive(Debug)]
pub(super) struct Format {
    parts: Vec<Part>,
    escape: Escape,
}

/// What becomes of odd bytes in values: `escape=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Escape {
    #[default]
    Default,
    Json,
    None,
}

#[derive(Debug)]
enum Part {
    Text(Box<[u8]>),
    Special(Special),
    Variable(VariableId),
}

/// Variables that are written to the line as they are, without the detour of a value (`ngx_http_log_vars`).
#[derive(Clone, Copy, Debug)]
enum Special {
    Pipe,
    TimeLocal,
    TimeIso8601,
    Msec,
    RequestTime,
    Status,
    BytesSent,
    BodyBytesSent,
    RequestLength,
}

impl Special {
    fn named(name: &[u8], subsystem: Subsystem) -> Option<Special> {
        Some(match name {
            b"time_local" => Special::TimeLocal,
            b"time_iso8601" => Special::TimeIso8601,
            b"msec" => Special::Msec,
            _ if subsystem.is_stream() => return None,
            b"pipe" => Special::Pipe,
            b"request_time" => Special::RequestTime,
            b"status" => Special::Status,
            b"bytes_sent" => Special::BytesSent,
            b"body_bytes_sent" => Special::BodyBytesSent,
            b"request_length" => Special::RequestLength,
            _ => return None,
        })
    }
}

impl Escape {
    /// `escape=NAME`
    pub(super) fn named(name: &[u8]) -> Option<Escape> {
        match name {
            b"default" => Some(Escape::Default),
            b"json" => Some(Escape::Json),
            b"none" => Some(Escape::None),
            _ => None,
        }
    }
}

impl Format {
    /// A line without parts.
    pub(super) fn new(escape: Escape) -> Format {
        Format { parts: Vec::new(), escape }
    }

    /// Adds texts and variables.
    ///
    /// # Errors
    /// A `$` without a name, in nginx's words.
    pub(super) fn add(&mut self, build: &mut Build<'_>, text: &[u8]) -> Result<(), String> {
        let parts = &mut self.parts;
        let mut at = 0;
        while at < text.len() {
            let Some(dollar) = memchr::memchr(b'$', &text[at..]).map(|i| at + i) else {
                add_text(parts, &text[at..]);
                break;
            };
            add_text(parts, &text[at..dollar]);
            at = dollar + 1;
            let name = variable_name(text, &mut at)?;
            if name.is_empty() {
                return Err(format!("invalid parameter \"{}\"", String::from_utf8_lossy(&text[dollar..])));
            }
            parts.push(match Special::named(name, build.subsystem) {
                Some(special) => Part::Special(special),
                None => Part::Variable(build.variables.index(name)),
            });
        }
        Ok(())
    }

    /// What it is made of: texts, and names of variables.
    pub(super) fn shape(&self, variables: &[crate::config::variables::Variable]) -> Vec<super::log::Shape> {
        let shape = |part: &Part| match part {
            Part::Text(text) => super::log::Shape::Text(text.clone()),
            Part::Special(_) => super::log::Shape::Variable("".into()),
            Part::Variable(id) => {
                super::log::Shape::Variable(variables.get(id.0 as usize).map_or_else(Box::default, |v| v.name.clone()))
            }
        };
        self.parts.iter().map(shape).collect()
    }

    /// Appends the line of a request, without its end.
    pub(super) fn write(&self, r: &mut Request, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(t) => out.extend_from_slice(t),
                Part::Special(special) => write_special(r, *special, out),
                Part::Variable(id) => {
                    let value = r.variable(*id);
                    write_value(r, value, self.escape, out);
                }
            }
        }
    }
}

/// Texts that meet become one.
fn add_text(parts: &mut Vec<Part>, text: &[u8]) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(before)) => *before = [before, text].concat().into(),
        _ => parts.push(Part::Text(text.into())),
    }
}

fn write_special(r: &Request, special: Special, out: &mut Vec<u8>) {
    match special {
        Special::Pipe => out.push(if r.flow.pipelined { b'p' } else { b'.' }),
        Special::TimeLocal => out.extend_from_slice(&crate::log::local_time().common),
        Special::TimeIso8601 => out.extend_from_slice(&crate::log::local_time().iso8601),
        Special::Msec => write_seconds(clock::wall_ms(), out),
        Special::RequestTime => write_seconds(clock::wall_ms().saturating_sub(r.started_ms), out),
        Special::Status => {
            let status = r.status();
            out.extend([status / 100 % 10, status / 10 % 10, status % 10].map(|d| b'0' + d as u8));
        }
        Special::BytesSent => write_decimal(r.bytes_sent(), out),
        Special::BodyBytesSent => write_decimal(r.body_bytes_sent(), out),
        Special::RequestLength => write_decimal(r.request_length, out),
    }
}

/// Milliseconds as `1.042`.
fn write_seconds(ms: u64, out: &mut Vec<u8>) {
    write_decimal(ms / 1000, out);
    let digit = |n: u64| b'0' + (n % 10) as u8;
    out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
}

fn write_value(r: &Request, value: Option<Text>, escape: Escape, out: &mut Vec<u8>) {
    let Some(value) = value else {
        if escape == Escape::Default {
            out.push(b'-');
        }
        return;
    };
    let bytes = r.get(value);
    match escape {
        Escape::None => out.extend_from_slice(bytes),
        Escape::Json => wire::http1::escape::escape_json(bytes, out),
        Escape::Default => escape_default(bytes, out),
    }
}

/// `"`, `\` and bytes outside printable ASCII become `\xXX` (`ngx_http_log_escape`).
fn escape_default(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = bytes;
    while let Some(at) = first_odd(rest) {
        let b = rest[at];
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(&[b'\\', b'x', HEX[(b >> 4) as usize], HEX[(b & 15) as usize]]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Where the first byte stands that is not written as it is. Eight bytes a step.
fn first_odd(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    // The top bit of each byte that is zero, and perhaps of those above it: enough to see whether there is one.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let (words, _) = bytes.as_chunks::<8>();
    let odd_word = |chunk: &[u8; 8]| {
        let word = u64::from_ne_bytes(*chunk);
        let low = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
        low | zeros(word ^ (ONES * 0x22)) | zeros(word ^ (ONES * 0x5c)) | zeros(word ^ (ONES * 0x7f)) | word & TOPS != 0
    };
    let odd = |b: &u8| !(0x20..0x7f).contains(b) || *b == b'"' || *b == b'\\';
    let plain = words.iter().take_while(|w| !odd_word(w)).count() * 8;
    bytes[plain..].iter().position(odd).map(|at| plain + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_bytes_are_found_wherever_they_stand() {
        for byte in 0..=255u8 {
            let odd = !(0x20..0x7f).contains(&byte) || byte == b'"' || byte == b'\\';
            for at in 0..20 {
                let mut bytes = *b"abcdefghijklmnopqrst";
                bytes[at] = byte;
                assert_eq!(first_odd(&bytes), odd.then_some(at), "{byte} at {at}");
            }
        }
    }

    #[test]
    fn seconds_have_three_digits() {
        for (ms, text) in [(0, "0.000"), (42, "0.042"), (1_700_000_000_123, "1700000000.123"), (9999, "9.999")] {
            let mut out = Vec::new();
            write_seconds(ms, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn odd_bytes_are_written_in_hexadecimal() {
        let mut out = Vec::new();
        escape_default(b"a\"b\\\x01\x7f\xff~", &mut out);
        assert_eq!(out, br"a\x22b\x5C\x01\x7F\xFF~");
    }
}
