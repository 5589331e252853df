//! What every session of `stream` needs, and the content handlers that need no peer: `return`, `pass`; `set` (nginx's
//! `ngx_stream_core_module`, `ngx_stream_return_module`, `ngx_stream_pass_module`, `ngx_stream_set_module`).

use super::map::variable_name;
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::variables::Assign;
use crate::config::{Directive, Scope, stream};
use crate::merged_values;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::stream::pass;
use conf::{Node, Problem};
use std::sync::Arc;
use std::time::Duration;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    stream("tcp_nodelay", |s, n| setters::flag(&mut s.level.conf.stream_core.tcp_nodelay, n)),
    stream("preread_buffer_size", |s, n| setters::size(&mut s.level.conf.stream_core.preread_buffer_size, n)),
    stream("preread_timeout", |s, n| setters::time(&mut s.level.conf.stream_core.preread_timeout, n)),
    stream("proxy_protocol_timeout", |s, n| setters::time(&mut s.level.conf.stream_core.proxy_protocol_timeout, n)),
    stream("ssl_preread", |s, n| setters::flag(&mut s.level.conf.stream_core.ssl_preread, n)),
    stream("return", return_text),
    stream("pass", pass),
    stream("set", set_variable),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Who answers: the last directive of those that set a handler.
        handler: Handler = Handler::None,
        /// `return`
        text: Complex = Complex::default(),
        /// `pass`
        pass: Complex = Complex::default(),
        /// Small writes to both sides leave at once.
        tcp_nodelay: bool = true,
        /// How much may be read before the peer is chosen.
        preread_buffer_size: u64 = 16384,
        /// How long that may take.
        preread_timeout: Duration = Duration::from_secs(30),
        /// The client's first TLS message is read before the peer is chosen.
        ssl_preread: bool = false,
        /// How long the PROXY header may take.
        proxy_protocol_timeout: Duration = Duration::from_secs(30),
        /// `set`, in order.
        assignments: Arc<Vec<Assignment>> = Arc::default(),
    }
}

/// Who answers a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Nobody: it is closed.
    None,
    /// `proxy_pass`
    Proxy,
    /// `return`
    Return,
    /// `pass`
    Pass,
    /// `content_by_lua*`
    Lua,
    /// `zone_sync`
    ZoneSync,
}

/// One `set`.
#[derive(Clone, Debug)]
pub struct Assignment {
    variable: VariableId,
    hook: Option<Assign>,
    value: Complex,
}

fn return_text(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = Complex::compile(scope.build, &node.args[0])?;
    let conf = &mut scope.level.conf.stream_core;
    setters::value(&mut conf.text, node, text)?;
    conf.handler.force(Handler::Return);
    Ok(())
}

fn pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let to = Complex::compile(scope.build, &node.args[0])?;
    let conf = &mut scope.level.conf.stream_core;
    if conf.pass.is_set() {
        return Err(duplicate(node));
    }
    if let Some(fixed) = to.as_fixed() {
        let text = String::from_utf8_lossy(fixed);
        pass::parse(&text).map_err(|e| match &*e {
            pass::NO_ADDRESSES => node.problem(format!("\"pass\" directive has {e}")),
            _ => node.problem(format!("{e} in \"{text}\" of the \"pass\" directive")),
        })?;
    }
    conf.pass.force(to);
    conf.handler.force(Handler::Pass);
    Ok(())
}

fn set_variable(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = variable_name(node, &node.args[0])?;
    let value = Complex::compile(scope.build, &node.args[1])?;
    let hook = scope.build.variables.assign_hook(name);
    let variable = scope.build.variables.declare(name).map_err(|t| node.problem(t))?;
    let all = Arc::make_mut(scope.level.conf.stream_core.assignments.entry());
    all.push(Assignment { variable, hook, value });
    Ok(())
}

/// `set`: part of the preaccess phase.
pub fn assign(r: &mut Request) {
    let snapshot = r.snapshot.clone();
    for one in snapshot.location(r.location).conf.stream_core.assignments.iter() {
        let value: Text = one.value.eval(r);
        match one.hook {
            Some(hook) => hook(r, value),
            None => r.assign(one.variable, Some(value)),
        }
    }
}
