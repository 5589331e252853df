//! The words of `proxy_pass` and its settings, and the values that other modules with upstreams read the same way.

use super::rewrite;
use super::url::{parse_local, parse_url};
use super::{Conf, Pass};
use crate::config::complex::Complex;
use crate::config::set::{self, duplicate};
use crate::config::{Build, Directive, Scope, http};
use crate::modules::{core, ignored};
use crate::request::Version;
use crate::request::phases::Content;
use crate::upstream::settings::{Bind, Store, UpstreamSettings, next};
use crate::upstream_directives;
use conf::{Contexts, Node, Problem, Word, value};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("proxy_pass", proxy_pass),
    http("proxy_next_upstream", |s, n| {
        set::bits(s.build, &mut s.level.conf.proxy.upstream.next_upstream, n, next::WORDS)
    }),
    http("proxy_buffering", |s, n| set::flag(&mut conf(s).buffering, n)),
    http("proxy_request_buffering", |s, n| set::flag(&mut conf(s).request_buffering, n)),
    http("proxy_buffers", |s, n| {
        let invalid = || set::invalid(n);
        let number = value::number(&n.args[0].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        let size = value::size(&n.args[1].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        set::value(&mut conf(s).buffers, n, (number, size))
    }),
    http("proxy_busy_buffers_size", |s, n| optional_size(s, n, |s| &mut conf(s).busy_buffers_size)),
    http("proxy_max_temp_file_size", |s, n| set::size(&mut conf(s).max_temp_file_size, n)),
    http("proxy_temp_file_write_size", |s, n| optional_size(s, n, |s| &mut conf(s).temp_file_write_size)),
    http("proxy_temp_path", |s, n| {
        let path = core::temp_path(s, n)?;
        set::value(&mut conf(s).temp_path, n, path)
    }),
    http("proxy_send_lowat", ignored::size),
    http("proxy_headers_hash_bucket_size", ignored::number),
    http("proxy_headers_hash_max_size", ignored::number),
    http("proxy_ignore_client_abort", |s, n| set::flag(&mut conf(s).ignore_client_abort, n)),
    http("proxy_limit_rate", |s, n| set::complex_size(s.build, &mut s.level.conf.proxy.upstream.limit_rate, n)),
    http("proxy_pass_request_headers", |s, n| set::flag(&mut conf(s).pass_request_headers, n)),
    http("proxy_pass_request_body", |s, n| set::flag(&mut conf(s).pass_request_body, n)),
    http("proxy_pass_trailers", |s, n| set::flag(&mut conf(s).pass_trailers, n)),
    http("proxy_force_ranges", |s, n| set::flag(&mut conf(s).force_ranges, n)),
    http("proxy_store", store),
    http("proxy_store_access", store_access),
    http("proxy_http_version", |s, n| {
        let words = [("1.0", Version::HTTP10), ("1.1", Version::HTTP11), ("2", Version::HTTP20)];
        set::one_of(&mut s.level.conf.proxy.http_version, n, &words)
    }),
    http("proxy_method", |s, n| set::complex(s.build, &mut s.level.conf.proxy.method, n)),
    http("proxy_set_body", |s, n| {
        let body = Complex::compile(s.build, &n.args[0])?;
        set::value(&mut s.level.conf.proxy.set_body, n, Some(body))
    }),
    http("proxy_set_header", |s, n| set_header(s.build, &mut s.level.conf.proxy, n)),
    http("proxy_redirect", rewrite::redirect),
    http("proxy_cookie_domain", |s, n| rewrite::cookie(s, n, false)),
    http("proxy_cookie_path", |s, n| rewrite::cookie(s, n, true)),
    http("proxy_cookie_flags", rewrite::cookie_flags),
    // The directories of modules that are not here yet are made, so that one configuration fits both servers.
    http("uwsgi_temp_path", |s, n| core::temp_path(s, n).map(|_| ())),
    http("scgi_temp_path", |s, n| core::temp_path(s, n).map(|_| ())),
];

/// Those that all such modules have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("proxy", proxy);

fn conf<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut UpstreamSettings {
    &mut scope.level.conf.proxy.upstream
}

/// `*_set_header`
pub(in crate::modules) fn set_header(build: &mut Build<'_>, conf: &mut Conf, node: &Node) -> Result<(), Problem> {
    let value = Complex::compile(build, &node.args[1])?;
    let name: Arc<[u8]> = node.args[0].text.as_slice().into();
    Arc::make_mut(conf.set_header.entry()).push((name, value));
    Ok(())
}

/// A size that is checked and has no other meaning here.
pub(in crate::modules) fn optional_size(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    setting: for<'s> fn(&'s mut Scope<'_, '_>) -> &'s mut crate::config::setting::Setting<Option<u64>>,
) -> Result<(), Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| set::invalid(node))?;
    set::value(setting(scope), node, Some(size))?;
    scope.build.note(node);
    Ok(())
}

/// The value of `*_bind`.
pub(in crate::modules) fn bind_value(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Option<Bind>, Problem> {
    if node.args.len() == 1 && node.args[0] == "off" {
        return Ok(None);
    }
    let address = Complex::compile(scope.build, &node.args[0])?;
    if let Some(fixed) = address.as_fixed()
        && parse_local(fixed).is_none()
    {
        return Err(node.problem(format!("invalid address \"{}\"", node.args[0].as_str())));
    }
    let transparent = match node.args.get(1) {
        None => false,
        Some(w) if *w == "transparent" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    scope.build.process.transparent |= transparent;
    Ok(Some(Bind { address, transparent }))
}

fn store(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let off = node.args[0] == "off";
    if !off && scope.level.conf.proxy.cache.cache.is_set() && scope.level.conf.proxy.cache.is_on() {
        return Err(node.problem("\"proxy_store\" is incompatible with \"proxy_cache\"".to_owned()));
    }
    let store = store_value(scope, node)?;
    set::value(&mut conf(scope).store, node, store)
}

/// The value of `*_store`.
pub(in crate::modules) fn store_value(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Store, Problem> {
    Ok(match &*node.args[0].as_str() {
        "off" => Store::Off,
        "on" => Store::On,
        _ => {
            let path = scope.build.full_path(&node.args[0].text);
            use std::os::unix::ffi::OsStrExt;
            let path = Complex::compile_bytes(scope.build, path.as_os_str().as_bytes());
            Store::Path(path.map_err(|t| node.problem(t))?)
        }
    })
}

/// `user:rw group:r all:r`
fn store_access(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mode = store_access_value(node)?;
    set::value(&mut conf(scope).store_access, node, mode)
}

/// The value of `*_store_access`.
pub(in crate::modules) fn store_access_value(node: &Node) -> Result<u32, Problem> {
    let mut mode = 0o600;
    for word in &node.args {
        let text = word.as_str();
        let bad = || node.problem(format!("invalid value \"{text}\""));
        let (who, what) = text.split_once(':').ok_or_else(bad)?;
        let shift = match who {
            "user" => 6,
            "group" => 3,
            "all" => 0,
            _ => return Err(bad()),
        };
        let bits = match what {
            "rw" => 6,
            "r" => 4,
            _ => return Err(bad()),
        };
        mode |= bits << shift;
    }
    Ok(mode)
}

fn proxy_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.proxy.pass.is_some() {
        return Err(duplicate(node));
    }
    let word: &Word = &node.args[0];
    let url = Complex::compile(scope.build, word)?;
    let fixed = match url.as_fixed() {
        None => None,
        Some(text) => Some(parse_url(text).map_err(|e| node.problem(e))?),
    };
    if let Some(u) = &fixed
        && !u.uri.is_empty()
    {
        let nameless = scope.level.nameless || !scope.level.context.intersects(Contexts::LOCATION);
        if scope.level.is_pattern() || scope.level.is_named() || nameless {
            return Err(node.problem(
                "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, \
                 or inside \"if\" statement, or inside \"limit_except\" block"
                    .to_owned(),
            ));
        }
    }
    scope.level.conf.core.auto_redirect = scope.level.name.ends_with(b"/");
    scope.level.conf.core.handler = Some(Content::Proxy);
    let location = scope.level.name.clone();
    let pass = Pass { url, fixed, node: node.clone(), group: Default::default(), location };
    scope.level.conf.proxy.pass = Some(Arc::new(pass));
    Ok(())
}
