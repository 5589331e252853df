//! What is written from the table of options: `--help`, the man page, completions.

use super::{ROWS, Row, Section};
use std::fmt::Write;

/// Columns of `--help`.
const WIDTH: usize = 100;
/// Where the explanations begin.
const INDENT: usize = 31;

const USAGE: &str = "ironweir stress [options] URL";
const WHAT: &str = "Puts load on a service and says what it carries, and whether that number can be trusted.";

/// Commands worth copying, and what each is for.
const EXAMPLES: &[(&str, &str)] = &[
    ("ironweir stress -t2 -c64 -d30s --latency http://localhost:8080/", "as fast as 64 connections go"),
    ("ironweir stress -R5000 -c200 -d1m http://localhost:8080/", "5,000 requests a second, whatever the target does"),
    ("ironweir stress --stages 30s:1000-10000,1m:10000,5s:30000 -c500 URL", "a ramp, a plateau, a spike"),
    ("ironweir stress --preset forwarding http://lb/", "short connections"),
    ("ironweir stress --find-max --slo 'p99<50ms,errors<0.1%' -c200 URL", "the highest rate that holds"),
    ("ironweir stress --hold 60000 --ramp 2000/s --source 127.0.1.0/26 ws://localhost:8080/chat", "held connections"),
    ("ironweir stress --json new.json --fail-if 'p99>80ms' URL", "in a pipeline"),
    ("ironweir stress --compare old.json new.json", "what changed"),
];

fn name(row: &Row) -> String {
    let value = row.value.map(|v| format!(" {v}")).unwrap_or_default();
    match row.short {
        Some(short) => format!("-{short}, --{}{value}", row.long),
        None => format!("    --{}{value}", row.long),
    }
}

/// What `--help` prints.
pub fn help() -> String {
    let mut out = format!("Usage: {USAGE}\n\n{WHAT}\n");
    for section in Section::ALL {
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
    for (command, what) in EXAMPLES {
        let _ = writeln!(out, "  {command}\n      {what}");
    }
    out.push_str("\nExit status: 0 done, 1 could not run, 3 --fail-if holds, 4 nothing was answered.\n");
    out
}

/// The man page, in troff.
pub fn man_page(version: &str) -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let mut out =
        format!(".TH IRONWEIR\\-STRESS 1 \"\" \"Ironweir {version}\"\n.SH NAME\nironweir\\-stress \\- {WHAT}\n");
    let _ = writeln!(out, ".SH SYNOPSIS\n.B {}", escape(USAGE));
    for section in Section::ALL {
        let _ = writeln!(out, ".SH {}", section.title().to_uppercase());
        for row in ROWS.iter().filter(|r| r.section == section) {
            let _ = writeln!(out, ".TP\n.B {}\n{}", escape(name(row).trim()), escape(row.help));
        }
    }
    out.push_str(".SH EXAMPLES\n");
    for (command, what) in EXAMPLES {
        let _ = writeln!(out, ".TP\n.B {}\n{}", escape(command), escape(what));
    }
    out.push_str(".SH EXIT STATUS\n0 done, 1 could not run, 3 \\-\\-fail\\-if holds, 4 nothing was answered.\n");
    out
}

/// Completions for `bash`, `zsh` or `fish`; nothing for another shell.
pub fn completion(shell: &str) -> Option<String> {
    let quote = |text: &str| text.replace('\'', "'\\''");
    let mut out = String::new();
    match shell {
        "bash" => {
            let words: Vec<String> = ROWS.iter().map(|r| format!("--{}", r.long)).collect();
            out.push_str("_ironweir() {\n  local word=${COMP_WORDS[COMP_CWORD]}\n");
            out.push_str(
                "  if [[ $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W 'demo stress agent' -- \"$word\"));\n",
            );
            out.push_str("  elif [[ ${COMP_WORDS[1]} == stress && $word == -* ]]; then\n");
            let _ = writeln!(out, "    COMPREPLY=($(compgen -W '{}' -- \"$word\"))", words.join(" "));
            out.push_str("  else COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\ncomplete -F _ironweir ironweir\n");
        }
        "zsh" => {
            out.push_str("#compdef ironweir\n_arguments \\\n  '1:command:(demo stress agent)' \\\n");
            for row in ROWS {
                let text = quote(row.help).replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
                let value = row.value.map(|v| format!(":{}:_files", v.replace(':', " "))).unwrap_or_default();
                let _ = writeln!(out, "  '--{}[{text}]{value}' \\", row.long);
            }
            out.push_str("  '*:url:'\n");
        }
        "fish" => {
            out.push_str("complete -c ironweir -n __fish_use_subcommand -a 'demo stress agent'\n");
            for row in ROWS {
                let short = row.short.map(|s| format!(" -s {s}")).unwrap_or_default();
                let value = if row.value.is_some() { " -r" } else { "" };
                let help = row.help.replace('\\', "\\\\").replace('\'', "\\'");
                let _ = writeln!(
                    out,
                    "complete -c ironweir -n '__fish_seen_subcommand_from stress'{short} -l {}{value} -d '{help}'",
                    row.long
                );
            }
        }
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_in_all_of_them() {
        let pages =
            [help(), man_page("1").replace("\\-", "-"), completion("bash").unwrap(), completion("zsh").unwrap()];
        for row in ROWS {
            assert!(pages.iter().all(|p| p.contains(&format!("--{}", row.long))), "{}", row.long);
            assert!(completion("fish").unwrap().contains(&format!("-l {}", row.long)), "{}", row.long);
        }
        assert!(help().lines().all(|l| l.len() <= WIDTH), "a line is too long");
    }
}
