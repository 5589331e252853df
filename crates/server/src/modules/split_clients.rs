//! `split_clients` (nginx's `ngx_http_split_clients_module`): a variable whose value is drawn by the hash of a text, the
//! same for the same text.

use super::map::variable_name;
use crate::config::complex::Complex;
use crate::config::{Directive, Scope, both};
use crate::request::{Request, Text};
use conf::{Node, Problem};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[both("split_clients", split_clients)];

/// All of it, in hundredths of a percent.
const WHOLE: u64 = 10_000;

struct Part {
    /// Hashes below this one; none: all that are left.
    below: Option<u32>,
    value: Box<[u8]>,
}

fn split_clients(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [source, name] = node.args.as_slice() else { unreachable!("the table says two") };
    let source = Complex::compile(scope.build, source)?;
    let mut parts = Vec::new();
    let (mut sum, mut below) = (0, 0u64);
    for row in node.children() {
        let invalid = || row.problem(format!("invalid percent value \"{}\"", row.name.as_str()));
        let share = match row.name.text.as_slice() {
            b"*" => None,
            text => Some(hundredths(text.strip_suffix(b"%").ok_or_else(invalid)?).ok_or_else(invalid)?),
        };
        sum = share.map_or(WHOLE, |s| sum + s);
        if sum > WHOLE {
            return Err(node.problem("percent total is greater than 100%".to_owned()));
        }
        let below = share.filter(|_| sum < WHOLE).map(|s| {
            below += s * u32::MAX as u64 / WHOLE;
            below as u32
        });
        let value = row.args.first().map_or(&[][..], |w| &w.text);
        parts.push(Part { below, value: value.into() });
    }
    let name = variable_name(node, name)?;
    let evaluate = Arc::new(move |r: &mut Request| Some(draw(&source, &parts, r)));
    scope.build.variables.define(name, false, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

/// Reads `12.5` as 1250; 0 is none.
fn hundredths(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    if fraction.len() > 2 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let number = |t: &[u8]| if t.is_empty() { Some(0) } else { conf::value::number(t) };
    let scale = if fraction.len() == 1 { 10 } else { 1 };
    let value = number(whole)?.checked_mul(100)?.checked_add(number(fraction)? * scale)?;
    (value > 0).then_some(value)
}

fn draw(source: &Complex, parts: &[Part], r: &mut Request) -> Text {
    let text = source.eval(r);
    let hash = wire::encoding::murmur2(r.get(text));
    match parts.iter().find(|p| p.below.is_none_or(|below| hash < below)) {
        Some(part) => r.text(&part.value),
        None => Text::EMPTY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents() {
        assert_eq!(hundredths(b"51.2"), Some(5120));
        assert_eq!(hundredths(b"0.01"), Some(1));
        assert_eq!(hundredths(b".5"), Some(50));
        assert_eq!(hundredths(b"100"), Some(10_000));
        for bad in ["", ".", "0", "0.00", "1.234", "-1", "a", "1.x"] {
            assert_eq!(hundredths(bad.as_bytes()), None, "{bad}");
        }
    }
}
