//! Programs in Lua, as OpenResty runs them: their places in the phases, and what they call.

use crate::harness::{Backend, Reply, Server, Site, wait};
use rustix::process::Signal;
use std::path::Path;

/// A server whose `/t` answers with what a program says.
fn site(program: &str) -> Site {
    Site::server(&format!("default_type text/plain; location = /t {{ content_by_lua_block {{ {program} }} }}"))
}

fn says(program: &str) -> String {
    site(program).start().get("/t").text()
}

fn get(server: &Server, head: &str) -> String {
    server.connect().send(head).response().text()
}

#[test]
fn a_program_says_what_it_likes() {
    let server =
        site(r##"ngx.say("hello, ", 1, " ", 2.5, " ", true, " ", nil, " ", ngx.null, {" a", {"b", 3}})"##).start();
    let r = server.get("/t");
    assert_eq!((r.status, r.text().as_str()), (200, "hello, 1 2.5 true nil null ab3\n"));
    assert_eq!(r.header("Content-Type"), Some("text/plain"));
    assert_eq!(r.header("Transfer-Encoding"), Some("chunked"));
    assert_eq!(server.connect().head("/t").status, 200);
}

#[test]
fn forms_of_a_program() {
    let server = Site::server(
        r##"location = /block { content_by_lua_block { ngx.say("} ]] --[[", [[ { ]]) -- }
             } }
           location = /string { content_by_lua 'ngx.say("string")'; }
           location ~ ^/file/(\w+)$ { set $name $1; content_by_lua_file @DIR@/html/$name.lua; }"##,
    )
    .file("html/a.lua", "local n = ... ngx.say('a of a file, ', ngx.var.name)")
    .file("html/b.lua", "ngx.say(")
    .start();
    assert_eq!(server.get("/block").text(), "} ]] --[[ { \n");
    assert_eq!(server.get("/string").text(), "string\n");
    assert_eq!(server.get("/file/a").text(), "a of a file, a\n");
    assert_eq!(server.get("/file/b").status, 500);
    assert_eq!(server.get("/file/c").status, 404);
    assert!(server.error_log().contains("failed to load external Lua file"));
}

#[test]
fn each_phase_has_its_turn() {
    let server = Site::http(
        r##"init_by_lua_block { began = "init" }
           init_worker_by_lua_block { began = began .. " " .. ngx.get_phase() }
           log_format phases "$seen $status";
           server { listen 127.0.0.1:@PORT@;
             set $seen ""; access_log @DIR@/logs/phases.log phases;
             server_rewrite_by_lua_block { ngx.ctx.seen = { ngx.get_phase() } }
             location = /t {
               set_by_lua_block $a { return ngx.get_phase() .. (ngx.arg[1] or "") }
               set_by_lua $b 'return ngx.arg[1] .. ngx.arg[2]' $a x;
               rewrite_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) }
               access_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) }
               precontent_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) }
               content_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) ngx.say(began, " ", ngx.var.b) }
               header_filter_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) ngx.header.x_a = "1" }
               body_filter_by_lua_block { ngx.arg[1] = ngx.arg[1]:upper() .. (ngx.arg[2] and "." or "") }
               log_by_lua_block { table.insert(ngx.ctx.seen, ngx.get_phase()) ngx.var.seen = table.concat(ngx.ctx.seen, " ") }
             }
           }"##,
    )
    .start();
    let r = server.get("/t");
    assert_eq!((r.text().as_str(), r.header("X-A")), ("INIT INIT_WORKER SETX\n.", Some("1")));
    server.wait_for("logs/phases.log", "server_rewrite rewrite access precontent content header_filter log 200");
}

#[test]
fn a_program_lets_in_or_not() {
    let server = Site::server(
        r##"location / { access_by_lua_block {
             local who = ngx.var.arg_who
             if who == "nobody" then return ngx.exit(ngx.HTTP_FORBIDDEN) end
             if who == "guest" then ngx.status = 418 ngx.say("hello, guest") return ngx.exit(418) end
             if who == "lost" then return ngx.redirect("/home", 301) end
             if who == "moved" then return ngx.exec("/other", { a = 1 }) end
             if who == "named" then return ngx.exec("@named") end
             ngx.req.set_header("X-Who", who or "none")
           } return 200 "in"; }
           location /in { access_by_lua_block { ngx.req.set_header("X-Who", "known") } try_files /none @shown; }
           location @shown { return 200 "who=$http_x_who"; }
           location = /other { return 200 "other $args"; }
           location @named { return 200 "named $uri"; }"##,
    )
    .start();
    assert_eq!(server.get("/in").text(), "who=known");
    for path in ["/x?who=nobody", "/x?who=guest"] {
        // `return` comes first: it belongs to the rewrite phase.
        assert_eq!(server.get(path).text(), "in");
    }
    let server = Site::server(
        r##"location / { root @DIR@/html; access_by_lua_block {
             local who = ngx.var.arg_who
             if who == "nobody" then return ngx.exit(ngx.HTTP_FORBIDDEN) end
             if who == "guest" then ngx.status = 418 ngx.say("hello, guest") return ngx.exit(418) end
             if who == "lost" then return ngx.redirect("/home", 301) end
             if who == "moved" then return ngx.exec("/other", { a = 1 }) end
             if who == "named" then return ngx.exec("@named") end
           } }
           location = /other { return 200 "other $args"; }
           location @named { return 200 "named $uri"; }"##,
    )
    .file("html/x", "file")
    .start();
    assert_eq!(server.get("/x").text(), "file");
    assert_eq!(server.get("/x?who=nobody").status, 403);
    let r = server.get("/x?who=guest");
    assert_eq!((r.status, r.text().as_str()), (418, "hello, guest\n"));
    let r = server.get("/x?who=lost");
    assert_eq!((r.status, r.header("Location").map(|l| l.ends_with("/home"))), (301, Some(true)));
    assert_eq!(server.get("/x?who=moved").text(), "other a=1");
    assert_eq!(server.get("/x?who=named").text(), "named /x");
}

#[test]
fn rewrites_change_the_uri_and_may_jump() {
    let server = Site::server(
        r##"location = /stay { rewrite_by_lua_block { ngx.req.set_uri("/changed") ngx.req.set_uri_args({ b = 2 }) } return 200 "unreached"; }
           location = /jump { rewrite_by_lua_block { ngx.req.set_uri("/to", true) } root @DIR@/html; }
           location = /to { return 200 "to $uri"; }
           location = /args { rewrite_by_lua_block { ngx.req.set_uri_args({ b = { 2, "x y" } }) } content_by_lua_block { ngx.say(ngx.var.args) } }"##,
    )
    .start();
    assert_eq!(server.get("/jump").text(), "to /to");
    assert_eq!(server.get("/args?a").text(), "b=2&b=x%20y\n");
}

#[test]
fn what_a_request_is() {
    let server = site(
        r##"local r = ngx.req
           ngx.req.read_body()
           local args, post, headers = r.get_uri_args(), r.get_post_args(), r.get_headers()
           ngx.say(r.get_method(), " ", r.http_version(), " ", tostring(r.is_internal()))
           ngx.say(args.a[1], args.a[2], " ", tostring(args.b), " ", args["c d"])
           ngx.say(post.x, " ", r.get_body_data())
           ngx.say(headers.x_list[1], headers["X-List"][2], " ", headers.host)
           ngx.say(ngx.var.request_method, ngx.var.arg_b, " ", ngx.var.http_x_one, " ", tostring(ngx.var.nothing))
           r.set_header("X-One", "new") r.clear_header("X-List")
           ngx.say(r.get_headers()["x-one"], tostring(r.get_headers().x_list), " ", ngx.var.http_x_one)
           ngx.print((r.raw_header():gsub("\r", "")):match("^[^\n]*"))"##,
    )
    .start();
    let text = get(
        &server,
        "POST /t?a=1&a=2&b&c%20d=%2f HTTP/1.1\r\nHost: h\r\nX-One: one\r\nX-List: 1\r\nX-List: 2\r\nContent-Length: 7\r\n\r\nx=1&y=2",
    );
    assert_eq!(
        text,
        "POST 1.1 false\n12 true /\n1 x=1&y=2\n12 h\nPOSTnil one nil\nnewnil new\nPOST /t?a=1&a=2&b&c%20d=%2f HTTP/1.1"
    );
}

#[test]
fn the_host_is_what_its_header_says() {
    let server = Site::server(
        "location = /t { set $known $host; content_by_lua_block {
           ngx.print(ngx.var.host, ' ') ngx.req.set_header('Host', 'new:80') ngx.print(ngx.var.host) } }",
    );
    assert_eq!(get(&server.start(), "GET /t HTTP/1.1\r\nHost: old\r\n\r\n"), "old new");
}

#[test]
fn heads_of_answers() {
    let server = site(
        r##"ngx.status = 201
           ngx.header["X-Two"] = { "a", "b" } ngx.header.content_type = "text/x-own; charset=utf-8"
           ngx.header.x_gone = "1" ngx.header.x_gone = nil ngx.header.content_length = 3
           ngx.header["X-Bad"] = "a\r\nb: c"
           ngx.say(#ngx.header.x_two, ngx.header.content_length, tostring(ngx.header.nothing))"##,
    );
    let server = server.start();
    let r = server.connect().send("GET /t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").response();
    assert_eq!((r.status, r.header("Content-Type")), (201, Some("text/x-own; charset=utf-8")));
    assert_eq!((r.header("X-Gone"), r.header("X-Bad")), (None, Some("a%0D%0Ab: c")));
    assert_eq!(r.headers.iter().filter(|(n, _)| n == "X-Two").count(), 2);
}

#[test]
fn texts_and_digests() {
    let server = site(
        r##"ngx.say(ngx.escape_uri("a b/ä"), " ", ngx.unescape_uri("a%20b+c"), " ", ngx.encode_args({ a = "x y" }))
           ngx.say(ngx.encode_base64("hello"), ngx.decode_base64("aGVsbG8="), " ", ngx.md5("hello"), " ", ngx.crc32_short("hello, world"))
           ngx.say(ngx.encode_base64(ngx.sha1_bin("hello")), " ", ngx.encode_base64(ngx.hmac_sha1("k", "v")), ngx.quote_sql_str("a'b"))
           ngx.say(ngx.http_time(1290079655), "|", ngx.parse_http_time("Thu, 18 Nov 2010 11:27:35 GMT"), "|", ngx.cookie_time(1290079655))
           ngx.say(ngx.time() > 1700000000, ngx.now() >= ngx.time(), #ngx.today(), #ngx.localtime(), #ngx.utctime())
           local ok, e = pcall(ngx.encode_args, 3) ngx.say(e)"##,
    )
    .start();
    let text = server.get("/t").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "a%20b%2F%C3%A4 a b c a=x%20y");
    assert_eq!(lines[1], "aGVsbG8=hello 5d41402abc4b2a76b9719d911017c592 4289425978");
    assert_eq!(lines[2], "qvTGHdzF6KLavt4PO0gs2a6pQ00= lPxqL36JuBls904QeajBHrZ5pVI='a\\'b'");
    assert_eq!(lines[3], "Thu, 18 Nov 2010 11:27:35 GMT|1290079655|Thu, 18-Nov-10 11:27:35 GMT");
    assert_eq!(lines[4], "truetrue101919");
    // As of a function in C: what `pcall` calls has no name.
    assert_eq!(lines[5], "bad argument #1 to '?' (table expected, got number)");
}

#[test]
fn expressions() {
    let text = says(
        r##"local m = ngx.re.match("hello, 1234", "(?<first>[0-9])([0-9]+)", "jo")
           ngx.say(m[0], " ", m[1], " ", m[2], " ", m.first, " ", tostring(ngx.re.match("a", "b")))
           ngx.say(ngx.re.find("hello, 1234", "([0-9])([0-9]+)", "jo", nil, 2))
           ngx.say(ngx.re.sub("hello, 1234", "([0-9])[0-9]", "[$0][$1]${1}$$"))
           ngx.say(ngx.re.gsub("hello, world", "([a-z])[a-z]+", "[$0,$1]", "i"))
           ngx.say(ngx.re.gsub("abc", "", "-"))
           ngx.say(ngx.re.gsub("a1b2", "[0-9]", function(m) return "<" .. m[0] .. ">" end))
           for m in ngx.re.gmatch("a1 b2", "([a-z])([0-9])", "jo") do ngx.print(m[2], m[1], ";") end
           local ctx = { pos = 2 } ngx.re.match("1 22", "[0-9]+", "", ctx) ngx.say(ctx.pos)
           local m, e = ngx.re.match("a", "(") ngx.say(tostring(m), " ", e)
           m = ngx.re.match("a foobar", "(?<name>foo|foobar)", "djo") ngx.say(m[0], " ", tostring(m[1]), " ", tostring(m.name))
           for m in ngx.re.gmatch("hello, halo", "h[a-z]|h[a-z][a-z]", "d") do ngx.print(m[0], ";") end
           ngx.say(ngx.re.gsub("foobar foo", "foo|foobar", "<$0>", "d"))
           ngx.say(tostring(select(3, ngx.re.find("a", "a", "d", nil, 1))))
           m, e = ngx.re.match("aa", "(a)\\1", "d") ngx.say(tostring(m), " ", e)
           m, e = ngx.re.match("a", "(", "d") ngx.say(tostring(m), " ", e)
           ngx.say(tostring(ngx.re.find("\195\169", "\\w", "u")), " ", ngx.re.find("\195\169", "^.$", "u"))"##,
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[8], "foobar nil nil");
    assert_eq!(lines[9], "hel;hal;<foobar> <foo>2");
    assert_eq!(lines[10], "nth out of bound");
    assert_eq!(lines[11], "nil pcre_exec() failed: -42");
    assert!(lines[12].starts_with("nil pcre2_compile() failed: missing closing parenthesis"), "{}", lines[12]);
    // `u` says what a character is, not what a letter is: as in ngx_lua.
    assert_eq!(lines[13], "nil 12");
    assert_eq!(lines[0], "1234 1 234 1 nil");
    assert_eq!(lines[1], "911");
    assert_eq!(lines[2], "hello, [12][1]1$341");
    assert_eq!(lines[3], "[hello,h], [world,w]2");
    assert_eq!(lines[4], "-a-b-c-4");
    assert_eq!(lines[5], "a<1>b<2>2");
    assert_eq!(lines[6], "1a;2b;5");
    assert!(lines[7].starts_with("nil pcre2_compile() failed: missing closing parenthesis"), "{}", lines[7]);
}

#[test]
fn dictionaries_are_shared_and_outlive_a_reload() {
    let server = Site::http(
        r##"lua_shared_dict d 100k; lua_shared_dict small 8192; 
           server { listen 127.0.0.1:@PORT@;
             location = /set { content_by_lua_block {
               local d = ngx.shared.d
               ngx.say(d:set("a", 1), d:set("b", "text", 0, 7), d:set("c", true), d:add("a", 2))
               ngx.say(d:incr("a", 5), " ", tostring(d:incr("n", 1)), " ", d:incr("n", 1, 10))
               ngx.say(d:get("b")) ngx.say(tostring(d:get("c")), d:replace("none", 1))
               ngx.say(d:lpush("l", "x"), d:rpush("l", 2), d:lpop("l"), d:rpop("l"), tostring(d:lpop("l")))
               ngx.say(#d:get_keys(), " ", d:capacity(), " ", d:free_space() > 0, " ", tostring(d:ttl("a")))
               d:set("short", 1, 0.001) ngx.sleep(0.02)
               ngx.say(tostring(d:get("short")), " ", d:get_stale("short"))
               d:delete("c") ngx.say(tostring(d:get("c")), " ", d:flush_expired())
             } }
             location = /get { content_by_lua_block { ngx.say(ngx.shared.d:get("a")) } }
             location = /full { content_by_lua_block {
               local forced = false
               for i = 1, 100 do local ok, err, forcible = ngx.shared.small:set(i, ("x"):rep(100)) forced = forced or forcible end
               ngx.say(forced, " ", ngx.shared.small:get(100) ~= nil, " ", tostring(ngx.shared.small:get(1)))
               ngx.say(ngx.shared.small:safe_set("y", ("x"):rep(8000)))
             } }
           }"##,
    )
    .start();
    let text = server.get("/set").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "truetruetruefalseexistsfalse");
    assert_eq!(lines[1], "6 nil 11nilfalse");
    assert_eq!(lines[2], "text7");
    assert_eq!(lines[3], "truefalsenot foundfalse");
    assert_eq!(lines[4], "12x2nil");
    assert_eq!(lines[5], "4 102400 true 0");
    assert_eq!(lines[6], "nil 1niltrue");
    assert_eq!(lines[7], "nil 1");
    assert_eq!(server.get("/full").text(), "true true nil\nfalseno memoryfalse\n");
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("logs/error.log", "reconfigur");
    assert_eq!(server.get("/get").text(), "6\n");
}

#[test]
fn what_waits_lets_others_go_on() {
    let server = Site::server(
        r##"location = /sleep { content_by_lua_block { ngx.sleep(0.3) ngx.say("slept") } }
           location = /now { content_by_lua_block { ngx.say("now") } }
           location = /threads { content_by_lua_block {
             local function f(n) ngx.sleep(n / 10) ngx.print(n, " ") return n * 2, "x" end
             local a, b = ngx.thread.spawn(f, 3), ngx.thread.spawn(f, 1)
             ngx.say(ngx.thread.wait(a, b)) ngx.say(ngx.thread.wait(a))
             local c = ngx.thread.spawn(function() ngx.sleep(10) end)
             ngx.say(ngx.thread.kill(c), " ", ngx.thread.kill(c))
             local d = ngx.thread.spawn(function() error("oops") end)
             local ok, err = ngx.thread.wait(d) ngx.say(tostring(ok), " ", err)
             local co = coroutine.wrap(function() ngx.sleep(0.001) coroutine.yield("from") ngx.sleep(0.001) return "within" end)
             ngx.say(co(), " ", co())
             local light
             ngx.thread.spawn(function()
               light = coroutine.running()
               coroutine.resume(coroutine.create(function() ngx.sleep(0.001) end))
               coroutine.yield()
             end)
             -- What the light thread has resumed waits, not itself.
             ngx.say(coroutine.status(light))
             ngx.sleep(0.02) ngx.say(coroutine.status(light))
             local s = require("ngx.semaphore").new()
             ngx.thread.spawn(function() ngx.sleep(0.01) assert(s:post()) end)
             ngx.say(s:wait(5), " ", s:wait(0.001))
           } }"##,
    )
    .start();
    let mut slow = server.connect();
    slow.send("GET /sleep HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(server.get("/now").text(), "now\n");
    assert_eq!(slow.response().text(), "slept\n");
    let text = server.get("/threads").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1 true2x");
    assert_eq!(lines[1], "3 true6x");
    assert_eq!(lines[2], "1 nilalready waited or killed");
    // As in OpenResty, whoever waits gets the argument of `error`, without the place.
    assert_eq!(lines[3], "false oops");
    assert_eq!(lines[4], "from within");
    assert_eq!(lines[5..7], ["normal", "zombie"]);
    assert_eq!(lines[7], "true niltimeout");
    server.wait_for("logs/error.log", "lua user thread aborted: runtime error: content_by_lua(nginx.conf:");
}

#[test]
fn timers_run_later_and_end_with_their_configuration() {
    let server = Site::http(
        r##"lua_shared_dict d 100k;
           init_worker_by_lua_block { ngx.timer.every(0.01, function() ngx.shared.d:incr("every", 1, 0) end) }
           server { listen 127.0.0.1:@PORT@;
             location = /t { content_by_lua_block {
               ngx.timer.at(0, function(premature, a, b) ngx.log(ngx.NOTICE, "later: ", tostring(premature), a, b, ngx.get_phase()) ngx.say("no") end, 1, "x")
               ngx.timer.at(1000, function(premature) ngx.log(ngx.NOTICE, "ended early: ", tostring(premature)) end)
               ngx.say(ngx.timer.pending_count() > 1)
             } }
             location = /count { content_by_lua_block { ngx.say(ngx.shared.d:get("every") or 0) } }
           }"##,
    )
    .start();
    assert_eq!(server.get("/t").text(), "true\n");
    server.wait_for("logs/error.log", "later: false1xtimer");
    server.wait_for("logs/error.log", "API disabled in the context of ngx.timer");
    assert!(crate::harness::wait(|| server.get("/count").text().trim().parse::<u32>().unwrap() > 3));
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("logs/error.log", "ended early: true");
}

#[test]
fn subrequests_are_captured() {
    let server = Site::server(
        r##"default_type text/plain;
           location = /one { content_by_lua_block { ngx.header["X-A"] = "b" ngx.print("one ", ngx.var.args, " ", ngx.var.request_method) } }
           location = /two { content_by_lua_block { ngx.req.read_body() ngx.status = 404 ngx.print("two ", ngx.req.get_body_data(), tostring(ngx.is_subrequest)) } }
           location = /large { content_by_lua_block { for _ = 1, 100 do ngx.print(("x"):rep(1000)) end } }
           location = /slow { content_by_lua_block { ngx.sleep(0.05) ngx.print("slow") } }
           location = /t { content_by_lua_block {
             local r = ngx.location.capture("/one?a=1", { args = { b = 2 } })
             ngx.say(r.status, " ", r.body, " ", r.header["X-A"], " ", tostring(r.truncated))
             r = ngx.location.capture("/two", { method = ngx.HTTP_POST, body = "given" })
             ngx.say(r.status, " ", r.body)
             local a, b = ngx.location.capture_multi({ { "/slow" }, { "/one" } })
             ngx.say(a.body, " ", b.body)
             ngx.say(#ngx.location.capture("/large").body)
           } }"##,
    )
    .start();
    assert_eq!(server.get("/t").text(), "200 one a=1&b=2 GET b false\n404 two giventrue\nslow one nil GET\n100000\n");
}

#[test]
fn mistakes_cost_the_request_and_have_their_place() {
    let server = Site::server(
        r##"location = /error { content_by_lua_block {
             local function f() error("oops") end
             f() } }
           location = /nil { access_by_lua_block { local x = nil
             x.y = 1 } }
           location = /log { content_by_lua_block {
             ngx.log(ngx.ERR, "a message: ", 1, nil, true)
             ngx.say(select(2, pcall(ngx.say, function() end)))
             written = 1
             print("printed") } }
           location = /late { content_by_lua_block { ngx.say("a") error("late") } }
           location = /filter { content_by_lua_block { ngx.say("a") } log_by_lua_block { ngx.say("b") } }"##,
    )
    .start();
    assert_eq!(server.get("/error").status, 500);
    assert_eq!(server.get("/nil").status, 500);
    let text = server.get("/log").text();
    assert!(
        text.starts_with("bad argument #1 to 'say' (string, number, boolean, nil, ngx.null, or array table expected"),
        "{text}"
    );
    assert_eq!(server.get("/filter").text(), "a\n");
    server.wait_for("logs/error.log", "API disabled in the context of log_by_lua*");
    let log = server.error_log();
    for wanted in [
        "lua entry thread aborted: runtime error: content_by_lua(nginx.conf:3):2: oops\nstack traceback:\ncoroutine 0:\n\t",
        "access_by_lua(nginx.conf:6):2: attempt to index local 'x' (a nil value)",
        "[lua] content_by_lua(nginx.conf:8):2: a message: 1niltrue, client: 127.0.0.1, server: , request: \"GET /log HTTP/1.1\"",
        "[warn]",
        "writing a global Lua variable ('written')",
        "[lua] content_by_lua(nginx.conf:8):5: printed",
    ] {
        assert!(log.contains(wanted), "{wanted} is not in\n{log}");
    }
}

/// However a program goes about it: what has run too long is ended, and the next has its own time.
#[test]
fn a_program_that_runs_away_is_ended() {
    let forever = "function() while true do end end";
    let programs = [
        format!("while true do pcall({forever}) end"),
        format!("return pcall({forever})"),
        format!("pcall(pcall, pcall, {forever}) ngx.say('on')"),
        format!("while true do xpcall({forever}, {forever}) end"),
        format!("return xpcall({forever}, {forever})"),
        format!("while true do coroutine.resume(coroutine.create({forever})) end"),
        format!("while true do pcall(coroutine.wrap({forever})) end"),
        format!("while true do ngx.thread.wait(ngx.thread.spawn({forever})) end"),
        "jit.on() local n = 0 while true do n = n + 1 end".to_owned(),
        "pcall(debug.sethook) while true do end".to_owned(),
        "local function again() pcall(again) return again() end again()".to_owned(),
        format!("while true do pcall({forever}) ngx.sleep(0) end"),
    ];
    let locations = programs
        .iter()
        .enumerate()
        .map(|(number, program)| format!("location = /{number} {{ content_by_lua_block {{ {program} }} }}\n"));
    let server = Site::http(&format!(
        r##"lua_max_run_time 50ms;
        init_worker_by_lua_block {{ ngx.timer.at(0, function() local in_timer while true do pcall({forever}) end end) }}
        server {{ listen 127.0.0.1:@PORT@;
          location = /now {{ content_by_lua_block {{ local n = 0 for i = 1, 1000 do n = n + i end ngx.say(pcall(error, "e")) }} }}
          location = /place {{ content_by_lua_block {{
            local function deep()
              while true do end
            end
            pcall(deep)
            ngx.say("on") }} }}
          {} }}"##,
        locations.collect::<String>()
    ))
    .start();
    for (number, program) in programs.iter().enumerate() {
        assert_eq!(server.get(&format!("/{number}")).status, 500, "{program}");
        assert_eq!(server.get("/now").text(), "falsee\n", "after {program}");
    }
    assert_eq!(server.get("/place").status, 500);
    server.wait_for("logs/error.log", "/place HTTP");
    let log = server.error_log();
    let ended = log.matches("lua entry thread aborted: runtime error: content_by_lua(nginx.conf:").count();
    assert_eq!(ended, programs.len() + 1, "{log}");
    assert!(log.contains("lua entry thread aborted: runtime error: init_worker_by_lua(nginx.conf:"), "{log}");
    // It shows where the time went, not where the program was left.
    let place = log.lines().position(|line| line.contains("):3: lua_max_run_time: the program has run for ")).unwrap();
    let traced: Vec<&str> = log.lines().skip(place + 1).take(3).collect();
    assert_eq!(traced[..2], ["stack traceback:", "coroutine 0:"], "{log}");
    assert!(traced[2].contains("in function 'deep'") || traced[2].contains("in function <content_by_lua("), "{log}");
}

#[test]
fn a_syntax_error_is_the_configuration_s() {
    let (status, said) = Site::server("location / { content_by_lua_block { ngx.say( } }").check();
    assert!(!status.success());
    assert!(said.contains("failed to load inlined Lua code: content_by_lua(nginx.conf:"), "{said}");
    let (status, said) = Site::http("lua_socket_send_lowat x;").check();
    assert!(!status.success() && said.contains("invalid value"), "{said}");
}

/// Functions of modules in threads of their own: what they compute holds up nobody.
#[test]
fn functions_run_in_threads_of_a_pool() {
    let server = Site::whole(
        r##"thread_pool work threads=2; worker_processes 1; events {} http { lua_package_path '@DIR@/html/?.lua;;';
           lua_worker_thread_vm_pool_size 4; init_by_lua_block { began = true }
           server { listen 127.0.0.1:@PORT@; default_type text/plain;
             location = /t { content_by_lua_block {
               ngx.say(ngx.run_worker_thread("work", "job", "add", 2, 40.5))
               local ok, back, none, flag = ngx.run_worker_thread("work", "job", "echo", { a = { "x", false } }, nil, true)
               ngx.say(ok, " ", back.a[1], " ", back.a[2], " ", none, " ", flag)
               ngx.say(ngx.run_worker_thread("work", "job", "crypt", "hello"))
               ngx.say(ngx.run_worker_thread("default", "job", "state"))
             } }
             location = /slow { content_by_lua_block { ngx.say(ngx.run_worker_thread("work", "job", "slow")) } }
             location = /now { content_by_lua_block { ngx.say("now") } }
             location = /wrong { content_by_lua_block {
               for _, call in ipairs({ { "none", "job", "add" }, { "work", "nothing", "add" }, { "work", "job", "none" }, { "work", "job", "fails" },
                   { "work", "job", "echo", print }, { "work", "job", "gives" }, { "work", "job", "request" } }) do
                 local ok, text = ngx.run_worker_thread(unpack(call))
                 ngx.say(ok, " ", text:match("[^\n]*"))
               end
               local round = {} round.round = round
               ngx.say(ngx.run_worker_thread("work", "job", "echo", round))
               ngx.say(pcall(ngx.run_worker_thread, "work"))
             } }
             log_by_lua_block { local ok, text = pcall(ngx.run_worker_thread, "work", "job", "add", 1, 1) ngx.log(ngx.WARN, "log: ", text) } } }"##,
    )
    .file(
        "html/job.lua",
        "return { add = function(a, b) return a + b end, echo = function(...) return ... end,
           crypt = function(text) return ngx.md5(text) end, state = function() return began, ngx.config.subsystem end,
           fails = function() error('it fails') end, gives = function() return print end,
           request = function() return ngx.var.uri end,
           slow = function() local t = os.clock() while os.clock() - t < 1 do end return 'slow' end }",
    )
    .start();
    assert_eq!(
        server.get("/t").text(),
        "true42.5\ntrue x false nil true\ntrue5d41402abc4b2a76b9719d911017c592\ntruenilhttp\n"
    );
    let mut slow = server.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    let began = std::time::Instant::now();
    assert_eq!(server.get("/now").text(), "now\n");
    assert!(began.elapsed() < std::time::Duration::from_millis(900), "{:?}", began.elapsed());
    assert_eq!(slow.response().text(), "trueslow\n");
    let text = server.get("/wrong").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "false thread pool none not found");
    assert!(lines[1].starts_with("false ") && lines[1].contains("module 'nothing' not found"), "{text}");
    assert!(lines[2].starts_with("false ") && lines[3].contains("job.lua:3: it fails"), "{text}");
    assert_eq!(lines[4], "false unsupported Lua type: function in the argument");
    assert_eq!(lines[5], "false unsupported Lua type: function in the return value");
    assert!(lines[6].starts_with("false ") && lines[6].contains("no request found"), "{text}");
    assert_eq!(lines[7], "falsesuspicious circular references, table depth exceed max depth: 100 in the argument");
    assert!(lines[8].ends_with("expecting at least 3 arguments"), "{text}");
    server.wait_for("logs/error.log", "log: API disabled in the context of log_by_lua*");
}

/// A program of the start that fails is the configuration's mistake: the old one goes on.
#[test]
fn init_by_lua_that_fails_changes_nothing() {
    let config = |program: &str| {
        format!(
            "init_by_lua_block {{ {program} }}
             server {{ listen 127.0.0.1:@PORT@; location = /t {{ content_by_lua_block {{ ngx.say(began) }} }} }}"
        )
    };
    let failing = config("error('no database')");
    let (status, said) = Site::http(&failing).check();
    assert!(!status.success(), "{said}");
    assert!(said.contains("[emerg] init_by_lua error: init_by_lua(nginx.conf:"), "{said}");
    assert!(said.contains("no database") && said.contains("stack traceback:"), "{said}");
    let server = Site::http(&config("began = 'first'")).start();
    assert_eq!(server.get("/t").text(), "first\n");
    let reload = |before: &str, after: &str| {
        std::fs::write(server.dir().join("nginx.conf"), server.read("nginx.conf").replace(before, after)).unwrap();
        server.signal(Signal::HUP);
    };
    reload("began = 'first'", "error('no database')");
    server.wait_for("logs/error.log", "no database");
    assert_eq!(server.get("/t").text(), "first\n");
    reload("error('no database')", "began = 'second'");
    assert!(wait(|| server.get("/t").text() == "second\n"), "{}", server.error_log());
}

#[test]
fn files_of_programs_that_cannot_be_run_are_named_by_a_test() {
    let site = Site::server(
        "location /a { content_by_lua_file @DIR@/html/bad.lua; } location /b { access_by_lua_file html/none.lua; }
         location /c { content_by_lua_file html/$arg_file; }",
    );
    let (status, said) = site.file("html/bad.lua", "ngx.say(").check();
    assert!(status.success(), "requests to other locations are answered: {said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("[warn] Lua file")).collect();
    assert_eq!(warnings.len(), 2, "{said}");
    assert!(warnings[0].contains("bad.lua\" cannot be run: ") && warnings[0].contains("near '<eof>'"), "{said}");
    assert!(warnings[1].contains("none.lua\" cannot be run: cannot open"), "{said}");
}

/// The configuration in `shared/data/field-configs` as it is, but for its port.
#[test]
fn an_operator_s_configuration_with_a_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/field-configs/lua-512.conf");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return println!("LEFT OUT: {} is not there", path.display());
    };
    let start = text.find("server {").unwrap();
    let end = text.rfind('}').unwrap();
    let server = Site::http(&text[start..end].replace("listen 8080", "listen 127.0.0.1:@PORT@")).start();
    let mut client = server.connect();
    for _ in 0..3 {
        let answer = client.send("GET /512b HTTP/1.1\r\nHost: a\r\n\r\n").response();
        assert_eq!((answer.status, answer.header("Content-Length")), (200, Some("512")));
        assert_eq!(answer.header("Transfer-Encoding"), None);
        assert_eq!(answer.text(), "a".repeat(512));
    }
}

#[test]
fn what_runs_for_long_is_named_and_memory_is_counted() {
    let server = Site::server(
        "location = /long { content_by_lua_block { local t = os.clock() while os.clock() - t < 1.6 do end ngx.say('done') } }
         location = /keep { content_by_lua_block { package.loaded.kept = string.rep('x', 5e6) ngx.say(#package.loaded.kept) } }
         location /api { api; }",
    )
    .set("THREADS", 1)
    .start();
    let bytes = || {
        let said: serde_json::Value = serde_json::from_str(&server.get("/api/9/ironweir/memory").text()).unwrap();
        said["process"]["lua_bytes"].as_u64().unwrap()
    };
    let before = bytes();
    assert!((50_000..5_000_000).contains(&before), "{before}");
    assert_eq!(server.get("/keep").text(), "5000000\n");
    assert!(bytes() >= before + 5_000_000, "{before} {}", bytes());
    assert_eq!(server.get("/long").text(), "done\n");
    server.wait_for("logs/error.log", "has kept worker 0 for 1");
    let log = server.error_log();
    let (_, traced) =
        log.split_once("ms without waiting: nobody else is served there meanwhile\n").expect("the whole line");
    assert!(traced.starts_with("stack traceback:\n"), "{log}");
    assert!(traced.lines().take(4).any(|line| line.contains("content_by_lua(nginx.conf:3):1: in ")), "{log}");
}

/// While one light thread waits for the body or for the client, the others run.
#[test]
fn light_threads_run_while_one_reads_the_body_or_flushes() {
    let backend = Backend::start(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        Reply::ok(&body)
    });
    let server = Site::http(
        "lua_shared_dict d 1m; server { listen 127.0.0.1:@PORT@; client_body_timeout 2s;
         location = /body { content_by_lua_block {
           local read = ngx.thread.spawn(function() ngx.req.read_body() return ngx.req.get_body_data() end)
           local again = ngx.thread.spawn(function() ngx.req.read_body() return 'too' end)
           local ticks = 0
           while coroutine.status(read) ~= 'zombie' do ngx.sleep(0.01) ticks = ticks + 1 ngx.shared.d:set('ticks', ticks) end
           ngx.say(select(2, ngx.thread.wait(read)), ' ', select(2, ngx.thread.wait(again)), ' ', ticks > 4)
         } }
         location = /left { rewrite_by_lua_block {
           ngx.thread.spawn(function() ngx.req.read_body() end)
           ngx.sleep(0.05) ngx.shared.d:set('left', 1) ngx.exit(ngx.OK)
         } proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /flush { content_by_lua_block {
           local done = false
           ngx.thread.spawn(function() ngx.print(string.rep('x', 5e6)) ngx.flush(true) done = true end)
           local ticks = 0
           while not done do ngx.sleep(0.01) ticks = ticks + 1 ngx.shared.d:set('flushing', ticks) end
           ngx.say('y')
         } }
         location = /get { content_by_lua_block { ngx.print(ngx.shared.d:get(ngx.var.arg_name) or 0) } } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let many = |name: &str, least: u32| {
        wait(|| server.get(&format!("/get?name={name}")).text().parse::<u32>().is_ok_and(|count| count >= least))
    };
    let mut client = server.connect();
    client.send("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert!(many("ticks", 5), "{}", server.error_log());
    client.send("world");
    assert_eq!(client.response().text(), "helloworld too true\n");
    // The clock of the body runs all the same.
    let mut late = server.connect();
    late.send("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert!(late.is_closed(), "as nginx does with a body that does not come");
    // The program ends before the body is there: whoever goes on has all of it.
    let mut left = server.connect();
    left.send("POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert!(many("left", 1));
    left.send("world");
    assert_eq!(left.response().text(), "helloworld");
    let mut slow = server.connect();
    slow.send("GET /flush HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(many("flushing", 5), "{}", server.error_log());
    assert_eq!(slow.response().text().len(), 5_000_002);
}

#[test]
fn libraries() {
    let server = Site::http(
        r##"lua_package_path "$prefix/lib/?.lua;@DIR@/html/?.lua;;";
           server { listen 127.0.0.1:@PORT@; location = /t { content_by_lua_block {
             local own = require "own"
             require "resty.core"
             local cjson = require "cjson"
             local safe = require "cjson.safe"
             ngx.say(own.count(), own.count(), " ", cjson.encode({ 1, 2, { a = cjson.null } }), " ", cjson.decode('{"a":[1,{"b":"x"}]}').a[2].b)
             ngx.say(tostring(safe.decode("{")), " ", tostring(cjson.decode("null") == ngx.null), " ", cjson.encode({}))
             local sha = require("resty.sha256"):new() sha:update("hello")
             ngx.say(require("resty.string").to_hex(sha:final()))
             ngx.say(table.concat(require("ngx.re").split("a,b,c", ","), "|"), " ", require("table.nkeys")({ a = 1 }))
             ngx.say(type(require("ffi").cast), " ", type(jit.version), " ", require("bit").band(7, 3), " ", type(require("table.new")))
           } } }"##,
    )
    .file("html/own.lua", "local n = 0 return { count = function() n = n + 1 return n end }")
    .start();
    let text = server.get("/t").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r##"12 [1,2,{"a":null}] x"##);
    assert_eq!(lines[1], "nil true {}");
    assert_eq!(lines[2], "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    assert_eq!(lines[3], "a|b|c 1");
    assert_eq!(lines[4], "function string 3 function");
}

#[test]
fn libraries_of_openresty_are_where_its_packages_put_them() {
    let programs = "location = /path { content_by_lua_block { ngx.print(package.path) } }
        location = /cpath { content_by_lua_block { ngx.print(package.cpath) } }";
    let server = Site::server(programs).start();
    let folders = "/usr/local/openresty/site/lualib/?.lua;/usr/local/openresty/site/lualib/?/init.lua;/usr/local/openresty/lualib/?.lua;\
        /usr/local/openresty/lualib/?/init.lua;./?.lua;/usr/local/share/lua/5.1/?.lua;";
    let path = server.get("/path").text();
    assert!(path.starts_with(folders) && path.ends_with("/luajit/share/lua/5.1/?/init.lua"), "{path}");
    let path = server.get("/cpath").text();
    assert!(
        path.starts_with("/usr/local/openresty/site/lualib/?.so;/usr/local/openresty/lualib/?.so;./?.so;"),
        "{path}"
    );
}

#[test]
fn without_a_cache_programs_are_read_anew() {
    let server = Site::server("lua_code_cache off; location = /t { content_by_lua_file @DIR@/html/t.lua; }")
        .file("html/t.lua", "count = (count or 0) + 1 ngx.say('one ', count)")
        .start();
    assert_eq!(server.get("/t").text(), "one 1\n");
    assert_eq!(server.get("/t").text(), "one 1\n");
    std::fs::write(server.dir().join("html/t.lua"), "ngx.say('two')").unwrap();
    assert_eq!(server.get("/t").text(), "two\n");
}

#[test]
fn a_program_hears_that_its_client_has_gone() {
    let server = site(
        "for i = 1, 2000 do
           ngx.say(('x'):rep(1000))
           local ok, err = ngx.flush(true)
           if not ok then
             local said, why = ngx.say('more')
             local ended, because = ngx.eof()
             ngx.log(ngx.WARN, 'flush: ', err, ', say: ', said, ' ', why, ', eof: ', ended, ' ', because, '.')
             return
           end
           ngx.sleep(0.005)
         end",
    )
    .start();
    let mut client = server.connect();
    client.send("GET /t HTTP/1.1\r\nHost: x\r\n\r\n");
    drop(client);
    let lost = "nginx output filter error";
    server.wait_for("logs/error.log", &format!("flush: {lost}, say: nil {lost}, eof: nil {lost}."));
    assert_eq!(server.get("/none").status, 404);
}

#[test]
fn a_captured_error_is_a_status_without_a_page() {
    let server = Site::server(
        r##"location = /sub { return 500; } location = /paged { error_page 404 /page; return 404; } location = /page { return 200 page; }
           location = /t { content_by_lua_block {
             local bare, paged = ngx.location.capture_multi({ { "/sub" }, { "/paged" } })
             ngx.say(bare.status, " [", bare.body, "] ", paged.status, " ", paged.body) } }"##,
    )
    .start();
    assert_eq!(server.get("/t").text(), "500 [] 404 page\n");
}

#[test]
fn functions_of_resty_core_refuse_in_its_words() {
    let said = says(
        r##"local function try(f, ...) local ok, why = pcall(f, ...) ngx.say(ok and "ok" or why) end
           local req, errlog = require "ngx.req", require "ngx.errlog"
           req.add_header(123, 456) req.add_header(123, { 7, "x" })
           ngx.say(table.concat(ngx.req.get_headers()[123], " "))
           try(req.add_header) try(req.add_header, "a") try(req.add_header, "a", {})
           try(ngx.resp.add_header, "a")
           try(errlog.raw_log, ngx.ERR, {})
           ngx.say(require("ngx.base64").decode_base64url("    "))
           ngx.say(errlog.set_filter_level(ngx.ERR))
           local split = require("ngx.re").split
           for _, given in ipairs({ { "a,b,,", "," }, { "abc", "" }, { "ab", "^" }, { "a,b,c,d", "(,)", nil, nil, 3 }, { "a,b", ",", nil, { pos = 9 } } }) do
             ngx.say(table.concat(split(unpack(given, 1, 5)), "|"))
           end
           local own = require("resty.core.base").new_tab(0, 1)
           ngx.say(ngx.req.get_uri_args(0, own) == own)"##,
    );
    let wanted = [
        "456 7 x",
        "bad 'name' argument: string expected, got nil",
        "bad 'value' argument: string or table expected, got nil",
        "bad 'value' argument: non-empty table expected",
        "invalid header value",
        "bad argument #2 to 'raw_log' (must be a string)",
        "nilinvalid input",
        "nildirective \"lua_capture_error_log\" is not set",
        "a|b",
        "a|b|c",
        "ab",
        "a|,|b|,|c,d",
        "",
        "true",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

/// What ngx_lua's own suite asks, and was otherwise here.
#[test]
fn ends_of_programs_leave_what_was_said() {
    let server = Site::server(
        r##"default_type text/plain;
           location = /unread { content_by_lua_block {
             ngx.say("before") ngx.thread.spawn(function() ngx.sleep(0.01) ngx.exit(0) end)
             ngx.req.read_body() ngx.say("never")
           } }
           location = /killed { content_by_lua_block {
             local asks = ngx.thread.spawn(function() ngx.location.capture("/slow") end)
             local sleeps = ngx.thread.spawn(function() ngx.sleep(10) end)
             ngx.say(ngx.thread.kill(asks)) ngx.say(ngx.thread.kill(sleeps))
           } }
           location = /slow { content_by_lua_block { ngx.sleep(0.05) } }
           location = /jump { rewrite_by_lua_block { ngx.ctx.kept = 1 ngx.req.set_uri("/ctx", true) } }
           location = /ctx { content_by_lua_block { ngx.say(ngx.ctx.kept) } }
           location = /climbs { content_by_lua_block { ngx.exec("/a/../b") } }
           location = /escaped { content_by_lua_block { ngx.exec("/sp%61ce?a=%20", "b=1") } }
           location = /space { content_by_lua_block { ngx.say(ngx.var.uri, "?", ngx.var.args) } }
           location = /phase { content_by_lua_block {
             ngx.say(ngx.get_raw_phase(), " ", coroutine._yield ~= coroutine.yield, " ", coroutine.__yield == coroutine.yield)
           } }"##,
    )
    .start();
    let mut client = server.connect();
    client.send("POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    assert_eq!(client.response().text(), "before\n");
    assert_eq!(server.get("/killed").text(), "nilpending subrequests\n1\n");
    assert_eq!(server.get("/jump").text(), "nil\n");
    assert_eq!(server.get("/climbs").status, 500);
    server.wait_for("logs/error.log", "unsafe URI \"/a/../b\" was detected");
    assert_eq!(server.get("/escaped").text(), "/space?a=%20&b=1\n");
    assert_eq!(server.get("/phase").text(), "8 false true\n");
}

/// Which process it is: the master runs `init_by_lua*` in OpenResty, and without a master there is one process.
#[test]
fn a_program_asks_what_its_process_is() {
    let text = r##"events {} http { init_by_lua_block {
             local process = require "ngx.process"
             first = process.type() .. " " .. select(2, process.enable_privileged_agent(-1))
           }
           server { listen 127.0.0.1:@PORT@; location = /t { content_by_lua_block {
             local process = require "ngx.process"
             ngx.say(first, "|", process.type(), "|", select(2, process.enable_privileged_agent()), "|", process.get_master_pid() == ngx.worker.pid())
           } } } }"##;
    let refused = "bad 'connections' argument: number expected and greater than 0|";
    let said = |text: &str| Site::whole(text).start().get("/t").text();
    assert_eq!(said(text), format!("master {refused}worker|API disabled in the current context|false\n"));
    let alone = format!("master_process off; {text}");
    assert_eq!(said(&alone), format!("single {refused}single|API disabled in the current context|true\n"));
}

/// Small functions of lua-resty-core's own modules that programs ask for.
#[test]
fn modules_of_resty_core_have_their_functions() {
    let said = says(
        r##"local given = { seen = 1 }
           local get = require("resty.core.ctx").get_ctx_table
           ngx.say(get(given) == given, " ", get() == given, " ", ngx.ctx.seen)
           local time = require "resty.core.time"
           ngx.say(time.monotonic_msec() > 0, " ", math.abs(time.monotonic_time() * 1000 - time.monotonic_msec()) < 50)
           local replace = require("resty.core.utils").str_replace_char
           ngx.say(replace("_a_b", "_", "-"), " ", replace("a.b%c", ".", "%"), " ", replace("a1b0", "02", "02"))
           local misc = require "resty.core.misc"
           misc.register_ngx_magic_key_getter("own", function() return "got" end)
           misc.register_ngx_magic_key_setter("own", function(value) ngx.ctx.own = value end)
           ngx.own = 7
           ngx.say(ngx.own, " ", ngx.ctx.own)
           require("resty.core.request").set_req_header("X-A", "1", true)
           require("resty.core.request").set_req_header("X-A", "2", false)
           ngx.say(table.concat(ngx.req.get_headers()["X-A"], ","))
           local re, regex = require "ngx.re", require "resty.core.regex"
           local text, pattern = ("a"):rep(3000) .. "b", "(?:a|[ab])+c"
           ngx.say(regex.is_regex_cache_empty(), " ", pcall(re.opt, "jit_stack_size", 128 * 1024))
           ngx.re.find("a", "a", "o")
           ngx.say(regex.is_regex_cache_empty(), " ", (select(2, pcall(re.opt, "jit_stack_size", 128 * 1024)):match("not allowed")))"##,
    );
    let wanted = ["true true 1", "true true", "-a-b a%b%c a1b0", "got 7", "1,2", "true true", "false not allowed"];
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

/// Timers of one moment fire in the order in which they were made, and one that repeats begins its next time before its program runs.
#[test]
fn timers_keep_their_order() {
    let server = site(
        r##"local order, runs = {}, 0
           -- Places of timers that are free again would turn the order round.
           for at = 1, 4 do ngx.thread.spawn(function() ngx.sleep(0.001) end) end
           ngx.sleep(0.02)
           for at = 1, 5 do ngx.timer.at(0.02, function() order[at] = runs runs = runs + 1 end) end
           local turns = 0
           ngx.timer.every(0.03, function() turns = turns + 1 ngx.sleep(60) end)
           while turns < 3 do ngx.sleep(0.005) end
           ngx.say(table.concat(order, " "))"##,
    )
    .start();
    assert_eq!(server.get("/t").text(), "0 1 2 3 4\n");
}

/// A program may say that a body is shorter than it is: whoever reads it gets so much, and the rest is nobody's request.
#[test]
fn a_body_ends_where_a_program_says() {
    let server = Site::server(
        r##"location = /t { rewrite_by_lua_block { ngx.req.set_header("Content-Length", ngx.var.arg_length) }
             content_by_lua_block { ngx.req.read_body() ngx.say(ngx.req.get_body_data(), " ", ngx.var.http_content_length) } }
           location = /hidden { content_by_lua_block { ngx.log(ngx.ERR, "smuggled") } }"##,
    )
    .start();
    let body = "12345GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let ask = |length: &str| {
        let head = format!("POST /t?length={length} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        let r = server.connect().send(format!("{head}{body}")).response();
        (r.text(), r.header("Connection").map(str::to_owned))
    };
    assert_eq!(ask("5"), ("12345 5\n".to_owned(), Some("close".to_owned())));
    assert_eq!(ask("0"), ("nil 0\n".to_owned(), Some("close".to_owned())));
    // One that is longer has no more than the client has sent.
    assert_eq!(ask("4000").0, format!("{body} 4000\n"));
    assert!(!server.error_log().contains("smuggled"));
}
