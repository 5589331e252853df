//! Programs in the phases of a request: which one runs, and what its end means for the request.

use super::current::{self, Phase};
use super::operation::End;
use super::raw::Datagrams;
use super::run;
use super::ssl::Handshake;
use super::upstream::Peer;
use super::{Machine, machine};
use crate::config::complex::Complex;
use crate::connection::incoming::Incoming;
use crate::log::error::Level;
use crate::log_error;
use crate::modules::lua::chunk::Chunk;
use crate::modules::root;
use crate::request::chunk::Chunk as Piece;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Begun, Verdict};
use crate::request::respond::Filtered;
use crate::request::{Request, Text, body, finish};
use ::lua::coroutine::Program;
use ::lua::machine::write_piece;
use ::lua::shelf::Slot;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// What the module keeps for a request.
#[derive(Default)]
pub struct Context {
    /// `ngx.ctx`
    pub table: Option<Slot>,
    /// The request's own machine (`lua_code_cache off`).
    pub machine: Option<Rc<Machine>>,
    /// Where `ngx.exec` goes: the decoded path, or a name with its `@`, and arguments.
    pub exec: Option<(Vec<u8>, Option<Vec<u8>>)>,
    /// Why the head could not be sent: what becomes of the request instead.
    pub failed: Option<Verdict>,
    /// A header filter has replaced the answer, and is not asked again.
    pub replaced: bool,
    /// What `ngx.exit` said where it does not end the program.
    pub exit: Option<i64>,
    /// The program has ended its answer: `ngx.eof`.
    pub eof: bool,
    /// The answer's head was the program's.
    pub answered: bool,
    /// What the piece of a body filter is: bytes and whether they are the last.
    pub piece: Option<(Vec<u8>, bool)>,
    /// What an answer to HTTP/1.0 has so far.
    pub held: Option<Vec<u8>>,
    /// Arguments of `set_by_lua`.
    pub arguments: Vec<Text>,
    /// The request's number among those that programs run for; 0: none yet.
    pub owner: u64,
    /// The request's connection is the program's: nothing else is sent on it.
    pub is_raw: bool,
    /// The connection of a session of `stream`, while a program runs.
    pub incoming: Option<Box<Incoming>>,
    /// A session of datagrams, while a program runs.
    pub datagrams: Option<Datagrams>,
    /// A body that the program makes piece by piece, and from how many bytes on it is a file.
    pub body: Option<(Vec<u8>, u64)>,
    /// What a session's program has said and the client has not taken.
    pub out: Vec<u8>,
    /// The handshake with the client that a program takes part in.
    pub handshake: Option<Box<Handshake>>,
    /// The handshake with a peer that a program takes part in.
    pub upstream: Option<Box<Peer>>,
    /// What `balancer_by_lua*` is told, and says.
    pub balancer: Option<Box<super::balancer::Said>>,
    /// The group whose program has chosen last.
    pub group: Option<std::sync::Arc<str>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context {{ exec: {:?}, exit: {:?} }}", self.exec, self.exit)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.owner != 0 {
            super::socket::end_of(self.owner);
        }
        self.table.iter().for_each(current::say_context_released);
    }
}

macro_rules! phases {
    ($($(#[$meta:meta])* $name:ident: $phase:ident,)*) => {
        $($(#[$meta])*
        pub fn $name(r: &mut Request) -> Begun<'_> {
            let snapshot = r.snapshot.clone();
            match &*snapshot.location(r.location).conf.lua.$name {
                Some(chunk) => begin(r, chunk, Phase::$phase),
                None => Begun::Over(Verdict::Decline),
            }
        })*
    };
}

phases! {
    /// `server_rewrite_by_lua*`
    server_rewrite: ServerRewrite,
    /// `rewrite_by_lua*`
    rewrite: Rewrite,
    /// `access_by_lua*`
    access: Access,
    /// `precontent_by_lua*`
    precontent: Precontent,
    /// `content_by_lua*`
    content: Content,
}

/// Begins a program that may answer; only where it waits there is something to be waited for.
fn begin<'r>(r: &'r mut Request, chunk: &Arc<Chunk>, phase: Phase) -> Begun<'r> {
    if *r.conf().lua.need_request_body {
        let chunk = chunk.clone();
        return Begun::Waits(Box::pin(async move {
            match body::read_all(r).await {
                Ok(_) => begin_with_body(r, &chunk, phase).verdict().await,
                Err(e) => e.into(),
            }
        }));
    }
    begin_with_body(r, chunk, phase)
}

fn begin_with_body<'r>(r: &'r mut Request, chunk: &Chunk, phase: Phase) -> Begun<'r> {
    tell(r, phase);
    let Some(machine) = machine::of(r) else { return Begun::Over(Verdict::Status(500)) };
    let program = match machine.program(r, chunk) {
        Ok(program) => program,
        Err(status) => return Begun::Over(Verdict::Status(status)),
    };
    match run::begin(r, &machine, program, phase) {
        run::Begun::Over(end) => Begun::Over(judge(r, phase, end)),
        run::Begun::Goes(run) => Begun::Waits(Box::pin(async move {
            let end = run.go_on(Some(&mut *r)).await;
            judge(r, phase, end)
        })),
    }
}

/// A line for whoever looks for a fault: a program begins.
fn tell(r: &Request, phase: Phase) {
    let uri = || String::from_utf8_lossy(r.get(r.head.uri));
    match phase {
        Phase::HeaderFilter => log_error!(r, Debug, "lua header filter for user lua code, uri \"{}\"", uri()),
        Phase::BodyFilter => log_error!(r, Debug, "lua body filter for user lua code, uri \"{}\"", uri()),
        Phase::Log | Phase::Content | Phase::Access | Phase::Rewrite | Phase::ServerRewrite | Phase::Precontent => {
            let name = if phase == Phase::ServerRewrite { "server rewrite" } else { phase.label() };
            log_error!(r, Debug, "lua {name} handler, uri:\"{}\" c:1", uri());
        }
        _ => {}
    }
}

/// What a program's end means.
fn judge(r: &mut Request, phase: Phase, end: End) -> Verdict {
    if let Some(verdict) = r.ctx.lua.as_mut().and_then(|c| c.failed.take()) {
        return verdict;
    }
    match end {
        End::Broken => Verdict::Broken,
        End::Failed if r.answer.header_sent => {
            r.flow.keepalive = false;
            Verdict::Broken
        }
        End::Failed => Verdict::Status(500),
        End::Jump => {
            // What the program has kept is no other location's.
            r.ctx.lua.get_or_insert_default().table = None;
            r.flow.uri_changed = true;
            Verdict::Decline
        }
        End::Exec => exec(r),
        End::Done if phase == Phase::Content || has_answered(r) => finish_answer(r),
        End::Done if phase == Phase::Access => Verdict::Allow,
        End::Done => Verdict::Decline,
        End::Exit(status) => exit(r, phase, status),
    }
}

/// Whether the program has said something, sent or held.
fn has_answered(r: &Request) -> bool {
    r.answer.header_sent || r.ctx.lua.as_ref().is_some_and(|c| c.held.is_some())
}

fn exec(r: &mut Request) -> Verdict {
    let Some((uri, args)) = r.ctx.lua.as_mut().and_then(|c| c.exec.take()) else { return Verdict::Status(500) };
    if let Some(name) = uri.strip_prefix(b"@") {
        // A named location has no arguments of its own.
        let name = &name[..memchr::memchr(b'?', name).unwrap_or(name.len())];
        return finish::named_location(r, name);
    }
    let args = args.unwrap_or_default();
    let (uri, args) = (r.text(&uri), if args.is_empty() { Text::EMPTY } else { r.text(&args) });
    finish::internal_redirect(r, uri, args)
}

/// `ngx.exit(status)`
fn exit(r: &mut Request, phase: Phase, status: i64) -> Verdict {
    match status {
        // NGX_OK: this phase is done; NGX_ERROR ends the request; others of nginx's codes go on.
        0 if phase == Phase::Content || has_answered(r) => finish_answer(r),
        0 if phase == Phase::Access => Verdict::Allow,
        408 | 444 | 499 if r.answer.header_sent => {
            r.flow.keepalive = false;
            Verdict::Broken
        }
        -1 => {
            r.flow.keepalive = false;
            Verdict::Broken
        }
        -5 if phase == Phase::Content => Verdict::Broken,
        i64::MIN..100 => Verdict::Decline,
        _ if has_answered(r) => finish_answer(r),
        // Answers that have no page: the head as it is, and nothing else.
        100..300 => {
            r.answer.headers.status = status as u16;
            if status == 204 {
                return r.respond(204, b"");
            }
            finish_answer(r)
        }
        status => {
            let status = u16::try_from(status).unwrap_or(500);
            // An `error_page` that takes its answer's status (`=`) finds this one, as long as its own program says nothing else.
            r.answer.headers.status = status;
            Verdict::Status(status)
        }
    }
}

/// Sends the head if the program did not, and ends the answer.
pub fn finish_answer(r: &mut Request) -> Verdict {
    if r.ctx.lua.as_ref().is_some_and(|c| c.is_raw) {
        // What is to be said the program has said, in whichever protocol.
        (r.answer.header_sent, r.answer.done, r.flow.keepalive, r.flow.lingering_close) = (true, true, false, true);
        return Verdict::Answered;
    }
    let held = r.ctx.lua.as_mut().and_then(|c| c.held.take()).unwrap_or_default();
    if !r.answer.header_sent && !held.is_empty() && r.answer.headers.content_length.is_none() {
        r.answer.headers.content_length = Some(held.len() as u64);
    }
    if !r.answer.header_sent
        && let Err(verdict) = send_head(r)
    {
        return verdict;
    }
    match r.send_body(Piece::Bytes(&held), true) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// Sends the head of a program's own answer.
pub fn send_head(r: &mut Request) -> Result<(), Verdict> {
    if r.answer.headers.status == 0 {
        r.answer.headers.status = 200;
    }
    if r.answer.headers.content_type.is_none() && r.answer.headers.status != 304 && *r.conf().lua.use_default_type {
        root::set_content_type(r);
    }
    r.send_header()
}

/// `set_by_lua*`: the text that the variable becomes; none: what failed has been logged.
pub fn set(r: &mut Request, chunk: &Arc<Chunk>, arguments: &[Complex]) -> Option<Text> {
    let arguments: Vec<Text> = arguments.iter().map(|a| a.eval(r)).collect();
    r.ctx.lua.get_or_insert_default().arguments = arguments;
    let value = call_with(r, chunk, Phase::Set, |machine, program| machine.stacks.call(program))?;
    let mut out = Vec::new();
    if !value.is_nil()
        && let Err(e) = write_piece(&value, 1, "set_by_lua", &mut out)
    {
        log_error!(r, Error, "{}", e.0);
        return None;
    }
    Some(r.text(&out))
}

/// Runs a program that may not wait. False: it failed, which is logged.
pub fn call(r: &mut Request, chunk: &Chunk, phase: Phase) -> bool {
    call_with(r, chunk, phase, |machine, program| machine.stacks.run(program)).is_some()
}

fn call_with<R>(
    r: &mut Request,
    chunk: &Chunk,
    phase: Phase,
    run: impl FnOnce(&Machine, Program) -> mlua::Result<R>,
) -> Option<R> {
    tell(r, phase);
    let machine = machine::of(r)?;
    let program = machine.program(r, chunk).ok()?;
    let result = current::enter(Some(&mut *r), &machine, phase, || run(&machine, program));
    result
        .inspect_err(|e| {
            let name = if phase == Phase::SessionStore { "session_store_by_lua*" } else { phase.context() };
            log_error!(r, Error, "failed to run {name}: {}", run::explain(e).replacen("\ncoroutine 0:", "", 1));
        })
        .ok()
}

/// `header_filter_by_lua*`; and `body_filter_by_lua*` begins with it.
pub fn header_filter(r: &mut Request) -> Filtered {
    if r.snapshot.main.lua.answers && r.logs(Level::Debug) {
        // Where programs may answer, OpenResty's filters for subrequests stand in every answer's way, and say so.
        let uri = String::from_utf8_lossy(r.get(r.head.uri));
        log_error!(r, Debug, "lua capture header filter, uri \"{uri}\"");
        log_error!(r, Debug, "lua capture body filter, uri \"{uri}\"");
    }
    if r.conf().lua.body_filter.is_some() {
        r.answer.body_filters.push(Box::new(Filter { room: Vec::new(), is_over: false }));
        r.answer.in_memory = true;
    }
    if r.ctx.lua.as_ref().is_some_and(|c| c.replaced) {
        return Filtered::Next;
    }
    let snapshot = r.snapshot.clone();
    let Some(chunk) = &*snapshot.location(r.location).conf.lua.header_filter else {
        if r.conf().lua.body_filter.is_some() {
            tell(r, Phase::HeaderFilter);
        }
        return Filtered::Next;
    };
    if !call(r, chunk, Phase::HeaderFilter) {
        return Filtered::Broken;
    }
    match r.ctx.lua.as_mut().and_then(|c| c.exit.take()) {
        // The connection is closed without a word.
        Some(408 | 444 | 499) => Filtered::Broken,
        Some(status @ 201..1000) => {
            r.ctx.lua.get_or_insert_default().replaced = true;
            Filtered::Replace(status as u16)
        }
        Some(-1) => Filtered::Broken,
        _ => Filtered::Next,
    }
}

struct Filter {
    room: Vec<u8>,
    /// The program has said that the answer ends: what comes after is nobody's.
    is_over: bool,
}

impl BodyFilter for Filter {
    fn push(&mut self, r: &mut Request, chunk: Piece<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if self.is_over {
            return Ok(());
        }
        let Some(program) = (*r.conf().lua.body_filter).clone() else { return rest.push(r, chunk, last) };
        let mut bytes = std::mem::take(&mut self.room);
        bytes.clear();
        chunk.copy_to(&mut bytes)?;
        r.ctx.lua.get_or_insert_default().piece = Some((bytes, last));
        let has_run = call(r, &program, Phase::BodyFilter);
        let context = r.ctx.lua.get_or_insert_default();
        let (exit, piece) = (context.exit.take(), context.piece.take());
        if !has_run || exit == Some(-1) {
            return Err(io::Error::other("body_filter_by_lua* failed"));
        }
        let (bytes, last) = piece.unwrap_or_default();
        self.is_over = last;
        let pushed = rest.push(r, Piece::Bytes(&bytes), last);
        self.room = bytes;
        pushed
    }
}

thread_local! {
    /// Requests since memory was given back.
    static SINCE_TRIM: Cell<u64> = const { Cell::new(0) };
}

/// `lua_malloc_trim`
fn trim(r: &Request) {
    let every = *r.snapshot.main.lua.malloc_trim;
    if every == 0 && r.snapshot.main.lua.is_used() {
        log_error!(r, Debug, "malloc_trim() disabled");
    }
    if every == 0 || !r.snapshot.main.lua.is_used() && !r.snapshot.main.lua.malloc_trim.is_set() {
        return;
    }
    SINCE_TRIM.set(SINCE_TRIM.get() + 1);
    if SINCE_TRIM.get() >= every {
        SINCE_TRIM.set(0);
        let returned = u8::from(::lua::machine::trim(1));
        log_error!(r, Debug, "malloc_trim(1) returned {returned}");
    }
}

/// `log_by_lua*`
pub fn logger(r: &mut Request) {
    trim(r);
    let snapshot = r.snapshot.clone();
    if let Some(chunk) = &*snapshot.location(r.location).conf.lua.log {
        call(r, chunk, Phase::Log);
    }
}

/// The type of an answer as one text.
pub fn content_type(r: &Request) -> Option<Vec<u8>> {
    r.answer.headers.content_type?;
    let mut out = Vec::new();
    r.answer.headers.write_content_type(&r.arena, &mut out);
    Some(out)
}

/// Puts a header into an answer in place of all of that name; no values take it away.
pub fn set_header<V: AsRef<[u8]>>(r: &mut Request, name: &[u8], values: &[V]) {
    let known = K::find(name);
    match known {
        K::ContentType => {
            r.answer.headers.content_type = None;
            (r.answer.headers.charset, r.answer.headers.written) = (None, None);
            if let Some(value) = values.last() {
                let value = r.text(value.as_ref());
                let arena = std::mem::take(&mut r.arena);
                r.answer.headers.set_content_type(&arena, value);
                r.arena = arena;
            }
            return;
        }
        K::ContentLength => {
            r.answer.headers.remove(K::ContentLength);
            r.answer.headers.content_length =
                values.last().and_then(|v| std::str::from_utf8(v.as_ref()).ok()?.trim().parse().ok());
            return;
        }
        K::LastModified => {
            r.answer.headers.last_modified = values.last().and_then(|v| wire::date::parse_http(v.as_ref()));
            if r.answer.headers.last_modified.is_some() || values.is_empty() {
                r.answer.headers.remove(K::LastModified);
                return;
            }
        }
        _ => {}
    }
    if known == K::Other {
        let (arena, lines) = (&r.arena, &mut r.answer.headers.lines);
        lines.retain(|l| !arena.get(l.name).eq_ignore_ascii_case(name));
    } else {
        r.answer.headers.remove(known);
    }
    for value in values {
        add_header(r, name, value.as_ref());
    }
}

/// Adds a header to an answer beside those of the same name.
pub fn add_header(r: &mut Request, name: &[u8], value: &[u8]) {
    let (name, value, known) = (r.text(name), r.text(value), K::find(name));
    r.answer.headers.lines.push(crate::request::headers::HeaderOut { name, value, known });
}
