//! `ngx.pipe`: processes that programs start. Real ones: the shell and its tools.

use crate::harness::{Server, Site, wait};

/// A location `/t` with a program that knows `pipe`.
fn site(program: &str) -> Server {
    Site::whole(&format!(
        "env PATH; events {{}} http {{ server {{ listen 127.0.0.1:@PORT@; location = /t {{ content_by_lua_block {{
           local pipe = require 'ngx.pipe'
           {program} }} }} }} }}"
    ))
    .start()
}

fn says(program: &str) -> String {
    site(program).get("/t").text()
}

#[test]
fn a_process_reads_and_writes() {
    let program = r##"
        local proc = assert(pipe.spawn({ "wc", "-c" }))
        ngx.say(type(proc:pid()), " ", proc:write(("1234"):rep(2048)), " ", proc:write({ "a", "b" }), " ", proc:shutdown("stdin"))
        ngx.say(tonumber((proc:stdout_read_line())))
        ngx.say(proc:wait())
        local text, why = proc:wait() ngx.say(text, " ", why)
        text, why = proc:write("x") ngx.say(text, " ", why)
        text, why = proc:kill(15) ngx.say(text, " ", why) "##;
    assert_eq!(says(program), "number 8192 2 true\n8194\ntrueexit0\nnil exited\nnil closed\nnil exited\n");
}

#[test]
fn what_is_read_is_lines_bytes_and_all() {
    let program = r##"
        local proc = assert(pipe.spawn("printf 'one\ntwo\nthree'; printf 'wrong' >&2; exit 3"))
        ngx.say(proc:stdout_read_line(), "|", proc:stdout_read_bytes(2), "|", (proc:stdout_read_any(1)), "|", proc:stdout_read_bytes(0))
        ngx.say(proc:stdout_read_all(), "|", proc:stderr_read_all())
        local text, why = proc:stdout_read_any(10) ngx.say(text, " ", why)
        local ok, reason, status = proc:wait() ngx.say(ok, " ", reason, " ", status)
        proc = assert(pipe.spawn({ "sh", "-c", "printf abc; printf def >&2; echo $NAME" },
                                 { merge_stderr = true, environ = { "NAME=value=1", "PATH=/bin:/usr/bin" } }))
        ngx.say(proc:stdout_read_all(), select(2, proc:stderr_read_all()), " ", select(2, proc:shutdown("stderr")))
        proc = assert(pipe.spawn({ "sh", "-c", "printf part" }))
        local data, err, partial = proc:stdout_read_line() ngx.say(data, " ", err, " ", partial) "##;
    let expected = "one|tw|o|\n\nthree|wrong\nnil closed\nfalse exit 3\nabcdefvalue=1\nmerged to stdout merged to stdout\nnil closed part\n";
    assert_eq!(says(program), expected);
}

/// The loop goes on while a program waits; each wait has its own deadline.
#[test]
fn waiting_ends() {
    let program = r##"
        local proc = assert(pipe.spawn({ "sleep", "60" }, { wait_timeout = 30, stdout_read_timeout = 20 }))
        local data, err, partial = proc:stdout_read_all() ngx.say(data, " ", err, " [", partial, "]")
        local ok, why = proc:wait() ngx.say(ok, " ", why)
        local reader = ngx.thread.spawn(function() return proc:stdout_read_line() end)
        local text, busy = proc:stdout_read_line() ngx.say(text, " ", busy)
        ngx.say(proc:shutdown("stdout")) 
        local _, text, aborted = ngx.thread.wait(reader) ngx.say(text, " ", aborted)
        text, why = proc:kill(9999) ngx.say(text, " ", why)
        ngx.say(proc:kill(15))
        proc:set_timeouts(nil, nil, nil, 0)
        local ok, reason, status = proc:wait() ngx.say(ok, " ", reason, " ", status) "##;
    let expected = "nil timeout []\nnil timeout\nnil pipe busy reading\ntrue\nnil aborted\nnil invalid signal\ntrue\nfalse signal 15\n";
    assert_eq!(says(program), expected);
}

#[test]
fn mistakes_are_told() {
    let program = r##"
        ngx.say(pipe.spawn({ "/no/such/program" }) == nil)
        for _, call in ipairs({
          function() pipe.spawn(nil) end, function() pipe.spawn({}) end, function() pipe.spawn("x", { buffer_size = 0 }) end,
          function() pipe.spawn("x", { environ = { "nothing" } }) end, function() pipe.spawn("x", { wait_timeout = -1 }) end,
          function() assert(pipe.spawn("true")):shutdown("up") end, function() assert(pipe.spawn("true")).wait({}) end }) do
          ngx.say((select(2, pcall(call)):gsub("^[^ ]* ", "")))
        end "##;
    let expected = "true\nbad args arg: table expected, got nil\nbad args arg: non-empty table expected\nbad buffer_size option\n\
        bad value at index 1 of environ option: 'name=[value]' format expected, got 'nothing'\nbad wait_timeout option\n\
        bad shutdown arg: up\nnot a process instance\n";
    assert_eq!(says(program), expected);
}

/// A process that nobody holds any more is killed, and leaves nothing behind.
#[test]
fn a_process_goes_with_its_program() {
    let server = site(
        r##"
        if ngx.var.arg_again then
          collectgarbage() collectgarbage()
          local other = assert(pipe.spawn("exit 0")) other:wait()
          return ngx.say("swept")
        end
        local proc = assert(pipe.spawn({ "sleep", "600" })) ngx.say(proc:pid()) "##,
    );
    let pid = server.get("/t").text().trim().to_owned();
    let is_there = || std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(is_there());
    assert!(wait(|| server.get("/t?again=1").text() == "swept\n" && !is_there()), "process {pid} lives on");
}

/// With `master_process off` the process that waits for workers is the same: a program's children are not its.
#[test]
fn one_process_leaves_a_program_its_children() {
    let server = Site::whole(
        "master_process off; events {} http { server { listen 127.0.0.1:@PORT@; location = /t { content_by_lua_block {
           local proc = assert(require('ngx.pipe').spawn('exit 7'))
           ngx.sleep(0.05)
           local file = io.popen('echo hello') ngx.print(file:read('*a'), file:close(), ' ')
           local ok, reason, status = proc:wait() ngx.say(reason, ' ', status) } } } }",
    )
    .start();
    assert_eq!(server.get("/t").text(), "hello\ntrue exit 7\n");
}
