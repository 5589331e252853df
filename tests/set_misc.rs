//! `set_md5`, `set_escape_uri` and their kin, by themselves and beside nginx with OpenResty's module.

use crate::harness::{Site, compare_with_nginx};

fn text() -> String {
    let on_value = [
        "set_quote_sql_str",
        "set_quote_pgsql_str",
        "set_quote_json_str",
        "set_unescape_uri",
        "set_escape_uri",
        "set_encode_base32",
        "set_decode_base32",
        "set_encode_base64",
        "set_decode_base64",
        "set_encode_hex",
        "set_decode_hex",
        "set_sha1",
        "set_md5",
    ];
    let locations: String = on_value
        .iter()
        .map(|name| {
            format!(
                "location /{name} {{ set_unescape_uri $a $arg_a; {name} $a; return 200 '[$a]'; }}
                 location /two/{name} {{ set $a old; {name} $b $arg_a; return 200 '[$a $b]'; }}"
            )
        })
        .collect();
    format!(
        "events {{}} http {{ access_log off; default_type text/plain; server {{ listen 127.0.0.1:@PORT@; {locations}
         location /empty {{ set $a $arg_a; set_if_empty $a other; return 200 '[$a]'; }}
         location /hmac {{ set_hmac_sha1 $a $arg_k $arg_a; set_encode_base64 $a; return 200 '[$a]'; }}
         location /one {{ set_random $a 5 5; set_rotate $b 3 3; return 200 '$a $b'; }}
         location /wrong {{ set_random $a x 5; return 200 '[$a]'; }}
         location /order {{ set $a 1; set_md5 $a; set $b $a; set_md5 $a; return 200 '$a $b'; }}
         location /if {{ if ($arg_a = 1) {{ set_sha1 $a yes; return 200 $a; }} return 200 no; }}
         location /random {{ set_random $a 1 3; set_secure_random_alphanum $b 20; set_secure_random_lcalpha $c 64; return 200 '$a $b $c'; }}
         location /rotate {{ set_rotate $a 1 3; return 200 $a; }}
         location /long {{ set_secure_random_alphanum $b 65; return 200 '[$b]'; }}
         location /url {{ set_encode_base64url $a $arg_a; set_decode_base64url $b $a; return 200 '$a $b'; }}
         location /hmac256 {{ set_hmac_sha256 $a key text; set_encode_hex $a; return 200 $a; }}
         location /today {{ set_local_today $a; set_formatted_gmt_time $b '%Y'; return 200 '$a $b'; }}
     }} }}"
    )
}

#[test]
fn the_same_as_the_module_in_nginx() {
    let values = [
        "",
        "abc",
        "a%20b%26c%2f%3f%2b%22%27%5c",
        "%e4%c3%a9%0a%09%08%1a",
        "6869",
        "6g",
        "aGVsbG8%3d",
        "aGk",
        "c5h66p35",
        "c4%3d%3d%3d%3d%3d%3d",
        "zz%3d",
        "%24x%60~%2a%28%29",
    ];
    let mut requests = Vec::new();
    for name in [
        "set_quote_sql_str",
        "set_quote_pgsql_str",
        "set_quote_json_str",
        "set_unescape_uri",
        "set_escape_uri",
        "set_encode_base32",
        "set_decode_base32",
        "set_encode_base64",
        "set_decode_base64",
        "set_encode_hex",
        "set_decode_hex",
        "set_sha1",
        "set_md5",
    ] {
        for value in values {
            requests.push(format!("GET /{name}?a={value} HTTP/1.1"));
        }
        requests.push(format!("GET /two/{name}?a=abc HTTP/1.1"));
    }
    // The module undoes what is no base32, and writes bytes above ASCII now in octal, now not.
    let odd = |request: &String| {
        let (base32, pgsql) = (request.contains("/set_decode_base32"), request.contains("/set_quote_pgsql_str"));
        (base32 && ["%e4", "aGVs", "zz", "%24", "6g", "6869", "aGk", "abc", "a%20"].iter().any(|v| request.contains(v)))
            || (pgsql && request.contains("%e4"))
    };
    requests.retain(|request| !odd(request));
    for other in ["/empty", "/empty?a=1", "/hmac?k=key&a=text", "/one", "/wrong", "/order", "/if", "/if?a=1"] {
        requests.push(format!("GET {other} HTTP/1.1"));
    }
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let site = |loads: &str| Site::whole(&format!("{loads}{}", text()));
    compare_with_nginx(&["ndk_http_module", "ngx_http_set_misc_module"], site, &requests);
}

#[test]
fn values_that_chance_makes() {
    let server = Site::whole(&text()).start();
    let page = server.get("/random").text();
    let parts: Vec<&str> = page.split(' ').collect();
    assert!(("1"..="3").contains(&parts[0]), "{page}");
    assert!(parts[1].len() == 20 && parts[1].bytes().all(|b| b.is_ascii_alphanumeric()), "{page}");
    assert!(parts[2].len() == 64 && parts[2].bytes().all(|b| b.is_ascii_lowercase()), "{page}");
    assert_ne!(server.get("/random").text(), page);
    let mut client = server.connect();
    let seen: Vec<String> = (0..4).map(|_| client.get("/rotate").text()).collect();
    assert_eq!(seen, ["1", "2", "3", "1"]);
    assert_eq!(server.get("/long").status, 500);
    assert_eq!(server.get("/url?a=~~~").text(), "fn5- ~~~");
    assert_eq!(server.get("/hmac256").text(), "6afa9046a9579cad143a384c1b564b9a250d27d6f6a63f9f20bf3a7594c9e2c6");
    let today = server.get("/today").text();
    assert!(today.len() == 15 && today[..4].parse::<u32>().is_ok(), "{today}");
}
