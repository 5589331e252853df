//! What programs call most has a quick way and another one for what is rare; a program sees no difference between them.

use crate::harness::{Backend, Reply, Site};

/// What a program says, in a server with a dictionary `d` and these lines more.
fn says_with(more: &str, program: &str) -> String {
    let server = format!(
        "lua_shared_dict d 1m; server {{ listen 127.0.0.1:@PORT@; default_type text/plain; {more}
         location = /t {{ content_by_lua_block {{ {program} }} }} }}"
    );
    Site::http(&server).start().get("/t").text()
}

#[test]
fn dictionaries_by_texts_and_by_numbers() {
    let said = says_with(
        "",
        r##"
        local d = ngx.shared.d
        local function show(...)
            local all = { select("#", ...) }
            for at = 1, select("#", ...) do all[at + 1] = tostring((select(at, ...))) end
            ngx.say(table.concat(all, " "))
        end
        for _, key in ipairs({ "a", 7 }) do
            show(d:get(key)) show(d:set(key, "x")) show(d:get(key)) show(d:add(key, 1)) show(d:incr(key, 1))
            show(d:replace(key, 2, 10, 5)) show(d:get(key)) show(d:incr(key, 1)) show(d:incr(key, 1, 0))
            show(d:set(key, false)) show(d:get(key)) show(d:set(key, nil)) show(d:incr(key, 1))
        end
        show(d:get("")) show(d:get(nil)) show(d:rpush("l", 1)) show(d:get("l")) show(d:set("a", {}))
        show(pcall(d.set, d, "a", 1, -1)) show(pcall(d.get, "d", "a"))
        "##,
    );
    let each = "1 nil\n3 true nil false\n1 x\n3 false exists false\n2 nil not a number\n\
                3 true nil false\n2 2 5\n1 3\n3 4 nil false\n3 true nil false\n1 false\n3 true nil false\n2 nil not found\n";
    let rest = "2 nil empty key\n2 nil nil key\n1 1\n2 nil value is a list\n2 nil bad value type\n\
                2 false bad \"exptime\" argument\n2 false bad \"zone\" argument\n";
    assert_eq!(said, format!("{each}{each}{rest}"));
}

#[test]
fn expressions_with_names_lists_and_tables_of_the_program() {
    let said = says_with(
        "",
        r##"
        local m = ngx.re.match("hello, 1234", "(?<first>[0-9])(?<rest>[0-9]+)(x)?", "jo")
        ngx.say(m[0], " ", m[1], " ", m[2], " ", m[3], " ", m.first, " ", m.rest)
        m = ngx.re.match("ab", "(?<n>a)(?<n>b)", "jD")
        ngx.say(type(m.n), " ", table.concat(m.n, ","))
        local own = {}
        ngx.say(ngx.re.match("x1", "[0-9]", "", nil, own) == own, " ", own[0])
        local ctx = { pos = 3 }
        ngx.say(ngx.re.match("1a2", "[0-9]", "j", ctx)[0], " ", ctx.pos, " ", ngx.re.match("a", "b"))
        ngx.say(ngx.re.match(1234, 23)[0], " ", ngx.re.find("abc", "(b)(c)", "jo", nil, 2))
        ngx.say(ngx.re.match("a", "(a", "jo"))
        ngx.say(pcall(ngx.re.match, "a", "a", "q"))
        "##,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..5], ["1234 1 234 false 1 234", "table a,b", "true 1", "2 4 nil", "23 33"]);
    assert!(lines[5].starts_with("nilpcre2_compile() failed"), "{said}");
    assert!(lines[6].starts_with("falseunknown flag \"q\""), "{said}");
}

#[test]
fn what_is_said_passes_filters_in_lua() {
    let filters = r##"header_filter_by_lua_block { ngx.header["X-N"] = ngx.var.arg_n or "none" }
                      body_filter_by_lua_block { ngx.arg[1] = ngx.arg[1]:upper() }"##;
    assert_eq!(says_with(filters, r#"ngx.say("a", 1, nil) ngx.print({ "b", { 2 } })"#), "A1NIL\nB2");
    assert_eq!(
        says_with("", r#"ngx.say(1e15, " ", -0.5, " ", 2^53, " ", 1e300, " ", -7)"#),
        "1e+15 -0.5 9.007199254741e+15 1e+300 -7\n"
    );
}

#[test]
fn json_of_all_kinds() {
    let said = says_with(
        "",
        r##"
        local json = require "cjson"
        ngx.say(json.encode({ 1, -2, 1.5, "a/\"\n\127", true, json.null, { x = {} }, {}, setmetatable({}, json.array_mt) }))
        ngx.say(json.encode("x"), json.encode(nil), json.encode(12345678901234567890))
        ngx.say(pcall(json.encode, { print }))
        ngx.say(pcall(json.encode, { [{}] = 1 }))
        local deep = {}
        for _ = 1, 1001 do deep = { deep } end
        ngx.say(pcall(json.encode, deep))
        "##,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], r#"[1,-2,1.5,"a\/\"\n\u007f",true,null,{"x":{}},{},[]]"#);
    assert_eq!(lines[1], "\"x\"null1.2345678901235e+19");
    assert!(lines[2].contains("Cannot serialise function: type not supported"), "{said}");
    assert!(lines[3].contains("table key must be a number or string"), "{said}");
    assert!(lines[4].contains("Cannot serialise, excessive depth (1001)"), "{said}");
}

#[test]
fn a_captured_header_that_comes_twice_is_a_list() {
    let more = r#"location = /two { content_by_lua_block {
        ngx.header["X-A"] = { "1", "2" } ngx.header["X-B"] = 3 ngx.print("body") } }"#;
    let program = r##"
        local one, two = ngx.location.capture_multi({ { "/two" }, { "/two", { method = ngx.HTTP_HEAD } } })
        ngx.say(table.concat(one.header["X-A"], ","), " ", one.header["X-B"], " ", one.status, " ", one.body, " ", one.truncated)
        ngx.say(#two.body, " ", two.status)
        "##;
    assert_eq!(says_with(more, program), "1,2 3 200 body false\n0 200\n");
}

/// More than the kernel takes at once: the rest is waited for. The lines of the answer come in one piece.
#[test]
fn sockets_with_and_without_waiting() {
    let backend = Backend::start(|seen| {
        let lines = format!("{}\r\nsecond\rhalf\n{}", seen.body.len(), "x".repeat(10));
        Reply::ok(&lines)
    });
    let program = format!(
        r##"
        local s = ngx.socket.tcp()
        for round = 1, 2 do
            assert(s:connect("127.0.0.1", {}))
            local body = ("y"):rep(round == 1 and 8 * 1024 * 1024 or 3)
            local head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " .. #body .. "\r\n\r\n"
            local sent = assert(s:send({{ head, body }}))
            ngx.say(sent == #head + #body, " ", s:getreusedtimes())
            repeat until assert(s:receive()) == ""
            ngx.say(s:receive(), " ", s:receive("*l"), " ", s:receive(4), " ", s:receive(6), " ", s:setkeepalive())
            ngx.say(s:receive())
        end
        "##,
        backend.port
    );
    let (first, second) =
        ("true 0\n8388608 secondhalf xxxx xxxxxx 1\nnilclosed\n", "true 1\n3 secondhalf xxxx xxxxxx 1\nnilclosed\n");
    assert_eq!(says_with("", &program), format!("{first}{second}"));
}
