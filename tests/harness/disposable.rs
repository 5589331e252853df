//! A copy of this machine for scripts that install, start and remove things: `tests/disposable/run.sh` makes it, and nothing
//! of it stays.

use super::{Folder, Program};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What `run.sh` ends with where this machine cannot make copies of itself.
const CANNOT: i32 = 77;

/// Runs a script of bash as root in the copy. The program under test is `/tmp/ironweir` there, and without `given` installed as
/// `/usr/sbin/ironweir`; a folder that is `given` is `/tmp/given`. Gives whether the script ended well and what it wrote; nothing,
/// said aloud, where this machine cannot.
pub fn disposable(script: &str, given: Option<&Path>) -> Option<(bool, String)> {
    let folder = Folder::new();
    folder.write("script", script);
    folder.make("copy");
    let out = Command::new(repository().join("tests/disposable/run.sh"))
        .arg(folder.path().join("copy"))
        .arg(Program::Ironweir.path()?)
        .arg(folder.path().join("script"))
        .args(given)
        .env("INSTALLED", if given.is_some() { "no" } else { "yes" })
        .stdin(Stdio::null())
        .output()
        .expect("the script of the harness runs");
    if out.status.code() == Some(CANNOT) {
        println!("no copy of this machine (root, namespaces, overlayfs and systemd are needed): left out");
        return None;
    }
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Some((out.status.success(), said))
}

/// The folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tests are in it")
}
