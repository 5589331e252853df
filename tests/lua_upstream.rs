//! `ngx.upstream`: programs look at the groups of peers, and take peers out of use.

use crate::harness::{Backend, Site};

#[test]
fn groups_servers_and_peers_are_shown() {
    let server = Site::http(
        r##"upstream foo.com:1234 { server 127.0.0.6 fail_timeout=5 backup; server 127.0.0.1 fail_timeout=53 weight=4 max_fails=100; server 127.0.0.7:81 down; }
           upstream bar { server 127.0.0.2; server 127.0.0.3 backup; }
           server { listen 127.0.0.1:@PORT@;
             location = /t { content_by_lua_block {
               local upstream = require "ngx.upstream"
               local function show(all, why)
                 if not all then return ngx.say(tostring(all), " ", why) end
                 for _, one in ipairs(all) do
                   local keys = {}
                   for key in pairs(one) do keys[#keys + 1] = key end
                   table.sort(keys)
                   for i, key in ipairs(keys) do keys[i] = key .. "=" .. tostring(one[key]) end
                   ngx.say(table.concat(keys, " "))
                 end
               end
               ngx.say(table.concat(upstream.get_upstreams(), " "))
               show(upstream.get_servers("foo.com:1234"))
               show(upstream.get_primary_peers("bar"))
               show(upstream.get_backup_peers("bar"))
               show(upstream.get_servers("blah"))
               ngx.say(#upstream.get_servers("127.0.0.9"), " ", #upstream.get_primary_peers("127.0.0.9:82"))
               show(upstream.set_peer_down("bar", false, 1, true))
               show(upstream.set_peer_down("127.0.0.9", true, 0, true))
               ngx.say((select(2, pcall(upstream.get_servers)):match("one argument.*")))
               ngx.say(select(2, pcall(upstream.set_peer_down, "bar", false, "x", true)))
               ngx.say(tostring(upstream.current_upstream_name()))
             } }
             location = /other { proxy_pass http://127.0.0.9:82; } }"##,
    )
    .start();
    let text = server.get("/t").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "foo.com:1234 bar 127.0.0.9:82",
            "addr=127.0.0.6:80 backup=true fail_timeout=5 max_fails=1 name=127.0.0.6 weight=1",
            "addr=127.0.0.1:80 fail_timeout=53 max_fails=100 name=127.0.0.1 weight=4",
            "addr=127.0.0.7:81 down=true fail_timeout=10 max_fails=1 name=127.0.0.7:81 weight=1",
            "conns=0 current_weight=0 effective_weight=1 fail_timeout=10 fails=0 id=0 max_fails=1 name=127.0.0.2:80 weight=1",
            "conns=0 current_weight=0 effective_weight=1 fail_timeout=10 fails=0 id=0 max_fails=1 name=127.0.0.3:80 weight=1",
            "nil upstream not found",
            "0 1",
            "nil bad peer id",
            "nil no backup peers",
            "one argument expected",
            "bad argument #3 to 'set_peer_down' (number expected, got string)",
            "nil",
        ],
        "{text}"
    );
}

#[test]
fn a_peer_is_taken_out_of_use_and_back() {
    let (one, two) = (Backend::ok("one"), Backend::ok("two"));
    let server = Site::http(
        r##"upstream u { zone u 64k; server 127.0.0.1:@ONE@; server 127.0.0.1:@TWO@; }
           server { listen 127.0.0.1:@PORT@;
             location / { proxy_pass http://u; header_filter_by_lua_block {
               ngx.header["X-Group"] = require("ngx.upstream").current_upstream_name() } }
             location /api/ { api write=on; }
             location = /set { content_by_lua_block {
               local upstream = require "ngx.upstream"
               ngx.say(upstream.set_peer_down("u", false, tonumber(ngx.var.arg_id), ngx.var.arg_down == "1"))
               for _, peer in ipairs(upstream.get_primary_peers("u")) do ngx.say(tostring(peer.down)) end
             } } }"##,
    )
    .set("ONE", one.port)
    .set("TWO", two.port)
    .start();
    let answers = || (0..4).map(|_| server.get("/").text()).collect::<Vec<_>>();
    assert_eq!(server.get("/").header("X-Group"), Some("u"));
    assert_eq!(server.get("/set?id=0&down=1").text(), "true\ntrue\nnil\n");
    assert_eq!(answers(), ["two"; 4]);
    assert_eq!(server.get("/set?id=0&down=0").text(), "true\nnil\nnil\n");
    assert!(answers().contains(&"one".to_owned()));
    // Whoever asks the API has the last word, as with what it has said itself.
    assert_eq!(server.get("/set?id=1&down=1").text(), "true\nnil\ntrue\n");
    let text = r#"{"down":false}"#;
    let head = "PATCH /api/9/http/upstreams/u/servers/1 HTTP/1.1\r\nHost: x\r\n";
    let status = server.connect().send(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len())).response().status;
    assert_eq!(status, 200);
    assert!(answers().contains(&"two".to_owned()));
}
