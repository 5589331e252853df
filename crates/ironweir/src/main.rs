//! Ironweir's binary: command lines only.

mod allocator;
mod cli;
mod demo;
mod demo_backends;
mod pages;

use conf::{Problem, Severity, Source};
use server::config::read::{Reading, Which, read};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    server::memory::released_by(allocator::release);
    if let Some(code) = about(&std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>()) {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == "demo") {
        return demo::run(std::env::args_os().skip(2));
    }
    if let Some(name) = std::env::args().nth(1)
        && let Some(status) = command(&name)
    {
        return status;
    }
    let options = match cli::parse(std::env::args_os().skip(1)) {
        Ok(o) => o,
        Err(text) => {
            eprintln!("nginx: {text}");
            let word = std::env::args_os().nth(1).map(|a| a.to_string_lossy().into_owned());
            if let Some(word) = word.filter(|w| !w.starts_with('-')) {
                eprintln!("       {}", pages::unknown(&word));
            }
            return ExitCode::FAILURE;
        }
    };
    if options.version {
        print_version(&options);
        if !options.test {
            return ExitCode::SUCCESS;
        }
    }
    let which = Which {
        file: options.file.clone(),
        prefix: options.prefix.clone(),
        globals: options.globals.clone(),
        error_log: options.error_log.clone(),
    };
    if options.test {
        return test(&options, &which);
    }
    server::serve::run(which, options.signal.as_deref(), std::env::args_os().collect())
}

/// Runs the command of this name; none: there is no such command, and the server itself is meant.
fn command(name: &str) -> Option<ExitCode> {
    let arguments = std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned());
    let version = env!("CARGO_PKG_VERSION");
    Some(match name {
        "stress" => stress::command::main(arguments, version),
        "agent" => stress::agent::serve::main(arguments, version),
        "top" => top::main(arguments),
        "doctor" | "why" | "redline" | "tune" | "nic" | "lab" => doctor::main(name, arguments, version),
        "canary" => doctor::canary::main(arguments, version, canary),
        "l4" => l4::command::main(arguments),
        _ => return None,
    })
}

/// Asks the running server for a canary.
fn canary(wish: &doctor::canary::Wish, say: &mut dyn FnMut(&str)) -> Result<doctor::canary::End, String> {
    let prefix = wish.prefix.clone().unwrap_or_else(|| cli::DEFAULT_PREFIX.into());
    let which = Which { file: wish.file.clone(), prefix, globals: Vec::new(), error_log: Some("stderr".into()) };
    let reading = read(&conf::Disk, &which, 1);
    show(&reading.problems, &reading.tree.sources, Severity::Warn);
    let snapshot = reading.snapshot.ok_or_else(|| format!("{} cannot be run", which.file.display()))?;
    server::serve::canary(wish, &snapshot, say)
}

/// What commands say of themselves; nothing if the arguments ask for something else.
fn about(arguments: &[String]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let (name, what) = match words.as_slice() {
        ["--version"] => {
            println!("ironweir {} (nginx/{})", env!("CARGO_PKG_VERSION"), server::NGINX_VERSION);
            return Some(ExitCode::SUCCESS);
        }
        ["--help" | "help"] => ("", "--help"),
        ["--man"] => ("", "--man"),
        ["help", name] => (*name, "--help"),
        [name @ ("demo" | "top" | "l4"), "--man"] => (*name, "--man"),
        _ => return None,
    };
    let Some(command) = pages::find(name) else {
        eprintln!("ironweir: no command \"{name}\"\n       {}", pages::unknown(name));
        return Some(ExitCode::FAILURE);
    };
    let version = env!("CARGO_PKG_VERSION");
    let ask = || std::iter::once(what.to_owned());
    Some(match name {
        "stress" => stress::command::main(ask(), version),
        "agent" => stress::agent::serve::main(ask(), version),
        _ if what == "--man" => print(&pages::man(command, version)),
        "demo" => demo::run(ask().map(Into::into)),
        "top" => top::main(ask()),
        "doctor" | "why" | "redline" | "tune" | "nic" | "lab" => doctor::main(name, ask(), version),
        "canary" => doctor::canary::main(ask(), version, canary),
        "l4" => l4::command::main(ask()),
        _ => print(&format!("{}{}", cli::HELP, pages::list())),
    })
}

fn print(text: &str) -> ExitCode {
    // A pager that was closed is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn print_version(options: &cli::Options) {
    eprintln!("nginx version: nginx/{} (Ironweir {})", server::NGINX_VERSION, env!("CARGO_PKG_VERSION"));
    if options.help {
        eprint!("{}{}", cli::HELP, pages::list());
    }
    if options.configure {
        eprintln!("built by rustc");
        // Tests, certbot and scripts ask for these words; above the library is rustls.
        eprintln!("built with {}", server::tls::library());
        eprintln!("TLS SNI support enabled");
        eprintln!("configure arguments: {} {}", cli::paths(), server::modules::configure_arguments());
    }
}

/// `-t` and `-T`
fn test(options: &cli::Options, which: &Which) -> ExitCode {
    let mut reading = read(&conf::Disk, which, 1);
    show(&reading.problems, &reading.tree.sources, Severity::Warn);
    let file = which.file.display();
    if reading.snapshot.is_some() && !options.quiet {
        show(&reading.notes, &reading.tree.sources, Severity::Notice);
        eprintln!("nginx: the configuration file {file} syntax is ok");
    }
    let snapshot = reading.snapshot.take().map(Arc::new);
    let good = snapshot.as_ref().is_some_and(|snapshot| server::serve::try_out(which, snapshot));
    if options.plan {
        let Some(snapshot) = snapshot.filter(|_| good) else {
            eprintln!("nginx: configuration file {file} test failed");
            return ExitCode::FAILURE;
        };
        return match server::plan::of(which, snapshot) {
            Ok(plan) if options.json => print(&(plan.json() + "\n")),
            Ok(plan) => print(&plan.text()),
            Err(text) => {
                eprintln!("nginx: {text}");
                ExitCode::FAILURE
            }
        };
    }
    if !good {
        eprintln!("nginx: configuration file {file} test failed");
    } else if !options.quiet {
        eprintln!("nginx: configuration file {file} test is successful");
    }
    if options.dump && good {
        dump(&reading);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(problems: &[Problem], sources: &[Source], least: Severity) {
    let excerpts = std::io::stderr().is_terminal();
    for p in problems.iter().filter(|p| p.level <= least) {
        eprintln!("nginx: [{}] {}", p.level.name(), p.render_line(sources));
        p.help.iter().for_each(|help| eprintln!("       {help}"));
        if excerpts && p.span.is_some() {
            eprintln!("{}", p.render_excerpt(sources));
        }
    }
}

/// Each file once, in the order of reading.
fn dump(reading: &Reading) {
    let mut out = std::io::stdout().lock();
    for source in reading.tree.files() {
        let _ = writeln!(out, "# configuration file {}:", source.path.display());
        let _ = out.write_all(&source.text);
        let _ = out.write_all(b"\n");
    }
}
