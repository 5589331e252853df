//! Where a configuration has an `api`: the URLs at which it can be asked on the machine on which it runs.

use conf::Node;

/// APIs that are kept.
const MOST: usize = 64;

/// All of them, those over plain HTTP first.
pub(super) fn of(nodes: &[Node]) -> Vec<String> {
    let servers = nodes.iter().filter(|n| n.name == "http").flat_map(Node::children).filter(|n| n.name == "server");
    let mut found: Vec<String> = servers.flat_map(of_server).take(MOST).collect();
    found.sort_by_key(|url| url.starts_with("https"));
    found
}

fn of_server(server: &Node) -> Vec<String> {
    let has_api = |n: &&Node| n.name == "location" && n.children().iter().any(|c| c.name == "api");
    let paths: Vec<String> = server.children().iter().filter(has_api).filter_map(path).collect();
    let listens = server.children().iter().filter(|n| n.name == "listen");
    let mut places: Vec<String> = listens.filter_map(place).collect();
    if !server.children().iter().any(|n| n.name == "listen") {
        places.push("http://127.0.0.1:80".to_owned());
    }
    let urls = |place: &String| paths.iter().map(|path| format!("{place}{path}")).collect::<Vec<_>>();
    places.iter().flat_map(urls).collect()
}

/// `location [=|^~] /api/`: expressions say no path.
fn path(location: &Node) -> Option<String> {
    let path = match &location.args[..] {
        [path] => path,
        [how, path] if *how == "=" || *how == "^~" => path,
        _ => return None,
    };
    let path = path.as_str().into_owned();
    path.starts_with('/').then(|| path.trim_end_matches('/').to_owned()).filter(|p| !p.is_empty())
}

/// `listen`: an address of this machine, with a port.
fn place(listen: &Node) -> Option<String> {
    let address = listen.args.first()?.as_str().into_owned();
    // Sockets without a port, ranges, and sockets that begin with a PROXY header cannot be asked by a client.
    let has = |word: &str| listen.args.iter().any(|w| *w == *word);
    if address.starts_with("unix:") || address.contains('-') || has("proxy_protocol") || has("quic") {
        return None;
    }
    let scheme = if has("ssl") { "https" } else { "http" };
    let (host, port) = match address.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']')) {
        Some((host, port)) => (host, port.parse::<u16>().ok()?),
        None => match address.parse::<u16>() {
            Ok(port) => ("*", port),
            Err(_) => (address.as_str(), 80),
        },
    };
    let host = match host {
        "*" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        other => other,
    };
    Some(format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn where_it_can_be_asked() {
        let text = "http { server { listen 443 ssl; listen 8080; listen unix:/a; listen [::]:81; location /api { api; } location /x { } }
                    server { listen 10.0.0.1:90; location ^~ /own/api/ { api write=on; } location ~ ^/a { api; } }
                    server { listen 99 proxy_protocol; location /api { api; } }
                    server { location = /api { api; } } }";
        let (tree, _) = conf::parse(text.as_bytes());
        let expected = [
            "http://127.0.0.1:8080/api",
            "http://[::1]:81/api",
            "http://10.0.0.1:90/own/api",
            "http://127.0.0.1:80/api",
            "https://127.0.0.1:443/api",
        ];
        assert_eq!(super::of(&tree.nodes), expected);
    }
}
