//! `dns_hook`: a program of the operator's that publishes a record and takes it back, for `dns-01` (RFC 8555 section 8.4). Only it
//! knows how the zone is changed. It is run without a shell, with a plain environment, and killed when it takes too long.

use super::client::Failure;
use super::jws::base64url;
use aws_lc_rs::digest::{SHA256, digest};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the program may take, until the record can be seen everywhere.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// So much of what it says about a failure goes to the log.
const MAX_WORDS: u64 = 1024;
/// Where programs that it calls are found.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A record that is published until this is dropped.
#[derive(Debug)]
pub(super) struct Record {
    hook: PathBuf,
    name: String,
    value: String,
}

/// Has the record published that proves control of a name. `authorization`: the key authorization.
pub(super) async fn publish(hook: &Path, domain: &str, authorization: &str) -> Result<Record, Failure> {
    let name = format!("_acme-challenge.{domain}");
    let value = base64url(digest(&SHA256, authorization.as_bytes()).as_ref());
    // A program that fails half way may have left something behind: it is asked to clean up as well.
    let record = Record { hook: hook.to_owned(), name, value };
    let (hook, name, value) = (record.hook.clone(), record.name.clone(), record.value.clone());
    let ran = tokio::task::spawn_blocking(move || run(&hook, "present", &name, &value)).await;
    match ran {
        Ok(Ok(())) => Ok(record),
        Ok(Err(text)) => Err(Failure::new(text)),
        Err(_) => Err(Failure::new("the program for the record could not be waited for")),
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Record { hook, name, value } = self;
        let (hook, name, value) = (std::mem::take(hook), std::mem::take(name), std::mem::take(value));
        let clean = move || {
            if let Err(text) = run(&hook, "cleanup", &name, &value) {
                crate::log::process_line(crate::log::error::Level::Warn, format_args!("acme: {text}"));
            }
        };
        // Nobody waits for it.
        let started = std::thread::Builder::new().name("acme hook".into()).spawn(clean);
        drop(started);
    }
}

/// `PROGRAM present|cleanup NAME VALUE`
fn run(hook: &Path, action: &str, name: &str, value: &str) -> Result<(), String> {
    let shown = hook.display();
    let failed = |e: io::Error| format!("\"{shown} {action} {name}\" could not be run ({})", crate::log::os_error(&e));
    let mut command = Command::new(hook);
    command.args([action, name, value]).env_clear().env("PATH", PATH).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let stderr = child.stderr.take();
    let words = std::thread::spawn(move || {
        let mut words = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.by_ref().take(MAX_WORDS).read_to_end(&mut words);
            // What is more is read, so that the program can end, and forgotten.
            let _ = io::copy(&mut stderr, &mut io::sink());
        }
        words
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("\"{shown} {action} {name}\" took more than {} s", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(LOOK),
        }
    };
    if status.success() {
        return Ok(());
    }
    let words = words.join().unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let words = wire::terminal::plain(words.trim());
    Err(format!("\"{shown} {action} {name}\" failed ({status}): {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_is_run_with_its_words_and_its_failure_is_told() {
        let folder = std::env::temp_dir().join(format!("ironweir-hook-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is room");
        let (hook, out) = (folder.join("hook"), folder.join("out"));
        let script = format!(
            "#!/bin/sh\n[ $1 = present ] || {{ echo no zone >&2; exit 3; }}\necho $* $HOME > {}\n",
            out.display()
        );
        std::fs::write(&hook, script).expect("it can be written");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        assert_eq!(run(&hook, "present", "_acme-challenge.a.test", "x; rm"), Ok(()));
        assert_eq!(std::fs::read_to_string(&out).expect("it ran"), "present _acme-challenge.a.test x; rm\n");
        let failed = run(&hook, "cleanup", "_acme-challenge.a.test", "x").expect_err("status 3");
        assert!(failed.contains("exit status: 3") && failed.ends_with("no zone"), "{failed}");
        assert!(run(&folder.join("nothing"), "present", "a", "b").is_err());
        let _ = std::fs::remove_dir_all(&folder);
    }
}
