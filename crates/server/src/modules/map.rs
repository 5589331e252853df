//! `map` (nginx's `ngx_http_map_module`): a variable whose value depends on a text.

use super::ignored;
use crate::config::complex::Complex;
use crate::config::hostnames::HostTable;
use crate::config::pattern::Pattern;
use crate::config::{Build, Directive, Scope, both};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] =
    &[both("map", map), both("map_hash_bucket_size", ignored::number), both("map_hash_max_size", ignored::number)];

#[derive(Debug, Default)]
struct Map {
    source: Complex,
    /// `hostnames`: wildcards, and a dot at the end does not count.
    hostnames: bool,
    keys: HostTable<u32>,
    patterns: Vec<(Pattern, u32)>,
    values: Vec<Complex>,
    default: Option<u32>,
}

fn map(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [source, name] = node.args.as_slice() else { unreachable!("the table says two") };
    let name = variable_name(node, name)?;
    let mut map = Map { source: Complex::compile(scope.build, source)?, ..Map::default() };
    let mut volatile = false;
    for row in node.children() {
        match row.args.as_slice() {
            [] if row.name == "hostnames" => map.hostnames = true,
            [] if row.name == "volatile" => volatile = true,
            [_] => add(scope.build, &mut map, row)?,
            _ => return Err(row.problem("invalid number of the map parameters".to_owned())),
        }
    }
    let map = Arc::new(map);
    let evaluate = Arc::new(move |r: &mut Request| Some(look_up(&map, r)));
    scope.build.variables.define(name, volatile, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

/// The name of a variable that a directive makes, without its `$`.
pub fn variable_name<'w>(node: &Node, word: &'w conf::Word) -> Result<&'w [u8], Problem> {
    match word.text.strip_prefix(b"$") {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(node.problem(format!("invalid variable name \"{}\"", word.as_str()))),
    }
}

fn add(build: &mut Build<'_>, map: &mut Map, row: &Node) -> Result<(), Problem> {
    let index = map.values.len() as u32;
    map.values.push(Complex::compile(build, &row.args[0])?);
    let key = row.name.text.as_slice();
    if key == b"default" {
        if map.default.is_some() {
            return Err(row.problem("duplicate default map parameter".to_owned()));
        }
        map.default = Some(index);
        return Ok(());
    }
    if let Some(source) = key.strip_prefix(b"~") {
        let (source, caseless) = match source.strip_prefix(b"*") {
            Some(rest) => (rest, true),
            None => (source, false),
        };
        let pattern = Pattern::compile(build, source, caseless).map_err(|t| row.problem(t))?;
        map.patterns.push((pattern, index));
        return Ok(());
    }
    let key = key.strip_prefix(b"\\").unwrap_or(key);
    let added = if map.hostnames { map.keys.add(key, index) } else { map.keys.add_exact(key, index) };
    added.map_err(|e| row.problem(e.text(key)))
}

/// The first pattern that matches; none if one gives up, which leaves the variable without a value.
fn find_pattern(map: &Map, r: &mut Request, source: Text) -> Option<u32> {
    for (pattern, index) in &map.patterns {
        match pattern.exec(r, source) {
            Ok(true) => return Some(*index),
            Ok(false) => {}
            Err(_) => return None,
        }
    }
    None
}

fn look_up(map: &Map, r: &mut Request) -> Text {
    let mut source = map.source.eval(r);
    if map.hostnames && r.get(source).ends_with(b".") {
        source = source.shortened(1);
    }
    let mut key = std::mem::take(&mut r.scratch);
    key.clear();
    key.extend_from_slice(r.get(source));
    key.make_ascii_lowercase();
    let mut found = map.keys.find(&key);
    if found.is_none() && !key.is_empty() {
        found = find_pattern(map, r, source);
    }
    r.scratch = key;
    match found.or(map.default) {
        Some(index) => map.values[index as usize].eval(r),
        None => Text::EMPTY,
    }
}
