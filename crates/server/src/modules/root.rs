//! Where a uri's file is, and what type it has: `root`, `alias`, `types` (nginx's `ngx_http_core_module`). The values are among
//! those of `core`.

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::{Directive, Scope, http};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use hashbrown::HashMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("root", root),
    http("alias", alias),
    http("types", types),
    http("default_type", |s, n| {
        setters::value(&mut s.level.conf.core.default_type, n, n.args[0].text.as_slice().into())
    }),
];

/// Where files are.
#[derive(Clone, Debug, Default)]
pub struct Root {
    /// The directory, absolute unless it begins with a variable.
    pub path: Complex,
    /// `alias`: the location's name is taken off the uri. Holds the length of the name, 0 for patterns.
    pub alias: Option<usize>,
    /// The alias belongs to a pattern: its path is the whole file name.
    pub whole: bool,
}

/// Types by extension.
pub type Types = HashMap<Box<[u8]>, Box<[u8]>>;

fn root(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    place(scope, node, None)
}

fn alias(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.is_named() {
        return Err(node.problem("the \"alias\" directive cannot be used inside the named location".to_owned()));
    }
    place(scope, node, Some(scope.level.name.len()))
}

fn place(scope: &mut Scope<'_, '_>, node: &Node, alias: Option<usize>) -> Result<(), Problem> {
    let core = &mut scope.level.conf.core;
    if core.root.is_set() {
        let (this, other) = if alias.is_some() { ("alias", "root") } else { ("root", "alias") };
        if alias.is_some() == core.root.alias.is_some() {
            return Err(duplicate(node));
        }
        return Err(
            node.problem(format!("\"{this}\" directive is duplicate, \"{other}\" directive was specified earlier"))
        );
    }
    let word = &node.args[0];
    for forbidden in [&b"$document_root"[..], b"${document_root}", b"$realpath_root", b"${realpath_root}"] {
        if memchr::memmem::find(&word.text, forbidden).is_some() {
            let name = String::from_utf8_lossy(forbidden).into_owned();
            let text = format!("the {name} variable cannot be used in the \"{}\" directive", node.name.as_str());
            return Err(node.problem(text));
        }
    }
    let mut text = word.text.clone();
    if alias.is_none() && text.ends_with(b"/") {
        text.pop();
    }
    let path =
        if text.first() == Some(&b'$') { text } else { scope.build.full_path(&text).into_os_string().into_vec() };
    let path = Complex::compile_bytes(scope.build, &path).map_err(|t| node.problem(t))?;
    let whole = alias.is_some() && scope.level.is_pattern();
    scope.level.conf.core.root.force(Root { path, alias, whole });
    Ok(())
}

fn types(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.core.types;
    let mut map = if setting.is_set() { (***setting).clone() } else { HashMap::new() };
    for row in node.children() {
        if row.name == "include" {
            continue;
        }
        for extension in &row.args {
            let key = extension.text.to_ascii_lowercase().into_boxed_slice();
            if let Some(old) = map.insert(key, row.name.text.clone().into_boxed_slice()) {
                let text = format!(
                    "duplicate extension \"{}\", content type: \"{}\", previous content type: \"{}\"",
                    extension.as_str(),
                    row.name.as_str(),
                    String::from_utf8_lossy(&old)
                );
                scope.build.problems.push(row.warning(text));
            }
        }
    }
    scope.level.conf.core.types.force(Arc::new(map));
    Ok(())
}

pub(super) fn default_types() -> Arc<Types> {
    let rows: [(&[u8], &[u8]); 3] = [(b"html", b"text/html"), (b"gif", b"image/gif"), (b"jpg", b"image/jpeg")];
    Arc::new(rows.into_iter().map(|(e, t)| (e.into(), t.into())).collect())
}

/// The type by the uri's extension (`ngx_http_set_content_type`).
pub fn set_content_type(r: &mut Request) {
    if r.answer.headers.content_type.is_some() {
        return;
    }
    let snapshot = r.snapshot.clone();
    let kind = type_of(&snapshot.location(r.location).conf.core, r.get(r.head.uri));
    r.answer.headers.content_type = Some(r.text(kind));
}

/// The type of a file by the end of its name.
pub fn type_of<'c>(conf: &'c super::core::Conf, uri: &[u8]) -> &'c [u8] {
    // Names are short, and mostly end in their extension: setting up a search for vectors of them takes longer than the look.
    let dot = uri.iter().rposition(|b| matches!(b, b'.' | b'/')).filter(|at| uri[*at] == b'.');
    let known = dot.and_then(|dot| {
        let extension = &uri[dot + 1..];
        let mut lower = [0u8; 32];
        let lower = lower.get_mut(..extension.len())?;
        lower.copy_from_slice(extension);
        lower.make_ascii_lowercase();
        conf.types.get(&*lower)
    });
    known.map_or(&**conf.default_type, |k| &**k)
}

/// Whether the uri can be mapped to a path: an `alias` fits only the uri its location was found by.
pub fn check_alias(r: &Request) -> bool {
    let location = r.location();
    if location.conf.core.root.alias.is_some() && !r.flow.valid_location {
        crate::log_error!(
            r,
            Alert,
            "\"alias\" cannot be used in location \"{}\" where URI was rewritten",
            String::from_utf8_lossy(&location.name)
        );
        return false;
    }
    true
}

/// The path of the uri's file (`ngx_http_map_uri_to_path`).
pub fn path_of(r: &mut Request) -> Vec<u8> {
    let mut path = Vec::with_capacity(128);
    write_path(r, r.head.uri, &mut path);
    path
}

/// Appends the path of a uri's file.
pub fn write_path(r: &mut Request, uri: Text, out: &mut Vec<u8>) {
    write_root(r, out);
    let root = &*r.conf().core.root;
    match root.alias {
        None => out.extend_from_slice(r.get(uri)),
        Some(_) if root.whole && !r.flow.add_uri_to_alias => {}
        Some(_) if root.whole => out.extend_from_slice(r.get(uri)),
        Some(n) => {
            let uri = r.get(uri);
            out.extend_from_slice(uri.get(n..).unwrap_or_default());
        }
    }
}

/// Appends the path of `root` or `alias` alone.
pub fn write_root(r: &mut Request, out: &mut Vec<u8>) {
    let snapshot = r.snapshot.clone();
    let root = &snapshot.location(r.location).conf.core.root;
    let start = out.len();
    root.path.write(r, out);
    if root.path.as_fixed().is_none() && out.get(start) != Some(&b'/') {
        let prefix = snapshot.prefix.as_os_str().as_bytes();
        out.splice(start..start, prefix.iter().copied().chain([b'/']));
    }
}

/// The directory alone: `$document_root`.
pub fn document_root(r: &mut Request) -> Text {
    let snapshot = r.snapshot.clone();
    snapshot.location(r.location).conf.core.root.path.eval(r)
}
