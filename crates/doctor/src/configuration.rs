//! What a configuration says of things that rules judge. It is read with `conf`, as the server reads it, so that includes, quotes and places
//! are right; it does not have to be one that runs.

mod apis;
mod command;

use crate::files::OnDisk;
use command::{Command, Version};
use conf::{Node, Tree, Word, value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// nginx's `worker_connections` where nothing is said.
pub const DEFAULT_CONNECTIONS: u64 = 512;
/// nginx's `backlog` of `listen` where nothing is said.
pub const DEFAULT_BACKLOG: u64 = 511;
/// What is kept of each kind of thing.
const MOST: usize = 4_096;

/// See the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The file.
    pub path: String,
    /// Where it listens.
    pub listens: Vec<Listen>,
    /// `worker_connections`
    pub worker_connections: Option<(u64, String)>,
    /// `worker_rlimit_nofile`
    pub worker_rlimit_nofile: Option<(u64, String)>,
    /// Whether anything is proxied: such connections need two descriptors.
    pub is_proxy: bool,
    /// Logs and other files that are written for each request.
    pub logs: Vec<Log>,
    /// Ways to upstreams.
    pub proxies: Vec<Proxy>,
    /// Where PHP runs (`fastcgi_pass unix:...`).
    pub fastcgi: Vec<(String, String)>,
    /// Directives of another time: the directive, what became of it, its place.
    pub old: Vec<(String, String, String)>,
    /// Error logs.
    #[serde(default)]
    pub errors: Vec<String>,
    /// Where its API is, of those that can be asked from here: `http://127.0.0.1:8080/api`.
    #[serde(default)]
    pub apis: Vec<String>,
    /// What is wrong with it, in nginx's words.
    pub problems: Vec<String>,
}

/// A `listen`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listen {
    /// As it is written.
    pub address: String,
    /// Its port, of a range the first; 0: a unix socket.
    pub port: u16,
    /// The last one of a range; 0: there is none.
    #[serde(default)]
    pub last_port: u16,
    /// Whether it takes datagrams (`udp`, `quic`).
    #[serde(default)]
    pub is_udp: bool,
    /// Its backlog, if one is said.
    pub backlog: Option<u64>,
    /// File and line.
    pub place: String,
}

impl Listen {
    /// Its ports; none of a unix socket.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.port;
        (first..=self.last_port.max(first)).filter(|port| *port != 0)
    }

    /// Whether a port is one of them.
    pub fn has(&self, port: u16) -> bool {
        port != 0 && (self.port..=self.last_port.max(self.port)).contains(&port)
    }
}

/// A log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// The file.
    pub path: String,
    /// Whether lines are gathered before they are written.
    pub is_buffered: bool,
    /// What is slow about its disk: `nfs`, `a rotating disk`; nothing if it is not known to be slow.
    pub slow: Option<String>,
    /// File and line.
    pub place: String,
}

/// A `proxy_pass`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proxy {
    /// Where to.
    pub to: String,
    /// Why connections are not kept; nothing: they are.
    pub closes: Option<String>,
    /// Whether it names an `upstream` block.
    pub is_group: bool,
    /// File and line.
    pub place: String,
}

impl Configuration {
    /// Reads a file and what it includes. Relative paths in it begin where those of the server that runs with it do, else in its own folder.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(path: &Path) -> Result<Configuration, String> {
        let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let running = machine::processes::all().into_iter().filter(|(_, name)| is_server(name));
        let found = running.filter_map(|(pid, name)| Command::of(pid, &name)).find(|c| c.file == path);
        let own = path.parent().unwrap_or(Path::new("/")).to_owned();
        Configuration::load_at(&path, found.as_ref().map_or(&own, |c| &c.prefix), found.as_ref())
    }

    fn load_at(path: &Path, prefix: &Path, running: Option<&Command>) -> Result<Configuration, String> {
        std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
        // Includes are relative to the file's folder.
        let (tree, mut problems) = conf::load(&OnDisk, path, path.parent().unwrap_or(Path::new("/")), b"");
        tree.sort(&mut problems);
        let mut read = Configuration::of(&tree, prefix, &running.map_or(Version::default(), |c| c.version));
        read.path = path.display().to_string();
        if let Some(log) = running.map(|c| &c.error_log).filter(|_| read.errors.is_empty() && !has_error_log(&tree)) {
            read.errors.push(log.display().to_string());
        }
        read.problems = problems.iter().filter(|p| p.level.is_fatal()).map(|p| p.render_line(&tree.sources)).collect();
        for log in &mut read.logs {
            log.slow = slow_disk(Path::new(&log.path));
        }
        Ok(read)
    }

    /// What a tree says.
    fn of(tree: &Tree, prefix: &Path, version: &Version) -> Configuration {
        let mut walk = Walk { tree, prefix, found: Configuration::default(), groups: BTreeMap::new() };
        walk.groups(&tree.nodes);
        walk.found.apis = apis::of(&tree.nodes);
        walk.level(&tree.nodes, &Level { version: version.proxies_with().into(), ..Level::default() });
        walk.found
    }

    /// Files that errors are written to.
    pub fn error_logs(&self) -> Vec<String> {
        self.errors.clone()
    }

    /// Whether a program of this name may be the one that this configuration is for.
    pub fn is_own(&self, program: &str) -> bool {
        ["ironweir", "nginx", "openresty", "angie", "freenginx", "tengine"].iter().any(|n| program.starts_with(n))
    }
}

/// What levels hand down.
#[derive(Clone, Default)]
struct Level {
    version: String,
    connection: Option<String>,
}

struct Walk<'t> {
    tree: &'t Tree,
    prefix: &'t Path,
    found: Configuration,
    /// Groups by name, and their `keepalive`.
    groups: BTreeMap<String, Option<u64>>,
}

impl Walk<'_> {
    fn place(&self, word: &Word) -> String {
        format!(
            "{}:{}",
            self.tree.source(word.span).path.display(),
            self.tree.source(word.span).line_of(word.span.start)
        )
    }

    fn groups(&mut self, nodes: &[Node]) {
        for node in nodes {
            if node.name == "upstream" && !node.args.is_empty() {
                let keepalive = node
                    .children()
                    .iter()
                    .find(|n| n.name == "keepalive")
                    .and_then(|n| value::number(&n.args.first()?.text));
                self.groups.insert(node.args[0].as_str().into_owned(), keepalive);
            }
            self.groups(node.children());
        }
    }

    fn level(&mut self, nodes: &[Node], above: &Level) {
        let mut level = above.clone();
        for node in nodes {
            match &*node.name.as_str() {
                "proxy_http_version" => level.version = text(node, 0),
                "proxy_set_header" if text(node, 0).eq_ignore_ascii_case("connection") => {
                    level.connection = Some(text(node, 1))
                }
                _ => {}
            }
        }
        for node in nodes {
            self.directive(node, &level);
            self.level(node.children(), &level);
        }
    }

    fn directive(&mut self, node: &Node, level: &Level) {
        let place = self.place(&node.name);
        let number = || node.args.first().and_then(|w| value::number(&w.text));
        match &*node.name.as_str() {
            "listen" => self.listen(node, place),
            "worker_connections" => self.found.worker_connections = number().map(|n| (n, place)),
            "worker_rlimit_nofile" => self.found.worker_rlimit_nofile = number().map(|n| (n, place)),
            "access_log" => self.log(node, place),
            "error_log" => {
                let path = text(node, 0);
                if path != "stderr" && !path.contains(':') {
                    keep(&mut self.found.errors, self.prefix.join(path).display().to_string());
                }
            }
            "proxy_pass" => self.proxy(node, level, place),
            "fastcgi_pass" => {
                self.found.is_proxy = true;
                keep(&mut self.found.fastcgi, (text(node, 0), place));
            }
            "grpc_pass" | "uwsgi_pass" | "scgi_pass" | "memcached_pass" => self.found.is_proxy = true,
            name => {
                if let Some(became) = old(name, node) {
                    keep(&mut self.found.old, (written(node), became.to_owned(), place));
                }
            }
        }
    }

    fn listen(&mut self, node: &Node, place: String) {
        let address = text(node, 0);
        if node.args.iter().any(|w| *w == "http2") {
            let became = "the parameter is deprecated since nginx 1.25.1: http2 on;".to_owned();
            keep(&mut self.found.old, (written(node), became, place.clone()));
        }
        let (port, last_port) = match address.strip_prefix("unix:") {
            Some(_) => (0, 0),
            None => {
                let after = address.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
                ports(after.map_or(address.as_str(), |(_, port)| port))
            }
        };
        let is_udp = node.args.iter().any(|w| *w == "udp" || *w == "quic");
        let backlog = node.args.iter().find_map(|w| value::number(w.text.strip_prefix(b"backlog=")?));
        keep(&mut self.found.listens, Listen { address, port, last_port, is_udp, backlog, place });
    }

    fn log(&mut self, node: &Node, place: String) {
        let path = text(node, 0);
        // A name with variables is a file for each value; syslog and nothing are no files.
        if path == "off" || path.starts_with("syslog:") || path.contains('$') || path.starts_with("/dev/") {
            return;
        }
        let is_buffered = node.args.iter().any(|w| w.text.starts_with(b"buffer=") || w.text.starts_with(b"gzip"));
        let path = self.prefix.join(path).display().to_string();
        keep(&mut self.found.logs, Log { path, is_buffered, slow: None, place });
    }

    fn proxy(&mut self, node: &Node, level: &Level, place: String) {
        self.found.is_proxy = true;
        let to = text(node, 0);
        let host = to.split_once("://").map_or(to.as_str(), |(_, rest)| rest).split('/').next().unwrap_or_default();
        let group = self.groups.get(host);
        let closes = if level.version == "1.0" {
            Some("proxy_http_version 1.0 closes each".to_owned())
        } else if level.version.is_empty() {
            Some("no proxy_http_version: 1.0 is the default of nginx before 1.29.7, and closes each".to_owned())
        } else if level.connection.as_deref().is_some_and(|c| c.eq_ignore_ascii_case("close")) {
            Some("proxy_set_header Connection close".to_owned())
        } else if group == Some(&Some(0)) {
            Some(format!("upstream {host} has keepalive 0"))
        } else if group.is_none() && host.contains('$') {
            Some("its host is a variable: no pool belongs to it".to_owned())
        } else {
            None
        };
        let is_group = group.is_some();
        keep(&mut self.found.proxies, Proxy { to, closes, is_group, place });
    }
}

/// `80`, `8000-8009`; an address without a port has 80.
fn ports(text: &str) -> (u16, u16) {
    let (first, last) = text.split_once('-').unwrap_or((text, "0"));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => (first, last),
        _ => (80, 0),
    }
}

fn keep<T>(all: &mut Vec<T>, one: T) {
    if all.len() < MOST {
        all.push(one);
    }
}

fn text(node: &Node, at: usize) -> String {
    node.args.get(at).map(|w| w.as_str().into_owned()).unwrap_or_default()
}

fn written(node: &Node) -> String {
    let words: Vec<_> = std::iter::once(&node.name).chain(&node.args).map(|w| w.as_str()).collect();
    words.join(" ")
}

/// What became of a directive of another time.
fn old(name: &str, node: &Node) -> Option<&'static str> {
    let says = |word: &str| node.args.iter().any(|w| *w == *word);
    Some(match name {
        "ssl" if says("on") => "was removed in nginx 1.25.1: listen ... ssl;",
        "spdy_headers_comp" | "spdy_chunk_size" => "was removed with SPDY: http2 on;",
        "limit_zone" => "was removed in nginx 1.7.6: limit_conn_zone",
        "http2_push" | "http2_push_preload" | "http2_max_concurrent_pushes" => {
            "does nothing since nginx 1.25.1; browsers no longer take pushes"
        }
        "http2_max_field_size" | "http2_max_header_size" => {
            "does nothing since nginx 1.19.7: large_client_header_buffers"
        }
        "http2_max_requests" => "does nothing since nginx 1.19.7: keepalive_requests",
        "http2_idle_timeout" => "does nothing since nginx 1.19.7: keepalive_timeout",
        "http2_recv_timeout" => "does nothing since nginx 1.19.7: client_header_timeout",
        "ssl_protocols" if says("SSLv2") || says("SSLv3") => "names protocols that are broken: TLSv1.2 TLSv1.3",
        "ssl_protocols" if says("TLSv1") || says("TLSv1.1") => {
            "names protocols that clients gave up (RFC 8996): TLSv1.2 TLSv1.3"
        }
        "gzip_disable" if says("msie6") => "is for a browser that nobody has; each request pays for it",
        _ => return None,
    })
}

/// What is slow about the disk of a file, or of the nearest folder that is there.
fn slow_disk(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|p| p.exists())?;
    let kind = rustix::fs::statfs(there).ok()?.f_type;
    // linux/magic.h
    let remote = [
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb"),
        (0x6573_5546, "a FUSE file system"),
        (0x00c3_6400, "ceph"),
    ];
    if let Some((_, name)) = remote.iter().find(|(magic, _)| i128::from(kind) & 0xffff_ffff == *magic) {
        return Some((*name).to_owned());
    }
    let device = rustix::fs::stat(there).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has its disk's queue one folder up.
    let folders = ["queue", "../queue"].map(|q| format!("/sys/dev/block/{major}:{minor}/{q}/rotational"));
    let rotates = folders.iter().find_map(|f| std::fs::read_to_string(f).ok())?.trim() == "1";
    // What a hypervisor offers says that it rotates and does not.
    let disk = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    (rotates && !disk.to_string_lossy().contains("virtio")).then(|| "a rotating disk".to_owned())
}

/// Where the APIs of the Ironweirs that run are.
pub(crate) fn apis_of_running() -> Vec<String> {
    let servers = machine::processes::all().into_iter().filter(|(_, name)| name == "ironweir");
    let commands: BTreeMap<PathBuf, Command> =
        servers.filter_map(|(pid, name)| Command::of(pid, &name)).map(|c| (c.file.clone(), c)).collect();
    let read = |c: &Command| Configuration::load_at(&c.file, &c.prefix, Some(c)).ok()?.apis.into_iter().next();
    commands.values().filter_map(read).collect()
}

/// Whether an `error_log` stands at the top, which takes the place of the default one.
fn has_error_log(tree: &Tree) -> bool {
    tree.nodes.iter().any(|n| n.name == "error_log")
}

fn is_server(name: &str) -> bool {
    ["nginx", "ironweir", "openresty", "angie", "freenginx"].contains(&name)
}

/// Configurations of the servers that run: the file that their command line names, or their own default.
pub fn of_running(facts: &machine::Facts) -> Vec<Configuration> {
    let servers = facts.processes.iter().filter(|p| is_server(&p.name));
    let commands: BTreeMap<PathBuf, Command> =
        servers.filter_map(|p| Command::of(p.pid, &p.name)).map(|c| (c.file.clone(), c)).collect();
    commands.values().filter_map(|c| Configuration::load_at(&c.file, &c.prefix, Some(c)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Configuration {
        let (tree, _) = conf::parse(text.as_bytes());
        Configuration::of(&tree, Path::new("/etc/nginx"), &Version::default())
    }

    #[test]
    fn what_levels_say() {
        let c = read(
            "worker_rlimit_nofile 1024; events { worker_connections 4096; }
             http { proxy_http_version 1.0; upstream a { server b; keepalive 8; } upstream none { server b; keepalive 0; }
             access_log logs/a.log combined buffer=64k; access_log off;
             server { listen [::]:8080 backlog=16; listen 443 ssl http2; listen unix:/run/a.sock; ssl_protocols TLSv1 TLSv1.2;
               location / { proxy_pass http://a/x; }
               location /b { proxy_http_version 1.1; proxy_pass http://a; }
               location /c { proxy_http_version 1.1; proxy_pass http://none; }
               location /d { proxy_http_version 1.1; proxy_pass http://$host; }
               location /e { proxy_http_version 1.1; proxy_set_header Connection close; proxy_pass http://a; } } }",
        );
        assert_eq!(c.worker_connections, Some((4096, "/nginx.conf:1".into())));
        assert_eq!(c.worker_rlimit_nofile.unwrap().0, 1024);
        let ranged = read(
            "stream { server { listen 127.0.0.1:8000-8003 udp; listen [::1]:90-92; listen 53 udp; } server { listen ::1; } }",
        );
        let ports: Vec<_> = ranged.listens.iter().map(|l| (l.ports().collect::<Vec<_>>(), l.is_udp)).collect();
        assert_eq!(ports[..3], [(vec![8000, 8001, 8002, 8003], true), (vec![90, 91, 92], false), (vec![53], true)]);
        assert!(ranged.listens[0].has(8003) && !ranged.listens[0].has(8004) && !ranged.listens[0].has(0));
        let listens: Vec<_> = c.listens.iter().map(|l| (l.port, l.backlog)).collect();
        assert_eq!(listens, [(8080, Some(16)), (443, None), (0, None)]);
        assert_eq!((c.logs.len(), c.logs[0].path.as_str(), c.logs[0].is_buffered), (1, "/etc/nginx/logs/a.log", true));
        let closes: Vec<bool> = c.proxies.iter().map(|p| p.closes.is_some()).collect();
        assert_eq!(closes, [true, false, true, true, true]);
        let old: Vec<&str> = c.old.iter().map(|o| o.0.as_str()).collect();
        assert_eq!(old, ["listen 443 ssl http2", "ssl_protocols TLSv1 TLSv1.2"]);
        assert!(c.is_proxy && c.proxies[0].place == "/nginx.conf:5");
    }

    /// nginx proxied with HTTP/1.0 where nothing was said, until 1.29.7.
    #[test]
    fn the_default_of_old_servers_closes() {
        let text = "http { upstream a { server b; keepalive 8; } server { location / { proxy_pass http://a; }
                    location /b { proxy_http_version 1.1; proxy_pass http://a; } } }";
        let closes = |version: Version| -> Vec<bool> {
            let (tree, _) = conf::parse(text.as_bytes());
            let c = Configuration::of(&tree, Path::new("/etc/nginx"), &version);
            c.proxies.iter().map(|p| p.closes.is_some()).collect()
        };
        assert_eq!(closes(Version::default()), [false, false]);
        assert_eq!(closes(Version(Some((1, 22, 1)))), [true, false]);
        assert_eq!(closes(Version(Some((1, 29, 7)))), [false, false]);
    }
}
