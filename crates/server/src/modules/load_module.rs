//! `load_module`: nothing is loaded here. What is built in is noted; of what is not, the directives of this configuration that
//! would need it are named, and if there are none it is left out.

use crate::config::{Build, Directive, Scope, process};
use conf::{Node, Problem, Span};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[process("load_module", load_module)];

/// What the module keeps while a configuration is read.
#[derive(Debug, Default)]
pub struct Main {
    /// Names of modules, and where they are asked for.
    wanted: Vec<(String, Span)>,
}

/// Modules that are built in, by the names of their files.
const BUILT_IN: &[&str] = &[
    "ngx_stream_module",
    "ngx_http_acme_module",
    "ngx_otel_module",
    "ngx_nchan_module",
    "ngx_http_lua_module",
    "ngx_http_modsecurity_module",
    "ngx_http_js_module",
    "ngx_stream_js_module",
    "ngx_http_headers_more_filter_module",
    "ngx_http_set_misc_module",
    "ngx_http_geoip_module",
    "ngx_stream_geoip_module",
    "ngx_http_geoip2_module",
    "ngx_stream_geoip2_module",
    "ngx_http_dav_ext_module",
    "ngx_http_echo_module",
    "ngx_http_subs_filter_module",
    "ngx_http_cache_purge_module",
    "ngx_http_fancyindex_module",
    "ngx_http_brotli_filter_module",
    "ngx_http_brotli_static_module",
    "ngx_http_zstd_filter_module",
    "ngx_http_zstd_static_module",
    "ngx_http_image_filter_module",
    "ngx_http_vhost_traffic_status_module",
    // A library for other modules, without directives.
    "ndk_http_module",
];

/// Files of modules whose directives stand under another name in the table.
const UNDER: &[(&str, &str)] = &[
    ("ngx_http_cache_purge_module", "ngx_cache_purge"),
    ("ngx_http_subs_filter_module", "ngx_http_subs_filter_module"),
    ("ngx_http_uploadprogress_module", "ngx_http_upload_progress_module"),
];

fn load_module(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = node.args[0].as_str();
    let file = path.rsplit('/').next().unwrap_or_default();
    let name = file.strip_suffix(".so").unwrap_or(file).to_owned();
    if BUILT_IN.contains(&name.as_str()) {
        scope.build.notes.push(node.notice(format!("module \"{name}\" is built in: \"load_module\" has no effect")));
    } else {
        scope.build.main.load_module.wanted.push((name, node.name.span));
    }
    Ok(())
}

/// What is to be said of the modules that are not here. `problems`: all that was found in the configuration.
pub fn finish(build: &mut Build<'_>, problems: &[Problem]) -> Vec<Problem> {
    let wanted = std::mem::take(&mut build.main.load_module.wanted);
    let refused: Vec<&str> = problems.iter().filter_map(refused).collect();
    let say = |(name, place): (String, Span)| {
        let under = UNDER.iter().find(|(file, _)| *file == name).map_or(name.as_str(), |(_, under)| under);
        let is_of = |directive: &&&str| conf::lookup(directive.as_bytes()).iter().any(|known| known.module == under);
        let mut needed: Vec<String> = refused.iter().filter(is_of).map(|d| format!("\"{d}\"")).collect();
        needed.sort();
        needed.dedup();
        Problem::warn(
            place,
            match needed.is_empty() {
                true => format!("module \"{name}\" is not here, and nothing in this configuration needs it"),
                false => {
                    format!("module \"{name}\" is not here; this configuration needs it for {}", needed.join(", "))
                }
            },
        )
    };
    wanted.into_iter().map(say).collect()
}

/// The directive that a problem says nobody knows.
fn refused(problem: &Problem) -> Option<&str> {
    let text = problem.message.as_str();
    let name = text.strip_prefix("unknown directive \"").and_then(|rest| rest.strip_suffix('"'));
    name.or_else(|| text.strip_prefix('"')?.strip_suffix("\" is not supported yet"))
}
