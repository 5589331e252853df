//! `guard`: what happens to requests above a rate, challenges, bans, attack mode; a crowd of good clients behind few addresses among bad ones.

use crate::harness::quic::{client as quic_client, get as quic_get, quic_site, run};
use crate::harness::{Client, Dns, Response, Server, Setup, Site, has_tools, wait};
use crate::shield_slow::connect_from;
use crate::upgrade::Long;
use aws_lc_rs::digest;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn site(rows: &str, more: &str) -> Site {
    Site::http(&format!(
        "log_format g '$status $guard_action $guard_reason $request_id $request_uri'; guard site {{ {rows} }}
         server {{ listen 127.0.0.1:@PORT@; access_log @DIR@/logs/g.log g; location / {{ guard site; return 200 fine; }}
             location /free {{ return 200 free; }}
             location /api {{ api write=on; }} location /metrics {{ prometheus; }} {more} }}"
    ))
}

fn with(server: &Server, target: &str, lines: &str) -> Response {
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).response()
}

fn api(server: &Server, endpoint: &str) -> Value {
    serde_json::from_str(&server.get(&format!("/api/9/ironweir/{endpoint}")).text()).unwrap()
}

/// The cookie that an answer sets, as it is sent back.
fn cookie(response: &Response) -> String {
    let set = response.header("Set-Cookie").expect("a cookie");
    format!("Cookie: {}\r\n", set.split(';').next().unwrap())
}

#[test]
fn what_is_above_a_rate_is_refused_and_says_its_id() {
    let server = site("limit client 1r/m burst=2 refuse; retry_after 7s;", "").start();
    for _ in 0..3 {
        assert_eq!(server.get("/x").text(), "fine");
    }
    let refused = server.get("/x");
    assert_eq!((refused.status, refused.header("Retry-After")), (429, Some("7")));
    let text = refused.text();
    let (_, rest) = text.split_once("<center>Request ").expect("the page names the request");
    let id = &rest[..32];
    server.wait_for("logs/g.log", &format!("429 refused client 1r/m {id} /x"));
    server.wait_for("logs/error.log", &format!("guard \"site\": refused, 1 above client 1r/m, id: {id}"));
    assert_eq!(with(&server, "/x", "User-Agent: another\r\n").text(), "fine", "another client");
    assert_eq!(server.get("/free").text(), "free");
    let said = api(&server, "guards");
    let of = |name: &str| said["site"][name].as_u64().unwrap();
    assert_eq!((of("requests"), of("refused"), of("banned")), (5, 1, 0), "{said}");
    assert_eq!(said["site"]["limits"]["client 1r/m"], 1);
    let page = server.get("/metrics").text();
    for line in [
        "ironweir_guard_requests_total{guard=\"site\",action=\"refused\"} 1",
        "ironweir_guard_limit_exceeded_total{guard=\"site\",limit=\"client 1r/m\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in:\n{page}");
    }
}

#[test]
fn each_action_does_what_it_says() {
    let server = site(
        "pass $arg_friend; limit $arg_log 1r/m log; limit $arg_delay 1r/m delay=300ms; limit $arg_close 1r/m close;
         limit $arg_two 1r/m log; limit $arg_two 1r/m refuse;",
        "",
    )
    .start();
    let twice = |target: &str| {
        assert_eq!(server.get(target).text(), "fine");
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        client.read_response(false)
    };
    assert_eq!(twice("/?log=1").unwrap().text(), "fine");
    let began = Instant::now();
    assert_eq!(twice("/?delay=1").unwrap().text(), "fine");
    assert!(began.elapsed() >= Duration::from_millis(290), "it has waited");
    assert_eq!(twice("/?close=1"), None);
    assert_eq!(twice("/?two=1").unwrap().status, 429, "the severest decides");
    assert_eq!(twice("/?two=2&friend=1").unwrap().text(), "fine");
    for line in ["200 logged $arg_log", "200 delayed $arg_delay", "444 closed $arg_close", "429 refused $arg_two"] {
        server.wait_for("logs/g.log", line);
    }
    server.wait_for("logs/g.log", "200 passed -");
}

#[test]
fn a_challenge_is_answered_by_coming_back_with_a_cookie() {
    let server = site("limit url 1r/m challenge; limit client 1r/m burst=3 refuse;", "").start();
    assert_eq!(server.get("/page?a=1").text(), "fine");
    let asked = server.get("/page?a=1");
    assert_eq!((asked.status, asked.header("Cache-Control")), (302, Some("no-store")));
    let location = asked.header("Location").unwrap().to_owned();
    assert!(
        location.ends_with("/page?a=1") && asked.header("Set-Cookie").unwrap().contains("; HttpOnly; SameSite=Lax")
    );
    let brought = cookie(&asked);
    assert_eq!(with(&server, "/page?a=1", &brought).text(), "fine");
    server.wait_for("logs/g.log", "200 proved - ");
    assert_eq!(server.get("/page?a=1").status, 302, "who does not bring it is asked again");
    let forged = brought.replace("=c00.", "=c00.f");
    assert_eq!(with(&server, "/page?a=1", &forged).status, 302);
    let other = connect_from(Ipv4Addr::new(127, 0, 0, 9), server.port);
    let mut other = other;
    other.write_all(format!("GET /page HTTP/1.0\r\nHost: localhost\r\n{brought}\r\n").as_bytes()).unwrap();
    let mut said = String::new();
    other.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 302"), "a cookie is its address's: {said}");
    // Each has a limit of its own, whatever address it shares.
    for _ in 0..3 {
        assert_eq!(with(&server, "/page", &brought).text(), "fine");
    }
    assert_eq!(with(&server, "/page", &brought).status, 429);
    assert_eq!(with(&server, "/page", &cookie(&server.get("/page"))).text(), "fine");
    // What is no GET keeps its method; nobody is sent to another host.
    let posted =
        server.connect().send("POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx").response();
    assert_eq!(posted.status, 307);
    assert_eq!(server.get("//evil.example/page").text(), "fine");
    let target = server.get("//evil.example/page").header("Location").unwrap().to_owned();
    assert!(target.contains("/.//evil.example/page"), "{target}");
}

/// Nobody looks for a cookie before there can be one: who has been given one is known by all threads, and goes on being so.
#[test]
fn a_cookie_is_known_to_all_threads_and_after_reloads() {
    let server = Site::whole(
        "worker_processes 2; events { } http {
         guard site { limit url 1r/m challenge; }
         log_format g '$guard_action $http_x_n'; access_log @DIR@/logs/g.log g;
         server { listen 127.0.0.1:@PORT@; location / { guard site; return 200 fine; } location /api { api; } } }",
    )
    .start();
    let forged = format!("Cookie: ironweir_guard=c00.ffffffff.0123456789abcdef.{}\r\n", "0".repeat(32));
    assert_eq!(with(&server, "/page", &forged).text(), "fine");
    assert_eq!(with(&server, "/page", &forged).status, 302, "nobody was given a cookie yet");
    let brought = cookie(&server.get("/page"));
    let lines = |brought: &str| {
        let pair = brought.strip_prefix("Cookie: ").unwrap().trim_end();
        [
            format!("Cookie: {pair}\r\n"),
            format!("Cookie: a=1; theme=dark; {pair}; session=0123456789abcdef\r\n"),
            format!("Cookie: a=1;{pair}\r\n"),
            format!("Cookie: a=1\r\nCookie: {pair}; b=2\r\n"),
        ]
    };
    for generation in 1..=2 {
        let count = |n: usize| {
            for lines in lines(&brought) {
                let said = with(&server, "/page", &format!("X-N: {generation}.{n}\r\n{lines}"));
                assert_eq!(said.text(), "fine", "{generation}.{n}: {lines}");
            }
        };
        // Each on a connection of its own, which any of the threads may have.
        (0..16).for_each(count);
        server.wait_for("logs/g.log", &format!("proved {generation}.15"));
        assert_eq!(with(&server, "/page", &forged).status, 302);
        assert_eq!(server.get("/page").status, 302);
        if generation == 1 {
            server.signal(rustix::process::Signal::HUP);
            assert!(wait(|| server.get("/api/9/nginx").text().contains("\"generation\":2")));
        }
    }
}

/// A cookie that another server gave is good by the key that both have, whomever this one has challenged.
#[test]
fn a_cookie_by_a_given_key_is_good_where_nobody_was_challenged() {
    let rows = "limit url 1r/m challenge; limit client 1r/m burst=1 refuse; cookie key=secret;";
    let (one, other) = (site(rows, "").start(), site(rows, "").start());
    let keyless = site(&rows.replace("key=secret", "name=ironweir_guard"), "").start();
    one.get("/page");
    let brought = cookie(&one.get("/page"));
    for server in [&one, &other] {
        assert_eq!(with(server, "/page", &brought).text(), "fine");
        assert_eq!(with(server, "/page", &brought).text(), "fine");
        assert_eq!(with(server, "/page", &brought).status, 429, "it is counted as a client");
    }
    assert_eq!(with(&keyless, "/page", &brought).text(), "fine");
    assert_eq!(with(&keyless, "/page", &brought).status, 302, "a server with a key of its own knows it not");
}

/// The page's own script, run by node with as much of a browser around it as it looks for.
#[test]
fn work_is_done_by_the_pages_script() {
    let server = site("limit url 1r/m work; work 12;", "").start();
    server.get("/page");
    let page = server.get("/page");
    assert_eq!((page.status, page.header("Retry-After")), (429, Some("10")));
    let text = page.text();
    assert!(text.contains("needs JavaScript") && text.contains("Request "), "{text}");
    assert_eq!(
        server.connect().send("POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").response().status,
        429
    );
    let script = text.split("<script>").nth(1).and_then(|rest| rest.split("</script>").next()).expect("a script");
    let around = "const document = { set cookie(c) { this.c = c; console.log(c); }, get cookie() { return this.c; }, getElementById: () => ({}) };
                  const location = { protocol: 'http:', reload() {} };";
    let Ok(mut node) = Command::new("node").arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return println!("LEFT OUT: node is not installed");
    };
    node.stdin
        .take()
        .unwrap()
        .write_all(format!("{around}\n{}", script.replace("\"use strict\";", "")).as_bytes())
        .unwrap();
    let said = String::from_utf8(node.wait_with_output().unwrap().stdout).unwrap();
    let brought = format!("Cookie: {}\r\n", said.split(';').next().unwrap().trim());
    assert!(brought.contains("ironweir_guard=w0c."), "{said}");
    assert_eq!(with(&server, "/page", &brought).text(), "fine");
}

#[test]
fn who_leaves_challenges_is_banned_at_accept_until_it_is_lifted() {
    let server = site("limit url 1r/m challenge; ban 1h unanswered=3;", "").start();
    let ask = |last: u8| {
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, last), server.port);
        let _ = stream.write_all(b"GET /page HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    };
    ask(10);
    let mut open = connect_from(Ipv4Addr::new(127, 0, 0, 20), server.port);
    open.write_all(b"GET /free HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(open.read(&mut [0; 4096]).unwrap() > 0);
    let answers: Vec<String> = (0..6).map(|_| ask(20)).collect();
    assert_eq!(answers.iter().filter(|a| a.starts_with("HTTP/1.1 302")).count(), 4, "{answers:?}");
    assert!(answers[5].is_empty(), "nothing is said at accept");
    open.write_all(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(open.read(&mut [0; 64]).unwrap_or(0), 0, "a connection that was open is closed");
    assert!(ask(21).starts_with("HTTP/1.1 302"), "another address is not");
    let said = api(&server, "bans");
    assert_eq!(said["127.0.0.20"]["reason"], "guard \"site\": url 1r/m", "{said}");
    server.wait_for("logs/error.log", "127.0.0.20 is banned for 3600 s");
    server.wait_for("logs/g.log", "444 banned unanswered challenges");
    assert!(server.get("/metrics").text().contains("ironweir_guard_bans 1\n"));
    assert!(api(&server, "shed")["closed_at_accept"].as_u64().unwrap() >= 1);
    let lifted =
        server.connect().send("DELETE /api/9/ironweir/bans/127.0.0.20 HTTP/1.1\r\nHost: a\r\n\r\n").read_response(true);
    assert_eq!(lifted.unwrap().status, 204);
    assert!(!ask(20).is_empty());
    // Where somebody has answered, nobody is banned for the others.
    let asked = server.get("/page");
    assert_eq!(with(&server, "/page", &cookie(&asked)).text(), "fine");
    assert!((0..20).all(|_| server.get("/page").status == 302));
}

#[test]
fn attack_mode_begins_with_errors_and_ends() {
    let server =
        site("limit url 1r/m refuse under_attack; attack errors=50% for=1s;", "location /bad { return 500; }").start();
    assert!((0..5).all(|_| server.get("/page").status == 200));
    let attack = || {
        (0..30).for_each(|_| drop(server.get("/bad")));
        server.get("/page").status == 429
    };
    assert!(wait(attack), "{}", server.error_log());
    server.wait_for("logs/error.log", "guard \"site\": under attack, by errors");
    assert_eq!(api(&server, "guards")["site"]["under_attack"], true);
    assert!(wait(|| server.get("/page").status == 200), "it ends");
}

#[test]
fn a_dry_run_does_nothing_and_reloads_keep_what_is_known() {
    let server = site("limit url 1r/m ban; dry_run on;", "").start();
    assert!((0..5).all(|_| server.get("/page").text() == "fine"));
    assert_eq!(api(&server, "guards")["site"]["banned"], 4);
    assert_eq!(api(&server, "bans"), serde_json::json!({}));
    server.wait_for("logs/error.log", "guard \"site\": banned, dry run");
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("logs/error.log", "reconfiguring");
    assert!(wait(|| server.get("/api/9/nginx").text().contains("\"generation\":2")));
    assert_eq!(api(&server, "guards")["site"]["banned"], 4, "the same limits go on");
    // A hot page is hot still.
    server.get("/page");
    assert_eq!(api(&server, "guards")["site"]["banned"], 5);
}

#[test]
fn what_is_written_wrongly_is_named() {
    let says = |text: &str, part: &str| {
        let (status, said) = Site::http(&format!("{text} server {{ listen 127.0.0.1:@PORT@; }}")).check();
        assert!(!status.success() && said.contains(part), "{text}: {said}");
    };
    says("guard a { limit url 1r/s; }", "\"limit\" needs an action");
    says("guard a { limit url 1x refuse; }", "invalid rate \"1x\"");
    says("guard a { limit moon 1r/s refuse; }", "invalid parameter \"moon\"");
    says("guard a { limit url 1r/s refuse close; }", "a limit does one thing");
    says("guard a { limit url 1r/s refuse under_attack; }", "there is no \"attack\"");
    says("guard a { unknown 1; }", "unknown directive \"unknown\"");
    says("guard a { work 99; }", "invalid value");
    says("guard a { } guard a { }", "duplicate guard \"a\"");
    says("guard a { nftables bridge t s; }", "invalid parameter \"bridge\"");
    says("client_header_min_rate 10 grace=x;", "invalid parameter \"grace=x\"");
    says("shed_priority urgent;", "invalid parameter \"urgent\"");
    says("upstream u { server 127.0.0.1:1; concurrency_limit 5; }", "invalid parameter \"5\"");
    says("upstream u { server 127.0.0.1:1; circuit_breaker open=5s; }", "\"circuit_breaker\" needs \"errors\"");
    says("sysguard_load action=/x;", "\"sysguard_load\" needs \"load=\"");
    let (status, said) = Site::server("guard none;").check();
    assert!(!status.success() && said.contains("unknown guard \"none\""), "{said}");
}

/// Does the work of a page; gives the line with the cookie that its script would set.
fn do_work(page: &str) -> String {
    let between =
        |before: &str, after: &str| page.split(before).nth(1).and_then(|rest| rest.split(after).next()).unwrap();
    let question = between("const question = \"", "\"");
    let bits: u32 = between("bits = ", ";").parse().unwrap();
    let zeros = |text: &str| {
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        u128::from_be_bytes(hash.as_ref()[..16].try_into().unwrap()).leading_zeros()
    };
    let answers = (0u64..).map(|nonce| format!("{question}.{nonce:x}"));
    format!("Cookie: ironweir_guard={}\r\n", answers.into_iter().find(|answer| zeros(answer) >= bits).unwrap())
}

/// Who answers one challenge was given as many cookies as it liked, and was as many clients.
#[test]
fn an_address_is_given_so_many_cookies_and_has_to_work_for_more() {
    let server = site(
        "limit address 1r/m challenge; limit client 2r/m burst=2 refuse; ban 10m unanswered=5; cookie per_address=4; work 8;",
        "",
    )
    .start();
    server.get("/page");
    let first = cookie(&server.get("/page"));
    assert_eq!(with(&server, "/page", &first).text(), "fine");
    let answers: Vec<Response> = (0..50).map(|_| server.get("/page")).collect();
    let free = answers.iter().filter(|answer| answer.status == 302).count();
    assert_eq!(free, 3, "four with the first");
    let page = answers.last().unwrap().text();
    assert!(page.contains("needs JavaScript"), "{page}");
    let post = "POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(server.connect().send(post).response().status, 429, "what is no page is refused");
    // Nobody is banned, whoever has a cookie goes on, and who does the work gets one.
    assert_eq!(with(&server, "/page", &first).text(), "fine");
    assert_eq!(with(&server, "/page", &do_work(&page)).text(), "fine");
    assert_eq!(api(&server, "bans"), serde_json::json!({}));
    let mut other = connect_from(Ipv4Addr::new(127, 0, 0, 77), server.port);
    let mut said = String::new();
    other.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\nGET /page HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    other.read_to_string(&mut said).unwrap();
    assert!(said.contains("HTTP/1.1 302"), "another address has its own: {said}");
}

/// Work for an easy guard was as good as any.
#[test]
fn work_is_worth_what_was_asked_for() {
    let guard = |name: &str, bits: u32| format!("guard {name} {{ limit url 1r/m work; work {bits}; }}");
    let server = Site::http(&format!(
        "{} {} guard other {{ limit url 1r/m challenge; cookie name=other; }}
         server {{ listen 127.0.0.1:@PORT@; location /easy {{ guard easy; return 200 fine; }}
             location /hard {{ guard hard; return 200 fine; }} location /other {{ guard other; return 200 fine; }} }}",
        guard("easy", 4),
        guard("hard", 12)
    ))
    .start();
    let page = |target: &str| {
        server.get(target);
        server.get(target).text()
    };
    let (easy, hard) = (do_work(&page("/easy")), do_work(&page("/hard")));
    assert_eq!(with(&server, "/easy", &easy).text(), "fine");
    assert_eq!(with(&server, "/hard", &easy).status, 429);
    assert_eq!(with(&server, "/hard", &hard).text(), "fine");
    assert_eq!(with(&server, "/easy", &hard).text(), "fine", "harder work will do");
    server.get("/other");
    let renamed = hard.replace("ironweir_guard=", "other=");
    assert_eq!(with(&server, "/other", &renamed).status, 302, "a cookie is good under its own name");
}

/// Every request had a page of its own when it said another `Host`.
#[test]
fn a_page_is_the_servers_whatever_host_is_asked_for() {
    let server = site("limit url 1r/m burst=3 refuse;", "").start();
    let ask = |host: usize| {
        let head = format!("GET /page HTTP/1.1\r\nHost: h{host}.example\r\n\r\n");
        server.connect().send(head).response().status
    };
    assert_eq!((0..20).filter(|host| ask(*host) == 200).count(), 4);
}

#[test]
fn what_guards_know_goes_over_to_a_new_binary() {
    let server = Long::start(Site::whole(
        "worker_processes 2; events { } http { access_log off;
         guard site { limit address 1r/m challenge; limit $arg_ban 1r/m ban; ban 1h; }
         guard hot { limit url 100r/s refuse under_attack; attack errors=50% for=1h; }
         server { listen 127.0.0.1:@PORT@; location / { guard site; return 200 fine; } location /hot { guard hot; return 500; }
             location /free { return 200 free; } location /api { api; }
             location /rules { modsecurity on; try_files /none =204;
                 modsecurity_rules 'SecRuleEngine On
                     SecAction \"id:1,phase:1,pass,nolog,initcol:ip=%{REMOTE_ADDR},setvar:ip.hits=+1\"
                     SecRule IP:HITS \"@gt 2\" \"id:2,phase:1,deny,status:406,nolog\"'; } } }",
    ));
    assert_eq!((server.get("/rules").status, server.get("/rules").status), (204, 204));
    server.get("/page");
    let brought = cookie(&server.get("/page"));
    let ban = || {
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 50), server.port);
        let _ = stream.write_all(b"GET /?ban=1 HTTP/1.0\r\nHost: a\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    };
    ban();
    ban();
    let is_attacked = || api(&server, "guards")["hot"]["under_attack"] == true;
    let attack = || {
        (0..30).for_each(|_| drop(server.get("/hot")));
        is_attacked()
    };
    assert!(wait(attack), "{}", server.error_log());
    let before = api(&server, "bans");
    for _ in 0..2 {
        server.upgrade();
        assert_eq!(with(&server, "/page", &brought).text(), "fine");
        server.get("/page");
        assert_eq!(server.get("/page").status, 302, "rates begin anew");
        assert_eq!(with(&server, "/page", &brought).text(), "fine", "the cookie is good still");
        let bans = api(&server, "bans");
        assert_eq!(bans["127.0.0.50"]["reason"], before["127.0.0.50"]["reason"], "{bans}");
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 50), server.port);
        let _ = stream.write_all(b"GET /free HTTP/1.0\r\nHost: a\r\n\r\n");
        assert_eq!(stream.read(&mut [0; 100]).unwrap_or(0), 0, "it is closed at accept");
        assert!(is_attacked());
        assert_eq!(server.get("/rules").status, 406, "a collection has gone over");
    }
}

/// A crawler is who has a name of its operator's domain that stands for its address: what a request says of itself is nothing.
#[test]
fn crawlers_are_verified_by_their_names() {
    let dns = Dns::start(Duration::ZERO);
    dns.set(&[[127, 0, 0, 81]]);
    for (last, name) in
        [(81, "crawl-81.search.example"), (82, "crawl-81.search.example"), (83, "search.example.evil.test")]
    {
        std::fs::write(dns.texts().join(format!("{last}.0.0.127.in-addr.arpa")), name).unwrap();
    }
    let server = Site::http(&format!(
        "resolver 127.0.0.1:{} ipv6=off; log_format g '$remote_addr $status $guard_action';
         guard site {{ crawler Searchbot .search.example .other.example; limit $arg_a 1r/m refuse; }}
         server {{ listen 127.0.0.1:@PORT@; access_log @DIR@/logs/g.log g; location / {{ guard site; return 200 fine; }} }}",
        dns.port
    ))
    .start();
    let ask = |last: u8, agent: &str| {
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, last), server.port);
        let head = format!("GET /?a={last} HTTP/1.0\r\nHost: a\r\nUser-Agent: {agent}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said[9..12].parse::<u16>().unwrap()
    };
    let crawler = "Mozilla/5.0 (compatible; searchBot/2.1)";
    assert_eq!(ask(81, crawler), 200, "nobody waits for a name server: it is judged as anybody until it is known");
    assert!(wait(|| ask(81, crawler) == 200 && ask(81, crawler) == 200), "{}", server.error_log());
    assert!((0..20).all(|_| ask(81, crawler) == 200));
    server.wait_for("logs/g.log", "127.0.0.81 200 passed");
    // The name of another's address, another's domain, and no name at all.
    for last in [82, 83, 84] {
        ask(last, crawler);
        assert!((0..10).all(|_| ask(last, crawler) == 429), "{last}");
    }
    ask(81, "curl/8");
    assert!((0..3).all(|_| ask(81, "curl/8") == 429), "who does not say so is no crawler");
    for (row, part) in [
        ("crawler Bot;", "invalid number of arguments in \"crawler\" directive"),
        ("crawler Bot com;", "invalid parameter \"com\""),
        ("crawler Bot a..b;", "invalid parameter \"a..b\""),
    ] {
        let (status, said) = Site::http(&format!("guard a {{ {row} }} server {{ listen 127.0.0.1:@PORT@; }}")).check();
        assert!(!status.success() && said.contains(part), "{row}: {said}");
    }
}

/// JA4 of a client of ours, over TCP and QUIC, and as a key.
#[test]
fn ja4_tells_clients_apart() {
    if !has_tools() {
        return;
    }
    let server = quic_site(
        "guard tls { limit ja4 1r/m burst=3 refuse; }",
        "location / { return 200 $ssl_ja4; } location /limited { guard tls; return 200 fine; }",
    )
    .set("THREADS", 1)
    .start();
    let (_, tcp) = Setup::new().connect(server.port, "localhost").get("/", "localhost");
    let parts: Vec<&str> = tcp.split('_').collect();
    assert!(parts.len() == 3 && parts[0].starts_with("t13d") && parts[1].len() == 12 && parts[2].len() == 12, "{tcp}");
    let (_, again) = Setup::new().connect(server.port, "localhost").get("/", "localhost");
    assert_eq!(again, tcp, "the same program is the same");
    let statuses: Vec<bool> = (0..6)
        .map(|_| Setup::new().connect(server.port, "localhost").get("/limited", "localhost").1 == "fine")
        .collect();
    assert_eq!(statuses, [true, true, true, true, false, false]);
    run(async {
        let (_endpoint, mut requests) = quic_client(server.port).await;
        let answer = crate::harness::quic::ask(&mut requests, quic_get("/"), b"").await;
        assert!(answer.text().starts_with("q13d"), "{}", answer.text());
        let answer = crate::harness::quic::ask(&mut requests, quic_get("/limited"), b"").await;
        assert_eq!(answer.text(), "fine", "another fingerprint");
    });
}

/// Good clients: browsers that keep cookies, follow redirects and look at many pages.
const GOOD: usize = 200;
/// Behind so many addresses.
const GATEWAYS: usize = 5;
/// Bad ones, each with an address of its own, each as polite as a person, all on one page.
const BAD: usize = 400;
/// Bad ones with a cookie jar, as fast as they are answered: each has a client's rate, and no more.
const SMART: usize = 5;
/// How long the crowd is there.
const CROWD: Duration = Duration::from_secs(15);
/// After so long nearly all bad requests are to be stopped.
const SOON: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Tally {
    asked: AtomicUsize,
    served: AtomicUsize,
}

/// One request on a connection of its own: status, the line with the cookie, and the text.
fn ask(ip: Ipv4Addr, port: u16, target: &str, lines: &str) -> Option<(u16, Option<String>, String)> {
    let mut stream: TcpStream = connect_from(ip, port);
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let agent = "Accept: */*\r\nUser-Agent: Mozilla/5.0\r\n";
    stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: site\r\n{agent}{lines}\r\n").as_bytes()).ok()?;
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said).into_owned();
    let status = said.split(' ').nth(1)?.parse().ok()?;
    let cookie = said.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")?.split(';').next());
    let cookie = cookie.map(|cookie| format!("Cookie: {cookie}\r\n"));
    Some((status, cookie, said))
}

/// Looks at pages until it is over, in the manner of a browser.
fn browse(ip: Ipv4Addr, port: u16, seed: usize, over: &AtomicBool, tally: &Tally) {
    let (mut cookie, mut n) = (None::<String>, seed);
    while !over.load(Relaxed) {
        n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // One of ten wants the page that is attacked.
        let page = if n >> 33 & 7 == 0 { "/login".to_owned() } else { format!("/page{}", n >> 40 & 0xff) };
        tally.asked.fetch_add(1, Relaxed);
        for _ in 0..3 {
            match ask(ip, port, &page, cookie.as_deref().unwrap_or_default()) {
                Some((302, set, _)) => cookie = set.or(cookie),
                Some((429, _, page)) if page.contains("const question") => cookie = Some(do_work(&page)),
                Some((200, ..)) => {
                    tally.served.fetch_add(1, Relaxed);
                    break;
                }
                _ => break,
            }
        }
        std::thread::sleep(Duration::from_millis(600 + (n >> 50 & 0x1ff) as u64));
    }
}

#[test]
fn a_crowd_of_bad_clients_is_stopped_and_the_good_ones_are_not() {
    let server = Site::whole(
        "worker_processes 2; events { worker_connections 8192; } http { access_log off;
         guard site {
             limit url 50r/s burst=100 challenge;
             limit address 20r/s burst=100 challenge;
             limit client 10r/s burst=50 refuse;
             ban 10m unanswered=10; work 8;
         }
         server { listen 127.0.0.1:@PORT@ backlog=4096; location / { guard site; return 200 fine; } location /api { api; } } }",
    )
    .start();
    let (over, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (good, bad) = (Arc::<Tally>::default(), Arc::<Tally>::default());
    let port = server.port;
    let stack = 128 << 10;
    let began = Instant::now();
    let mut threads = Vec::new();
    for n in 0..GOOD {
        let (over, good) = (over.clone(), good.clone());
        let ip = Ipv4Addr::new(127, 9, 0, (n % GATEWAYS + 1) as u8);
        let work = move || browse(ip, port, n + 1, &over, &good);
        threads.push(std::thread::Builder::new().stack_size(stack).spawn(work).unwrap());
    }
    for n in 0..BAD {
        let (over, late, bad) = (over.clone(), late.clone(), bad.clone());
        let ip = Ipv4Addr::new(127, 8, (n / 200) as u8, (n % 200 + 1) as u8);
        let work = move || {
            while !over.load(Relaxed) {
                let served = matches!(ask(ip, port, "/login", ""), Some((200, ..)));
                if late.load(Relaxed) {
                    bad.asked.fetch_add(1, Relaxed);
                    bad.served.fetch_add(usize::from(served), Relaxed);
                }
                std::thread::sleep(Duration::from_millis(900));
            }
        };
        threads.push(std::thread::Builder::new().stack_size(stack).spawn(work).unwrap());
    }
    let smart = Arc::<Tally>::default();
    for n in 0..SMART {
        let (over, smart) = (over.clone(), smart.clone());
        let ip = Ipv4Addr::new(127, 7, 0, n as u8 + 1);
        let work = move || {
            let mut cookie = None;
            while !over.load(Relaxed) {
                smart.asked.fetch_add(1, Relaxed);
                match ask(ip, port, "/login", cookie.as_deref().unwrap_or_default()) {
                    Some((302, set, _)) => cookie = set.or(cookie),
                    Some((200, ..)) => drop(smart.served.fetch_add(1, Relaxed)),
                    // It would only take the processor from the others.
                    _ => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        };
        threads.push(std::thread::Builder::new().stack_size(stack).spawn(work).unwrap());
    }
    std::thread::sleep(SOON);
    late.store(true, Relaxed);
    std::thread::sleep(CROWD - SOON);
    over.store(true, Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    let read = |tally: &Tally| (tally.asked.load(Relaxed), tally.served.load(Relaxed));
    let ((good_asked, good_served), (bad_asked, bad_served)) = (read(&good), read(&bad));
    println!("good: {good_served} of {good_asked} served; bad, after {SOON:?}: {bad_served} of {bad_asked} served");
    println!("{}", api(&server, "guards"));
    assert!(good_asked > 1000 && bad_asked > 1000, "there was a crowd");
    assert!((good_asked - good_served) * 1000 <= good_asked, "at most 0.1 % of good requests are stopped");
    assert!(bad_served * 20 <= bad_asked, "at least 95 % of bad requests are stopped");
    let (smart_asked, smart_served) = read(&smart);
    println!("with a cookie jar: {smart_served} of {smart_asked} served");
    // The burst and ten a second, and what one begins with before it is challenged.
    let most = SMART * (50 + 10 * began.elapsed().as_secs() as usize + 100);
    assert!(smart_served <= most, "{smart_served}, at most {most}");
}

/// Bans in a set of nftables, in a network of the test's own.
#[test]
fn bans_go_into_the_kernel() {
    let here = || {
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).output().is_ok_and(|out| out.status.success())
        };
        let table = "table inet guard { set banned4 { type ipv4_addr; flags timeout; }
            chain input { type filter hook input priority -10; ip saddr @banned4 drop; } }";
        if !run("nft", &[table]) {
            return println!("LEFT OUT: nft is not there, or may not");
        }
        let server = site("limit url 1r/m ban=10m; nftables inet guard banned4;", "").start();
        server.get("/free");
        let ask = |timeout: u64| {
            let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 30), server.port);
            stream.set_read_timeout(Some(Duration::from_millis(timeout))).unwrap();
            stream.write_all(b"GET /page HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
            stream.read(&mut [0; 100])
        };
        assert!(ask(10_000).unwrap() > 0);
        assert_eq!(ask(10_000).unwrap(), 0, "banned");
        let set = || {
            String::from_utf8(Command::new("nft").args(["list", "table", "inet", "guard"]).output().unwrap().stdout)
                .unwrap()
        };
        assert!(wait(|| set().contains("127.0.0.30")), "{}\n{}", set(), server.error_log());
        assert!(set().contains("timeout 10m"), "{}", set());
        // Nothing arrives any more: not even the handshake.
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 30], 0)).into()).unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port));
        assert!(socket.connect_timeout(&address.into(), Duration::from_millis(500)).is_err());
        let mut client = Client::connect(server.port);
        client.send("DELETE /api/9/ironweir/bans/127.0.0.30 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response(true).unwrap().status, 204);
        assert!(wait(|| !set().contains("127.0.0.30")), "{}", set());
    };
    if machine::namespace::inside(here).is_none() {
        println!("LEFT OUT: a network namespace needs root rights");
    }
}

/// Of IPv6 a /64 is banned, in the kernel as well; sets of intervals get intervals.
#[test]
fn networks_of_ipv6_go_into_the_kernel() {
    let here = || {
        let run = |arguments: &[&str]| Command::new("nft").args(arguments).output();
        let table = "table inet guard {
            set banned4 { type ipv4_addr; flags interval, timeout; }
            set banned6 { type ipv6_addr; flags interval, timeout; }
            set plain6 { type ipv6_addr; flags timeout; } }";
        if !run(&[table]).is_ok_and(|out| out.status.success()) {
            return println!("LEFT OUT: nft is not there, or may not");
        }
        let server = Site::http(
            "guard a { limit $arg_a 1r/m ban=10m; nftables inet guard banned4 banned6; }
             guard b { limit $arg_a 1r/m ban=10m; nftables inet guard banned4 plain6; }
             server { listen 127.0.0.1:@PORT@; set_real_ip_from 127.0.0.1; real_ip_header X-Client;
                 location / { guard a; return 200 fine; } location /plain { guard b; return 200 fine; }
                 location /api { api write=on; } }",
        )
        .start();
        let ban = |target: &str, client: &str| {
            for _ in 0..2 {
                let head = format!("GET {target}?a={client} HTTP/1.1\r\nHost: a\r\nX-Client: {client}\r\n\r\n");
                let _ = server.connect().send(head).read_response(true);
            }
        };
        let set = || String::from_utf8(run(&["list", "table", "inet", "guard"]).unwrap().stdout).unwrap();
        let lift = |address: &str| {
            let mut client = Client::connect(server.port);
            client.send(format!("DELETE /api/9/ironweir/bans/{address} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(client.read_response(true).unwrap().status, 204);
        };
        ban("/", "2001:db8::7");
        assert!(wait(|| set().contains("2001:db8::/64")), "{}\n{}", set(), server.error_log());
        ban("/", "192.0.2.9");
        assert!(wait(|| set().contains("192.0.2.9 ")), "{}\n{}", set(), server.error_log());
        assert!(!set().contains('-'), "no interval goes further: {}", set());
        lift("2001:db8::");
        lift("192.0.2.9");
        assert!(wait(|| !set().contains("2001:db8") && !set().contains("192.0.2")), "{}", set());
        ban("/plain", "2001:db8:1::7");
        server.wait_for("logs/error.log", "it needs \"flags interval\" for networks of IPv6");
    };
    if machine::namespace::inside(here).is_none() {
        println!("LEFT OUT: a network namespace needs root rights");
    }
}

/// Without a set the kernel says no, the log says so once, and bans hold at accept.
#[test]
fn bans_hold_without_the_kernel() {
    let server = site("limit $arg_a 1r/m ban=10m; nftables inet no_such_table banned;", "").start();
    let ask = |last: u8| {
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, last), server.port);
        let _ = stream.write_all(format!("GET /?a={last} HTTP/1.0\r\nHost: a\r\n\r\n").as_bytes());
        stream.read(&mut [0; 100]).unwrap_or(0)
    };
    for last in [40, 41] {
        assert!(ask(last) > 0 && ask(last) == 0 && ask(last) == 0);
    }
    server.wait_for("logs/error.log", "bans hold where connections are accepted");
    assert_eq!(server.error_log().matches("takes no address").count(), 1);
}

#[test]
fn a_ban_without_a_time_lasts_as_long_as_the_row_says() {
    // The row stands behind the limit that it is for.
    for (rows, seconds) in [
        ("limit $arg_a 1r/m ban; ban 2h;", 7200),
        ("limit $arg_a 1r/m ban; ban unanswered=9;", 600),
        ("limit $arg_a 1r/m ban=1m; ban 2h;", 60),
    ] {
        let server = site(rows, "").start();
        for _ in 0..2 {
            let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 60), server.port);
            let _ = stream.write_all(b"GET /?a=1 HTTP/1.0\r\nHost: a\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
        server.wait_for("logs/error.log", &format!("127.0.0.60 is banned for {seconds} s"));
    }
}

#[test]
fn header_lines_of_one_number_and_length_are_one_programs_on_a_connection() {
    let server = Site::http(
        "guard g { limit headers 1r/m burst=1 refuse; }
         server { listen 127.0.0.1:@PORT@; guard g; location / { return 200 x; } }",
    )
    .start();
    let ask = |client: &mut Client, agent: &str| {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\n\r\n"));
        client.response().status
    };
    let mut one = server.connect();
    assert_eq!([ask(&mut one, "first"), ask(&mut one, "secnd")], [200, 200]);
    assert_eq!(ask(&mut one, "third"), 429, "whoever changes letters is the same program");
    assert_eq!(ask(&mut one, "another"), 200, "and another length another");
    // Another connection knows nothing of that.
    let mut two = server.connect();
    assert_eq!([ask(&mut two, "third"), ask(&mut two, "third")], [200, 200]);
    assert_eq!(ask(&mut two, "third"), 429);
    assert_eq!(ask(&mut server.connect(), "first"), 429, "what the first connection's were counted as");
}
