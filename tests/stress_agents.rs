//! `ironweir agent` and `ironweir stress --agents`: five agents on loopback.

use crate::harness::quic::certain_site;
use crate::harness::{Agent, Backend, Json, Program, Site, agents, agents_by, has_tools, stress, text, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn five_agents_share_a_schedule_and_their_histograms_merge() {
    let (_folder, agents, list) = agents_by(Agent::start_promptly, 5);
    let mut spreads = Vec::new();
    // One run of three may find a neighbour in its way.
    for _ in 0..3 {
        let backend = Backend::ok("x");
        let url = format!("http://127.0.0.1:{}/", backend.port);
        let json = Json::of(&format!("{list} -t1 -c11 -R 500 -d1s --no-preflight {url}"));
        let numbers = ["requests", "errors.total", "connects", "latency_us.count"].map(|name| json.number(name));
        assert_eq!((numbers, backend.seen().len()), ([500.0, 0.0, 11.0, 500.0], 500), "{}", json.0);
        assert_eq!((json.number("agents"), json.raw("partial")), (5.0, "null"), "{}", json.0);
        assert!(json.0.contains("5 agents began within "), "{}", json.0);
        spreads.push(json.number("start_spread_us"));
        if spreads.last().is_some_and(|us| *us < 5_000.0) {
            break;
        }
    }
    assert!(spreads.iter().any(|us| *us < 5_000.0), "microseconds between the first and the last: {spreads:?}");
    drop(agents);
}

#[test]
fn the_wrong_token_is_refused_and_so_is_none_off_loopback() {
    let (folder, agents, list) = agents(1);
    folder.write("token", "guess-guess-guess-guess\n");
    let out = stress(&format!("{list} -n1 --no-preflight http://127.0.0.1:1/")).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("the token is not this agent's"), "{out:?}");
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    let out = command.args(["agent", "--listen", ":0"]).output().unwrap();
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("--token-file is needed, or --tls-cert"),
        "{out:?}"
    );
    drop(agents);
}

/// Agents are tonic servers: their calls, a stream in each direction, go through `grpc_pass`.
#[test]
fn agents_are_reached_through_grpc_pass() {
    let backend = Backend::ok("x");
    let (folder, agents, _) = agents(1);
    let server = Site::http(&format!(
        "upstream agents {{ server {}; }} server {{ listen 127.0.0.1:@PORT@; http2 on; location / {{ grpc_pass agents; }} }}",
        agents[0].address
    ))
    .start();
    let (port, token) = (server.port, folder.path().join("token").display().to_string());
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let line = format!("--agents 127.0.0.1:{port} --token-file {token} -t1 -c4 -R 200 -d2s -q --no-preflight {url}");
    let out = stress(&line).output().unwrap();
    assert!(text(&out).contains("Requests/sec"), "{out:?} {}", server.error_log());
    assert_eq!(backend.seen().len(), 400);
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

#[test]
fn a_lost_agent_makes_the_result_partial() {
    let backend = Backend::ok("x");
    let (_folder, mut agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let child = stress(&format!("{list} -t1 -c4 -R 200 -d5s -q --no-preflight {url}")).spawn().unwrap();
    // More than a second of it.
    assert!(wait(|| backend.seen().len() > 300));
    drop(agents.pop());
    let out = text(&child.wait_with_output().unwrap());
    assert!(out.contains("PARTIAL: agent ") && out.contains("was lost") && out.contains("Requests/sec"), "{out}");
    // Of a run whose agents are all lost the seconds are known that they told of.
    let (_folder, mut agents, list) = self::agents(2);
    let before = backend.seen().len();
    let child = stress(&format!("{list} -t1 -c4 -R 200 -d60s -q --no-preflight {url}")).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > before + 500));
    agents.clear();
    let out = text(&child.wait_with_output().unwrap());
    let rate = out.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.split_whitespace().next()?.parse().ok());
    assert!(rate.is_some_and(|rate: f64| (50.0..500.0).contains(&rate)) && out.contains("PARTIAL: agent "), "{out}");
}

#[test]
fn ctrl_c_stops_all_agents_and_a_vanished_controller_too() {
    let backend = Backend::ok("x");
    let (_folder, agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let line = format!("{list} -t1 -c4 -R 200 -d60s -q --no-preflight {url}");
    // One run of three may find a neighbour in its way: an agent that gets no CPU for 700 ms is given up, as it should be.
    let is_whole = (0..3).any(|_| {
        let before = backend.seen().len();
        let child = stress(&line).spawn().unwrap();
        assert!(wait(|| backend.seen().len() > before + 50));
        let began = Instant::now();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let out = text(&child.wait_with_output().unwrap());
        let took = began.elapsed();
        // A second is promised; the rest is for a machine that is busy.
        assert!(out.contains("Requests/sec") && took < Duration::from_millis(1000 + 2000), "{took:?}: {out}");
        !out.contains("PARTIAL")
    });
    assert!(is_whole, "an agent that is told to stop does");

    let before = backend.seen().len();
    let mut child = stress(&line).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > before + 50));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut last = (0, Instant::now());
    let is_quiet = wait(|| {
        let now = backend.seen().len();
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(500)
    });
    assert!(is_quiet, "the load stops without its controller");
    drop(agents);
}

/// An agent that says nothing any more does not hold up the others' end.
#[test]
fn ctrl_c_does_not_wait_for_an_agent_that_hangs() {
    let backend = Backend::ok("x");
    let (_folder, agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let child = stress(&format!("{list} -t1 -c4 -R 200 -d60s -q --no-preflight {url}")).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 300));
    kill_process(Pid::from_child(&agents[1].child), Signal::STOP).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let began = Instant::now();
    let out = text(&child.wait_with_output().unwrap());
    assert!(out.contains("PARTIAL: agent ") && out.contains("after it was told to stop"), "{out}");
    assert!(began.elapsed() < Duration::from_millis(1500 + 2000), "{:?}", began.elapsed());
}

#[test]
fn mutual_tls() {
    if !has_tools() {
        return;
    }
    let ip = "subjectAltName=IP:127.0.0.1";
    let site = Site::server("").certificate("ca").issued_with("agent", "ca", "9", ip).issued("controller", "ca", "9");
    let site = site.certificate("other");
    let file = |name: &str| site.path().join(name).display().to_string();
    let pair =
        |name: &str| format!("--tls-cert {} --tls-key {}", file(&format!("{name}.crt")), file(&format!("{name}.key")));
    let ca = format!("--tls-ca {}", file("ca.crt"));
    let agent = Agent::start(&format!("{} {ca}", pair("agent")));
    let backend = Backend::ok("x");
    let run = |security: &str| {
        let line = format!("--agents {} {security} -t1 -c2 -n 20 -q --no-preflight", agent.address);
        stress(&format!("{line} http://127.0.0.1:{}/", backend.port)).output().unwrap()
    };
    let out = run(&format!("{} {ca}", pair("controller")));
    assert!(text(&out).contains("20 requests in") && !text(&out).contains("PARTIAL"), "{out:?}");
    for wrong in [
        String::new(),
        ca.clone(),
        format!("{} {ca}", pair("other")),
        format!("{} --tls-ca {}", pair("controller"), file("other.crt")),
    ] {
        let out = run(&wrong);
        assert_eq!(out.status.code(), Some(1), "{wrong}: {out:?}");
        assert!(
            String::from_utf8_lossy(&out.stderr).starts_with("ironweir stress: agent 127.0.0.1:"),
            "{wrong}: {out:?}"
        );
    }
    assert_eq!(backend.seen().len(), 20);
    // Mutual TLS is enough off loopback; TLS that asks the controller for nothing is not.
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    let line = format!("agent --listen :0 {}", pair("agent"));
    let out = command.args(line.split(' ')).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("is not loopback"), "{out:?}");
}

/// Certificates of the load are files of the agents'.
#[test]
fn agents_speak_http3_with_certificates() {
    let (server, pair) = certain_site();
    let (_folder, agents, list) = agents(2);
    let line = format!("{list} --http 3 --streams 4 -t1 -c4 -n 80 --no-preflight https://127.0.0.1:{}/", server.port);
    let json = Json::of(&format!("{pair} {line}"));
    let numbers = ["statuses.200", "errors.total", "connects", "agents"].map(|name| json.number(name));
    assert_eq!((numbers, json.raw("partial")), ([80.0, 0.0, 4.0, 2.0], "null"), "{}", json.0);
    assert_eq!(Json::of(&line).number("statuses.400"), 80.0);
    let nowhere = format!("--cert /nowhere.crt --key /nowhere.key {line}");
    let out = stress(&nowhere).output().unwrap();
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("/nowhere.crt"), "{out:?}");
    drop(agents);
}

#[test]
fn scripts_and_lists_come_from_the_controller() {
    let backend = Backend::ok("x");
    let (folder, agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    folder.write(
        "s.lua",
        r#"function request() return wrk.format("GET", "/scripted") end
           function done(summary) io.write("done " .. summary.requests .. "\n") end"#,
    );
    folder.write("urls", "/one\n/two\n");
    // The names are the controller's: agents run elsewhere.
    let run = |line: &str| stress(&format!("{line} {url}")).current_dir(folder.path()).output().unwrap();
    let out = run(&format!("{list} -t1 -c2 -n 20 -q --no-preflight -s s.lua"));
    assert!(text(&out).contains("done 20\n"), "{out:?}");
    assert!(backend.seen().iter().all(|s| s.line() == "GET /scripted HTTP/1.1"));
    let out = run(&format!("{list} -t1 -c2 -n 20 -q --no-preflight --url-file urls"));
    assert!(text(&out).contains("20 requests in"), "{out:?}");
    assert_eq!(backend.seen().iter().filter(|s| s.line().contains("/two")).count(), 10);
    // Whoever reaches an agent that asks for nothing must not run programs as its user.
    let open = Agent::start("");
    let out = run(&format!("--agents {} -t1 -c2 -n 2 -q --no-preflight -s s.lua", open.address));
    assert!(String::from_utf8_lossy(&out.stderr).contains("runs no scripts"), "{out:?}");
    drop(agents);
}

#[test]
fn connections_are_held_by_all_agents() {
    let backend = Backend::ok("x");
    let (_folder, agents, list) = agents(3);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let json = Json::of(&format!("{list} -t1 --hold 31 --ramp 100 --heartbeat 300ms -d 1s {url}"));
    let numbers = ["held", "opened", "wanted", "lost"].map(|name| json.number(name));
    assert_eq!((numbers, json.raw("partial")), ([31.0, 31.0, 31.0, 0.0], "null"), "{}", json.0);
    assert!(json.number("heartbeat_us.count") >= 31.0 && json.0.contains("on 3 agents"), "{}", json.0);
    drop(agents);
}

#[test]
fn the_highest_rate_of_all_agents_together() {
    const RATE: f64 = 600.0;
    let backend = Backend::token_bucket(RATE);
    let (_folder, agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let out = stress(&format!("{list} -t1 -c8 --find-max --step 1s --slo errors<1% --quiet {url}")).output().unwrap();
    let text = text(&out);
    let best = text.lines().find_map(|l| l.strip_prefix("Best: ")).unwrap_or_else(|| panic!("{out:?}"));
    let rate: f64 = best.trim_start_matches(">= ").split("/s").next().unwrap().parse().unwrap();
    assert!((RATE * 0.85..=RATE * 1.1).contains(&rate), "{text}");
    drop(agents);
}
