//! Who may: user files, subrequests, links, `satisfy`.

use crate::harness::{Backend, Reply, Response, Server, Site};

fn with_credentials(server: &Server, target: &str, base64: &str) -> Response {
    let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {base64}\r\n\r\n");
    server.connect().send(head).response()
}

/// `u:p` and `u:wrong`
const RIGHT: &str = "dTpw";
const WRONG: &str = "dTp3cm9uZw==";

#[test]
fn slow_hashes_hold_nobody_up_and_changes_of_the_file_are_seen() {
    let bcrypt = "u:$2y$05$abcdefghijklmnopqrstuuqwWMzKt5N8p.u2GX5MuH1t19BMWuLOW\n";
    let server = Site::server("auth_basic closed; auth_basic_user_file @DIR@/users; location / { }")
        .file("html/a", "inside")
        .file("users", "# users\nother:{PLAIN}x\nu:{PLAIN}p\n")
        .start();
    assert_eq!(server.get("/a").status, 401);
    assert_eq!(server.get("/a").header("WWW-Authenticate"), Some("Basic realm=\"closed\""));
    assert_eq!(with_credentials(&server, "/a", RIGHT).text(), "inside");
    assert_eq!(with_credentials(&server, "/a", WRONG).status, 401);
    std::fs::write(server.dir().join("users"), "u:{PLAIN}q\n").unwrap();
    assert_eq!(with_credentials(&server, "/a", RIGHT).status, 401);
    std::fs::write(server.dir().join("users"), bcrypt).unwrap();
    assert_eq!(with_credentials(&server, "/a", WRONG).status, 401);
    for _ in 0..2 {
        assert_eq!(with_credentials(&server, "/a", RIGHT).text(), "inside");
    }
    std::fs::remove_file(server.dir().join("users")).unwrap();
    assert_eq!(with_credentials(&server, "/a", RIGHT).status, 403);
}

#[test]
fn one_of_two_is_enough_with_satisfy_any() {
    let server = Site::server(
        "location /any { satisfy any; deny all; auth_basic x; auth_basic_user_file @DIR@/users; alias @DIR@/html/; }
         location /all { allow all; auth_request /no; alias @DIR@/html/; }
         location = /no { return 403; }",
    )
    .file("html/a", "inside")
    .file("users", "u:{PLAIN}p\n")
    .start();
    let allowed = with_credentials(&server, "/any/a", RIGHT);
    assert_eq!((allowed.status, allowed.header("WWW-Authenticate")), (200, None));
    assert_eq!(server.get("/any/a").status, 401);
    assert_eq!(server.get("/all/a").status, 403);
}

#[test]
fn what_the_subrequest_found_goes_on_with_the_request() {
    let server = Site::server(
        "location /in/ { auth_request /ask; auth_request_set $who $kind; auth_request_set $rest x$none; try_files /none @said; }
         location @said { return 200 $who; }
         location = /ask { set $kind guest; return 204; }
         set $none '';",
    )
    .start();
    assert_eq!(server.get("/in/").text(), "guest");
}

#[test]
fn links_end_when_they_should() {
    let server = Site::server(
        "location / { secure_link $arg_h,$arg_e; secure_link_md5 secret$uri$arg_e; return 200 \"$secure_link $secure_link_expires\"; }
         location /p/ { secure_link_secret word; return 200 $secure_link; }",
    )
    .start();
    // MD5 of `secret/a4102444800` and `secret/a1000000000`.
    for (target, text) in [
        ("/a?h=@LATER@&e=4102444800", "1 4102444800"),
        ("/a?h=@PAST@&e=1000000000", "0 1000000000"),
        ("/a?h=@PAST@&e=4102444800", " 4102444800"),
        ("/a?h=@LATER@", " "),
        ("/p/@PATH@/file", "file"),
        ("/p/@PATH@/other", ""),
    ] {
        let target = target
            .replace("@LATER@", "CVl_F1ecgRBczogcWe9BfQ")
            .replace("@PAST@", "PQFfPlRJ0N1jOaFxEIhQqA")
            .replace("@PATH@", "8f4571e25aecf13317adc14948a5f131");
        assert_eq!(server.get(&target).text(), text, "{target}");
    }
}

#[test]
fn nobody_is_without_a_name() {
    let server = Site::server(
        "auth_basic closed; auth_basic_user_file @DIR@/users; location / { try_files /none @user; } location @user { return 200 \"$remote_user\"; }",
    )
    .file("users", ":{PLAIN}pw\nu:{PLAIN}p\n")
    .start();
    // `:pw`
    assert_eq!(with_credentials(&server, "/", "OnB3").status, 401);
    assert_eq!(with_credentials(&server, "/", RIGHT).text(), "u");
}

#[test]
fn subrequests_know_the_method_of_the_client() {
    let auth = Backend::start(|seen| match seen.header("X-Method") {
        Some("GET") => Reply::ok(""),
        _ => Reply::Keep(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec()),
    });
    let server = Site::server(
        "location / { auth_request /ask; try_files /none @said; }
         location @said { return 200 said; }
         location = /ask { proxy_pass_request_body off; proxy_set_header X-Method $request_method; proxy_pass http://127.0.0.1:@AUTH@; }
         location = /both { default_type text/html; add_before_body /method; return 200 \" $request_method\"; }
         location = /method { return 200 $request_method; }",
    )
    .set("AUTH", auth.port)
    .start();
    assert_eq!(server.get("/").text(), "said");
    for method in ["POST", "PUT", "DELETE"] {
        let head = format!("{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(server.connect().send(head).response().status, 403, "{method}");
    }
    let seen = auth.seen();
    let asked: Vec<_> = seen.iter().map(|s| (s.line().split(' ').next(), s.header("X-Method"))).collect();
    assert_eq!(asked[3], (Some("GET"), Some("DELETE")), "{asked:?}");
    let both = "POST /both HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(server.connect().send(both).response().text(), "POST POST");
}
