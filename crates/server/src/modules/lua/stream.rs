//! Programs in the phases of `stream`: `preread_by_lua*`, `content_by_lua*` (`log_by_lua*` is a logger as in `http`, `balancer_by_lua*` a part of
//! the choice). From: `stream::StreamSession`. The connection is lent to the request while a program runs (`raw`).

use super::current::Phase;
use super::operation::End;
use super::run;
use super::{machine, raw};
use crate::config::{Directive, Scope, stream};
use crate::connection::incoming::Incoming;
use crate::listen::datagram::Flow;
use crate::log_error;
use crate::modules::lua::chunk::Chunk;
use crate::modules::stream_core::Handler;
use crate::request::Request;
use conf::{Node, Problem};
use std::rc::Rc;
use std::sync::Arc;

/// Those that `http` has not, or has with another meaning.
pub const DIRECTIVES: &[Directive] = &[
    stream("preread_by_lua_block", |s, n| super::program(s, n, |c| &mut c.preread)),
    stream("preread_by_lua_file", |s, n| super::program(s, n, |c| &mut c.preread)),
    stream("proxy_ssl_verify_by_lua_block", |s, n| super::program(s, n, |c| &mut c.proxy_ssl_verify)),
    stream("proxy_ssl_verify_by_lua_file", |s, n| super::program(s, n, |c| &mut c.proxy_ssl_verify)),
    stream("content_by_lua_block", content),
    stream("content_by_lua_file", content),
];

fn content(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    super::program(scope, node, |c| &mut c.content)?;
    scope.level.conf.stream_core.handler.force(Handler::Lua);
    Ok(())
}

/// `preread_by_lua*`. The error is the session's status.
///
/// # Errors
/// The program ends the session.
pub async fn preread(r: &mut Request, incoming: &mut Incoming) -> Result<(), u16> {
    let Some(chunk) = (*r.conf().lua.preread).clone() else { return Ok(()) };
    match run_on(r, incoming, &chunk, Phase::Preread).await {
        End::Done | End::Exit(0) => Ok(()),
        End::Exit(status @ 200..1000) => Err(status as u16),
        // NGX_DECLINED: the next one in the phase.
        End::Exit(-5) => Ok(()),
        _ => Err(500),
    }
}

/// `content_by_lua*`; gives the session's status.
pub async fn handle(r: &mut Request, incoming: &mut Incoming) -> u16 {
    let Some(chunk) = (*r.conf().lua.content).clone() else { return 500 };
    match run_on(r, incoming, &chunk, Phase::Content).await {
        End::Done | End::Exit(0) => 200,
        End::Exit(status @ 200..1000) => status as u16,
        _ => 500,
    }
}

/// `preread_by_lua*` of a session of datagrams; it may take the first one. The error is the session's status.
///
/// # Errors
/// The program ends the session.
pub async fn preread_datagrams(r: &mut Request, flow: &Rc<Flow>, first: &mut Option<Box<[u8]>>) -> Result<(), u16> {
    let Some(chunk) = (*r.conf().lua.preread).clone() else { return Ok(()) };
    match run_datagrams(r, flow, first, &chunk, Phase::Preread).await {
        End::Done | End::Exit(0 | -5) => Ok(()),
        End::Exit(status @ 200..1000) => Err(status as u16),
        _ => Err(500),
    }
}

/// `content_by_lua*` of a session of datagrams; gives the session's status.
pub async fn handle_datagrams(r: &mut Request, flow: &Rc<Flow>, mut first: Option<Box<[u8]>>) -> u16 {
    let Some(chunk) = (*r.conf().lua.content).clone() else { return 500 };
    match run_datagrams(r, flow, &mut first, &chunk, Phase::Content).await {
        End::Done | End::Exit(0) => 200,
        End::Exit(status @ 200..1000) => status as u16,
        _ => 500,
    }
}

async fn run_datagrams(
    r: &mut Request,
    flow: &Rc<Flow>,
    first: &mut Option<Box<[u8]>>,
    chunk: &Arc<Chunk>,
    phase: Phase,
) -> End {
    let Some(machine) = machine::of(r) else { return End::Failed };
    let Ok(program) = machine.program(r, chunk) else { return End::Failed };
    r.ctx.lua.get_or_insert_default().datagrams = Some(raw::Datagrams { flow: flow.clone(), first: first.take() });
    let end = run::run(r, &machine, program, phase).await;
    *first = r.ctx.lua.as_mut().and_then(|c| c.datagrams.take()).and_then(|d| d.first);
    end
}

async fn run_on(r: &mut Request, incoming: &mut Incoming, chunk: &Arc<Chunk>, phase: Phase) -> End {
    let Some(machine) = machine::of(r) else { return End::Failed };
    let Ok(program) = machine.program(r, chunk) else { return End::Failed };
    raw::lend(r, incoming);
    let end = run::run(r, &machine, program, phase).await;
    let timeout = *r.conf().lua.socket_send_timeout;
    let flushed = raw::flush(r, timeout).await;
    raw::take_back(r, incoming);
    if let Err(e) = flushed {
        log_error!(r, Info, "send() failed ({})", crate::log::os_error(&e));
        return End::Broken;
    }
    end
}
