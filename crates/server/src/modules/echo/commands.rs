//! The commands of `echo` and its kin as the configuration has them.

use super::{Line, handler};
use crate::config::Scope;
use crate::config::complex::Complex;
use crate::request::phases::Content;
use conf::{Node, Problem, Word, value};
use std::sync::Arc;

/// Which directive it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Echo,
    Duplicate,
    Sleep,
    Flush,
    ResetTimer,
    ReadBody,
    Body,
    Location,
    Subrequest,
    ForEach,
    End,
    Exec,
}

/// One command.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Echo(Line),
    Duplicate {
        count: Complex,
        text: Complex,
    },
    Sleep(Complex),
    Flush,
    ResetTimer,
    ReadBody,
    Body,
    /// A subrequest whose answer comes here.
    Include {
        uri: Complex,
        args: Option<Complex>,
        /// Another method than GET, or a body.
        own: Option<Own>,
    },
    /// Up to `echo_end`.
    ForEach {
        delimiter: Complex,
        text: Complex,
        commands: Vec<Command>,
    },
    Exec {
        uri: Complex,
        args: Option<Complex>,
    },
}

/// What a subrequest asks with.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub method: Box<[u8]>,
    pub body: Option<Body>,
}

/// `-b`, `-f`
#[derive(Clone, Debug)]
pub(super) enum Body {
    Text(Complex),
    /// The name of a file, relative to the prefix.
    File(Complex),
}

/// Adds a command, and makes the module the location's handler.
pub(super) fn add(scope: &mut Scope<'_, '_>, node: &Node, kind: Kind) -> Result<(), Problem> {
    let command = read(scope, node, kind)?;
    let conf = &mut scope.level.conf;
    conf.core.handler = Some(Content::Later(handler));
    conf.echo.reads_body |= matches!(kind, Kind::ReadBody | Kind::Body);
    let open = &mut conf.echo.open;
    match (kind, command) {
        (Kind::End, _) => match open.take() {
            Some(commands) => {
                let Some(Command::ForEach { commands: inside, .. }) = Arc::make_mut(&mut conf.echo.commands).last_mut()
                else {
                    return Err(node.problem("there is no loop that it ends".to_owned()));
                };
                *inside = commands;
                Ok(())
            }
            None => Err(node.problem("there is no loop that it ends".to_owned())),
        },
        (Kind::ForEach, _) if open.is_some() => Err(node.problem("a loop inside a loop is not supported".to_owned())),
        (Kind::ForEach, Some(command)) => {
            *open = Some(Vec::new());
            Arc::make_mut(&mut conf.echo.commands).push(command);
            Ok(())
        }
        (_, Some(command)) => {
            match open {
                Some(commands) => commands.push(command),
                None => Arc::make_mut(&mut conf.echo.commands).push(command),
            }
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

fn read(scope: &mut Scope<'_, '_>, node: &Node, kind: Kind) -> Result<Option<Command>, Problem> {
    let mut texts = |words: &[Word]| -> Result<Vec<Complex>, Problem> {
        words.iter().map(|word| Complex::compile(scope.build, word)).collect()
    };
    let count = |texts: Vec<Complex>, most: usize| match texts.len() {
        n if n <= most => Ok(texts),
        _ => Err(Problem::invalid_arguments(node)),
    };
    Ok(Some(match kind {
        Kind::Echo => Command::Echo(line(&node.args, texts)?),
        Kind::Duplicate | Kind::ForEach => {
            let words: Vec<Word> = node.args.iter().filter(|word| **word != "--").cloned().collect();
            let mut texts = count(texts(&words)?, 2)?.into_iter();
            let (Some(first), Some(text)) = (texts.next(), texts.next()) else {
                return Err(Problem::invalid_arguments(node));
            };
            match kind {
                Kind::Duplicate => Command::Duplicate { count: first, text },
                _ => Command::ForEach { delimiter: first, text, commands: Vec::new() },
            }
        }
        Kind::Sleep => {
            let seconds = texts(&node.args)?.remove(0);
            if let Some(fixed) = seconds.as_fixed()
                && value::fixed(fixed, 3).is_none()
            {
                return Err(node.problem(format!("invalid time \"{}\"", node.args[0].as_str())));
            }
            Command::Sleep(seconds)
        }
        Kind::Flush => Command::Flush,
        Kind::ResetTimer => Command::ResetTimer,
        Kind::ReadBody => Command::ReadBody,
        Kind::Body => Command::Body,
        Kind::Location | Kind::Exec => {
            let mut texts = count(texts(&node.args)?, 2)?.into_iter();
            let uri = texts.next().ok_or_else(|| Problem::invalid_arguments(node))?;
            let args = texts.next();
            if kind == Kind::Exec { Command::Exec { uri, args } } else { Command::Include { uri, args, own: None } }
        }
        Kind::Subrequest => subrequest(scope, node)?,
        Kind::End => return Ok(None),
    }))
}

/// `METHOD URI [-q ARGUMENTS] [-b BODY | -f FILE]`
fn subrequest(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Command, Problem> {
    let [method, uri, options @ ..] = node.args.as_slice() else { return Err(Problem::invalid_arguments(node)) };
    if method.text.is_empty() || !method.text.iter().all(u8::is_ascii_uppercase) {
        return Err(node.problem(format!("invalid method \"{}\"", method.as_str())));
    }
    let uri = Complex::compile(scope.build, uri)?;
    let (mut args, mut body) = (None, None);
    for option in options.chunks(2) {
        let [name, word] = option else { return Err(Problem::invalid_arguments(node)) };
        let text = Complex::compile(scope.build, word)?;
        match name.text.as_slice() {
            b"-q" => args = Some(text),
            b"-b" => body = Some(Body::Text(text)),
            b"-f" => body = Some(Body::File(text)),
            _ => return Err(node.problem(format!("unsupported option \"{}\"", name.as_str()))),
        }
    }
    let own = (*method != "GET" || body.is_some()).then(|| Own { method: method.text.as_slice().into(), body });
    Ok(Command::Include { uri, args, own })
}

fn line(words: &[Word], mut texts: impl FnMut(&[Word]) -> Result<Vec<Complex>, Problem>) -> Result<Line, Problem> {
    let (mut words, mut ends) = (words, true);
    while let [first, rest @ ..] = words {
        match first.text.as_slice() {
            b"-n" => ends = false,
            b"--" => {
                words = rest;
                break;
            }
            _ => break,
        }
        words = rest;
    }
    Ok(Line { words: texts(words)?, ends })
}

/// `echo_status`
pub(super) fn status(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let status = value::number(&node.args[0].text).and_then(|n| u16::try_from(n).ok());
    let status = status.filter(|n| (200..=999).contains(n));
    let bad = || node.problem(format!("invalid status \"{}\"", node.args[0].as_str()));
    scope.level.conf.echo.status = Some(status.ok_or_else(bad)?);
    Ok(())
}

/// `echo_before_body`, `echo_after_body`
pub(super) fn around(scope: &mut Scope<'_, '_>, node: &Node, before: bool) -> Result<(), Problem> {
    let line = line(&node.args, |words| words.iter().map(|word| Complex::compile(scope.build, word)).collect())?;
    let conf = &mut scope.level.conf.echo;
    Arc::make_mut(if before { &mut conf.before } else { &mut conf.after }).push(line);
    Ok(())
}

/// A loop that nothing ends takes the rest of the location.
pub(super) fn finish(commands: &mut Arc<Vec<Command>>, open: &mut Option<Vec<Command>>) {
    if let Some(rest) = open.take()
        && let Some(Command::ForEach { commands, .. }) = Arc::make_mut(commands).last_mut()
    {
        *commands = rest;
    }
}
