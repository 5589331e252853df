//! What people look at: groups of channels, which clients may limit too (`nchan_group_location`), the sums of all channels (`nchan_stub_status`),
//! who subscribes (`nchan_subscriber_info`), what commands to a Redis took (`nchan_redis_upstream_stats`).

use super::answer::{self, Form};
use super::{Conf, hub, info, names, redis};
use crate::config::{Scope, complex::Complex, setters};
use crate::log_error;
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request, Text};
use conf::{Node, Problem, value};
use push::Lasting;
use std::sync::atomic::Ordering::Relaxed;

/// What clients may do with a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Methods {
    get: bool,
    set: bool,
    delete: bool,
}

/// `nchan_group_location`
pub(super) fn location(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut methods = Methods::default();
    for word in &node.args {
        match word.text.to_ascii_lowercase().as_slice() {
            b"get" => methods.get = true,
            b"set" | b"post" => methods.set = true,
            b"delete" => methods.delete = true,
            b"off" => return Ok(()),
            _ => return Err(node.problem(format!("invalid {} value: {}", node.name.as_str(), word.as_str()))),
        }
    }
    if node.args.is_empty() {
        methods = Methods { get: true, set: true, delete: true };
    }
    scope.level.conf.nchan.group_methods = methods;
    scope.level.conf.core.handler = Some(Content::Now(handler));
    Ok(())
}

fn handler(r: &mut Request) -> Verdict {
    answer_group(r).unwrap_or_else(|verdict| verdict)
}

fn answer_group(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    if !answer::admit_origin(r, conf) {
        return Err(answer::empty(r, 403));
    }
    if !*conf.accounting {
        return Err(answer::plain(r, 403, "Channel group accounting is disabled."));
    }
    let name = names::group(r, conf);
    if name.is_empty() {
        return Err(answer::plain(r, 400, "No group specified"));
    }
    let may = conf.group_methods;
    match r.head.method {
        Method::Get | Method::Head if may.get => Ok(show(r, &name)),
        Method::Post if may.set => {
            limit(r, conf, Lasting::Always)?;
            Ok(show(r, &name))
        }
        Method::Delete if may.delete => {
            let shown = show(r, &name);
            hub::store().delete_group(&name, hub::now());
            Ok(shown)
        }
        Method::Options => Ok(answer::options(r, "Content-Type", "GET, POST, DELETE")),
        _ => Err(answer::empty(r, 403)),
    }
}

fn show(r: &mut Request, name: &[u8]) -> Verdict {
    let group = hub::store().group(name);
    let form = Form::of(r);
    let text = answer::group(&group.totals(), &group.limits(), form);
    answer::said(r, 200, form, text.as_bytes())
}

/// Gives the request's group the limits that its location names. On `Err` one of them is no number, or there is no room for another group, and
/// the client is told. A group of which nothing else is there is forgotten after some time: any client may name groups where its request does.
pub(super) fn set_limits(r: &mut Request, conf: &Conf) -> Result<(), Verdict> {
    limit(r, conf, Lasting::Since(hub::now()))
}

fn limit(r: &mut Request, conf: &Conf, lasting: Lasting) -> Result<(), Verdict> {
    let all = [&conf.max_channels, &conf.max_subscribers, &conf.max_messages, &conf.max_memory, &conf.max_disk];
    if !*conf.accounting || all.iter().all(|value| value.is_empty()) {
        return Ok(());
    }
    let mut read = |text: &Complex| -> Result<Option<u64>, Verdict> {
        let text = text.eval(r);
        let text = r.get(text);
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = value::offset(text);
        if parsed.is_none() {
            log_error!(r, Error, "group limit \"{}\" is no number", String::from_utf8_lossy(text));
        }
        parsed.map(Some).ok_or(Verdict::Decline)
    };
    let mut limits = [None; 5];
    for (limit, text) in limits.iter_mut().zip(all) {
        match read(text) {
            Ok(read) => *limit = read,
            Err(_) => return Err(answer::plain(r, 403, "Invalid group limit.")),
        }
    }
    let name = names::group(r, conf);
    let [channels, subscribers, messages, memory, disk] = limits;
    let limited = hub::store().limit_group(&name, lasting, |l| {
        l.channels = channels.unwrap_or(l.channels);
        l.subscribers = subscribers.unwrap_or(l.subscribers);
        l.messages = messages.unwrap_or(l.messages);
        l.memory = memory.unwrap_or(l.memory);
        l.disk = disk.unwrap_or(l.disk);
    });
    limited.map_err(|why| answer::refused(r, why))
}

/// What subscribers say of themselves where nothing else is asked for.
const USUAL_INFO: &[u8] =
    b"$nchan_subscriber_type $remote_addr:$remote_port $http_user_agent $server_name $request_uri $pid";

/// `nchan_subscriber_info`: from now on subscribers say who they are when they come.
pub(super) fn subscriber_info(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let usual = Complex::compile_bytes(scope.build, USUAL_INFO).map_err(|text| node.problem(text))?;
    scope.build.main.nchan.info = Some(usual);
    scope.level.conf.core.handler = Some(Content::Now(show_info));
    Ok(())
}

/// A line for each subscriber of the location's channels, in the order of their coming.
fn show_info(r: &mut Request) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    if !answer::admit_origin(r, conf) {
        return answer::empty(r, 403);
    }
    match names::channels(r, conf, &conf.subscriber_ids) {
        Ok(names) => {
            let lines = info::lines(names.iter().map(|name| &**name));
            answer::said(r, 200, Form::Plain, &lines)
        }
        Err(verdict) => verdict,
    }
}

/// `nchan_redis_upstream_stats`
pub(super) fn upstream_stats(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    setters::complex(scope.build, &mut scope.level.conf.nchan.redis_stats, node)?;
    if scope.level.conf.nchan.redis_stats.as_fixed().is_some() {
        scope.build.main.nchan.redis_named.push(node.clone());
    }
    scope.level.conf.core.handler = Some(Content::Now(show_stats));
    Ok(())
}

fn show_stats(r: &mut Request) -> Verdict {
    let snapshot = r.snapshot.clone();
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let name = snapshot.location(r.location).conf.nchan.redis_stats.eval(r);
    let Some(json) = redis::backend::stats(&snapshot, r.get(name)) else {
        return answer::plain(r, 404, "There is no such upstream, or it keeps no statistics.");
    };
    r.answer.headers.content_type = Some(Text::from("application/json"));
    r.respond(200, json.as_bytes())
}

/// `nchan_stub_status`: nchan's rows; those of messages between processes are 0, since there are none. One of our own at the
/// end: subscribers that were too slow.
pub(super) fn stub_status(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let sums = hub::store().sums();
    let (up, down, commands, waiting) = redis::backend::sums();
    let page = format!(
        "total published messages: {}\nstored messages: {}\nshared memory used: {}K\nshared memory limit: {}K\n\
         channels: {}\nsubscribers: {}\nredis pending commands: {waiting}\nredis connected servers: {up}\n\
         redis unhealthy upstreams: {down}\ntotal redis commands sent: {commands}\ntotal interprocess alerts received: 0\n\
         interprocess alerts in transit: 0\ninterprocess queued alerts: 0\ntotal interprocess send delay: 0\n\
         total interprocess receive delay: 0\nnchan version: 1.3.6\n\
         subscribers dropped: {}\n",
        sums.published,
        sums.messages,
        sums.memory.div_ceil(1024),
        sums.limit / 1024,
        sums.channels,
        sums.subscribers,
        hub::DROPPED.load(Relaxed)
    );
    r.answer.headers.content_type = Some(Text::from("text/plain"));
    r.respond(200, page.as_bytes())
}
