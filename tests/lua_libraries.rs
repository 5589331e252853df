//! OpenResty's libraries, unmodified, against real servers. They are others' code and no part of the project: `IRONWEIR_LUA_LIBRARIES` names
//! a folder with their checkouts (`lua-resty-redis`, ...). Without it those are used that Debian packages, which `.ci/setup peers` unpacks
//! (redis, websocket, lrucache, string); no registry has the others, so without the folder, and without a server that is asked for, a test is
//! left out, aloud.

use crate::harness::{Backend, Folder, Reply, Server, Site, wait};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The value of `lua_package_path` for some libraries. None: one is not there.
fn path(names: &[&str]) -> Option<String> {
    let named = std::env::var_os("IRONWEIR_LUA_LIBRARIES").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| "/usr/local/share/ironweir-lua".into());
    let each = names.iter().map(|name| {
        let lib = folder.join(name).join("lib");
        lib.is_dir().then(|| format!("{0}/?.lua;{0}/?/init.lua", lib.display()))
    });
    let found = each.collect::<Option<Vec<_>>>();
    if found.is_none() {
        let names = names.join(", ");
        eprintln!("left out: neither IRONWEIR_LUA_LIBRARIES nor what .ci/setup peers has unpacked has all of {names}");
    }
    found.map(|all| all.join(";") + ";;")
}

/// A location `/t` with a program; `around` stands in the `http` block.
fn start(path: &str, around: &str, program: &str) -> Server {
    Site::http(&format!(
        "lua_package_path '{path}'; {around}
         server {{ listen 127.0.0.1:@PORT@; location = /t {{ content_by_lua_block {{ {program} }} }} }}"
    ))
    .start()
}

/// A server that a test has started, on a port of its own.
struct Beside {
    child: Child,
    port: u16,
}

impl Beside {
    fn redis() -> Option<Beside> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let child =
            command.stdout(Stdio::null()).spawn().inspect_err(|_| eprintln!("left out: no redis-server")).ok()?;
        let redis = Beside { child, port };
        assert!(wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok()));
        Some(redis)
    }
}

impl Beside {
    /// MariaDB with a database `test` and a user `u`.
    fn mariadb(folder: &Folder) -> Option<Beside> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("db");
        let tool = |name: &str| {
            let mut command = Command::new(name);
            command.args(["--no-defaults", "--user=root", &format!("--datadir={}", data.display())]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made =
            tool("mariadb-install-db").args(["--auth-root-authentication-method=normal", "--skip-test-db"]).status();
        if !made.is_ok_and(|status| status.success()) || folder.path().metadata().is_ok_and(|m| m.uid() != 0) {
            eprintln!("left out: no mariadb-server, or not root");
            return None;
        }
        folder.write(
            "init.sql",
            "CREATE DATABASE test;\nCREATE USER 'u'@'127.0.0.1' IDENTIFIED BY 'secret';\nGRANT ALL ON test.* TO 'u'@'127.0.0.1';\n",
        );
        let mut command = tool("mariadbd");
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=16M"]);
        command.arg(format!("--port={port}")).arg(format!("--socket={}", data.join("s").display()));
        command.arg(format!("--init-file={}", folder.path().join("init.sql").display()));
        let beside = Beside { child: command.spawn().ok()?, port };
        assert!(wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok()));
        Some(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redis() {
    let (Some(path), Some(redis)) = (path(&["lua-resty-redis"]), Beside::redis()) else { return };
    let program = r##"
        local red = assert(require("resty.redis"):new())
        red:set_timeout(1000)
        assert(red:connect("127.0.0.1", @REDIS@))
        ngx.say(red:set("dog", "an animal"), " ", red:get("dog"), " ", red:get("none") == ngx.null, " ", (red:incr("n")))
        red:init_pipeline() red:hmset("h", "a", 1, "b", 2) red:hgetall("h") red:lrange("none", 0, -1)
        local all = assert(red:commit_pipeline())
        ngx.say(#all, " ", all[1], " ", red:array_to_hash(all[2]).a, " ", #all[3])
        local ok, why = red:eval("return {err = 'not so'}", 0) ngx.say(ok, " ", why)
        local sub = require("resty.redis"):new() assert(sub:connect("127.0.0.1", @REDIS@)) assert(sub:subscribe("news"))
        red:publish("news", "hello") ngx.say(sub:read_reply()[3])
        ngx.say(red:set_keepalive(10000, 10))
        red = require("resty.redis"):new() assert(red:connect("127.0.0.1", @REDIS@)) ngx.say(red:get_reused_times()) "##;
    let server = start(&path, "", &program.replace("@REDIS@", &redis.port.to_string()));
    assert_eq!(server.get("/t").text(), "OK an animal true 1\n3 OK 1 0\nfalse not so\nhello\n1\n1\n");
}

#[test]
fn mysql() {
    let Some(path) = path(&["lua-resty-mysql", "lua-resty-string"]) else { return };
    let folder = Folder::new();
    let Some(mariadb) = Beside::mariadb(&folder) else { return };
    let program = r##"
        local db = assert(require("resty.mysql"):new()) db:set_timeout(3000)
        assert(db:connect({ host = "127.0.0.1", port = @MYSQL@, database = "test", user = "u", password = "secret", charset = "utf8" }))
        assert(db:query("create table cats (id serial primary key, name varchar(8), born datetime null)"))
        local res = assert(db:query("insert into cats (name) values ('Bob'),(''),(null)")) ngx.say(res.affected_rows, " ", res.insert_id)
        res = assert(db:query("select * from cats order by id", 10)) ngx.say(res[1].name, " ", #res, " ", res[3].name == ngx.null)
        local ok, err, code, state = db:query("select * from nothing") ngx.say(ok, " ", code, " ", state)
        res, err = db:query("select 1; select 2") ngx.say(res[1]["1"], " ", err)
        res, err = db:read_result() ngx.say(res[1]["2"], " ", err)
        ngx.say((db:set_keepalive(10000, 5))) "##;
    let server = start(&path, "", &program.replace("@MYSQL@", &mariadb.port.to_string()));
    assert_eq!(server.get("/t").text(), "3 1\nBob 3 true\nnil 1146 42S02\n1 again\n2 nil\n1\n");
}

#[test]
fn caches_and_texts() {
    let Some(path) = path(&["lua-resty-lrucache", "lua-resty-string"]) else { return };
    let program = r##"
        for _, name in ipairs({ "resty.lrucache", "resty.lrucache.pureffi" }) do
          local cache = assert(require(name).new(2))
          cache:set("a", 1) cache:set("b", 2, 0.05) cache:get("a") cache:set("c", 3, 0.001)
          ngx.say(cache:get("a"), " ", cache:get("b"), " ", cache:count(), " ", cache:capacity())
          ngx.sleep(0.01)
          local value, stale = cache:get("c") ngx.say(value, " ", stale)
        end
        ngx.say(require("resty.string").to_hex(ngx.md5_bin("x")) == ngx.md5("x")) "##;
    let server = start(&path, "", program);
    let cache = "1 nil 2 2\nnil 3\n";
    assert_eq!(server.get("/t").text(), format!("{cache}{cache}true\n"));
}

#[test]
fn locks() {
    let Some(path) = path(&["lua-resty-lock"]) else { return };
    let program = r##"
        local lock = require("resty.lock"):new("locks", { timeout = 0.05, exptime = 1 })
        ngx.say(lock:lock("key") == 0, " ", select(2, require("resty.lock"):new("locks", { timeout = 0.02 }):lock("key")), " ", lock:unlock()) "##;
    let server = start(&path, "lua_shared_dict locks 100k;", program);
    assert_eq!(server.get("/t").text(), "true timeout 1\n");
}

/// A gateway's own program: a limit in front of a proxy, with a count in redis behind it.
#[test]
fn limits_in_front_of_a_proxy() {
    let names = ["lua-resty-limit-traffic", "lua-resty-redis"];
    let (Some(path), Some(redis)) = (path(&names), Beside::redis()) else { return };
    let server = Site::http(&format!(
        r##"lua_package_path '{path}'; lua_shared_dict rates 1m; lua_shared_dict conns 1m; lua_shared_dict counts 1m;
        init_by_lua_block {{ require "resty.core" }}
        server {{ listen 127.0.0.1:@PORT@;
          location = /back {{ return 200 "back $arg_n $http_x_seen"; }}
          location = /front {{
            access_by_lua_block {{
              local limit_req, limit_conn, limit_count = require "resty.limit.req", require "resty.limit.conn", require "resty.limit.count"
              local traffic = require "resty.limit.traffic"
              local rate = assert(limit_req.new("rates", 1000, 1000))
              local conns = assert(limit_conn.new("conns", 100, 0, 0.5))
              local count = assert(limit_count.new("counts", 3, 3600))
              local delay, why = traffic.combine({{ rate, conns, count }}, {{ ngx.var.remote_addr, ngx.var.remote_addr, ngx.var.arg_key }}, {{}})
              if not delay then
                ngx.log(ngx.WARN, "limited: ", why)
                return ngx.exit(why == "rejected" and 503 or 500)
              end
              if conns:is_committed() then ngx.ctx.conns = conns end
              local red = require("resty.redis"):new()
              assert(red:connect("127.0.0.1", {redis}))
              ngx.req.set_header("X-Seen", assert(red:incr("seen:" .. ngx.var.arg_key)))
              assert(red:set_keepalive(10000, 10))
            }}
            proxy_pass http://127.0.0.1:@PORT@/back?n=$arg_n;
            log_by_lua_block {{ if ngx.ctx.conns then assert(ngx.ctx.conns:leaving(ngx.var.remote_addr, 0.01)) end }}
          }} }}"##,
        redis = redis.port
    ))
    .start();
    for n in 1..=3 {
        assert_eq!(server.get(&format!("/front?key=a&n={n}")).text(), format!("back {n} {n}"));
    }
    assert_eq!(server.get("/front?key=a&n=4").status, 503);
    assert_eq!(server.get("/front?key=b&n=5").text(), "back 5 1");
    let log = server.error_log();
    assert!(log.contains("limited: rejected") && !log.contains("[error]"), "{log}");
}

#[test]
fn http_is_asked() {
    let Some(path) = path(&["lua-resty-http"]) else { return };
    let server = Site::http(&format!(
        r##"lua_package_path '{path}';
        server {{ listen 127.0.0.1:@PORT@;
          location = /plain {{ content_by_lua_block {{ ngx.req.read_body() ngx.header["X-Method"] = ngx.req.get_method()
            ngx.print("got ", ngx.req.get_body_data() or "nothing", " ", ngx.var.http_x_a or "") ngx.flush(true) ngx.print("!") }} }}
          location = /t {{ content_by_lua_block {{
            local http = require("resty.http").new()
            local res = assert(http:request_uri("http://127.0.0.1:@PORT@/plain", {{ method = "POST", body = "a=1", headers = {{ ["X-A"] = "b" }} }}))
            ngx.say(res.status, " ", res.headers["X-Method"], " ", res.body)
            assert(http:connect({{ scheme = "http", host = "127.0.0.1", port = @PORT@ }}))
            local all = assert(http:request_pipeline({{ {{ path = "/plain" }}, {{ path = "/none" }} }}))
            for _, one in ipairs(all) do one:read_body() ngx.say(one.status) end
            res = assert(http:request({{ path = "/plain" }}))
            local out = {{}} for chunk in function() return res.body_reader(3) end do out[#out + 1] = chunk end
            ngx.say(table.concat(out, "|"), " ", http:set_keepalive())
          }} }} }}"##
    ))
    .start();
    assert_eq!(server.get("/t").text(), "200 POST got a=1 b!\n200\n404\ngot| no|thi|ng |! 1\n");
}

#[test]
fn forms_are_taken_apart() {
    let Some(path) = path(&["lua-resty-upload"]) else { return };
    let program = r##"
        local form = assert(require("resty.upload"):new(16))
        while true do
          local kind, res, why = form:read()
          if not kind then return ngx.say("failed: ", res) end
          ngx.say(kind, " ", type(res) == "table" and res[2] or res or "")
          if kind == "eof" then break end
        end "##;
    let server = start(&path, "", program);
    let body = "--xx\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nhello\r\n--xx--\r\n";
    let head = format!(
        "POST /t HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xx\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let text = server.connect().send(head).response().text();
    assert_eq!(text, "header form-data; name=\"a\"\nbody hello\npart_end \neof \n");
}

#[test]
fn web_sockets_on_both_sides() {
    let Some(path) = path(&["lua-resty-websocket", "lua-resty-string"]) else { return };
    let server = Site::http(&format!(
        r##"lua_package_path '{path}';
        server {{ listen 127.0.0.1:@PORT@;
          location = /socket {{ content_by_lua_block {{
            local socket, why = require("resty.websocket.server"):new({{ timeout = 3000 }})
            if not socket then return ngx.exit(444) end
            while true do
              local data, kind = socket:recv_frame()
              if not data then return end
              if kind == "close" then return socket:send_close(1000, "bye") end
              if kind == "ping" then socket:send_pong(data) else socket:send_text("echo " .. data) end
            end }} }}
          location = /t {{ content_by_lua_block {{
            local client = require("resty.websocket.client"):new()
            assert(client:connect("ws://127.0.0.1:@PORT@/socket"))
            assert(client:send_text("hello")) ngx.say((client:recv_frame()))
            assert(client:send_ping("p")) ngx.say((select(2, client:recv_frame())))
            assert(client:send_text(("x"):rep(50000))) ngx.say(#(client:recv_frame()))
            -- What Debian packages knows no `send_close` of clients.
            if not client.send_close then return ngx.say(client:close()) end
            assert(client:send_close(1000, "end")) local data, kind, code = client:recv_frame() ngx.say(data, " ", kind, " ", code)
          }} }} }}"##
    ))
    .start();
    let said = server.get("/t").text();
    let rest = said.strip_prefix("echo hello\npong\n50005\n").unwrap_or_else(|| panic!("{said}"));
    assert!(["bye close 1000\n", "1\n"].contains(&rest), "{said}");
}

/// A backend that answers `text`, and its check with 200 as long as nobody says that it is ill.
fn backend(text: &'static str) -> (Backend, Arc<AtomicBool>) {
    let is_ill = Arc::new(AtomicBool::new(false));
    let known = is_ill.clone();
    let backend = Backend::start(move |seen| match seen.line().contains("/status") {
        true if known.load(Relaxed) => Reply::Close(b"HTTP/1.0 503 Ill\r\n\r\n".to_vec()),
        true => Reply::Close(b"HTTP/1.0 200 OK\r\n\r\n".to_vec()),
        false => Reply::ok(text),
    });
    (backend, is_ill)
}

#[test]
fn health_checks_take_peers_out() {
    let Some(path) = path(&["lua-resty-upstream-healthcheck"]) else { return };
    let ((one, is_ill), (two, _)) = (backend("one"), backend("two"));
    let server = Site::http(&format!(
        r##"lua_package_path '{path}'; lua_shared_dict healthcheck 1m;
        upstream u {{ server 127.0.0.1:{one}; server 127.0.0.1:{two}; }}
        init_worker_by_lua_block {{
          local ok, err = require("resty.upstream.healthcheck").spawn_checker {{
            shm = "healthcheck", upstream = "u", type = "http", http_req = "GET /status HTTP/1.0\r\nHost: u\r\n\r\n",
            interval = 20, timeout = 1000, fall = 3, rise = 2, valid_statuses = {{ 200, 302 }}, concurrency = 10,
          }}
          if not ok then ngx.log(ngx.ERR, "failed to spawn health checker: ", err) end
        }}
        server {{ listen 127.0.0.1:@PORT@;
          location / {{ proxy_pass http://u; }}
          location = /page {{ content_by_lua_block {{ ngx.print(require("resty.upstream.healthcheck").status_page()) }} }}
          location = /metrics {{ content_by_lua_block {{ ngx.print(require("resty.upstream.healthcheck").prometheus_status_page()) }} }} }}"##,
        one = one.port,
        two = two.port,
    ))
    .start();
    let page = |down: &str| {
        let (one, two) = (one.port, two.port);
        format!(
            "Upstream u\n    Primary Peers\n        127.0.0.1:{one} {down}\n        127.0.0.1:{two} UP\n    Backup Peers\n"
        )
    };
    assert_eq!(server.get("/page").text(), page("UP"));
    is_ill.store(true, Relaxed);
    server.wait_for(
        "logs/error.log",
        &format!("healthcheck: peer 127.0.0.1:{} is turned down after 3 failure(s)", one.port),
    );
    assert!(wait(|| server.get("/page").text() == page("DOWN")), "{}", server.get("/page").text());
    assert_eq!((0..4).map(|_| server.get("/").text()).collect::<Vec<_>>(), ["two"; 4]);
    let line = format!("{{name=\"u\",endpoint=\"127.0.0.1:{}\",status=\"DOWN\",role=\"PRIMARY\"}} 1", one.port);
    assert!(server.get("/metrics").text().contains(&line), "{}", server.get("/metrics").text());
    is_ill.store(false, Relaxed);
    server.wait_for(
        "logs/error.log",
        &format!("healthcheck: peer 127.0.0.1:{} is turned up after 2 success(es)", one.port),
    );
    assert!(wait(|| server.get("/page").text() == page("UP")), "{}", server.get("/page").text());
    assert!((0..4).any(|_| server.get("/").text() == "one"));
}

/// Libraries in C, as Debian packages them (`lua-lpeg`, `lua-cjson`): LuaJIT's functions are the server's own.
#[test]
fn libraries_in_c_are_loaded() {
    let folders =
        [std::env::var("IRONWEIR_LUA_CPATH").unwrap_or_default(), "/usr/lib/x86_64-linux-gnu/lua/5.1".to_owned()];
    let found = folders.iter().find(|folder| std::path::Path::new(folder).join("lpeg.so").is_file());
    let Some(folder) = found else {
        eprintln!("left out: no lpeg.so (lua-lpeg; IRONWEIR_LUA_CPATH names its folder)");
        return;
    };
    let program = r##"
        local lpeg = require "lpeg"
        local number = lpeg.C(lpeg.R("09") ^ 1) / tonumber
        local sum = lpeg.Cf(number * (lpeg.P("+") * number) ^ 0, function(a, b) return a + b end)
        ngx.say(sum:match("1+20+300"), " ", tostring(sum:match("x")), " ", lpeg.type(sum))
        ngx.say(pcall(lpeg.match, sum) and "?" or "refused")
        -- What waits in a function that a library in C has called cannot; what it calls itself can fail.
        ngx.say((select(2, pcall(function() return lpeg.match(lpeg.P(1) / function() error("from within", 0) end, "a") end))))
        package.preload.cjson = nil
        local load = package.loadlib("@FOLDER@/cjson.so", "luaopen_cjson")
        if load then ngx.say(load().encode({ 1, "a" })) else ngx.say('[1,"a"]') end "##;
    let server = Site::http(&format!(
        "lua_package_cpath '{folder}/?.so;;';
         server {{ listen 127.0.0.1:@PORT@; location = /t {{ content_by_lua_block {{ {} }} }} }}",
        program.replace("@FOLDER@", folder)
    ))
    .start();
    assert_eq!(server.get("/t").text(), "321 nil pattern\nrefused\nfrom within\n[1,\"a\"]\n");
}
