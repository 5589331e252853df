//! The blocks of `stream`: `stream`, `server` (nginx's `ngx_stream_module`, `ngx_stream_core_module`). They are read with
//! a `Build` of their own, so that variables, formats, groups and levels of `http` and `stream` never meet.

use super::listen;
use crate::config::{Build, ConfigLevel, Directive, Scope, Subsystem, process, stream};
use conf::{Body, Contexts, Node, Problem};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    process("stream", block),
    stream("server", server),
    stream("listen", listen::listen),
    stream("server_name", listen::server_name),
];

fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let build = &mut *scope.build;
    if build.stream.is_some() {
        return Err(crate::config::setters::duplicate(node));
    }
    let mut inner = Build::new(Subsystem::Stream, build.files, &build.prefix, &build.conf_prefix);
    // Names of zones are the whole configuration's.
    std::mem::swap(&mut inner.main.zones, &mut build.main.zones);
    inner.tls_files = build.tls_files.clone();
    inner.sources.clone_from(&build.sources);
    let mut level = inner.level(Contexts::STREAM);
    if let Body::Block(nodes) = &node.body {
        inner.block(nodes, &mut level);
    }
    std::mem::swap(&mut inner.main.zones, &mut build.main.zones);
    build.process.transparent |= inner.process.transparent;
    build.problems.append(&mut inner.problems);
    build.notes.append(&mut inner.notes);
    inner.http = Some(level);
    build.stream = Some(Box::new(inner));
    Ok(())
}

fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let before = scope.build.problems.len();
    let mut level: ConfigLevel = scope.child(node, Contexts::STREAM_SERVER);
    level.place = Some(node.name.span);
    if level.listens.is_empty() && !scope.build.problems[before..].iter().any(|p| p.level.is_fatal()) {
        scope.build.late.push(node.problem("no \"listen\" is defined for server".to_owned()));
        return Ok(());
    }
    if level.server_names.is_empty() {
        level.server_names.push((listen::Name::Exact(Vec::new()), node.clone()));
    }
    scope.level.children.push(level);
    Ok(())
}
