//! `ironweir redline`: how many requests a second one real server carries, found with live traffic. Its share of the traffic grows step by
//! step, by weights over the API, until answers fail or take longer; then the place where that begins is closed in on.
//!
//! The weights come back whatever happens: a second process waits for the end of this one, however that comes (`guard`).

use crate::command::{finish, print};
use crate::options::{Options, REDLINE};
use crate::text::{microseconds, number};
use api_client::{Client, Trust, URL};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long each step is measured, unless it is said.
const STEP: Duration = Duration::from_secs(5);
/// After a change of weights the first so much is not measured: connections and queues of before.
const SETTLE: f64 = 0.2;
/// Each step gives the server so much more of the traffic than the one before.
const GROWTH: f64 = 1.25;
/// A server with this share has all of the traffic, as far as weights go.
const ALL: f64 = 0.99;
/// So often the place between the last good and the first bad share is halved.
const HALVINGS: u32 = 3;
/// With weights of hundreds, shares can be as fine as percents.
const SCALE: u64 = 100;
/// The largest weight that is set.
const MOST_WEIGHT: u64 = 100_000;
/// Fewer answers in a step say nothing.
const FEWEST: u64 = 20;
/// An answer that takes this little longer is not slow, whatever the factor says, microseconds.
const NOTICEABLE_US: f64 = 2_000.0;
/// Of the rate at which nothing bends, so much is called safe.
const SAFE: f64 = 0.8;
/// Peers of a group that are handled.
const MOST_PEERS: usize = 4_096;

/// A step as it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// The share of the traffic that the server was given.
    pub share: f64,
    /// Its answers a second.
    pub rate: f64,
    /// How long they took on average, microseconds.
    pub mean_us: f64,
    /// The part of them that failed: 5xx, broken connections, timeouts.
    pub failed: f64,
    /// How many answers that is of.
    pub answers: u64,
}

/// What is too much.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The part of answers that may fail.
    pub failed: f64,
    /// How many times longer than at first answers may take.
    pub slower: f64,
}

/// Why a step was too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bend {
    /// Answers fail.
    Failures,
    /// Answers take longer.
    Latency,
}

/// The way to the place where it bends: pure, a step in, the next share out.
#[derive(Debug)]
pub struct Search {
    limits: Limits,
    first: Option<Step>,
    best: Option<Step>,
    bad: Option<(f64, Bend)>,
    halved: u32,
}

impl Search {
    /// Nothing has been measured.
    pub fn new(limits: Limits) -> Search {
        Search { limits, first: None, best: None, bad: None, halved: 0 }
    }

    /// Whether a step was too much.
    pub fn bends(&self, step: &Step) -> Option<Bend> {
        if step.failed > self.limits.failed {
            return Some(Bend::Failures);
        }
        let first = self.first.as_ref()?.mean_us;
        (step.mean_us > first * self.limits.slower && step.mean_us > first + NOTICEABLE_US).then_some(Bend::Latency)
    }

    /// Takes a step, and gives the share of the next one; none: it is over.
    pub fn next(&mut self, step: Step) -> Option<f64> {
        match self.bends(&step) {
            Some(bend) => self.bad = Some((step.share, bend)),
            None => {
                self.first.get_or_insert(step);
                if self.best.is_none_or(|b| step.rate >= b.rate) {
                    self.best = Some(step);
                }
            }
        }
        let good = self.best?.share;
        match self.bad {
            None if good >= ALL => None,
            None => Some((good * GROWTH).min(1.0)),
            Some(_) if self.halved == HALVINGS => None,
            Some((bad, _)) => {
                self.halved += 1;
                Some((good + bad) / 2.0)
            }
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The server.
    pub server: String,
    /// The highest rate without a bend; none: it bends already as it is.
    pub best: Option<f64>,
    /// What to plan with.
    pub safe: Option<f64>,
    /// What bends beyond; none: there was no more traffic.
    pub bend: Option<Bend>,
    /// All steps.
    pub steps: Vec<Step>,
}

/// A peer of the group, as the API shows it.
#[derive(Clone, Debug)]
struct Peer {
    id: u64,
    server: String,
    weight: u64,
}

/// A group over the API.
struct Group<'c> {
    client: &'c Client,
    path: String,
}

impl Group<'_> {
    fn new<'c>(client: &'c Client, name: &str) -> Group<'c> {
        // A name may have anything in it.
        let escaped = name.bytes().fold(String::new(), |mut out, b| {
            if b.is_ascii_alphanumeric() || b"-._".contains(&b) {
                out.push(char::from(b));
            } else {
                let _ = write!(out, "%{b:02X}");
            }
            out
        });
        Group { client, path: format!("http/upstreams/{escaped}") }
    }

    fn look(&self) -> Result<Value, String> {
        let none = || format!("there is no upstream with a zone at {} ({})", self.client.url(), self.path);
        self.client.ask(&self.path)?.ok_or_else(none)
    }

    fn peers(&self) -> Result<Vec<Peer>, String> {
        let value = self.look()?;
        let all = value["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let takes = |p: &&Value| p["backup"] != true && p["state"] != "down" && p["state"] != "draining";
        let peer = |p: &Value| {
            let weight = p["weight"].as_u64().unwrap_or(1);
            Peer {
                id: p["id"].as_u64().unwrap_or(0),
                server: p["server"].as_str().unwrap_or_default().to_owned(),
                weight,
            }
        };
        Ok(all.iter().filter(takes).take(MOST_PEERS).map(peer).collect())
    }

    fn set_weight(&self, id: u64, weight: u64) -> Result<(), String> {
        self.client.change("PATCH", &format!("{}/servers/{id}", self.path), &json!({ "weight": weight }))
    }

    /// Answers, their microseconds together, and failures of a peer so far.
    fn counts(&self, id: u64) -> Result<[u64; 3], String> {
        let value = self.look()?;
        let peer = value["peers"].as_array().and_then(|all| all.iter().find(|p| p["id"].as_u64() == Some(id)));
        let peer = peer.ok_or_else(|| format!("server {id} has left the upstream"))?;
        let of = |pointer: &str| peer.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        // A status that the next server is asked for counts as an answer and as a failed try; a broken connection only as the latter.
        let failed = of("/responses/5xx").max(of("/fails"));
        let answers = of("/responses/total") + (failed - of("/responses/5xx"));
        Ok([answers, of("/response_time_hist/sum") * 1_000, failed])
    }
}

/// Runs the command. `arguments` are those behind `redline`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish("redline", REDLINE.parse(arguments).and_then(|o| run(&o, version)))
}

fn run(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = REDLINE.about(o, version) {
        print(&text);
        return Ok(0);
    }
    let url = o.value("api").unwrap_or(URL);
    let client = Client::new(url, &Trust::System, None)?;
    let name = o.value("upstream").ok_or("--upstream NAME is required")?;
    let group = Group::new(&client, name);
    if o.has("guard") {
        return guard(&group);
    }
    let limits = Limits { failed: o.number("failures", 0.1)? / 100.0, slower: o.number("slower", 2.0)? };
    let step = o.duration("step", STEP)?.max(Duration::from_millis(200));
    let peers = group.peers()?;
    let chosen = match o.value("server") {
        Some(server) => peers
            .iter()
            .find(|p| p.server == server)
            .ok_or_else(|| format!("{server} is no server of \"{name}\" that takes requests"))?,
        None => peers.first().ok_or_else(|| format!("no server of \"{name}\" takes requests"))?,
    };
    let say = |text: &str| {
        if !o.has("json") {
            print(text);
        }
    };
    let found = if o.has("manual") {
        watch(&group, chosen, step, o.number("count", 12.0)? as usize, &say)?
    } else {
        if peers.len() < 2 {
            return Err(format!(
                "\"{name}\" has one server that takes requests: there is nobody to take them from (--manual only watches)"
            ));
        }
        let guard = Guard::start(url, name, &peers)?;
        let found = search(&group, &peers, chosen, limits, step, &say);
        guard.end();
        found?
    };
    if o.has("json") {
        print(&(serde_json::to_string_pretty(&found).map_err(|e| e.to_string())? + "\n"));
    } else {
        print(&shown(&found));
    }
    Ok(0)
}

fn head() -> String {
    format!("{:>7} {:>12} {:>10} {:>9}\n", "share", "answers/s", "mean", "failed")
}

fn line(step: &Step) -> String {
    let (share, failed) = (step.share * 100.0, step.failed * 100.0);
    format!(
        "{share:>5.1} % {:>12} {:>10} {failed:>7.2} %\n",
        number(step.rate.round() as u64),
        microseconds(step.mean_us)
    )
}

/// Gives the chosen peer more and more.
fn search(
    group: &Group,
    peers: &[Peer],
    chosen: &Peer,
    limits: Limits,
    step: Duration,
    say: &dyn Fn(&str),
) -> Result<Found, String> {
    let others: u64 = peers.iter().filter(|p| p.id != chosen.id).map(|p| p.weight * SCALE).sum();
    for p in peers {
        group.set_weight(p.id, p.weight * SCALE)?;
    }
    let mut search = Search::new(limits);
    let mut steps = Vec::new();
    let mut share = (chosen.weight * SCALE) as f64 / (chosen.weight * SCALE + others) as f64;
    say(&head());
    loop {
        let weight = if share >= ALL {
            MOST_WEIGHT.max(others * 100)
        } else {
            (others as f64 * share / (1.0 - share)).round() as u64
        };
        group.set_weight(chosen.id, weight.clamp(1, MOST_WEIGHT.max(others * 100)))?;
        let taken = measure(group, chosen.id, share, step, |so_far| search.bends(so_far) == Some(Bend::Failures))?;
        if taken.answers < FEWEST && taken.failed == 0.0 {
            return Err(format!(
                "{} answers in {step:?} are too few to see anything: there must be traffic",
                taken.answers
            ));
        }
        say(&line(&taken));
        steps.push(taken);
        match search.next(taken) {
            Some(next) => share = next,
            None => break,
        }
    }
    let best = search.best.map(|b| b.rate);
    Ok(Found {
        server: chosen.server.clone(),
        best,
        safe: best.map(|b| b * SAFE),
        bend: search.bad.map(|b| b.1),
        steps,
    })
}

/// Only looks, while the operator takes servers away.
fn watch(group: &Group, chosen: &Peer, step: Duration, count: usize, say: &dyn Fn(&str)) -> Result<Found, String> {
    say(&head());
    let mut steps = Vec::new();
    for _ in 0..count {
        let weights = group.peers()?;
        let whole: u64 = weights.iter().map(|p| p.weight).sum();
        let own = weights.iter().find(|p| p.id == chosen.id).map_or(0, |p| p.weight);
        let taken = measure(group, chosen.id, own as f64 / whole.max(1) as f64, step, |_| false)?;
        say(&line(&taken));
        steps.push(taken);
    }
    let best = steps.iter().filter(|s| s.failed == 0.0).map(|s| s.rate).max_by(f64::total_cmp);
    Ok(Found { server: chosen.server.clone(), best, safe: best.map(|b| b * SAFE), bend: None, steps })
}

/// A look before and after. Failures end a step at once, so that a fault lasts no longer than it takes to see it.
fn measure(
    group: &Group,
    id: u64,
    share: f64,
    step: Duration,
    too_much: impl Fn(&Step) -> bool,
) -> Result<Step, String> {
    std::thread::sleep(step.mul_f64(SETTLE));
    let (before, began) = (group.counts(id)?, Instant::now());
    loop {
        std::thread::sleep(step.mul_f64((1.0 - SETTLE) / 8.0));
        let now = group.counts(id)?;
        let [answers, us, failed] = std::array::from_fn(|i| now[i].saturating_sub(before[i]));
        let seconds = began.elapsed().as_secs_f64();
        let part = |n: u64| n as f64 / answers.max(1) as f64;
        let taken = Step {
            share,
            rate: (answers - failed.min(answers)) as f64 / seconds,
            mean_us: part(us),
            failed: part(failed),
            answers,
        };
        if seconds >= step.as_secs_f64() * (1.0 - SETTLE) || answers >= FEWEST && too_much(&taken) {
            return Ok(taken);
        }
    }
}

/// The process that puts the weights back.
struct Guard(Child);

impl Guard {
    /// Starts it, and tells it what the weights are.
    fn start(url: &str, name: &str, peers: &[Peer]) -> Result<Guard, String> {
        use std::os::unix::process::CommandExt;
        let program = std::env::current_exe().map_err(|e| format!("the program's own path is not known ({e})"))?;
        let mut command = Command::new(program);
        command
            .args(["redline", "--guard", "--api", url, "--upstream", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        // A group of its own: Ctrl-C is for the one that is waited for.
        let mut child = command
            .process_group(0)
            .spawn()
            .map_err(|e| format!("the process that restores weights does not start ({e})"))?;
        let weights: Vec<Value> = peers.iter().map(|p| json!([p.id, p.weight])).collect();
        let mut pipe = child.stdin.take().ok_or("no pipe to the process that restores weights")?;
        pipe.write_all(format!("{}\n", json!(weights)).as_bytes())
            .map_err(|e| format!("the process that restores weights is gone ({e})"))?;
        child.stdin = Some(pipe);
        Ok(Guard(child))
    }

    /// Lets it do its work, and waits for it.
    fn end(mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The longest list of weights that is read.
const MOST_BYTES: u64 = 1 << 20;
/// How often, and how long apart, a weight is tried to be put back.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// Waits for the end of the process that has started this one, and sets the weights to what they were.
fn guard(group: &Group) -> Result<u8, String> {
    let mut text = String::new();
    std::io::stdin().take(MOST_BYTES).read_to_string(&mut text).map_err(|e| e.to_string())?;
    let weights: Vec<(u64, u64)> =
        serde_json::from_str(text.trim()).map_err(|e| format!("no weights to restore ({e})"))?;
    let mut failures = Vec::new();
    for (id, weight) in weights {
        let mut tries = (0..TRIES).map(|n| {
            if n > 0 {
                std::thread::sleep(BETWEEN_TRIES);
            }
            group.set_weight(id, weight)
        });
        let mut last = Ok(());
        if !tries.any(|tried| {
            last = tried;
            last.is_ok()
        }) {
            failures.push(format!("server {id} should have weight {weight} again: {}", last.err().unwrap_or_default()));
        }
    }
    if failures.is_empty() { Ok(0) } else { Err(failures.join("; ")) }
}

/// For people.
fn shown(found: &Found) -> String {
    let rate = |n: f64| number(n.round() as u64);
    let Found { server, .. } = found;
    let (Some(best), Some(safe)) = (found.best, found.safe) else {
        return format!("\n{server} is beyond what it carries already.\n");
    };
    let bend = match found.bend {
        Some(Bend::Failures) => "beyond that answers fail".to_owned(),
        Some(Bend::Latency) => "beyond that they take longer".to_owned(),
        None => "it had all the traffic there is, and nothing bent: it may carry more".to_owned(),
    };
    format!("\n{server} carries {} requests/s; {bend}. Plan with {}.\n", rate(best), rate(safe))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that carries so much, behind so much traffic.
    fn server(carries: f64, traffic: f64) -> impl Fn(f64) -> Step {
        move |share| {
            let offered = traffic * share;
            let failed = ((offered - carries) / offered).max(0.0);
            Step { share, rate: offered.min(carries), mean_us: 1_000.0, failed, answers: 1_000 }
        }
    }

    fn run(search: &mut Search, mut share: f64, server: impl Fn(f64) -> Step) -> usize {
        for n in 1..100 {
            match search.next(server(share)) {
                Some(next) => share = next,
                None => return n,
            }
        }
        panic!("no end: {search:?}");
    }

    #[test]
    fn the_bend_is_closed_in_on() {
        let limits = Limits { failed: 0.001, slower: 2.0 };
        for carries in [500.0, 777.0, 1_000.0, 1_900.0] {
            let mut search = Search::new(limits);
            let steps = run(&mut search, 0.1, server(carries, 2_000.0));
            let best = search.best.unwrap().rate;
            assert!(best <= carries && best > carries * 0.95, "{best} of {carries} after {steps} steps");
            assert_eq!(search.bad.unwrap().1, Bend::Failures);
        }
    }

    #[test]
    fn a_server_that_carries_all_has_no_bend() {
        let mut search = Search::new(Limits { failed: 0.001, slower: 2.0 });
        run(&mut search, 0.25, server(5_000.0, 2_000.0));
        assert_eq!((search.best.unwrap().rate, search.bad), (2_000.0, None));
    }

    #[test]
    fn answers_that_take_longer_are_a_bend_too() {
        let mut search = Search::new(Limits { failed: 0.001, slower: 2.0 });
        let slow = |share: f64| Step {
            share,
            rate: 1_000.0 * share,
            mean_us: if share > 0.6 { 9_000.0 } else { 3_000.0 },
            failed: 0.0,
            answers: 99,
        };
        run(&mut search, 0.2, slow);
        let best = search.best.unwrap().share;
        assert!(best > 0.5 && best <= 0.6 && search.bad.unwrap().1 == Bend::Latency, "{search:?}");
        let mut search = Search::new(Limits { failed: 0.001, slower: 2.0 });
        assert_eq!(search.next(Step { failed: 0.5, answers: 99, ..Step::default() }), None, "it bends as it is");
        assert_eq!(search.best, None);
    }
}
