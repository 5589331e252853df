//! Runs a function of a program to its end: what it waits for is polled by the request's own task.

use super::current;
use crate::request::body::{self, BodyError};
use crate::request::phases::Verdict;
use crate::request::{Request, flow};
use ::js::rquickjs::{Array, Ctx, Object, Result};
use ::js::{Called, Engine};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// How a function ended.
pub enum End {
    /// It waits for nothing more.
    Done,
    /// An exception, which was logged.
    Failed,
    /// The request came to its end meanwhile.
    Over(Verdict),
}

/// `[r]`
pub fn with_request<'js>(ctx: &Ctx<'js>, raw: &Object<'js>) -> Result<Array<'js>> {
    only(ctx, raw, "request")
}

/// The one argument that a function of `raw` makes.
pub fn only<'js>(ctx: &Ctx<'js>, raw: &Object<'js>, name: &str) -> Result<Array<'js>> {
    let array = Array::new(ctx.clone())?;
    let make: ::js::rquickjs::Function<'js> = raw.get(name)?;
    array.set(0, make.call::<_, Object<'js>>(())?)?;
    Ok(array)
}

/// Notes an exception.
pub fn complain(r: &Request, text: &str) {
    crate::log_error!(r, Error, "js exception: {text}");
}

/// Calls a function that may not wait: what it gave back, unless it failed or waits.
pub fn call_now(
    r: &mut Request,
    engine: &Rc<Engine>,
    name: &str,
    what: &str,
    arguments: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> Result<Array<'js>>,
) -> Option<()> {
    let waited = engine.is_waiting();
    match current::enter(r, || engine.call(name, arguments)) {
        Ok(Called::Waits) if !waited => {
            crate::log_error!(r, Error, "async operation inside \"{name}\" {what}");
            None
        }
        Ok(_) => Some(()),
        Err(text) => {
            complain(r, &text);
            None
        }
    }
}

/// Calls a function with `[r]`, and waits until it waits for nothing more.
pub async fn run(r: &mut Request, engine: &Rc<Engine>, name: &str) -> End {
    match current::enter(r, || engine.call(name, with_request)) {
        Ok(Called::Done) => return End::Done,
        Ok(Called::Waits) => {}
        Err(text) => {
            complain(r, &text);
            return End::Failed;
        }
    }
    loop {
        let (flush, read) = match &mut r.ctx.js {
            Some(c) => (std::mem::take(&mut c.unflushed), std::mem::take(&mut c.wants_body)),
            None => return End::Failed,
        };
        if flush && let Err(verdict) = flow::flush_now(r).await {
            return End::Over(verdict);
        }
        if read {
            match body::read_all(r).await {
                Ok(_) => {}
                Err(BodyError::Status(status)) => return End::Over(Verdict::Status(status)),
                Err(BodyError::Gone) => return End::Over(Verdict::Broken),
            }
        }
        let ended = poll_fn(|cx| {
            let polled = current::enter(r, || engine.poll(cx));
            let again = r.ctx.js.as_ref().is_some_and(|c| c.unflushed || c.wants_body);
            match polled {
                Poll::Pending if again => Poll::Ready(None),
                Poll::Pending => {
                    r.downstream.lend_buffers();
                    Poll::Pending
                }
                Poll::Ready(done) => Poll::Ready(Some(done)),
            }
        })
        .await;
        match ended {
            None => {}
            Some(Ok(())) => return End::Done,
            Some(Err(text)) => {
                complain(r, &text);
                return End::Failed;
            }
        }
    }
}
