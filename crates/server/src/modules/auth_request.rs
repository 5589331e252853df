//! Permission by subrequest (nginx's `ngx_http_auth_request_module`): 2xx lets the request through, 401 and 403 refuse it.

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::variables::Assign;
use crate::config::{Directive, Scope, http};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::{log_error, merged_values};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("auth_request", auth_request), http("auth_request_set", auth_request_set)];

/// Its place in the access phase.
pub const HANDLER: Handler = Handler::Later(|r| asks(&r.conf().auth_request), ask);

/// Whether somebody is asked.
pub fn asks(conf: &Conf) -> bool {
    conf.uri.is_some()
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Who is asked.
        uri: Option<Arc<[u8]>> = None,
        /// What is taken from the answer.
        variables: Arc<Vec<Taken>> = Arc::default(),
    }
}

/// One `auth_request_set`.
#[derive(Clone, Debug)]
pub struct Taken {
    variable: VariableId,
    hook: Option<Assign>,
    value: Complex,
}

fn auth_request(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let uri = &node.args[0].text;
    let uri = (uri != b"off").then(|| uri.as_slice().into());
    setters::value(&mut scope.level.conf.auth_request.uri, node, uri)
}

fn auth_request_set(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let Some(name) = word.text.strip_prefix(b"$").filter(|n| !n.is_empty()) else {
        return Err(node.problem(format!("invalid variable name \"{}\"", word.as_str())));
    };
    let variable = scope.build.variables.declare_quietly(name).map_err(|t| node.problem(t))?;
    let hook = scope.build.variables.assign_hook(name);
    let value = Complex::compile(scope.build, &node.args[1])?;
    let variables = scope.level.conf.auth_request.variables.entry();
    Arc::get_mut(variables).ok_or_else(|| duplicate(node))?.push(Taken { variable, hook, value });
    Ok(())
}

fn ask(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let snapshot = r.snapshot.clone();
        let conf = &snapshot.location(r.location).conf.auth_request;
        let Some(uri) = &*conf.uri else { return Verdict::Decline };
        let uri = r.text(uri);
        let options = Options { mode: Mode::Discard, with_body: false, get: true };
        let mut child = match subrequest::run(r, uri, Text::EMPTY, options).await {
            Ok(child) => child,
            Err(verdict) => return verdict,
        };
        take_values(r, &mut child, &conf.variables);
        judge(r, &child)
    })
}

/// `auth_request_set`: the values are the subrequest's; they stay through redirects.
fn take_values(r: &mut Request, child: &mut Request, variables: &[Taken]) {
    for taken in variables {
        child.swap_shared(r);
        let value = taken.value.eval(child);
        child.swap_shared(r);
        if child.take_fault() {
            r.fail();
        }
        r.assign(taken.variable, Some(value));
        if let Some(hook) = taken.hook {
            hook(r, value);
        }
    }
}

fn judge(r: &mut Request, child: &Request) -> Verdict {
    match child.answer.headers.status {
        403 => Verdict::Status(403),
        401 => {
            let asked = child.answer.headers.lines.iter().filter(|l| l.known == K::WwwAuthenticate);
            r.answer.headers.lines.extend(asked);
            Verdict::Status(401)
        }
        200..300 => Verdict::Allow,
        status => {
            log_error!(r, Error, "auth request unexpected status: {status}");
            Verdict::Status(500)
        }
    }
}
