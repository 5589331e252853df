//! How a server that runs was started: its configuration, where its relative paths begin, where it says errors before its configuration says where,
//! and which nginx it is. From: `/proc/PID/cmdline`, `cwd` and `exe`, never from a program that is run.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Of a program so much is searched for its version: nginx with all modules has 6 MB, and its words stand behind its code.
const SEARCHED: u64 = 32 << 20;
/// Words of a command line that are looked at.
const MOST_WORDS: usize = 256;

/// nginx's version, where it is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(pub(super) Option<(u32, u32, u32)>);

impl Version {
    /// `proxy_http_version` where nothing is said; empty: the default of old ones, 1.0. Ironweir and others than nginx are as nginx is today.
    pub(super) fn proxies_with(self) -> &'static str {
        if self.0.is_some_and(|v| v < (1, 29, 7)) { "" } else { "1.1" }
    }
}

/// See the file.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) file: PathBuf,
    pub(super) prefix: PathBuf,
    pub(super) error_log: PathBuf,
    pub(super) version: Version,
}

impl Command {
    /// That of a process; none of a worker, whose words are a title.
    pub(super) fn of(pid: u32, name: &str) -> Option<Command> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| "/".into());
        let mut command = Command::read(&String::from_utf8_lossy(&line), layout(name), &folder)?;
        if name == "nginx" {
            command.version = version(pid);
        }
        Some(command)
    }

    /// A master's is "nginx: master process /usr/sbin/nginx -c FILE" with blanks, or words with zeros.
    fn read(line: &str, layout: &Layout, folder: &Path) -> Option<Command> {
        let words: Vec<&str> = line.split(['\0', ' ']).take(MOST_WORDS).collect();
        if words.iter().any(|w| *w == "worker" || *w == "cache") {
            return None;
        }
        let option = |letter: &str| {
            let at = words.iter().position(|w| w.strip_prefix('-').is_some_and(|w| w.starts_with(letter)))?;
            // -p DIR and -pDIR are the same.
            let own = &words[at][1 + letter.len()..];
            let value = if own.is_empty() { *words.get(at + 1)? } else { own };
            (!value.is_empty()).then(|| PathBuf::from(value))
        };
        let named = option("p").map(|p| folder.join(p));
        // A prefix of one's own has its files with it.
        let (prefix, file, error_log) = match &named {
            Some(prefix) => (prefix.clone(), "nginx.conf", "logs/error.log"),
            None => (layout.prefix.into(), layout.file, layout.error_log),
        };
        let file = prefix.join(option("c").unwrap_or_else(|| file.into()));
        let error_log = prefix.join(option("e").unwrap_or_else(|| error_log.into()));
        Some(Command { file, prefix, error_log, version: Version::default() })
    }
}

/// What a program takes where its command line says nothing.
struct Layout {
    prefix: &'static str,
    file: &'static str,
    error_log: &'static str,
}

/// An Ironweir that was installed, and one that was put beside an nginx.
const INSTALLED: Layout =
    Layout { prefix: "/var/lib/ironweir", file: "/etc/ironweir/nginx.conf", error_log: "/var/log/ironweir/error.log" };
const BESIDE_NGINX: Layout =
    Layout { prefix: "/etc/nginx", file: "/etc/nginx/nginx.conf", error_log: "logs/error.log" };
/// nginx of Debian, and of most packages.
const NGINX: Layout =
    Layout { prefix: "/usr/share/nginx", file: "/etc/nginx/nginx.conf", error_log: "/var/log/nginx/error.log" };

fn layout(name: &str) -> &'static Layout {
    match name {
        "ironweir" if Path::new(INSTALLED.file).exists() => &INSTALLED,
        "ironweir" => &BESIDE_NGINX,
        _ => &NGINX,
    }
}

/// `nginx/1.22.1` stands in the program, for its `Server` header.
fn version(pid: u32) -> Version {
    let mut program = Vec::new();
    let read = File::open(format!("/proc/{pid}/exe")).and_then(|f| f.take(SEARCHED).read_to_end(&mut program));
    Version(read.ok().and_then(|_| version_in(&program)))
}

fn version_in(program: &[u8]) -> Option<(u32, u32, u32)> {
    const NAME: &[u8] = b"nginx/";
    let numbers = |rest: &[u8]| -> Option<(u32, u32, u32)> {
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.').filter(|end| *end < 16)?;
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        let mut parts = text.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let mut rest = program;
    while let Some(at) = rest.windows(NAME.len()).position(|w| w == NAME) {
        rest = &rest[at + NAME.len()..];
        if let Some(found) = numbers(rest) {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, layout: &Layout) -> Option<[String; 3]> {
        let c = Command::read(line, layout, Path::new("/work"))?;
        Some([c.file, c.prefix, c.error_log].map(|p| p.display().to_string()))
    }

    #[test]
    fn command_lines() {
        let own = read("ironweir\0-p\0s2\0-c\0conf/nginx.conf\0", &BESIDE_NGINX).unwrap();
        assert_eq!(own, ["/work/s2/conf/nginx.conf", "/work/s2", "/work/s2/logs/error.log"]);
        let title = read("nginx: master process /usr/sbin/nginx -g daemon on; master_process on;", &NGINX).unwrap();
        assert_eq!(title, ["/etc/nginx/nginx.conf", "/usr/share/nginx", "/var/log/nginx/error.log"]);
        let joined = read("nginx\0-p/srv\0-e\0/tmp/e.log\0", &NGINX).unwrap();
        assert_eq!(joined, ["/srv/nginx.conf", "/srv", "/tmp/e.log"]);
        assert_eq!(read("nginx: worker process", &NGINX), None);
        assert!(read("", &INSTALLED).is_some());
    }

    #[test]
    fn versions() {
        assert_eq!(version_in(b"xx nginx/%s nginx/1.22.1\0 nginx/9.9.9\0"), Some((1, 22, 1)));
        for text in [&b""[..], b"nginx/", b"nginx/1.2", b"nginx/1.2.x\0", b"nginx/99999999999999.1.1\0"] {
            assert_eq!(version_in(text), None);
        }
        assert_eq!(Version(Some((1, 29, 6))).proxies_with(), "");
        assert_eq!((Version(Some((1, 29, 7))).proxies_with(), Version::default().proxies_with()), ("1.1", "1.1"));
    }
}
