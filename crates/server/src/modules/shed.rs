//! `shed_priority`, and of an upstream `concurrency_limit` and `circuit_breaker` (docs/shield.md): who goes first when peers cannot do more. How: `upstream::shed`.

use super::refusals;
use super::upstream_block::current;
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http, upstream};
use crate::log_error;
use crate::merged_values;
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use conf::{Node, Problem, value};
use shield::breaker::Rules;
use shield::limiter::{Bounds, Priority};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("shed_priority", |s, n| {
        let text = Complex::compile(s.build, &n.args[0])?;
        if let Some(text) = text.as_fixed()
            && priority(text).is_none()
        {
            return Err(Problem::invalid_parameter(&n.args[0]));
        }
        setters::value(&mut s.level.conf.shed.shed_priority, n, Some(Arc::new(text)))
    }),
    upstream("concurrency_limit", concurrency_limit),
    upstream("circuit_breaker", circuit_breaker),
];

/// The variables.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "shed_reason", evaluate: |r| r.ctx.shed.reason.map(Text::from), volatile: true, assign: None }];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `high`, `normal` or `low`.
        shed_priority: Option<Arc<Complex>> = None,
    }
}

crate::inherited!(Conf, |_| true);

/// What is known of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// `$shed_reason`
    pub reason: Option<&'static str>,
    /// `sysguard` has looked at it.
    pub judged: bool,
}

fn priority(text: &[u8]) -> Option<Priority> {
    value::choice(text, &[("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)])
}

/// Whose turn a request is; what is none of the words is `normal`.
pub fn priority_of(r: &mut Request) -> Priority {
    let Some(text) = (*r.conf().shed.shed_priority).clone() else { return Priority::Normal };
    let text = text.eval(r);
    priority(r.get(text)).unwrap_or_default()
}

/// Refuses a request for lack of room.
pub fn refuse(r: &mut Request, reason: &'static str) -> Verdict {
    r.ctx.shed.reason = Some(reason);
    refusals::refused(r, 503, "shed", format_args!("{reason}"));
    r.answer.headers.push(Text::from("Retry-After"), Text::from("1"));
    log_error!(r, Info, "request is shed: {reason}");
    Verdict::Status(503)
}

/// `concurrency_limit auto [min=NUMBER] [max=NUMBER]`
fn concurrency_limit(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [auto, rest @ ..] = node.args.as_slice() else { return Err(Problem::invalid_arguments(node)) };
    if *auto != "auto" {
        return Err(Problem::invalid_parameter(auto));
    }
    let mut bounds = Bounds { min: 4, max: 1000 };
    for word in rest {
        let number = |text: &[u8]| {
            let number = value::number(text).and_then(|n| u32::try_from(n).ok());
            number.filter(|n| *n > 0).ok_or_else(|| Problem::invalid_parameter(word))
        };
        if let Some(text) = word.text.strip_prefix(b"min=") {
            bounds.min = number(text)?;
        } else if let Some(text) = word.text.strip_prefix(b"max=") {
            bounds.max = number(text)?;
        } else {
            return Err(Problem::invalid_parameter(word));
        }
    }
    if bounds.min > bounds.max {
        return Err(node.problem("\"min\" is more than \"max\"".to_owned()));
    }
    if current(scope).shed.limit.replace(bounds).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// `circuit_breaker errors=PERCENT% [requests=NUMBER] [window=TIME] [open=TIME]`
fn circuit_breaker(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut rules = Rules { errors_percent: 0, requests: 20, window_ms: 10_000, open_ms: 5_000 };
    for word in &node.args {
        let bad = || Problem::invalid_parameter(word);
        let at = memchr::memchr(b'=', &word.text).ok_or_else(bad)?;
        let (name, text) = (&word.text[..at], &word.text[at + 1..]);
        let above_zero = |n: Option<u64>| n.filter(|n| *n > 0).ok_or_else(bad);
        match name {
            b"errors" => {
                let percent = text.strip_suffix(b"%").and_then(value::number).filter(|n| *n <= 100);
                rules.errors_percent = above_zero(percent)?;
            }
            b"requests" => rules.requests = above_zero(value::number(text))?,
            b"window" => rules.window_ms = above_zero(value::milliseconds(text))?,
            b"open" => rules.open_ms = above_zero(value::milliseconds(text))?,
            _ => return Err(bad()),
        }
    }
    if rules.errors_percent == 0 {
        return Err(node.problem("\"circuit_breaker\" needs \"errors\"".to_owned()));
    }
    if current(scope).shed.breaker.replace(rules).is_some() { Err(duplicate(node)) } else { Ok(()) }
}
