//! Files from disk: types, ranges, conditions, directories.

use crate::harness::Site;

fn site() -> Site {
    Site::server("types { text/html html; text/plain txt; } default_type application/x-other; location /alias/ { alias @DIR@/elsewhere/; }")
        .file("html/index.html", "<p>start</p>")
        .file("html/a.txt", "0123456789")
        .file("html/empty.txt", "")
        .file("html/odd.bin", [0u8, 255, 10])
        .file("html/sub/index.html", "sub")
        .file("html/bare/x.txt", "x")
        .file("html/with space%.txt", "space")
        .file("elsewhere/e.txt", "elsewhere")
}

#[test]
fn a_file_with_its_headers() {
    let server = site().start();
    let r = server.get("/a.txt");
    assert_eq!((r.status, r.text().as_str()), (200, "0123456789"));
    assert_eq!(r.header("Content-Type"), Some("text/plain"));
    assert_eq!(r.header("Content-Length"), Some("10"));
    assert_eq!(r.header("Accept-Ranges"), Some("bytes"));
    assert_eq!(r.header("Connection"), Some("keep-alive"));
    assert!(r.header("Last-Modified").is_some() && r.header("ETag").is_some() && r.header("Date").is_some());
    assert_eq!(server.get("/odd.bin").header("Content-Type"), Some("application/x-other"));
    assert_eq!(server.get("/odd.bin").body, [0, 255, 10]);
    assert_eq!(server.get("/empty.txt").header("Content-Length"), Some("0"));
}

#[test]
fn directories() {
    let server = site().start();
    assert_eq!(server.get("/").text(), "<p>start</p>");
    assert_eq!(server.get("/sub/").text(), "sub");
    let r = server.get("/sub?x=1");
    assert_eq!(r.status, 301);
    assert_eq!(r.header("Location"), Some(format!("http://localhost:{}/sub/?x=1", server.port).as_str()));
    assert_eq!(server.get("/bare/").status, 403);
    assert!(server.error_log().contains("directory index of"));
}

#[test]
fn what_is_not_there() {
    let server = site().start();
    assert_eq!(server.get("/none").status, 404);
    assert!(server.error_log().contains("open()"));
    assert!(server.error_log().contains("failed (2: No such file or directory)"));
    assert_eq!(server.get("/a.txt/more").status, 404);
    assert_eq!(server.get("/a.txt/").status, 404);
}

#[test]
fn names_are_decoded_and_kept_inside() {
    let server = site().start();
    assert_eq!(server.get("/with%20space%25.txt").text(), "space");
    assert_eq!(server.get("/sub/../a.txt").text(), "0123456789");
    assert_eq!(server.get("/sub/%2e%2e/a.txt").text(), "0123456789");
    assert_eq!(server.get("/../a.txt").status, 400);
    assert_eq!(server.get("/%00").status, 400);
    assert_eq!(server.get("/alias/e.txt").text(), "elsewhere");
    assert_eq!(server.get("/alias/../a.txt").text(), "0123456789");
}

#[test]
fn methods() {
    let server = site().start();
    let head = server.connect().head("/a.txt");
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("10")));
    let post = "POST /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(server.connect().send(post).response().status, 405);
}

#[test]
fn a_file_larger_than_any_buffer() {
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let server = site().file("html/large.bin", &large).start();
    let mut client = server.connect();
    for _ in 0..3 {
        assert!(client.get("/large.bin").body == large, "the bytes of the file");
    }
}

#[test]
fn ranges() {
    let server = site().start();
    let ask = |range: &str| {
        let request = format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nRange: {range}\r\n\r\n");
        server.connect().send(request).response()
    };
    let r = ask("bytes=2-4");
    assert_eq!((r.status, r.text().as_str()), (206, "234"));
    assert_eq!(r.header("Content-Range"), Some("bytes 2-4/10"));
    assert_eq!(ask("bytes=-3").text(), "789");
    assert_eq!(ask("bytes=7-").text(), "789");
    let r = ask("bytes=10-");
    assert_eq!((r.status, r.header("Content-Range")), (416, Some("bytes */10")));
    let r = ask("bytes=0-0,9-9");
    assert_eq!(r.status, 206);
    assert!(r.header("Content-Type").unwrap().starts_with("multipart/byteranges; boundary="));
    assert!(r.text().contains("Content-Range: bytes 9-9/10\r\n\r\n9\r\n"), "{}", r.text());
    assert_eq!(ask("lines=1-2").status, 200);
}

#[test]
fn conditions() {
    let server = site().start();
    let first = server.get("/a.txt");
    let (etag, modified) = (first.header("ETag").unwrap(), first.header("Last-Modified").unwrap());
    let ask = |lines: String| {
        server.connect().send(format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n")).response()
    };
    let r = ask(format!("If-None-Match: {etag}"));
    assert_eq!((r.status, r.header("Content-Length"), r.header("ETag")), (304, None, Some(etag)));
    assert_eq!(ask(format!("If-Modified-Since: {modified}")).status, 304);
    assert_eq!(ask("If-None-Match: \"other\"".to_owned()).status, 200);
    assert_eq!(ask("If-Match: \"other\"".to_owned()).status, 412);
    assert_eq!(ask("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT".to_owned()).status, 412);
    assert_eq!(ask(format!("If-Range: {etag}\r\nRange: bytes=0-1")).status, 206);
    assert_eq!(ask("If-Range: \"other\"\r\nRange: bytes=0-1".to_owned()).status, 200);
}

/// `limit_rate` lets a quarter of a second's bytes out at a time, not all of them and then a second of silence.
#[test]
fn a_limited_rate_comes_in_small_pieces() {
    use std::io::Read;
    let server = Site::server("location / { limit_rate 100k; }").file("html/f", vec![b'x'; 300_000]).start();
    let mut client = server.connect();
    client.send("GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut buffer = vec![0; 400_000];
    let mut first = client.stream.read(&mut buffer).expect("an answer");
    client.stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).expect("an option");
    while let Ok(n) = client.stream.read(&mut buffer)
        && n > 0
    {
        first += n;
    }
    assert!(first < 90_000, "{first} bytes at once");
}

/// `aio threads`: what is not in memory is read in by a thread of the pool before it is sent.
#[test]
fn a_cold_file_is_read_by_a_thread_of_its_own() {
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let server = Site::whole(
        "thread_pool disks threads=2 max_queue=16;
         events { }
         http { server { listen 127.0.0.1:@PORT@; root @DIR@/html; aio threads=disks; location /plain { aio off; } } }",
    )
    .file("html/large.bin", &large)
    .file("html/small.txt", "small")
    .start();
    let path = server.dir().join("html/large.bin");
    let file = std::fs::File::open(&path).expect("the file is there");
    file.sync_all().expect("it is on disk");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a hint");
    let mut byte = [0];
    let cold = rustix::io::preadv2(
        &file,
        &mut [std::io::IoSliceMut::new(&mut byte)],
        2_000_000,
        rustix::io::ReadWriteFlags::NOWAIT,
    )
    .is_err();
    let mut client = server.connect();
    assert!(client.get("/large.bin").body == large, "the bytes of the file");
    assert_eq!(client.get("/small.txt").text(), "small");
    let part =
        client.send("GET /large.bin HTTP/1.1\r\nHost: localhost\r\nRange: bytes=1000000-1999999\r\n\r\n").response();
    assert!(part.body == large[1_000_000..2_000_000]);
    if cold {
        assert!(server.has_thread("file reader"), "a thread has read");
    } else {
        println!("files cannot be dropped from memory here: no thread was needed");
    }
}
