//! What depends on who asks: `allow`, `geo`, `set_real_ip_from`, `valid_referers`, `map`, `split_clients`.

use crate::harness::{Response, Server, Site};

fn ask(server: &Server, target: &str, lines: &[&str]) -> Response {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).response()
}

#[test]
fn the_address_behind_a_proxy() {
    let server = Site::http(
        "geo $net { default none; 192.0.2.0/24 net; 192.0.2.7 one; delete 127.0.0.1; 2001:db8::/32 six; }
         geo $range { ranges; 192.0.2.0-192.0.2.9 low; }
         server {
             listen 127.0.0.1:@PORT@;
             set_real_ip_from 127.0.0.0/8;
             set_real_ip_from 10.0.0.0/8;
             real_ip_header X-Forwarded-For;
             location / { return 200 \"$remote_addr $realip_remote_addr $net $range\"; }
             location /deep { real_ip_recursive on; try_files /none @deep; }
             location @deep { return 200 \"$remote_addr\"; }
             location /door { allow 192.0.2.0/24; deny all; return 200 in; }
             location /guarded { allow 192.0.2.0/24; deny all; }
         }",
    )
    .file("html/guarded", "in")
    .start();
    let from = |target: &str, list: &str| ask(&server, target, &[&format!("X-Forwarded-For: {list}")]);
    assert_eq!(server.get("/").text(), "127.0.0.1 127.0.0.1 none ");
    assert_eq!(from("/", "192.0.2.7").text(), "192.0.2.7 127.0.0.1 one low");
    assert_eq!(from("/", "192.0.2.7, 192.0.2.8:99").text(), "192.0.2.8 127.0.0.1 net low");
    assert_eq!(from("/", "2001:db8::5").text(), "2001:db8::5 127.0.0.1 six ");
    assert_eq!(from("/", "nonsense").text(), "127.0.0.1 127.0.0.1 none ");
    assert_eq!(from("/guarded", "192.0.2.7").text(), "in");
    assert_eq!(from("/guarded", "198.51.100.1").status, 403);
    assert_eq!(server.get("/guarded").status, 403);
    // `return` comes before the access phase.
    assert_eq!(from("/door", "198.51.100.1").status, 200);
    // The next request of the connection has the connection's address again.
    let mut client = server.connect();
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\n";
    let first = client.send(format!("{head}X-Forwarded-For: 192.0.2.7\r\n\r\n")).response();
    assert!(first.text().starts_with("192.0.2.7 "));
    assert!(client.get("/").text().starts_with("127.0.0.1 "));
}

#[test]
fn the_client_of_the_proxy_protocol() {
    let server = Site::http(
        "server {
             listen 127.0.0.1:@PORT@ proxy_protocol;
             set_real_ip_from 127.0.0.1;
             real_ip_header proxy_protocol;
             return 200 \"$remote_addr:$remote_port $proxy_protocol_server_port $realip_remote_addr\";
         }",
    )
    .start();
    let mut client = server.connect();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 1234 5678\r\n");
    assert_eq!(client.get("/").text(), "192.0.2.1:1234 5678 127.0.0.1");
    assert_eq!(client.get("/").text(), "192.0.2.1:1234 5678 127.0.0.1", "for every request of the connection");
    assert!(server.connect().send("GET / HTTP/1.0\r\n\r\n").is_closed());
}

#[test]
fn maps() {
    let server = Site::http(
        "map $arg_a $plain { default d; A one; \\~x tilde; ~*^re(?<rest>.*)$ \"$rest:$1\"; \"\" empty; }
         map $arg_a $host_of { hostnames; default d; .example.com wide; www.* tail; a.example.com exact; }
         split_clients $arg_a $drawn { 50% half; * rest; }
         server {
             listen 127.0.0.1:@PORT@;
             location /plain { return 200 \"$plain\"; }
             location /host { return 200 \"$host_of\"; }
             location /split { return 200 \"$drawn\"; }
         }",
    )
    .start();
    let said = |target: &str| server.get(target).text();
    assert_eq!(said("/plain?a=a"), "one");
    assert_eq!(said("/plain?a=zzz"), "d");
    assert_eq!(said("/plain?a=~x"), "tilde");
    assert_eq!(said("/plain?a=REst"), "st:st");
    assert_eq!(said("/plain"), "empty");
    assert_eq!(said("/host?a=example.com."), "wide");
    assert_eq!(said("/host?a=x.Example.com"), "wide");
    assert_eq!(said("/host?a=a.example.com"), "exact");
    assert_eq!(said("/host?a=www.example.net"), "tail");
    let drawn: Vec<String> = (0..64).map(|i| said(&format!("/split?a={i}"))).collect();
    assert!(drawn.iter().any(|d| d == "half") && drawn.iter().any(|d| d == "rest"));
}

#[test]
fn referers() {
    let server = Site::server(
        "server_name own.example;
         location / { valid_referers none blocked server_names *.friend.example/pages/ ~\\.pattern\\.; return 200 \"<$invalid_referer>\"; }",
    )
    .start();
    let from = |referer: &str| ask(&server, "/", &[&format!("Referer: {referer}")]).text();
    assert_eq!(server.get("/").text(), "<>");
    assert_eq!(from("masked"), "<>");
    assert_eq!(from("http://own.example:80/x"), "<>");
    assert_eq!(from("https://a.friend.example/pages/1"), "<>");
    assert_eq!(from("https://a.friend.example/other"), "<1>");
    assert_eq!(from("http://www.pattern.org"), "<>");
    assert_eq!(from("http://stranger.example/"), "<1>");
}

#[test]
fn a_unix_socket_has_a_path_for_an_address() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://unix:@DIR@/s; } }
         server { listen unix:@DIR@/s; return 200 \"$server_addr|$server_port|$remote_addr\"; }",
    )
    .start();
    assert_eq!(server.get("/").text(), format!("unix:{}/s||unix:", server.dir().display()));
}
