//! `echo` and its kin: answers out of the configuration, with pauses, loops and subrequests (OpenResty's
//! `ngx_http_echo_module`). A location's commands run in the order of the text.

mod commands;

use crate::config::complex::Complex;
use crate::config::variables::Builtin;
use crate::config::{Directive, http};
use crate::log_error;
use crate::request::body::{BodyFile, Stored};
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Rest};
use crate::request::include::{self, Include, Own};
use crate::request::phases::{Verdict, Waiting};
use crate::request::respond::Filtered;
use crate::request::{Request, Text, body, finish, flow, head, subrequest};
use crate::{inherited, text};
use commands::{Command, Kind};
use conf::value;
use runtime::clock;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("echo", |s, n| commands::add(s, n, Kind::Echo)),
    http("echo_duplicate", |s, n| commands::add(s, n, Kind::Duplicate)),
    http("echo_sleep", |s, n| commands::add(s, n, Kind::Sleep)),
    // The thread has other connections: nobody but the client waits.
    http("echo_blocking_sleep", |s, n| commands::add(s, n, Kind::Sleep)),
    http("echo_flush", |s, n| commands::add(s, n, Kind::Flush)),
    http("echo_reset_timer", |s, n| commands::add(s, n, Kind::ResetTimer)),
    http("echo_read_request_body", |s, n| commands::add(s, n, Kind::ReadBody)),
    http("echo_request_body", |s, n| commands::add(s, n, Kind::Body)),
    http("echo_location", |s, n| commands::add(s, n, Kind::Location)),
    http("echo_location_async", |s, n| commands::add(s, n, Kind::Location)),
    http("echo_subrequest", |s, n| commands::add(s, n, Kind::Subrequest)),
    http("echo_subrequest_async", |s, n| commands::add(s, n, Kind::Subrequest)),
    http("echo_foreach_split", |s, n| commands::add(s, n, Kind::ForEach)),
    http("echo_end", |s, n| commands::add(s, n, Kind::End)),
    http("echo_foreach_end", |s, n| commands::add(s, n, Kind::End)),
    http("echo_exec", |s, n| commands::add(s, n, Kind::Exec)),
    http("echo_status", commands::status),
    http("echo_before_body", |s, n| commands::around(s, n, true)),
    http("echo_after_body", |s, n| commands::around(s, n, false)),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "echo_it", evaluate: |r| r.ctx.echo.as_ref()?.it, volatile: true, assign: None },
    Builtin { name: "echo_timer_elapsed", evaluate: timer_elapsed, volatile: true, assign: None },
    Builtin { name: "echo_request_body", evaluate: request_body, volatile: true, assign: None },
    Builtin { name: "echo_request_method", evaluate: |r| Some(r.head.method_name), volatile: true, assign: None },
    Builtin { name: "echo_client_request_method", evaluate: |r| Some(client_method(r)), volatile: false, assign: None },
    Builtin { name: "echo_request_uri", evaluate: request_uri, volatile: true, assign: None },
    Builtin { name: "echo_cacheable_request_uri", evaluate: request_uri, volatile: false, assign: None },
    Builtin { name: "echo_client_request_headers", evaluate: client_headers, volatile: false, assign: None },
    Builtin { name: "echo_response_status", evaluate: response_status, volatile: true, assign: None },
    Builtin { name: "echo_incr", evaluate: increment, volatile: true, assign: None },
];

/// What `echo_duplicate` may write at most.
const MAX_DUPLICATE: u64 = 1 << 30;
/// Rounds of one `echo_foreach_split`.
const MAX_ROUNDS: usize = 100_000;

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    commands: Arc<Vec<Command>>,
    /// One of them wants the request's body, maybe after lines have been sent.
    reads_body: bool,
    /// The commands of a loop that is not over yet, while the level is read.
    open: Option<Vec<Command>>,
    status: Option<u16>,
    before: Arc<Vec<Line>>,
    after: Arc<Vec<Line>>,
}

/// A line that is written: words with a space between them.
#[derive(Clone, Debug)]
struct Line {
    words: Vec<Complex>,
    /// A line feed behind it: not with `-n`.
    ends: bool,
}

impl Conf {
    /// Whether lines come before or after an answer.
    pub fn surrounds(&self) -> bool {
        !self.before.is_empty() || !self.after.is_empty()
    }

    /// Takes the parent's commands where this level has none.
    pub fn merge(&mut self, parent: &Conf) {
        commands::finish(&mut self.commands, &mut self.open);
        for (own, around) in [(&mut self.before, &parent.before), (&mut self.after, &parent.after)] {
            if own.is_empty() {
                own.clone_from(around);
            }
        }
        if self.commands.is_empty() {
            self.commands.clone_from(&parent.commands);
            self.reads_body = parent.reads_body;
        }
        self.status = self.status.or(parent.status);
    }
}

inherited!(Conf, |_| true);

/// What the module keeps for one request.
#[derive(Debug, Default)]
pub struct Context {
    /// `$echo_it`
    it: Option<Text>,
    /// `echo_reset_timer`, ms.
    since: Option<u64>,
    /// `$echo_incr`
    count: u64,
}

/// The content handler.
pub(super) fn handler(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let commands = r.conf().echo.commands.clone();
        match run(r, &commands).await {
            Ok(()) => finish_answer(r),
            Err(verdict) => verdict,
        }
    })
}

fn finish_answer(r: &mut Request) -> Verdict {
    let sent = begin(r).and_then(|()| r.send_body(Chunk::Bytes(b""), true));
    match sent {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// Sends the head, once.
fn begin(r: &mut Request) -> Result<(), Verdict> {
    if r.answer.header_sent {
        return Ok(());
    }
    if !r.conf().echo.reads_body
        && let Err(status) = body::discard_arrived(r)
    {
        return Err(Verdict::Status(status));
    }
    if r.flow.error_status == 0 {
        r.answer.headers.status = r.conf().echo.status.unwrap_or(200);
    }
    r.answer.headers.content_length = None;
    super::root::set_content_type(r);
    // Commands may include others' answers at any time.
    r.answer.deferred.get_or_insert_default();
    r.send_header()
}

fn write(r: &mut Request, bytes: &[u8]) -> Result<(), Verdict> {
    begin(r)?;
    r.send_body(Chunk::Bytes(bytes), false)
}

fn run<'r>(
    r: &'r mut Request,
    commands: &'r [Command],
) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Verdict>> + 'r>> {
    Box::pin(async move {
        for command in commands {
            step(r, command).await?;
            if r.take_fault() {
                return Err(Verdict::Status(500));
            }
        }
        Ok(())
    })
}

async fn step(r: &mut Request, command: &Command) -> Result<(), Verdict> {
    match command {
        Command::Echo(line) => {
            let text = line.make(r);
            write(r, &text)
        }
        Command::Duplicate { count, text } => duplicate(r, count, text).await,
        Command::Sleep(seconds) => sleep(r, seconds).await,
        Command::Flush => {
            begin(r)?;
            flow::flush_now(r).await
        }
        Command::ResetTimer => {
            r.ctx.echo.get_or_insert_default().since = Some(clock::wall_ms());
            Ok(())
        }
        Command::ReadBody => body::read_all(r).await.map(drop).map_err(Verdict::from),
        Command::Body => request_body_out(r).await,
        Command::Include { uri, args, own } => {
            let (uri, args) = (uri.eval(r), args.as_ref().map(|a| a.eval(r)));
            let own = own.as_ref().map(|own| asked_with(r, own)).transpose()?;
            include_answer(r, uri, args, own).await
        }
        Command::ForEach { delimiter, text, commands } => each(r, delimiter, text, commands).await,
        Command::Exec { uri, args } => {
            if r.answer.header_sent {
                log_error!(r, Error, "echo_exec must come before what is written");
                return Err(Verdict::Status(500));
            }
            let uri = uri.eval(r);
            if let Some(name) = r.get(uri).strip_prefix(b"@") {
                let name = name.to_vec();
                return Err(finish::named_location(r, &name));
            }
            let (uri, own) = finish::split_args(r, uri);
            let args = args.as_ref().map_or(own, |a| a.eval(r));
            Err(finish::internal_redirect(r, uri, args))
        }
    }
}

async fn duplicate(r: &mut Request, count: &Complex, text: &Complex) -> Result<(), Verdict> {
    let (count, text) = (count.eval(r), text.eval(r));
    let digits: Vec<u8> = r.get(count).iter().copied().filter(|b| *b != b'_').collect();
    let text = r.get(text).to_vec();
    let count = value::number(&digits).filter(|n| n.saturating_mul(text.len() as u64) <= MAX_DUPLICATE);
    let Some(count) = count else {
        log_error!(r, Error, "echo_duplicate: invalid count \"{}\"", String::from_utf8_lossy(&digits));
        return Err(Verdict::Status(500));
    };
    let each = (PIECE / (text.len() as u64).max(1)).max(1);
    let mut left = if text.is_empty() { 0 } else { count };
    begin(r)?;
    while left > 0 {
        let now = left.min(each);
        write(r, &text.repeat(now as usize))?;
        left -= now;
        flow::flush(r).await?;
    }
    Ok(())
}

async fn sleep(r: &mut Request, seconds: &Complex) -> Result<(), Verdict> {
    let seconds = seconds.eval(r);
    let Some(ms) = value::fixed(r.get(seconds), 3) else {
        log_error!(r, Error, "echo_sleep: invalid time \"{}\"", String::from_utf8_lossy(r.get(seconds)));
        return Err(Verdict::Status(400));
    };
    // What was written before goes out before.
    if r.answer.header_sent {
        flow::flush_now(r).await?;
    }
    r.downstream.lend_buffers();
    runtime::timer::sleep(Duration::from_millis(ms)).await;
    Ok(())
}

async fn request_body_out(r: &mut Request) -> Result<(), Verdict> {
    let stored = body::read_all(r).await.map_err(Verdict::from)?;
    begin(r)?;
    match &stored.file {
        None => r.send_body(Chunk::Bytes(&stored.memory), false),
        Some(file) => {
            let mut at = 0;
            while at < stored.len {
                let len = PIECE.min(stored.len - at);
                r.send_body(Chunk::File { file: &file.fd, offset: at, len }, false)?;
                at += len;
                flow::flush(r).await?;
            }
            Ok(())
        }
    }
}

/// The method and the body of a subrequest.
fn asked_with(r: &mut Request, own: &commands::Own) -> Result<Box<Own>, Verdict> {
    let body = match &own.body {
        None => None,
        Some(commands::Body::Text(text)) => {
            let text = text.eval(r);
            let memory = r.get(text).to_vec();
            let len = memory.len() as u64;
            Some(Stored { memory, file: None, len })
        }
        Some(commands::Body::File(name)) => {
            let name = name.eval(r);
            let path = r.snapshot.prefix.join(std::ffi::OsStr::from_bytes(r.get(name)));
            let opened = std::fs::File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (len, file) = opened.map_err(|e| {
                log_error!(r, Error, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
                Verdict::Status(500)
            })?;
            let file = BodyFile { fd: Rc::new(file.into()), path, remove: false };
            Some(Stored { memory: Vec::new(), file: Some(file), len })
        }
    };
    Ok(Box::new(Own { method: own.method.clone(), body }))
}

async fn include_answer(r: &mut Request, uri: Text, args: Option<Text>, sent: Option<Box<Own>>) -> Result<(), Verdict> {
    begin(r)?;
    let (uri, own) = finish::split_args(r, uri);
    if r.get(uri).first() != Some(&b'/') || !subrequest::is_allowed(r, uri) {
        log_error!(r, Error, "echo: no subrequest to \"{}\"", String::from_utf8_lossy(r.get(uri)));
        return Err(Verdict::Broken);
    }
    let (uri, args) = (r.get(uri).into(), r.get(args.unwrap_or(own)).into());
    include::add(r, Include { uri, args, set: None, stub: None, own: sent });
    include::drive(r).await
}

async fn each(r: &mut Request, delimiter: &Complex, text: &Complex, commands: &[Command]) -> Result<(), Verdict> {
    let (delimiter, text) = (delimiter.eval(r), text.eval(r));
    let (delimiter, text) = (r.get(delimiter).to_vec(), r.get(text).to_vec());
    if delimiter.is_empty() {
        log_error!(r, Error, "echo_foreach_split: empty delimiter");
        return Err(Verdict::Status(500));
    }
    let mut at = 0;
    for _ in 0..MAX_ROUNDS {
        let end = memchr::memmem::find(&text[at..], &delimiter).map(|n| at + n);
        // Pieces without anything are passed over, as in the module.
        let piece = &text[at..end.unwrap_or(text.len())];
        if !piece.is_empty() {
            let it = r.text(piece);
            r.ctx.echo.get_or_insert_default().it = Some(it);
            run(r, commands).await?;
            flow::flush(r).await?;
        }
        match end {
            Some(end) => at = end + delimiter.len(),
            None => return Ok(()),
        }
    }
    log_error!(r, Error, "echo_foreach_split: more than {MAX_ROUNDS} rounds");
    Err(Verdict::Broken)
}

impl Line {
    fn make(&self, r: &mut Request) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, word) in self.words.iter().enumerate() {
            if number > 0 {
                out.push(b' ');
            }
            let word = word.eval(r);
            out.extend_from_slice(r.get(word));
        }
        if self.ends {
            out.push(b'\n');
        }
        out
    }
}

/// The header filter, for `echo_before_body` and `echo_after_body`.
pub fn filter(r: &mut Request) -> Filtered {
    let conf = &r.conf().echo;
    if !conf.surrounds() || r.answer.header_only {
        return Filtered::Next;
    }
    let (before, after) = (Some(conf.before.clone()), conf.after.clone());
    r.clear_content_length();
    r.clear_accept_ranges();
    r.answer.body_filters.push(Box::new(Around { before, after }));
    Filtered::Next
}

/// Writes lines before and behind a body.
struct Around {
    before: Option<Arc<Vec<Line>>>,
    after: Arc<Vec<Line>>,
}

impl BodyFilter for Around {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        for line in self.before.take().iter().flat_map(|lines| lines.iter()) {
            let text = line.make(r);
            rest.push(r, Chunk::Bytes(&text), false)?;
        }
        if !last || self.after.is_empty() {
            return rest.push(r, chunk, last);
        }
        rest.push(r, chunk, false)?;
        for line in self.after.clone().iter() {
            let text = line.make(r);
            rest.push(r, Chunk::Bytes(&text), false)?;
        }
        rest.push(r, Chunk::Bytes(b""), true)
    }
}

/// Seconds since the request began, or the timer was set back.
fn timer_elapsed(r: &mut Request) -> Option<Text> {
    let since = r.ctx.echo.as_ref().and_then(|c| c.since).unwrap_or(r.started_ms);
    let ms = clock::wall_ms().saturating_sub(since);
    Some(text!(r, "{}.{:03}", ms / 1000, ms % 1000))
}

fn request_body(r: &mut Request) -> Option<Text> {
    let stored = r.body.stored.clone()?;
    if stored.file.is_some() || stored.memory.is_empty() {
        return None;
    }
    Some(r.text(&stored.memory))
}

/// The method of the request that the client sent, which is the first word of its line.
fn client_method(r: &mut Request) -> Text {
    let line = r.get(r.head.line);
    let method = line[..memchr::memchr(b' ', line).unwrap_or(line.len())].to_vec();
    r.text(&method)
}

/// The path as it is now, without arguments.
fn request_uri(r: &mut Request) -> Option<Text> {
    Some(r.head.uri)
}

/// The request's line and headers, in the form of HTTP/1.
fn client_headers(r: &mut Request) -> Option<Text> {
    let head = head::as_sent(r, false);
    Some(r.text(&head))
}

fn response_status(r: &mut Request) -> Option<Text> {
    let status = r.answer.headers.status;
    (status > 0).then(|| text!(r, "{status}"))
}

/// Counts how often it was asked for.
fn increment(r: &mut Request) -> Option<Text> {
    let context = r.ctx.echo.get_or_insert_default();
    context.count += 1;
    let count = context.count;
    Some(text!(r, "{count}"))
}
