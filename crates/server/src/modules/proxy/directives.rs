//! The words of `proxy_pass` and its settings.

use super::rewrite;
use super::url::parse_url;
use super::{Conf, Pass};
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::{Build, Directive, Scope, http};
use crate::modules::ignored;
use crate::request::Version;
use crate::request::phases::Content;
use crate::upstream::settings::next;
use crate::{buffering_directives, header_directives, upstream_directives};
use conf::{Contexts, Node, Problem, Word};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("proxy_pass", proxy_pass),
    http("proxy_headers_hash_bucket_size", ignored::number),
    http("proxy_headers_hash_max_size", ignored::number),
    http("proxy_pass_trailers", |s, n| setters::flag(&mut s.level.conf.proxy.upstream.pass_trailers, n)),
    http("proxy_http_version", |s, n| {
        let words =
            [("1.0", Version::HTTP10), ("1.1", Version::HTTP11), ("2", Version::HTTP20), ("3", Version::HTTP30)];
        setters::one_of(&mut s.level.conf.proxy.http_version, n, &words)
    }),
    http("proxy_method", |s, n| setters::complex(s.build, &mut s.level.conf.proxy.method, n)),
    http("proxy_set_body", |s, n| {
        let body = Complex::compile(s.build, &n.args[0])?;
        setters::value(&mut s.level.conf.proxy.set_body, n, Some(body))
    }),
    http("proxy_set_header", |s, n| set_header(s.build, &mut s.level.conf.proxy, n)),
    http("proxy_redirect", rewrite::redirect),
    http("proxy_cookie_domain", |s, n| rewrite::cookie(s, n, false)),
    http("proxy_cookie_path", |s, n| rewrite::cookie(s, n, true)),
    http("proxy_cookie_flags", rewrite::cookie_flags),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("proxy", proxy, next::WORDS);

/// Those of modules whose peers send headers.
pub const HEADER_DIRECTIVES: &[Directive] = header_directives!("proxy", proxy);

/// Those of modules that buffer.
pub const BUFFERING_DIRECTIVES: &[Directive] = buffering_directives!("proxy", proxy);

/// `*_set_header`
pub(in crate::modules) fn set_header(build: &mut Build<'_>, conf: &mut Conf, node: &Node) -> Result<(), Problem> {
    let value = build.for_servers(|build| Complex::compile_field(build, node, &node.args[1].text))?;
    let name: Arc<[u8]> = node.args[0].text.as_slice().into();
    Arc::make_mut(conf.set_header.entry()).push((name, value));
    Ok(())
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
