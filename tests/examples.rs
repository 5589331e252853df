//! The air quality monitor of `examples/air`: its reader over a pseudo-terminal, its numbers, its page in a browser through
//! Ironweir. That all examples do what their READMEs say is seen by `documents.rs`.

use crate::harness::{Beside, Folder, Port, Program, Site, in_chromium, program, repository, wait};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn python() -> Option<Command> {
    let mut command = program("python3")?;
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    Some(command)
}

#[test]
fn the_monitor_reads_whatever_a_serial_line_says() {
    let Some(mut python) = python() else { return };
    let out = python.arg(repository().join("tests/air.py")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// The example's program on a database with a day of readings; where it listens.
fn monitor(folder: &Path) -> Option<(Beside, u16)> {
    let air = repository().join("examples/air");
    let db = folder.join("air.db");
    let history =
        python()?.arg(air.join("simulate.py")).args(["--history", "24", "--purifier", "10"]).output().unwrap();
    std::fs::write(folder.join("history.csv"), &history.stdout).unwrap();
    let load =
        python()?.arg(air.join("air.py")).args(["load", "--db"]).arg(&db).arg(folder.join("history.csv")).output();
    assert!(load.unwrap().status.success());
    let port = Port::reserve();
    let mut serve = python()?;
    serve.arg(air.join("air.py")).args(["serve", "--db"]).arg(&db).args(["--http", &port.number.to_string()]);
    let child = Beside(serve.spawn().unwrap());
    assert!(wait(|| std::net::TcpStream::connect(("127.0.0.1", port.number)).is_ok()));
    Some((child, port.number))
}

/// The configuration of an example, its ports changed, in a folder of the test's own.
fn site_of(example: &str, from: &[(&str, u16)], listen: &str) -> Site {
    let text = std::fs::read_to_string(repository().join("examples").join(example).join("nginx.conf")).unwrap();
    assert!(text.contains(listen), "{example}: {listen}");
    let mut text = text.replace(listen, "listen 127.0.0.1:@PORT@;");
    for (upstream, port) in from {
        assert!(text.contains(upstream), "{example}: {upstream}");
        text = text.replace(upstream, &format!("127.0.0.1:{port}"));
    }
    Site::exactly(&format!("daemon off; pid @DIR@/logs/nginx.pid;\n{text}"))
}

#[test]
fn the_page_shows_a_day_and_what_the_purifier_did() {
    let folder = Folder::new();
    let Some((_monitor, port)) = monitor(folder.path()) else { return };
    let Some(mut openssl) = program("openssl") else { return };
    let hash = openssl.args(["passwd", "-6", "secret"]).output().unwrap();
    let users = format!("ann:{}", String::from_utf8_lossy(&hash.stdout));
    let server = site_of("air", &[("127.0.0.1:3010", port)], "listen 8093;").file("marks.users", users);
    let server = server.start_as(Program::Ironweir).unwrap();
    assert_eq!(server.get("/api/marks").status, 403, "marks are made by POST alone");
    let Some(mut script) = in_chromium("air.mjs") else { return };
    let pictures = std::env::var_os("DASHBOARD_PICTURES").map_or_else(|| folder.path().to_owned(), PathBuf::from);
    let url = format!("http://127.0.0.1:{}/", server.port);
    let out = script.arg(&url).arg(&pictures).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    let has = |name: &str, text: &str| assert!(said[name].as_str().is_some_and(|t| t.contains(text)), "{name}: {said}");
    has("now", "small");
    has("rows", "less");
    has("notes", "times an hour");
    has("pressed", "6 h");
    assert_eq!((&said["said"], &said["errors"]), (&"".into(), &serde_json::json!([])), "{said}");
    assert!(said["overflow"].as_array().unwrap().iter().all(|o| o.as_i64() <= Some(0)), "{said}");
    assert!(pictures.join("air-narrow.png").exists());
}
