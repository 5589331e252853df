//! Regular expressions (PCRE2, as in nginx) whose captures land in the request: `$1`, `(?<name>...)`.

use super::Build;
use crate::request::Request;
use crate::request::arena::{Span, Text};
use crate::snapshot::VariableId;
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::sync::Arc;

/// Where the groups of a match are.
pub type Places = CaptureLocations;

/// Bytes of a subject that are shown when a pattern gave up on it: what made it do so may be as long as a head.
const SHOWN_SUBJECT: usize = 256;

/// The library gave up (PCRE2's match limit of 10,000,000 steps, or 32 kB of stack for compiled code, both as in nginx): it
/// is not known whether the text matches. Its `Display` is nginx's line for it.
#[derive(Debug)]
pub struct GaveUp {
    text: String,
}

impl std::fmt::Display for GaveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

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
    ///
    /// # Errors
    /// [`GaveUp`], which the caller logs.
    pub fn is_match(&self, subject: &[u8]) -> Result<bool, GaveUp> {
        self.regex.is_match(subject).map_err(|e| self.gave_up(&e, subject))
    }

    /// Room for the places of groups.
    pub fn places(&self) -> Places {
        self.regex.capture_locations()
    }

    /// Looks for the expression in bytes outside a request, from `at` on. The request's captures are left alone.
    ///
    /// # Errors
    /// [`GaveUp`], which the caller logs.
    pub fn find_at(&self, subject: &[u8], at: usize, places: &mut Places) -> Result<bool, GaveUp> {
        let found = self.regex.captures_read_at(places, subject, at);
        found.map(|found| found.is_some()).map_err(|e| self.gave_up(&e, subject))
    }

    /// Matches a text; on success `$1`... and the named variables are set.
    ///
    /// # Errors
    /// [`GaveUp`], which has been logged, and is a fault of the request.
    pub fn exec(&self, r: &mut Request, subject: Text) -> Result<bool, GaveUp> {
        if self.groups() == 0 {
            let hit = self.is_match(r.get(subject)).inspect_err(|e| note(r, e))?;
            if hit {
                r.captures.clear();
            }
            return Ok(hit);
        }
        let subject = match subject {
            Text::Own(s) => s,
            Text::Fixed(b) => r.arena.push(b),
        };
        let snapshot = r.snapshot.clone();
        let mut scratch = snapshot.scratch.borrow_mut();
        let index = self.index as usize;
        if scratch.0.len() <= index {
            scratch.0.resize_with(index + 1, || None);
        }
        let locations = scratch.0[index].get_or_insert_with(|| self.regex.capture_locations());
        match self.regex.captures_read(locations, r.arena.span(subject)) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(e) => {
                let failure = self.gave_up(&e, r.arena.span(subject));
                note(r, &failure);
                return Err(failure);
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
        Ok(true)
    }

    fn gave_up(&self, error: &pcre2::Error, subject: &[u8]) -> GaveUp {
        // As long as this took, others could have been served many times.
        runtime::spend_turn();
        let more = if subject.len() > SHOWN_SUBJECT { "..." } else { "" };
        let subject = String::from_utf8_lossy(&subject[..subject.len().min(SHOWN_SUBJECT)]);
        let (code, pattern) = (error.code(), self.regex.as_str());
        GaveUp { text: format!("pcre2_match() failed: {code} on \"{subject}{more}\" using \"{pattern}\"") }
    }
}

fn note(r: &mut Request, failure: &GaveUp) {
    r.fail();
    crate::log_error!(r, Alert, "{failure}");
}

fn explain(shown: &str, error: &pcre2::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit(": ").next().unwrap_or(&text).to_owned();
    match error.offset().and_then(|at| shown.get(at..)).filter(|rest| !rest.is_empty()) {
        Some(rest) => format!("pcre2_compile() failed: {text} in \"{shown}\" at \"{rest}\""),
        None => format!("pcre2_compile() failed: {text} in \"{shown}\""),
    }
}
