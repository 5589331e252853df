//! What bounds the evaluation of variables: cycles, depth, size. A request whose values cannot be made is answered 500, and
//! nothing is done with what would have been made of them.

use crate::harness::{Backend, Client, Server, Site};

/// Two maps that are made of each other, in the `http` block around a server.
const CYCLE: &str = "map $m2 $m1 { default $m2; } map $m1 $m2 { default $m1; }";

fn with_server(http: &str, server: &str) -> Site {
    Site::http(&format!(
        "{http} server {{ listen 127.0.0.1:@PORT@; server_name localhost; location = /ok {{ return 200 ok; }} {server} }}"
    ))
}

/// The request is answered 500 with this line, and others go on being served, on the same thread.
fn fails(server: &Server, target: &str, line: &str) {
    assert_eq!(server.get(target).status, 500, "{target}");
    assert_eq!(server.get("/ok").text(), "ok");
    assert!(server.error_log().contains(line), "{target}: {}", server.error_log());
}

#[test]
fn a_cycle_of_variables_costs_one_request() {
    let maps = "map $self $self { default \"x$self\"; }
        map $v2 $v1 { volatile; default \"$v2$v2\"; } map $v1 $v2 { volatile; default \"$v1$v1\"; }
        geo $g2 $g1 { default 1; } map $g1 $g2 { default $g1; }
        split_clients $s2 $s1 { * 1; } map $s1 $s2 { default \"$s1\"; }";
    let names = ["m1", "m2", "self", "v1", "g1", "s1"];
    let locations: String = names.iter().map(|n| format!("location = /{n} {{ return 200 \"${n}\"; }} ")).collect();
    let server = with_server(&format!("{CYCLE} {maps}"), &locations).start();
    for name in names {
        fails(&server, &format!("/{name}"), "[error]");
    }
    let log = server.error_log();
    assert_eq!(log.matches("cycle while evaluating variable \"").count(), names.len(), "{log}");
    assert!(log.contains("request: \"GET /v1 HTTP/1.1\""));
}

#[test]
fn a_chain_may_be_a_hundred_deep() {
    let chain = |name: &str, deep: usize, text: &str| -> String {
        let link =
            |n: usize| format!("map ${name}{} ${name}{n} {{ {text} default \"$arg_x${name}{}\"; }}\n", n + 1, n + 1);
        (0..deep).map(link).collect::<String>() + &format!("map $arg_y ${name}{deep} {{ default end; }}\n")
    };
    let http = [chain("a", 98, ""), chain("b", 100, ""), chain("c", 20_000, ""), chain("d", 40, "volatile;")].concat();
    let hash = "variables_hash_max_size 65536; map_hash_max_size 65536;";
    let server = with_server(
        &format!("{hash} {http}"),
        "location = /a { return 200 $a0; } location = /b { return 200 $b0; } location = /c { return 200 $c0; }
         location = /d { return 200 $d40-$d36; } location = /deep { return 200 $d0; }",
    )
    .start();
    assert_eq!(server.get("/a").text(), "end");
    fails(&server, "/b", "cycle while evaluating variable \"b100\"");
    fails(&server, "/c", "cycle while evaluating variable \"c100\"");
    // What is not kept is made anew, source and value: twice as often with each level.
    assert_eq!(server.get("/d").text(), "end-end");
    fails(&server, "/deep", "too many steps while evaluating variable \"d");
}

#[test]
fn a_value_that_doubles_ends_early() {
    let doubling = "set $a \"$a$a\"; ".repeat(40);
    let captured = "if ($a ~ ^(.*)$) { set $a \"$1$1\"; } ".repeat(40);
    let server = with_server(
        "",
        &format!(
            "location = /set {{ set $a 0123456789; {doubling} return 200 $a; }}
             location = /capture {{ set $a 0123456789; {captured} return 200 $a; }}
             location = /few {{ set $a 0123456789; {} return 200 $a; }}
             location = /body {{ client_body_buffer_size 20m; client_max_body_size 20m; proxy_pass http://127.0.0.1:@PORT@/back; proxy_set_body \"<$request_body>\"; }}
             location = /back {{ client_max_body_size 30m; return 200 $content_length; }}",
            "set $a \"$a$a\"; ".repeat(10),
        ),
    )
    .start();
    fails(&server, "/set", "value of more than 16777216 bytes while evaluating variable \"a\"");
    fails(&server, "/capture", "value of more than 16777216 bytes while evaluating variable \"1\"");
    assert_eq!(server.get("/few").body.len(), 10 * 1024);
    // A body that is allowed in memory is allowed in a value.
    let body = "x".repeat(17 * 1024 * 1024);
    let mut client = server.connect();
    client.send(format!("POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(client.response().text(), (body.len() + 2).to_string());
}

/// Wherever a value is used that is none, the answer is 500, and nobody else is asked.
#[test]
fn what_has_no_value_is_not_used() {
    let backend = Backend::ok("from the backend");
    let server = with_server(
        &format!(
            "{CYCLE} log_format bad '[$m1] $status'; 
             proxy_cache_path @DIR@/cache keys_zone=cache:1m; limit_req_zone $m1 zone=requests:1m rate=1r/m;
             upstream hashed {{ hash $m1; server 127.0.0.1:@BACKEND@; }}"
        ),
        "location = /header { add_header X $m1; return 200 text; }
         location = /always { add_header X $m1 always; add_header Y y always; return 200 text; }
         location = /redirect { return 301 /$m1; }
         location = /page { error_page 404 /$m1; return 404; }
         location = /pages { recursive_error_pages on; error_page 500 $m1; return 500; }
         location = /root { root $m1; }
         location = /sub { default_type text/html; sub_filter text $m1; return 200 \"a text\"; }
         location = /subs { default_type text/html; subs_filter text $m1; return 200 \"a text\"; }
         location = /if { if ($m1 = x) { return 200 x; } return 200 no; }
         location = /unless { if ($m1 != x) { return 200 x; } return 200 no; }
         location = /rewrite { rewrite ^ /$m1 last; }
         location = /limit { limit_req zone=requests; return 200 in; }
         location = /limited { limit_req zone=requests; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /set-header { proxy_set_header X $m1; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /method { proxy_method $m1; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /uri { proxy_pass http://127.0.0.1:@BACKEND@/$m1; }
         location = /key { proxy_cache cache; proxy_cache_key $m1; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /hash { proxy_pass http://hashed; }
         location = /fastcgi { fastcgi_param X $m1; fastcgi_pass 127.0.0.1:@BACKEND@; }
         location = /satisfy { satisfy any; auth_basic $m1; auth_basic_user_file @DIR@/none; allow 127.0.0.1; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /asked { auth_request /auth; proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /auth { add_header X $m1; return 200 $m1; }
         location = /log { access_log logs/access.log bad; return 200 fine; }",
    )
    .set("BACKEND", backend.port)
    .start();
    for target in [
        "/header",
        "/always",
        "/redirect",
        "/page",
        "/pages",
        "/root",
        "/sub",
        "/subs",
        "/if",
        "/unless",
        "/rewrite",
        "/limited",
        "/set-header",
        "/method",
        "/uri",
        "/key",
        "/hash",
        "/fastcgi",
        "/asked",
    ] {
        fails(&server, target, &format!("server: localhost, request: \"GET {target} "));
        assert!(server.error_log().contains("cycle while evaluating variable \"m1\""));
    }
    let r = server.get("/always");
    assert_eq!((r.header("X"), r.header("Y")), (None, Some("y")));
    assert!(r.text().contains("500 Internal Server Error"));
    assert!(backend.seen().is_empty(), "{:?}", backend.seen());
    // A log line says what it can.
    assert_eq!(server.get("/log").text(), "fine");
    server.wait_for("logs/access.log", "[-] 200");
}

#[test]
fn a_session_of_stream_ends_where_its_value_is_none() {
    let server = Site::whole(&format!(
        "events {{}} stream {{ {CYCLE} map $self $self {{ default $self; }}
             log_format line '$status'; access_log logs/stream.log line;
             server {{ listen 127.0.0.1:@PORT@; return \"$m1\"; }}
             server {{ listen 127.0.0.1:@OTHER@; set $a 0123456789; {} return $a; }} }}",
        "set $a \"$a$a\"; ".repeat(40),
    ))
    .start();
    for port in [server.port, other(&server), server.port] {
        assert!(Client::connect(port).is_closed());
    }
    server.wait_for("logs/stream.log", "500\n500\n500\n");
    let log = server.error_log();
    assert!(log.contains("cycle while evaluating variable \"m1\""), "{log}");
    assert!(log.contains("value of more than 16777216 bytes while evaluating variable \"a\""), "{log}");
}

/// The second port of a configuration.
fn other(server: &Server) -> u16 {
    let conf = server.read("nginx.conf");
    let mut ports = conf.split("127.0.0.1:").skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    ports.nth(1).flatten().and_then(|port| port.parse().ok()).expect("there are two")
}
