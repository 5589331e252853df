//! Directives that tune nginx's own machinery and have no meaning here. Their values are checked as nginx checks them, lest a mistake
//! be found only by the nginx that reads the file next; `-t` notes that they do nothing.

use crate::config::Scope;
use crate::config::setters::{duplicate, invalid};
use conf::{Node, Problem, value};

/// Any value whose form the table has checked.
pub fn any(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    scope.build.note(node);
    Ok(())
}

/// A whole number.
pub fn number(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    any(scope, node)?;
    value::number(&node.args[0].text).map(drop).ok_or_else(|| Problem::invalid_number(node))
}

/// A size in bytes.
pub fn size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, value::size)
}

/// A file's size or offset.
pub fn offset(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, value::offset)
}

/// A time in milliseconds.
pub fn time(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, value::milliseconds)
}

/// A number of buffers and their size.
pub fn buffers(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    any(scope, node)?;
    value::buffers(&node.args[0].text, &node.args[1].text).map(drop).ok_or_else(|| invalid(node))
}

/// `directio off | size`
pub fn directio(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, |text| if text == b"off" { Some(0) } else { value::offset(text) })
}

/// `use method`: there is one here, but a word that names none anywhere is a mistake.
pub fn event_method(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    const METHODS: [&str; 7] = ["epoll", "poll", "select", "kqueue", "eventport", "/dev/poll", "iocp"];
    any(scope, node)?;
    let word = node.args[0].as_str();
    match METHODS.contains(&&*word) {
        true => Ok(()),
        false => Err(node.problem(format!("invalid event type \"{word}\""))),
    }
}

/// `debug_points stop | abort`
pub fn debug_points(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    any(scope, node)?;
    let known = value::choice(&node.args[0].text, &[("stop", ()), ("abort", ())]);
    known.ok_or_else(|| Problem::invalid_choice(&node.args[0]))
}

/// A directive that is set once on a level and whose value is kept elsewhere.
pub fn once(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.ignored.contains(&node.name.text) {
        return Err(duplicate(node));
    }
    scope.level.ignored.push(node.name.text.clone());
    Ok(())
}

fn checked(scope: &mut Scope<'_, '_>, node: &Node, read: fn(&[u8]) -> Option<u64>) -> Result<(), Problem> {
    any(scope, node)?;
    read(&node.args[0].text).map(drop).ok_or_else(|| invalid(node))
}
