//! `docs/reference`: every directive, written from the tables that the server itself reads (`crates/conf`) and from what only
//! people know, `docs/reference/own.txt` (our own directives) and `pages.tsv` (who documents the others).
//! `REFERENCE=write cargo test --workspace --test whole reference` writes it anew; otherwise it is held to be fresh.

use crate::harness::repository;
use conf::directives::all;
use conf::{Contexts, Known};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

const WRITTEN: &str =
    "*Written from the tables by `REFERENCE=write cargo test --workspace --test whole reference`: change those.*\n\n";

/// What is not of `stream`.
const PLANE_OF_HTTP: Contexts = Contexts::HTTP_ALL.union(Contexts::UPSTREAM).union(Contexts::MAIN);

fn folder() -> PathBuf {
    repository().join("docs/reference")
}

/// Who documents a module or a single directive.
struct Pages {
    /// A module to its page, its title, and whether single directives can be found in it by their name.
    modules: BTreeMap<String, (String, String, bool)>,
    /// Directives (`name module`) whose page is another, or that have none.
    others: BTreeMap<(String, String), Option<String>>,
}

impl Pages {
    fn read() -> Pages {
        let text = std::fs::read_to_string(folder().join("pages.tsv")).unwrap();
        let (mut modules, mut others) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
            let columns: Vec<&str> = line.split('\t').collect();
            match columns.as_slice() {
                ["module", module, title, page, anchors] => {
                    modules
                        .insert((*module).to_owned(), ((*title).to_owned(), (*page).to_owned(), *anchors == "anchors"));
                }
                ["directive", name, module, page] => {
                    let page = (*page != "-").then(|| (*page).to_owned());
                    others.insert(((*name).to_owned(), (*module).to_owned()), page);
                }
                _ => panic!("pages.tsv: {line:?}"),
            }
        }
        Pages { modules, others }
    }

    fn module(&self, module: &str) -> &(String, String, bool) {
        self.modules.get(module).unwrap_or_else(|| panic!("pages.tsv does not know the module {module}"))
    }

    /// A directive's name as a link to where it is documented.
    fn link(&self, known: &Known) -> String {
        let (_, page, anchors) = self.module(known.module);
        // NGINX Plus has some names twice, in `http` and in `stream`.
        let stream = known.module == "nginx_plus" && !known.contexts.intersects(PLANE_OF_HTTP);
        let module = if stream { format!("{}/stream", known.module) } else { known.module.to_owned() };
        let link = match self.others.get(&(known.name.to_owned(), module)) {
            Some(other) => other.clone(),
            None if *anchors => Some(format!("{page}#{}", known.name)),
            None => None,
        };
        match link {
            Some(link) => format!("[`{}`]({link})", known.name),
            None => format!("`{}`", known.name),
        }
    }
}

/// Whether a module here takes a directive.
fn is_here(known: &Known) -> bool {
    server::modules::accepts(known)
}

fn contexts(known: &Known) -> String {
    let names: Vec<&str> = known.contexts.names().collect();
    if names.len() > 12 { "any".to_owned() } else { names.join(", ") }
}

fn arguments(known: &Known) -> String {
    let count = match (known.arity.min, known.arity.max) {
        _ if known.flag => "`on` or `off`".to_owned(),
        (min, Some(max)) if min == max => min.to_string(),
        (min, Some(max)) => format!("{min} to {max}"),
        (min, None) => format!("{min} or more"),
    };
    if known.block { format!("{count}, block") } else { count }
}

/// A table of some directives.
fn table(rows: &[Known], pages: &Pages) -> String {
    let mut out = String::from("| directive | context | arguments |\n|---|---|---|\n");
    for known in rows {
        let _ = writeln!(out, "| {} | {} | {} |", pages.link(known), contexts(known), arguments(known));
    }
    out
}

fn names(rows: &[Known]) -> String {
    let mut names: Vec<String> = rows.iter().map(|k| format!("`{}`", k.name)).collect();
    names.dedup();
    names.join(", ")
}

/// All rows of nginx (or of others) by module, in the order of the tables.
fn by_module(nginx: bool) -> Vec<(&'static str, Vec<Known>)> {
    let mut found: Vec<(&'static str, Vec<Known>)> = Vec::new();
    for known in all().filter(|k| k.nginx == nginx && k.module != "ironweir") {
        match found.iter_mut().find(|(module, _)| *module == known.module) {
            Some((_, rows)) => rows.push(known),
            None => found.push((known.module, vec![known])),
        }
    }
    found
}

/// A file of one side: sections by module, what is taken in a table, what is refused by its names.
fn file(title: &str, intro: &str, nginx: bool, pages: &Pages) -> String {
    let modules = by_module(nginx);
    let count = |here: bool| modules.iter().flat_map(|(_, rows)| rows).filter(|k| is_here(k) == here).count();
    let mut out = format!("# {title}\n\n{WRITTEN}{intro}\n\n");
    let _ = writeln!(
        out,
        "{} rows are taken, {} are refused by name. A directive that stands in several modules has a row in each.\n",
        count(true),
        count(false)
    );
    for (module, rows) in &modules {
        let (title, page, _) = pages.module(module);
        let (here, refused): (Vec<Known>, Vec<Known>) = rows.iter().partition(|k| is_here(k));
        let _ = writeln!(out, "## {title}\n\n{page}\n");
        if !here.is_empty() {
            let _ = writeln!(out, "{}", table(&here, pages));
        }
        if !refused.is_empty() {
            let why = refused.iter().find_map(|k| conf::refusal(k.name)).map_or(String::new(), |w| format!(" ({w})"));
            let _ = writeln!(out, "Refused{why}: {}.\n", names(&refused));
        }
    }
    out
}

/// Our own directives in full: what is said of each in `own.txt`, with context and arguments from the table.
fn own() -> String {
    let text = std::fs::read_to_string(folder().join("own.txt")).unwrap();
    let mut out = format!("# Ironweir's own directives\n\n{WRITTEN}");
    let mut described = Vec::new();
    let (intro, entries) = text.split_once("\n@").expect("own.txt has entries");
    out.push_str(intro.trim());
    out.push('\n');
    for entry in entries.split("\n@") {
        let (head, body) = entry.split_once('\n').expect("an entry has more than its name");
        let names: Vec<&str> = head.split_whitespace().collect();
        let _ = writeln!(out, "\n## {}\n", names.join(", "));
        let rows: Vec<Known> = all().filter(|k| k.module == "ironweir" && names.contains(&k.name)).collect();
        assert!(!rows.is_empty() || head.contains('='), "own.txt: {head} is no directive of ours");
        let (facts, prose) = body.split_once("\n\n").expect("facts, an empty line, prose");
        out.push_str("| | |\n|---|---|\n");
        for fact in facts.lines() {
            let (name, value) = fact.split_once(": ").unwrap_or_else(|| panic!("own.txt: {fact:?}"));
            let _ = writeln!(out, "| {name} | {value} |");
        }
        if let Some(first) = rows.first() {
            let _ = writeln!(out, "| context | {} |", contexts(first));
            for needed in ["syntax", "default"] {
                assert!(facts.contains(&format!("{needed}: ")), "own.txt: {head} has no {needed}");
            }
            assert!(prose.contains("```nginx"), "own.txt: {head} has no example");
        }
        let _ = writeln!(out, "\n{}", prose.trim());
        described.extend(names.into_iter().map(str::to_owned));
    }
    for known in all().filter(|k| k.module == "ironweir") {
        assert!(described.iter().any(|d| d == known.name), "own.txt says nothing of {}", known.name);
        assert!(is_here(&known), "{} is ours and not here", known.name);
    }
    out
}

#[test]
fn the_reference_is_fresh() {
    let pages = Pages::read();
    let nginx = "All directives of nginx 1.31.5 by module. A name leads to nginx's own description, which holds here; what differs on \
                 purpose is in [differences.md](../differences.md). What is refused is named by `-t` with file and line; what is \
                 taken without an effect is noted by `-t`.";
    let others = "Directives of NGINX Plus, of modules that others wrote for nginx, and of Tengine, by product. Those in tables are \
                  built in, without `load_module`; what differs is in [differences.md](../differences.md).";
    let files = [
        ("nginx.md", file("nginx's directives", nginx, true, &pages)),
        ("others.md", file("Directives of NGINX Plus and of others' modules", others, false, &pages)),
        ("ironweir.md", own()),
    ];
    for (name, text) in files {
        let path = folder().join(name);
        if std::env::var("REFERENCE").is_ok_and(|v| v == "write") {
            std::fs::write(&path, &text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().zip(written.lines()).position(|(a, b)| a != b).unwrap_or(0);
        assert!(
            written == text,
            "docs/reference/{name} is not what the tables say (line {}): REFERENCE=write cargo test --workspace --test whole reference",
            line + 1
        );
    }
}
