//! The committed objects are what their sources say: a fresh build by the same clang is the same, byte for byte. Left out, aloud,
//! where another clang, or none, is installed: the code that another version generates differs, and the program that is shipped
//! is the one that was tested.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// The one that built what is committed.
const CLANG: &str = "clang version 14.";

#[test]
fn the_committed_objects_are_fresh() {
    let version =
        Command::new("clang").arg("--version").output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let tools = Command::new("llvm-strip").arg("--version").output().is_ok()
        && Path::new("/usr/include/bpf/bpf_helpers.h").exists();
    if !tools || !version.as_ref().is_ok_and(|text| text.contains(CLANG)) {
        println!("LEFT OUT: the committed objects are not compared: needs {CLANG}*, llvm-strip and libbpf-dev");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let folder = std::env::temp_dir().join(format!("ironweir-l4-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let built = Command::new(here.join("build.sh")).arg(&folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for name in ["l4.o", "decap.o", "measure.o"] {
        let (fresh, committed) = (std::fs::read(folder.join(name)).unwrap(), std::fs::read(here.join(name)).unwrap());
        assert!(fresh == committed, "{name} is not what its sources say: run crates/l4/bpf/build.sh");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
