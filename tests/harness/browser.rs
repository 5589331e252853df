//! Chromium, and scripts that drive it (tests/browser, by playwright-core). Both are peers: a test that needs them is left out, aloud, where they are not there.

use std::path::Path;
use std::process::Command;

/// Chromium's program.
pub fn chromium() -> Option<&'static str> {
    let programs = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found = programs.into_iter().find(|p| Path::new(p).exists());
    if found.is_none() {
        println!("chromium is not installed: left out");
    }
    found
}

/// A script of tests/browser, with Chromium's path as its first argument.
pub fn in_chromium(script: &str) -> Option<Command> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/browser").join(script);
    let chromium = chromium()?;
    if !script.with_file_name("node_modules/playwright-core").exists() {
        println!("playwright-core is not installed (npm ci --prefix tests/browser): left out");
        return None;
    }
    let mut command = Command::new("node");
    command.arg(script).arg(chromium);
    Some(command)
}
