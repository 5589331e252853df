//! The directives that modules with an upstream have in common, each module under its own prefix: three tables, and how their values
//! are read.

use super::settings::{Bind, Store};
use crate::config::complex::Complex;
use crate::config::{Scope, setters};
use conf::{Node, Problem, value};
use std::net::SocketAddr;

/// The directives under `$prefix` that all modules with an upstream have; their values are in the level's `$conf`, in its field
/// `upstream`. `$next`: the words of `*_next_upstream`.
#[macro_export]
macro_rules! upstream_directives {
    ($prefix:literal, $($conf:ident).+, $next:expr) => {{
        use $crate::config::{http, setters};
        use $crate::upstream::conf::UpstreamConf;
        use $crate::upstream::directives;
        fn conf<'s>(scope: &'s mut $crate::config::Scope<'_, '_>) -> &'s mut UpstreamConf {
            &mut scope.level.conf.$($conf).+.upstream
        }
        &[
            http(concat!($prefix, "_next_upstream"), |s, n| {
                setters::bits(s.build, &mut s.level.conf.$($conf).+.upstream.next_upstream, n, $next)
            }),
            http(concat!($prefix, "_connect_timeout"), |s, n| setters::time(&mut conf(s).connect_timeout, n)),
            http(concat!($prefix, "_send_timeout"), |s, n| setters::time(&mut conf(s).send_timeout, n)),
            http(concat!($prefix, "_read_timeout"), |s, n| setters::time(&mut conf(s).read_timeout, n)),
            http(concat!($prefix, "_next_upstream_tries"), |s, n| setters::number(&mut conf(s).next_upstream_tries, n)),
            http(concat!($prefix, "_next_upstream_timeout"), |s, n| setters::time(&mut conf(s).next_upstream_timeout, n)),
            http(concat!($prefix, "_buffer_size"), |s, n| setters::size(&mut conf(s).buffer_size, n)),
            http(concat!($prefix, "_bind"), |s, n| {
                let bind = directives::bind_value(s, n)?;
                setters::value(&mut conf(s).bind, n, bind)
            }),
            http(concat!($prefix, "_socket_keepalive"), |s, n| setters::flag(&mut conf(s).socket_keepalive, n)),
        ]
    }};
}

/// The directives under `$prefix` of modules whose peers send headers; see [`crate::upstream_directives`].
#[macro_export]
macro_rules! header_directives {
    ($prefix:literal, $($conf:ident).+) => {{
        use $crate::config::{http, setters};
        use $crate::upstream::conf::UpstreamConf;
        use $crate::upstream::settings::ignore;
        fn conf<'s>(scope: &'s mut $crate::config::Scope<'_, '_>) -> &'s mut UpstreamConf {
            &mut scope.level.conf.$($conf).+.upstream
        }
        &[
            http(concat!($prefix, "_socket_rcvbuf"), |s, n| setters::size(&mut conf(s).socket_rcvbuf, n)),
            http(concat!($prefix, "_socket_sndbuf"), |s, n| setters::size(&mut conf(s).socket_sndbuf, n)),
            http(concat!($prefix, "_intercept_errors"), |s, n| setters::flag(&mut conf(s).intercept_errors, n)),
            http(concat!($prefix, "_ignore_headers"), |s, n| {
                setters::bits(s.build, &mut s.level.conf.$($conf).+.upstream.ignore_headers, n, ignore::WORDS)
            }),
            http(concat!($prefix, "_hide_header"), |s, n| setters::lower(&mut conf(s).hide_headers, n)),
            http(concat!($prefix, "_pass_header"), |s, n| setters::lower(&mut conf(s).pass_headers, n)),
        ]
    }};
}

/// The directives under `$prefix` of modules that buffer requests and answers; see [`crate::upstream_directives`].
#[macro_export]
macro_rules! buffering_directives {
    ($prefix:literal, $($conf:ident).+) => {{
        use $crate::config::{http, setters};
        use $crate::modules::ignored;
        use $crate::upstream::conf::UpstreamConf;
        use $crate::upstream::directives;
        fn conf<'s>(scope: &'s mut $crate::config::Scope<'_, '_>) -> &'s mut UpstreamConf {
            &mut scope.level.conf.$($conf).+.upstream
        }
        &[
            http(concat!($prefix, "_buffering"), |s, n| setters::flag(&mut conf(s).buffering, n)),
            http(concat!($prefix, "_request_buffering"), |s, n| setters::flag(&mut conf(s).request_buffering, n)),
            http(concat!($prefix, "_buffers"), |s, n| {
                let buffers = directives::buffers_value(n)?;
                setters::value(&mut conf(s).buffers, n, buffers)
            }),
            http(concat!($prefix, "_busy_buffers_size"), |s, n| {
                directives::optional_size(s, n, |s| &mut conf(s).busy_buffers_size)
            }),
            http(concat!($prefix, "_max_temp_file_size"), |s, n| setters::size(&mut conf(s).max_temp_file_size, n)),
            http(concat!($prefix, "_temp_file_write_size"), |s, n| {
                directives::optional_size(s, n, |s| &mut conf(s).temp_file_write_size)
            }),
            http(concat!($prefix, "_temp_path"), |s, n| {
                let path = $crate::modules::core::temp_path(s, n)?;
                setters::value(&mut conf(s).temp_path, n, path)
            }),
            http(concat!($prefix, "_send_lowat"), ignored::size),
            http(concat!($prefix, "_ignore_client_abort"), |s, n| setters::flag(&mut conf(s).ignore_client_abort, n)),
            http(concat!($prefix, "_limit_rate"), |s, n| {
                setters::complex_size(s.build, &mut s.level.conf.$($conf).+.upstream.limit_rate, n)
            }),
            http(concat!($prefix, "_pass_request_headers"), |s, n| setters::flag(&mut conf(s).pass_request_headers, n)),
            http(concat!($prefix, "_pass_request_body"), |s, n| setters::flag(&mut conf(s).pass_request_body, n)),
            http(concat!($prefix, "_force_ranges"), |s, n| setters::flag(&mut conf(s).force_ranges, n)),
            http(concat!($prefix, "_store"), |s, n| {
                let has_cache = conf(s).cache.cache.is_set() && conf(s).cache.is_on();
                let store = directives::store_value(s, n, has_cache)?;
                setters::value(&mut conf(s).store, n, store)
            }),
            http(concat!($prefix, "_store_access"), |s, n| {
                let mode = directives::store_access_value(n)?;
                setters::value(&mut conf(s).store_access, n, mode)
            }),
        ]
    }};
}

/// `*_buffers number size`
pub fn buffers_value(node: &Node) -> Result<(u64, u64), Problem> {
    let invalid = || setters::invalid(node);
    let number = value::number(&node.args[0].text).filter(|n| *n > 0).ok_or_else(invalid)?;
    let size = value::size(&node.args[1].text).filter(|n| *n > 0).ok_or_else(invalid)?;
    Ok((number, size))
}

/// A size that is checked and has no other meaning here.
pub fn optional_size(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    setting: for<'s> fn(&'s mut Scope<'_, '_>) -> &'s mut crate::config::setting::Setting<Option<u64>>,
) -> Result<(), Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| setters::invalid(node))?;
    setters::value(setting(scope), node, Some(size))?;
    scope.build.note(node);
    Ok(())
}

/// The value of `*_bind`.
pub fn bind_value(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Option<Bind>, Problem> {
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

/// The address of `*_bind`, with or without a port.
pub fn parse_local(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse::<SocketAddr>().ok().or_else(|| Some(SocketAddr::new(text.trim_matches(['[', ']']).parse().ok()?, 0)))
}

/// The value of `*_store`.
pub fn store_value(scope: &mut Scope<'_, '_>, node: &Node, has_cache: bool) -> Result<Store, Problem> {
    if has_cache && node.args[0] != "off" {
        let name = node.name.as_str();
        let prefix = name.trim_end_matches("_store");
        return Err(node.problem(format!("\"{name}\" is incompatible with \"{prefix}_cache\"")));
    }
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

/// The value of `*_store_access`.
pub fn store_access_value(node: &Node) -> Result<u32, Problem> {
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
