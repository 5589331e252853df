//! `proxy_pass` (being built).

use crate::config::{Directive, http};

pub const DIRECTIVES: &[Directive] = &[
    http("proxy_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
    // The directories of modules that are not here yet are made, so that one configuration fits both servers.
    http("fastcgi_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
    http("uwsgi_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
    http("scgi_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
];
