//! Runs `ironweir stress` and reads what it writes.

use super::Program;
use std::process::{Command, Output, Stdio};

/// `ironweir stress` with a line of arguments; its output is caught.
pub fn stress(arguments: &str) -> Command {
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    command.arg("stress").args(arguments.split_ascii_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub fn run_stress(arguments: &str) -> Output {
    stress(arguments).output().expect("it starts")
}

/// What it wrote to the standard output.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The results as JSON.
pub struct Json(pub String);

impl Json {
    /// Runs it with `--json -`.
    pub fn of(arguments: &str) -> Json {
        let output = run_stress(&format!("{arguments} --quiet --json -"));
        let json = Json(text(&output));
        assert!(json.0.starts_with('{'), "{arguments}: {output:?}");
        json
    }

    /// The text behind the last of some names, such as `latency_us.p99`, each looked for behind the one before.
    pub fn raw(&self, path: &str) -> &str {
        let mut rest = self.0.as_str();
        for name in path.split('.') {
            let key = format!("\"{name}\":");
            let at = rest.find(&key).unwrap_or_else(|| panic!("{path} in {}", self.0));
            rest = &rest[at + key.len()..];
        }
        rest.split([',', '\n', '}']).next().unwrap_or_default().trim()
    }

    /// The same as a number.
    pub fn number(&self, path: &str) -> f64 {
        self.raw(path).parse().unwrap_or_else(|_| panic!("{path}: {}", self.raw(path)))
    }
}
