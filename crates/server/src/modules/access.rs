//! `allow`, `deny` (nginx's `ngx_http_access_module`): the first rule that fits the client's address decides.

use crate::config::cidr::{Cidr, Plain};
use crate::config::{Directive, Scope, both};
use crate::connection::Address;
use crate::log_error;
use crate::request::Request;
use crate::request::phases::Verdict;
use conf::{Node, Problem};
use std::net::IpAddr;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[both("allow", |s, n| rule(s, n, false)), both("deny", |s, n| rule(s, n, true))];

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    pub(super) rules: Arc<Vec<Rule>>,
}

impl Conf {
    /// A level without rules has its parent's.
    pub fn merge(&mut self, parent: &Conf) {
        if self.rules.is_empty() {
            self.clone_from(parent);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// None: `all`.
    network: Option<Cidr>,
    deny: bool,
}

fn rule(scope: &mut Scope<'_, '_>, node: &Node, deny: bool) -> Result<(), Problem> {
    let word = &node.args[0];
    let network = match word.text.as_slice() {
        b"all" => None,
        b"unix:" => Some(Cidr::Unix),
        text => {
            let network = Cidr::read(&mut scope.build.problems, node, text);
            Some(network.ok_or_else(|| node.problem(format!("invalid parameter \"{}\"", word.as_str())))?)
        }
    };
    Arc::make_mut(&mut scope.level.conf.access.rules).push(Rule { network, deny });
    Ok(())
}

/// The access handler.
pub fn handler(r: &mut Request) -> Verdict {
    let rules = &r.conf().access.rules;
    if rules.is_empty() {
        return Verdict::Decline;
    }
    let address = address(rules, &r.client.remote.borrow());
    match rules.iter().find(|rule| rule.network.is_none_or(|n| n.contains(address))) {
        None => Verdict::Decline,
        Some(rule) if !rule.deny => Verdict::Allow,
        Some(_) => {
            if !r.conf().core.satisfy.any() {
                log_error!(r, Error, "access forbidden by rule");
            }
            Verdict::Status(403)
        }
    }
}

/// An IPv4 address in an IPv6 one is looked at as IPv4 only where a rule is about IPv4 (`ngx_http_access_handler`).
fn address(rules: &[Rule], client: &Address) -> Plain {
    match client {
        Address::Inet(a) => match a.ip() {
            IpAddr::V6(ip) if !rules.iter().any(|r| matches!(r.network, None | Some(Cidr::V4(..)))) => {
                Plain::V6(ip.to_bits())
            }
            ip => Plain::of_ip(ip),
        },
        Address::Unix(_) => Plain::Unix,
    }
}
