//! What `-t` says: the golden files `tests/conf/*.conftest`, and the command line around it.
//!
//! A golden file is a configuration, a line `---`, and what `ironweir -t` writes to standard error for it. `@DIR@` stands for
//! the directory. A line `--- NAME` begins another file beside nginx.conf. Lines before the configuration that begin with
//! `#:` say what it is about; with `#: unlike nginx 1.22: REASON` the first error need not be Debian's nginx's word for
//! word, which is compared where nginx is installed. `CONFTEST=write cargo test -p ironweir golden` writes the expected parts
//! anew: look at the difference before committing it.

use crate::harness::{Program, Site};
use std::path::{Path, PathBuf};

struct Golden {
    path: PathBuf,
    /// All up to the line `---`.
    given: String,
    expected: String,
}

fn goldens() -> Vec<Golden> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conf");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "conftest"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let (given, expected) = text.split_once("\n---\n").unwrap_or((text.trim_end(), ""));
        Golden { given: format!("{given}\n"), expected: expected.to_owned(), path }
    };
    paths.into_iter().map(read).collect()
}

impl Golden {
    fn site(&self) -> Site {
        let mut parts = self.given.split("\n--- ");
        let mut site = Site::exactly(parts.next().unwrap_or_default());
        for part in parts {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            site = site.file(name.trim(), text);
        }
        site
    }

    fn unlike_nginx(&self) -> bool {
        self.given.lines().any(|l| l.starts_with("#: unlike nginx 1.22: "))
    }
}

fn first_error(text: &str) -> Option<&str> {
    // Without root's rights nginx cannot open the pid file it was built with; we were not asked to.
    let is_error = |l: &&str| l.starts_with("nginx: [emerg]") || l.starts_with("nginx: [crit]");
    text.lines().find(|l| is_error(l) && !l.ends_with("(13: Permission denied)"))
}

#[test]
fn golden_files() {
    let write = std::env::var("CONFTEST").is_ok_and(|v| v == "write");
    let mut wrong = Vec::new();
    for golden in goldens() {
        let (_, said) = golden.site().check();
        if write {
            std::fs::write(&golden.path, format!("{}---\n{said}", golden.given)).unwrap();
        } else if said != golden.expected {
            let name = golden.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            wrong.push(format!("== {name}\nexpected:\n{}said:\n{said}", golden.expected));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_error_is_nginx_s() {
    let mut wrong = Vec::new();
    for golden in goldens().iter().filter(|g| !g.unlike_nginx()) {
        let Some((_, nginx)) = golden.site().check_as(Program::Nginx) else {
            println!("nginx is not installed: not compared");
            return;
        };
        if nginx.contains("unknown directive \"stream\"") {
            // A module of its own in many packages, and not loaded.
            continue;
        }
        if first_error(&nginx) != first_error(&golden.expected) {
            let name = golden.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            wrong.push(format!(
                "== {name}\nnginx:    {:?}\nexpected: {:?}",
                first_error(&nginx),
                first_error(&golden.expected)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_status_that_scripts_can_use() {
    assert!(Site::exactly("events {}\n").check().0.success());
    assert_eq!(Site::exactly("event {}\n").check().0.code(), Some(1));
}

/// nginx's table of directives: none of them may be called unknown.
#[test]
fn every_directive_of_nginx_is_known() {
    let Some(table) = crate::harness::shared("data/nginx-directives.tsv") else { return };
    let rows = table.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split('\t').next());
    let mut names: Vec<&str> = rows.collect();
    names.dedup();
    assert!(names.len() > 700);
    let lines: String = names.iter().map(|name| format!("{name};\n")).collect();
    // A batch is smaller than the number of errors that are reported.
    for batch in lines.lines().collect::<Vec<_>>().chunks(50) {
        let (_, said) = Site::exactly(&format!("events {{}}\n{}\n", batch.join("\n"))).check();
        assert!(!said.contains("unknown directive"), "{said}");
    }
}
