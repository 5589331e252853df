//! What programs call: the functions that `prelude/` makes `r`, `s` and `ngx` of. Each works on the request that `current` lends.

pub mod answer;
pub mod dict;
pub mod process;
pub mod request;
pub mod variables;

use super::{fetch, stream, subrequest};
use crate::snapshot::ThreadSnapshot;
use ::js::rquickjs::{Ctx, Object, Result};
use std::rc::Rc;

/// Puts them in.
///
/// # Errors
/// Out of memory.
pub fn add(ctx: &Ctx<'_>, raw: &Object<'_>, snapshot: &Rc<ThreadSnapshot>) -> Result<()> {
    process::add(raw, snapshot)?;
    request::add(raw)?;
    answer::add(raw)?;
    variables::add(raw)?;
    dict::add(raw, snapshot)?;
    subrequest::add(raw)?;
    stream::add(raw)?;
    fetch::add(ctx, raw)
}
