//! What a request goes through under `modsecurity`: the engine's phases at their places among nginx's.
//!
//! ```text
//! rewrite (before the rewrites)   phase 1: connection, request line, headers
//! preaccess (after the limits)    the body is read where rules want it; phase 2
//! header filters                  phase 3; the head is held where rules want the answer's body and may refuse it
//! body filters                    phase 4
//! log                             phase 5, the audit log
//! ```
//!
//! Only a client's own request is judged, and once, however often it is redirected inside.

use super::RuleSet;
use crate::connection::Address;
use crate::log::{self, lines};
use crate::log_error;
use crate::modules::{refusals, variables};
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::respond::{Filtered, HeaderFilter, Refused};
use crate::request::{Method, Request, Text, body};
use crate::snapshot::ThreadSnapshot;
use crate::status::rules;
use runtime::clock;
use std::cell::Cell;
use std::io;
use std::sync::{Arc, LazyLock};
use waf::{Connection, Intervention, Memory, Now, Store, Transaction};

/// Used transactions that a thread keeps for a configuration: each remembers values, and so is worth more than a new one.
const KEEP: usize = 64;
/// Rules that are named where a refused request is asked about.
const SHOWN_RULES: usize = 8;
/// nginx's status for a connection that is closed without an answer.
const CLOSE: u16 = 444;

/// Collections that outlive requests, for all threads and all configurations.
pub(super) static STORE: LazyLock<Arc<Memory>> = LazyLock::new(Arc::default);

/// One request under a rule set.
pub struct Watch {
    set: Arc<RuleSet>,
    /// What it is called in the audit log.
    id: Text,
    transaction: Box<Transaction>,
    /// Phase 2 has been run.
    request_done: bool,
    /// Phase 3 has been run, or it will not be: the answer is the engine's own.
    answer_seen: bool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("request_done", &self.request_done).finish_non_exhaustive()
    }
}

fn now() -> Now {
    thread_local! {
        // The quarter of an hour that it was asked for in, and what local time is ahead of UTC then.
        static OFFSET: Cell<(u64, i32)> = const { Cell::new((u64::MAX, 0)) };
    }
    let epoch_ms = clock::wall_ms();
    // Clocks are changed at full quarters of an hour.
    let quarter = epoch_ms / 900_000;
    if OFFSET.get().0 != quarter {
        OFFSET.set((quarter, log::offset_seconds() as i32));
    }
    Now { epoch_ms, utc_offset_s: OFFSET.get().1 }
}

/// A transaction for a request: one that has been used before, if there is one.
fn take(snapshot: &ThreadSnapshot, set: &Arc<RuleSet>) -> Watch {
    let (now, store, rules) = (now(), Some(STORE.clone() as Arc<dyn Store>), set.rules.clone());
    let mut used = snapshot.judges.borrow_mut();
    // The last one is the likeliest to be in the processor's caches.
    let at = used.iter().rposition(|t| Arc::ptr_eq(t.rules(), &rules));
    let transaction = match at.map(|at| used.swap_remove(at)) {
        Some(mut transaction) => {
            transaction.recycle(rules, store, now);
            transaction
        }
        None => Box::new(Transaction::new(rules, store, now)),
    };
    Watch { set: set.clone(), id: Text::EMPTY, transaction, request_done: false, answer_seen: false }
}

/// The first step, before the rewrites of a location: phase 1.
pub fn begin(r: &mut Request) -> Verdict {
    if !r.is_main() || r.flow.error_page || r.ctx.modsecurity.is_some() {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.modsecurity;
    let Some(set) = conf.running() else { return Verdict::Decline };
    let id = match &*conf.settings.modsecurity_transaction_id {
        Some(id) => id.eval(r),
        None => variables::request_id(r).unwrap_or(Text::EMPTY),
    };
    let mut watch = take(&snapshot, set);
    watch.id = id;
    let t = &mut watch.transaction;
    t.unique_id(r.get(id));
    t.connection(&ends(r));
    let refused = t.uri(r.get(r.head.method_name), r.get(r.head.target), protocol(r)).or_else(|| {
        let lines = r.head.headers.lines().iter();
        t.request_headers(lines.map(|l| (r.get(l.name), r.get(l.value))))
    });
    settle(r, watch, refused)
}

fn ends(r: &Request) -> Connection {
    let ip = |address: &Address| match address {
        Address::Inet(a) => (Some(a.ip()), a.port()),
        Address::Unix(_) => (None, 0),
    };
    let (client, client_port) = ip(&r.client.remote.borrow());
    let (server, server_port) = ip(&crate::worker::local_address(&r.client));
    Connection { client, client_port, server, server_port }
}

fn protocol(r: &Request) -> &[u8] {
    r.head.headers.head.protocol.map_or(&b"HTTP/1.1"[..], |p| r.get(Text::Own(p)))
}

/// Gives the request its transaction back and says what becomes of it.
fn settle(r: &mut Request, mut watch: Watch, refused: Option<Intervention>) -> Verdict {
    report(r, &mut watch, refused.as_ref());
    watch.answer_seen |= refused.is_some();
    r.ctx.modsecurity = Some(watch);
    match refused {
        None => Verdict::Decline,
        Some(refused) => {
            note(r, &refused);
            let refused = answer(r, refused);
            r.instead(refused)
        }
    }
}

/// Remembers which rules have led to a refusal, for who is asked about its id.
fn note(r: &mut Request, refused: &Intervention) {
    let Some(watch) = r.ctx.modsecurity.take() else { return };
    let mut why = String::new();
    for found in watch.transaction.matches().iter().filter(|found| found.log).take(SHOWN_RULES) {
        why.push_str(if why.is_empty() { "rule " } else { "; rule " });
        why.push_str(&format!("{} ({}): {}", found.id, found.variable, found.msg));
    }
    if why.is_empty() {
        why.push_str(&refused.log);
    }
    let id = watch.id;
    r.ctx.modsecurity = Some(watch);
    refusals::refused_as(r, id, refused.status, "modsecurity", format_args!("{why}"));
}

/// `$modsecurity_rules`
pub(super) fn rules_hit(r: &mut Request) -> Option<Text> {
    let Some(watch) = r.ctx.modsecurity.take() else { return r.ctx.modsecurity_rules };
    let text = ids_of(r, &watch.transaction);
    r.ctx.modsecurity = Some(watch);
    text
}

/// The ids of the rules that have matched and are logged.
fn ids_of(r: &mut Request, transaction: &Transaction) -> Option<Text> {
    let mut ids = transaction.matches().iter().filter(|found| found.log).map(|found| found.id);
    let mut text = ids.next()?.to_string();
    ids.for_each(|id| text += &format!(",{id}"));
    Some(r.text(text.as_bytes()))
}

/// What is answered for an intervention.
fn answer(r: &mut Request, refused: Intervention) -> Refused {
    if refused.drop {
        r.flow.keepalive = false;
        return Refused { status: CLOSE, location: None };
    }
    Refused { status: refused.status, location: refused.redirect.map(|to| to.into_bytes().into()) }
}

/// Writes what the rules have to say to the error log: refusals as errors, the rest as information.
fn report(r: &Request, watch: &mut Watch, refused: Option<&Intervention>) {
    if refused.is_none() && !watch.transaction.has_log_lines() {
        return;
    }
    let wanted = *r.conf().modsecurity.settings.modsecurity_use_error_log;
    let (errors, others) = (wanted && r.logs(log::error::Level::Error), wanted && r.logs(log::error::Level::Info));
    watch.transaction.log_lines(
        |refuses| if refuses { errors } else { others },
        |refuses, line| match refuses {
            true => log_error!(r, Error, "[client {}] {line}", r.client.remote.borrow().host()),
            false => log_error!(r, Info, "{line}"),
        },
    );
    // A limit's or a fault's own: no rule stands for it.
    if let Some(refused) = refused.filter(|i| errors && i.rule == 0) {
        log_error!(r, Error, "[client {}] {}", r.client.remote.borrow().host(), refused.log);
    }
}

/// In the preaccess phase: the body is read and handed over, if rules want it.
pub const BODY: Handler = Handler::Later(wants_body, read_body);

fn wants_body(r: &Request) -> bool {
    let wants = |w: &Watch| !w.request_done && w.transaction.wants_request_body();
    r.is_main() && r.body.is_present() && r.ctx.modsecurity.as_ref().is_some_and(wants)
}

fn read_body(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        if let Some(length) = r.head.headers.content_length
            && let Some(mut watch) = r.ctx.modsecurity.take()
        {
            let refused = watch.transaction.request_body_length(length);
            let verdict = settle(r, watch, refused);
            if verdict != Verdict::Decline {
                return verdict;
            }
        }
        let stored = match body::read_all(r).await {
            Ok(stored) => stored,
            Err(e) => return e.into(),
        };
        let Some(mut watch) = r.ctx.modsecurity.take() else { return Verdict::Decline };
        match hand_over(&mut watch.transaction, &stored) {
            Ok(refused) => settle(r, watch, refused),
            Err(e) => {
                r.ctx.modsecurity = Some(watch);
                log_error!(r, Crit, "pread() of a request body failed ({})", log::os_error(&e));
                Verdict::Status(500)
            }
        }
    })
}

fn hand_over(t: &mut Transaction, stored: &body::Stored) -> io::Result<Option<Intervention>> {
    let mut refused = None;
    if let Some(file) = &stored.file {
        let (mut room, whole) = (Vec::new(), Chunk::File { file: &file.fd, offset: 0, len: stored.len });
        whole.pieces(true, &mut room, |piece, _| {
            if refused.is_none() && !t.request_body_is_full() {
                refused = t.request_body(piece);
            }
            Ok(())
        })?;
    } else {
        refused = t.request_body(&stored.memory);
    }
    Ok(refused)
}

/// Behind it: phase 2.
pub fn judge_request(r: &mut Request) -> Verdict {
    let Some(mut watch) = r.ctx.modsecurity.take() else { return Verdict::Decline };
    if std::mem::replace(&mut watch.request_done, true) {
        r.ctx.modsecurity = Some(watch);
        return Verdict::Decline;
    }
    let refused = watch.transaction.request_body_end();
    settle(r, watch, refused)
}

/// The header filter: phase 3, and phase 4 where no body is looked at.
pub const ANSWER_FILTER: HeaderFilter = filter;

fn filter(r: &mut Request) -> Filtered {
    let Some(mut watch) = r.ctx.modsecurity.take() else { return Filtered::Next };
    if !r.is_main() || std::mem::replace(&mut watch.answer_seen, true) {
        r.ctx.modsecurity = Some(watch);
        return Filtered::Next;
    }
    let t = &mut watch.transaction;
    let mut refused = answer_head(r, t);
    if refused.is_none() {
        if t.wants_response_body() && has_plain_body(r) {
            r.answer.in_memory = true;
            let holds = t.may_refuse();
            if holds {
                r.hold_head();
            }
            r.answer.body_filters.push(Box::new(Judge { holds, done: false, room: Vec::new() }));
        } else {
            refused = t.response_body_end();
        }
    }
    match settle(r, watch, refused) {
        Verdict::Decline => Filtered::Next,
        verdict => Filtered::Instead(verdict),
    }
}

fn answer_head(r: &Request, t: &mut Transaction) -> Option<Intervention> {
    let h = &r.answer.headers;
    let (mut kind, mut length) = (Vec::new(), Vec::new());
    if h.content_type.is_some() {
        h.write_content_type(&r.arena, &mut kind);
    }
    if let Some(n) = h.content_length {
        crate::request::status::write_decimal(n, &mut length);
    }
    let changed = h.last_modified.filter(|_| !h.has(K::LastModified)).map(wire::date::format_http);
    let made = [
        (&b"Content-Type"[..], kind.as_slice()),
        (b"Content-Length", length.as_slice()),
        (b"Last-Modified", changed.as_ref().map_or(&[][..], |text| &text[..])),
    ];
    let made = made.into_iter().filter(|(_, value)| !value.is_empty());
    let lines = h.lines.iter().map(|l| (r.get(l.name), r.get(l.value)));
    t.response_headers(h.status, b"HTTP/1.1", made.chain(lines))
}

/// Whether there is a body that rules can read: not packed, and not put together of parts that the filters see later (`slice`).
fn has_plain_body(r: &Request) -> bool {
    let h = &r.answer.headers;
    r.head.method != Method::Head
        && !r.answer.header_only
        && h.status >= 200
        && !matches!(h.status, 204 | 304)
        && !h.has(K::ContentEncoding)
        && r.ctx.slice.is_none()
}

/// The body filter: the body goes to the engine, which keeps it until phase 4 has been run, where that may still refuse it.
struct Judge {
    /// The head is held, and nothing goes on before the verdict.
    holds: bool,
    /// Phase 4 has been run.
    done: bool,
    /// Where pieces of files are read to.
    room: Vec<u8>,
}

impl BodyFilter for Judge {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if self.done {
            return rest.push(r, chunk, last);
        }
        let Some(mut watch) = r.ctx.modsecurity.take() else { return rest.push(r, chunk, last) };
        let t = &mut watch.transaction;
        let mut refused = None;
        let mut taken = 0;
        chunk.pieces(last, &mut self.room, |piece, _| {
            let before = t.response_body_taken().len();
            if refused.is_none() && !t.response_body_is_full() {
                refused = t.response_body(piece);
            }
            taken += (t.response_body_taken().len() - before) as u64;
            Ok(())
        })?;
        self.done = last || taken < chunk.len() || refused.is_some();
        if self.done && refused.is_none() {
            refused = t.response_body_end();
        }
        report(r, &mut watch, refused.as_ref());
        if let Some(refused) = refused {
            r.ctx.modsecurity = Some(watch);
            note(r, &refused);
            return Err(answer(r, refused).into());
        }
        let sent = if !self.holds {
            rest.push(r, chunk, last)
        } else if self.done {
            self.let_go(r, &watch, chunk.cut(taken, u64::MAX), last, &mut rest)
        } else {
            Ok(())
        };
        r.ctx.modsecurity = Some(watch);
        sent
    }
}

impl Judge {
    /// Sends the head, what the engine has, and what it had no room for.
    fn let_go(
        &self,
        r: &mut Request,
        watch: &Watch,
        more: Chunk<'_>,
        last: bool,
        rest: &mut Rest<'_>,
    ) -> io::Result<()> {
        r.release_head();
        let held = watch.transaction.response_body_taken();
        let mut pieces = held.chunks(PIECE as usize).peekable();
        while let Some(piece) = pieces.next() {
            rest.push(r, Chunk::Bytes(piece), last && more.is_empty() && pieces.peek().is_none())?;
        }
        if !more.is_empty() || held.is_empty() {
            rest.push(r, more, last)?;
        }
        Ok(())
    }
}

/// The logger: phase 5, the line of the audit log, and the transaction is free for the next request.
pub fn logger(r: &mut Request) {
    let Some(mut watch) = r.ctx.modsecurity.take() else { return };
    watch.transaction.logging(r.status());
    report(r, &mut watch, None);
    let t = &watch.transaction;
    // Not by the module's own switch: nobody else says that rules were passed over.
    if let Some(line) = t.given_up() {
        log_error!(r, Error, "[client {}] {line}", r.client.remote.borrow().host());
    }
    let seen = rules::Seen { refused: t.intervention().is_some(), given_up: t.fault().is_some() };
    rules::count(seen, t.matches().iter().filter(|m| m.log).map(|m| m.id));
    r.ctx.modsecurity_rules = ids_of(r, &watch.transaction);
    let snapshot = r.snapshot.clone();
    if let Some(file) = watch.set.audit.filter(|_| watch.transaction.is_audited()) {
        let mut bytes = snapshot.lines.take(file);
        let start = bytes.len();
        bytes.extend_from_slice(watch.transaction.audit_line(crate::request::respond::SERVER_VERSION).as_bytes());
        bytes.push(b'\n');
        lines::add(&snapshot, file, bytes, start);
    }
    let mut used = snapshot.judges.borrow_mut();
    if used.len() < KEEP {
        // What a body of megabytes took is not kept so many times.
        watch.transaction.rest();
        used.push(watch.transaction);
    }
}
