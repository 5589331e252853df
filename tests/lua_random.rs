//! Programs in Lua that nobody would write: calls by chance with arguments by chance, in phases by chance. None may cost more than its own
//! request. Always the same programs: what fails can be tried again.

use crate::harness::{Server, Site};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// How many programs of chance there are.
const PROGRAMS: usize = 300;
/// Where their numbers begin.
const SEED: u64 = 0x1a0_0ad5;

/// Numbers by chance (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// The phases of a request, as directives have them, and what messages call them.
const PHASES: &[(&str, &str)] = &[
    ("server_rewrite", "server_rewrite_by_lua*"),
    ("rewrite", "rewrite_by_lua*"),
    ("access", "access_by_lua*"),
    ("precontent", "precontent_by_lua*"),
    ("content", "content_by_lua*"),
    ("set", "set_by_lua*"),
    ("header_filter", "header_filter_by_lua*"),
    ("body_filter", "body_filter_by_lua*"),
    ("log", "log_by_lua*"),
    ("timer", "ngx.timer"),
];

/// What is called.
const CALLS: &[&str] = &[
    "ngx.say",
    "ngx.print",
    "ngx.flush",
    "ngx.eof",
    "ngx.exit",
    "ngx.exec",
    "ngx.redirect",
    "ngx.send_headers",
    "ngx.sleep",
    "ngx.log",
    "ngx.req.get_headers",
    "ngx.req.set_header",
    "ngx.req.clear_header",
    "ngx.req.get_method",
    "ngx.req.set_method",
    "ngx.req.get_uri_args",
    "ngx.req.set_uri_args",
    "ngx.req.set_uri",
    "ngx.req.read_body",
    "ngx.req.get_body_data",
    "ngx.req.get_post_args",
    "ngx.req.get_body_file",
    "ngx.req.set_body_data",
    "ngx.req.init_body",
    "ngx.req.append_body",
    "ngx.req.finish_body",
    "ngx.req.discard_body",
    "ngx.req.socket",
    "ngx.req.is_internal",
    "ngx.req.start_time",
    "ngx.req.http_version",
    "ngx.req.raw_header",
    "ngx.resp.get_headers",
    "ngx.location.capture",
    "ngx.location.capture_multi",
    "ngx.escape_uri",
    "ngx.unescape_uri",
    "ngx.encode_args",
    "ngx.decode_args",
    "ngx.encode_base64",
    "ngx.decode_base64",
    "ngx.crc32_short",
    "ngx.crc32_long",
    "ngx.md5",
    "ngx.md5_bin",
    "ngx.sha1_bin",
    "ngx.hmac_sha1",
    "ngx.quote_sql_str",
    "ngx.time",
    "ngx.now",
    "ngx.update_time",
    "ngx.http_time",
    "ngx.parse_http_time",
    "ngx.cookie_time",
    "ngx.today",
    "ngx.re.match",
    "ngx.re.find",
    "ngx.re.gmatch",
    "ngx.re.sub",
    "ngx.re.gsub",
    "ngx.timer.at",
    "ngx.timer.pending_count",
    "ngx.timer.running_count",
    "ngx.thread.spawn",
    "ngx.thread.wait",
    "ngx.thread.kill",
    "ngx.on_abort",
    "ngx.socket.tcp",
    "ngx.socket.udp",
    "ngx.get_phase",
    "ngx.is_subrequest",
    "ngx.worker.id",
    "ngx.worker.exiting",
    "coroutine.create",
    "coroutine.wrap",
    "coroutine.resume",
    "coroutine.status",
    "coroutine.running",
    "dict('get')",
    "dict('set')",
    "dict('add')",
    "dict('replace')",
    "dict('incr')",
    "dict('delete')",
    "dict('lpush')",
    "dict('rpush')",
    "dict('lpop')",
    "dict('rpop')",
    "dict('llen')",
    "dict('ttl')",
    "dict('expire')",
    "dict('get_stale')",
    "dict('flush_all')",
    "dict('flush_expired')",
    "dict('get_keys')",
    "dict('free_space')",
    "dict('capacity')",
    "socket('connect')",
    "socket('send')",
    "socket('receive')",
    "socket('settimeout')",
    "socket('setkeepalive')",
    "socket('close')",
    "look(ngx.var)",
    "put(ngx.var)",
    "look(ngx.header)",
    "put(ngx.header)",
    "look(ngx.ctx)",
    "put(ngx.ctx)",
    "look(ngx.arg)",
    "put(ngx.arg)",
    "status",
    "require('ngx.re').split",
    "require('ngx.ssl').server_name",
    "require('ngx.balancer').set_current_peer",
    "require('ngx.errlog').get_logs",
    "require('ngx.process').type",
    "require('cjson').encode",
    "require('cjson').decode",
    "require('ngx.semaphore').new",
];

/// What they are called with. No address of a subrequest leads back here, and nothing sleeps for long.
const ARGUMENTS: &[&str] = &[
    "nil",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "0.001",
    "200",
    "404",
    "444",
    "1e300",
    "0/0",
    "''",
    "'a'",
    "'/ok'",
    "'/missing?a=b'",
    "'@ok'",
    "'127.0.0.1'",
    "'jo'",
    "'(a)(b)?'",
    "'['",
    "'\\0\\r\\n'",
    "string.rep('x', 5000)",
    "{}",
    "{'a', 1}",
    "{a = 'b'}",
    "{args = {a = {}}}",
    "{{'/ok'}, {'/missing', {method = 2}}}",
    "{body = 'b', ctx = {}, vars = {v = 'w'}}",
    "function(...) return ... end",
    "function() error('by chance') end",
    "function() ngx.say(ngx.get_phase()) end",
    "function() ngx.sleep(0.001) end",
    "ngx.null",
    "coroutine.create(print)",
    "ngx.shared.d",
    "print",
];

/// What all programs have.
const AROUND: &str = "local function dict(name) return function(...) return ngx.shared.d[name](ngx.shared.d, ...) end end
local function socket(name) return function(...) local s = ngx.socket.tcp() s:settimeout(20) return s[name](s, ...) end end
local function look(t) return function(k) return t[k] end end
local function put(t) return function(k, v) t[k] = v end end
local function status(v) ngx.status = v return ngx.status end
local function try(f, ...) return pcall(f, ...) end\n";

/// A program's place in a location.
fn placed(phase: &str, program: &str) -> String {
    match phase {
        "content" => format!("content_by_lua_block {{ {program} }}"),
        "set" => format!("set_by_lua_block $set {{ {program} return 'x' }} return 200 \"$set\";"),
        "timer" => format!("content_by_lua_block {{ ngx.timer.at(0, function() {program} end) ngx.say('ok') }}"),
        // A rewrite of the location's would come before.
        "server_rewrite" => format!(
            "}} server {{ listen 127.0.0.1:@PORT@; server_name @NAME@; server_rewrite_by_lua_block {{ {program} }} location / {{ content_by_lua_block {{ ngx.say('ok') }} }}"
        ),
        other => format!("{other}_by_lua_block {{ {program} }} content_by_lua_block {{ ngx.say('ok') }}"),
    }
}

/// A server of programs: each has a host of its own.
fn site(programs: &[(&str, String)]) -> Site {
    let mut text = String::from(
        "lua_shared_dict d 64k; lua_socket_log_errors off; server { listen 127.0.0.1:@PORT@ default_server; location / { return 200 alive; } }\n",
    );
    for (number, (phase, program)) in programs.iter().enumerate() {
        let place = placed(phase, program);
        let place = match *phase {
            "server_rewrite" => place.trim_start_matches("} ").to_owned(),
            _ => format!(
                "server {{ listen 127.0.0.1:@PORT@; server_name @NAME@; set $v 1; location = /ok {{ return 200 ok; }} location @ok {{ return 200 ok; }}
                 location / {{ {place} }}"
            ),
        };
        let _ = writeln!(text, "{} }}", place.replace("@NAME@", &format!("p{number}")));
    }
    Site::http(&text)
}

/// Asks a program's host, and takes whatever comes.
fn ask(server: &Server, number: usize) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
    let head = format!("POST /x?a=1 HTTP/1.1\r\nHost: p{number}\r\nConnection: close\r\nContent-Length: 3\r\n\r\nb=c");
    client.write_all(head.as_bytes()).expect("it reads");
    let mut said = Vec::new();
    let ended = client.read_to_end(&mut said);
    let is_late = ended
        .as_ref()
        .is_err_and(|e| matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
    assert!(!is_late, "program {number} has not ended");
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn programs_of_chance_cost_nothing_but_themselves() {
    let mut chance = Chance(SEED);
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|_| {
            let phase = PHASES[chance.below(PHASES.len())].0;
            let mut program = AROUND.to_owned();
            for _ in 0..1 + chance.below(5) {
                let call = chance.of(CALLS);
                let count = chance.below(4);
                let arguments: Vec<_> = (0..count).map(|_| chance.of(ARGUMENTS)).collect();
                let given = arguments.iter().map(|a| format!(", {a}")).collect::<String>();
                // Some by themselves, most so that the next one has its turn.
                let _ = match chance.below(5) {
                    0 => writeln!(program, "do local f = {call} f({}) end", given.trim_start_matches(", ")),
                    _ => writeln!(program, "try(function(...) return ({call})(...) end{given})"),
                };
            }
            (phase, program)
        })
        .collect();
    let server = site(&programs).start();
    // Who answers has begun.
    assert_eq!(server.get("/").text(), "alive");
    server.wait_for("logs/nginx.pid", "\n");
    let workers = server.worker_pids();
    assert!(!workers.is_empty());
    for number in 0..PROGRAMS {
        ask(&server, number);
    }
    assert_eq!(server.get("/").text(), "alive");
    assert_eq!(server.worker_pids(), workers);
    let log = server.error_log();
    for sign in ["panicked at", "after a panic", "exited on signal", "[emerg]"] {
        let line = log.lines().position(|l| l.contains(sign));
        let around: Vec<_> = line.map(|at| log.lines().skip(at).take(4).collect()).unwrap_or_default();
        assert!(around.is_empty(), "{sign}: {around:#?}");
    }
}

#[test]
fn the_wrong_phase_says_so() {
    let answers = &["content", "access", "rewrite", "server_rewrite", "precontent"][..];
    let waits = &[answers, &["timer"]].concat()[..];
    let calls = [
        ("ngx.say('a')", answers),
        ("ngx.print('a')", answers),
        ("ngx.flush()", answers),
        ("ngx.eof()", answers),
        ("ngx.send_headers()", answers),
        ("ngx.exec('/ok')", answers),
        ("ngx.redirect('/ok')", answers),
        ("ngx.location.capture('/ok')", answers),
        ("ngx.location.capture_multi({{'/ok'}})", answers),
        ("ngx.req.read_body()", answers),
        ("ngx.req.socket()", answers),
        ("ngx.on_abort(print)", answers),
        ("ngx.sleep(0.001)", waits),
        ("ngx.thread.spawn(print)", waits),
        ("ngx.socket.tcp()", waits),
        ("ngx.socket.udp()", waits),
    ];
    let wrong: Vec<_> = PHASES
        .iter()
        .flat_map(|phase| {
            calls.iter().filter(|(_, right)| !right.contains(&phase.0)).map(move |(call, _)| (phase, *call))
        })
        .collect();
    let programs: Vec<_> = wrong
        .iter()
        .enumerate()
        .map(|(number, (phase, call))| {
            let program = format!("local ok, why = pcall(function() return {call} end) ngx.log(ngx.WARN, 'call {number}: ', ok, ' ', why, '|')");
            (phase.0, program)
        })
        .collect();
    let server = site(&programs).start();
    for (number, ((_, context), call)) in wrong.iter().enumerate() {
        ask(&server, number);
        let wanted = format!("call {number}: false");
        server.wait_for("logs/error.log", &wanted);
        let log = server.error_log();
        let line = log.lines().find(|l| l.contains(&format!("{wanted} "))).unwrap_or_default();
        let is_said = line.contains(&format!("API disabled in the context of {context}|"));
        // Of what only a request of a client has, ngx_lua says no more than this in timers.
        let is_fake = *context == "ngx.timer" && line.contains("API disabled in the current context|");
        assert!(is_said || is_fake, "{call} in {context}: {line}");
    }
}
