//! `ironweir canary`: the command line of a reload that serves a share of new connections first. What is asked for goes to the running
//! server (`run`, which the binary gives); the server judges (`trial`), and takes it back when this command ends, however that comes.

use crate::command::{WARNING, finish, print};
use crate::options::CANARY;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The share of new connections, in percent, unless it is said.
const SHARE: f64 = 5.0;
/// How long, unless it is said.
const TIME: Duration = Duration::from_secs(60);
/// Requests of either configuration before anything is judged, unless it is said.
const MINIMUM: f64 = 20.0;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// The new configuration, absolute.
    pub file: PathBuf,
    /// `-p`, absolute.
    pub prefix: Option<PathBuf>,
    /// Ten-thousandths of new connections.
    pub share: u32,
    /// Requests of either configuration before anything is judged.
    pub minimum: u64,
    /// How long it serves its share before it is kept.
    pub time: Duration,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The new configuration runs.
    Kept(String),
    /// The old one runs, and why.
    TakenBack(String),
}

/// Runs the command. `arguments` are those behind `canary`; `run` asks the server, and says how it goes to the function it is given.
pub fn main(
    arguments: impl Iterator<Item = String>,
    version: &str,
    run: impl FnOnce(&Wish, &mut dyn FnMut(&str)) -> Result<End, String>,
) -> ExitCode {
    // nginx's own letters mean the same here.
    let words = arguments.map(|a| match a.as_str() {
        "-c" => "--conf".to_owned(),
        "-p" => "--prefix".to_owned(),
        _ => a,
    });
    finish(
        "canary",
        CANARY.parse(words).and_then(|o| {
            if let Some(text) = CANARY.about(&o, version) {
                print(&text);
                return Ok(0);
            }
            if let Some(word) = o.words.first() {
                return Err(format!("{word}: not expected (ironweir canary -c NEW.conf)"));
            }
            let here = std::env::current_dir().map_err(|e| format!("the current directory: {e}"))?;
            let file = o.value("conf").ok_or("-c FILE is required: the new configuration")?;
            let share = percent(o.value("share"), SHARE)?;
            let wish = Wish {
                file: here.join(file),
                prefix: o.value("prefix").map(|p| here.join(p)),
                share,
                minimum: o.number("min", MINIMUM)? as u64,
                time: o.duration("for", TIME)?,
            };
            Ok(match run(&wish, &mut |line| print(&format!("{line}\n")))? {
                End::Kept(text) => {
                    print(&format!("kept: {text}\n"));
                    0
                }
                End::TakenBack(text) => {
                    print(&format!("taken back: {text}\n"));
                    WARNING
                }
            })
        }),
    )
}

/// `5%`, `5`, `0.5%` in ten-thousandths.
fn percent(text: Option<&str>, default: f64) -> Result<u32, String> {
    let wrong = |text: &str| format!("--share {text}: a part of new connections (0.01% to 100%)");
    let value = match text {
        None => default,
        Some(text) => text.trim_end_matches('%').trim().parse::<f64>().map_err(|_| wrong(text))?,
    };
    let parts = (value * 100.0).round();
    if (1.0..=10_000.0).contains(&parts) { Ok(parts as u32) } else { Err(wrong(text.unwrap_or_default())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read() {
        assert_eq!(
            ["5%", "0.5", "100%", "0.01%"].map(|t| percent(Some(t), 5.0).ok()),
            [Some(500), Some(50), Some(10_000), Some(1)]
        );
        assert!(["0", "101%", "x", "nan", "-1"].iter().all(|t| percent(Some(t), 5.0).is_err()));
        assert_eq!(percent(None, 5.0), Ok(500));
    }
}
