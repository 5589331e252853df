//! `guard`: requests counted by keys, and what happens to those above a rate (docs/shield.md). Here words become a [`Guard`]; `judge` works on requests,
//! `challenge` answers them, `state` is what threads share. The sketches, cookies and bans are the crate `shield`.

mod challenge;
mod crawlers;
mod judge;
pub mod state;
pub mod succession;

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope};
use crate::log::error::Level;
use crate::merged_values;
use crate::request::Text;
use challenge::CookieName;
use conf::{Contexts, Node, Problem, Word, value};
use shield::attack::Triggers;
use shield::challenge::MAX_BITS;
use shield::rates::{Above, Rate};
use state::{Shared, State};
use std::sync::{Arc, OnceLock};

pub use judge::{Context, DELAY, handler};

/// The directives: the block in `http`, and its use.
pub const DIRECTIVES: &[Directive] = &[
    Directive { name: "guard", within: Contexts::HTTP, set: block },
    Directive { name: "guard", within: Contexts::SERVER.union(Contexts::LOCATION), set: usage },
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "guard_action",
        evaluate: |r| r.ctx.guard.action.map(|action| Text::from(action.past())),
        volatile: true,
        assign: None,
    },
    Builtin { name: "guard_reason", evaluate: judge::reason, volatile: true, assign: None },
];

/// Limits of a guard at most: a request looks at each.
const MAX_LIMITS: usize = 32;
/// How long a challenge's answer is good, s.
const VALID_S: u64 = 3600;
/// Cookies that an address is given by redirect in that time. Behind one are a household, an office, or some thousands of a provider's clients: those above
/// it have work to do, which a browser does unseen, while a program that makes itself many clients has to do it for each.
const PER_ADDRESS: u64 = 32;
/// How long bans last where nothing says it, ms.
const BAN_MS: u64 = 600_000;
/// `ban` without a time of its own, until all rows are read: it lasts as long as the guard's row `ban` says.
const AS_GUARD: u64 = 0;
/// How long an excess waits, ms.
const DELAY_MS: u64 = 1000;
/// How hard a proof of work is, bits.
const WORK_BITS: u32 = 16;
/// The cookie's name.
const COOKIE: &str = "ironweir_guard";

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Which guard holds; none: no guard.
        guard: Option<Use> = None,
    }
}

crate::inherited!(Conf, |_| true);

impl Conf {
    /// Whether requests may have to wait.
    pub fn delays(&self) -> bool {
        (*self.guard).as_ref().and_then(Use::guard).is_some_and(|guard| guard.delays)
    }
}

/// A guard that holds on a level, which may be used before its block is read.
#[derive(Clone)]
pub struct Use {
    index: usize,
    guard: Arc<OnceLock<Guard>>,
}

impl Use {
    /// None only while the configuration is read.
    fn guard(&self) -> Option<&Guard> {
        self.guard.get()
    }
}

impl std::fmt::Debug for Use {
    /// Without what threads count meanwhile.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Use").field(&self.index).finish()
    }
}

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    guards: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    name: Box<str>,
    /// The first use, for what is wrong with it.
    used: Option<conf::Span>,
    guard: Arc<OnceLock<Guard>>,
}

impl Main {
    /// The sets of the kernel that bans go into.
    pub fn ban_sets(&self) -> Vec<crate::master::BanSet> {
        let of = |set: &Arc<Set>| {
            let names = [Some(&set.v4), set.v6.as_ref()].into_iter().flatten().cloned();
            let made = |name| crate::master::BanSet { family: set.family, table: set.table.clone(), name };
            names.map(made).collect::<Vec<_>>()
        };
        self.guards().filter_map(|guard| guard.nftables.as_ref()).flat_map(of).collect()
    }

    /// The same by family, for bans that are lifted.
    pub fn kernel_sets(&self) -> Vec<Arc<Set>> {
        let mut sets: Vec<Arc<Set>> = self.guards().filter_map(|guard| guard.nftables.clone()).collect();
        sets.dedup();
        sets
    }

    /// All guards.
    pub fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter().filter_map(|named| named.guard.get())
    }

    fn get(&self, index: usize) -> Option<&Guard> {
        self.guards.get(index)?.guard.get()
    }

    fn index_of(&mut self, name: &str) -> usize {
        self.guards.iter().position(|named| &*named.name == name).unwrap_or_else(|| {
            self.guards.push(Named { name: name.into(), used: None, guard: Arc::default() });
            self.guards.len() - 1
        })
    }
}

/// A guard as it was written.
#[derive(Debug)]
pub struct Guard {
    /// Its name.
    pub name: Box<str>,
    /// Its limits, in the order of the text.
    pub limits: Vec<Limit>,
    /// What is looked at of them for each request, in the same order.
    checks: Vec<Check>,
    pass: Vec<Complex>,
    crawlers: Vec<crawlers::Crawler>,
    ban_ms: u64,
    /// Challenges that an address may leave unanswered in a minute.
    unanswered: Option<u64>,
    cookie: CookieName,
    valid_s: u64,
    /// Cookies of an address by redirect in that time.
    per_address: u64,
    key: Option<shield::challenge::Key>,
    work_bits: u32,
    attack: Option<Triggers>,
    nftables: Option<Arc<Set>>,
    retry_after_s: u64,
    dry_run: bool,
    log_level: Level,
    /// Some limit asks for cookies.
    challenges: bool,
    /// Some limit lets requests wait.
    delays: bool,
    /// What threads share.
    pub state: Arc<State>,
}

/// A set of the kernel that bans go into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// `inet`, `ip`, `ip6` by nftables' numbers.
    pub family: u8,
    /// Its table.
    pub table: Box<str>,
    /// Of IPv4 addresses.
    pub v4: Box<str>,
    /// Of IPv6 addresses.
    pub v6: Option<Box<str>>,
}

/// One `limit`.
#[derive(Debug)]
pub struct Limit {
    /// As it was written, for logs: `url 100r/s`.
    pub text: Box<str>,
    key: Key,
    rate: Rate,
    action: Action,
    under_attack: bool,
}

/// A limit as each request meets it: made once the block is read, so that few bytes are looked at.
#[derive(Debug)]
struct Check {
    key: CheckKey,
    /// Requests that it is not for: bits of [`Check`].
    left_out: u8,
    above: Above,
    rate: Rate,
    shared: Arc<Shared>,
}

/// [`Key`] without its text.
#[derive(Clone, Copy, Debug)]
enum CheckKey {
    Address,
    Prefix,
    Client,
    Url,
    Headers,
    Text,
}

impl Check {
    /// While there is no attack.
    const CALM: u8 = 1;
    /// Of who has answered a challenge by a cookie alone.
    const COOKIE: u8 = 2;
    /// Of who has done some work.
    const WORK: u8 = 4;
    /// Of who has answered none.
    const UNKNOWN: u8 = 8;

    fn new(limit: &Limit, shared: Arc<Shared>, is_challenging: bool) -> Check {
        let key = match limit.key {
            Key::Address => CheckKey::Address,
            Key::Prefix => CheckKey::Prefix,
            Key::Client => CheckKey::Client,
            Key::Url => CheckKey::Url,
            Key::Headers => CheckKey::Headers,
            Key::Text(_) | Key::Ja4(_) => CheckKey::Text,
        };
        // Who has answered a challenge is not judged by those around any more. Work is asked for once from those who have only brought a cookie.
        let proved = match (&limit.key, limit.action) {
            // Many may share an address and a browser: who can be told apart by a cookie is counted once it has one.
            (Key::Client, _) if is_challenging => Check::UNKNOWN,
            (Key::Client | Key::Text(_), _) => 0,
            (_, Action::Work) => Check::WORK,
            _ => Check::COOKIE | Check::WORK,
        };
        let calm = if limit.under_attack { Check::CALM } else { 0 };
        Check { key, left_out: proved | calm, above: limit.action.above(), rate: limit.rate, shared }
    }
}

#[derive(Debug)]
enum Key {
    Address,
    Prefix,
    Client,
    Url,
    Headers,
    Text(Complex),
    Ja4(Complex),
}

/// What happens to an excess, from mild to severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A line.
    Log,
    /// A wait, ms.
    Delay(u64),
    /// A cookie by redirect.
    Challenge,
    /// A proof of work.
    Work,
    /// 429
    Refuse,
    /// 444
    Close,
    /// 444, and nothing more is heard from the address for so long, ms.
    Ban(u64),
}

impl Action {
    /// Whether an excess counts towards the rate.
    fn above(self) -> Above {
        match self {
            Action::Delay(_) | Action::Refuse => Above::Dropped,
            Action::Log | Action::Challenge | Action::Work | Action::Close | Action::Ban(_) => Above::Counted,
        }
    }
}

fn usage(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].as_str();
    let used = (name != "off").then(|| {
        let main = &mut scope.build.main.guard;
        let index = main.index_of(&name);
        main.guards[index].used.get_or_insert(node.args[0].span);
        Use { index, guard: main.guards[index].guard.clone() }
    });
    setters::value(&mut scope.level.conf.guard.guard, node, used)
}

/// Names that no block stands for. For the end of the configuration.
pub fn finish(build: &mut Build<'_>) {
    for named in &build.main.guard.guards {
        if named.guard.get().is_none() {
            build.problems.push(Problem::emerg(named.used, format!("unknown guard \"{}\"", named.name)));
        }
    }
}

fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].as_str();
    let index = scope.build.main.guard.index_of(&name);
    if name == "off" || scope.build.main.guard.guards[index].guard.get().is_some() {
        return Err(node.problem(format!("duplicate guard \"{name}\"")));
    }
    let mut guard = Guard {
        name: name.as_ref().into(),
        limits: Vec::new(),
        checks: Vec::new(),
        pass: Vec::new(),
        crawlers: Vec::new(),
        ban_ms: BAN_MS,
        unanswered: None,
        cookie: CookieName::new(COOKIE),
        valid_s: VALID_S,
        per_address: PER_ADDRESS,
        key: None,
        work_bits: WORK_BITS,
        attack: None,
        nftables: None,
        retry_after_s: 10,
        dry_run: false,
        log_level: Level::Warn,
        challenges: false,
        delays: false,
        state: Arc::default(),
    };
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for row in node.children() {
        let word = row.name.text.as_slice();
        if !matches!(word, b"limit" | b"pass" | b"crawler") {
            if seen.iter().any(|s| s == word) {
                return Err(duplicate(row));
            }
            seen.push(word.to_vec());
        }
        guard.row(scope.build, row)?;
    }
    for limit in &mut guard.limits {
        if limit.action == Action::Ban(AS_GUARD) {
            limit.action = Action::Ban(guard.ban_ms);
        }
    }
    let texts: Vec<&str> = guard.limits.iter().map(|limit| &*limit.text).collect();
    guard.state = State::find(&name, &texts);
    guard.challenges = guard.limits.iter().any(|l| matches!(l.action, Action::Challenge | Action::Work));
    let (limits, is_challenging) = (guard.limits.iter().zip(&guard.state.limits), guard.challenges);
    guard.checks = limits.map(|(limit, shared)| Check::new(limit, shared.clone(), is_challenging)).collect();
    guard.delays = guard.limits.iter().any(|l| matches!(l.action, Action::Delay(_)));
    if guard.attack.is_none()
        && let Some(limit) = guard.limits.iter().find(|limit| limit.under_attack)
    {
        return Err(node.problem(format!("\"limit {}\" is for attacks, but there is no \"attack\"", limit.text)));
    }
    let is_first = scope.build.main.guard.guards[index].guard.set(guard).is_ok();
    debug_assert!(is_first, "a second block of that name was refused above");
    Ok(())
}

impl Guard {
    /// Which limit a check is of.
    fn number_of(&self, check: &Check) -> usize {
        self.checks.iter().position(|other| std::ptr::eq(other, check)).unwrap_or_default()
    }

    fn row(&mut self, build: &mut Build<'_>, row: &Node) -> Result<(), Problem> {
        let one = || match row.args.as_slice() {
            [word] => Ok(word),
            _ => Err(Problem::invalid_arguments(row)),
        };
        match row.name.text.as_slice() {
            b"limit" if self.limits.len() < MAX_LIMITS => self.limits.push(limit(build, row)?),
            b"limit" => return Err(row.problem(format!("more than {MAX_LIMITS} limits"))),
            b"pass" if !row.args.is_empty() => {
                for word in &row.args {
                    self.pass.push(Complex::compile(build, word)?);
                }
            }
            b"crawler" => {
                let crawler = crawlers::read(row, self.crawlers.len())?;
                self.crawlers.push(crawler);
            }
            b"ban" => self.ban(row)?,
            b"cookie" => self.cookie(row)?,
            b"work" => {
                let bits = value::number(&one()?.text).and_then(|n| u32::try_from(n).ok());
                self.work_bits = bits.filter(|n| (1..=MAX_BITS).contains(n)).ok_or_else(|| setters::invalid(row))?;
            }
            b"attack" => self.attack = Some(attack(row)?),
            b"nftables" => self.nftables = Some(Arc::new(nftables(row)?)),
            b"retry_after" => self.retry_after_s = value::seconds(&one()?.text).ok_or_else(|| setters::invalid(row))?,
            b"dry_run" => {
                self.dry_run =
                    value::flag(&one()?.text).ok_or_else(|| Problem::invalid_flag(row, one().unwrap_or(&row.name)))?;
            }
            b"log_level" => {
                let word = one()?;
                let level = super::limits::LOG_LEVELS.iter().find(|(name, _)| *word == *name);
                self.log_level = level.ok_or_else(|| Problem::invalid_parameter(word))?.1;
            }
            _ if row.args.is_empty() => return Err(Problem::invalid_arguments(row)),
            _ => return Err(row.problem(format!("unknown directive \"{}\"", row.name.as_str()))),
        }
        Ok(())
    }

    /// `ban [TIME] [unanswered=NUMBER]`
    fn ban(&mut self, row: &Node) -> Result<(), Problem> {
        if row.args.is_empty() {
            return Err(Problem::invalid_arguments(row));
        }
        for (at, word) in row.args.iter().enumerate() {
            let bad = || Problem::invalid_parameter(word);
            match word.text.strip_prefix(b"unanswered=") {
                Some(number) => {
                    let number = value::number(number).filter(|n| *n > 0);
                    self.unanswered = Some(number.ok_or_else(bad)?);
                }
                None if at == 0 => self.ban_ms = milliseconds(&word.text).ok_or_else(bad)?,
                None => return Err(bad()),
            }
        }
        Ok(())
    }

    /// `cookie [name=NAME] [valid=TIME] [per_address=NUMBER] [key=TEXT]`
    fn cookie(&mut self, row: &Node) -> Result<(), Problem> {
        for word in &row.args {
            let bad = || Problem::invalid_parameter(word);
            let at = memchr::memchr(b'=', &word.text).ok_or_else(bad)?;
            let (name, text) = (&word.text[..at], &word.text[at + 1..]);
            match name {
                b"name" if is_token(text) => self.cookie = CookieName::new(&String::from_utf8_lossy(text)),
                b"valid" => self.valid_s = value::seconds(text).filter(|s| *s > 0).ok_or_else(bad)?,
                b"per_address" => self.per_address = value::number(text).filter(|n| *n > 0).ok_or_else(bad)?,
                b"key" if !text.is_empty() => self.key = Some(shield::challenge::Key::new(text)),
                _ => return Err(bad()),
            }
        }
        Ok(())
    }
}

/// What a cookie may be called (RFC 6265).
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn milliseconds(text: &[u8]) -> Option<u64> {
    value::milliseconds(text).filter(|ms| *ms > 0)
}

/// `limit KEY RATE [burst=NUMBER] ACTION [under_attack]`
fn limit(build: &mut Build<'_>, row: &Node) -> Result<Limit, Problem> {
    let [key, rate, rest @ ..] = row.args.as_slice() else { return Err(Problem::invalid_arguments(row)) };
    let per_second = super::limit_req::read_rate(&rate.text);
    let per_second = per_second.ok_or_else(|| row.problem(format!("invalid rate \"{}\"", rate.as_str())))?;
    let (mut burst, mut action, mut under_attack) = (0, None, false);
    for word in rest {
        let bad = || Problem::invalid_parameter(word);
        if let Some(text) = word.text.strip_prefix(b"burst=") {
            burst = value::number(text).ok_or_else(bad)?;
        } else if *word == "under_attack" {
            under_attack = true;
        } else if action.replace(read_action(word).ok_or_else(bad)?).is_some() {
            return Err(row.problem("one action, please: a limit does one thing".to_owned()));
        }
    }
    let action = action.ok_or_else(|| row.problem("\"limit\" needs an action".to_owned()))?;
    let text = format!("{} {}", key.as_str(), rate.as_str()).into();
    let key = match key.text.as_slice() {
        b"address" => Key::Address,
        b"prefix" => Key::Prefix,
        b"client" => Key::Client,
        b"url" => Key::Url,
        b"headers" => Key::Headers,
        b"ja4" => Key::Ja4(Complex::compile_bytes(build, b"$ssl_ja4").map_err(|text| row.problem(text))?),
        text if text.contains(&b'$') => Key::Text(Complex::compile(build, key)?),
        _ => return Err(Problem::invalid_parameter(key)),
    };
    Ok(Limit { text, key, rate: Rate::new(per_second as u64, burst), action, under_attack })
}

fn read_action(word: &Word) -> Option<Action> {
    let text = word.text.as_slice();
    let at = memchr::memchr(b'=', text);
    Some(match at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..]))) {
        (b"log", None) => Action::Log,
        (b"delay", None) => Action::Delay(DELAY_MS),
        (b"delay", Some(time)) => Action::Delay(milliseconds(time)?),
        (b"challenge", None) => Action::Challenge,
        (b"work", None) => Action::Work,
        (b"refuse", None) => Action::Refuse,
        (b"close", None) => Action::Close,
        (b"ban", None) => Action::Ban(AS_GUARD),
        (b"ban", Some(time)) => Action::Ban(milliseconds(time)?),
        _ => return None,
    })
}

/// `attack [errors=] [requests=] [active=] [cpu=] [for=]`
fn attack(row: &Node) -> Result<Triggers, Problem> {
    let mut triggers = Triggers { for_ms: 30_000, ..Triggers::default() };
    for word in &row.args {
        let bad = || Problem::invalid_parameter(word);
        let at = memchr::memchr(b'=', &word.text).ok_or_else(bad)?;
        let (name, text) = (&word.text[..at], &word.text[at + 1..]);
        let percent = || {
            let number = text.strip_suffix(b"%").and_then(value::number);
            number.filter(|n| (1..=100).contains(n)).ok_or_else(bad)
        };
        match name {
            b"errors" => triggers.errors_percent = Some(percent()?),
            b"cpu" => triggers.cpu_percent = Some(percent()?),
            b"active" => triggers.active = Some(value::number(text).filter(|n| *n > 0).ok_or_else(bad)?),
            b"requests" => {
                let rate = super::limit_req::read_rate(text).ok_or_else(bad)?;
                triggers.requests = Some((rate as u64).div_ceil(1000));
            }
            b"for" => triggers.for_ms = milliseconds(text).ok_or_else(bad)?,
            _ => return Err(bad()),
        }
    }
    Ok(triggers)
}

/// `nftables FAMILY TABLE SET [SET6]`
fn nftables(row: &Node) -> Result<Set, Problem> {
    /// Longest name in nftables (`NFT_NAME_MAXLEN`), bytes.
    const LONGEST: usize = 255;
    let name = |word: &Word| match is_token(&word.text) && word.text.len() <= LONGEST {
        true => Ok(Box::from(word.as_str())),
        false => Err(Problem::invalid_parameter(word)),
    };
    let (family, table, v4, v6) = match row.args.as_slice() {
        [family, table, v4] => (family, table, v4, None),
        [family, table, v4, v6] => (family, table, v4, Some(v6)),
        _ => return Err(Problem::invalid_arguments(row)),
    };
    // `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`.
    let number = value::choice(&family.text, &[("inet", 1u8), ("ip", 2), ("ip6", 10)]);
    let family = number.ok_or_else(|| Problem::invalid_parameter(family))?;
    Ok(Set { family, table: name(table)?, v4: name(v4)?, v6: v6.map(name).transpose()? })
}
