//! Lists of content types that a filter works on: `charset_types`, `gzip_types` and others (nginx's
//! `ngx_http_types_slot`, `ngx_http_test_content_type`).

use super::Build;
use super::setting::Setting;
use crate::request::Request;
use conf::{Node, Problem};
use std::sync::Arc;

/// A set of content types. Short, so it is searched from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeSet {
    /// `*`
    All,
    /// Names in lower case.
    Some(Arc<Vec<Box<[u8]>>>),
}

impl TypeSet {
    /// What holds without the directive; the first of them holds with it as well.
    pub fn of(names: &[&str]) -> TypeSet {
        TypeSet::Some(Arc::new(names.iter().map(|n| n.as_bytes().into()).collect()))
    }

    /// Whether the answer's type is one of them.
    pub fn fits(&self, r: &Request) -> bool {
        match self {
            TypeSet::All => true,
            TypeSet::Some(names) => {
                let Some(kind) = r.answer.headers.content_type else { return false };
                let kind = r.get(kind);
                let kind = &kind[..memchr::memchr(b';', kind).unwrap_or(kind.len())].trim_ascii_end();
                names.iter().any(|n| n.eq_ignore_ascii_case(kind))
            }
        }
    }

    /// Takes a directive's words; several directives of one level add up.
    pub fn set(setting: &mut Setting<TypeSet>, build: &mut Build<'_>, node: &Node, first: &str) -> Result<(), Problem> {
        let mut names = match (setting.is_set(), &**setting) {
            (true, TypeSet::All) => return Ok(()),
            (true, TypeSet::Some(names)) => (**names).clone(),
            (false, _) => vec![first.as_bytes().into()],
        };
        for word in &node.args {
            if *word == "*" {
                setting.force(TypeSet::All);
                return Ok(());
            }
            let name = word.text.to_ascii_lowercase().into_boxed_slice();
            if names.contains(&name) {
                let text = format!("duplicate MIME type \"{}\"", String::from_utf8_lossy(&name));
                build.problems.push(node.warning(text));
            } else {
                names.push(name);
            }
        }
        setting.force(TypeSet::Some(Arc::new(names)));
        Ok(())
    }
}
