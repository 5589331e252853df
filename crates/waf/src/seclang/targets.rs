//! A rule's list of variables: `ARGS|!ARGS:password|&TX:score|REQUEST_COOKIES:/^s/`.

use crate::geo;
use crate::names::Names;
use crate::operator::rx::Rx;
use crate::select::{Exclusion, Select, Target};
use crate::variable::{self, Collection, REFUSED, Source};
use std::sync::Arc;

/// A list of variables, and what is excluded from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// What is looked at.
    pub wanted: Vec<Target>,
    /// What is not.
    pub excluded: Vec<Exclusion>,
}

impl Targets {
    /// Reads a list.
    pub(crate) fn parse(text: &[u8], names: &mut Names) -> Result<Targets, String> {
        let text = String::from_utf8_lossy(text);
        let mut targets = Targets::default();
        for part in split(&text) {
            let part = part.trim();
            if let Some(excluded) = part.strip_prefix('!') {
                let (label, _, select) = one(excluded, names)?;
                targets.excluded.push(Exclusion { label, select });
                continue;
            }
            let (count, part) = part.strip_prefix('&').map_or((false, part), |rest| (true, rest));
            let (label, source, select) = one(part, names)?;
            targets.wanted.push(Target { label, source, select, count, except: Box::default() });
        }
        Ok(targets)
    }

    /// Hangs each exclusion on the variables that it is for; a variable that is excluded as a whole goes.
    pub(crate) fn settle(self) -> Box<[Target]> {
        let mut wanted = self.wanted;
        for exclusion in &self.excluded {
            if matches!(exclusion.select, Select::All) {
                wanted.retain(|t| t.label != exclusion.label);
            }
        }
        for target in &mut wanted {
            let mine = self.excluded.iter().filter(|e| e.label == target.label).map(|e| e.select.clone());
            target.except = mine.collect();
        }
        wanted.into()
    }
}

/// Cuts at `|` and `,` outside of expressions and quotes.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut in_pattern, mut in_quotes, mut escaped) = (0, false, false, false);
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => {}
            '\'' => in_quotes = !in_quotes,
            '/' if in_pattern => in_pattern = false,
            // What stands behind `XML:` is a path.
            '/' if matches!(before, ':' | '\'') => in_pattern = !text[from..at].to_ascii_uppercase().ends_with("XML:"),
            '|' | ',' if !in_pattern && !in_quotes => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        escaped = !escaped && c == '\\';
        before = c;
    }
    parts.push(&text[from..]);
    parts
}

fn one(text: &str, names: &mut Names) -> Result<(&'static str, Source, Select), String> {
    let (name, key) = match text.find([':', '.']) {
        Some(at) => (&text[..at], Some(text[at + 1..].trim_matches('\''))),
        None => (text, None),
    };
    let Some(found) = variable::find(name) else {
        let refused = REFUSED.iter().find(|(refused, _)| refused.eq_ignore_ascii_case(name));
        return Err(match refused {
            Some((_, why)) => format!("variable \"{name}\" is not supported: {why}"),
            None => format!("unknown variable \"{name}\""),
        });
    };
    if found.source == Source::Xml {
        let source = match key {
            Some("/*" | "//*" | "//text()") => Source::Values(&[Collection::XmlText]),
            Some("//@*") => Source::Values(&[Collection::XmlAttributes]),
            None => Source::Values(&[Collection::XmlText, Collection::XmlAttributes]),
            Some(path) => return Err(format!("XPath \"{path}\" is not supported: /*, //* and //@* are")),
        };
        return Ok((found.label, source, Select::All));
    }
    if let (Source::Values([Collection::Geo]), Some(key)) = (found.source, key)
        && !key.is_empty()
        && !key.starts_with('/')
    {
        geo::check_name(key)?;
    }
    let select = match key {
        None | Some("") => Select::All,
        Some(_) if !found.has_names() => return Err(format!("variable \"{name}\" has no names to choose by")),
        Some(key) => match key.strip_prefix('/').and_then(|k| k.strip_suffix('/')) {
            Some(pattern) => Select::Pattern(Arc::new(Rx::compile(pattern.replace("\\/", "/").as_bytes(), true)?)),
            None if found.source == Source::Tx => Select::Slot(names.slot(key.as_bytes())),
            None => Select::Name(key.as_bytes().into()),
        },
    };
    Ok((found.label, found.source, select))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Targets, String> {
        Targets::parse(text.as_bytes(), &mut Names::default())
    }

    #[test]
    fn lists_are_read() {
        let targets = parse("ARGS|!ARGS:pass|&TX:a|REQUEST_COOKIES:/^a|b/|XML:/*|TX:'/x,y/'").unwrap();
        assert_eq!((targets.wanted.len(), targets.excluded.len()), (5, 1));
        let settled = targets.settle();
        assert_eq!(settled[0].except.len(), 1);
        assert!(settled[1].count && matches!(settled[1].select, Select::Slot(10)));
        assert!(matches!(&settled[2].select, Select::Pattern(rx) if rx.is_match(b"B")));
        assert!(parse("ARGS|REQUEST_COOKIES|!REQUEST_COOKIES").unwrap().settle().len() == 1);
    }

    #[test]
    fn unknown_ones_are_refused() {
        assert_eq!(parse("NOTHING").unwrap_err(), "unknown variable \"NOTHING\"");
        assert!(parse("GEO:country").unwrap_err().contains("unknown name"));
        assert!(parse("GEO:COUNTRY_CODE3").unwrap_err().contains("not supported"));
        assert!(parse("REMOTE_ADDR:x").unwrap_err().contains("no names"));
        assert!(parse("XML:/a/b").unwrap_err().contains("XPath"));
        assert!(parse("ARGS:/(/").is_err());
    }
}
