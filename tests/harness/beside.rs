//! Programs that tests run beside the server.

use super::{Program, Server, Site};
use std::process::{Child, Command};

/// How much is shown of answers that differ.
const SHOWN: usize = 400;

/// A program that ends with the test.
pub struct Beside(pub Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of Debian's; said aloud where it is not there.
pub fn program(name: &str) -> Option<Command> {
    let found = ["/usr/bin", "/usr/local/bin", "/usr/sbin"].iter().map(|d| format!("{d}/{name}"));
    let found = found.into_iter().find(|p| std::path::Path::new(p).exists());
    if found.is_none() {
        println!("{name} is not installed: left out");
    }
    found.map(Command::new)
}

/// The file of a module of nginx (`NGINX_MODULES` names another directory than Debian's); said aloud where it is not there.
pub fn nginx_module(name: &str) -> Option<String> {
    let folder = std::env::var("NGINX_MODULES").unwrap_or("/usr/lib/nginx/modules".into());
    let path = format!("{folder}/{name}.so");
    let found = std::path::Path::new(&path).exists() && Program::Nginx.path().is_some();
    if !found {
        println!("nginx with {name} is not installed: not compared");
    }
    found.then_some(path)
}

/// Asks nginx with some of its modules, and Ironweir, the same requests: status, headers and body must be equal. `site` makes the
/// site for a text that stands before `events`; a request is its line with headers, without the empty line.
pub fn compare_with_nginx(modules: &[&str], site: impl Fn(&str) -> Site, requests: &[&str]) {
    let files: Vec<String> = modules.iter().filter_map(|name| nginx_module(name)).collect();
    if files.len() != modules.len() {
        return;
    }
    let loads: String = files.iter().map(|file| format!("load_module {file};\n")).collect();
    let nginx = site(&loads).start_as(Program::Nginx).expect("nginx is there");
    let ironweir = site(&loads).start_as(Program::Ironweir).expect("Ironweir is built");
    let mut different = Vec::new();
    for request in requests {
        let [theirs, ours] = [&nginx, &ironweir].map(|server| seen(server, request));
        if theirs != ours {
            // From a little before the first place that differs.
            let place =
                theirs.bytes().zip(ours.bytes()).position(|(a, b)| a != b).unwrap_or(0).saturating_sub(SHOWN / 2);
            let [theirs, ours] = [&theirs, &ours].map(|text| text.chars().skip(place).take(SHOWN).collect::<String>());
            different.push(format!("== {request}\nnginx:    {theirs}\nironweir: {ours}"));
        }
    }
    assert!(different.is_empty(), "{} of {} differ\n{}", different.len(), requests.len(), different.join("\n"));
}

/// An answer without what differs between two servers anyway: names, times, the port and the directory.
fn seen(server: &Server, request: &str) -> String {
    let mut client = server.connect();
    client.send(format!("{request}\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    let Some(answer) = client.read_response(request.starts_with("HEAD")) else { return "none".into() };
    let plain = |text: &str| {
        let text =
            text.replace(&format!(":{}", server.port), ":PORT").replace(&server.dir().display().to_string(), "DIR");
        text.replace("nginx/1.22.1", "SERVER").replace(concat!("ironweir/", env!("CARGO_PKG_VERSION")), "SERVER")
    };
    let body = plain(&answer.text());
    // The server's name in an error page is as long as it is.
    let left_out = |name: &str| name == "Date" || (name == "Content-Length" && body.contains("SERVER"));
    let mut lines: Vec<String> =
        answer.headers.iter().filter(|(name, _)| !left_out(name)).map(|(n, v)| format!("{n}: {}", plain(v))).collect();
    lines.sort();
    format!("{} {lines:?} {body:?}", answer.status)
}
