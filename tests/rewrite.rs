//! `return`, `rewrite`, `set`, `if`.

use crate::harness::Site;

#[test]
fn return_in_its_forms() {
    let server = Site::server(
        "location = /text { return 200 \"uri=$uri args=$args\"; }
         location = /code { return 204; }
         location = /plain { default_type text/plain; return 418 teapot; }
         location = /far { return 301 https://example.com$request_uri; }
         location = /near { return 302 /text; }
         location = /only { return http://example.com/; }
         location = /gone { return 444; }
         location = /empty { return 200; }
         location = /503 { return 503; }",
    )
    .start();
    assert_eq!(server.get("/text?a=1&b=2").text(), "uri=/text args=a=1&b=2");
    let r = server.get("/code");
    assert_eq!((r.status, r.header("Content-Length"), r.body.len()), (204, None, 0));
    let r = server.get("/plain");
    assert_eq!((r.status, r.text().as_str(), r.header("Content-Type")), (418, "teapot", Some("text/plain")));
    let r = server.get("/far?x");
    assert_eq!((r.status, r.header("Location")), (301, Some("https://example.com/far?x")));
    let r = server.get("/near");
    assert_eq!((r.status, r.header("Location")), (302, Some(&*format!("http://localhost:{}/text", server.port))));
    let r = server.get("/only");
    assert_eq!((r.status, r.header("Location")), (302, Some("http://example.com/")));
    assert!(server.connect().send("GET /gone HTTP/1.1\r\nHost: x\r\n\r\n").is_closed());
    let r = server.get("/empty");
    assert_eq!((r.status, r.header("Content-Length")), (200, Some("0")));
    assert!(server.get("/503").text().contains("<h1>503 Service Temporarily Unavailable</h1>"));
}

#[test]
fn rewrite_flags() {
    let server = Site::server(
        "location /last { rewrite ^/last/(.*)$ /to/$1?from=last last; return 200 unreached; }
         location /break { rewrite ^/break/(.*)$ /broken/$1 break; return 200 unreached; root @DIR@/html; }
         location /redirect { rewrite ^/redirect/(.*)$ /to/$1 redirect; }
         location /permanent { rewrite ^/permanent/(.*)$ /to/$1? permanent; }
         location /cycle { rewrite ^ /cycle last; }
         location /to { return 200 \"$uri?$args\"; }",
    )
    .file("html/broken/x", "broken")
    .start();
    assert_eq!(server.get("/last/x?y=1").text(), "/to/x?from=last&y=1");
    assert_eq!(server.get("/break/x").text(), "broken");
    let r = server.get("/redirect/x?y=1");
    assert_eq!((r.status, r.header("Location")), (302, Some(&*format!("http://localhost:{}/to/x?y=1", server.port))));
    let r = server.get("/permanent/x?y=1");
    assert_eq!((r.status, r.header("Location")), (301, Some(&*format!("http://localhost:{}/to/x", server.port))));
    assert_eq!(server.get("/cycle").status, 500);
    assert!(server.error_log().contains("rewrite or internal redirection cycle"));
}

#[test]
fn set_and_if() {
    let server = Site::server(
        "set $where outside;
         location / {
             set $what none;
             if ($arg_a) { set $what a; }
             if ($arg_b = two) { set $what b; }
             if ($request_method != GET) { return 405 \"not $request_method\"; }
             if ($http_user_agent ~* \"^(bot)/\") { return 403 \"$1\"; }
             if (-f @DIR@/html$uri) { return 200 file; }
             if (!-e @DIR@/html$uri) { set $missing yes; }
             return 200 \"$where $what $missing\";
         }",
    )
    .file("html/there", "x")
    .start();
    assert_eq!(server.get("/no").text(), "outside none yes");
    assert_eq!(server.get("/no?a=1").text(), "outside a yes");
    assert_eq!(server.get("/no?b=two").text(), "outside b yes");
    assert_eq!(server.get("/no?a=0").text(), "outside none yes");
    assert_eq!(server.get("/there").text(), "file");
    let r = server.connect().send("DELETE / HTTP/1.1\r\nHost: x\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str()), (405, "not DELETE"));
    let r = server.connect().send("GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: Bot/1\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str()), (403, "Bot"));
}

#[test]
fn which_location() {
    let server = Site::server(
        "location / { return 200 root; }
         location = / { return 200 exact; }
         location /a { return 200 a; location /a/b { return 200 b; } }
         location ^~ /last { return 200 last; location ^~ /last/in { return 200 in; } location ~ q { return 200 q; } }
         location ^~ /final { return 200 final; }
         location ~ \\.php$ { return 200 regex; }
         location ~* \\.JPG$ { return 200 caseless; }
         location ~ ^/user/(?<name>[a-z]+) { return 200 \"user $name\"; }
         location /dir/ { return 200 dir; }",
    )
    .start();
    for (target, expected) in [
        ("/", "exact"),
        ("/x", "root"),
        ("/a/c", "a"),
        ("/a/b/c", "b"),
        ("/final/x.php", "final"),
        ("/a/x.php", "regex"),
        // A prefix inside a location leaves the patterns around it their say, `^~` or not; the outer `^~` takes it.
        ("/a/b/x.php", "regex"),
        ("/last/in/x.php", "in"),
        ("/last/x.php", "last"),
        ("/last/q", "q"),
        ("/last/in/q", "in"),
        ("/x.jpg", "caseless"),
        ("/user/ada", "user ada"),
        ("/dir/x", "dir"),
        ("/%61/c", "a"),
        ("//a//b", "b"),
    ] {
        assert_eq!(server.get(target).text(), expected, "{target}");
    }
}

#[test]
fn which_server() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; server_name first; return 200 first; }
         server { listen 127.0.0.1:@PORT@; server_name example.com; return 200 exact; }
         server { listen 127.0.0.1:@PORT@; server_name *.example.com; return 200 before; }
         server { listen 127.0.0.1:@PORT@; server_name example.*; return 200 after; }
         server { listen 127.0.0.1:@PORT@; server_name ~^(?<sub>w+)\\.example\\.org$; return 200 \"regex $sub\"; }
         server { listen 127.0.0.1:@PORT@; server_name \"\"; return 200 empty; }",
    )
    .start();
    for (host, expected) in [
        ("Host: unknown\r\n", "first"),
        ("Host: EXAMPLE.com:8080\r\n", "exact"),
        ("Host: www.example.com\r\n", "before"),
        ("Host: a.b.example.com\r\n", "before"),
        ("Host: example.net\r\n", "after"),
        ("Host: www.example.org\r\n", "regex www"),
        ("Host: example.com.\r\n", "exact"),
    ] {
        let r = server.connect().send(format!("GET / HTTP/1.1\r\n{host}\r\n")).response();
        assert_eq!(r.text(), expected, "{host}");
    }
    assert_eq!(server.connect().send("GET / HTTP/1.0\r\n\r\n").response().text(), "empty");
    let absolute = "GET http://example.com/ HTTP/1.1\r\nHost: unknown\r\n\r\n";
    assert_eq!(server.connect().send(absolute).response().text(), "exact");
}

#[test]
fn a_variable_without_a_value_is_complained_of_once_for_a_request() {
    let server =
        Site::server("if ($arg_none) { set $a 1; } location / { set $b \"$a$a\"; return 200 \"-$b$a-\"; }").start();
    assert_eq!(server.get("/").text(), "--");
    let said = "using uninitialized \"a\" variable, client: ";
    server.wait_for("logs/error.log", said);
    assert_eq!(server.error_log().matches(said).count(), 1);
}

/// Directives of other modules in the rewrite phase, which run after `if` has led there.
#[test]
fn what_stands_in_an_if_only_takes_part() {
    let server = Site::server(
        r##"location /head { if ($arg_q) { more_set_input_headers 'X-In: one'; } content_by_lua_block { ngx.print("-", ngx.var.http_x_in or "", "-") } }
            location /program { set $v none; if ($arg_q) { rewrite_by_lua_block { ngx.var.v = "lua" } }
                                content_by_lua_block { ngx.print(ngx.var.v) } }
            location /last { if ($arg_q) { more_set_input_headers 'X-In: one'; rewrite ^ /seen last; } rewrite ^ /seen last; }
            location /seen { content_by_lua_block { ngx.print("-", ngx.var.http_x_in or "", "-") } }"##,
    )
    .start();
    for (target, expected) in [
        ("/head", "--"),
        ("/head?q=1", "-one-"),
        ("/program", "none"),
        ("/program?q=1", "lua"),
        ("/last", "--"),
        ("/last?q=1", "-one-"),
    ] {
        assert_eq!(server.get(target).text(), expected, "{target}");
    }
}

/// What a client has escaped is escaped in a redirect, also where its path had dots or slashes to be taken out.
#[test]
fn captures_of_a_redirect_are_escaped() {
    let server = Site::server("rewrite ^/to(/.*)$ http://h$1 redirect; location / { return 200 plain; }").start();
    for (target, location) in [
        ("/to/b%20c", "http://h/b%20c"),
        ("//to//b%20c/x", "http://h/b%20c/x"),
        ("/./to/%C3%A9", "http://h/%C3%A9"),
        ("/a/../to/a+b?x=%20", "http://h/a+b?x=%20"),
        ("/to/./%2B%25", "http://h/+%25"),
        ("/to/plain", "http://h/plain"),
    ] {
        let r = server.get(target);
        assert_eq!((r.status, r.header("Location")), (302, Some(location)), "{target}");
    }
}

/// An `alias` says where files are that its location was found by. A uri that was rewritten has none there.
#[test]
fn a_rewritten_uri_has_no_file_below_an_alias() {
    let location = "location /a { rewrite ^/a/(.*)$ /b/$1; alias @DIR@/html; return 200 \"[$request_filename]\"; }";
    let server =
        Site::server(&format!("{location} location /c {{ alias @DIR@/html/; return 200 \"[$request_filename]\"; }}"));
    let folder = server.path().display().to_string();
    let server = server.start();
    assert_eq!(server.get("/c/x").text(), format!("[{folder}/html//x]"));
    assert_eq!(server.get("/a/x").text(), "[]");
    assert!(server.error_log().contains("\"alias\" cannot be used in location \"/a\" where URI was rewritten"));
}
