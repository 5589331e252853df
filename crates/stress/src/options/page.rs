//! What is written from the table of options: `--help` and the man page.

use super::{Command, ROWS, Row};
use std::fmt::Write;

/// Columns of `--help`.
const WIDTH: usize = 100;
/// Where the explanations begin.
const INDENT: usize = 31;

fn name(row: &Row) -> String {
    let value = row.value.map(|v| format!(" {v}")).unwrap_or_default();
    match row.short {
        Some(short) => format!("-{short}, --{}{value}", row.long),
        None => format!("    --{}{value}", row.long),
    }
}

/// What `--help` prints.
pub fn help(command: &Command) -> String {
    let mut out = format!("Usage: {}\n\n{}\n", command.usage, command.what);
    for &section in command.sections {
        let _ = writeln!(out, "\n{}:", section.title());
        for row in ROWS.iter().filter(|r| r.section == section) {
            let name = name(row);
            let _ = write!(out, "  {name}");
            let mut column = name.len() + 2;
            if column + 1 > INDENT {
                out.push('\n');
                column = 0;
            }
            let _ = write!(out, "{:1$}", "", INDENT - column);
            column = INDENT;
            for word in row.help.split(' ') {
                if column + word.len() >= WIDTH {
                    let _ = write!(out, "\n{:INDENT$}", "");
                    column = INDENT;
                }
                let _ = write!(out, "{word} ");
                column += word.len() + 1;
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
    out.push_str("\nExamples:\n");
    for (line, what) in command.examples {
        let _ = writeln!(out, "  {line}\n      {what}");
    }
    out.push_str("\nExit status:");
    let mut column = "Exit status:".len();
    for word in command.statuses.split(' ') {
        if column + 1 + word.len() > WIDTH {
            out.push_str("\n ");
            column = 1;
        }
        let _ = write!(out, " {word}");
        column += 1 + word.len();
    }
    out.push('\n');
    out
}

/// The man page, in troff.
pub fn man_page(command: &Command, version: &str) -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let Command { name: own, usage, what, .. } = command;
    let title = format!("IRONWEIR\\-{}", own.to_uppercase());
    let mut out =
        format!(".TH {title} 1 \"\" \"Ironweir {version}\"\n.SH NAME\nironweir\\-{own} \\- {}\n", escape(what));
    let _ = writeln!(out, ".SH SYNOPSIS\n.B {}", escape(usage));
    for &section in command.sections {
        let _ = writeln!(out, ".SH {}", section.title().to_uppercase());
        for row in ROWS.iter().filter(|r| r.section == section) {
            let _ = writeln!(out, ".TP\n.B {}\n{}", escape(name(row).trim()), escape(row.help));
        }
    }
    out.push_str(".SH EXAMPLES\n");
    for (line, what) in command.examples {
        let _ = writeln!(out, ".TP\n.B {}\n{}", escape(line), escape(what));
    }
    let _ = writeln!(out, ".SH EXIT STATUS\n{}", escape(command.statuses));
    out
}

#[cfg(test)]
mod tests {
    use super::super::{AGENT, STRESS, completion};
    use super::*;

    #[test]
    fn every_option_is_in_all_of_them() {
        for command in [&STRESS, &AGENT] {
            let pages = [help(command), man_page(command, "1").replace("\\-", "-")];
            let completions = ["bash", "zsh", "fish"].map(|shell| completion(shell).unwrap());
            for row in command.rows() {
                let name = format!("--{}", row.long);
                assert!(pages.iter().chain(&completions[..2]).all(|p| p.contains(&name)), "{name}");
                assert!(completions[2].contains(&format!("-l {} ", row.long)), "{name}");
            }
            assert!(pages[0].lines().all(|l| l.len() <= WIDTH), "a line is too long");
        }
        assert!(ROWS.iter().all(|row| [STRESS, AGENT].iter().any(|c| c.sections.contains(&row.section))));
    }
}
