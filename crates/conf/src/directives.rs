//! The table of all directives: where each may stand and how many words it takes. `check` is nginx's
//! `ngx_conf_handler` without the handler.

use crate::diagnostic::Problem;
use crate::tree::{Body, Node};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Places where directives stand, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts(u32);

impl Contexts {
    /// No place.
    pub const NONE: Contexts = Contexts(0);
    /// Outside all blocks.
    pub const MAIN: Contexts = Contexts(1);
    /// `events`
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// `http`
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// `http > server`
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// `location`
    pub const LOCATION: Contexts = Contexts(1 << 4);
    /// `server > if`
    pub const IF_IN_SERVER: Contexts = Contexts(1 << 5);
    /// `location > if`
    pub const IF_IN_LOCATION: Contexts = Contexts(1 << 6);
    /// `limit_except`
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    /// `http > upstream`
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// `stream`
    pub const STREAM: Contexts = Contexts(1 << 9);
    /// `stream > server`
    pub const STREAM_SERVER: Contexts = Contexts(1 << 10);
    /// `stream > upstream`
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 11);
    /// `mail`
    pub const MAIL: Contexts = Contexts(1 << 12);
    /// `mail > server`
    pub const MAIL_SERVER: Contexts = Contexts(1 << 13);
    /// Both kinds of `if`.
    pub const IF_ANY: Contexts = Contexts(1 << 5 | 1 << 6);
    /// Everything in `http` but `upstream`.
    pub const HTTP_ALL: Contexts = Contexts(0b1111_1100);

    /// Both sets together.
    pub const fn union(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Whether the sets have a place in common.
    pub const fn intersects(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    fn named(name: &str) -> Contexts {
        match name {
            "main" => Contexts::MAIN,
            "events" => Contexts::EVENTS,
            "http" => Contexts::HTTP,
            "server" => Contexts::SERVER,
            "location" => Contexts::LOCATION,
            "if-in-server" => Contexts::IF_IN_SERVER,
            "if-in-location" => Contexts::IF_IN_LOCATION,
            "limit_except" => Contexts::LIMIT_EXCEPT,
            "upstream" => Contexts::UPSTREAM,
            "stream" => Contexts::STREAM,
            "stream-server" => Contexts::STREAM_SERVER,
            "stream-upstream" => Contexts::STREAM_UPSTREAM,
            "mail" => Contexts::MAIL,
            "mail-server" => Contexts::MAIL_SERVER,
            _ => Contexts::NONE,
        }
    }
}

/// How many words follow the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// Bit n: n words are allowed.
    exact: u32,
    /// This many or more are allowed.
    at_least: Option<usize>,
}

impl Arity {
    /// Whether so many words are allowed.
    pub fn allows(self, words: usize) -> bool {
        (words < 32 && self.exact & (1 << words) != 0) || self.at_least.is_some_and(|n| words >= n)
    }
}

/// A directive in one kind of place.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// Where it may stand.
    pub contexts: Contexts,
    /// How many words it takes.
    pub arity: Arity,
    /// It has braces.
    pub block: bool,
    /// Its word is `on` or `off`.
    pub flag: bool,
    /// The module of nginx that has it.
    pub module: &'static str,
}

static TEXT: &str = include_str!("directives.tsv");

fn table() -> &'static HashMap<&'static str, Vec<Known>> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<Known>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: HashMap<&'static str, Vec<Known>> = HashMap::new();
        for known in TEXT.lines().filter(|l| !l.starts_with('#')).filter_map(parse) {
            table.entry(known.name).or_default().push(known);
        }
        table
    })
}

fn parse(line: &'static str) -> Option<Known> {
    let mut columns = line.split('\t');
    let (name, contexts, words, module) = (columns.next()?, columns.next()?, columns.next()?, columns.next()?);
    let contexts = contexts.split(' ').map(Contexts::named).fold(Contexts::NONE, Contexts::union);
    let block = words.starts_with("block");
    let flag = words == "on|off";
    let mut arity = Arity { exact: 0, at_least: None };
    for item in words.trim_start_matches("block").split([' ', ',']).filter(|i| !i.is_empty()) {
        match item.strip_suffix('+') {
            _ if flag => arity.exact |= 1 << 1,
            Some(n) => arity.at_least = n.parse().ok(),
            None => arity.exact |= 1 << item.parse::<u32>().ok()?,
        }
    }
    Some(Known { name, contexts, arity, block, flag, module })
}

/// All directives with a name.
pub fn lookup(name: &str) -> &'static [Known] {
    table().get(name).map_or(&[], Vec::as_slice)
}

/// Every directive there is.
pub fn all() -> impl Iterator<Item = &'static Known> {
    table().values().flatten()
}

/// Checks name, place and form of a directive in one place, in nginx's order and words.
pub fn check(node: &Node, context: Contexts) -> Result<&'static Known, Problem> {
    let name = node.name.as_str();
    let candidates = lookup(&name);
    if candidates.is_empty() {
        return Err(node.problem(format!("unknown directive \"{name}\"")));
    }
    let Some(known) = candidates.iter().find(|k| k.contexts.intersects(context)) else {
        return Err(node.problem(format!("\"{name}\" directive is not allowed here")));
    };
    match (&node.body, known.block) {
        (Body::None, true) => return Err(node.problem(format!("directive \"{name}\" has no opening \"{{\""))),
        (Body::Block(_) | Body::Raw(_), false) => {
            return Err(node.problem(format!("directive \"{name}\" is not terminated by \";\"")));
        }
        _ => {}
    }
    if !known.arity.allows(node.args.len()) {
        return Err(node.problem(format!("invalid number of arguments in \"{name}\" directive")));
    }
    if known.flag {
        let word = &node.args[0].text;
        if !word.eq_ignore_ascii_case(b"on") && !word.eq_ignore_ascii_case(b"off") {
            return Err(node.problem(format!(
                "invalid value \"{}\" in \"{name}\" directive, it must be \"on\" or \"off\"",
                node.args[0].as_str()
            )));
        }
    }
    Ok(known)
}
