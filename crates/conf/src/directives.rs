//! The table of known directives: where each may stand, how many arguments it takes, whether it opens a block. The data
//! are `directives/nginx.tsv` and `directives/others.tsv`; a row is `name contexts arguments module`, tab-separated.
//! From: tree. To: load and the modules. What a directive does is not known here.

mod contexts;
mod suggest;

use std::collections::HashMap;
use std::sync::OnceLock;

pub use contexts::Contexts;
pub use suggest::{nearest, refusal};

use crate::diagnostic::Problem;
use crate::tree::{Body, Node};
use crate::value;

const NGINX: &str = include_str!("directives/nginx.tsv");
const OTHERS: &str = include_str!("directives/others.tsv");

/// nginx's limit on the words of a directive that does not take any number (`NGX_CONF_MAX_ARGS`), less the name.
const MAX_COUNTED_ARGUMENTS: usize = 7;

/// How many arguments a directive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// At least so many.
    pub min: usize,
    /// At most so many; any number if `None`.
    pub max: Option<usize>,
}

impl Arity {
    /// Whether so many are right.
    pub fn allows(self, count: usize) -> bool {
        count >= self.min && self.max.is_none_or(|max| count <= max.min(MAX_COUNTED_ARGUMENTS))
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// Where it may stand.
    pub contexts: Contexts,
    /// How many arguments it takes.
    pub arity: Arity,
    /// Whether it opens a block.
    pub block: bool,
    /// Whether its one argument is `on` or `off`.
    pub flag: bool,
    /// The module that defines it; for others' directives the product.
    pub module: &'static str,
    /// Whether nginx itself has it.
    pub nginx: bool,
}

/// What stands in a directive's braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Directives of this context.
    Directives(Contexts),
    /// Rows that a module reads as it likes; their first words are no directive names.
    Rows {
        /// Whether a row `include FILE;` brings in another file.
        include: bool,
    },
}

/// All directives of a name, one for each module that has it; none if nobody does.
pub fn lookup(name: &[u8]) -> &'static [Known] {
    static TABLE: OnceLock<HashMap<&'static [u8], Vec<Known>>> = OnceLock::new();
    TABLE.get_or_init(table).get(name).map_or(&[], Vec::as_slice)
}

/// Says of a row of others' directives whether somebody here takes it. Those of nginx are not asked about.
pub type Accepts<'f> = &'f dyn Fn(&Known) -> bool;

/// Every row, in the order of the files.
pub fn all() -> impl Iterator<Item = Known> {
    let rows = |text: &'static str, nginx| text.lines().filter_map(move |line| row(line, nginx));
    rows(NGINX, true).chain(rows(OTHERS, false))
}

/// Checks name, place, terminator and number of arguments in nginx's order (`ngx_conf_handler`), then the value of a
/// flag. `current` is one context. Others' directives count as known.
pub fn check(node: &Node, current: Contexts) -> Result<&'static Known, Problem> {
    let known = check_form(node, current, &|_| true)?;
    check_flag(node, known)?;
    Ok(known)
}

/// The value of a flag; apart from the form, as nginx looks for duplicates in between.
pub(crate) fn check_flag(node: &Node, known: &Known) -> Result<(), Problem> {
    if known.flag && value::flag(&node.first().text).is_none() {
        return Err(Problem::invalid_flag(node, node.first()));
    }
    Ok(())
}

/// All of [`check`] but the value of a flag; of others' directives only those `accepts` takes are known.
pub(crate) fn check_form(node: &Node, current: Contexts, accepts: Accepts) -> Result<&'static Known, Problem> {
    let name = node.name.as_str();
    let mut named = lookup(&node.name.text).iter().filter(|known| known.nginx || accepts(known)).peekable();
    let is_known = named.peek().is_some();
    let Some(known) = named.find(|known| known.contexts.intersects(current)) else {
        let message = match is_known {
            false => format!("unknown directive \"{name}\""),
            true => format!("\"{name}\" directive is not allowed here"),
        };
        let help = if is_known { None } else { suggest::help(&name, current, accepts) };
        return Err(Problem::emerg(node.name.span, message).with_help(help));
    };
    let opens = !matches!(node.body, Body::None);
    if opens && !known.block {
        return Err(Problem::emerg(node.name.span, format!("directive \"{name}\" is not terminated by \";\"")));
    }
    if !opens && known.block {
        return Err(Problem::emerg(node.name.span, format!("directive \"{name}\" has no opening \"{{\"")));
    }
    if !known.arity.allows(node.args.len()) {
        return Err(Problem::invalid_arguments(node));
    }
    Ok(known)
}

/// What stands in the braces of a block directive found in `current`.
pub fn inside(name: &[u8], current: Contexts) -> Inside {
    let directives = |contexts| Inside::Directives(contexts);
    match name {
        b"events" => directives(Contexts::EVENTS),
        b"http" => directives(Contexts::HTTP),
        b"mail" => directives(Contexts::MAIL),
        b"stream" => directives(Contexts::STREAM),
        b"server" if current == Contexts::MAIL => directives(Contexts::MAIL_SERVER),
        b"server" if current == Contexts::STREAM => directives(Contexts::STREAM_SERVER),
        b"server" => directives(Contexts::SERVER),
        b"upstream" if current == Contexts::STREAM => directives(Contexts::STREAM_UPSTREAM),
        b"upstream" => directives(Contexts::UPSTREAM),
        b"location" => directives(Contexts::LOCATION),
        b"if" if current == Contexts::SERVER => directives(Contexts::IF_IN_SERVER),
        b"if" => directives(Contexts::IF_IN_LOCATION),
        b"acme_issuer" => directives(Contexts::ACME_ISSUER),
        b"oidc_provider" => directives(Contexts::OIDC_PROVIDER),
        b"limit_except" => directives(Contexts::LIMIT_EXCEPT),
        b"types" | b"map" | b"geo" => Inside::Rows { include: true },
        _ => Inside::Rows { include: false },
    }
}

fn table() -> HashMap<&'static [u8], Vec<Known>> {
    let mut table: HashMap<&'static [u8], Vec<Known>> = HashMap::new();
    for known in all() {
        table.entry(known.name.as_bytes()).or_default().push(known);
    }
    table
}

fn row(line: &'static str, nginx: bool) -> Option<Known> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut columns = line.split('\t');
    let mut column = || columns.next().expect("a row of the table has four columns");
    let (name, contexts, arguments, module) = (column(), column(), column(), column());
    let flag = arguments == "on|off";
    let (block, counts) = match arguments.strip_prefix("block ") {
        Some(counts) => (true, counts),
        None => (false, if flag { "1" } else { arguments }),
    };
    Some(Known { name, contexts: Contexts::parse(contexts), arity: arity(counts), block, flag, module, nginx })
}

/// `2+`, or counts separated by commas or spaces.
fn arity(counts: &str) -> Arity {
    let parse = |count: &str| count.parse::<usize>().expect("a count in the table is a number");
    if let Some(min) = counts.strip_suffix('+') {
        return Arity { min: parse(min), max: None };
    }
    let mut counts = counts.split([',', ' ']).map(parse);
    let min = counts.next().expect("a row of the table has a count");
    Arity { min, max: Some(counts.next_back().unwrap_or(min)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{FileId, Span, Word};

    fn node(words: &str, body: Body) -> Node {
        let span = Span { file: FileId(0), line: 1, start: 0, end: 1 };
        let mut words = words.split(' ').map(|text| Word { text: text.into(), span, quoted: false });
        Node { name: words.next().expect("there is a name"), args: words.collect(), body, close: span }
    }

    #[track_caller]
    fn says(words: &str, body: Body, context: Contexts, expected: &str) {
        assert_eq!(check(&node(words, body), context).expect_err("it is wrong").message, expected);
    }

    #[test]
    fn the_whole_table_is_read() {
        assert_eq!(all().filter(|known| known.nginx).count(), 784);
        assert!(all().filter(|known| !known.nginx).count() > 200);
        assert!(all().all(|known| !known.contexts.is_empty()));
        assert_eq!(lookup(b"server").len(), 5);
        assert!(lookup(b"nonsense").is_empty());
        let rewrite = lookup(b"rewrite")[0];
        assert_eq!(rewrite.arity, Arity { min: 2, max: Some(3) });
        assert!(rewrite.contexts.contains(Contexts::IF_IN_SERVER) && !rewrite.contexts.contains(Contexts::HTTP));
    }

    #[test]
    fn the_words_of_nginx_in_its_order() {
        says("foo", Body::None, Contexts::MAIN, "unknown directive \"foo\"");
        says("listen x", Body::None, Contexts::HTTP, "\"listen\" directive is not allowed here");
        says("root", Body::Block(vec![]), Contexts::SERVER, "directive \"root\" is not terminated by \";\"");
        says("http x y", Body::None, Contexts::MAIN, "directive \"http\" has no opening \"{\"");
        says("root", Body::None, Contexts::HTTP, "invalid number of arguments in \"root\" directive");
        says("http x", Body::Block(vec![]), Contexts::MAIN, "invalid number of arguments in \"http\" directive");
        let message = "invalid value \"yes\" in \"sendfile\" directive, it must be \"on\" or \"off\"";
        says("sendfile yes", Body::None, Contexts::HTTP, message);
        says("include a b", Body::None, Contexts::UPSTREAM, "invalid number of arguments in \"include\" directive");
    }

    #[test]
    fn the_module_of_the_context_answers() {
        let module = |words, body, context| check(&node(words, body), context).map(|known| known.module);
        assert_eq!(module("server", Body::Block(vec![]), Contexts::STREAM), Ok("ngx_stream_core_module"));
        assert_eq!(module("server a", Body::None, Contexts::UPSTREAM), Ok("ngx_http_upstream"));
        assert_eq!(module("include a", Body::None, Contexts::MAIL_SERVER), Ok("ngx_conf_file"));
        assert_eq!(inside(b"server", Contexts::MAIL), Inside::Directives(Contexts::MAIL_SERVER));
        assert_eq!(inside(b"map", Contexts::HTTP), Inside::Rows { include: true });
        assert_eq!(inside(b"split_clients", Contexts::HTTP), Inside::Rows { include: false });
    }
}
