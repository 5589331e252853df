//! Ironweir's binary: command lines only.

mod allocator;
mod cli;
mod demo;

use conf::{Level, Problem, Source};
use server::config::read::{Reading, Which, read};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    server::memory::released_by(allocator::release);
    if std::env::args_os().nth(1).is_some_and(|a| a == "demo") {
        return demo::run(std::env::args_os().skip(2));
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == "stress") {
        let arguments = std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned());
        return stress::command::main(arguments, env!("CARGO_PKG_VERSION"));
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == "agent") {
        return stress::agent::serve::main(
            std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned()),
            env!("CARGO_PKG_VERSION"),
        );
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == "top") {
        return top::main(std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned()));
    }
    let command = std::env::args_os().nth(1);
    if let Some(name @ ("doctor" | "nic" | "lab")) = command.as_ref().and_then(|c| c.to_str()) {
        let arguments = std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned());
        return doctor::main(name, arguments, env!("CARGO_PKG_VERSION"));
    }
    let options = match cli::parse(std::env::args_os().skip(1)) {
        Ok(o) => o,
        Err(text) => {
            eprintln!("nginx: {text}");
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

fn print_version(options: &cli::Options) {
    eprintln!("nginx version: nginx/{} (Ironweir {})", server::NGINX_VERSION, env!("CARGO_PKG_VERSION"));
    if options.help {
        eprint!("{}", cli::HELP);
    }
    if options.configure {
        eprintln!("built by rustc");
        // Tests and scripts ask for these words; the library underneath is rustls on AWS-LC.
        eprintln!("built with AWS-LC (rustls on aws-lc-rs)");
        eprintln!("TLS SNI support enabled");
        eprintln!("configure arguments: {}", server::modules::configure_arguments());
    }
}

/// `-t` and `-T`
fn test(options: &cli::Options, which: &Which) -> ExitCode {
    let reading = read(&conf::Disk, which, 1);
    show(&reading.problems, &reading.tree.sources, Level::Warn);
    let file = which.file.display();
    if reading.snapshot.is_some() && !options.quiet {
        show(&reading.notes, &reading.tree.sources, Level::Notice);
        eprintln!("nginx: the configuration file {file} syntax is ok");
    }
    let opens = |snapshot| server::serve::try_out(which, snapshot);
    let good = reading.snapshot.as_ref().is_some_and(opens);
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

fn show(problems: &[Problem], sources: &[Source], least: Level) {
    let excerpts = std::io::stderr().is_terminal();
    for p in problems.iter().filter(|p| p.level <= least) {
        eprintln!("nginx: [{}] {}", p.level.name(), p.render_line(sources));
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
