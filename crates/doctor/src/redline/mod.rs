//! `ironweir redline`: how many requests a second one real server carries, found with live traffic. Its share of the traffic grows step by
//! step, by weights over the API, until answers fail or take longer; then the place where that begins is closed in on (`search`).
//!
//! The weights come back whatever happens: a second process waits for the end of this one, however that comes (`group`). A server that does not
//! bend but breaks is seen between two looks, and its search is over at once.

mod group;
mod own;
mod search;

pub use search::{Bend, Limits, Search, Step};

use crate::command::{WARNING, finish, print};
use crate::guard::Guard;
use crate::options::{Options, REDLINE};
use crate::text::{microseconds, number};
use api_client::{Client, Trust, URL};
use group::{Changed, Counts, Group, Peer, put_back, restore, watch_over};
use own::Own;
use search::{ALL, FEWEST};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long each step is measured, unless it is said.
const STEP: Duration = Duration::from_secs(5);
/// After a change of weights the first so much is not measured: connections and queues of before.
const SETTLE: f64 = 0.2;
/// Between two looks at a server, so that one that breaks has its traffic for less than a second more.
const LOOK: Duration = Duration::from_millis(150);
/// With weights of hundreds, shares can be as fine as percents.
const SCALE: u64 = 100;
/// The largest weight that is set.
const MOST_WEIGHT: u64 = 100_000;
/// A search that says nothing for so long beyond two steps hangs: the weights are put back.
const SILENCE: Duration = Duration::from_secs(10);
/// Of the rate at which nothing bends, so much is called safe.
const SAFE: f64 = 0.8;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The server.
    pub server: String,
    /// The highest rate without a bend; none: it bends already as it is.
    pub best: Option<f64>,
    /// The highest rate of good answers that it was seen to give without failures, however long they took.
    pub most: Option<f64>,
    /// What to plan with.
    pub safe: Option<f64>,
    /// What bends beyond; none: there was no more traffic.
    pub bend: Option<Bend>,
    /// All steps.
    pub steps: Vec<Step>,
    /// Why it was ended before it was done.
    pub ended: Option<String>,
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
        return put_back(&group);
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
        // An API that may not be written to says so before anything is changed, and before anybody watches over it.
        group.set_weight(chosen.id, chosen.weight).map_err(|e| format!("nothing was changed: {e} (api write=on;)"))?;
        let task = Task { group: &group, peers: &peers, chosen, limits, step };
        searched(&task, url, name, &say)?
    };
    if o.has("json") {
        print(&(serde_json::to_string_pretty(&found).map_err(|e| e.to_string())? + "\n"));
    } else {
        print(&shown(&found));
    }
    Ok(if found.ended.is_some() { WARNING } else { 0 })
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

/// What is searched, and how.
struct Task<'t> {
    group: &'t Group<'t>,
    peers: &'t [Peer],
    chosen: &'t Peer,
    limits: Limits,
    step: Duration,
}

/// The search, with a second process that puts the weights back; if that one is gone, this one does.
fn searched(task: &Task, url: &str, name: &str, say: &dyn Fn(&str)) -> Result<Found, String> {
    let change = |p: &Peer| Changed { id: p.id, server: p.server.clone(), was: p.weight, set: vec![p.weight * SCALE] };
    let mut changed: Vec<Changed> = task.peers.iter().map(change).collect();
    let mut guard = watch_over(url, name, &changed, task.step * 2 + SILENCE)?;
    let mut set = Vec::new();
    let found = find(task, &mut guard, &mut set, say);
    let Err(gone) = guard.end() else { return found };
    changed.iter_mut().filter(|c| c.id == task.chosen.id).for_each(|c| c.set.append(&mut set));
    let failures = restore(task.group, &changed);
    let mut said = Vec::from_iter(found.err());
    said.push(gone);
    said.push(if failures.is_empty() {
        "the weights were put back by this command".to_owned()
    } else {
        format!("not everything could be put back: {}", failures.join("; "))
    });
    Err(said.join("; "))
}

/// Gives the chosen peer more and more. `set`: the weights that it was given.
fn find(task: &Task, guard: &mut Guard, set: &mut Vec<u64>, say: &dyn Fn(&str)) -> Result<Found, String> {
    let Task { group, peers, chosen, limits, step } = *task;
    let others: u64 = peers.iter().filter(|p| p.id != chosen.id).map(|p| p.weight * SCALE).sum();
    for p in peers {
        group.set_weight(p.id, p.weight * SCALE)?;
    }
    let own = Own::find(&chosen.server);
    let mut search = Search::new(limits);
    let (mut steps, mut ended) = (Vec::new(), None);
    let mut share = (chosen.weight * SCALE) as f64 / (chosen.weight * SCALE + others) as f64;
    say(&head());
    loop {
        let weight = if share >= ALL {
            MOST_WEIGHT.max(others * 100)
        } else {
            (others as f64 * share / (1.0 - share)).round() as u64
        };
        let weight = weight.clamp(1, MOST_WEIGHT.max(others * 100));
        set.push(weight);
        guard.alive(&json!({ "id": chosen.id, "weight": weight }))?;
        group.is_still(peers)?;
        group.set_weight(chosen.id, weight)?;
        let taken = match measure(group, (chosen, own.as_ref()), share, step, Some(&search))? {
            Measured::Step(taken) => taken,
            Measured::Broken(why) => {
                ended = Some(why);
                break;
            }
        };
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
    let best = search.best();
    let (server, safe) = (chosen.server.clone(), best.map(|b| b * SAFE));
    Ok(Found { server, best, most: search.most(), safe, bend: search.bend(), steps, ended })
}

/// Only looks, while the operator takes servers away.
fn watch(group: &Group, chosen: &Peer, step: Duration, count: usize, say: &dyn Fn(&str)) -> Result<Found, String> {
    say(&head());
    let mut steps = Vec::new();
    for _ in 0..count {
        let weights = group.peers()?;
        let whole: u64 = weights.iter().map(|p| p.weight).sum();
        let own = weights.iter().find(|p| p.id == chosen.id).map_or(0, |p| p.weight);
        // Without a search nothing is broken.
        if let Measured::Step(taken) = measure(group, (chosen, None), own as f64 / whole.max(1) as f64, step, None)? {
            say(&line(&taken));
            steps.push(taken);
        }
    }
    let best = steps.iter().filter(|s| s.failed == 0.0).map(|s| s.rate).max_by(f64::total_cmp);
    let safe = best.map(|b| b * SAFE);
    Ok(Found { server: chosen.server.clone(), best, most: best, safe, bend: None, steps, ended: None })
}

/// What a look too many has shown.
enum Measured {
    /// A step.
    Step(Step),
    /// The server broke; why that is said.
    Broken(String),
}

/// What a server did between two looks.
fn between(share: f64, before: &Counts, now: &Counts, seconds: f64) -> Step {
    let grew = |of: fn(&Counts) -> u64| of(now).saturating_sub(of(before));
    let (answers, us, failed) = (grew(|c| c.answers), grew(|c| c.us), grew(|c| c.failed));
    let part = |n: u64| n as f64 / answers.max(1) as f64;
    Step {
        share,
        rate: (answers - failed.min(answers)) as f64 / seconds,
        others: grew(|c| c.others) as f64 / seconds,
        mean_us: part(us),
        failed: part(failed),
        answers,
        ..Step::default()
    }
}

/// Looks again and again until a step is over. One that bends far too much ends at once, so that a fault lasts no longer than it takes to see it.
fn measure(
    group: &Group,
    (of, own): (&Peer, Option<&Own>),
    share: f64,
    step: Duration,
    search: Option<&Search>,
) -> Result<Measured, String> {
    let settle = step.mul_f64(SETTLE);
    let look = LOOK.min(step.mul_f64((1.0 - SETTLE) / 8.0));
    let began = Instant::now();
    let mut last = (group.counts(of)?, Instant::now());
    let mut first = None;
    let mut looking = None;
    loop {
        std::thread::sleep(look);
        let (now, at) = (group.counts(of)?, Instant::now());
        let since = at.duration_since(last.1).as_secs_f64();
        if let Some(search) = search
            && let Some(why) = search.breaks(share, &between(share, &last.0, &now, since), since)
        {
            return Ok(Measured::Broken(why));
        }
        // Where answers are few, looks are put together until they say something.
        if now.answers >= last.0.answers + FEWEST {
            last = (now, at);
        }
        if began.elapsed() < settle {
            continue;
        }
        let (before, from) = *first.get_or_insert((now, at));
        if looking.is_none() {
            looking = own.map(Own::begin);
        }
        let taken = between(share, &before, &now, at.duration_since(from).as_secs_f64().max(1e-3));
        let is_hopeless = || search.is_some_and(|s| s.bends(&taken) == Some(Bend::Failures));
        if began.elapsed() >= step || taken.answers >= FEWEST && is_hopeless() {
            let (queue, cpu) = own.zip(looking).map_or((None, None), |(own, looking)| own.end(looking));
            return Ok(Measured::Step(Step { queue, cpu, ..taken }));
        }
    }
}

/// For people.
fn shown(found: &Found) -> String {
    let rate = |n: f64| number(n.round() as u64);
    let Found { server, .. } = found;
    if let Some(why) = &found.ended {
        let before = found.best.map_or(String::new(), |b| format!(" Before that it carried {} requests/s.", rate(b)));
        return format!("\nThe search for {server} was ended: {why}. The weights are what they were.{before}\n");
    }
    let (Some(best), Some(safe)) = (found.best, found.safe) else {
        return format!("\n{server} is beyond what it carries already.\n");
    };
    let bend = match found.bend {
        Some(Bend::Failures) => "beyond that answers fail".to_owned(),
        Some(Bend::Latency) => match found.most.filter(|most| *most > best) {
            Some(most) => format!("beyond that they take longer (it was seen to give {})", rate(most)),
            None => "beyond that they take longer".to_owned(),
        },
        Some(Bend::Queue) => "beyond that connections wait in its accept queue, or are dropped there".to_owned(),
        Some(Bend::Cpu) => "beyond that it has no CPU time left".to_owned(),
        None => "it had all the traffic there is, and nothing bent: it may carry more".to_owned(),
    };
    format!("\n{server} carries {} requests/s; {bend}. Plan with {}.\n", rate(best), rate(safe))
}
