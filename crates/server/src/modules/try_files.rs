//! The first file of a list that is there, or else another uri, a named location or a status
//! (nginx's `ngx_http_try_files_module`).

use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::{Directive, Scope, http};
use crate::files::{self, Kind};
use crate::log::error::Level;
use crate::modules::root;
use crate::request::phases::Verdict;
use crate::request::{Request, Text, finish};
use conf::{Node, Problem, value};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("try_files", try_files)];

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    pub(super) list: Option<Arc<List>>,
}

impl Conf {
    /// Nothing is inherited.
    pub fn merge(&mut self, _parent: &Conf) {}
}

#[derive(Debug)]
pub(super) struct List {
    tries: Vec<Try>,
    last: Last,
}

#[derive(Debug)]
struct Try {
    /// What follows the root, without the slash that asks for a directory.
    name: Complex,
    directory: bool,
}

#[derive(Debug)]
enum Last {
    Status(u16),
    Uri(Complex),
}

fn try_files(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.try_files.list.is_some() {
        return Err(duplicate(node));
    }
    let (last, names) = node.args.split_last().expect("the table says there are two or more");
    let mut tries = Vec::with_capacity(names.len());
    for word in names {
        let (text, directory) = match word.text.strip_suffix(b"/") {
            Some(text) => (text, true),
            None => (word.text.as_slice(), false),
        };
        let name = Complex::compile_bytes(scope.build, text).map_err(|t| word.problem(t))?;
        tries.push(Try { name, directory });
    }
    let last = match last.text.strip_prefix(b"=") {
        Some(digits) => match value::number(digits) {
            Some(code @ 0..=999) => Last::Status(code as u16),
            _ => return Err(node.problem(format!("invalid code \"{}\"", last.as_str()))),
        },
        None => Last::Uri(Complex::compile(scope.build, last)?),
    };
    scope.level.conf.try_files.list = Some(Arc::new(List { tries, last }));
    Ok(())
}

/// Changes the uri to the first file that is there and lets the content phase serve it.
pub fn handler(r: &mut Request) -> Verdict {
    let Some(list) = r.conf().try_files.list.clone() else { return Verdict::Decline };
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = std::mem::take(&mut r.scratch);
    let verdict = run(r, &list, &mut path);
    r.scratch = path;
    verdict
}

fn run(r: &mut Request, list: &List, path: &mut Vec<u8>) -> Verdict {
    path.clear();
    root::write_root(r, path);
    let root = path.len();
    for attempt in &list.tries {
        path.truncate(root);
        write_name(r, &attempt.name, path);
        match files::test(r, path) {
            Ok(facts) if (facts.kind == Kind::Directory) == attempt.directory => {
                take(r, &path[root..], attempt.directory);
                return Verdict::Decline;
            }
            Ok(_) => {}
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => failure.log(r, Level::Crit, path),
        }
    }
    match &list.last {
        Last::Status(0) => Verdict::Status(404),
        Last::Status(code) => Verdict::Status(*code),
        Last::Uri(target) => {
            path.truncate(root);
            write_name(r, target, path);
            if let Some(name) = path[root..].strip_prefix(b"@") {
                return finish::named_location(r, name);
            }
            let text = r.text(&path[root..]);
            let (uri, args) = finish::split_args(r, text);
            finish::internal_redirect(r, uri, args)
        }
    }
}

/// Appends a name. Under an alias, a name made of variables loses the location's own name, as `$uri` begins with it.
fn write_name(r: &mut Request, name: &Complex, path: &mut Vec<u8>) {
    let start = path.len();
    name.write(r, path);
    let root = &r.conf().core.root;
    if let Some(alias) = root.alias
        && !root.whole
        && name.as_fixed().is_none()
        && r.get(r.head.uri).get(..alias).is_some_and(|prefix| path[start..].starts_with(prefix))
    {
        path.drain(start..start + alias);
    }
}

/// Makes what was found the uri.
fn take(r: &mut Request, name: &[u8], directory: bool) {
    let root = &r.conf().core.root;
    let (alias, whole) = (root.alias, root.whole);
    match alias {
        None => r.head.uri = r.text(name),
        Some(_) if whole && directory => return,
        Some(_) if whole => {
            r.head.uri = r.text(name);
            r.flow.add_uri_to_alias = true;
        }
        Some(length) => {
            let mark = r.arena.mark();
            let prefix = prefix(r, length);
            r.arena.append(prefix);
            r.arena.buffer().extend_from_slice(name);
            r.head.uri = r.arena.since(mark).into();
        }
    }
    r.head.plain_uri = false;
}

/// The uri's first `length` bytes.
fn prefix(r: &Request, length: usize) -> Text {
    match r.head.uri {
        Text::Fixed(b) => Text::Fixed(&b[..length.min(b.len())]),
        Text::Own(mut s) => {
            s.end = (s.start + length as u32).min(s.end);
            s.into()
        }
    }
}
