//! Setters for the common kinds of values, with nginx's words when a value is wrong.

use super::setting::Setting;
use super::{Build, complex::Complex};
use conf::{Node, Problem, value};
use std::sync::Arc;
use std::time::Duration;

/// `"x" directive is duplicate`
pub fn duplicate(node: &Node) -> Problem {
    Problem::duplicate(node)
}

/// `"x" directive invalid value`
pub fn invalid(node: &Node) -> Problem {
    Problem::invalid_value(node)
}

/// Sets a value; a second time is refused.
pub fn value<T>(setting: &mut Setting<T>, node: &Node, value: T) -> Result<(), Problem> {
    setting.set(value).map_err(|_| duplicate(node))
}

fn parsed<T>(setting: &mut Setting<T>, node: &Node, parsed: Option<T>) -> Result<(), Problem> {
    if setting.is_set() {
        return Err(duplicate(node));
    }
    setting.force(parsed.ok_or_else(|| invalid(node))?);
    Ok(())
}

/// `on` or `off`
pub fn flag(setting: &mut Setting<bool>, node: &Node) -> Result<(), Problem> {
    // The table has checked the word already.
    value(setting, node, node.args[0].text.eq_ignore_ascii_case(b"on"))
}

/// A whole number.
pub fn number(setting: &mut Setting<u64>, node: &Node) -> Result<(), Problem> {
    if setting.is_set() {
        return Err(duplicate(node));
    }
    setting.force(value::number(&node.args[0].text).ok_or_else(|| Problem::invalid_number(node))?);
    Ok(())
}

/// A size in bytes: `8k`, `1m`.
pub fn size(setting: &mut Setting<u64>, node: &Node) -> Result<(), Problem> {
    parsed(setting, node, value::size(&node.args[0].text))
}

/// A size that may be large: `2g`.
pub fn offset(setting: &mut Setting<u64>, node: &Node) -> Result<(), Problem> {
    parsed(setting, node, value::offset(&node.args[0].text))
}

/// A time in milliseconds: `500ms`, `1m`.
pub fn time(setting: &mut Setting<Duration>, node: &Node) -> Result<(), Problem> {
    parsed(setting, node, value::milliseconds(&node.args[0].text).map(Duration::from_millis))
}

/// A time in whole seconds.
pub fn seconds(setting: &mut Setting<Duration>, node: &Node) -> Result<(), Problem> {
    parsed(setting, node, value::seconds(&node.args[0].text).map(Duration::from_secs))
}

/// A text with variables.
pub fn complex(build: &mut Build<'_>, setting: &mut Setting<Complex>, node: &Node) -> Result<(), Problem> {
    let compiled = Complex::compile(build, &node.args[0])?;
    value(setting, node, compiled)
}

/// A size with variables; one without is checked now (`ngx_http_set_complex_value_size_slot`).
pub fn complex_size(build: &mut Build<'_>, setting: &mut Setting<Complex>, node: &Node) -> Result<(), Problem> {
    complex(build, setting, node)?;
    match setting.as_fixed() {
        Some(text) if value::size(text).is_none() => Err(invalid(node)),
        _ => Ok(()),
    }
}

/// One word out of a list.
pub fn one_of<T: Copy>(setting: &mut Setting<T>, node: &Node, words: &[(&str, T)]) -> Result<(), Problem> {
    if setting.is_set() {
        return Err(duplicate(node));
    }
    let word = node.args[0].as_str();
    match words.iter().find(|(w, _)| w.eq_ignore_ascii_case(&word)) {
        Some((_, v)) => {
            setting.force(*v);
            Ok(())
        }
        None => Err(node.problem(format!("invalid value \"{word}\""))),
    }
}

/// Words out of a list, as bits; given again, the directive adds to them (`ngx_conf_set_bitmask_slot`).
pub fn bits(
    build: &mut Build<'_>,
    setting: &mut Setting<u32>,
    node: &Node,
    words: &[(&str, u32)],
) -> Result<(), Problem> {
    for w in &node.args {
        let bit = value::choice(&w.text, words).ok_or_else(|| Problem::invalid_choice(w))?;
        if !setting.is_set() {
            setting.force(0);
        }
        if **setting & bit != 0 {
            build.problems.push(Problem::duplicate_choice(w));
        }
        *setting.entry() |= bit;
    }
    Ok(())
}

/// A name, kept in lower case, beside those before it.
pub fn lower(setting: &mut Setting<Arc<Vec<Box<[u8]>>>>, node: &Node) -> Result<(), Problem> {
    Arc::make_mut(setting.entry()).push(node.args[0].text.to_ascii_lowercase().into());
    Ok(())
}

/// Texts of which one must be true (`ngx_http_set_predicate_slot`). More of them on the same level are added.
pub fn conditions(build: &mut Build<'_>, setting: &mut Setting<Arc<Vec<Complex>>>, node: &Node) -> Result<(), Problem> {
    let more = node.args.iter().map(|w| Complex::compile(build, w)).collect::<Result<Vec<_>, _>>()?;
    if setting.is_set() {
        Arc::make_mut(setting.entry()).extend(more);
    } else {
        setting.force(Arc::new(more));
    }
    Ok(())
}
