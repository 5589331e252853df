//! `disable_symlinks` (a directive of nginx's http core): which symbolic links on the way to a file are followed.
//! The walk itself is `files::symlinks`.

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::{Directive, Scope, http};
use crate::files::symlinks::{Links, Rule};
use crate::merged_values;
use crate::request::Request;
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("disable_symlinks", disable_symlinks)];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        disable_symlinks: Arc<Setting> = Arc::default(),
    }
}

/// The directive as written.
#[derive(Debug, Default)]
pub struct Setting {
    links: Links,
    /// The beginning of paths in which all links are followed.
    from: Option<Complex>,
}

impl Conf {
    /// What holds for a path (`ngx_http_set_disable_symlinks`).
    pub fn rule(&self, r: &mut Request, path: &[u8]) -> Rule {
        let links = self.disable_symlinks.links;
        let Some(from) = &self.disable_symlinks.from else { return Rule { links, from: 0 } };
        let from = from.eval(r);
        rule_from(links, r.get(from), path)
    }
}

fn rule_from(links: Links, from: &[u8], path: &[u8]) -> Rule {
    if from.is_empty() || !path.starts_with(from) {
        return Rule { links, from: 0 };
    }
    match path.get(from.len()) {
        None => Rule::default(),
        Some(b'/') => Rule { links, from: from.len() },
        Some(_) if from.ends_with(b"/") => Rule { links, from: from.len() - 1 },
        Some(_) => Rule { links, from: 0 },
    }
}

fn disable_symlinks(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.disable_symlinks.disable_symlinks.is_set() {
        return Err(duplicate(node));
    }
    let (mut links, mut from) = (None, None);
    for word in &node.args {
        match word.text.as_slice() {
            b"off" => links = Some(Links::Follow),
            b"if_not_owner" => links = Some(Links::SameOwner),
            b"on" => links = Some(Links::Refuse),
            text => {
                let Some(text) = text.strip_prefix(b"from=") else {
                    return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
                };
                from = Some(Complex::compile_bytes(scope.build, text).map_err(|t| word.problem(t))?);
            }
        }
    }
    let Some(links) = links else {
        let text = "\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter";
        return Err(node.problem(text.to_owned()));
    };
    if let [first, second] = node.args.as_slice() {
        if from.is_none() {
            let text = format!("duplicate parameters \"{} {}\"", first.as_str(), second.as_str());
            return Err(node.problem(text));
        }
        if links == Links::Follow {
            return Err(node.problem("\"from=\" cannot be used with \"off\" parameter".to_owned()));
        }
    }
    setters::value(&mut scope.level.conf.disable_symlinks.disable_symlinks, node, Arc::new(Setting { links, from }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_ends_at_a_slash() {
        let rule = |from: &str, path: &str| {
            let rule = rule_from(Links::Refuse, from.as_bytes(), path.as_bytes());
            (rule.links, rule.from)
        };
        assert_eq!(rule("/a", "/a/b"), (Links::Refuse, 2));
        assert_eq!(rule("/a/", "/a/b"), (Links::Refuse, 2));
        assert_eq!(rule("/a", "/ab"), (Links::Refuse, 0));
        assert_eq!(rule("/a", "/b"), (Links::Refuse, 0));
        assert_eq!(rule("", "/b"), (Links::Refuse, 0));
        assert_eq!(rule("/a/b", "/a/b"), (Links::Follow, 0));
    }
}
