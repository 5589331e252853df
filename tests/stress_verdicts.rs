//! What `ironweir stress` says of a run, how it ends, and what it refuses to be asked.

use crate::harness::{Backend, Folder, Reply, agents, run_stress, stress, text, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::Output;
use std::time::Duration;

fn url(backend: &Backend) -> String {
    format!("http://127.0.0.1:{}/", backend.port)
}

fn complaint(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn what_is_asked_amiss_is_refused_and_what_is_clear_is_taken() {
    let backend = Backend::ok("x");
    let out = run_stress(&format!("-n1 --no-preflight {0} {0}", url(&backend)));
    assert!(out.status.code() == Some(1) && complaint(&out).contains("is one too many"), "{out:?}");
    let out = run_stress(&format!("-n1 --no-preflight --slo p99<1s {}", url(&backend)));
    assert!(out.status.code() == Some(1) && complaint(&out).contains("--find-max"), "{out:?}");
    // No scheme, and fewer connections than the usual threads.
    let out = run_stress(&format!("-c1 -n5 --no-preflight 127.0.0.1:{}", backend.port));
    assert!(
        text(&out).contains(&format!("test @ {}", url(&backend))) || text(&out).contains("5 requests in"),
        "{out:?}"
    );
    assert_eq!(backend.seen().len(), 5);
    let out = run_stress(&format!("-q -c2 -n5 {}", url(&backend)));
    assert!(text(&out).starts_with("  Thread Stats") && complaint(&out).is_empty(), "{out:?}");
}

#[test]
fn a_script_that_fails_ends_the_run_without_a_verdict() {
    let backend = Backend::ok("x");
    let folder = Folder::new();
    folder.write("bad.lua", "function response() error('no such thing') end");
    folder.write(
        "setup.lua",
        "local threads, counter = {}, 1
         function setup(thread) thread:set('id', counter); table.insert(threads, thread); counter = counter + 1 end
         function init(args) requests = 0 end
         function request() requests = requests + 1; return wrk.request() end
         function done() for _, t in ipairs(threads) do print('thread ' .. t:get('id') .. ' made ' .. t:get('requests')) end end",
    );
    let run = |file: &str| {
        let script = folder.path().join(file);
        run_stress(&format!("-s {} -t1 -c1 -n3 --no-preflight {}", script.display(), url(&backend)))
    };
    let out = run("bad.lua");
    assert!(out.status.code() == Some(1) && complaint(&out).contains("no such thing"), "{out:?}");
    assert!(!text(&out).contains("Verdict"), "{out:?}");
    let out = run("setup.lua");
    assert!(text(&out).contains("thread 1 made ") && text(&out).contains("3 requests in"), "{out:?}");
}

#[test]
fn a_comparison_is_by_the_runs_own_spread_and_ends_by_it() {
    let folder = Folder::new();
    let seconds = |p50: &dyn Fn(usize) -> f64, rate: f64| {
        let all = (0..8).map(|n| {
            let p = p50(n);
            serde_json::json!({"second": n, "rps": rate, "errors": 0, "bytes": 1, "connections": 1, "cpu": 0.1,
                               "p50_us": p, "p90_us": p, "p99_us": p, "max_us": p})
        });
        all.collect::<Vec<_>>()
    };
    let backend = Backend::ok("x");
    let path = folder.path().join("run.json");
    run_stress(&format!("-t1 -c1 -n20 --no-preflight --json {} {}", path.display(), url(&backend)));
    let base: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let write = |name: &str, p50: &dyn Fn(usize) -> f64, wanted: f64| {
        let mut run = base.clone();
        run["series"] = seconds(p50, wanted).into();
        (run["wanted_rps"], run["rps"]) = (wanted.into(), wanted.into());
        (run["verdict"]["valid"], run["verdict"]["limit"]) = (true.into(), "none".into());
        for name in ["p50", "p90", "p99"] {
            run["latency_us"][name] = p50(4).into();
        }
        folder.write(name, run.to_string());
        folder.path().join(name).display().to_string()
    };
    let calm = write("calm.json", &|n| 60.0 + (n % 3) as f64, 100.0);
    let again = write("again.json", &|n| 60.0 + ((n + 1) % 3) as f64, 100.0);
    let flooded = write("flooded.json", &|n| 3e5 * (n + 1) as f64, 100.0);
    let faster = write("faster.json", &|n| 60.0 + (n % 3) as f64, 200.0);
    let compare = |a: &str, b: &str| run_stress(&format!("--compare {a} {b}"));
    let out = compare(&calm, &flooded);
    assert!(out.status.code() == Some(3) && text(&out).contains("worse"), "{out:?}");
    let out = compare(&flooded, &calm);
    assert!(out.status.code() == Some(0) && text(&out).contains("better"), "{out:?}");
    assert_eq!(compare(&calm, &again).status.code(), Some(0));
    let out = compare(&calm, &faster);
    assert!(
        out.status.code() == Some(5) && text(&out).contains("not asked for the same: 100.00/s and 200.00/s"),
        "{out:?}"
    );
}

#[test]
fn a_search_that_is_ended_keeps_its_best() {
    let backend = Backend::token_bucket(300.0);
    let mut child =
        stress(&format!("-t1 -c4 --find-max --step 1s --slo errors<1% --no-preflight --plain {}", url(&backend)))
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut seen = Vec::new();
    // The first look, and one step that was judged.
    while seen.iter().filter(|l: &&String| l.contains("/s  holds") || l.contains("/s  fails")).count() < 2 {
        seen.push(lines.next().expect("it goes on"));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    seen.extend(lines);
    let said = seen.join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(6), "{said}");
    assert!(
        said.contains("PARTIAL: ended by the user")
            && (said.contains("Best: ") || said.contains("No rate has held yet")),
        "{said}"
    );
}

#[test]
fn a_lost_agent_is_no_fault_of_the_target() {
    let backend = Backend::ok("x");
    let (_folder, mut agents, list) = agents(2);
    let child = stress(&format!("{list} -t1 -c4 -R 200 -d4s -q --no-preflight {}", url(&backend))).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 300));
    drop(agents.pop());
    let out = child.wait_with_output().unwrap();
    assert!(text(&out).contains("Verdict: generator\n  1 of 2 agents were lost"), "{out:?}");
    assert_eq!(out.status.code(), Some(6), "{out:?}");
}

#[test]
fn an_agent_without_a_token_says_so() {
    let mut agent = std::process::Command::new(crate::harness::Program::Ironweir.path().unwrap())
        .args(["agent", "--listen", "127.0.0.1:0"])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let line = BufReader::new(agent.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(line.contains("asks for no token"), "{line}");
}

#[test]
fn a_run_that_is_the_generators_has_a_status_of_its_own() {
    // One answer a second at the soonest, but all that is wanted is asked: the rate is not reached, by the target's fault.
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(400));
        Reply::ok("x")
    });
    let out = run_stress(&format!("-t1 -c1 -R 50 -d1s --no-preflight {}", url(&backend)));
    let valid = !text(&out).contains("INVALID");
    assert_eq!(out.status.code(), Some(if valid { 0 } else { 5 }), "{out:?}");
}
