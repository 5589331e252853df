//! `concat`: `/css/??a.css,b.css?v=3` is answered with both files, one behind the other (`ngx_http_concat_module`, Tengine's too). What
//! stands behind a third question mark is for caches of clients alone. Files are those below the uri's folder, by the rules of this location.

use crate::config::types::TypeSet;
use crate::config::{Directive, http, setters};
use crate::files::{self, Kind, OpenedFile};
use crate::modules::{root, static_files};
use crate::request::chunk::Chunk;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};
use crate::{inherited, log_error, merged_values};
use wire::http1::target::normalize;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("concat", |s, n| setters::flag(&mut s.level.conf.concat.concat, n)),
    http("concat_unique", |s, n| setters::flag(&mut s.level.conf.concat.unique, n)),
    http("concat_ignore_file_error", |s, n| setters::flag(&mut s.level.conf.concat.ignore_file_error, n)),
    http("concat_max_files", |s, n| setters::number(&mut s.level.conf.concat.max_files, n)),
    http("concat_delimiter", |s, n| {
        setters::value(&mut s.level.conf.concat.delimiter, n, n.args[0].text.as_slice().into())
    }),
    http("concat_types", |s, n| TypeSet::set(&mut s.level.conf.concat.types, s.build, n, TYPES[0])),
];

/// What is put together unless `concat_types` says otherwise.
const TYPES: [&str; 4] = ["application/javascript", "text/javascript", "application/x-javascript", "text/css"];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        concat: bool = false,
        /// All files of a request have one type.
        unique: bool = true,
        /// Files that are not there, or that may not be read, are left out.
        ignore_file_error: bool = false,
        /// Files of a request.
        max_files: u64 = 10,
        /// What stands between two files.
        delimiter: Box<[u8]> = Box::default(),
        /// What is put together.
        types: TypeSet = TypeSet::of(&TYPES),
    }
}

inherited!(Conf, |_| true);

/// Answers a request for a list of files; others are left to those who come after.
pub fn handler(r: &mut Request) -> Verdict {
    let is_list = r.get(r.head.uri).ends_with(b"/") && r.get(r.head.args).starts_with(b"?");
    if !is_list || !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    match find(r) {
        Ok(found) => send(r, &found).err().unwrap_or(Verdict::Answered),
        Err(verdict) => {
            // An error's page has a type of its own.
            r.answer.headers.content_type = None;
            verdict
        }
    }
}

/// The files of the list. The answer's type is that of the first.
fn find(r: &mut Request) -> Result<Vec<OpenedFile>, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf;
    let args = &r.get(r.head.args)[1..];
    let list = args[..memchr::memchr(b'?', args).unwrap_or(args.len())].to_vec();
    let names = list.split(|b| *b == b',').filter(|name| !name.is_empty());
    let most = *conf.concat.max_files as usize;
    if names.clone().take(most.saturating_add(1)).count() > most {
        log_error!(r, Error, "client asks for more files in one answer than \"concat_max_files\" lets it: {most}");
        return Err(Verdict::Status(400));
    }
    let mut found = Vec::new();
    for name in names {
        let uri = uri_of(r, name)?;
        let kind = root::type_of(&conf.core, &uri);
        let before = r.answer.headers.content_type;
        let is_other = *conf.concat.unique && before.is_some_and(|before| r.get(before) != kind);
        r.answer.headers.content_type = Some(r.text(kind));
        if is_other || !conf.concat.types.fits(r) {
            return Err(Verdict::Status(400));
        }
        r.answer.headers.content_type = before.or(r.answer.headers.content_type);
        let (uri, mut path) = (r.text(&uri), Vec::new());
        root::write_path(r, uri, &mut path);
        match open(r, &path) {
            Ok(file) => found.push(file),
            Err(Verdict::Status(403 | 404)) if *conf.concat.ignore_file_error => {}
            Err(verdict) => return Err(verdict),
        }
    }
    if found.is_empty() { Err(Verdict::Status(404)) } else { Ok(found) }
}

/// A name of the list below the uri, which it may not climb out of.
fn uri_of(r: &Request, name: &[u8]) -> Result<Vec<u8>, Verdict> {
    let mut path = Vec::new();
    let merge = *r.server().conf.core.merge_slashes;
    let Ok(normal) = normalize(&[b"/", name].concat(), merge, &mut path) else { return Err(Verdict::Status(400)) };
    let below = path[normal.path.range()].strip_prefix(b"/").unwrap_or_default();
    Ok([r.get(r.head.uri), below].concat())
}

fn open(r: &mut Request, path: &[u8]) -> Result<OpenedFile, Verdict> {
    match files::open(r, path) {
        Ok(file) if file.facts.kind == Kind::File => Ok(file),
        Ok(_) => Err(static_files::not_regular(r, path)),
        Err(failure) => Err(static_files::failed(r, path, failure)),
    }
}

fn send(r: &mut Request, found: &[OpenedFile]) -> Result<(), Verdict> {
    let snapshot = r.snapshot.clone();
    let delimiter = &**snapshot.location(r.location).conf.concat.delimiter;
    let between = delimiter.len() as u64 * (found.len() as u64 - 1);
    let length = found.iter().map(|file| file.facts.size).sum::<u64>() + between;
    let newest = found.iter().map(|file| file.facts.mtime).max().unwrap_or(0);
    static_files::begin(r, newest, length)?;
    for (at, file) in found.iter().enumerate() {
        if at > 0 && !delimiter.is_empty() {
            r.send_body(Chunk::Bytes(delimiter), false)?;
        }
        static_files::send_stretch(r, file, 0, file.facts.size, at + 1 == found.len())?;
    }
    Ok(())
}
