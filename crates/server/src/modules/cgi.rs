//! What FastCGI, uwsgi and SCGI share: the place that a request is passed to, parameters in place of a head, and the way of a request.
//! How parameters are put on the wire is each module's; the answers of all three are CGI's (RFC 3875 section 6).

use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::setting::Setting;
use crate::config::{Build, Scope};
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use crate::temp::TempPath;
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::group::{Group, GroupId};
use crate::upstream::job::{Job, JobBody, Protocol};
use crate::upstream::rewrite::Rewrites;
use crate::upstream::{cached, names, pass_on, retry};
use conf::{Node, Problem};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// Parameters that are there unless the configuration has them; all but the first only where there is a cache, which wants
/// whole answers (`ngx_http_fastcgi_cache_headers` and its like).
const DEFAULTS: [(&str, &str); 7] = [
    ("HTTP_HOST", "$host$is_request_port$request_port"),
    ("HTTP_IF_MODIFIED_SINCE", "$upstream_cache_last_modified"),
    ("HTTP_IF_UNMODIFIED_SINCE", ""),
    ("HTTP_IF_NONE_MATCH", "$upstream_cache_etag"),
    ("HTTP_IF_MATCH", ""),
    ("HTTP_RANGE", ""),
    ("HTTP_IF_RANGE", ""),
];

/// Headers of answers that clients do not get unless `*_pass_header` says so.
const HIDDEN: [&[u8]; 6] = [
    b"status",
    b"x-accel-expires",
    b"x-accel-redirect",
    b"x-accel-limit-rate",
    b"x-accel-buffering",
    b"x-accel-charset",
];

/// `fastcgi_param` and its like, as written. A level without any has those of the level around.
pub(super) type Params = Setting<Arc<Vec<Param>>>;

/// One parameter.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<[u8]>,
    value: Complex,
    /// `if_not_empty`
    skip_empty: bool,
}

/// Reads a parameter.
pub(super) fn param(build: &mut Build<'_>, params: &mut Params, node: &Node) -> Result<(), Problem> {
    let skip_empty = match node.args.get(2) {
        None => false,
        Some(w) if *w == "if_not_empty" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    let value = build.for_servers(|build| Complex::compile(build, &node.args[1]))?;
    let name = node.args[0].text.as_slice().into();
    Arc::make_mut(params.entry()).push(Param { name, value, skip_empty });
    Ok(())
}

/// Where `fastcgi_pass` or its like leads.
#[derive(Debug)]
pub(super) struct Pass {
    to: Complex,
    node: Node,
    /// Without variables: found when levels are merged.
    group: OnceLock<GroupId>,
}

impl Pass {
    /// Reads the directive. `before`: what the level has already.
    pub(super) fn read(scope: &mut Scope<'_, '_>, node: &Node, before: bool) -> Result<Option<Arc<Pass>>, Problem> {
        if before {
            return Err(duplicate(node));
        }
        let to = Complex::compile(scope.build, &node.args[0])?;
        scope.level.conf.core.auto_redirect = scope.level.name.ends_with(b"/");
        Ok(Some(Arc::new(Pass { to, node: node.clone(), group: OnceLock::new() })))
    }

    /// Where the directive stands.
    pub(super) fn place_in_text(&self) -> Option<conf::Span> {
        Some(self.node.name.span)
    }

    /// The place, where it has no variables.
    pub(super) fn fixed(&self) -> Option<&[u8]> {
        self.to.as_fixed()
    }

    /// Finds the group of a place without variables, whose name is what `name` makes of it.
    pub(super) fn find(&self, build: &mut Build<'_>, name: impl FnOnce(&[u8]) -> &[u8]) {
        let Some(fixed) = self.to.as_fixed() else { return };
        if self.group.get().is_some() {
            return;
        }
        match super::upstream_block::group_for(build, &String::from_utf8_lossy(name(fixed)), 0) {
            Ok(id) => {
                let _ = self.group.set(id);
            }
            Err(e) => build.problems.push(self.node.problem(e)),
        }
    }

    /// The place that a request is passed to.
    pub(super) fn place<'s>(&'s self, r: &mut Request) -> Cow<'s, [u8]> {
        if let Some(fixed) = self.to.as_fixed() {
            return Cow::Borrowed(fixed);
        }
        let place = self.to.eval(r);
        Cow::Owned(r.get(place).to_vec())
    }

    /// The group of a place.
    pub(super) async fn group(&self, r: &mut Request, place: &[u8]) -> Result<Arc<Group>, Verdict> {
        match self.group.get() {
            Some(id) => Ok(r.snapshot.groups[id.0 as usize].clone()),
            None => names::group(r, &String::from_utf8_lossy(place)).await,
        }
    }
}

/// Parameters as they are sent.
#[derive(Debug, Default)]
struct List {
    params: Vec<Param>,
    /// Headers that a parameter stands for, in lower case and with underscores: the client's own are not passed.
    replaced: Vec<Box<[u8]>>,
}

/// Parameters made ready for requests, and for those whose answer may go into the cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    usual: Arc<List>,
    for_cache: Arc<List>,
}

/// Completes a level, whether it has a pass or not. `owner`: the prefix of the module's directives.
pub(super) fn finish_level(build: &mut Build<'_>, conf: &mut UpstreamConf, owner: &'static str) {
    conf.cache.finish_level(build, owner);
    if conf.cache.is_on() && conf.cache.key.is_none() {
        let text = format!("no \"{owner}_cache_key\" for \"{owner}_cache\"");
        if !build.problems.iter().any(|p| p.message == text) {
            build.problems.push(Problem::warn(build.http_end, text));
        }
    }
    if let Err(text) = conf.check_sizes(owner) {
        build.http_problem(text);
    }
}

/// Completes a level with a pass, and makes the lists (`ngx_http_fastcgi_init_params`).
pub(super) fn make_ready(build: &mut Build<'_>, conf: &mut UpstreamConf, params: &Params, owner: &str) -> Ready {
    if conf.temp_path.dir.as_os_str().is_empty() {
        let dir = build.full_path(format!("{owner}_temp").as_bytes());
        conf.temp_path.force(TempPath { dir, levels: vec![1, 2] });
    }
    build.directories.push(conf.temp_path.dir.clone());
    conf.set_answer_headers(&HIDDEN, Rewrites::default());
    conf.cache.convert_head = Setting::unset(false);
    let usual = Arc::new(list(build, params, &DEFAULTS[..1]));
    let for_cache = if conf.cache.is_on() { Arc::new(list(build, params, &DEFAULTS)) } else { Arc::default() };
    Ready { usual, for_cache }
}

fn list(build: &mut Build<'_>, written: &[Param], defaults: &[(&str, &str)]) -> List {
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
    List { params, replaced }
}

impl Ready {
    /// Hands out the request's parameters, then its headers as parameters: names and values, each in pieces.
    pub(super) fn each(&self, r: &mut Request, pass_headers: bool, mut put: impl FnMut(&[&[u8]], &[&[u8]])) {
        let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
        let list = if cacheable { &self.for_cache } else { &self.usual };
        for param in &list.params {
            let value = param.value.eval(r);
            if !param.skip_empty || !r.get(value).is_empty() {
                put(&[&param.name], &[r.get(value)]);
            }
        }
        if pass_headers {
            headers(r, list, &mut put);
        }
    }
}

/// The client's headers as parameters; those of one name are one.
fn headers(r: &Request, list: &List, put: &mut impl FnMut(&[&[u8]], &[&[u8]])) {
    let lines = r.head.headers.lines();
    let name_of = |i: usize| r.arena.span(lines[i].name);
    for i in 0..lines.len() {
        let name = name_of(i);
        let is_same = |other: usize| name_of(other).eq_ignore_ascii_case(name);
        if (0..i).any(is_same) {
            continue;
        }
        let plain = |b: &u8| if *b == b'-' { b'_' } else { b.to_ascii_lowercase() };
        let lower: Vec<u8> = name.iter().map(plain).collect();
        if list.replaced.iter().any(|n| **n == *lower) {
            continue;
        }
        let separator: &[u8] = if lower == b"cookie" { b"; " } else { b", " };
        let mut value = vec![r.arena.span(lines[i].value)];
        for other in (i + 1..lines.len()).filter(|other| is_same(*other)) {
            value.extend([separator, r.arena.span(lines[other].value)]);
        }
        put(&[b"HTTP_", &lower.to_ascii_uppercase()], &value);
    }
}

/// What a module sends to a peer.
pub(super) struct Sent {
    /// The parameters, and what else comes before the body.
    pub(super) head: Vec<u8>,
    /// What of the body is not in `head`.
    pub(super) body: JobBody,
    /// What the peer speaks.
    pub(super) protocol: Protocol,
    /// The peer leaves the connection open.
    pub(super) keep: bool,
}

/// Notes that a new row of tries begins, of peers called `scheme` in the log.
pub(super) fn begin(r: &mut Request, scheme: &'static str, kind: Kind) {
    if !r.attempts.all.is_empty() {
        r.attempts.all.push(crate::upstream::Attempt { gap: true, ..Default::default() });
    }
    r.attempts.scheme = scheme;
    (r.attempts.uri, r.attempts.head_kind) = (None, kind);
}

/// Asks the cache for a request whose body is known. None: the peers are to be asked.
pub(super) async fn look(r: &mut Request, conf: &UpstreamConf, owner: &'static str) -> Option<Verdict> {
    if !conf.cache.is_on() {
        return None;
    }
    cached::look(r, conf, owner, |_| Text::EMPTY).await
}

/// Asks the peers, and passes the answer on.
pub(super) async fn ask(r: &mut Request, conf: &UpstreamConf, group: Arc<Group>, sent: Sent) -> Verdict {
    let local = conf.local_address(r);
    let keepalive = sent.keep && group.keepalive.connections.is_some() && local.is_none();
    let Sent { head, body, protocol, .. } = sent;
    let mut job = Job { group, head, body, is_head: false, keepalive, local, protocol, remake: None };
    let verdict = match retry::find_answer(r, &mut job, conf).await {
        Ok(answer) => pass_on::pass_on(r, conf, &job, answer).await,
        Err(v) if r.ctx.cache.is_some() => cached::failed(r, conf, v),
        Err(v) => v,
    };
    // What the cache has to do with it ends here.
    r.ctx.cache = None;
    verdict
}
