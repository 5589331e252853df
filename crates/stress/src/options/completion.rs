//! Completions for shells, from the table of options.

use super::{AGENT, Command, STRESS};
use std::fmt::Write;

/// What stands behind `ironweir`.
const COMMANDS: &str = "demo stress agent top doctor why redline canary tune nic lab l4 help";

/// Options of `ironweir top`, which has no table.
const TOP: &str = "--once --user --user-file --cacert --insecure --help --man";

/// Completions for `bash`, `zsh` or `fish`; nothing for another shell.
pub fn completion(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

fn bash() -> String {
    let mut out = format!(
        "_ironweir() {{\n  local word=${{COMP_WORDS[COMP_CWORD]}}\n  \
         if [[ $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W '{COMMANDS}' -- \"$word\"));\n"
    );
    for command in [STRESS, AGENT] {
        let words: Vec<String> = command.rows().map(|r| format!("--{}", r.long)).collect();
        let (name, words) = (command.name, words.join(" "));
        let _ = writeln!(out, "  elif [[ ${{COMP_WORDS[1]}} == {name} && $word == -* ]]; then");
        let _ = writeln!(out, "    COMPREPLY=($(compgen -W '{words}' -- \"$word\"))");
    }
    let _ = writeln!(out, "  elif [[ ${{COMP_WORDS[1]}} == top && $word == -* ]]; then");
    let _ = writeln!(out, "    COMPREPLY=($(compgen -W '{TOP}' -- \"$word\"))");
    let _ = writeln!(out, "  elif [[ ${{COMP_WORDS[1]}} == help ]]; then");
    let _ = writeln!(out, "    COMPREPLY=($(compgen -W '{COMMANDS}' -- \"$word\"))");
    out.push_str("  else COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\ncomplete -F _ironweir ironweir\n");
    out
}

fn zsh() -> String {
    let mut out =
        format!("#compdef ironweir\nif (( CURRENT == 2 )); then compadd {COMMANDS}; return; fi\ncase $words[2] in\n");
    for command in [STRESS, AGENT] {
        let _ = writeln!(out, "{}) _arguments '1:command:' \\", command.name);
        for row in command.rows() {
            let text = row.help.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
            let value = row.value.map(|v| format!(":{}:_files", v.replace(':', " "))).unwrap_or_default();
            let _ = writeln!(out, "  '--{}[{text}]{value}' \\", row.long);
        }
        out.push_str("  '*:url:' ;;\n");
    }
    let _ = writeln!(out, "top) compadd -- {TOP} ;;\nhelp) compadd {COMMANDS} ;;");
    out.push_str("esac\n");
    out
}

fn fish() -> String {
    let mut out = format!("complete -c ironweir -n __fish_use_subcommand -a '{COMMANDS}'\n");
    for command in [STRESS, AGENT] {
        let Command { name, .. } = command;
        for row in command.rows() {
            let short = row.short.map(|s| format!(" -s {s}")).unwrap_or_default();
            let value = if row.value.is_some() { " -r" } else { "" };
            let help = row.help.replace('\\', "\\\\").replace('\'', "\\'");
            let when = format!("'__fish_seen_subcommand_from {name}'");
            let _ = writeln!(out, "complete -c ironweir -n {when}{short} -l {}{value} -d '{help}'", row.long);
        }
    }
    for option in TOP.split(' ') {
        let option = option.trim_start_matches('-');
        let _ = writeln!(out, "complete -c ironweir -n '__fish_seen_subcommand_from top' -l {option}");
    }
    let _ = writeln!(out, "complete -c ironweir -n '__fish_seen_subcommand_from help' -a '{COMMANDS}'");
    out
}
