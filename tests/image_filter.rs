//! `image_filter`: pictures that are made smaller on their way, what is no picture, and what is too much of one.

use crate::harness::{Client, Server, Site, wait};
use wire::picture::{Kind, Size};

/// A PNG of one colour: IHDR, IDAT of stored blocks, IEND.
fn png(width: u32, height: u32) -> Vec<u8> {
    let row = [&[0][..], &vec![200; width as usize * 3]].concat();
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..height {
        std::io::Write::write_all(&mut packed, &row).unwrap();
    }
    let chunk = |name: &[u8], data: &[u8]| {
        let body = [name, data].concat();
        let crc = wire::encoding::crc32(&body);
        [&(data.len() as u32).to_be_bytes()[..], &body, &crc.to_be_bytes()].concat()
    };
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let data = packed.finish().unwrap();
    [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &head), &chunk(b"IDAT", &data), &chunk(b"IEND", b"")].concat()
}

fn site(locations: &str) -> Server {
    Site::server(locations)
        .file("html/a.png", png(100, 120))
        .file("html/bomb.png", bomb())
        .file("html/cut.png", &png(100, 120)[..60])
        .file("html/text", "no picture at all, whatever it is called")
        .start()
}

/// A head that claims a picture of 4 GB.
fn bomb() -> Vec<u8> {
    let mut bomb = png(1, 1);
    bomb[16..24].copy_from_slice(&[0, 0, 0x80, 0, 0, 0, 0x80, 0]);
    let crc = wire::encoding::crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    bomb
}

fn size(body: &[u8]) -> (u32, u32) {
    let size = Size::of(Kind::of(body).expect("a picture"), body).expect("a whole head");
    (size.width, size.height)
}

#[test]
fn pictures_are_made_smaller_turned_and_told_of() {
    let server = site(
        "location /resize/ { alias @DIR@/html/; image_filter resize 10 -; }
         location /both/ { alias @DIR@/html/; image_filter resize 5 6; image_filter rotate $arg_r; add_header X x; }
         location /crop/ { alias @DIR@/html/; image_filter crop $arg_w $arg_h; }
         location /size/ { alias @DIR@/html/; image_filter size; }
         location /test/ { alias @DIR@/html/; image_filter test; location /test/off/ { alias @DIR@/html/; image_filter off; } }
         location /large/ { alias @DIR@/html/; image_filter resize 1000 1000; }",
    );
    let made = server.get("/resize/a.png");
    assert_eq!((made.status, size(&made.body)), (200, (10, 12)));
    assert_eq!(made.header("Content-Length").map(str::to_owned), Some(made.body.len().to_string()));
    assert!(made.header("ETag").is_some_and(|tag| tag.starts_with("W/")), "{:?}", made.header("ETag"));
    assert_eq!(made.header("Accept-Ranges"), None);
    let turned = server.get("/both/a.png?r=90");
    assert_eq!((size(&turned.body), turned.header("X")), ((6, 5), Some("x")));
    assert_eq!(size(&server.get("/crop/a.png?w=60&h=80").body), (60, 80));
    assert_eq!(server.get("/crop/a.png?w=0&h=80").status, 415);
    let told = server.get("/size/a.png");
    assert_eq!(told.text(), "{ \"img\" : { \"width\": 100, \"height\": 120, \"type\": \"png\" } }\r\n");
    assert_eq!(told.header("Content-Type"), Some("application/json"));
    assert_eq!(server.get("/size/text").text(), "{}\r\n");
    let head = server.connect().head("/size/text");
    assert_eq!((head.header("Content-Type"), head.header("Content-Length")), (Some("application/json"), Some("4")));
    assert_eq!(server.get("/large/a.png").body, png(100, 120), "what is small enough passes as it is");
    assert_eq!((server.get("/test/a.png").status, server.get("/test/text").status), (200, 415));
    assert_eq!(
        (made.header("Content-Type"), server.get("/test/a.png").header("Content-Type")),
        (Some("image/png"), Some("image/png"))
    );
    assert_eq!(server.get("/test/off/text").status, 200);
    // On one connection, each answer framed.
    let mut client = server.connect();
    for _ in 0..3 {
        assert_eq!(size(&client.get("/resize/a.png").body), (10, 12));
        assert_eq!(client.get("/test/text").status, 415);
    }
}

#[test]
fn what_is_too_much_is_refused_and_nothing_stalls() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; error_page 415 = @other; location @other { return 200 other; }
                  location /resize/ { alias @DIR@/html/; image_filter resize 10 10; image_filter_buffer 20m; }
                  location /small/ { alias @DIR@/html/; image_filter resize 10 10; image_filter_buffer 100; }
                  location /proxied/ { proxy_pass http://127.0.0.1:@PORT@/plain/; image_filter resize 10 10;
                                       image_filter_buffer 100; proxy_buffering off; }
                  location /plain/ { alias @DIR@/html/; }
                  location /quick { return 200 quick; } }",
    )
    .file("html/a.png", png(100, 120))
    .file("html/bomb.png", bomb())
    .file("html/cut.png", &png(100, 120)[..60])
    .file("html/large.png", png(2000, 2400))
    .start();
    for path in ["/resize/bomb.png", "/resize/cut.png", "/small/a.png", "/proxied/a.png"] {
        assert_eq!(server.get(path).text(), "other", "{path}");
    }
    assert!(server.error_log().contains("32768x32768 is more than"), "{}", server.error_log());
    assert!(server.memory_kb() < 200_000, "nothing of 4 GB was unpacked: {} kB", server.memory_kb());
    // A large one is worked on beside the thread: others are answered meanwhile.
    let mut slow = server.connect();
    slow.send("GET /resize/large.png HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(wait(|| server.has_thread("file reader")), "a thread of the pool works");
    let mut quick = Client::connect(server.port);
    for _ in 0..5 {
        assert_eq!(quick.get("/quick").text(), "quick");
    }
    assert_eq!(size(&slow.response().body), (8, 10));
}
