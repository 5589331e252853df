//! Texts with macros: `%{tx.score}` in messages, in what `setvar` sets, in what operators compare with.

use crate::geo;
use crate::names::Names;
use crate::select::{Select, Target};
use crate::variable::{self, Collection, Source};

/// A text whose macros are filled in when it is used.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    parts: Box<[Part]>,
}

/// A piece of a text.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Bytes as they are.
    Literal(Box<[u8]>),
    /// The first value of a variable.
    Variable(Target),
}

impl Text {
    /// Reads a text. Err: the name of a macro that is no variable.
    pub(crate) fn parse(text: &[u8], names: &mut Names) -> Result<Text, String> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(at) = memchr::memmem::find(rest, b"%{") {
            let Some(end) = memchr::memchr(b'}', &rest[at..]) else { break };
            let name = &rest[at + 2..at + end];
            literal.extend_from_slice(&rest[..at]);
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
            }
            parts.push(Part::Variable(reference(name, names)?));
            rest = &rest[at + end + 1..];
        }
        literal.extend_from_slice(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.into()));
        }
        Ok(Text { parts: parts.into() })
    }

    /// A text without macros.
    pub(crate) fn plain(text: &[u8]) -> Text {
        Text { parts: Box::new([Part::Literal(text.into())]) }
    }

    /// The text, if it has no macros.
    pub(crate) fn constant(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(&[]),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The pieces in order.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// `TX.name`, `REQUEST_HEADERS:Host`, `REMOTE_ADDR`.
fn reference(name: &[u8], names: &mut Names) -> Result<Target, String> {
    let name = String::from_utf8_lossy(name);
    let (variable, key) = match name.find(['.', ':']) {
        Some(at) => (&name[..at], Some(&name[at + 1..])),
        None => (&name[..], None),
    };
    let found = variable::find(variable).ok_or_else(|| format!("unknown variable in macro \"%{{{name}}}\""))?;
    if let (Source::Values([Collection::Geo]), Some(key)) = (found.source, key) {
        geo::check_name(key)?;
    }
    let select = match key {
        None => Select::All,
        Some(key) if found.source == Source::Tx => Select::Slot(names.slot(key.as_bytes())),
        Some(key) => Select::Name(key.as_bytes().into()),
    };
    Ok(Target { label: found.label, source: found.source, select, count: false, except: Box::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_are_found_between_literals() {
        let mut names = Names::default();
        let text = Text::parse(b"a%{tx.score}b%{REQUEST_HEADERS.User-Agent}", &mut names).unwrap();
        assert_eq!(text.parts().len(), 4);
        assert!(text.constant().is_none());
        assert_eq!(Text::parse(b"100% %{", &mut names).unwrap().constant(), Some(&b"100% %{"[..]));
        assert!(Text::parse(b"%{nothing.x}", &mut names).unwrap_err().contains("nothing"));
    }
}
