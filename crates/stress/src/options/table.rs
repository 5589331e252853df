//! The table of options, in the order in which `--help` shows them.

use super::value::{cidr, count, duration, rate, stages};
use super::{Closing, Options};
use std::path::PathBuf;

/// Requests at a time on one connection: more than any server takes.
const MAX_STREAMS: usize = 10_000;

/// Where an option stands in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// How much, for how long.
    Load,
    /// What is sent.
    Requests,
    /// How connections are made and ended.
    Connections,
    /// Encryption.
    Tls,
    /// Connections that stay.
    Hold,
    /// The highest rate that holds.
    Search,
    /// More machines, for the controller.
    Agents,
    /// More machines, for an agent.
    Listening,
    /// More machines, for both.
    Between,
    /// What is printed and written.
    Output,
    /// What there is to know of the command itself.
    About,
}

impl Section {
    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Section::Load => "Load",
            Section::Requests => "Requests",
            Section::Connections => "Connections",
            Section::Tls => "TLS",
            Section::Hold => "Held connections",
            Section::Search => "The highest rate",
            Section::Agents => "Many machines",
            Section::Listening => "Listening",
            Section::Between => "Between controller and agents",
            Section::Output => "Output",
            Section::About => "About",
        }
    }
}

/// One option.
pub struct Row {
    /// Without its dashes.
    pub long: &'static str,
    /// The letter, if it has one.
    pub short: Option<char>,
    /// What its value is called; `None`: it takes none.
    pub value: Option<&'static str>,
    /// Where it stands.
    pub section: Section,
    /// One or two sentences.
    pub help: &'static str,
    pub(super) set: fn(&mut Options, &str) -> Result<(), String>,
}

macro_rules! rows {
    ($($section:ident: $short:expr, $long:literal $($value:literal)?, $help:literal, $set:expr;)*) => {
        /// All options.
        pub const ROWS: &[Row] = &[$(Row {
            long: $long,
            short: $short,
            value: rows!(@value $($value)?),
            section: Section::$section,
            help: $help,
            set: $set,
        }),*];
    };
    (@value $value:literal) => { Some($value) };
    (@value) => { None };
}

rows! {
    Load: Some('t'), "threads" "N", "Threads. Default: 2, or 1 on a machine with one CPU.", |o, v| put(&mut o.threads, positive(v));
    Load: Some('c'), "connections" "N", "Connections kept open, over all threads. Default: 10.", |o, v| put(&mut o.connections, positive(v));
    Load: Some('d'), "duration" "T", "How long: 500ms, 10s, 5m. Default: 10s.", |o, v| put(&mut o.duration, duration(v));
    Load: Some('R'), "rate" "N", "Requests a second, sent on a schedule whether or not answers come (open loop). Without it each connection sends when it has its answer (closed loop).", |o, v| put(&mut o.rate, rate(v));
    Load: None, "stages" "T:R,...", "Rates one after the other: 10s:1000,1m:5000 steps, 30s:1000-5000 ramps, 1s:20000 is a spike.", |o, v| stages(v).map(|s| o.stages = s);
    Load: Some('n'), "requests" "N", "Ends after N requests.", |o, v| put(&mut o.requests, count(v));
    Load: None, "api" "URL", "The target's API (where a location has \"api\"). Before the run it is asked for what may spoil it, and by --find-max for connections that were turned away.", |o, v| text(&mut o.api, v);
    Load: None, "preset" "NAME", "forwarding (short connections) or throughput (kept ones); prints what it sets and why.", |o, v| text(&mut o.preset, v);
    Requests: Some('m'), "method" "NAME", "The method. Default: GET, or POST with a body.", |o, v| text(&mut o.method, v);
    Requests: Some('H'), "header" "NAME:VALUE", "A header line; may stand several times.", header;
    Requests: Some('b'), "body" "TEXT", "The body.", |o, v| { o.body = Some(v.into()); Ok(()) };
    Requests: Some('B'), "body-file" "FILE", "The body, from a file.", |o, v| path(&mut o.body_file, v);
    Requests: None, "url-file" "FILE", "URLs or paths, one a line, sent in turn; a method may stand before each.", |o, v| path(&mut o.url_file, v);
    Requests: None, "har" "FILE", "The requests of a browser's recording, in turn: those to the URL's host, or to the first one's.", |o, v| path(&mut o.har, v);
    Requests: Some('s'), "script" "FILE", "A script with wrk's hooks: setup init delay request response done.", |o, v| path(&mut o.script, v);
    Requests: None, "http" "VERSION", "1.1, 2 or 3. Default: 1.1. HTTP/2 is agreed on by ALPN, or without TLS spoken from the first byte on; HTTP/3 is spoken over QUIC, to an https URL.", |o, v| text(&mut o.http, v);
    Requests: None, "streams" "N", "HTTP/2 and 3: requests that a connection carries at a time. Default: 1.", |o, v| put(&mut o.streams, streams(v));
    Requests: None, "timeout" "T", "An answer later than this counts as an error and its connection is replaced. Default: 2s.", |o, v| put(&mut o.timeout, duration(v));
    Requests: Some('T'), "wrk2-timeout" "T", "The same, as wrk2 writes it.", |o, v| put(&mut o.timeout, duration(v));
    Connections: None, "no-keepalive", "A new connection for each request.", |o, _| flag(&mut o.no_keepalive);
    Connections: None, "close" "WHO", "server, client or rst: who ends a connection, after one request each. rst leaves no TIME_WAIT.", closing;
    Connections: None, "unix" "PATH", "Connects to a unix socket instead of the URL's host.", |o, v| path(&mut o.unix, v);
    Connections: None, "proxy-protocol" "V", "Sends a PROXY header of version 1 or 2 first.", proxy_protocol;
    Connections: None, "source" "ADDRESS[/BITS]", "Local addresses to connect from, in turn; each gives another 28,000 to 64,000 connections to one target.", |o, v| cidr(v).map(|c| o.sources.push(c));
    Connections: None, "backend-header" "NAME", "Counts the values of this response header: the spread over the balancer's backends.", |o, v| text(&mut o.backend_header, v);
    Tls: None, "sni" "NAME", "The server's name in the handshake, if not the URL's.", |o, v| text(&mut o.sni, v);
    Tls: None, "cacert" "FILE", "Checks the server's certificate against these. Without it, it is not checked: this is a load tool.", |o, v| path(&mut o.cacert, v);
    Tls: Some('k'), "insecure", "Does not check the certificate, whatever --cacert says.", |o, _| flag(&mut o.insecure);
    Tls: None, "cert" "FILE", "A client certificate, PEM.", |o, v| path(&mut o.cert, v);
    Tls: None, "key" "FILE", "Its key, PEM.", |o, v| path(&mut o.key, v);
    Tls: None, "no-resumption", "A full handshake for each connection.", |o, _| flag(&mut o.no_resumption);
    Hold: None, "hold" "N", "Opens N connections and keeps them.", |o, v| put(&mut o.hold, positive(v));
    Hold: None, "hold-protocol" "NAME", "http (idle after one answer), longpoll, sse, websocket, mqtt. Default: by the URL's scheme (ws, mqtt), else http.", |o, v| text(&mut o.hold_protocol, v);
    Hold: None, "ramp" "R/s", "New connections a second. Default: 1000.", |o, v| put(&mut o.ramp, rate(v));
    Hold: None, "heartbeat" "T", "Sends something on each connection that often: a request, a ping, a PINGREQ.", |o, v| put(&mut o.heartbeat, duration(v));
    Hold: None, "topic" "NAME", "MQTT: what is subscribed to.", |o, v| text(&mut o.topic, v);
    Hold: None, "qos" "N", "MQTT: 0 or 1.", qos;
    Hold: None, "mqtt" "VERSION", "MQTT: 3.1.1 or 5. Default: 5.", |o, v| text(&mut o.mqtt, v);
    Search: None, "find-max", "Looks for the highest rate that meets --slo, in at most 12 steps.", |o, _| flag(&mut o.find_max);
    Search: None, "slo" "LIST", "What must hold, as in 'p99<50ms,errors<0.1%'.", |o, v| text(&mut o.slo, v);
    Search: None, "step" "T", "How long each rate is tried. Default: 5s.", |o, v| put(&mut o.step, duration(v));
    Agents: None, "agents" "H:P,...", "Runs on these agents (ironweir agent --listen :7070 --token-file F), a part on each, and merges what they measured. They get scripts, bodies and lists of URLs from here; --cert, --key and --cacert are files of theirs.", |o, v| text(&mut o.agents, v);
    Listening: None, "listen" "ADDRESS:PORT", "Where controllers find this agent. Off loopback only with --token-file or --tls-ca: whoever can reach it can send load anywhere.", |o, v| text(&mut o.listen, v);
    Listening: None, "advertise" "H:P", "What the agent is called in etcd. Default: its address towards etcd, and the port it listens on.", |o, v| text(&mut o.advertise, v);
    Between: None, "token-file" "FILE", "A token in its first line, the same on both sides; it travels in clear unless TLS is spoken.", |o, v| path(&mut o.token_file, v);
    Between: None, "tls-cert" "FILE", "This side's certificate, PEM. An agent with one speaks TLS.", |o, v| path(&mut o.tls_cert, v);
    Between: None, "tls-key" "FILE", "Its key, PEM.", |o, v| path(&mut o.tls_key, v);
    Between: None, "tls-ca" "FILE", "Who must have signed the other side's certificate. A controller with one speaks TLS.", |o, v| path(&mut o.tls_ca, v);
    Between: None, "etcd" "URL,...", "Agents are registered in etcd, with a lease; the controller finds them there, and takes the cluster's lock.", |o, v| text(&mut o.etcd, v);
    Between: None, "cluster" "NAME", "Which agents belong together in etcd. Default: default.", |o, v| text(&mut o.cluster, v);
    Output: Some('L'), "latency", "Prints the latency's distribution.", |o, _| flag(&mut o.latency);
    Output: None, "json" "FILE", "Writes the results as JSON; - is the standard output, and nothing else is printed there.", |o, v| path(&mut o.json, v);
    Output: None, "csv" "FILE", "Writes one line a second.", |o, v| path(&mut o.csv, v);
    Output: None, "html" "FILE", "Writes one self-contained page with curves.", |o, v| path(&mut o.html, v);
    Output: None, "compare" "OLD.json", "Compares two --json files: --compare old.json new.json.", |o, v| path(&mut o.compare, v);
    Output: None, "fail-if" "LIST", "Exit status 3 if one holds, as in 'p99>80ms,errors>1%'.", |o, v| text(&mut o.fail_if, v);
    Output: Some('q'), "quiet", "Prints the summary only.", |o, _| flag(&mut o.quiet);
    Output: None, "plain", "Plain lines even on a terminal.", |o, _| flag(&mut o.plain);
    Output: None, "no-preflight", "Does not look at the machine and the target before the run.", |o, _| flag(&mut o.no_preflight);
    About: None, "man", "Prints the man page.", |o, _| flag(&mut o.man);
    About: None, "completion" "SHELL", "Prints completions for bash, zsh or fish.", |o, v| text(&mut o.completion, v);
    About: Some('v'), "version", "Prints the version.", |o, _| flag(&mut o.version);
    About: Some('h'), "help", "Prints this.", |o, _| flag(&mut o.help);
}

fn put<T>(place: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *place = Some(value?);
    Ok(())
}

fn text(place: &mut Option<String>, value: &str) -> Result<(), String> {
    *place = Some(value.to_owned());
    Ok(())
}

fn path(place: &mut Option<PathBuf>, value: &str) -> Result<(), String> {
    *place = Some(value.into());
    Ok(())
}

fn flag(place: &mut bool) -> Result<(), String> {
    *place = true;
    Ok(())
}

fn positive(value: &str) -> Result<usize, String> {
    let number = usize::try_from(count(value)?).map_err(|_| "too many".to_owned())?;
    if (1..=10_000_000).contains(&number) { Ok(number) } else { Err("from 1 to 10M".to_owned()) }
}

fn streams(value: &str) -> Result<usize, String> {
    positive(value).ok().filter(|n| *n <= MAX_STREAMS).ok_or_else(|| format!("from 1 to {MAX_STREAMS}"))
}

fn header(options: &mut Options, value: &str) -> Result<(), String> {
    let (name, value) = value.split_once(':').ok_or("not NAME:VALUE")?;
    if name.is_empty() || value.contains(['\r', '\n']) || name.contains(|c: char| c <= ' ' || c == '\x7f') {
        return Err("not a header line".to_owned());
    }
    options.headers.push((name.to_owned(), value.trim().to_owned()));
    Ok(())
}

fn closing(options: &mut Options, value: &str) -> Result<(), String> {
    options.close = Some(match value {
        "server" => Closing::Server,
        "client" => Closing::Client,
        "rst" => Closing::Reset,
        _ => return Err("server, client or rst".to_owned()),
    });
    Ok(())
}

fn proxy_protocol(options: &mut Options, value: &str) -> Result<(), String> {
    options.proxy_protocol = Some(match value.trim_start_matches('v') {
        "1" => 1,
        "2" => 2,
        _ => return Err("1 or 2".to_owned()),
    });
    Ok(())
}

fn qos(options: &mut Options, value: &str) -> Result<(), String> {
    options.qos = match value {
        "0" => 0,
        "1" => 1,
        _ => return Err("0 or 1".to_owned()),
    };
    Ok(())
}
