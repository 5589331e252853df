//! The values of variables, and what bounds their evaluation. Variables may be made of variables without end (`map $a $b`
//! beside `map $b $a`), grow without end (`set $a "$a$a"`), or hang on a pattern that gives up: each of these is a *fault*,
//! which is logged once, with the variable's name, and ends the request with 500 before anything is done with a value that
//! is none. Who evaluates need not look: `phases`, `respond` and `upstream::retry` do.

use super::{Request, Text, Value};
use crate::config::complex::Part;
use crate::log_error;
use crate::snapshot::VariableId;

/// How deep variables may be made of variables (nginx's `ngx_http_variable_depth`).
pub const MAX_DEPTH: u8 = 100;
/// Evaluations that one value may take. Variables that are not kept (`volatile`) can double them with each level: without
/// a limit 30 levels take a thread for minutes. So many take some ten milliseconds.
pub const MAX_EVALUATIONS: u32 = 100_000;
/// Bytes of one value made of others, over and above the body that the request keeps in memory (`client_body_buffer_size`
/// bounds that, and `$request_body` must fit). Values are headers, paths and keys: even a thousandth of this is a lot.
pub const MAX_VALUE: usize = 16 * 1024 * 1024;
/// Bytes of all texts that evaluation makes for one request. nginx's values end here too: 28 bits are their length. What else is
/// in its arena (heads of thousands of parts of a sliced answer) does not count.
pub const MAX_TEXTS: usize = 256 * 1024 * 1024;

/// Answers to faults that are tried: a page of the configuration, a built-in page with all its headers. The third goes
/// without the headers that fail.
const MAX_REFUSALS: u8 = 2;

/// How far the evaluation of values has come, and what went wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evaluation {
    /// Variables that wait for others now.
    depth: u8,
    /// Evaluations for the outermost of them.
    steps: u32,
    /// The outermost of them has no value any more: the others need not try.
    failed: bool,
    /// Something went wrong, and nobody has answered for it yet.
    fault: bool,
    /// Bytes of texts that were made for values.
    made: usize,
    /// Where the arena would end if it held nothing but those made so far: set while a value is made.
    base: usize,
    /// Answers that were refused because a header could not be made.
    refusals: u8,
}

impl Request {
    /// A variable's value; `None` where nginx has `not found`. Cached unless the variable is volatile.
    pub fn variable(&mut self, id: VariableId) -> Option<Text> {
        match self.values[id.0 as usize] {
            Value::Known(value) => value,
            Value::Unknown => self.evaluate(id),
        }
    }

    fn evaluate(&mut self, id: VariableId) -> Option<Text> {
        let snapshot = self.snapshot.clone();
        let variable = &snapshot.variables[id.0 as usize];
        let evaluate = variable.evaluate.as_ref()?;
        if !self.may_evaluate(&variable.name) {
            return None;
        }
        let end = self.arena.mark();
        let now = &mut self.evaluation;
        if now.depth == 0 {
            now.base = end.wrapping_sub(now.made);
        }
        now.depth += 1;
        let value = evaluate(self);
        let end = self.arena.mark();
        let now = &mut self.evaluation;
        now.depth -= 1;
        if now.depth == 0 {
            now.made = end.wrapping_sub(now.base);
        }
        if end.wrapping_sub(now.base) > MAX_TEXTS && !now.failed {
            self.fail();
            log_error!(
                self,
                Error,
                "texts of more than {MAX_TEXTS} bytes while evaluating variable \"{}\"",
                variable.name
            );
        }
        if self.evaluation.failed {
            return None;
        }
        if !variable.volatile {
            self.values[id.0 as usize] = Value::Known(value);
        }
        value
    }

    /// Whether one more variable may be evaluated.
    fn may_evaluate(&mut self, name: &str) -> bool {
        let now = &mut self.evaluation;
        if now.depth == 0 {
            (now.steps, now.failed) = (0, false);
        }
        now.steps += 1;
        let text = match now {
            Evaluation { failed: true, .. } => return false,
            Evaluation { depth: MAX_DEPTH, .. } => "cycle",
            Evaluation { steps, .. } if *steps > MAX_EVALUATIONS => "too many steps",
            _ => return true,
        };
        self.fail();
        log_error!(self, Error, "{text} while evaluating variable \"{name}\"");
        false
    }

    /// Whether `more` bytes may be added to a text of `len` bytes that is made of variables. `part`: what they come from.
    pub(crate) fn may_grow(&mut self, len: usize, more: usize, part: &Part) -> bool {
        let body = self.body.stored.as_ref().map_or(0, |stored| stored.memory.len());
        let now = &self.evaluation;
        let made = if now.depth == 0 { now.made } else { self.arena.mark().wrapping_sub(now.base) };
        let text = if len + more > MAX_VALUE + body {
            format_args!("value of more than {MAX_VALUE} bytes")
        } else if made + len + more > MAX_TEXTS + body {
            format_args!("texts of more than {MAX_TEXTS} bytes")
        } else {
            return true;
        };
        self.fail();
        let snapshot = self.snapshot.clone();
        match part {
            Part::Variable(id) => {
                let name = &snapshot.variables[id.0 as usize].name;
                log_error!(self, Error, "{text} while evaluating variable \"{name}\"");
            }
            Part::Capture(n) => log_error!(self, Error, "{text} while evaluating variable \"{n}\""),
            Part::Text(_) => log_error!(self, Error, "{text}"),
        }
        false
    }

    /// Counts a text that was made of variables.
    pub(crate) fn note_made(&mut self, bytes: usize) {
        if self.evaluation.depth == 0 {
            self.evaluation.made += bytes;
        }
    }

    /// Notes a fault; whoever notes it has logged it, or is about to.
    pub fn fail(&mut self) {
        (self.evaluation.failed, self.evaluation.fault) = (true, true);
    }

    /// Whether there is a fault that nobody has answered for.
    pub fn has_fault(&self) -> bool {
        self.evaluation.fault
    }

    /// The same, and whoever asks answers for it.
    pub fn take_fault(&mut self) -> bool {
        std::mem::take(&mut self.evaluation.fault)
    }

    /// Whether this is the answer in place of one that was refused: what was wrong with that may be wrong with this.
    pub fn is_refusal(&self) -> bool {
        self.evaluation.refusals > 0
    }

    /// Whether an answer whose head cannot be sent is to be refused. False: enough were, and this one goes out without what is
    /// wrong with it. Pages of the configuration are asked for once.
    pub(super) fn may_refuse(&mut self) -> bool {
        let refusals = &mut self.evaluation.refusals;
        *refusals += 1;
        self.flow.error_page |= *refusals > 1;
        *refusals <= MAX_REFUSALS
    }
}
