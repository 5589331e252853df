//! The Debian package, `make install` and what comes with them, on a copy of this machine with systemd.

use crate::harness::{Folder, Program, disposable, program, repository};
use std::process::Command;

/// A script of the tests in a copy of the machine; its last step is printed when all went well.
fn scripted(name: &str) {
    let repository = repository();
    let text = std::fs::read_to_string(repository.join("tests").join(name)).unwrap();
    let set = format!("BINARY=/tmp/ironweir REPOSITORY='{}'\n", repository.display());
    let nothing = Folder::new();
    if let Some((good, said)) = disposable(&format!("{set}{text}"), Some(nothing.path())) {
        assert!(good && said.contains("-- all done"), "{said}");
    }
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    if program("dpkg-deb").is_some() {
        scripted("package.sh");
    }
}

#[test]
fn make_install_keeps_what_is_configured() {
    let folder = Folder::new();
    let install = || {
        let mut command = Command::new(repository().join("packaging/install"));
        let out = command.arg(Program::Ironweir.path().unwrap()).arg(folder.path()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    install();
    let unit = folder.path().join("usr/local/lib/systemd/system/ironweir.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/sbin/ironweir\n") && !unit.contains("@SBIN"), "{unit}");
    let page = folder.path().join("usr/local/share/man/man1/ironweir-stress.1.gz");
    let out = Command::new("gzip").arg("-dc").arg(page).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).starts_with(".TH IRONWEIR"), "a man page");
    let own = folder.path().join("etc/ironweir/nginx.conf");
    std::fs::write(&own, "# mine\n").unwrap();
    install();
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "# mine\n");
    assert!(own.with_extension("conf.new").exists());
}

#[test]
fn the_bill_of_materials_names_what_is_built_in() {
    let Some(mut python) = program("python3") else { return };
    let out = python.arg(repository().join("packaging/sbom.py")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let bom: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (bom["bomFormat"].as_str(), bom["metadata"]["component"]["name"].as_str()),
        (Some("CycloneDX"), Some("ironweir"))
    );
    let components = bom["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|c| c["name"] == name);
    for name in ["rustls", "aws-lc-sys", "pcre2-sys", "quinn-proto", "server"] {
        assert!(named(name).is_some(), "{name}");
    }
    // What only tests need is not in the binary.
    assert!(named("h3-quinn").is_none() && named("proptest").is_none());
    let foreign = components.iter().filter(|c| c["externalReferences"].is_array());
    for c in foreign {
        assert!(c["hashes"][0]["content"].as_str().is_some_and(|h| h.len() == 64), "{c}");
        assert!(c["licenses"][0]["expression"].is_string(), "{c}");
    }
}

#[test]
fn scripts_are_sound() {
    let Some(mut shellcheck) = program("shellcheck") else { return };
    let repository = repository();
    let files = ["install", "deb", "upgrade", "debian/postinst", "debian/prerm", "debian/postrm"];
    shellcheck.args(files.map(|f| repository.join("packaging").join(f)));
    shellcheck.args(["tests/package.sh", "tests/disposable/run.sh"].map(|f| repository.join(f)));
    let out = shellcheck.args(["-s", "bash", "-e", "SC2154"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
