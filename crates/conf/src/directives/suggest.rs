//! What somebody may have meant by a directive that nobody knows: one that is spelt nearly so, or one of a module that is not
//! here, and what serves in its place. For people; nothing is decided by it.

use super::{Accepts, Contexts, all, lookup};

/// Names that differ by more letters are other names.
const MAX_DISTANCE: usize = 2;
/// Names shorter than this may differ by one letter at most.
const SHORT: usize = 6;
/// Longer words are no directives.
const LONGEST: usize = 64;

/// Modules of others that nothing here takes the place of, by the name in the table; and what serves instead, or nothing where the
/// module is here in part.
const INSTEAD: &[(&str, &str, &str)] = &[
    ("ngx_http_lua_module", "the Lua module (OpenResty)", ""),
    ("ngx_stream_lua_module", "the Lua module for stream (OpenResty)", "map, ssl_preread and a backend of your own"),
    ("ngx_http_js_module", "njs", ""),
    ("ngx_stream_js_module", "njs for stream", ""),
    (
        "ngx_http_modsecurity_module",
        "ModSecurity",
        "a firewall of its own before or behind, limit_req and auth_request",
    ),
    ("ngx_http_array_var_module", "the array-var module", "map"),
    ("ngx_http_encrypted_session_module", "the encrypted-session module", "secure_link and userid"),
    ("ngx_http_upload_progress_module", "the upload-progress module", "the API's counters (api)"),
    ("nchan_redis", "nchan's storage in Redis", ""),
    ("nchan_rest", "a part of nchan", "what docs/push.md names"),
    ("nginx_plus", "NGINX Plus", "what docs/api.md and docs/health.md name"),
    ("tengine", "Tengine", "health_check, least_conn, sticky and resolve"),
];

/// Modules of others that the table does not know, by names or by how all their names begin (these end in `_`): the product, and what
/// serves instead.
const FAMILIES: &[(&[&str], &str, &str)] = &[
    (
        &["SecRulesEnabled", "SecRulesDisabled", "LearningMode", "DeniedUrl", "BasicRule", "CheckRule", "MainRule"],
        "naxsi",
        "modsecurity with the Core Rule Set (docs/modsecurity.md)",
    ),
    (&["ajp_"], "the AJP module", "proxy_pass to the HTTP connector of the application server"),
    (&["app_protect_"], "NGINX App Protect", "modsecurity (docs/modsecurity.md) and guard (docs/shield.md)"),
    (&["auth_digest", "auth_digest_"], "the digest module", "auth_basic over TLS, or auth_request"),
    (&["auth_gss", "auth_gss_"], "the SPNEGO module", "auth_request with a program that asks Kerberos"),
    (&["auth_ldap", "auth_ldap_", "ldap_server"], "the LDAP module", "auth_request with a program that asks LDAP"),
    (&["auth_pam", "auth_pam_"], "the PAM module", "auth_basic, or auth_request with a program that asks PAM"),
    (&["drizzle_", "postgres_"], "a module for databases", "a program in Lua (docs/lua.md), or the application"),
    (&["fair"], "the fair balancer", "least_time or least_conn"),
    (&["opentracing", "opentracing_"], "OpenTracing", "otel_trace"),
    (&["pagespeed"], "ngx_pagespeed", "brotli, image_filter and sub_filter"),
    (&["passenger_"], "Phusion Passenger", "the application's own server behind proxy_pass or uwsgi_pass"),
    (&["push_stream_"], "the push-stream module", "nchan's directives (docs/push.md)"),
    (&["redis_pass", "redis2_"], "a module for Redis", "a program in Lua (docs/lua.md), or memcached_pass"),
    (&["replace_filter", "replace_filter_"], "the replace-filter module", "subs_filter"),
    (&["rtmp"], "nginx-rtmp", "an RTMP server beside; what it writes (HLS, MP4, FLV) is served here"),
    (&["security_headers", "security_headers_"], "the security-headers module", "add_header and more_set_headers"),
    (&["set_cookie_flag"], "the cookie-flag module", "proxy_cookie_flags"),
    (&["slowfs_", "srcache_"], "a module for caches", "proxy_cache and its companions (docs/caching.md)"),
    (&["testcookie", "testcookie_"], "the testcookie module", "guard (docs/shield.md)"),
    (&["upload_"], "the upload module", "client_body_in_file_only, and the application"),
];

/// Modules of nginx that are not built in on purpose, and why.
const REFUSED: &[(&str, &str)] = &[
    (
        "ngx_http_perl_module",
        "no interpreter of Perl is built in: it would block a thread of all connections; map, njs or a FastCGI program serve instead",
    ),
    (
        "ngx_http_xslt_filter_module",
        "no XSLT is built in: libxml2 and libxslt would parse what upstreams send inside the server; transform it in the application",
    ),
];

/// Single directives that are not built in on purpose, though their module is, and why.
const REFUSED_ONES: &[(&str, &str)] = &[
    ("ssl_ech_file", "the TLS library has no Encrypted Client Hello for servers"),
    (
        "vhost_traffic_status_average_method",
        "requestMsec is the mean of all requests; that of any time is what requestMsecCounter has grown by, divided by what requestCounter has",
    ),
    (
        "vhost_traffic_status_measure_status_codes",
        "\"vhost_traffic_status_filter_by_set_key $status codes::*\" counts by status",
    ),
    ("echo_abort_parent", "the module itself answers 500 to it"),
    (
        "lua_upstream_skip_openssl_default_verify",
        "whether a peer's certificate is verified beside proxy_ssl_verify_by_lua* is what \"proxy_ssl_verify\" says",
    ),
    (
        "js_load_http_native_module",
        "a library in C would run in the server with all its rights, and could bring all connections down",
    ),
    (
        "js_load_stream_native_module",
        "a library in C would run in the server with all its rights, and could bring all connections down",
    ),
];

/// Why a directive is not built in, where that is meant to stay so.
pub fn refusal(name: &str) -> Option<&'static str> {
    if let Some((_, reason)) = REFUSED_ONES.iter().find(|(refused, _)| *refused == name) {
        return Some(reason);
    }
    let modules = lookup(name.as_bytes()).iter().map(|known| known.module);
    let mut reasons = modules.filter_map(|module| REFUSED.iter().find(|(refused, _)| *refused == module));
    reasons.next().map(|(_, reason)| *reason)
}

/// A sentence about a directive that is unknown in `current`; none if nothing is near.
pub(super) fn help(name: &str, current: Contexts, accepts: Accepts<'_>) -> Option<String> {
    if let Some((_, reason)) = REFUSED_ONES.iter().find(|(refused, _)| *refused == name) {
        return Some(format!("\"{name}\" is not built in on purpose: {reason}"));
    }
    if let Some(other) = lookup(name.as_bytes()).iter().find(|known| !known.nginx)
        && let Some((_, product, instead)) = INSTEAD.iter().find(|(module, ..)| *module == other.module)
    {
        if instead.is_empty() {
            return Some(format!("\"{name}\" belongs to {product}, of which it is a part that is not built yet"));
        }
        return Some(format!("\"{name}\" belongs to {product}, which is not here; what serves instead: {instead}"));
    }
    let is_of = |family: &&str| name == *family || (family.ends_with('_') && name.starts_with(family));
    if let Some((_, product, instead)) = FAMILIES.iter().find(|(names, ..)| names.iter().any(is_of)) {
        return Some(format!("\"{name}\" belongs to {product}, which is not here; what serves instead: {instead}"));
    }
    let taken = all().filter(|known| known.nginx || accepts(known));
    let (here, elsewhere): (Vec<_>, Vec<_>) = taken.partition(|known| known.contexts.intersects(current));
    let near = |rows: &[super::Known]| nearest(name, rows.iter().map(|known| known.name));
    let found = near(&here).or_else(|| near(&elsewhere))?;
    Some(format!("did you mean \"{found}\"?"))
}

/// The word among some that is spelt most like `word`, if one is near: letters left out, added, changed, or swapped.
pub fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    if word.len() > LONGEST {
        return None;
    }
    let limit = if word.len() < SHORT { 1 } else { MAX_DISTANCE };
    let near = words.filter(|w| w.len().abs_diff(word.len()) <= limit);
    let distances = near.map(|w| (distance(word.as_bytes(), w.as_bytes()), w));
    distances.filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|(_, w)| w)
}

/// Letters to add, leave out, change or swap with the next (optimal string alignment).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<usize>>(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        let [before, last, row] = &mut rows;
        row[0] = i;
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near() {
        assert_eq!([distance(b"", b"abc"), distance(b"retrun", b"return"), distance(b"a", b"b")], [3, 1, 1]);
        assert_eq!(nearest("stres", ["demo", "stress", "top"].into_iter()), Some("stress"));
        assert_eq!(nearest("tpo", ["demo", "stress", "top"].into_iter()), Some("top"));
        assert_eq!(nearest("anything", ["demo", "stress"].into_iter()), None);
    }

    #[test]
    fn directives_are_suggested_where_they_may_stand() {
        let help = |name, context| help(name, context, &|_| false);
        assert_eq!(help("lisssten", Contexts::SERVER).as_deref(), Some("did you mean \"listen\"?"));
        assert_eq!(help("proxy_pas", Contexts::LOCATION).as_deref(), Some("did you mean \"proxy_pass\"?"));
        assert_eq!(help("worker_process", Contexts::MAIN).as_deref(), Some("did you mean \"worker_processes\"?"));
        assert_eq!(help("nonsense", Contexts::SERVER), None);
        for name in ["auth_ldap_url", "fair", "passenger_root", "SecRulesEnabled", "upload_pass", "rtmp"] {
            let said = help(name, Contexts::SERVER).unwrap_or_default();
            assert!(said.contains("which is not here; what serves instead"), "{name}: {said}");
        }
        let lua = help("balancer_by_lua_block", Contexts::UPSTREAM).unwrap_or_default();
        assert!(lua.contains("belongs to the Lua module") && lua.contains("not built yet"), "{lua}");
        let lua = help("preread_by_lua_block", Contexts::STREAM).unwrap_or_default();
        assert!(lua.contains("ssl_preread"), "{lua}");
    }

    #[test]
    fn every_module_of_others_has_a_sentence_or_is_here() {
        let here = [
            "ironweir",
            "ngx_http_acme_module",
            "ngx_otel_module",
            "ngx_headers_more_module",
            "ngx_brotli",
            "ngx_zstd",
            "ngx_http_geoip2_module",
            "ngx_stream_geoip2_module",
            "ngx_http_set_misc_module",
            "ngx_http_echo_module",
            "ngx_http_subs_filter_module",
            "ngx_cache_purge",
            "ngx_http_fancyindex_module",
            "ngx_http_dav_ext_module",
            "ngx_http_oidc_module",
            "nginx_module_vts",
            "nchan",
        ];
        for known in all().filter(|known| !known.nginx && !here.contains(&known.module)) {
            assert!(INSTEAD.iter().any(|(module, ..)| *module == known.module), "{}", known.module);
        }
    }
}
