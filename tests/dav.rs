//! `dav_methods`: files are written, copied, moved and removed. `litmus`, where it is installed, is a client of its own.

use crate::harness::{Response, Server, Site};

fn ask(server: &Server, method: &str, target: &str, lines: &str, body: &str) -> Response {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{lines}{length}\r\n{body}");
    server.connect().send(request).response()
}

const ALL: &str = "dav_methods PUT DELETE MKCOL COPY MOVE;";

fn site(text: &str) -> Server {
    // Workers are to write where the test does.
    let whole = format!(
        "user root; events {{}} http {{ access_log off; root @DIR@/html; server {{ listen 127.0.0.1:@PORT@; {text} }} }}"
    );
    Site::whole(&whole).file("html/there/a", "a").file("html/there/b/c", "c").start()
}

#[test]
fn files_are_put_and_deleted() {
    let server = site(&format!("{ALL} location /full/ {{ create_full_put_path on; dav_access group:rw all:r; }}"));
    let long = "0123456789".repeat(200_000);
    let r = ask(&server, "PUT", "/new%20one", "Date: Thu, 01 Jan 2026 00:00:05 GMT\r\n", "text");
    assert_eq!((r.status, r.header("Content-Length")), (201, Some("0")));
    assert!(r.header("Location").unwrap().ends_with("/new%20one"));
    assert_eq!(server.get("/new%20one").header("Last-Modified"), Some("Thu, 01 Jan 2026 00:00:05 GMT"));
    assert_eq!(ask(&server, "PUT", "/new%20one", "", &long).status, 413);
    assert_eq!(ask(&server, "PUT", "/new%20one", "", &long[..900_000]).status, 204);
    assert!(server.get("/new%20one").text() == long[..900_000]);
    let r = server
        .connect()
        .send("PUT /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        .response();
    assert_eq!((r.status, server.get("/chunked").text().as_str()), (201, "abc"));
    for (target, lines, status) in [
        ("/there/", "", 409),
        ("/there", "", 409),
        ("/range", "Content-Range: bytes 0-1/2\r\n", 501),
        ("/no/such/folder", "", 409),
        ("/full/a/b/c", "", 201),
    ] {
        assert_eq!(ask(&server, "PUT", target, lines, "x").status, status, "{target}");
    }
    use std::os::unix::fs::PermissionsExt;
    let mode =
        |name: &str| std::fs::metadata(server.dir().join("html").join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("full/a/b/c"), mode("full/a"), mode("chunked")), (0o664, 0o775, 0o600));
    for (target, lines, status) in [
        ("/chunked", "", 204),
        ("/chunked", "", 404),
        ("/there", "", 409),
        ("/there/a/", "", 409),
        ("/there/", "Depth: 1\r\n", 400),
        ("/there/a", "Depth: x\r\n", 400),
        ("/there/", "", 204),
    ] {
        assert_eq!(ask(&server, "DELETE", target, lines, "").status, status, "{target} {lines}");
    }
    assert_eq!(ask(&server, "DELETE", "/full/a/b/c", "", "body").status, 415);
    assert!(!server.dir().join("html/there").exists());
    // Nothing is left of what was not placed.
    let left = std::fs::read_dir(server.dir().join("client_body_temp")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn trees_are_copied_and_moved() {
    let server = site(&format!("{ALL} location /deep/ {{ min_delete_depth 3; }}"));
    let url = |path: &str| format!("Destination: http://localhost{path}\r\n");
    for (method, from, to, lines, status) in [
        ("MKCOL", "/made/", "", "", 201),
        ("MKCOL", "/made/", "", "", 405),
        ("MKCOL", "/made", "", "", 409),
        ("MKCOL", "/no/such/", "", "", 409),
        ("COPY", "/there/a", "/made/a%20b", "", 204),
        ("COPY", "/there/a", "/made/a%20b", "Overwrite: F\r\n", 412),
        ("COPY", "/there/", "/made/tree/", "", 201),
        ("COPY", "/there/", "/made/flat/", "Depth: 0\r\n", 201),
        ("COPY", "/there/", "/made/tree", "", 409),
        ("COPY", "/there/", "/there/b/x/", "", 403),
        ("COPY", "/there/a", "/there/a", "", 403),
        ("COPY", "/nothing", "/made/x", "", 404),
        ("COPY", "/there/a", "/no/folder/a", "", 409),
        ("COPY", "/there/a", "/../x", "", 400),
        ("COPY", "/there/a", "/made/x%00", "", 400),
        ("MOVE", "/there/a", "/made/moved", "", 204),
        ("MOVE", "/there/b/", "/made/tree/", "Overwrite: F\r\n", 412),
        ("MOVE", "/there/b/", "/made/tree/", "", 201),
        ("MOVE", "/made/moved", "/new/folder/on/the/way", "", 204),
        ("MOVE", "/made/tree/", "/made/tree2/", "Depth: 0\r\n", 400),
        ("DELETE", "/deep/x", "", "", 409),
    ] {
        let lines = if to.is_empty() { lines.to_owned() } else { format!("{}{lines}", url(to)) };
        assert_eq!(ask(&server, method, from, &lines, "").status, status, "{method} {from} {lines}");
    }
    let html = server.dir().join("html");
    assert_eq!(std::fs::read_to_string(html.join("made/a b")).unwrap(), "a");
    assert_eq!(std::fs::read_to_string(html.join("made/tree/c")).unwrap(), "c");
    assert_eq!(std::fs::read_to_string(html.join("new/folder/on/the/way")).unwrap(), "a");
    assert_eq!(std::fs::read_dir(html.join("made/flat")).unwrap().count(), 0);
    assert!(!html.join("there/a").exists() && !html.join("there/b").exists() && !html.join("made/tree/a").exists());
    assert_eq!(ask(&server, "COPY", "/made/", "Destination: http://elsewhere/x/\r\n", "").status, 400);
    assert_eq!(ask(&server, "MOVE", "/made/", "", "").status, 400);
    server.wait_for("logs/error.log", "is handled by different repository");
}

/// Links inside a tree lead nowhere: neither does a copy follow them, nor does what they lead to go with the tree.
#[test]
fn links_are_not_followed() {
    let server = site(ALL);
    let html = server.dir().join("html");
    std::fs::write(server.dir().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(server.dir().join("secret"), html.join("there/link")).unwrap();
    assert_eq!(ask(&server, "COPY", "/there/", "Destination: /copy/\r\n", "").status, 201);
    assert!(html.join("copy/a").exists() && !html.join("copy/link").exists());
    assert_eq!(ask(&server, "DELETE", "/there/", "", "").status, 204);
    assert!(server.dir().join("secret").exists());
}

/// What clients that show a server as a folder ask for: `dav_ext_methods`, with locks.
#[test]
fn folders_are_told_of_and_locked() {
    let server = Site::whole(&format!(
        "user root; events {{}} http {{ access_log off; root @DIR@/html; dav_ext_lock_zone zone=locks:1m timeout=10m;
         server {{ listen 127.0.0.1:@PORT@; {ALL} dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK; dav_ext_lock zone=locks; }} }}"
    ))
    .file("html/there/a & b", "text")
    .file("html/there/sub/c", "c")
    .start();
    let r = ask(&server, "OPTIONS", "/", "", "");
    assert_eq!((r.status, r.header("DAV")), (200, Some("1, 2")));
    assert_eq!(r.header("Allow"), Some("GET, HEAD, PUT, DELETE, MKCOL, COPY, MOVE, PROPFIND, OPTIONS, LOCK, UNLOCK"));
    let find =
        |target: &str, depth: &str, body: &str| ask(&server, "PROPFIND", target, &format!("Depth: {depth}\r\n"), body);
    let one = find("/there/", "1", "");
    assert_eq!((one.status, one.header("Content-Type")), (207, Some("text/xml; charset=utf-8")));
    let page = one.text();
    assert_eq!(page.matches("<D:response>").count(), 3);
    assert!(
        page.contains("<D:href>/there/a%20&amp;%20b</D:href>")
            && page.contains("<D:displayname>a &amp; b</D:displayname>"),
        "{page}"
    );
    assert!(page.contains("<D:getcontentlength>4</D:getcontentlength>") && page.contains("<D:collection/>"));
    assert_eq!(find("/there/", "0", "").text().matches("<D:response>").count(), 1);
    assert_eq!(find("/there/", "infinity", "").text().matches("<D:response>").count(), 4);
    let some = "<x:propfind xmlns:x=\"DAV:\"><x:prop><x:getcontentlength/><y xmlns=\"urn:y\"/></x:prop></x:propfind>";
    let page = find("/there/sub/c", "0", some).text();
    assert!(
        page.contains("<D:getcontentlength>1<")
            && page.contains("<x:y xmlns:x=\"urn:y\"/>")
            && page.contains("404 Not Found"),
        "{page}"
    );
    assert_eq!(find("/nothing", "0", "").status, 404);
    assert_eq!(find("/there/", "0", "<!DOCTYPE x><x/>").status, 400);
    assert_eq!(find("/there/", "2", "").status, 400);

    let info = "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype><D:owner>me</D:owner></D:lockinfo>";
    let r = ask(&server, "LOCK", "/there/new", "Depth: 0\r\n", info);
    assert_eq!((r.status, server.get("/there/new").status), (201, 200));
    let token = r.header("Lock-Token").unwrap().to_owned();
    assert!(r.text().contains(token.trim_matches(['<', '>'])) && r.text().contains("Second-"));
    assert!(find("/there/new", "0", "").text().contains("<D:activelock>"));
    let with = format!("If: ({token})\r\n");
    for (method, target, lines, status) in [
        ("LOCK", "/there/new", "Depth: 0\r\n", 423),
        ("PUT", "/there/new", "", 423),
        ("DELETE", "/there/new", "", 423),
        ("DELETE", "/there/", "", 423),
        ("MOVE", "/there/new", "Destination: /x\r\n", 423),
        ("COPY", "/there/sub/c", "Destination: /there/new\r\n", 423),
        ("COPY", "/there/new", "Destination: /copied\r\n", 204),
    ] {
        let body = match method {
            "LOCK" => info,
            "PUT" => "x",
            _ => "",
        };
        assert_eq!(ask(&server, method, target, lines, body).status, status, "{method} {target}");
    }
    assert_eq!(ask(&server, "PUT", "/there/new", &with, "mine").status, 204);
    assert_eq!(ask(&server, "LOCK", "/there/new", &with, "").status, 200);
    assert_eq!(ask(&server, "UNLOCK", "/there/new", "Lock-Token: <other>\r\n", "").status, 409);
    assert_eq!(ask(&server, "UNLOCK", "/there/new", &format!("Lock-Token: {token}\r\n"), "").status, 204);
    assert_eq!(ask(&server, "PUT", "/there/new", "", "anybody's").status, 204);
    let (status, said) = Site::server("dav_ext_lock zone=none;").check();
    assert!(!status.success() && said.contains("unknown lock zone \"none\""), "{said}");
}

/// What clients set stays with its file: over PUT, COPY and MOVE, and no longer than the file.
#[test]
fn properties_stay_with_their_files() {
    let server = site(&format!(
        "{ALL} dav_ext_methods PROPFIND PROPPATCH OPTIONS; location /none/ {{ dav_ext_methods PROPFIND; }}"
    ));
    let patch = |target: &str, inner: &str| {
        let body = format!("<D:propertyupdate xmlns:D='DAV:' xmlns:n='urn:n'>{inner}</D:propertyupdate>");
        let r = ask(&server, "PROPPATCH", target, "", &body);
        (r.status, r.text())
    };
    let set = |local: &str, value: &str| format!("<D:set><D:prop><n:{local}>{value}</n:{local}></D:prop></D:set>");
    let find = |target: &str| {
        let body = "<D:propfind xmlns:D='DAV:'><D:prop><a xmlns='urn:n'/></D:prop></D:propfind>";
        ask(&server, "PROPFIND", target, "Depth: 0\r\n", body).text()
    };
    let (status, page) = patch("/there/a", &set("a", "<n:in>one &amp; two</n:in>"));
    assert!(status == 207 && page.contains("HTTP/1.1 200 OK"), "{status} {page}");
    let value = "<n:in>one &amp; two</n:in>";
    assert!(find("/there/a").contains(value), "{}", find("/there/a"));
    assert_eq!(ask(&server, "PUT", "/there/a", "", "new").status, 204);
    assert_eq!(ask(&server, "COPY", "/there/a", "Destination: /copied\r\n", "").status, 204);
    assert_eq!(ask(&server, "MOVE", "/there/a", "Destination: /moved\r\n", "").status, 204);
    assert!(find("/copied").contains(value) && find("/moved").contains(value));
    assert_eq!(ask(&server, "DELETE", "/moved", "", "").status, 204);
    assert_eq!(ask(&server, "PUT", "/moved", "", "another").status, 201);
    assert!(find("/moved").contains("404 Not Found"));
    // All or nothing.
    let (_, page) = patch(
        "/copied",
        &format!("{}<D:set><D:prop><D:getcontentlength>1</D:getcontentlength></D:prop></D:set>", set("b", "x")),
    );
    assert!(page.contains("403 Forbidden") && page.contains("424 Failed Dependency"), "{page}");
    let all = ask(&server, "PROPFIND", "/copied", "Depth: 0\r\n", "").text();
    assert!(all.contains(value) && !all.contains("n:b"), "{all}");
    let (_, page) = patch("/copied", &set("c", &"x".repeat(40_000)));
    assert!(page.contains("507 Insufficient Storage"), "{page}");
    patch("/copied", "<D:remove><D:prop><n:a/></D:prop></D:remove>");
    assert!(find("/copied").contains("404 Not Found"));
    assert_eq!((patch("/missing", &set("a", "x")).0, patch("/none/x", &set("a", "x")).0), (404, 405));
    assert_eq!(patch("/copied", "").0, 400);
}

/// Several have a lock, and none of them shuts the others out.
#[test]
fn locks_are_shared() {
    let server = Site::whole(&format!(
        "user root; events {{}} http {{ access_log off; root @DIR@/html; dav_ext_lock_zone zone=locks:1m;
         server {{ listen 127.0.0.1:@PORT@; {ALL} dav_ext_methods PROPFIND LOCK UNLOCK; dav_ext_lock zone=locks; }} }}"
    ))
    .file("html/a", "text")
    .start();
    let lock = |scope: &str| {
        let info = format!(
            "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockinfo>"
        );
        ask(&server, "LOCK", "/a", "Depth: 0\r\n", &info)
    };
    let tokens = [lock("shared"), lock("shared")].map(|r| {
        assert!(r.status == 200 && r.text().contains("<D:shared/>"), "{}", r.status);
        r.header("Lock-Token").unwrap().to_owned()
    });
    assert_eq!((lock("exclusive").status, ask(&server, "PUT", "/a", "", "x").status), (423, 423));
    for token in &tokens {
        assert_eq!(ask(&server, "PUT", "/a", &format!("If: ({token})\r\n"), "x").status, 204);
    }
    let page = ask(&server, "PROPFIND", "/a", "Depth: 0\r\n", "").text();
    assert_eq!(page.matches("<D:activelock>").count(), 2, "{page}");
}

/// A client of WebDAV with tests of its own (`LITMUS` names another directory of its programs than Debian's).
#[test]
fn litmus_agrees() {
    let folder = std::env::var("LITMUS").unwrap_or("/usr/libexec/litmus".into());
    if !std::path::Path::new(&folder).join("basic").exists() {
        println!("litmus is not installed: left out");
        return;
    }
    let server = Site::whole(&format!(
        "user root; events {{}} http {{ access_log off; root @DIR@/html; dav_ext_lock_zone zone=litmus:1m;
         server {{ listen 127.0.0.1:@PORT@; {ALL} create_full_put_path off; dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK PROPPATCH; dav_ext_lock zone=litmus; }} }}"
    ))
    .start();
    for (suite, least) in LITMUS {
        let url = format!("http://127.0.0.1:{}/", server.port);
        let pages = format!("--htdocs={folder}/../../share/litmus/htdocs");
        let mut command = std::process::Command::new(format!("{folder}/{suite}"));
        let out = command.arg(pages).arg(url).current_dir(server.dir()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        let passed = said.lines().filter(|line| line.contains("pass")).count();
        assert!(passed >= *least, "{suite}: {passed} passed\n{said}");
    }
}

/// Which suites, and how many of their tests pass.
const LITMUS: &[(&str, usize)] = &[("basic", 16), ("copymove", 10), ("locks", 39), ("props", 30)];

#[test]
fn the_length_of_a_chunked_file_is_known_once_it_is_there() {
    let server = Site::whole(
        "user root; events {} http { log_format length '$content_length'; access_log @DIR@/logs/length.log length;
         server { listen 127.0.0.1:@PORT@; location / { dav_methods PUT; } } }",
    )
    .start();
    let put = "PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
    assert_eq!(server.connect().send(put).response().status, 201);
    server.wait_for("logs/length.log", "4\n");
}
