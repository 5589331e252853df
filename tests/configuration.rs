//! What `-t` says: the golden files `tests/conf/*.conftest`, and the command line around it.
//!
//! A golden file is a configuration, a line `---`, and what `ironweir -t` writes to standard error for it. `@DIR@` stands for
//! the directory. A line `--- NAME` begins another file beside nginx.conf. Lines before the configuration that begin with
//! `#:` say what it is about; with `#: unlike nginx 1.22: REASON` the first error need not be Debian's nginx's word for
//! word, which is compared where nginx is installed. `CONFTEST=write cargo test -p ironweir golden` writes the expected parts
//! anew: look at the difference before committing it.

use crate::harness::{Folder, Program, Site, wait};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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

#[test]
fn what_a_start_could_not_open_fails_the_test() {
    let (status, said) = Site::exactly(
        "pid @DIR@/none/pid; error_log @DIR@/none/error.log; events {}
         http { access_log @DIR@/none/access.log; client_body_temp_path /proc/none;
           server { listen 192.0.2.1:@PORT@; listen unix:@DIR@/none/socket; listen unix:@DIR@/new; } }",
    )
    .check();
    assert_eq!(status.code(), Some(1));
    let words = [
        "the configuration file @DIR@/nginx.conf syntax is ok",
        "[emerg] open() \"@DIR@/none/pid\" failed (2: No such file or directory)",
        "[emerg] mkdir() \"/proc/none\" failed (2: No such file or directory)",
        "[emerg] open() \"@DIR@/none/access.log\" failed (2: No such file or directory)",
        "[emerg] open() \"@DIR@/none/error.log\" failed (2: No such file or directory)",
        "[emerg] bind() to unix:@DIR@/none/socket failed (2: No such file or directory)",
        "configuration file @DIR@/nginx.conf test failed",
    ];
    for word in words {
        assert!(said.lines().any(|line| line == format!("nginx: {word}")), "{word}: {said}");
    }
    assert!(
        said.contains("[emerg] bind() to 192.0.2.1:") && said.contains(" failed (99: Cannot assign requested address)")
    );
    assert!(!said.contains("@DIR@/new"), "{said}");
}

#[test]
fn a_test_takes_nothing_from_a_server_that_runs() {
    let server =
        Site::http("server { listen 127.0.0.1:@PORT@ reuseport; listen unix:@DIR@/socket; return 200 served; }")
            .start();
    // The file is written once every socket listens.
    assert!(wait(|| !server.read("logs/nginx.pid").is_empty()));
    let pid = server.read("logs/nginx.pid");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            while !over.load(Relaxed) {
                assert_eq!(server.get("/").text(), "served");
            }
        });
        for _ in 0..20 {
            let mut command = Command::new(Program::under_test().path().unwrap());
            let out = command.arg("-t").arg("-p").arg(server.dir()).args(["-c", "nginx.conf"]).output().unwrap();
            assert!(out.status.success(), "{out:?}");
        }
        over.store(true, Relaxed);
        clients.join().expect("every client is answered");
    });
    assert_eq!(server.read("logs/nginx.pid"), pid);
    assert!(UnixStream::connect(server.dir().join("socket")).is_ok());
}

#[test]
fn the_log_of_the_command_line_stands_in_for_one_that_is_not_configured() {
    let folder = Folder::new();
    folder.write("nginx.conf", "pid pid; events {}");
    let check = |log: &str| {
        let mut command = Command::new(Program::under_test().path().unwrap());
        let out =
            command.arg("-t").arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", log]).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (good, said) = check("none/own.log");
    let refused = |line: &str| line.contains("[emerg]") && line.contains("/none/own.log\" failed (2: ");
    assert!(!good && said.lines().any(refused), "{said}");
    assert!(check("own.log").0 && folder.path().join("own.log").exists());
    assert!(check("stderr").0, "{:?}", check("stderr"));
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
