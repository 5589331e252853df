//! Holds the folders of this crate, and the crates of the workspace, to the arrows that ARCHITECTURE.md allows: who may name whom in a
//! `use` or a path. A new arrow is a question for the design, not a line; one that is gone leaves the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The largest set of files that all lead to each other by the paths they name, today. It may only shrink.
const LARGEST_CIRCLE: usize = 55;
/// The same with the arrows from a file to its own children, which it names without `crate::` or `super::`.
const LARGEST_WITH_CHILDREN: usize = 409;

type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A line of ARCHITECTURE.md: `name -> other other`, and the reason that may stand behind ` : `.
struct Row {
    from: String,
    to: BTreeSet<String>,
    reason: Option<String>,
}

/// The lines of the fenced block that follows `heading` in ARCHITECTURE.md.
fn rows(heading: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document is there");
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("ARCHITECTURE.md has no \"{heading}\""));
    let block = rest.split("```").nth(1).expect("a fenced block follows the heading");
    let row = |line: &str| {
        let (arrow, reason) = line.split_once(" : ").map_or((line, None), |(arrow, reason)| (arrow, Some(reason)));
        let (from, to) = arrow.split_once("->")?;
        let to = to.split_whitespace().map(str::to_owned).collect();
        Some(Row { from: from.trim().to_owned(), to, reason: reason.map(|r| r.trim().to_owned()) })
    };
    block.lines().filter_map(row).collect()
}

fn allowed(heading: &str) -> Arrows {
    let mut arrows = Arrows::new();
    for row in rows(heading) {
        arrows.entry(row.from).or_default().extend(row.to);
    }
    arrows
}

/// A file of tests only. Where the repository stands says nothing of that.
fn is_of_tests(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| name == "tests" || name.to_string_lossy().ends_with("_tests"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !is_of_tests(&path) {
            found.push(path);
        }
    }
}

/// A file's code without comments and without its tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a source");
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths that begin with `crate::` or `super::`, those in braces spelt out: `a::b` from the crate on, as far as they are words.
/// `module`: where the code stands.
fn paths(code: &str, module: &str) -> BTreeSet<String> {
    fn walk(text: &str, before: &str, found: &mut BTreeSet<String>) {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
        let path = format!("{before}{}", &text[..end]);
        match text[end..].strip_prefix("::") {
            Some(rest) if rest.starts_with('{') => {
                let (mut depth, mut start) = (0, 1);
                for (at, c) in rest.char_indices() {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    if depth == 0 || (depth == 1 && c == ',') {
                        walk(rest[start..at].trim(), &format!("{path}::"), found);
                        start = at + 1;
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            Some(rest) => walk(rest, &format!("{path}::"), found),
            None => {
                if end > 0 {
                    found.insert(path);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if rest.starts_with('{') {
            walk(&format!("crate::{rest}"), "", &mut found);
        } else {
            walk(rest, "", &mut found);
        }
    }
    let around = module.rsplit_once("::").map(|(around, _)| around);
    for (at, _) in code.match_indices("super::") {
        let begins = !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        let Some(around) = around.filter(|_| begins) else { continue };
        walk(&format!("crate::{around}::{}", &code[at + "super::".len()..]), "", &mut found);
    }
    found.into_iter().map(|p| p.trim_start_matches("crate::").to_owned()).collect()
}

/// The module that a file is: `upstream::relay`.
fn module(src: &Path, path: &Path) -> String {
    let path = path.strip_prefix(src).expect("it was found there").with_extension("");
    let words: Vec<_> = path.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let words = if words.last().is_some_and(|w| w == "mod") { &words[..words.len() - 1] } else { &words[..] };
    words.join("::")
}

fn names() -> BTreeMap<String, BTreeSet<String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let read = |f: &PathBuf| {
        let module = module(&src, f);
        let paths = paths(&code(f), &module);
        (module, paths)
    };
    files.iter().map(read).filter(|(m, _)| m != "lib").collect()
}

fn complain(actual: &Arrows, allowed: &Arrows) -> Vec<String> {
    let mut problems = Vec::new();
    for (from, to) in actual {
        let may = allowed.get(from).cloned().unwrap_or_default();
        problems.extend(to.difference(&may).map(|t| format!("{from} -> {t} is new: not allowed by ARCHITECTURE.md")));
        problems
            .extend(may.difference(to).map(|t| format!("{from} -> {t} is in ARCHITECTURE.md, but no longer there")));
    }
    problems.extend(allowed.keys().filter(|k| !actual.contains_key(*k)).map(|k| format!("{k} is not there")));
    problems
}

#[test]
fn folders_name_only_whom_they_may() {
    let names = names();
    let folder = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let folders: BTreeSet<String> = names.keys().map(|m| folder(m)).collect();
    let mut actual = Arrows::new();
    for (module, paths) in &names {
        let from = folder(module);
        let to = paths.iter().map(|p| folder(p)).filter(|to| *to != from && folders.contains(to));
        actual.entry(from.clone()).or_default().extend(to);
    }
    if std::env::var_os("ARROWS").is_some() {
        for (from, to) in &actual {
            println!("{from} -> {}", to.iter().cloned().collect::<Vec<_>>().join(" "));
        }
    }
    let problems = complain(&actual, &allowed("### Folders of `server`"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The rows stand in the order of the layers.
#[test]
fn arrows_that_run_back_up_have_a_reason() {
    let rows = rows("### Folders of `server`");
    let place = |name: &str| rows.iter().position(|row| row.from == name);
    let mut problems = Vec::new();
    for row in &rows {
        let back = row.to.iter().filter(|to| place(to) < place(&row.from));
        let has_reason = row.reason.as_ref().is_some_and(|reason| !reason.is_empty());
        problems.extend(
            back.filter(|_| !has_reason).map(|to| format!("{} -> {to} runs back up without a reason", row.from)),
        );
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn crates_name_only_whom_they_may() {
    let mut actual = Arrows::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("a folder").flatten() {
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        let name = |line: &str| line.split(['.', '=', ' ']).next().unwrap_or_default().to_owned();
        let to = dependencies.lines().map(name).filter(|d| !d.is_empty() && root().join("crates").join(d).is_dir());
        actual.insert(entry.file_name().to_string_lossy().into_owned(), to.collect());
    }
    let problems = complain(&actual, &allowed("### Crates and their arrows"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The largest set of modules that all lead to each other (strongly connected components, by two walks as Kosaraju's).
fn largest_circle(names: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    fn walk(at: usize, arrows: &[BTreeSet<usize>], seen: &mut [bool], left: &mut Vec<usize>) {
        if !std::mem::replace(&mut seen[at], true) {
            arrows[at].iter().for_each(|next| walk(*next, arrows, seen, left));
            left.push(at);
        }
    }
    let modules: Vec<&String> = names.keys().collect();
    // `keys` are in order. What a path leads to is the longest module that begins it.
    let target = |path: &str| {
        let words: Vec<_> = path.split("::").collect();
        (1..=words.len()).rev().find_map(|n| modules.binary_search(&&words[..n].join("::")).ok())
    };
    let forward: Vec<BTreeSet<usize>> =
        names.values().map(|paths| paths.iter().filter_map(|p| target(p)).collect()).collect();
    let mut backward = vec![BTreeSet::new(); modules.len()];
    for (from, to) in forward.iter().enumerate() {
        for t in to {
            backward[*t].insert(from);
        }
    }
    let (mut seen, mut order) = (vec![false; modules.len()], Vec::new());
    (0..modules.len()).for_each(|at| walk(at, &forward, &mut seen, &mut order));
    seen.fill(false);
    let mut largest = Vec::new();
    for at in order.into_iter().rev() {
        let mut circle = Vec::new();
        walk(at, &backward, &mut seen, &mut circle);
        if circle.len() > largest.len() {
            largest = circle;
        }
    }
    println!("the largest circle: {} of {} files", largest.len(), modules.len());
    largest.into_iter().map(|at| modules[at].clone()).collect()
}

#[test]
fn the_circle_of_files_does_not_grow() {
    let circle = largest_circle(&names());
    assert!(circle.len() <= LARGEST_CIRCLE, "{} files: {circle:?}", circle.len());
}

/// The children of a module that its code names as they are called there: in a path, or alone in a list that a macro makes paths of.
fn children(code: &str, module: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let begins = |at: usize| !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "_:.".contains(c));
    let in_path = |child: &str| code.match_indices(&format!("{child}::")).any(|(at, _)| begins(at));
    let alone = |child: &str| {
        let list = code.lines().filter_map(|line| line.trim().strip_suffix(','));
        list.filter_map(|line| {
            line.split_once(' ').map_or(Some(line), |(name, rest)| (rest == "shared").then_some(name))
        })
        .any(|name| name == child)
    };
    declared.filter(|child| in_path(child) || alone(child)).map(|child| format!("{module}::{child}")).collect()
}

#[test]
fn the_circle_with_children_does_not_grow() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut names, mut files) = (names(), Vec::new());
    sources(&src, &mut files);
    for file in files {
        let module = module(&src, &file);
        if let Some(paths) = names.get_mut(&module) {
            paths.extend(children(&code(&file), &module));
        }
    }
    let circle = largest_circle(&names);
    assert!(circle.len() <= LARGEST_WITH_CHILDREN, "{} files: {circle:?}", circle.len());
}

/// Every path in backticks that looks like a file of this repository exists.
#[test]
fn documents_name_files_that_are_there() {
    let mut missing = Vec::new();
    let mut documents = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|name| root().join(name)).to_vec();
    for folder in ["docs", "docs/decisions"] {
        let files = std::fs::read_dir(root().join(folder)).expect("a folder").flatten().map(|entry| entry.path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    // A document about a crate names its files from there.
    let crates = std::fs::read_dir(root().join("crates")).expect("a folder").flatten().map(|entry| entry.path());
    let mut places: Vec<PathBuf> = crates.flat_map(|path| [path.join("src"), path]).collect();
    places.extend(["", "crates", "crates/server/src/modules", "fuzz", "perf"].map(|name| root().join(name)));
    for path in documents {
        let document = path.file_name().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(&path).expect("a document");
        for word in text.split('`').skip(1).step_by(2) {
            // `t/` is where others keep their tests.
            let is_path = word.contains('/')
                && word.len() > 2
                && !word.contains([' ', '<', '{', '*', ':', '$', '@'])
                && !word.starts_with(['/', '~', '-']);
            let is_file = [".rs", ".md", ".tsv", ".py", ".sh", ".toml", "/"].iter().any(|end| word.ends_with(end));
            let exists = |p: &PathBuf| p.join(word).exists();
            if is_path && is_file && !word.starts_with("../") && !word.contains("FEATURE") && !places.iter().any(exists)
            {
                missing.push(format!("{document}: `{word}`"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
