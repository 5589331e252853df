//! nginx's command line: `-?hvVtTq -s signal -p prefix -e file -c file -g directives`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Where nginx looks for everything when `-p` does not say.
pub(crate) const DEFAULT_PREFIX: &str = "/etc/nginx";
/// Where the configuration is, from the prefix.
/// Where everything is when the command line does not say.
struct Layout {
    /// Where relative paths begin.
    prefix: &'static str,
    /// The configuration.
    file: &'static str,
    /// The error log until the configuration is read; below the prefix if it is relative.
    error_log: &'static str,
}

/// nginx's, for a binary that was just built and put beside it.
const BESIDE_NGINX: Layout =
    Layout { prefix: "/etc/nginx", file: "/etc/nginx/nginx.conf", error_log: "logs/error.log" };
/// Of an Ironweir that was installed (`packaging/install`).
const INSTALLED: Layout =
    Layout { prefix: "/var/lib/ironweir", file: "/etc/ironweir/nginx.conf", error_log: "/var/log/ironweir/error.log" };
/// The configuration's name below a prefix.
const DEFAULT_FILE: &str = "nginx.conf";

/// An installation is there when its configuration is: so the commands that an operator types and the unit mean the same server.
fn layout() -> Layout {
    if std::path::Path::new(INSTALLED.file).exists() { INSTALLED } else { BESIDE_NGINX }
}

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// `-?`, `-h`
    pub help: bool,
    /// `-v`
    pub version: bool,
    /// `-V`
    pub configure: bool,
    /// `-t`, `-T`
    pub test: bool,
    /// `-T`
    pub dump: bool,
    /// `--plan`: with `-t`, what a reload would change.
    pub plan: bool,
    /// `--json`: that as JSON.
    pub json: bool,
    /// `-q`
    pub quiet: bool,
    /// `-s`
    pub signal: Option<String>,
    /// `-p`, absolute.
    pub prefix: PathBuf,
    /// `-c`, absolute.
    pub file: PathBuf,
    /// `-e`
    pub error_log: Option<PathBuf>,
    /// `-g`
    pub globals: Vec<u8>,
}

/// Reads the arguments; an error is nginx's text for it.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Options, String> {
    let mut o = Options::default();
    let mut prefix = None;
    let mut file = None;
    let mut args = args.map(OsStringExt::into_vec);
    while let Some(arg) = args.next() {
        match arg.as_slice() {
            b"--plan" => (o.test, o.plan) = (true, true),
            b"--json" => o.json = true,
            _ => {}
        }
        if matches!(arg.as_slice(), b"--plan" | b"--json") {
            continue;
        }
        let Some(letters) = arg.strip_prefix(b"-") else {
            return Err(format!("invalid option: \"{}\"", String::from_utf8_lossy(&arg)));
        };
        let mut rest = letters;
        while let Some((letter, after)) = rest.split_first() {
            rest = after;
            match letter {
                b'?' | b'h' => (o.version, o.help) = (true, true),
                b'v' => o.version = true,
                b'V' => (o.version, o.configure) = (true, true),
                b't' => o.test = true,
                b'T' => (o.test, o.dump) = (true, true),
                b'q' => o.quiet = true,
                b'p' | b'e' | b'c' | b'g' | b's' => {
                    let value = if rest.is_empty() { args.next() } else { Some(rest.to_vec()) };
                    let value = value
                        .filter(|v| !v.is_empty() || matches!(letter, b'e' | b'g'))
                        .ok_or_else(|| missing(*letter))?;
                    let path = || PathBuf::from(OsString::from_vec(value.clone()));
                    match letter {
                        b'p' => prefix = Some(path()),
                        b'e' => o.error_log = Some(path()),
                        b'c' => file = Some(path()),
                        b'g' => o.globals = value,
                        _ => o.signal = Some(signal(&value)?),
                    }
                    rest = &[];
                }
                other => return Err(format!("invalid option: \"{}\"", *other as char)),
            }
        }
    }
    let here = std::env::current_dir().unwrap_or_default();
    let layout = layout();
    let elsewhere = prefix.is_some();
    o.prefix = here.join(prefix.unwrap_or_else(|| layout.prefix.into()));
    o.file = match file {
        Some(file) => o.prefix.join(file),
        None if elsewhere => o.prefix.join(DEFAULT_FILE),
        None => layout.file.into(),
    };
    if !elsewhere && o.error_log.is_none() && layout.error_log.starts_with('/') {
        o.error_log = Some(layout.error_log.into());
    }
    // nginx takes an empty name for standard error.
    o.error_log = o.error_log.map(|e| match e.as_os_str().as_encoded_bytes() {
        b"" | b"stderr" => PathBuf::from("stderr"),
        _ => o.prefix.join(e),
    });
    Ok(o)
}

fn missing(letter: u8) -> String {
    match letter {
        b'p' => "option \"-p\" requires directory name".to_owned(),
        b'g' => "option \"-g\" requires parameter".to_owned(),
        b's' => "option \"-s\" requires parameter".to_owned(),
        other => format!("option \"-{}\" requires file name", other as char),
    }
}

fn signal(value: &[u8]) -> Result<String, String> {
    match value {
        b"stop" | b"quit" | b"reopen" | b"reload" | b"upgrade" => Ok(String::from_utf8_lossy(value).into_owned()),
        other => Err(format!("invalid option: \"-s {}\"", String::from_utf8_lossy(other))),
    }
}

/// Where everything is unless the command line says otherwise, in the words of nginx's `-V`.
pub(crate) fn paths() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let (program, Layout { prefix, file, error_log }) = (program.display(), layout());
    let error_log = std::path::Path::new(prefix).join(error_log);
    format!(
        "--prefix={prefix} --sbin-path={program} --conf-path={file} \
         --error-log-path={} --pid-path={prefix}/logs/nginx.pid",
        error_log.display()
    )
}

/// What `-?` prints after the version.
pub(crate) const HELP: &str = "Usage: ironweir [-?hvVtTq] [-s signal] [-p prefix]
                [-e filename] [-c filename] [-g directives]
       ironweir COMMAND [--help | --man]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -t --plan     : test it and say what a reload would change (--json: as JSON)
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload, upgrade
  -p prefix     : set prefix path (default: /etc/nginx/, or /var/lib/ironweir/
                  where Ironweir is installed: where /etc/ironweir/nginx.conf is)
  -e filename   : set error log file (default: logs/error.log, or
                  /var/log/ironweir/error.log)
  -c filename   : set configuration file (default: nginx.conf, or
                  /etc/ironweir/nginx.conf)
  -g directives : set global directives out of configuration file
";
