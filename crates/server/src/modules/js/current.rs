//! What a function that a program calls works on: the request, or the session. It is lent to the program while that runs and taken back
//! when it waits; between turns nothing of a request is in JavaScript's hands.

use crate::request::Request;
use ::js::Fault;
use ::js::rquickjs::{Ctx, Result};
use ::js::value::OrThrow;
use scoped_tls_hkt::scoped_thread_local;

scoped_thread_local!(static mut REQUEST: Request);

/// Runs a piece of a program: whatever it calls works on this request.
pub fn enter<T>(r: &mut Request, run: impl FnOnce() -> T) -> T {
    REQUEST.set(r, run)
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
