//! What the commands say of themselves: the list behind `-h`, `ironweir help`, man pages, and what may have been meant by a
//! command that nobody knows.

use std::fmt::Write;

/// A command: its name, how it is called, and what it does.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    usage: &'static str,
    what: &'static str,
    /// Option and explanation; those of `stress` and `agent` come from their own table.
    options: &'static [(&'static str, &'static str)],
}

/// All commands, the server itself (without a name) first.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "",
        usage: "ironweir [-?hvVtTq] [--plan [--json]] [-s signal] [-p prefix] [-e filename] [-c filename] [-g directives]",
        what: "web server and load balancer that reads nginx.conf",
        options: &[
            ("-?, -h, --help", "Shows help."),
            ("-v, --version", "Shows the version."),
            ("-V", "Shows the version and what is built in, in nginx's form."),
            (
                "-t",
                "Tests the configuration and what a start would open. Logs, the pid file and directories that are missing are made, as nginx makes them.",
            ),
            ("-T", "The same, and prints the configuration."),
            ("-t --plan", "The same, and says what a reload would change in the running server; with --json as JSON."),
            ("-q", "Says nothing but errors while testing."),
            (
                "-s signal",
                "Tells the running server: stop, quit, reopen, reload, upgrade. The last two wait until it has been done, or fail.",
            ),
            (
                "-p prefix",
                "Where relative paths begin (default: /etc/nginx/, or /var/lib/ironweir/ where Ironweir is installed: where /etc/ironweir/nginx.conf is).",
            ),
            (
                "-e filename",
                "The error log until the configuration is read, and where it names none (default: logs/error.log; installed: /var/log/ironweir/error.log).",
            ),
            ("-c filename", "The configuration (default: nginx.conf; installed: /etc/ironweir/nginx.conf)."),
            ("-g directives", "Directives of the main level beside the file's."),
        ],
    },
    Command {
        name: "demo",
        usage: "ironweir demo [--port 8080]",
        what: "a balancer, two backends and a start page, without a file of yours",
        options: &[("--port number", "Where it listens on 127.0.0.1; 0: any free port.")],
    },
    Command {
        name: "stress",
        usage: "ironweir stress [options] URL",
        what: "puts load on a service and says what it carries, and whether that number can be trusted",
        options: &[],
    },
    Command {
        name: "agent",
        usage: "ironweir agent --listen ADDRESS:PORT [options]",
        what: "puts load where a controller (ironweir stress --agents) says",
        options: &[],
    },
    Command {
        name: "top",
        usage: "ironweir top [OPTIONS] [URL]",
        what: "a running server in the terminal, by its API",
        options: &[
            ("--once", "Prints two looks, a second apart, as text, and ends."),
            ("--user NAME:PASSWORD", "For auth_basic."),
            ("--user-file FILE", "The same from a file's first line, which other users of the machine cannot see."),
            ("--cacert FILE", "Certificates that are believed over HTTPS, in place of the system's authorities."),
            ("--insecure", "Any certificate is believed."),
            ("URL", "Where a location with \"api\" is (default: http://127.0.0.1:8080/api)."),
        ],
    },
    Command {
        name: "doctor",
        usage: "ironweir doctor [options] [FILE | sysctl FILE | backend HOST:PORT | ports | exits | plan]",
        what: "reads the machine, a configuration and a running server, and names what is in the way",
        options: &[],
    },
    Command {
        name: "why",
        usage: "ironweir why [--api URL]",
        what: "what is in the way of a running server now, and how much more it could carry",
        options: &[],
    },
    Command {
        name: "redline",
        usage: "ironweir redline --upstream NAME [--server HOST:PORT]",
        what: "how much one server of an upstream carries, found with live traffic",
        options: &[],
    },
    Command {
        name: "canary",
        usage: "ironweir canary -c NEW.conf [--share 5%] [--for 60s]",
        what: "a reload that serves a share of new connections first, and is taken back if it is worse",
        options: &[],
    },
    Command {
        name: "tune",
        usage: "ironweir tune --prove [FILE | NAME=VALUE...]",
        what: "whether kernel settings are better than what is, measured; what is goes to a file",
        options: &[],
    },
    Command {
        name: "nic",
        usage: "ironweir nic [options]",
        what: "rates, packets, drops and sizes of packets of each interface",
        options: &[],
    },
    Command {
        name: "lab",
        usage: "ironweir lab [NAME]",
        what: "a fault of the field, made, found and cured in a network namespace",
        options: &[],
    },
    Command {
        name: "l4",
        usage: "ironweir l4 [options] [COMMAND]",
        what: "the balancer in the kernel (XDP): runs a plan, shows its tables",
        options: &[
            ("--pins FOLDER", "Where its tables are in the BPF file system (default: /sys/fs/bpf/ironweir-l4)."),
            ("list", "Virtual and real servers, as ipvsadm -Ln; also with --stats, --rate or --connections."),
            ("check PLAN", "Says what is wrong with a plan (JSON)."),
            ("run PLAN", "Balances by a plan, and by what it becomes meanwhile."),
            ("clear", "Detaches the balancer and forgets all."),
            ("decap DEV", "On a real server: takes off the headers of IPIP and GUE."),
            ("pass DEV", "For the other end of a veth pair: a program that does nothing."),
        ],
    },
    Command { name: "help", usage: "ironweir help [command]", what: "what a command does and takes", options: &[] },
];

/// A line for each command, for `-h`.
pub(crate) fn list() -> String {
    let named = COMMANDS.iter().filter(|c| !c.name.is_empty());
    named.fold(String::from("\nCommands:\n"), |out, c| out + &format!("  {:<14}: {}\n", c.name, c.what))
}

/// A command by its name.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| c.name == name)
}

/// What is said of a word that is no command.
pub(crate) fn unknown(word: &str) -> String {
    let names = COMMANDS.iter().map(|c| c.name).filter(|n| !n.is_empty());
    match conf::nearest(word, names) {
        Some(name) => format!("did you mean \"ironweir {name}\"? All commands: ironweir help"),
        None => "all commands: ironweir help".to_owned(),
    }
}

/// The man page of a command whose options stand here, in troff.
pub(crate) fn man(command: &Command, version: &str) -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let name = match command.name {
        "" => "ironweir".to_owned(),
        name => format!("ironweir-{name}"),
    };
    let (title, section) = (escape(&name.to_uppercase()), if command.name.is_empty() { 8 } else { 1 });
    let mut out = format!(
        ".TH {title} {section} \"\" \"Ironweir {version}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n",
        escape(&name),
        escape(command.what),
        escape(command.usage)
    );
    if !command.options.is_empty() {
        out.push_str(".SH OPTIONS\n");
    }
    for (option, what) in command.options {
        let _ = writeln!(out, ".TP\n.B {}\n{}", escape(option), escape(what));
    }
    let others = COMMANDS.iter().filter(|c| c.name != command.name && c.name != "help");
    let others = others.map(|c| match c.name {
        "" => "ironweir(8)".to_owned(),
        name => format!("ironweir\\-{name}(1)"),
    });
    let _ = writeln!(out, ".SH SEE ALSO\n{}", others.collect::<Vec<_>>().join(", "));
    out
}
