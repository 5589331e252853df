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
    let name = variable_name(node, name)?;
    let mut parts = Vec::new();
    let (mut sum, mut below) = (0, 0u64);
    for row in node.children() {
        let invalid = || row.problem(format!("invalid percent value \"{}\"", row.name.as_str()));
        let share = match row.name.text.as_slice() {
            b"*" => None,
            text => Some(conf::value::percent(text).filter(|share| *share > 0).ok_or_else(invalid)?),
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
    let evaluate = Arc::new(move |r: &mut Request| Some(draw(&source, &parts, r)));
    scope.build.variables.define(name, false, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

fn draw(source: &Complex, parts: &[Part], r: &mut Request) -> Text {
    let text = source.eval(r);
    let hash = wire::encoding::murmur2(r.get(text));
    match parts.iter().find(|p| p.below.is_none_or(|below| hash < below)) {
        Some(part) => r.text(&part.value),
        None => Text::EMPTY,
    }
}
