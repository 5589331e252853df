//! Regular expressions (PCRE2, as in nginx) whose captures land in the request: `$1`, `(?<name>...)`.

use super::Build;
use crate::request::Request;
use crate::request::arena::{Span, Text};
use crate::snapshot::VariableId;
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::sync::Arc;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Arc<Regex>,
    /// Which scratch space of the thread it uses.
    index: u32,
    named: Arc<[(usize, VariableId)]>,
}

/// Scratch space of one thread for all expressions of a snapshot.
#[derive(Default)]
pub struct Scratch(Vec<Option<CaptureLocations>>);

impl Pattern {
    /// Compiles an expression; an error is nginx's text for it.
    /// One that was compiled before is the same one: thousands of servers may have `\.php$`, and each takes 40 kB.
    pub fn compile(build: &mut Build<'_>, text: &[u8], caseless: bool) -> Result<Pattern, String> {
        if let Some(known) = build.patterns.get(&(text.into(), caseless)) {
            return Ok(known.clone());
        }
        let shown = String::from_utf8_lossy(text);
        let source =
            std::str::from_utf8(text).map_err(|_| format!("pcre2_compile() failed: not UTF-8 in \"{shown}\""))?;
        let regex = RegexBuilder::new()
            .caseless(caseless)
            .jit_if_available(true)
            .build(source)
            .map_err(|e| explain(&shown, &e))?;
        let mut named = Vec::new();
        for (group, name) in regex.capture_names().iter().enumerate() {
            if let Some(name) = name {
                named.push((group, build.variables.declare_quietly(name.as_bytes())?));
            }
        }
        let index = build.patterns.len() as u32;
        let pattern = Pattern { regex: Arc::new(regex), index, named: named.into() };
        build.patterns.insert((text.into(), caseless), pattern.clone());
        Ok(pattern)
    }

    /// Number of groups, without the whole match.
    pub fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    /// Whether it has `(?<name>...)` groups.
    pub fn has_names(&self) -> bool {
        !self.named.is_empty()
    }

    /// Whether bytes outside a request match; captures are lost.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        self.regex.is_match(subject).unwrap_or(false)
    }

    /// Matches a text; on success `$1`... and the named variables are set.
    pub fn exec(&self, r: &mut Request, subject: Text) -> bool {
        if self.groups() == 0 {
            let hit = self.regex.is_match(r.get(subject)).unwrap_or(false);
            if hit {
                r.captures.clear();
            }
            return hit;
        }
        let subject = match subject {
            Text::Own(s) => s,
            Text::Fixed(b) => r.arena.push(b),
        };
        let shot = r.shot.clone();
        let mut scratch = shot.scratch.borrow_mut();
        let index = self.index as usize;
        if scratch.0.len() <= index {
            scratch.0.resize_with(index + 1, || None);
        }
        let locations = scratch.0[index].get_or_insert_with(|| self.regex.capture_locations());
        match self.regex.captures_read(locations, r.arena.span(subject)) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(e) => {
                drop(scratch);
                crate::log_error!(r, Alert, "pcre2_match() failed: {e}");
                return false;
            }
        }
        r.captures.clear();
        for group in 1..=self.groups() {
            r.captures.push(
                locations
                    .get(group)
                    .map(|(start, end)| Span { start: subject.start + start as u32, end: subject.start + end as u32 }),
            );
        }
        for &(group, id) in self.named.iter() {
            let value = r.captures.get(group - 1).copied().flatten().map(Text::Own);
            r.assign(id, value);
        }
        true
    }
}

fn explain(shown: &str, error: &pcre2::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit(": ").next().unwrap_or(&text).to_owned();
    match error.offset().and_then(|at| shown.get(at..)).filter(|rest| !rest.is_empty()) {
        Some(rest) => format!("pcre2_compile() failed: {text} in \"{shown}\" at \"{rest}\""),
        None => format!("pcre2_compile() failed: {text} in \"{shown}\""),
    }
}
