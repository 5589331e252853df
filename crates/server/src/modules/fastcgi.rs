//! `fastcgi_pass` and its companions (nginx's `ngx_http_fastcgi_module`): what is sent to an application. Its answer goes
//! the way of `proxy_pass`'s answers; records are taken apart in `upstream::fastcgi`.

use super::ignored;
use super::proxy::{self, store_access_value, store_value};
use super::upstream_block::group_for;
use crate::cache::settings;
use crate::cache_directives;
use crate::config::complex::Complex;
use crate::config::pattern::Pattern;
use crate::config::set::{self, duplicate};
use crate::config::setting::Setting;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Level, Scope, http};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Request, Text, Version};
use crate::upstream::group::GroupId;
use crate::upstream::job::{FastCgi, Job, JobBody, Protocol};
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::{names, retry};
use crate::upstream_directives;
use conf::{Node, Problem, value};
use std::sync::{Arc, OnceLock};

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("fastcgi_pass", fastcgi_pass),
    http("fastcgi_param", fastcgi_param),
    http("fastcgi_index", |s, n| set::value(&mut own(s).index, n, n.args[0].text.as_slice().into())),
    http("fastcgi_split_path_info", split_path_info),
    http("fastcgi_keep_conn", |s, n| set::flag(&mut own(s).keep_conn, n)),
    http("fastcgi_catch_stderr", |s, n| {
        Arc::make_mut(own(s).catch_stderr.entry()).push(n.args[0].text.as_slice().into());
        Ok(())
    }),
    http("fastcgi_next_upstream", |s, n| {
        let unknown = |w: &&(&str, u32)| !matches!(w.0, "http_502" | "http_504");
        let words: Vec<(&str, u32)> = next::WORDS.iter().filter(unknown).copied().collect();
        set::bits(s.build, &mut s.level.conf.fastcgi.answers.upstream.next_upstream, n, &words)
    }),
    http("fastcgi_buffering", |s, n| set::flag(&mut answers(s).buffering, n)),
    http("fastcgi_request_buffering", |s, n| set::flag(&mut answers(s).request_buffering, n)),
    http("fastcgi_buffers", |s, n| {
        let invalid = || set::invalid(n);
        let number = value::number(&n.args[0].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        let size = value::size(&n.args[1].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        set::value(&mut answers(s).buffers, n, (number, size))
    }),
    http("fastcgi_busy_buffers_size", |s, n| proxy::optional_size(s, n, |s| &mut answers(s).busy_buffers_size)),
    http("fastcgi_max_temp_file_size", |s, n| set::size(&mut answers(s).max_temp_file_size, n)),
    http("fastcgi_temp_file_write_size", |s, n| proxy::optional_size(s, n, |s| &mut answers(s).temp_file_write_size)),
    http("fastcgi_temp_path", |s, n| {
        let path = super::core::temp_path(s, n)?;
        set::value(&mut answers(s).temp_path, n, path)
    }),
    http("fastcgi_send_lowat", ignored::size),
    http("fastcgi_ignore_client_abort", |s, n| set::flag(&mut answers(s).ignore_client_abort, n)),
    http("fastcgi_limit_rate", |s, n| {
        set::complex_size(s.build, &mut s.level.conf.fastcgi.answers.upstream.limit_rate, n)
    }),
    http("fastcgi_pass_request_headers", |s, n| set::flag(&mut answers(s).pass_request_headers, n)),
    http("fastcgi_pass_request_body", |s, n| set::flag(&mut answers(s).pass_request_body, n)),
    http("fastcgi_force_ranges", |s, n| set::flag(&mut answers(s).force_ranges, n)),
    http("fastcgi_store", |s, n| {
        let cache = &s.level.conf.fastcgi.answers.cache;
        if n.args[0] != "off" && cache.cache.is_set() && cache.is_on() {
            return Err(n.problem("\"fastcgi_store\" is incompatible with \"fastcgi_cache\"".to_owned()));
        }
        let store = store_value(s, n)?;
        set::value(&mut answers(s).store, n, store)
    }),
    http("fastcgi_store_access", |s, n| {
        let mode = store_access_value(n)?;
        set::value(&mut answers(s).store_access, n, mode)
    }),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("fastcgi", fastcgi);

/// The directives of the cache.
pub const CACHE_DIRECTIVES: &[Directive] = cache_directives!("fastcgi", fastcgi);

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "fastcgi_script_name", evaluate: script_name, volatile: true, assign: None },
    Builtin { name: "fastcgi_path_info", evaluate: |r| Some(split(r).1), volatile: true, assign: None },
];

/// The module's name in the cache: the prefix of its directives.
const OWNER: &str = "fastcgi";

/// Parameters that are there unless the configuration has them; all but the first only where there is a cache, which wants
/// whole answers (`ngx_http_fastcgi_cache_headers`).
const PARAMS: [(&str, &str); 7] = [
    ("HTTP_HOST", "$host$is_request_port$request_port"),
    ("HTTP_IF_MODIFIED_SINCE", "$upstream_cache_last_modified"),
    ("HTTP_IF_UNMODIFIED_SINCE", ""),
    ("HTTP_IF_NONE_MATCH", "$upstream_cache_etag"),
    ("HTTP_IF_MATCH", ""),
    ("HTTP_RANGE", ""),
    ("HTTP_IF_RANGE", ""),
];

/// Headers of answers that clients do not get unless `fastcgi_pass_header` says so.
const HIDDEN: [&[u8]; 6] = [
    b"status",
    b"x-accel-expires",
    b"x-accel-redirect",
    b"x-accel-limit-rate",
    b"x-accel-buffering",
    b"x-accel-charset",
];

crate::settings! {
    /// Values that `proxy_pass` does not have.
    pub struct Own {
        /// `fastcgi_param`, inherited only where none is set.
        params: Arc<Vec<Param>> = Arc::default(),
        /// `fastcgi_index`
        index: Arc<[u8]> = Arc::from(&b""[..]),
        /// `fastcgi_split_path_info`
        split: Option<Pattern> = None,
        /// Connections stay open.
        keep_conn: bool = false,
        /// Words on the error stream that make an answer a bad one.
        catch_stderr: Arc<Vec<Box<[u8]>>> = Arc::default(),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    own: Own,
    /// What is done with answers: the same as with those of `proxy_pass`.
    answers: proxy::Conf,
    pass: Option<Arc<Pass>>,
    /// Parameters as they are sent, and as they are when the answer may go into the cache.
    ready: Arc<Ready>,
    ready_for_cache: Arc<Ready>,
}

proxy::answers_as_proxy!(Conf);
crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.answers.merge(&parent.answers);
    }
}

/// One parameter.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<[u8]>,
    value: Complex,
    /// `if_not_empty`
    skip_empty: bool,
}

/// Where `fastcgi_pass` leads.
#[derive(Debug)]
struct Pass {
    to: Complex,
    node: Node,
    /// Without variables: found when levels are merged.
    group: OnceLock<GroupId>,
}

#[derive(Debug, Default)]
struct Ready {
    params: Vec<Param>,
    /// Headers that a parameter stands for, in lower case and with underscores: the client's own are not passed.
    replaced: Vec<Box<[u8]>>,
}

fn own<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Own {
    &mut scope.level.conf.fastcgi.own
}

fn answers<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut UpstreamSettings {
    &mut scope.level.conf.fastcgi.answers.upstream
}

fn fastcgi_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.fastcgi.pass.is_some() {
        return Err(duplicate(node));
    }
    let to = Complex::compile(scope.build, &node.args[0])?;
    scope.level.conf.core.auto_redirect = scope.level.name.ends_with(b"/");
    scope.level.conf.core.handler = Some(Content::Later(run));
    scope.level.conf.fastcgi.pass = Some(Arc::new(Pass { to, node: node.clone(), group: OnceLock::new() }));
    Ok(())
}

fn fastcgi_param(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let skip_empty = match node.args.get(2) {
        None => false,
        Some(w) if *w == "if_not_empty" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    let value = Complex::compile(scope.build, &node.args[1])?;
    let name = node.args[0].text.as_slice().into();
    Arc::make_mut(own(scope).params.entry()).push(Param { name, value, skip_empty });
    Ok(())
}

fn split_path_info(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let pattern = Pattern::compile(scope.build, &word.text, false).map_err(|t| node.problem(t))?;
    if pattern.groups() != 2 {
        return Err(node.problem(format!("pattern \"{}\" must have 2 captures", word.as_str())));
    }
    own(scope).split.force(Some(pattern));
    Ok(())
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_fastcgi_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut Level, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.fastcgi.pass, |c| &mut c.fastcgi.pass, Content::Later(run));
    let conf = &mut level.conf.fastcgi;
    conf.answers.cache.finish_level(build, OWNER);
    if conf.answers.cache.is_on() && conf.answers.cache.key.is_none() {
        let text = "no \"fastcgi_cache_key\" for \"fastcgi_cache\"";
        if !build.problems.iter().any(|p| p.message == text) {
            build.problems.push(Problem::warn(build.http_end, text));
        }
    }
    if let Err(text) = conf.answers.upstream.check_sizes(OWNER) {
        build.http_problem(text);
    }
    let Some(pass) = conf.pass.clone() else { return };
    if conf.answers.upstream.temp_path.dir.as_os_str().is_empty() {
        let dir = build.full_path(b"fastcgi_temp");
        conf.answers.upstream.temp_path.force(crate::temp::TempPath { dir, levels: vec![1, 2] });
    }
    build.directories.push(conf.answers.upstream.temp_path.dir.clone());
    if let Some(fixed) = pass.to.as_fixed()
        && pass.group.get().is_none()
    {
        match group_for(build, &String::from_utf8_lossy(fixed), 0) {
            Ok(id) => {
                let _ = pass.group.set(id);
            }
            Err(e) => build.problems.push(pass.node.problem(e)),
        }
    }
    // Bodies of unknown length can be streamed: records need no announcement.
    conf.answers.http_version = Setting::unset(Version::HTTP11);
    conf.answers.for_answers(&HIDDEN);
    conf.answers.cache.convert_head = Setting::unset(false);
    conf.ready = Arc::new(ready(build, &conf.own.params, &PARAMS[..1]));
    if conf.answers.cache.is_on() {
        conf.ready_for_cache = Arc::new(ready(build, &conf.own.params, &PARAMS));
    }
}

fn ready(build: &mut Build<'_>, written: &[Param], defaults: &[(&str, &str)]) -> Ready {
    let mut params = written.to_vec();
    for (name, value) in defaults {
        if !params.iter().any(|p| p.name.eq_ignore_ascii_case(name.as_bytes())) {
            let value = Complex::compile_bytes(build, value.as_bytes()).expect("it is well formed");
            params.push(Param { name: name.as_bytes().into(), value, skip_empty: true });
        }
    }
    let header = |p: &Param| p.name.strip_prefix(b"HTTP_").filter(|n| !n.is_empty()).map(<[u8]>::to_ascii_lowercase);
    let replaced = params.iter().filter_map(|p| header(p).map(Into::into)).collect();
    // A header with the empty text is only taken away.
    params.retain(|p| header(p).is_none() || !p.value.is_empty());
    Ready { params, replaced }
}

/// `fastcgi_split_path_info`: the script's name and what follows it.
fn split(r: &mut Request) -> (Text, Text) {
    let shot = r.shot.clone();
    let uri = r.uri;
    let Some(pattern) = &*shot.location(r.location).conf.fastcgi.own.split else { return (uri, Text::EMPTY) };
    // The request's own captures are not to be lost.
    let before = std::mem::take(&mut r.captures);
    // One that gives up is a fault: nothing is sent.
    let found = pattern.exec(r, uri).unwrap_or(false).then(|| (r.capture(1), r.capture(2)));
    r.captures = before;
    match found {
        Some((name, info)) => (name.unwrap_or(Text::EMPTY), info.unwrap_or(Text::EMPTY)),
        None => (uri, Text::EMPTY),
    }
}

fn script_name(r: &mut Request) -> Option<Text> {
    let (name, _) = split(r);
    if !r.get(name).ends_with(b"/") {
        return Some(name);
    }
    let index = r.conf().fastcgi.own.index.clone();
    let whole = [r.get(name), &index].concat();
    Some(r.text(&whole))
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let verdict = handle(r).await.unwrap_or_else(|verdict| verdict);
        // What the cache has to do with it ends here.
        r.ctx.cache = None;
        verdict
    })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.fastcgi;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    if !r.attempts.all.is_empty() {
        r.attempts.all.push(crate::upstream::Attempt { gap: true, ..Default::default() });
    }
    r.attempts.scheme = crate::upstream::fastcgi::SCHEME;
    r.attempts.uri = None;
    let group = match pass.group.get() {
        Some(id) => shot.groups[id.0 as usize].clone(),
        None => {
            let text = pass.to.eval(r);
            let target = String::from_utf8_lossy(r.get(text)).into_owned();
            names::group(r, &target).await?
        }
    };
    let body = proxy::request_body(r, &conf.answers).await?;
    if conf.answers.cache.is_on()
        && let Some(verdict) = proxy::cache::look_for(r, &conf.answers, OWNER, |_| Text::EMPTY).await
    {
        return Ok(verdict);
    }
    let keep = *conf.own.keep_conn;
    let (head, body) = records(r, conf, keep, body);
    let local = conf.answers.upstream.bind.as_ref().and_then(|address| {
        let text = address.address.eval(r);
        proxy::parse_local(r.get(text))
    });
    let keepalive = keep && group.keepalive.connections.is_some() && local.is_none();
    let protocol = Protocol::FastCgi(FastCgi { keep, caught: (*conf.own.catch_stderr).clone() });
    let job = Job { group, head, body, is_head: false, keepalive, local, protocol };
    Ok(match retry::find_answer(r, &job, &conf.answers.upstream).await {
        Ok(answer) => proxy::pass_on(r, &conf.answers, &job, answer).await,
        Err(v) if r.ctx.cache.is_some() => proxy::cache::failed(r, &conf.answers, v),
        Err(v) => v,
    })
}

/// The records of the request. A body in memory is among them; another is left to be sent after them.
fn records(r: &mut Request, conf: &Conf, keep: bool, body: JobBody) -> (Vec<u8>, JobBody) {
    let mut content = Vec::new();
    let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
    let ready = if cacheable { &conf.ready_for_cache } else { &conf.ready };
    for param in &ready.params {
        let value = param.value.eval(r);
        if !param.skip_empty || !r.get(value).is_empty() {
            wire::fastcgi::param(&[&param.name], &[r.get(value)], &mut content);
        }
    }
    if *conf.answers.upstream.pass_request_headers {
        headers(r, ready, &mut content);
    }
    let mut out = Vec::new();
    wire::fastcgi::begin(keep, &mut out);
    wire::fastcgi::params(&content, &mut out);
    let left = match body {
        JobBody::Stored(stored) if stored.file.is_none() => {
            wire::fastcgi::stdin(&stored.memory, &mut out);
            JobBody::None
        }
        left => left,
    };
    if matches!(left, JobBody::None) {
        wire::fastcgi::end_of_stdin(&mut out);
    }
    (out, left)
}

/// The client's headers as parameters; those of one name are one.
fn headers(r: &Request, ready: &Ready, out: &mut Vec<u8>) {
    let lines = r.headers_in.lines();
    let name_of = |i: usize| r.arena.span(lines[i].name);
    for i in 0..lines.len() {
        let name = name_of(i);
        let is_same = |other: usize| name_of(other).eq_ignore_ascii_case(name);
        if (0..i).any(is_same) {
            continue;
        }
        let plain = |b: &u8| if *b == b'-' { b'_' } else { b.to_ascii_lowercase() };
        let lower: Vec<u8> = name.iter().map(plain).collect();
        if ready.replaced.iter().any(|n| **n == *lower) {
            continue;
        }
        let separator: &[u8] = if lower == b"cookie" { b"; " } else { b", " };
        let mut value = vec![r.arena.span(lines[i].value)];
        for other in (i + 1..lines.len()).filter(|other| is_same(*other)) {
            value.extend([separator, r.arena.span(lines[other].value)]);
        }
        wire::fastcgi::param(&[b"HTTP_", &lower.to_ascii_uppercase()], &value, out);
    }
}
