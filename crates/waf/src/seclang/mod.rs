//! SecLang: from text to what rules say. To: [`crate::rules`] makes of it what runs.

pub(crate) mod actions;
mod ctl;
mod directives;
pub(crate) mod files;
pub(crate) mod lexer;
pub(crate) mod load;
pub(crate) mod targets;
