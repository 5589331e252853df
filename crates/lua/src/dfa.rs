//! Expressions that are matched the other way (`d` of `ngx.re`): by PCRE2's `pcre2_dfa_match`, which finds the longest match and no groups.
//! The crate `pcre2` knows only the usual way. The fourth file with `unsafe`.
#![allow(unsafe_code, reason = "pcre2_dfa_match is called in C: the crate pcre2 has no way to it")]

use pcre2_sys::{
    PCRE2_ERROR_NOMATCH, pcre2_code_8, pcre2_code_free_8, pcre2_compile_8, pcre2_dfa_match_8,
    pcre2_get_error_message_8, pcre2_get_ovector_pointer_8, pcre2_match_context_8, pcre2_match_context_create_8,
    pcre2_match_context_free_8, pcre2_match_data_8, pcre2_match_data_create_8, pcre2_match_data_free_8,
    pcre2_set_depth_limit_8, pcre2_set_match_limit_8,
};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};

/// Room for the states of one match. An expression that needs more fails with PCRE2_ERROR_DFA_WSSIZE; ngx_lua has 100.
const WORKSPACE: usize = 1000;
/// How deep recursions, look-arounds and atomic groups of a match nest: this way of matching calls itself for each, on the thread's stack.
/// PCRE2's own limit is ten million, and a text of a client decides how deep `(?R)` goes.
const DEPTH: u32 = 400;
/// PCRE2's texts are shorter.
const LONGEST_TEXT: usize = 256;

/// An expression. It has its own place for what was found, so it is used by one thread.
pub(crate) struct Dfa {
    code: NonNull<pcre2_code_8>,
    found: NonNull<pcre2_match_data_8>,
    limits: NonNull<pcre2_match_context_8>,
}

/// What is wrong with a pattern, and at which byte.
pub(crate) struct Mistake {
    /// PCRE2's text.
    pub(crate) text: String,
    /// Where.
    pub(crate) offset: usize,
}

impl Dfa {
    /// Compiles a pattern with PCRE2's own options. `limit`: steps of one match; 0: PCRE2's own.
    ///
    /// # Errors
    /// What PCRE2 says.
    pub(crate) fn new(pattern: &[u8], options: u32, limit: u32) -> Result<Dfa, Mistake> {
        let (mut error, mut offset) = (0, 0);
        // SAFETY: the pattern is there for the call, with its length; the two places are ours.
        let code = unsafe {
            pcre2_compile_8(pattern.as_ptr(), pattern.len(), options, &raw mut error, &raw mut offset, null_mut())
        };
        let Some(code) = NonNull::new(code) else { return Err(Mistake { text: text_of(error), offset }) };
        // SAFETY: both ask for nothing but memory.
        let made = unsafe { (pcre2_match_data_create_8(1, null_mut()), pcre2_match_context_create_8(null_mut())) };
        let (Some(found), Some(limits)) = (NonNull::new(made.0), NonNull::new(made.1)) else {
            // SAFETY: each is what PCRE2 made, or null, which it takes, and nobody else has it.
            unsafe {
                pcre2_code_free_8(code.as_ptr());
                pcre2_match_data_free_8(made.0);
                pcre2_match_context_free_8(made.1);
            }
            return Err(Mistake { text: "no memory".to_owned(), offset: 0 });
        };
        // SAFETY: the context was made above.
        unsafe { pcre2_set_depth_limit_8(limits.as_ptr(), DEPTH) };
        if limit > 0 {
            // SAFETY: as above.
            unsafe { pcre2_set_match_limit_8(limits.as_ptr(), limit) };
        }
        Ok(Dfa { code, found, limits })
    }

    /// The longest match that begins first, from a byte on.
    ///
    /// # Errors
    /// PCRE2's number.
    pub(crate) fn longest(&self, subject: &[u8], from: usize) -> Result<Option<(usize, usize)>, i32> {
        if from > subject.len() {
            return Ok(None);
        }
        let mut room: [c_int; WORKSPACE] = [0; WORKSPACE];
        // SAFETY: code, place and limits were made by PCRE2 and live as long as `self`, which no other thread has; subject and room are there
        // for the call, with their lengths, and PCRE2 looks at whether a subject of UTF-8 is well formed.
        let result = unsafe {
            pcre2_dfa_match_8(
                self.code.as_ptr(),
                subject.as_ptr(),
                subject.len(),
                from,
                0,
                self.found.as_ptr(),
                self.limits.as_ptr(),
                room.as_mut_ptr(),
                room.len(),
            )
        };
        match result {
            PCRE2_ERROR_NOMATCH => Ok(None),
            error if error < 0 => Err(error),
            // 0: there are shorter ones, too, for which there is no place.
            _ => {
                // SAFETY: after a match the place has its one pair; it was made for one.
                let (start, end) = unsafe {
                    let pair = pcre2_get_ovector_pointer_8(self.found.as_ptr());
                    (*pair, *pair.add(1))
                };
                // `\K` in a look-around may turn them round.
                Ok(Some((start.min(end).min(subject.len()), end.min(subject.len()))))
            }
        }
    }
}

impl Drop for Dfa {
    fn drop(&mut self) {
        // SAFETY: they are `self`'s own, and go with it.
        unsafe {
            pcre2_match_context_free_8(self.limits.as_ptr());
            pcre2_match_data_free_8(self.found.as_ptr());
            pcre2_code_free_8(self.code.as_ptr());
        }
    }
}

fn text_of(error: c_int) -> String {
    let mut text = [0; LONGEST_TEXT];
    // SAFETY: the place is ours, with its length.
    let length = unsafe { pcre2_get_error_message_8(error, text.as_mut_ptr(), text.len()) };
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(pattern: &[u8]) -> Dfa {
        Dfa::new(pattern, 0, 0).unwrap_or_else(|mistake| panic!("{}", mistake.text))
    }

    #[test]
    fn what_nests_deeper_than_there_is_stack_is_an_error() {
        let nested = compiled(br"\((?:[^()]|(?R))*\)");
        assert_eq!(nested.longest(b"x((a)(b))", 0), Ok(Some((1, 9))));
        let deep = [&b"(".repeat(100_000)[..], b")"].concat();
        assert!(nested.longest(&deep, 0).is_err());
    }
}
