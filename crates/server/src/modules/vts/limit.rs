//! `vhost_traffic_status_limit_traffic` and its kin: requests are refused once so much was counted of their host, or of a key.

use super::count::{self, CLASSES, Totals};
use crate::config::complex::Complex;
use crate::config::{Scope, setters};
use crate::request::Request;
use crate::request::phases::Verdict;
use crate::status::caches::STATUSES;
use conf::{Contexts, Node, Problem, Word, value};
use std::sync::Arc;

/// What is answered where the configuration does not say.
const REFUSED: u16 = 503;
/// Limits of one level.
const MAX_LIMITS: usize = 64;

/// One number of what was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    Requests,
    Received,
    Sent,
    /// Answers of a class, counted from 1xx.
    Class(usize),
    /// What a cache said, by its place in [`STATUSES`].
    Cache(usize),
}

impl Member {
    /// Of limits: `request`, `in`, `2xx`, `cache_hit`.
    fn of_limit(text: &str) -> Option<Member> {
        let cached = || {
            STATUSES.iter().position(|s| text.strip_prefix("cache_").is_some_and(|t| t.eq_ignore_ascii_case(s.text())))
        };
        match text {
            "request" => Some(Member::Requests),
            "in" => Some(Member::Received),
            "out" => Some(Member::Sent),
            _ => class(text).map(Member::Class).or_else(|| cached().map(Member::Cache)),
        }
    }

    /// The number.
    pub(super) fn value(self, totals: &Totals) -> u64 {
        match self {
            Member::Requests => totals.requests,
            Member::Received => totals.received,
            Member::Sent => totals.sent,
            Member::Class(class) => totals.classes[class],
            Member::Cache(status) => totals.statuses[status],
        }
    }
}

/// `1xx` to `5xx`, from 0.
pub(super) fn class(text: &str) -> Option<usize> {
    let digit = text.strip_suffix("xx")?.parse::<usize>().ok()?;
    digit.checked_sub(1).filter(|class| *class < CLASSES)
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Group and name of what was counted; none: that of the request's host.
    key: Option<(Box<[u8]>, Complex)>,
    member: Member,
    most: u64,
    status: u16,
    /// It stands in `http` itself, and holds whatever the levels inside say.
    is_for_all: bool,
}

/// The limits of a level. Those of the level around hold where it has none, and those of `http` always.
pub type Limits = Option<Arc<Vec<Limit>>>;

/// Takes from the level around what holds here too.
pub(super) fn merge(own: &mut Limits, parent: &Limits) {
    let Some(limits) = own else {
        own.clone_from(parent);
        return;
    };
    let for_all = parent.iter().flat_map(|limits| limits.iter()).filter(|limit| limit.is_for_all);
    Arc::make_mut(limits).extend(for_all.cloned());
}

/// `MEMBER:SIZE [STATUS]`
pub(super) fn traffic(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let limit = limit(scope, node, None, &node.args)?;
    add(&mut scope.level.conf.vts.limits, node, limit)
}

/// `GROUP@[SUBGROUP@]NAME MEMBER:SIZE [STATUS]`
pub(super) fn traffic_by_key(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (word, rest) = (&node.args[0], &node.args[1..]);
    let text = word.as_str();
    let (group, name) = match text.split_once('@') {
        Some(("NO", name)) => ("", name),
        Some(("FG", rest)) => {
            rest.split_once('@').ok_or_else(|| word.problem(format!("\"{text}\" has no name behind its group")))?
        }
        Some((group @ ("UA" | "UG" | "CC"), _)) => {
            let text = format!("limits by \"{group}\" are not kept: hosts (NO) and keys (FG) are what is limited here");
            return Err(word.problem(text));
        }
        _ => return Err(word.problem(format!("invalid parameter \"{text}\""))),
    };
    let group: Box<[u8]> = group.as_bytes().into();
    if group.contains(&b'$') {
        return Err(word.problem(format!("the group of \"{text}\" may not have variables")));
    }
    let name = Complex::compile_bytes(scope.build, name.as_bytes()).map_err(|t| word.problem(t))?;
    let limit = limit(scope, node, Some((group, name)), rest)?;
    add(&mut scope.level.conf.vts.limits_by_key, node, limit)
}

fn limit(
    scope: &Scope<'_, '_>,
    node: &Node,
    key: Option<(Box<[u8]>, Complex)>,
    words: &[Word],
) -> Result<Limit, Problem> {
    let text = words[0].as_str();
    let invalid = || words[0].problem(format!("invalid parameter \"{text}\""));
    let (member, size) = text.split_once(':').ok_or_else(invalid)?;
    let member = Member::of_limit(member).ok_or_else(invalid)?;
    let most = value::offset(size.as_bytes()).ok_or_else(invalid)?;
    let status = match words.get(1) {
        None => REFUSED,
        Some(word) => match value::number(&word.text) {
            Some(status @ 400..=599) => status as u16,
            _ => return Err(node.problem(format!("status code \"{}\" must be between 400 and 599", word.as_str()))),
        },
    };
    let is_for_all = scope.level.context.intersects(Contexts::HTTP);
    Ok(Limit { key, member, most, status, is_for_all })
}

fn add(limits: &mut Limits, node: &Node, limit: Limit) -> Result<(), Problem> {
    let limits = Arc::make_mut(limits.get_or_insert_default());
    if limits.len() == MAX_LIMITS {
        return Err(setters::invalid(node));
    }
    limits.push(limit);
    Ok(())
}

/// Refuses a request whose host, or one of whose keys, has had more than a limit says.
pub fn handler(r: &mut Request) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.vts;
    if snapshot.main.vts.zone.is_none() || !r.is_main() || !conf.limits_now() {
        return Verdict::Decline;
    }
    let all = [&conf.limits, &conf.limits_by_key].into_iter().flatten().flat_map(|limits| limits.iter());
    for limit in all {
        let totals = match &limit.key {
            None => super::with_host(r, |host| count::totals_of(b"", host)),
            Some((group, name)) => {
                let name = name.eval(r);
                count::totals_of(group, r.get(name))
            }
        };
        if totals.is_some_and(|totals| limit.member.value(&totals) > limit.most) {
            return Verdict::Status(limit.status);
        }
    }
    Verdict::Decline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_by_name() {
        assert_eq!(Member::of_limit("request"), Some(Member::Requests));
        assert_eq!(Member::of_limit("5xx"), Some(Member::Class(4)));
        assert!(matches!(Member::of_limit("cache_hit"), Some(Member::Cache(_))));
        for unknown in ["", "0xx", "6xx", "cache_", "cache_never", "requests"] {
            assert_eq!(Member::of_limit(unknown), None, "{unknown}");
        }
    }
}
