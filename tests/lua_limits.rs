//! What many programs at once, large values and mistakes without end do to a server: nothing. What is refused costs its own request.

use crate::harness::{Backend, Reply, Server, Site, wait};

fn server(program: &str) -> Server {
    Site::server(&format!(
        "default_type text/plain; client_body_buffer_size 1m; location = /t {{ content_by_lua_block {{ {program} }} }}
         location = /alive {{ content_by_lua_block {{ ngx.say('alive') }} }}"
    ))
    .start()
}

/// As deep as a program may ask for: what a client sends must not choose how much of a thread's stack is used.
#[test]
fn depth_of_json_takes_no_stack() {
    let server = server(
        r##"ngx.req.read_body()
           local json = require("cjson").new()
           local text = ngx.req.get_body_data()
           ngx.say(select(2, pcall(json.decode, text)))
           json.decode_max_depth(4000) json.encode_max_depth(4000)
           local value = json.decode(text)
           ngx.say(json.encode(value) == text)"##,
    );
    let post = |body: &str| {
        let head = format!("POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        server.connect().send(head + body).response().text()
    };
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let depth = 3900;
        let said = post(&format!("{}1{}", open.repeat(depth), close.repeat(depth)));
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains("Found too many nested data structures (1001) at character"), "{said}");
        assert_eq!(lines[1], "true");
    }
    assert_eq!(server.get("/alive").text(), "alive\n");
}

/// More than mlua has places for, each with a table of its own.
#[test]
fn as_many_programs_wait_as_there_is_memory_for() {
    const COUNT: usize = 12_000;
    let server = Site::http(&format!(
        r##"lua_shared_dict d 100k; lua_max_running_timers 20000; lua_max_pending_timers 20000;
           init_by_lua_block {{ gate = require("ngx.semaphore").new() }}
           server {{ listen 127.0.0.1:@PORT@;
             location = /begin {{ content_by_lua_block {{
               local d = ngx.shared.d
               for number = 1, {COUNT} do
                 assert(ngx.timer.at(0, function(_, own)
                   ngx.ctx.number = own[1]
                   d:incr("waiting", 1, 0)
                   assert(gate:wait(300))
                   if ngx.ctx.number == number then d:incr("done", 1, 0) end
                 end, {{ number }}))
               end
               ngx.say("begun")
             }} }}
             location = /waiting {{ content_by_lua_block {{ ngx.say(ngx.shared.d:get("waiting")) }} }}
             location = /go {{ content_by_lua_block {{ gate:post({COUNT}) ngx.say("gone") }} }}
             location = /done {{ content_by_lua_block {{ ngx.say(ngx.shared.d:get("done")) }} }}
           }}"##
    ))
    .start();
    assert_eq!(server.get("/begin").text(), "begun\n");
    assert!(wait(|| server.get("/waiting").text().trim() == COUNT.to_string()));
    assert_eq!(server.get("/go").text(), "gone\n");
    assert!(wait(|| server.get("/done").text().trim() == COUNT.to_string()));
}

#[test]
fn light_threads_that_have_ended_are_let_go() {
    let server = server(
        r##"local spawn, wait = ngx.thread.spawn, ngx.thread.wait
           local sum = 0
           for number = 1, 12000 do
             local ok, value = wait(spawn(function() return number end))
             sum = sum + value
           end
           ngx.say(sum)
           -- All at once, with values that are asked for late.
           local lights = {}
           for number = 1, 8500 do
             lights[number] = spawn(function() ngx.sleep(0) return { number } end)
           end
           sum = 0
           for number = 1, 8500 do
             local ok, value = wait(lights[number])
             sum = sum + value[1]
           end
           ngx.say(sum)
           -- Nobody can ask for those whose maker has ended.
           local inner
           wait(spawn(function()
             inner = spawn(function() return 1 end)
             ngx.say(coroutine.status(inner))
           end))
           ngx.say(coroutine.status(inner))
           -- Who waits for a light thread is the one that may end it.
           local sibling = spawn(function() ngx.sleep(0.01) return "whole" end)
           ngx.say(wait(spawn(function() return ngx.thread.kill(sibling) end)))
           ngx.say(wait(sibling))"##,
    );
    let said = server.get("/t").text();
    let wanted = ["72006000", "36129250", "zombie", "dead", "truenilkiller not parent", "truewhole"];
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn coroutines_in_coroutines_without_end_are_an_error() {
    let server = server(
        r##"local deepest = 0
           local function f(depth)
             deepest = depth
             return coroutine.resume(coroutine.create(f), depth + 1)
           end
           local said = { f(1) }
           ngx.say(said[#said], " ", deepest > 500)
           ngx.say(select("#", coroutine.resume(coroutine.create(function() end))), select("#", coroutine.wrap(function() end)()))"##,
    );
    assert_eq!(server.get("/t").text(), "C stack overflow true\n10\n");
    assert_eq!(server.get("/alive").text(), "alive\n");
}

#[test]
fn sizes_and_times_that_are_none_are_refused() {
    let backend = Backend::ok("hello");
    let said = Site::server(
        r##"default_type text/plain; location = /t { content_by_lua_block {
             local sock = ngx.socket.tcp()
             assert(sock:connect("127.0.0.1", @BACKEND@))
             sock:send("GET / HTTP/1.0\r\n\r\n")
             local read = sock:receiveuntil("hello")
             ngx.say(pcall(read, "x"))
             local data, why, partial = read(1e300)
             ngx.say(#(data or partial) > 10)
             ngx.say(pcall(ngx.sleep, 0/0))
           } }"##,
    )
    .set("BACKEND", backend.port)
    .start()
    .get("/t")
    .text();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("falsebad argument #1 to '?' (number expected, got string)"), "{said}");
    assert_eq!(lines[1], "true", "{said}");
    assert!(lines[2].starts_with("falseinvalid sleep duration"), "{said}");
}

/// What is raised is a text with the line of the call, so that programs can join it with others.
#[test]
fn wrong_arguments_are_told_as_texts() {
    let server = Site::http(
        r##"lua_shared_dict d 100k;
           server { listen 127.0.0.1:@PORT@; default_type text/plain;
             location = /t { content_by_lua_block {
               local d = ngx.shared.d
               local calls = {
                 function() ngx.req.get_uri_args("x") end, function() ngx.http_time("x") end, function() ngx.crc32_short({}) end,
                 function() ngx.decode_args({}) end, function() ngx.hmac_sha1({}) end, function() d:set("a", 1, "x") end,
                 function() d:incr("n", "a") end, function() d:expire("a") end, function() d:get_keys("x") end,
                 function() ngx.req.set_method("GET") end, function() ngx.redirect("/a", "x") end, function() ngx.req.get_headers("x") end,
               }
               for number, call in ipairs(calls) do
                 local ok, why = pcall(call)
                 if not ok and type(why) ~= "string" then ngx.say(number, " ", type(why)) end
               end
               local _, why = pcall(calls[1])
               ngx.say("failed: " .. why)
               _, why = pcall(calls[3])
               ngx.say("failed: " .. why)
               _, why = pcall(ngx.hmac_sha1, "key")
               ngx.say("failed: " .. why)
             } }
           }"##,
    )
    .start();
    let said = server.get("/t").text();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    for (line, text) in [
        (0, "bad argument #1 to 'get_uri_args' (number expected, got string)"),
        (1, "bad argument #1 to 'crc32_short' (string expected, got table)"),
    ] {
        assert!(lines[line].starts_with("failed: content_by_lua(nginx.conf:") && lines[line].ends_with(text), "{said}");
    }
    assert_eq!(lines[2], "failed: bad argument #2 to '?' (string expected, got no value)");
}

/// What comes after the end that a filter has said is dropped: the next answer on the connection is read rightly.
#[test]
fn an_answer_ends_where_its_filter_says() {
    let server = Site::server(
        r##"default_type text/plain;
           location = /eof { content_by_lua_block { ngx.say("a") ngx.flush() ngx.say("b") ngx.flush() ngx.say("c") }
             body_filter_by_lua_block { ngx.arg[1] = "first\n" ngx.arg[2] = true } }
           location = /next { content_by_lua_block { ngx.say("next") } }"##,
    )
    .start();
    let mut client = server.connect();
    assert_eq!(client.get("/eof").text(), "first\n");
    assert_eq!(client.get("/next").text(), "next\n");
}

/// `error_page 404 = ...`: the status is that of the answer, and a program that says nothing else leaves what was exited with.
#[test]
fn a_page_for_an_exit_keeps_the_status() {
    let backend = Backend::start(|_| Reply::ok("px"));
    let server = Site::server(
        r##"default_type text/plain;
           location = /access { access_by_lua_block { ngx.exit(404) } error_page 404 = /page; }
           location = /content { content_by_lua_block { ngx.exit(503) } error_page 503 = @page; }
           location = /said { content_by_lua_block { ngx.exit(404) } error_page 404 =200 /page; }
           location = /usual { content_by_lua_block { ngx.exit(404) } error_page 404 /page; }
           location = /return { content_by_lua_block { ngx.exit(404) } error_page 404 = /st; }
           location = /proxy { content_by_lua_block { ngx.exit(404) } error_page 404 = /px; }
           location = /page { content_by_lua_block { ngx.say("page ", ngx.status) } }
           location @page { content_by_lua_block { ngx.say("page ", ngx.status) } }
           location = /st { return 200 "st"; }
           location = /px { proxy_pass http://127.0.0.1:@BACKEND@; }"##,
    )
    .set("BACKEND", backend.port)
    .start();
    for (target, status, text) in [
        ("/access", 404, "page 404\n"),
        ("/content", 503, "page 503\n"),
        ("/said", 200, "page 200\n"),
        ("/usual", 404, "page 404\n"),
        ("/return", 200, "st"),
        ("/proxy", 200, "px"),
    ] {
        let answer = server.get(target);
        assert_eq!((answer.status, answer.text().as_str()), (status, text), "{target}");
    }
}

/// Numbers as Lua writes them, and values that resty.core makes texts of.
#[test]
fn values_are_written_as_there() {
    let server = Site::http(
        r##"lua_shared_dict d 100k;
           server { listen 127.0.0.1:@PORT@; default_type text/plain;
             location = /t { content_by_lua_block {
               ngx.say(1e15, " ", 2^31, " ", -0.0, " ", { -0.0 }, " ", 12345678901234)
               ngx.say(ngx.re.gsub("ab", "a", function() return nil end))
               ngx.say(ngx.re.match({}, "table")[0])
               ngx.shared.d:set(true, "flag")
               ngx.say(ngx.shared.d:get("true"), ngx.shared.d:get(true))
               ngx.say(ngx.re.match("abc", "abc # comment", "ajox")[0])
             } }
             location = /base { content_by_lua_block {
               local base = require "resty.core.base"
               ngx.say(type(base.get_request()), " ", base.FFI_NO_REQ_CTX)
               local buffer = base.get_string_buf(10)
               require("ffi").copy(buffer, "hello", 5)
               local size = base.get_size_ptr()
               size[0] = 5
               ngx.say(require("ffi").string(buffer, size[0]), " ", base.get_string_buf(5000) ~= buffer)
               local refs = {}
               ngx.say(base.ref_in_table(refs, "a"), base.ref_in_table(refs, "b"))
             } }
           }"##,
    )
    .start();
    let wanted = "1e+15 2147483648 0 0 12345678901234\nnilb1\ntable\nflagflag\nabc\n";
    assert_eq!(server.get("/t").text(), wanted);
    assert_eq!(server.get("/base").text(), "number -100\nhello true\n12\n");
}

/// lua-resty-string's `resty.aes` and its like declare OpenSSL's functions and call them; where the machine has that library they find it.
#[test]
fn programs_find_openssl_s_functions() {
    let there = [
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/aarch64-linux-gnu/libcrypto.so.3",
        "/usr/lib64/libcrypto.so.3",
    ];
    if !there.iter().any(|path| std::path::Path::new(path).exists()) {
        eprintln!("libcrypto.so.3 is not here: left out");
        return;
    }
    let server = server(
        r##"local ffi = require "ffi"
           ffi.cdef[[
             typedef struct env_md_st EVP_MD;
             const EVP_MD *EVP_md5(void);
             int EVP_MD_get_size(const EVP_MD *md);
           ]]
           ngx.say(ffi.C.EVP_MD_get_size(ffi.C.EVP_md5()))"##,
    );
    assert_eq!(server.get("/t").text(), "16\n");
}

/// The bytes of a request that waits in a program: its task and its texts, not the buffers that its connection reads and writes with.
#[test]
fn a_request_that_waits_holds_no_buffers() {
    const COUNT: usize = 400;
    // Futures of a build without optimization are larger: 15 kB; with one buffer 31.
    const MOST_KB: usize = 20;
    let server = Site::whole(
        r##"worker_processes 1; events { worker_connections 2048; }
           http { lua_shared_dict d 1m; server { listen 127.0.0.1:@PORT@;
             location = /early { content_by_lua_block { ngx.shared.d:incr("n", 1, 0) ngx.sleep(600) } }
             location = /late { content_by_lua_block { ngx.say("begun") ngx.flush(true) ngx.shared.d:incr("n", 1, 0) ngx.sleep(600) } }
             location = /n { content_by_lua_block { ngx.say(ngx.shared.d:get("n") or 0) } }
             location = /slow { content_by_lua_block { ngx.say("one") ngx.flush(true) ngx.sleep(0.01) ngx.say(("x"):rep(30000)) } } } }"##,
    )
    .start();
    let sleep = |target: &str, until: usize| -> Vec<_> {
        let clients: Vec<_> = (0..COUNT)
            .map(|_| {
                let mut client = server.connect();
                client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
                client
            })
            .collect();
        assert!(wait(|| server.get("/n").text().trim() == until.to_string()));
        clients
    };
    // What a thread keeps for the next is there already.
    let mut kept = vec![sleep("/early", COUNT)];
    for (round, target) in ["/early", "/late"].into_iter().enumerate() {
        let before = server.own_memory_kb();
        kept.push(sleep(target, (round + 2) * COUNT));
        let each = server.own_memory_kb().saturating_sub(before) / COUNT;
        assert!(each <= MOST_KB, "{target}: {each} kB");
    }
    // Who goes on takes them again.
    assert_eq!(server.get("/slow").text().len(), "one\n".len() + 30_001);
}

#[test]
fn a_dictionary_gives_more_keys_than_lua_has_registers() {
    let server = Site::http(
        r##"lua_shared_dict d 4m; server { listen 127.0.0.1:@PORT@; location = /t { content_by_lua_block {
             for n = 1, 10000 do ngx.shared.d:set("key" .. n, n) end
             ngx.say(#ngx.shared.d:get_keys(0), " ", #ngx.shared.d:get_keys()) } } }"##,
    )
    .start();
    assert_eq!(server.get("/t").text(), "10000 1024\n");
}

/// What dictionaries and sockets' options say of wrong arguments, in lua-resty-core's words.
#[test]
fn dictionaries_and_options_refuse_in_resty_core_s_words() {
    let server = Site::http(
        r##"lua_shared_dict d 100k;
           server { listen 127.0.0.1:@PORT@; default_type text/plain;
             location = /t { content_by_lua_block {
               local d = ngx.shared.d
               local function try(f, ...) ngx.say(select(2, pcall(f, ...))) end
               try(d.incr, d, "n", "a") try(d.incr, d, "n", 1, 0, -1) try(d.incr, d, "n", 1, 0, "a") try(d.incr, d, "n", 1, nil, 1)
               try(d.expire, d) try(d.set, { 1 }, "k", 1) try(d.get, "k", 1)
               ngx.say(d:incr("n", "2", "3", "1") == 5, " ", (d:incr("n", 1, false)))
               d:set("short", 1, 0.001)
               ngx.sleep(0.01)
               ngx.say(d:get("short"), " ", d:ttl("short") < 0, " ", d:ttl("none"))
               local s = ngx.socket.tcp()
               try(s.setoption, s, "sndbuf", 4096) try(s.getoption, s, "sndbuf")
               assert(s:connect("127.0.0.1", @PORT@))
               ngx.say(s:setoption()) ngx.say(s:setoption("sndbuf")) ngx.say(s:getoption()) ngx.say(s:setoption("abc", 1))
               try(s.setoption, s, "sndbuf", "much")
               ngx.say(s:setoption("keepintvl", 3), s:setoption("keepcnt", 5), s:getoption("keepintvl"), s:getoption("keepcnt"))
               s:close()
               ngx.say(s:getoption("sndbuf"))
               try(ngx.cookie_time, "x") try(ngx.parse_http_time, 1)
               ngx.say(ngx.cookie_time(2200000000))
             } }
           }"##,
    )
    .start();
    let wanted = [
        "cannot convert 'nil' to 'double'",
        "bad \"init_ttl\" argument",
        "bad init_ttl arg: number expected, got string",
        "must provide \"init\" when providing \"init_ttl\"",
        "bad \"exptime\" argument",
        "bad \"zone\" argument",
        "bad \"zone\" argument",
        "true 6",
        "nil true nilnot found",
        "socket is never created nor connected",
        "socket is never created nor connected",
        "nilmissing the \"option\" argument",
        "nilmissing the \"value\" argument",
        "nilmissing the \"option\" argument",
        "nilunsupported option abc",
        "bad argument #3 to 'setoption' (cannot convert 'string' to 'int')",
        "1135",
        "nilclosed",
        "number argument only",
        "string argument only",
        "Sun, 18-Sep-2039 23:06:40 GMT",
    ];
    assert_eq!(server.get("/t").text().lines().collect::<Vec<_>>(), wanted);
}
