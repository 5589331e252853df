//! What a function that a program calls works on: the request, or the session. It is lent to the program while that runs and taken back
//! when it waits; between turns nothing of a request is in JavaScript's hands.

use crate::request::Request;
use ::js::Fault;
use ::js::rquickjs::{Ctx, Result};
use ::js::value::OrThrow;
use scoped_tls_hkt::scoped_thread_local;

scoped_thread_local!(static mut REQUEST: Request);
// The request that a program waits with for the subrequest that runs: `r.parent`.
scoped_thread_local!(static mut PARENT: Request);

/// Runs a piece of a program: whatever it calls works on this request.
pub fn enter<T>(r: &mut Request, run: impl FnOnce() -> T) -> T {
    // A program polls its subrequests itself, so its request is lent out around theirs.
    if r.is_main() || !REQUEST.is_set() {
        return REQUEST.set(r, run);
    }
    REQUEST.with(|around| match around.flow.depth + 1 == r.flow.depth {
        true => PARENT.set(around, || REQUEST.set(r, run)),
        false => REQUEST.set(r, run),
    })
}

/// Whether the running program's request is a subrequest of another program.
pub fn has_parent() -> bool {
    PARENT.is_set()
}

/// Runs a piece of a program on the request that it is a subrequest of.
///
/// # Errors
/// It is nobody's, or its parent is over.
pub fn in_parent<T>(run: impl FnOnce() -> T) -> std::result::Result<T, Fault> {
    if !PARENT.is_set() {
        return Err(Fault::of_type("the parent request is not here"));
    }
    Ok(PARENT.with(|parent| REQUEST.set(parent, run)))
}

/// Works on the request that the running program is for.
///
/// # Errors
/// There is none: the program's own text runs, before any request.
pub fn request<T>(work: impl FnOnce(&mut Request) -> std::result::Result<T, Fault>) -> std::result::Result<T, Fault> {
    if !REQUEST.is_set() {
        return Err(Fault::of_type("there is no request here"));
    }
    REQUEST.with(work)
}

/// The same for a function of a program: what goes wrong is thrown.
///
/// # Errors
/// An exception.
pub fn with<T>(ctx: &Ctx<'_>, work: impl FnOnce(&mut Request) -> std::result::Result<T, Fault>) -> Result<T> {
    request(work).or_throw(ctx)
}
