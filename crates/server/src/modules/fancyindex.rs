//! `fancyindex`: lists of directories as tables that visitors sort, with a head and a foot of one's own (A. Perez's
//! `ngx-fancyindex`). Tables, cells and arguments have the module's names, so styles made for it fit.

use super::{root, ssi_date};
use crate::config::pattern::Pattern;
use crate::config::setters;
use crate::config::{Directive, Scope, http};
use crate::files::Kind;
use crate::files::directory::{self, Detail, Entry};
use crate::log_error;
use crate::request::chunk::Chunk;
use crate::request::include::{self, Include};
use crate::request::phases::Verdict;
use crate::request::subrequest;
use crate::request::{Method, Request, Text};
use crate::{inherited, merged_values};
use conf::{Node, Problem};
use std::cmp::Ordering;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use wire::http1::escape::{Escape, escape_html, escape_uri};
use wire::http1::target::argument;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("fancyindex", |s, n| setters::flag(&mut s.level.conf.fancyindex.fancyindex, n)),
    http("fancyindex_default_sort", |s, n| setters::one_of(&mut s.level.conf.fancyindex.sort, n, &SORTS)),
    http("fancyindex_directories_first", |s, n| setters::flag(&mut s.level.conf.fancyindex.directories_first, n)),
    http("fancyindex_case_sensitive", |s, n| setters::flag(&mut s.level.conf.fancyindex.case_sensitive, n)),
    http("fancyindex_localtime", |s, n| setters::flag(&mut s.level.conf.fancyindex.localtime, n)),
    http("fancyindex_exact_size", |s, n| setters::flag(&mut s.level.conf.fancyindex.exact_size, n)),
    http("fancyindex_name_length", |s, n| setters::number(&mut s.level.conf.fancyindex.name_length, n)),
    http("fancyindex_show_path", |s, n| setters::flag(&mut s.level.conf.fancyindex.show_path, n)),
    http("fancyindex_show_dotfiles", |s, n| setters::flag(&mut s.level.conf.fancyindex.show_dotfiles, n)),
    http("fancyindex_hide_symlinks", |s, n| setters::flag(&mut s.level.conf.fancyindex.hide_symlinks, n)),
    http("fancyindex_hide_parent_dir", |s, n| setters::flag(&mut s.level.conf.fancyindex.hide_parent_dir, n)),
    http("fancyindex_time_format", |s, n| {
        setters::value(&mut s.level.conf.fancyindex.time_format, n, n.args[0].text.as_slice().into())
    }),
    http("fancyindex_css_href", |s, n| {
        setters::value(&mut s.level.conf.fancyindex.css_href, n, n.args[0].text.as_slice().into())
    }),
    http("fancyindex_header", |s, n| {
        let part = part(s, n)?;
        setters::value(&mut s.level.conf.fancyindex.header, n, Some(part))
    }),
    http("fancyindex_footer", |s, n| {
        let part = part(s, n)?;
        setters::value(&mut s.level.conf.fancyindex.footer, n, Some(part))
    }),
    http("fancyindex_ignore", ignore),
];

/// A head or foot from a file is kept in memory.
const MAX_PART: usize = 1024 * 1024;
/// Patterns of `fancyindex_ignore`.
const MAX_IGNORED: usize = 256;

const SORTS: [(&str, Sort); 6] = [
    ("name", Sort { by: By::Name, descends: false }),
    ("size", Sort { by: By::Size, descends: false }),
    ("date", Sort { by: By::Date, descends: false }),
    ("name_desc", Sort { by: By::Name, descends: true }),
    ("size_desc", Sort { by: By::Size, descends: true }),
    ("date_desc", Sort { by: By::Date, descends: true }),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether there are lists at all.
        fancyindex: bool = false,
        /// The order, unless the visitor wants another.
        sort: Sort = SORTS[0].1,
        /// Directories come before files.
        directories_first: bool = true,
        /// Capital letters come before small ones.
        case_sensitive: bool = true,
        /// Local time in place of UTC.
        localtime: bool = false,
        /// Sizes in bytes.
        exact_size: bool = true,
        /// Longer names are cut.
        name_length: u64 = 50,
        /// The path is in the heading, where that is the page's own.
        show_path: bool = true,
        /// Names that begin with a dot are listed.
        show_dotfiles: bool = false,
        /// Links are not listed.
        hide_symlinks: bool = false,
        /// There is no line for the directory above.
        hide_parent_dir: bool = false,
        /// As `strftime` has it.
        time_format: Arc<[u8]> = Arc::from(&b"%Y-%b-%d %H:%M"[..]),
        /// A style sheet.
        css_href: Arc<[u8]> = Arc::from(&b""[..]),
        /// In place of the page's own head.
        header: Option<Part> = None,
        /// In place of its foot.
        footer: Option<Part> = None,
        /// Names that are not listed.
        ignored: Arc<Vec<Pattern>> = Arc::default(),
    }
}

inherited!(Conf, |_| true);

/// An order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    by: By,
    descends: bool,
}

/// What entries are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Name,
    Size,
    Date,
}

/// A head or a foot.
#[derive(Clone, Debug)]
pub enum Part {
    /// What a subrequest answers.
    Request(Arc<[u8]>),
    /// A file, read with the configuration.
    Local(Arc<[u8]>),
}

fn part(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Part, Problem> {
    let (path, how) = (&node.args[0], node.args.get(1).map(|w| w.text.as_slice()));
    match how {
        None | Some(b"subrequest") => Ok(Part::Request(path.text.as_slice().into())),
        Some(b"local") => {
            let path = scope.build.conf_path(&path.text);
            let failed =
                |e| node.problem(format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)));
            let bytes = scope.build.files.read(&path).map_err(failed)?;
            if bytes.len() > MAX_PART {
                return Err(node.problem(format!("\"{}\" has more than {MAX_PART} bytes", path.display())));
            }
            Ok(Part::Local(bytes.into()))
        }
        Some(other) => Err(node.problem(format!("invalid parameter \"{}\"", String::from_utf8_lossy(other)))),
    }
}

fn ignore(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    for word in &node.args {
        let pattern = Pattern::compile(scope.build, &word.text, false).map_err(|t| node.problem(t))?;
        let ignored = Arc::make_mut(scope.level.conf.fancyindex.ignored.entry());
        if ignored.len() == MAX_IGNORED {
            return Err(node.problem(format!("more than {MAX_IGNORED} patterns")));
        }
        ignored.push(pattern);
    }
    Ok(())
}

/// Answers GET and HEAD for a directory without an index file.
pub fn handler(r: &mut Request) -> Verdict {
    if !*r.conf().fancyindex.fancyindex
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
    match answer(r, &path) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

fn answer(r: &mut Request, path: &[u8]) -> Result<(), Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.fancyindex;
    let mut dir = directory::open(r, path)?;
    let entries = entries(r, path, &mut dir)?;
    let (asked, again) = asked(r.get(r.head.args));
    let entries = sorted(entries, conf, asked.unwrap_or(*conf.sort));
    r.answer.headers.status = 200;
    r.answer.headers.content_type = Some(Text::from("text/html"));
    if [&*conf.header, &*conf.footer].iter().any(|part| matches!(part, Some(Part::Request(_)))) {
        r.answer.deferred.get_or_insert_default();
    }
    r.send_header()?;
    match &*conf.header {
        Some(part) => send_part(r, part)?,
        None => {
            let head = head(r, conf);
            r.send_body(Chunk::Bytes(&head), false)?;
        }
    }
    let list = list(r.get(r.head.uri), conf, &entries, &again);
    r.send_body(Chunk::Bytes(&list), false)?;
    match &*conf.footer {
        Some(part) => send_part(r, part)?,
        None => r.send_body(Chunk::Bytes(b"</body>\n</html>\n"), false)?,
    }
    r.send_body(Chunk::Bytes(b""), true)
}

fn send_part(r: &mut Request, part: &Part) -> Result<(), Verdict> {
    match part {
        Part::Local(bytes) => r.send_body(Chunk::Bytes(bytes), false),
        Part::Request(uri) => {
            if !subrequest::is_allowed(r, &uri[..]) {
                return Err(Verdict::Broken);
            }
            include::add(r, Include { uri: uri[..].into(), args: [].into(), set: None, stub: None, own: None });
            Ok(())
        }
    }
}

fn entries(r: &Request, path: &[u8], dir: &mut rustix::fs::Dir) -> Result<Vec<Entry>, Verdict> {
    let conf = &r.conf().fancyindex;
    let read = directory::read_with(r, path, dir, Detail::Facts, *conf.show_dotfiles);
    let mut entries = read.map_err(|_| Verdict::Status(500))?;
    let mut gave_up = false;
    entries.retain(|entry| {
        !conf.ignored.iter().any(|pattern| {
            pattern.is_match(&entry.name).unwrap_or_else(|e| {
                log_error!(r, Alert, "{e}");
                gave_up = true;
                true
            })
        })
    });
    if gave_up {
        return Err(Verdict::Status(500));
    }
    if *conf.hide_symlinks {
        let folder = Path::new(std::ffi::OsStr::from_bytes(path));
        entries.retain(|entry| {
            let facts = folder.join(std::ffi::OsStr::from_bytes(&entry.name)).symlink_metadata();
            facts.is_ok_and(|facts| !facts.file_type().is_symlink())
        });
    }
    Ok(entries)
}

/// The order that the visitor wants, and what links say to keep it.
fn asked(args: &[u8]) -> (Option<Sort>, Vec<u8>) {
    let by = match argument(args, b"C") {
        Some(b"N") => By::Name,
        Some(b"S") => By::Size,
        Some(b"M") => By::Date,
        _ => return (None, Vec::new()),
    };
    let descends = argument(args, b"O") == Some(b"D");
    let (column, order) = (["N", "S", "M"][by as usize], if descends { "D" } else { "A" });
    (Some(Sort { by, descends }), format!("?C={column}&amp;O={order}").into_bytes())
}

fn sorted(mut entries: Vec<Entry>, conf: &Conf, sort: Sort) -> Vec<Entry> {
    let names = |a: &Entry, b: &Entry| match *conf.case_sensitive {
        true => a.name.cmp(&b.name),
        false => a.name.to_ascii_lowercase().cmp(&b.name.to_ascii_lowercase()).then(a.name.cmp(&b.name)),
    };
    entries.sort_by(|a, b| {
        let folders = (a.kind != Kind::Directory).cmp(&(b.kind != Kind::Directory));
        let folders = if *conf.directories_first { folders } else { Ordering::Equal };
        let order = match sort.by {
            By::Name => names(a, b),
            By::Size => a.size.cmp(&b.size).then_with(|| names(a, b)),
            By::Date => a.mtime.cmp(&b.mtime).then_with(|| names(a, b)),
        };
        folders.then(if sort.descends { order.reverse() } else { order })
    });
    entries
}

const STYLE: &str = "body { font-family: sans-serif; margin: 1em; } \
    table#list { border-collapse: collapse; width: 100%; } \
    #list th { text-align: left; border-bottom: 1px solid; } \
    #list th, #list td { padding: 0.15em 0.5em; } \
    #list td.size { white-space: pre; }";

fn head(r: &Request, conf: &Conf) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n"
    );
    if !conf.css_href.is_empty() {
        out.extend_from_slice(b"<link rel=\"stylesheet\" href=\"");
        escape_html(&conf.css_href, &mut out);
        out.extend_from_slice(b"\" type=\"text/css\">\n");
    }
    out.extend_from_slice(b"<title>Index of ");
    escape_html(r.get(r.head.uri), &mut out);
    out.extend_from_slice(b"</title>\n</head>\n<body>\n");
    if *conf.show_path {
        out.extend_from_slice(b"<h1>Index of ");
        escape_html(r.get(r.head.uri), &mut out);
        out.extend_from_slice(b"</h1>\n");
    }
    out
}

fn list(uri: &[u8], conf: &Conf, entries: &[Entry], again: &[u8]) -> Vec<u8> {
    let mut out = b"<table id=\"list\">\n<thead><tr>".to_vec();
    for (title, column, width) in [("File Name", "N", 55), ("File Size", "S", 20), ("Date", "M", 25)] {
        let _ = write!(
            out,
            "<th style=\"width:{width}%\"><a href=\"?C={column}&amp;O=A\">{title}</a> \
             <a href=\"?C={column}&amp;O=D\">&darr;</a></th>"
        );
    }
    out.extend_from_slice(b"</tr></thead>\n<tbody>\n");
    if uri != b"/" && !*conf.hide_parent_dir {
        out.extend_from_slice(b"<tr><td class=\"link\"><a href=\"../");
        out.extend_from_slice(again);
        out.extend_from_slice(
            b"\">Parent directory/</a></td><td class=\"size\">-</td><td class=\"date\">-</td></tr>\n",
        );
    }
    for entry in entries {
        line(conf, entry, again, &mut out);
    }
    out.extend_from_slice(b"</tbody>\n</table>\n");
    out
}

fn line(conf: &Conf, entry: &Entry, again: &[u8], out: &mut Vec<u8>) {
    let is_folder = entry.kind == Kind::Directory;
    out.extend_from_slice(b"<tr><td class=\"link\"><a href=\"");
    escape_uri(&entry.name, Escape::UriComponent, out);
    if is_folder {
        out.push(b'/');
        out.extend_from_slice(again);
    }
    out.extend_from_slice(b"\" title=\"");
    escape_html(&entry.name, out);
    out.extend_from_slice(b"\">");
    let shown = String::from_utf8_lossy(&entry.name);
    let most = *conf.name_length as usize;
    match shown.char_indices().nth(most) {
        Some(_) => {
            let kept: String = shown.chars().take(most.saturating_sub(3)).collect();
            escape_html(kept.as_bytes(), out);
            out.extend_from_slice(b"..&gt;");
        }
        None => {
            escape_html(&entry.name, out);
            if is_folder {
                out.push(b'/');
            }
        }
    }
    out.extend_from_slice(b"</a></td><td class=\"size\">");
    let _ = match (is_folder, *conf.exact_size) {
        (true, _) => write!(out, "-"),
        (false, true) => write!(out, "{}", entry.size),
        (false, false) => write!(out, "{}", rounded(entry.size)),
    };
    out.extend_from_slice(b"</td><td class=\"date\">");
    let date = ssi_date::format(entry.mtime, !*conf.localtime, &conf.time_format).unwrap_or_default();
    escape_html(&date, out);
    out.extend_from_slice(b"</td></tr>\n");
}

/// A size with its unit: `19.5 KiB`.
fn rounded(size: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| size >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", size as f64 / unit as f64),
        None => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (size, text) in
            [(0, "0 B"), (1023, "1023 B"), (20_000, "19.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(rounded(size), text);
        }
    }

    #[test]
    fn what_visitors_ask_for() {
        assert_eq!(asked(b"C=S&O=D"), (Some(SORTS[4].1), b"?C=S&amp;O=D".to_vec()));
        assert_eq!(asked(b"C=N"), (Some(SORTS[0].1), b"?C=N&amp;O=A".to_vec()));
        assert_eq!(asked(b"C=X\"><script>"), (None, Vec::new()));
    }
}
