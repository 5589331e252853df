//! The documents, taken literally: every block of a configuration is loaded, every block for a shell is run, every link leads
//! somewhere. Each document runs from its first block to its last in a copy of this machine (`harness/disposable.rs`).
//!
//! A block says what it is: `nginx` is loaded (a part is put where it belongs first), `sh` is run, others are not tried. What
//! a reader does between blocks is said by a comment in the line before:
//!
//! - `<!-- file: PATH -->`: the block is written to the file;
//! - `<!-- background: PORT -->`: the command goes on running; the next begins when the port accepts, or the file is there;
//! - `<!-- not run: REASON -->`: left out;
//! - `<!-- needs: PROGRAM -->`, anywhere: the document is left out, aloud, where the program is not installed.

use crate::harness::{Folder, Program, disposable, program, repository};
use conf::Contexts;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What stands behind the fence of a block.
const LANGUAGES: &[&str] =
    &["nginx", "sh", "text", "json", "rust", "yaml", "ini", "python", "seclang", "lua", "dockerfile"];
/// So many blocks may go untried, each with its reason.
const MOST_NOT_RUN: usize = 12;

/// What a comment before a block says.
#[derive(Clone, Debug, PartialEq)]
enum Mark {
    None,
    File(String),
    Background(String),
    NotRun,
}

/// A block between fences.
#[derive(Clone, Debug)]
struct Block {
    /// The document and the line of its fence.
    place: String,
    language: String,
    text: String,
    mark: Mark,
}

/// All documents that people read.
fn documents() -> Vec<PathBuf> {
    let root = repository();
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"].map(|f| root.join(f)).into();
    let mut folders = vec![root.join("docs"), root.join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("node_modules") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A document's name below the repository.
fn name(path: &Path) -> String {
    path.strip_prefix(repository()).unwrap_or(path).display().to_string()
}

fn blocks(path: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    let (mut mark, mut open) = (Mark::None, None::<Block>);
    for (number, line) in text.lines().enumerate() {
        match (open.take(), line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let place = format!("{}:{}", name(path), number + 1);
                let mark = std::mem::replace(&mut mark, Mark::None);
                open = Some(Block { place, language: language.trim().to_owned(), text: String::new(), mark });
            }
            (Some(block), Some(_)) => found.push(block),
            (Some(mut block), None) => {
                let _ = writeln!(block.text, "{line}");
                open = Some(block);
            }
            (None, None) if !line.trim().is_empty() => mark = marked(line, &name(path), number + 1),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block without an end", name(path));
    found
}

fn marked(line: &str, document: &str, number: usize) -> Mark {
    let Some(inner) = line.trim().strip_prefix("<!--").and_then(|l| l.strip_suffix("-->")) else { return Mark::None };
    let (kind, value) = inner.split_once(':').map_or((inner.trim(), ""), |(k, v)| (k.trim(), v.trim()));
    assert!(!value.is_empty(), "{document}:{number}: a mark says more than \"{inner}\"");
    match kind {
        "file" => Mark::File(value.to_owned()),
        "background" => Mark::Background(value.to_owned()),
        "not run" => Mark::NotRun,
        "needs" => Mark::None,
        _ => panic!("{document}:{number}: no such mark: {inner}"),
    }
}

#[test]
fn every_block_says_what_it_is() {
    let all: Vec<Block> = documents().iter().flat_map(|d| blocks(d)).collect();
    for block in &all {
        assert!(LANGUAGES.contains(&&*block.language), "{}: \"{}\" says not what it is", block.place, block.language);
    }
    let left: Vec<_> = all.iter().filter(|b| b.mark == Mark::NotRun).map(|b| &b.place).collect();
    let of = |language: &str| all.iter().filter(|b| b.language == language && b.mark != Mark::NotRun).count();
    println!("{} configurations, {} for a shell, {} not run", of("nginx"), of("sh"), left.len());
    assert!(left.len() <= MOST_NOT_RUN, "not run: {left:?}");
}

/// Where a part of a configuration may stand, from the outside to the inside: what opens it and what closes it.
const PLACES: &[(Contexts, &str, &str)] = &[
    (Contexts::MAIN, "", ""),
    (Contexts::HTTP, "http {\n", "}\n"),
    (Contexts::SERVER, "http { server { listen 8099;\n", "} }\n"),
    (Contexts::LOCATION, "http { server { listen 8099; location /part/ {\n", "} } }\n"),
    (Contexts::UPSTREAM, "http { upstream part {\n", "} }\n"),
    (Contexts::STREAM, "stream {\n", "}\n"),
    (Contexts::STREAM_SERVER, "stream { server { listen 8099;\n", "} }\n"),
];

/// A directive of the outermost level with its text, as far as its end.
struct Statement<'t> {
    name: &'t str,
    block: bool,
    text: &'t str,
}

impl Statement<'_> {
    fn may_stand(&self, place: Contexts) -> bool {
        let known = conf::lookup(self.name.as_bytes());
        known.iter().any(|known| known.contexts.intersects(place) && known.block == self.block)
    }
}

/// Cuts a text into its outermost directives; words in quotes and comments hold no braces.
fn statements(text: &str) -> Vec<Statement<'_>> {
    let (mut found, mut begin, mut depth, mut block) = (Vec::new(), 0, 0, false);
    let (mut quote, mut comment) = (None::<char>, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if comment => comment = c != '\n',
            (Some(open), _) => quote = (c != open).then_some(open),
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') => comment = true,
            (None, '{') => (depth, block) = (depth + 1, true),
            (None, '}') => depth -= 1,
            _ => {}
        }
        if quote.is_none() && !comment && depth == 0 && (c == ';' || c == '}') {
            let text = &text[begin..=at];
            let code = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#')).unwrap_or_default();
            let name = code.split([' ', ';', '{']).next().unwrap_or_default();
            found.push(Statement { name, block, text });
            (begin, block) = (at + 1, false);
        }
    }
    found
}

/// A whole configuration around what a document shows: `events` if it has none, and the block that its directives stand in.
/// Directives of different places (`upstream` beside `location`) each get theirs.
fn whole(block: &Block) -> String {
    let statements = statements(&block.text);
    assert!(!statements.is_empty(), "{}: nothing that ends", block.place);
    let fits = PLACES.iter().find(|(place, ..)| statements.iter().all(|s| s.may_stand(*place)));
    let events = if statements.iter().any(|s| s.name == "events") { "" } else { "events {}\n" };
    match fits {
        Some((_, open, close)) => format!("{events}{open}{}{close}", block.text),
        None => {
            let part = |http: bool| {
                let chosen = statements.iter().filter(|s| s.may_stand(Contexts::HTTP) == http);
                chosen.map(|s| s.text).collect::<Vec<_>>().join("\n")
            };
            format!("{events}http {{\n{}\nserver {{ listen 8099;\n{}\n}} }}\n", part(true), part(false))
        }
    }
}

/// What the documents take for granted: nginx's folder, a certificate, the names in it, users.
const GIVEN: &str = r#"
set -eu -o pipefail
mkdir -p /etc/nginx /var/lib/ironweir /var/cache/ironweir /var/log/ironweir /etc/ssl/example
for file in mime.types fastcgi_params; do [ -e /etc/nginx/$file ] || cp "$REPOSITORY/conf/$file" /etc/nginx/; done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=example.com \
    -addext subjectAltName=DNS:example.com,DNS:www.example.com -keyout /etc/ssl/example/example.com.key -out /etc/ssl/example/example.com.pem 2>/dev/null
cp /etc/ssl/example/example.com.pem /etc/ssl/example/ca.pem
mkdir -p /etc/nginx/waf/crs/rules
touch /etc/nginx/waf/crs/crs-setup.conf /etc/nginx/waf/crs/rules/none.conf
[ -e /etc/nginx/nginx.conf ] || echo 'events {} http { server { listen 80; } }' >/etc/nginx/nginx.conf
"#;

/// A text as a file inside the copy.
fn write_file(path: &str, text: &str) -> String {
    format!("mkdir -p \"$(dirname '{path}')\"\ncat >'{path}' <<'END-OF-THE-BLOCK'\n{text}END-OF-THE-BLOCK\n")
}

fn given() -> String {
    format!("REPOSITORY='{}'\n{GIVEN}", repository().display())
}

#[test]
fn every_configuration_loads() {
    let all: Vec<Block> = documents().iter().flat_map(|d| blocks(d)).filter(|b| b.mark != Mark::NotRun).collect();
    let mut script = given();
    // What blocks include or load stands in other blocks.
    for block in all.iter().filter(|b| b.language != "nginx") {
        if let Mark::File(path) = &block.mark {
            script.push_str(&write_file(path, &block.text));
        }
    }
    script.push_str("bad=0\n");
    let configurations: Vec<&Block> = all.iter().filter(|b| b.language == "nginx").collect();
    assert!(!configurations.is_empty());
    for (number, block) in configurations.iter().enumerate() {
        let folder = format!("/tmp/blocks/{number}");
        script.push_str(&write_file(&format!("{folder}/nginx.conf"), &whole(block)));
        let _ = write!(
            script,
            "mkdir -p {folder}/logs\ncp /etc/nginx/mime.types /etc/nginx/fastcgi_params {folder}/\n\
             ironweir -t -q -p {folder} -c nginx.conf >{folder}/said 2>&1 || {{ bad=1; echo '== {}'; cat {folder}/said; }}\n",
            block.place
        );
    }
    script.push_str("exit $bad\n");
    let Some((good, said)) = disposable(&script, None) else { return };
    assert!(good, "{said}");
}

/// How a reader's commands are run: an error of HTTP is one, and what takes ten seconds takes half of one.
const READER: &str = r#"
# As in a shell of people: the last part of a pipe decides.
set +o pipefail
# Nothing is fetched here: apt need not read what there is elsewhere. Nor is the index of man pages made anew.
rm -rf /var/lib/man-db/auto-update /var/lib/apt/lists/*
# Not in root's home: the worker's user reads there.
cp -r "$REPOSITORY/examples" "$REPOSITORY/conf" /srv/reader/
cd /srv/reader
at=
trap 'echo "FAILED after $at"' EXIT
curl() { command curl -fsS "$@"; }
ironweir() {
    local status=0
    case "${1:-}" in
    top) command ironweir top --once "${@:2}" ;;
    stress)
        local arguments=()
        for argument in "${@:2}"; do
            case "$argument" in
            -d[0-9]*) argument=-d500ms ;;
            *s:*[0-9] | *m:*[0-9]) argument=$(echo "$argument" | sed -E 's/[0-9]+[sm]:/500ms:/g') ;;
            esac
            arguments+=("$argument")
        done
        case " $* " in *" --find-max "*) arguments=(--step 200ms "${arguments[@]}") ;; esac
        # 5: the machine was busy, which the tool says.
        command ironweir stress "${arguments[@]}" || status=$?
        [ "$status" = 5 ] || return "$status"
        ;;
    *) command ironweir "$@" ;;
    esac
}
until_there() {
    for _ in $(seq 400); do
        case "$1" in
        /*) if [ -e "$1" ]; then return 0; fi ;;
        *) if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return 0; fi ;;
        esac
        sleep 0.05
    done
    echo "never there: $1"
    cat /tmp/background
    return 1
}
"#;

/// Makes the package that documents install.
fn make_package(folder: &Path) {
    let mut deb = std::process::Command::new(repository().join("packaging/deb"));
    deb.arg(Program::Ironweir.path().unwrap()).arg(folder);
    let out = deb.envs([("COMPRESSION", "none"), ("STRIP", "yes")]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// One document as a script.
fn script(blocks: &[Block]) -> String {
    let mut out = given();
    out.push_str("mkdir -p /srv/reader\n[ ! -e /tmp/given ] || cp /tmp/given/*.deb /srv/reader/\n");
    out.push_str(READER);
    for block in blocks {
        let _ = writeln!(out, "at='{}'\necho \"== $at\"", block.place);
        match (&block.mark, &*block.language) {
            (Mark::File(path), _) => out.push_str(&write_file(path, &block.text)),
            (Mark::Background(port), "sh") => {
                let _ = write!(out, "{{\n{}}} >/tmp/background 2>&1 &\nuntil_there {port}\n", block.text);
            }
            // A list whose first part fails does not end a shell: its status is looked at.
            (_, "sh") => {
                let _ = writeln!(out, "{}[ $? = 0 ]", block.text);
            }
            _ => {}
        }
    }
    out.push_str("trap - EXIT\necho '== the end'\n");
    out
}

/// Whether what a document needs is installed; said aloud where it is not.
fn has_what_it_needs(document: &str) -> bool {
    let text = std::fs::read_to_string(repository().join(document)).unwrap();
    let needed: Vec<&str> = text.split("<!-- needs: ").skip(1).filter_map(|rest| rest.split(" -->").next()).collect();
    needed.iter().all(|thing| match thing.strip_prefix('/') {
        Some(_) if Path::new(thing).exists() => true,
        Some(_) => {
            println!("{document} needs {thing}: left out");
            false
        }
        None => program(thing).is_some(),
    })
}

/// A document that is run: its name, the script, and whether it installs the package.
struct Run {
    name: String,
    script: String,
    installs: bool,
}

/// All that have commands and what they need; those whose name has the text of `DOCUMENT`, if that is set.
fn runs() -> Vec<Run> {
    let wanted = std::env::var("DOCUMENT").unwrap_or_default();
    let read = |path: &PathBuf| {
        let blocks: Vec<Block> = blocks(path).into_iter().filter(|b| b.mark != Mark::NotRun).collect();
        let name = name(path);
        let of_shell = |text: &str| blocks.iter().any(|b| b.language == "sh" && b.text.contains(text));
        let is_run = of_shell("") && name.contains(&wanted) && has_what_it_needs(&name);
        is_run.then(|| Run { script: script(&blocks), installs: of_shell("ironweir_"), name })
    };
    documents().iter().filter_map(read).collect()
}

#[test]
fn every_command_runs() {
    let runs = runs();
    assert!(!runs.is_empty());
    let package = Folder::new();
    if runs.iter().any(|r| r.installs) {
        make_package(package.path());
    }
    let failed = |run: &Run| {
        let began = std::time::Instant::now();
        let seen = disposable(&run.script, run.installs.then(|| package.path()));
        println!("{}: {:.1} s", run.name, began.elapsed().as_secs_f32());
        let bad = seen.filter(|(good, said)| !good || !said.contains("== the end"));
        bad.map(|(_, said)| format!("=== {}\n{said}", run.name))
    };
    // Two at a time: most of it is waiting.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let some = || {
        let take = || runs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        std::iter::from_fn(take).filter_map(failed).collect::<Vec<String>>()
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads = [scope.spawn(some), scope.spawn(some)];
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A heading as a link names it.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let text: String = text.split("```").step_by(2).collect();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, place) = link.split_once('#').map_or((link, None), |(f, p)| (f, Some(p)));
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            let headings = || {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                text.lines()
                    .filter(|l| l.starts_with('#'))
                    .map(|l| anchor(l.trim_start_matches('#')))
                    .collect::<Vec<_>>()
            };
            if !target.exists() || place.is_some_and(|p| !headings().contains(&p.to_owned())) {
                dead.push(format!("{}: {link}", name(&document)));
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}
