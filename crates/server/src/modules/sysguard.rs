//! `sysguard` and its like (Tengine's `ngx_http_sysguard_module`): requests are refused, or sent to another location, while the machine has too much to do. What the
//! machine says is read from `/proc`, at most once in `sysguard_interval`, by the request that comes first then.

use super::shed;
use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::setting::Setting;
use crate::config::{Directive, Scope, http};
use crate::log::error::Level;
use crate::merged_values;
use crate::request::Request;
use crate::request::finish;
use crate::request::phases::Verdict;
use conf::{Node, Problem, value};
use runtime::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("sysguard", |s, n| setters::flag(&mut s.level.conf.sysguard.sysguard, n)),
    http("sysguard_load", |s, n| {
        let rule = rule(s, n, &["load"])?;
        setters::value(&mut s.level.conf.sysguard.sysguard_load, n, Some(rule))
    }),
    http("sysguard_cpu", |s, n| {
        let rule = rule(s, n, &["usage"])?;
        setters::value(&mut s.level.conf.sysguard.sysguard_cpu, n, Some(rule))
    }),
    http("sysguard_mem", memory),
    http("sysguard_rt", |s, n| {
        let rule = rule(s, n, &["rt"])?;
        setters::value(&mut s.level.conf.sysguard.sysguard_rt, n, Some(rule))
    }),
    http("sysguard_interval", |s, n| setters::time(&mut s.level.conf.sysguard.sysguard_interval, n)),
    http("sysguard_log_level", |s, n| {
        setters::one_of(&mut s.level.conf.sysguard.sysguard_log_level, n, super::limits::LOG_LEVELS)
    }),
    http("sysguard_mode", |s, n| {
        setters::one_of(&mut s.level.conf.sysguard.sysguard_mode, n, &[("or", Mode::Or), ("and", Mode::And)])
    }),
];

/// Seconds that times of answers are kept for: the longest `period`.
const SECONDS: usize = 64;

/// Whether one threshold is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One is enough.
    Or,
    /// All of them.
    And,
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether it looks at all.
        sysguard: bool = false,
        /// Thousandths of a load.
        sysguard_load: Option<Arc<Rule>> = None,
        /// Percent.
        sysguard_cpu: Option<Arc<Rule>> = None,
        /// Percent of the swap space.
        sysguard_swap: Option<Arc<Rule>> = None,
        /// Bytes that are to be free.
        sysguard_mem: Option<Arc<Rule>> = None,
        /// Microseconds.
        sysguard_rt: Option<Arc<Rule>> = None,
        /// Between two looks.
        sysguard_interval: Duration = Duration::from_secs(1),
        /// Of lines about refusals.
        sysguard_log_level: Level = Level::Error,
        /// One threshold, or all.
        sysguard_mode: Mode = Mode::Or,
    }
}

crate::inherited!(Conf, |_| true);

/// A threshold.
#[derive(Debug)]
pub struct Rule {
    limit: u64,
    action: Option<Complex>,
    period_s: u64,
    /// Of `sysguard_rt`.
    times: Times,
}

/// How long answers took, by second.
struct Times([Second; SECONDS]);

#[derive(Default)]
struct Second {
    number: AtomicU64,
    sum_us: AtomicU64,
    answers: AtomicU64,
}

impl std::fmt::Debug for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Times")
    }
}

impl Times {
    fn add(&self, us: u64, now_s: u64) {
        let second = &self.0[now_s as usize % SECONDS];
        if second.number.swap(now_s, Relaxed) != now_s {
            second.sum_us.store(0, Relaxed);
            second.answers.store(0, Relaxed);
        }
        second.sum_us.fetch_add(us, Relaxed);
        second.answers.fetch_add(1, Relaxed);
    }

    /// The mean of the last seconds, µs; nothing without answers.
    fn mean(&self, seconds: u64, now_s: u64) -> Option<u64> {
        let recent = self.0.iter().filter(|s| {
            let number = s.number.load(Relaxed);
            number != 0 && now_s.saturating_sub(number) < seconds
        });
        let (sum, answers) =
            recent.fold((0, 0), |(sum, answers), s| (sum + s.sum_us.load(Relaxed), answers + s.answers.load(Relaxed)));
        (answers > 0).then(|| sum / answers)
    }
}

/// `NAME=VALUE [period=TIME] [action=/uri]`, one of `names`.
fn rule(scope: &mut Scope<'_, '_>, node: &Node, names: &[&str]) -> Result<Arc<Rule>, Problem> {
    let period_s = if names == ["cpu"] || names == ["usage"] { 3 } else { 1 };
    let mut rule = Rule { limit: 0, action: None, period_s, times: Times(std::array::from_fn(|_| Second::default())) };
    let mut named = false;
    for word in &node.args {
        let bad = || Problem::invalid_parameter(word);
        let at = memchr::memchr(b'=', &word.text).ok_or_else(bad)?;
        let (name, text) = (&word.text[..at], &word.text[at + 1..]);
        match name {
            b"action" if matches!(text.first(), Some(b'/' | b'@')) => {
                rule.action = Some(Complex::compile_bytes(scope.build, text).map_err(|t| node.problem(t))?);
            }
            b"period" if names[0] == "rt" || names[0] == "usage" => {
                let seconds = value::seconds(text).filter(|s| (1..SECONDS as u64).contains(s));
                rule.period_s = seconds.ok_or_else(bad)?;
            }
            name if names.iter().any(|n| n.as_bytes() == name) => {
                rule.limit = limit(name, text).ok_or_else(bad)?;
                named = true;
            }
            _ => return Err(bad()),
        }
    }
    if !named {
        return Err(node.problem(format!("\"{}\" needs \"{}=\"", node.name.as_str(), names[0])));
    }
    Ok(Arc::new(rule))
}

fn limit(name: &[u8], text: &[u8]) -> Option<u64> {
    match name {
        b"load" => match text.strip_prefix(b"ncpu*") {
            Some(times) => {
                Some(value::fixed(times, 3)? * std::thread::available_parallelism().map_or(1, |n| n.get() as u64))
            }
            None => value::fixed(text, 3),
        },
        b"usage" => value::number(text).filter(|n| *n <= 100),
        b"swapratio" => value::number(text.strip_suffix(b"%")?).filter(|n| *n <= 100),
        b"free" => value::offset(text),
        // Seconds with a fraction.
        b"rt" => value::fixed(text, 6),
        _ => None,
    }
}

/// `sysguard_mem swapratio=PERCENT% | free=SIZE [action=/uri]`
fn memory(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let is_swap = node.args.iter().any(|word| word.text.starts_with(b"swapratio="));
    let rule = rule(scope, node, if is_swap { &["swapratio"] } else { &["free"] })?;
    let conf = &mut *scope.level.conf.sysguard;
    let setting: &mut Setting<_> = if is_swap { &mut conf.sysguard_swap } else { &mut conf.sysguard_mem };
    setters::value(setting, node, Some(rule))
}

/// What the machine said last.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// Thousandths.
    load: u64,
    /// Percent of the swap space that is in use; none without swap space.
    swap: Option<u64>,
    /// Bytes: free, buffers and caches.
    free: Option<u64>,
}

struct Machine {
    read_ms: u64,
    now: Reading,
    /// Busy and all time of the processors, at some seconds: the newest last.
    cpu: Vec<(u64, u64, u64)>,
}

static MACHINE: Mutex<Machine> =
    Mutex::new(Machine { read_ms: 0, now: Reading { load: 0, swap: None, free: None }, cpu: Vec::new() });

impl Machine {
    fn look(&mut self, now_ms: u64, interval_ms: u64) {
        if self.read_ms != 0 && now_ms.saturating_sub(self.read_ms) < interval_ms {
            return;
        }
        self.read_ms = now_ms.max(1);
        let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
        let memory = memory_of(&read("/proc/meminfo"));
        self.now = Reading { load: load_of(&read("/proc/loadavg")), swap: memory.0, free: memory.1 };
        if let Some((busy, all)) = cpu_of(&read("/proc/stat")) {
            self.cpu.push((now_ms, busy, all));
            self.cpu.retain(|(at, ..)| now_ms - at <= SECONDS as u64 * 1000);
        }
    }

    /// Percent of the last seconds.
    fn cpu(&self, period_s: u64) -> Option<u64> {
        let (now, busy, all) = self.cpu.last()?;
        let before = self.cpu.iter().rev().skip(1).take_while(|(at, ..)| now - at <= period_s * 1000);
        let (_, busy_before, all_before) = before.last().or_else(|| self.cpu.iter().rev().nth(1))?;
        let all = all.saturating_sub(*all_before);
        (all > 0).then(|| busy.saturating_sub(*busy_before) * 100 / all)
    }
}

/// The first number of `/proc/loadavg`, thousandths.
fn load_of(text: &str) -> u64 {
    text.split(' ').next().and_then(|load| value::fixed(load.as_bytes(), 3)).unwrap_or_default()
}

/// Of `/proc/meminfo`: percent of the swap space in use, and bytes free.
fn memory_of(text: &str) -> (Option<u64>, Option<u64>) {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let swap = of("SwapTotal").zip(of("SwapFree")).filter(|(total, _)| *total > 0);
    let swap = swap.map(|(total, free)| total.saturating_sub(free) * 100 / total);
    let free = of("MemFree").map(|free| (free + of("Buffers").unwrap_or(0) + of("Cached").unwrap_or(0)) * 1024);
    (swap, free)
}

/// Of `/proc/stat`: busy and all time.
fn cpu_of(text: &str) -> Option<(u64, u64)> {
    let times: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is the user's already.
    let all: u64 = times.iter().take(8).sum();
    let idle = times.get(3)? + times.get(4)?;
    Some((all - idle, all))
}

/// The preaccess handler.
pub fn handler(r: &mut Request) -> Verdict {
    if !*r.conf().sysguard.sysguard || !r.is_main() || std::mem::replace(&mut r.ctx.shed.judged, true) {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.sysguard;
    let Some((reason, rule)) = exceeded(conf) else { return Verdict::Decline };
    let level = *conf.sysguard_log_level;
    if r.logs(level) {
        r.write_log(level, format_args!("sysguard: {reason} is above its threshold, request is shed"));
    }
    COUNTS.count(NAMES.iter().position(|name| *name == reason).unwrap_or_default());
    let Some(action) = &rule.action else { return shed::refuse(r, reason) };
    r.ctx.shed.reason = Some(reason);
    let target = action.eval(r);
    match r.get(target) {
        [b'@', name @ ..] => {
            let name = name.to_vec();
            finish::named_location(r, &name)
        }
        _ => {
            let (uri, args) = finish::split_args(r, target);
            finish::internal_redirect(r, uri, args)
        }
    }
}

/// What is counted of requests that were shed, in this order.
pub const NAMES: [&str; 5] = ["load", "cpu", "swap", "mem", "rt"];

/// Requests that were shed, by [`NAMES`].
pub static COUNTS: crate::status::tally::Tally<5> = crate::status::tally::Tally::new();

/// The first threshold that is exceeded; with `and` the last of all, if all are.
fn exceeded(conf: &Conf) -> Option<(&'static str, &Arc<Rule>)> {
    let now_ms = clock::monotonic_ms();
    let interval_ms = conf.sysguard_interval.as_millis() as u64;
    let machine = {
        let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        machine.look(now_ms, interval_ms);
        let cpu = conf.sysguard_cpu.as_ref().and_then(|rule| machine.cpu(rule.period_s));
        (machine.now, cpu)
    };
    let (now, cpu) = machine;
    type Measured<'r> = (&'static str, &'r Option<Arc<Rule>>, Option<u64>);
    let rules: [Measured<'_>; 5] = [
        ("load", &conf.sysguard_load, Some(now.load)),
        ("cpu", &conf.sysguard_cpu, cpu),
        ("swap", &conf.sysguard_swap, now.swap),
        ("mem", &conf.sysguard_mem, now.free),
        ("rt", &conf.sysguard_rt, conf.sysguard_rt.as_ref().and_then(|r| r.times.mean(r.period_s, now_ms / 1000 + 1))),
    ];
    let mut found = None;
    for (name, rule, value) in rules {
        let Some(rule) = rule else { continue };
        let above = value.is_some_and(|value| if name == "mem" { value < rule.limit } else { value > rule.limit });
        match (*conf.sysguard_mode, above) {
            (Mode::Or, true) => return Some((name, rule)),
            (Mode::And, false) => return None,
            (Mode::And, true) => found = Some((name, rule)),
            (Mode::Or, false) => {}
        }
    }
    found
}

/// The logger: notes how long answers take, for `sysguard_rt`.
pub fn logger(r: &mut Request) {
    if r.ctx.stream.is_some() || !r.is_main() || r.ctx.shed.reason.is_some() {
        return;
    }
    if let Some(rule) = &*r.conf().sysguard.sysguard_rt {
        let ms = clock::wall_ms().saturating_sub(r.started_ms);
        rule.times.add(ms * 1000, clock::monotonic_ms() / 1000 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_says_is_read() {
        assert_eq!(load_of("1.25 0.80 0.70 1/234 5678\n"), 1250);
        assert_eq!(load_of(""), 0);
        let memory = "MemTotal: 8 kB\nMemFree:  100 kB\nBuffers: 20 kB\nCached: 30 kB\nSwapCached: 9 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n";
        assert_eq!(memory_of(memory), (Some(25), Some(150 * 1024)));
        assert_eq!(memory_of("MemFree: 1 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"), (None, Some(1024)));
        assert_eq!(cpu_of("cpu  10 0 20 60 10 0 0 0 5 0\ncpu0 1\n"), Some((30, 100)));
        assert_eq!(cpu_of("nothing"), None);
        let mut machine =
            Machine { read_ms: 1, now: Reading::default(), cpu: vec![(0, 0, 0), (1000, 50, 100), (2000, 140, 200)] };
        assert_eq!((machine.cpu(1), machine.cpu(3)), (Some(90), Some(70)));
        machine.cpu.truncate(1);
        assert_eq!(machine.cpu(3), None);
    }

    #[test]
    fn times_are_of_the_last_seconds() {
        let times = Times(std::array::from_fn(|_| Second::default()));
        assert_eq!(times.mean(5, 100), None);
        times.add(100, 100);
        times.add(300, 101);
        assert_eq!((times.mean(5, 101), times.mean(1, 101)), (Some(200), Some(300)));
        assert_eq!(times.mean(5, 110), None);
        times.add(50, 100 + SECONDS as u64);
        assert_eq!(times.mean(1, 100 + SECONDS as u64), Some(50));
    }
}
