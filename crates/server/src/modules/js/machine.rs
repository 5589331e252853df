//! Contexts of programs: made for a request, given back when it is done. Each belongs to one program and is used by one request at a time;
//! what it has kept in its global variables the next request sees, as with njs's own engine `qjs`.

use super::api;
use crate::log::error::Level;
use crate::request::Request;
use crate::request::phases::Verdict;
use crate::snapshot::{ThreadSnapshot, VariableId};
use ::js::{Engine, Parts, Program};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// What `r`, `s` and `ngx` are on the side of JavaScript.
pub(super) const PARTS: Parts = Parts {
    now: &[("njs:request", include_str!("prelude/request.js")), ("njs:ngx", include_str!("prelude/ngx.js"))],
    later: &[
        ("njs:form", include_str!("prelude/form.js")),
        ("njs:stream", include_str!("prelude/stream.js")),
        ("njs:fetch", include_str!("prelude/fetch.js")),
    ],
};

/// Contexts of a thread and a configuration that wait for a request.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<HashMap<usize, Vec<Rc<Engine>>>>,
    names: OnceCell<HashMap<Box<[u8]>, VariableId>>,
    /// Another configuration has taken its place: nothing is begun any more.
    pub exiting: Cell<bool>,
    /// Tasks of `js_periodic`, to be woken then.
    pub tasks: RefCell<Vec<runtime::TaskId>>,
}

/// What the module keeps for a request.
pub struct Context {
    engine: Rc<Engine>,
    program: Arc<Program>,
    snapshot: Weak<ThreadSnapshot>,
    /// How many of its kind may wait; none once it was given back.
    most: Option<usize>,
    /// What the request comes to, as far as the program has said.
    pub verdict: Option<Verdict>,
    /// Where it goes: `r.internalRedirect`.
    pub redirect: Option<Vec<u8>>,
    /// The program is a filter: it may not answer.
    pub filter: bool,
    /// A body filter wants no more pieces: `r.done`.
    pub done: bool,
    /// What a body filter has made of its piece, and whether that is the last.
    pub pieces: Vec<(Vec<u8>, bool)>,
    /// Whether the piece that the filter has is the last.
    pub last: bool,
    /// The program waits for the request's body.
    pub wants_body: bool,
    /// Something of the answer may wait for the client.
    pub unflushed: bool,
    /// What a program of `stream` does.
    pub session: super::stream::State,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context {{ verdict: {:?}, filter: {} }}", self.verdict, self.filter)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let said = self.give_back();
        for text in said {
            crate::log::process_line(Level::Error, format_args!("js {text}"));
        }
    }
}

impl Context {
    /// The context is done with its request: what the log should say.
    pub fn give_back(&mut self) -> Vec<String> {
        let Some(most) = self.most.take() else { return Vec::new() };
        let pending = self.engine.is_waiting();
        let (mut said, reusable) = self.engine.reset();
        if pending {
            said.insert(0, "pending events".to_owned());
        }
        let Some(snapshot) = self.snapshot.upgrade().filter(|_| reusable && !pending) else { return said };
        let mut idle = snapshot.kept.get::<Pool>().idle.borrow_mut();
        let own = idle.entry(Arc::as_ptr(&self.program) as usize).or_default();
        if own.len() < most {
            own.push(self.engine.clone());
        }
        said
    }
}

/// The context of a request. Without one the log says why.
pub fn of(r: &mut Request) -> Option<Rc<Engine>> {
    let Some(program) = r.conf().js.program.clone() else {
        crate::log_error!(r, Error, "no \"js_import\" directives found in the current scope");
        return None;
    };
    if let Some(context) = &r.ctx.js
        && Arc::ptr_eq(&context.program, &program)
    {
        return Some(context.engine.clone());
    }
    // The engine that njs has otherwise gives each request a context of its own.
    let most = if *r.conf().js.qjs { *r.conf().js.context_reuse as usize } else { 0 };
    let idle =
        r.snapshot.kept.get::<Pool>().idle.borrow_mut().get_mut(&(Arc::as_ptr(&program) as usize)).and_then(Vec::pop);
    let engine = match idle {
        Some(engine) => engine,
        None => {
            let snapshot = r.snapshot.clone();
            // The program's own text may ask for nothing of the request, as in nginx.
            match Engine::new(&program, PARTS, |ctx, raw| api::add(ctx, raw, &snapshot)) {
                Ok(engine) => engine,
                Err(text) => {
                    crate::log_error!(r, Error, "js exception: {text}");
                    return None;
                }
            }
        }
    };
    let context = Context {
        engine: engine.clone(),
        program,
        snapshot: Rc::downgrade(&r.snapshot),
        most: Some(most),
        verdict: None,
        redirect: None,
        filter: false,
        done: false,
        pieces: Vec::new(),
        last: false,
        wants_body: false,
        unflushed: false,
        session: Default::default(),
    };
    r.ctx.js = Some(Box::new(context));
    Some(engine)
}

/// The number of a variable that the configuration uses.
pub fn variable(r: &Request, name: &[u8]) -> Option<VariableId> {
    let names = r.snapshot.kept.get::<Pool>().names.get_or_init(|| {
        let all = r.snapshot.variables.iter().enumerate();
        all.map(|(number, v)| (v.name.as_bytes().into(), VariableId(number as u32))).collect()
    });
    names.get(name).copied()
}
