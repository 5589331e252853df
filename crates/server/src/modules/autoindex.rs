//! Lists of directories as HTML, JSON, JSONP or XML (nginx's `ngx_http_autoindex_module`). Programs read them, so every
//! byte is nginx's.

use crate::config::{Directive, http, setters};
use crate::files::Kind;
use crate::files::directory::{self, Detail, Entry};
use crate::log_error;
use crate::merged_values;
use crate::modules::root;
use crate::request::chunk::Chunk;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, Text};
use std::io::Write;
use wire::date::Civil;
use wire::http1::escape::{Escape, escape_html, escape_json, escape_uri};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("autoindex", |s, n| setters::flag(&mut s.level.conf.autoindex.autoindex, n)),
    http("autoindex_exact_size", |s, n| setters::flag(&mut s.level.conf.autoindex.autoindex_exact_size, n)),
    http("autoindex_localtime", |s, n| setters::flag(&mut s.level.conf.autoindex.autoindex_localtime, n)),
    http("autoindex_format", |s, n| {
        let words = [("html", Format::Html), ("json", Format::Json), ("jsonp", Format::Jsonp), ("xml", Format::Xml)];
        setters::one_of(&mut s.level.conf.autoindex.autoindex_format, n, &words)
    }),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether there are lists at all.
        autoindex: bool = false,
        /// Sizes in bytes, or rounded to K, M and G. HTML only.
        autoindex_exact_size: bool = true,
        /// Local time in place of UTC. HTML only.
        autoindex_localtime: bool = false,
        /// The form.
        autoindex_format: Format = Format::Html,
    }
}

/// `autoindex_format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A page.
    Html,
    /// An array of objects.
    Json,
    /// The same as the argument of the function that `callback=` names.
    Jsonp,
    /// Elements in a list.
    Xml,
}

/// Longer names are cut in the page, to this many characters with what marks the cut.
const NAME_WIDTH: usize = 50;
/// The longest name of a function for JSONP.
const CALLBACK: usize = 128;

/// Answers GET and HEAD for a directory without an index file.
pub fn handler(r: &mut Request) -> Verdict {
    if !*r.conf().autoindex.autoindex
        || !r.get(r.head.uri).ends_with(b"/")
        || !matches!(r.head.method, Method::Get | Method::Head)
    {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = root::path_of(r);
    if path.len() > 1 {
        path.pop();
    }
    let format = *r.conf().autoindex.autoindex_format;
    let callback = match format {
        Format::Jsonp => match callback(r) {
            Ok(name) => name,
            Err(verdict) => return verdict,
        },
        _ => Vec::new(),
    };
    let format = if format == Format::Jsonp && callback.is_empty() { Format::Json } else { format };
    match answer(r, &path, format, &callback) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

fn answer(r: &mut Request, path: &[u8], format: Format, callback: &[u8]) -> Result<(), Verdict> {
    let mut dir = directory::open(r, path)?;
    r.answer.headers.status = 200;
    r.answer.headers.content_type = Some(Text::from(match format {
        Format::Html => "text/html",
        Format::Json => "application/json",
        Format::Jsonp => "application/javascript",
        Format::Xml => {
            r.answer.headers.charset = Some(Text::from("utf-8"));
            "text/xml"
        }
    }));
    r.send_header()?;
    if r.answer.header_only {
        return r.send_body(Chunk::Bytes(b""), true);
    }
    let mut entries = directory::read(r, path, &mut dir, Detail::Facts).map_err(|_| Verdict::Broken)?;
    entries.sort_by(|a, b| (a.kind != Kind::Directory, &a.name).cmp(&(b.kind != Kind::Directory, &b.name)));
    let mut list = Vec::new();
    match format {
        Format::Html => html(r, &entries, &mut list),
        Format::Json => json(&entries, &mut list),
        Format::Jsonp => {
            list.extend_from_slice(b"/* callback */\r\n");
            list.extend_from_slice(callback);
            list.push(b'(');
            json(&entries, &mut list);
            list.extend_from_slice(b");");
        }
        Format::Xml => xml(&entries, &mut list),
    }
    r.send_body(Chunk::Bytes(&list), true)
}

/// The function's name; empty without `callback=`.
fn callback(r: &Request) -> Result<Vec<u8>, Verdict> {
    let name = wire::http1::target::argument(r.get(r.head.args), b"callback").unwrap_or_default();
    let shown = String::from_utf8_lossy(name);
    if name.len() > CALLBACK {
        log_error!(r, Info, "client sent too long callback name: \"{shown}\"");
        return Err(Verdict::Status(400));
    }
    if !name.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.')) {
        log_error!(r, Info, "client sent invalid callback name: \"{shown}\"");
        return Err(Verdict::Status(400));
    }
    Ok(name.to_vec())
}

/// How a page is written.
struct Style {
    exact_size: bool,
    /// Added to times.
    offset_seconds: i64,
    utf8: bool,
}

fn html(r: &Request, entries: &[Entry], out: &mut Vec<u8>) {
    let conf = &r.conf().autoindex;
    let offset_seconds = if *conf.autoindex_localtime { crate::log::offset_seconds() } else { 0 };
    let utf8 = r.answer.headers.charset.is_some_and(|c| r.get(c).eq_ignore_ascii_case(b"utf-8"));
    let style = Style { exact_size: *conf.autoindex_exact_size, offset_seconds, utf8 };
    let uri = r.get(r.head.uri);
    out.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    escape_html(uri, out);
    out.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    escape_html(uri, out);
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        html_line(entry, &style, out);
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
}

fn html_line(entry: &Entry, style: &Style, out: &mut Vec<u8>) {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let is_directory = entry.kind == Kind::Directory;
    out.extend_from_slice(b"<a href=\"");
    escape_uri(&entry.name, Escape::UriComponent, out);
    out.extend_from_slice(if is_directory { b"/\">" } else { b"\">" });
    let mut width = if style.utf8 { utf8_length(&entry.name) } else { entry.name.len() };
    if width > NAME_WIDTH {
        escape_html(first_characters(&entry.name, NAME_WIDTH - 3, style.utf8), out);
        out.extend_from_slice(b"..&gt;</a>");
    } else {
        escape_html(&entry.name, out);
        if is_directory && width < NAME_WIDTH {
            out.push(b'/');
            width += 1;
        }
        out.extend_from_slice(b"</a>");
        out.resize(out.len() + NAME_WIDTH - width, b' ');
    }
    let t = Civil::from_unix(entry.mtime + style.offset_seconds);
    let month = MONTHS[usize::from(t.month) - 1];
    let _ = write!(out, " {:02}-{month}-{} {:02}:{:02} ", t.day, t.year, t.hour, t.minute);
    let _ = match (style.exact_size, is_directory) {
        (true, true) => write!(out, "{:>19}", "-"),
        (true, false) => write!(out, "{:>19}", entry.size),
        (false, true) => write!(out, "{:>7}", "-"),
        (false, false) => write!(out, "{:>7}", rounded(entry.size)),
    };
    out.extend_from_slice(b"\r\n");
}

/// A size in at most seven characters: bytes up to 9999, then rounded.
fn rounded(size: u64) -> String {
    const UNITS: [(u64, char); 3] = [(1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    if size <= 9999 {
        return size.to_string();
    }
    let (unit, letter) = UNITS.into_iter().find(|(unit, _)| size >= *unit).expect("9999 is more than 1K");
    format!("{}{letter}", size / unit + u64::from(size % unit >= unit / 2))
}

/// Characters in a name; a name that is not UTF-8 counts in bytes (`ngx_utf8_length`).
fn utf8_length(name: &[u8]) -> usize {
    std::str::from_utf8(name).map_or(name.len(), |s| s.chars().count())
}

fn first_characters(name: &[u8], count: usize, utf8: bool) -> &[u8] {
    let text = if utf8 { std::str::from_utf8(name).ok() } else { None };
    let end = text.map_or(count, |s| s.char_indices().nth(count).map_or(s.len(), |(at, _)| at));
    &name[..end]
}

fn type_of(entry: &Entry) -> &'static str {
    match entry.kind {
        Kind::Directory => "directory",
        Kind::File => "file",
        Kind::Other => "other",
    }
}

fn json(entries: &[Entry], out: &mut Vec<u8>) {
    out.push(b'[');
    for (i, entry) in entries.iter().enumerate() {
        out.extend_from_slice(if i > 0 { b",\r\n{ \"name\":\"" } else { b"\r\n{ \"name\":\"" });
        escape_json(&entry.name, out);
        let _ = write!(out, "\", \"type\":\"{}\", \"mtime\":\"", type_of(entry));
        out.extend_from_slice(&wire::date::format_http(entry.mtime));
        out.push(b'"');
        if entry.kind == Kind::File {
            let _ = write!(out, ", \"size\":{}", entry.size);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
}

fn xml(entries: &[Entry], out: &mut Vec<u8>) {
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for entry in entries {
        let kind = type_of(entry);
        let t = Civil::from_unix(entry.mtime);
        let _ = write!(
            out,
            "<{kind} mtime=\"{:4}-{:02}-{:02}T{:02}:{:02}:{:02}Z\"",
            t.year, t.month, t.day, t.hour, t.minute, t.second
        );
        if entry.kind == Kind::File {
            let _ = write!(out, " size=\"{}\"", entry.size);
        }
        out.push(b'>');
        escape_html(&entry.name, out);
        let _ = write!(out, "</{kind}>\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: Kind, size: u64) -> Entry {
        Entry { name: name.as_bytes().to_vec(), kind, size, mtime: 23_349_600 }
    }

    fn line(name: &str, kind: Kind, size: u64, exact_size: bool, utf8: bool) -> String {
        let mut out = Vec::new();
        html_line(&entry(name, kind, size), &Style { exact_size, offset_seconds: 3600, utf8 }, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn lines_have_columns() {
        let pad = " ".repeat(45);
        let expected = format!("<a href=\"a%3C%3Ab\">a&lt;:b</a>{pad}  28-Sep-1970 07:00                  12\r\n");
        assert_eq!(line("a<:b", Kind::File, 12, true, false), expected);
        let pad = " ".repeat(48);
        let expected = format!("<a href=\"d/\">d/</a>{pad} 28-Sep-1970 07:00       -\r\n");
        assert_eq!(line("d", Kind::Directory, 12, false, false), expected);
    }

    #[test]
    fn long_names_are_cut() {
        let name = "x".repeat(51);
        assert!(line(&name, Kind::File, 1, true, false).contains(&format!(">{}..&gt;</a> 28-Sep", "x".repeat(47))));
        let name = "x".repeat(50);
        assert!(line(&name, Kind::Directory, 1, true, false).contains(&format!("/\">{name}</a> 28-Sep")));
        let name = "\u{fc}".repeat(51);
        assert!(line(&name, Kind::File, 1, true, true).contains(&format!(">{}..&gt;</a> 28-Sep", "\u{fc}".repeat(47))));
    }

    #[test]
    fn sizes_are_rounded() {
        for (size, text) in [
            (0, "0"),
            (9999, "9999"),
            (10_000, "10K"),
            (10_752, "11K"),
            ((1 << 20) - 1, "1024K"),
            (1 << 20, "1M"),
            ((1 << 20) + (1 << 19), "2M"),
            (5 << 30, "5G"),
        ] {
            assert_eq!(rounded(size), text);
        }
    }

    #[test]
    fn lists_for_programs() {
        let entries = [entry("d\"", Kind::Directory, 1), entry("f&", Kind::File, 7), entry("o", Kind::Other, 1)];
        let mut out = Vec::new();
        json(&entries, &mut out);
        let date = "Mon, 28 Sep 1970 06:00:00 GMT";
        let expected = format!(
            "[\r\n{{ \"name\":\"d\\\"\", \"type\":\"directory\", \"mtime\":\"{date}\" }},\r\n\
             {{ \"name\":\"f&\", \"type\":\"file\", \"mtime\":\"{date}\", \"size\":7 }},\r\n\
             {{ \"name\":\"o\", \"type\":\"other\", \"mtime\":\"{date}\" }}\r\n]"
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
        out.clear();
        json(&[], &mut out);
        assert_eq!(out, b"[\r\n]");
        out.clear();
        xml(&entries[1..2], &mut out);
        let expected = "<?xml version=\"1.0\"?>\r\n<list>\r\n\
                        <file mtime=\"1970-09-28T06:00:00Z\" size=\"7\">f&amp;</file>\r\n</list>\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
