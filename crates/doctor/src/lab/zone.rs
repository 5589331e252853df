//! A shared zone in pieces. nginx's slab allocator gives each page to entries of one size: when short keys have filled a zone and nearly all of
//! them are gone, each page still has one, and a longer key finds no page though the zone is nearly empty. Ironweir counts bytes, and has no pages.

use super::server::{Folder, Server, own_program};
use super::{Bench, Outcome, Stop, failed, program};
use crate::configuration::Configuration;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const PORT: u16 = 8080;
/// Clients at most: a zone of 32 kB is full before that.
const MOST: usize = 1_000;
/// A page of nginx's has 64 entries of short keys: of those that stay, each page has two.
const STAYS: usize = 32;
const LONG_KEY: usize = 200;
const CONF: &str = "daemon off; user root; worker_processes 1; pid @DIR@/nginx.pid; error_log @DIR@/error.log;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy; fastcgi_temp_path @DIR@/fastcgi; uwsgi_temp_path @DIR@/uwsgi;
  scgi_temp_path @DIR@/scgi; limit_conn_zone $arg_key zone=lab:32k; client_body_timeout 300s;
  server { listen 127.0.0.1:8080 backlog=1024; location = /status { stub_status; } location / { limit_conn lab 1; proxy_pass http://127.0.0.1:9; } } }
";

pub(super) fn run(bench: &mut Bench) -> Outcome {
    match program(&["nginx"]) {
        None => bench.say("  nginx is not installed: its half is left out"),
        Some(nginx) => {
            let folder = Folder::new("zone")?;
            if fragmented(bench, "nginx", Path::new(&nginx), &folder)? {
                return Err(Stop::Failed("nginx has room for a long key: its zone is not in pieces".into()));
            }
            let conf = Configuration::load(&folder.0.join("nginx.conf")).map_err(Stop::Failed)?;
            bench.found("zone-full", &[conf])?;
        }
    }
    let folder = Folder::new("zone")?;
    match fragmented(bench, "ironweir", &own_program()?, &folder)? {
        true => Ok(()),
        false => Err(Stop::Failed("Ironweir has no room for a long key".into())),
    }
}

/// Fills a zone with short keys, takes nearly all of them away, and says whether a long key has room then.
fn fragmented(bench: &Bench, name: &str, program: &Path, folder: &Folder) -> Result<bool, Stop> {
    folder.configure(CONF)?;
    let _server = Server::start(program, folder)?;
    bench.wait("the server does not listen", || TcpStream::connect(("127.0.0.1", PORT)).is_ok())?;
    let mut held = Vec::new();
    while let Some(stream) = hold(&format!("{:05}", held.len()))? {
        held.push(stream);
        if held.len() > MOST {
            return Err(Stop::Failed(format!("{MOST} keys are in a zone of 32 kB, and it is not full")));
        }
    }
    let all = held.len();
    let left: Vec<TcpStream> = held.into_iter().enumerate().filter(|(n, _)| n % STAYS == 0).map(|(_, s)| s).collect();
    bench.wait("the server does not see that clients have gone", || {
        // This question is one of the connections, and nginx keeps that of the key without room for a while.
        connections().is_some_and(|n| n <= left.len() + 2)
    })?;
    let short = hold("again")?.is_some();
    let long = hold(&"x".repeat(LONG_KEY))?.is_some();
    let word = |has: bool| if has { "has room" } else { "is refused with 503" };
    bench.say(&format!(
        "  {name}: {all} short keys fill the zone; {} of them stay; then a short key {}, one of {LONG_KEY} bytes {}",
        left.len(),
        word(short),
        word(long)
    ));
    if !short {
        return Err(Stop::Failed("places that were given back are not there".into()));
    }
    Ok(long)
}

/// A request whose body never comes, so that its key stays; none: it was refused for want of room.
fn hold(key: &str) -> Result<Option<TcpStream>, Stop> {
    let ask = || -> std::io::Result<(TcpStream, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let head =
            format!("POST /?key={key} HTTP/1.1\r\nHost: lab\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        Ok((stream, String::from_utf8_lossy(&line).into_owned()))
    };
    match ask().map_err(failed("a request"))? {
        (stream, line) if line.ends_with("100") => Ok(Some(stream)),
        (_, line) if line.ends_with("503") => Ok(None),
        (_, line) => Err(Stop::Failed(format!("\"{line}\" is neither 100 nor 503"))),
    }
}

/// Connections that the server has.
fn connections() -> Option<usize> {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).ok()?;
    stream.write_all(b"GET /status HTTP/1.0\r\nHost: lab\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split_once("Active connections: ")?.1.split_whitespace().next()?.parse().ok()
}
