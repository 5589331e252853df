//! The Core Rule Set with its regression tests: a Go module that `.ci/setup peers` fetches into Go's cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use waf::{Disk, Rules, Source};

/// The version that is asked for; `.ci/setup` names the same.
pub(crate) const VERSION: &str = "v4.25.0";

/// Where the module is. None: it is not there, and a line says so.
pub(crate) fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("GOMODCACHE").map(PathBuf::from).or_else(|| {
        let output = Command::new("go").args(["env", "GOMODCACHE"]).output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    });
    let home = std::env::var_os("HOME").map(|h| Path::new(&h).join("go/pkg/mod"));
    let found = [cache, home]
        .into_iter()
        .flatten()
        .map(|cache| cache.join(format!("github.com/corazawaf/coraza-coreruleset/v4@{VERSION}")))
        .find(|folder| folder.join("rules").is_dir());
    if found.is_none() {
        eprintln!("LEFT OUT: the Core Rule Set is not here; `.ci/setup peers` fetches it where there is Go");
    }
    found
}

/// The rules with what a test sets between the setup and them.
pub(crate) fn rules(folder: &Path, between: &str) -> Rules {
    rules_and(folder, between, "")
}

/// The same with what an operator writes behind the rules.
pub(crate) fn rules_and(folder: &Path, between: &str, behind: &str) -> Rules {
    let text = format!(
        "Include @coraza.conf-recommended\nInclude @crs-setup.conf.example\n{between}\nInclude @owasp_crs/*.conf\n{behind}\n"
    );
    let name = folder.join("rules/main.conf");
    let source = Source { name: &name.to_string_lossy(), text: text.as_bytes() };
    match Rules::load(&[source], &Disk) {
        Ok(rules) => rules,
        Err(problems) => panic!("{}", problems.iter().map(|p| format!("{p}\n")).collect::<String>()),
    }
}
