//! `mp4`, `flv`, `browser`: films from the middle on, and who looks at them; beside nginx where it is installed.

use crate::harness::{Site, compare_with_nginx};

fn boxed(name: &str, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], name.as_bytes(), body].concat()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn table(name: &str, rows: &[&[u32]]) -> Vec<u8> {
    boxed(name, &[words(&[0, rows.len() as u32]), words(&rows.concat())].concat())
}

/// A track of samples of 40 ms in chunks of five. The first chunk is at `offset`, one every `step` bytes.
fn track(samples: u32, [offset, step]: [u32; 2], wide: bool) -> Vec<u8> {
    let sizes: Vec<u32> = (0..samples).map(|n| 20 + n * 7 % 13).collect();
    let places: Vec<u32> = (0..samples.div_ceil(5)).map(|n| offset + n * step).collect();
    let offsets: Vec<Vec<u32>> = places.iter().map(|p| if wide { vec![0, *p] } else { vec![*p] }).collect();
    let offsets: Vec<&[u32]> = offsets.iter().map(Vec::as_slice).collect();
    let keys: Vec<Vec<u32>> = (1..=samples).step_by(12).map(|n| vec![n]).collect();
    let keys: Vec<&[u32]> = keys.iter().map(Vec::as_slice).collect();
    let mut stbl = vec![
        boxed("stsd", &words(&[0, 1, 16, u32::from_be_bytes(*b"mp4a"), 0, 0])),
        table("stts", &[&[10, 40], &[samples - 10, 40]]),
        table("stsc", &[&[1, 5, 1]]),
        boxed("stsz", &[words(&[0, 0, samples]), words(&sizes)].concat()),
        table(if wide { "co64" } else { "stco" }, &offsets),
    ];
    if !wide {
        stbl.push(table("stss", &keys));
        stbl.push(table("ctts", &[&[samples / 2, 80], &[samples - samples / 2, 40]]));
    }
    let dinf = boxed("dinf", &words(&[1, 2, 3]));
    let head = boxed(if wide { "smhd" } else { "vmhd" }, &words(&[0, 1, 2]));
    let minf = boxed("minf", &[head, dinf, boxed("stbl", &stbl.concat())].concat());
    let duration = samples * 40;
    let mdhd = boxed("mdhd", &words(&[0, 0, 0, 1000, duration, 0]));
    let tkhd = boxed("tkhd", &words(&[&[0, 0, 0, 1, 0, duration][..], &[0; 15]].concat()));
    let mdia = boxed("mdia", &[mdhd, boxed("hdlr", b"whoever plays this"), minf].concat());
    boxed("trak", &[tkhd, mdia, boxed("udta", b"nothing of use")].concat())
}

/// A film of eight seconds with two tracks whose chunks take turns.
fn movie(moov_first: bool) -> Vec<u8> {
    let ftyp = boxed("ftyp", b"isom\0\0\x02\0isomiso2");
    let moov = |offset| {
        let mvhd = boxed("mvhd", &words(&[&[0, 0, 0, 1000, 8000][..], &[0; 22]].concat()));
        let tracks = [track(200, [offset, 400], false), track(200, [offset + 200, 400], true)].concat();
        boxed("moov", &[mvhd, tracks].concat())
    };
    let data: Vec<u8> = (0..40 * 400u32).map(|n| b'a' + (n % 26) as u8).collect();
    let mdat = boxed("mdat", &data);
    let offset = ftyp.len() as u32 + 8 + if moov_first { moov(0).len() as u32 } else { 0 };
    if moov_first { [ftyp, moov(offset), mdat].concat() } else { [ftyp, mdat, moov(offset)].concat() }
}

fn site(loads: &str) -> Site {
    let text = "events {} http { access_log off; root @DIR@/html; server { listen 127.0.0.1:@PORT@;
         location ~ \\.mp4$ { mp4; } location ^~ /key/ { alias @DIR@/html/; mp4; mp4_start_key_frame on; }
         location ^~ /small/ { alias @DIR@/html/; mp4; mp4_max_buffer_size 1k; mp4_buffer_size 512; }
         location ~ \\.flv$ { flv; }
         location /browser {
             modern_browser msie 5.5; modern_browser gecko 1.0.0; modern_browser_value yes;
             ancient_browser Links Lynx netscape4; ancient_browser_value old;
             return 200 '$modern_browser|$ancient_browser|$msie';
         }
         location /unlisted { modern_browser unlisted; ancient_browser Links netscape4; return 200 '$modern_browser|$ancient_browser'; }
     } }";
    Site::whole(&format!("{loads}{text}"))
        .file("html/film.mp4", movie(true))
        .file("html/late.mp4", movie(false))
        .file("html/broken.mp4", &movie(true)[..2000])
        .file("html/empty.mp4", "")
        .file("html/key/film", movie(true))
        .file("html/film.flv", "FLV0123456789")
        .file("html/dir.mp4/index.html", "a directory")
}

#[test]
fn the_same_stretches_as_nginx() {
    let mut requests = Vec::new();
    // Where start and end are in one chunk nginx leaves out the end of the data, and where they are borders of rows it writes empty rows.
    let times = [
        "",
        "?start=0",
        "?start=2",
        "?start=1.2",
        "?start=0.5&end=1",
        "?end=3.21",
        "?start=7.99",
        "?start=8",
        "?start=9",
        "?start=x",
        "?start=2&end=2",
        "?start=1&end=100",
        "?start=3.123456789",
        "?start=0.36&end=7.6",
        "?start=4.04&end=4.8",
        "?end=0",
        "?start=0.2",
        "?end=0.2",
    ];
    for file in ["/film.mp4", "/late.mp4", "/key/film.mp4"] {
        requests.extend(times.iter().map(|time| format!("GET {file}{time} HTTP/1.1")));
    }
    for other in [
        "HEAD /film.mp4?start=2 HTTP/1.1",
        "POST /film.mp4 HTTP/1.1\r\nContent-Length: 0",
        "GET /film.mp4?start=2 HTTP/1.1\r\nRange: bytes=10-100",
        "GET /film.mp4?start=2 HTTP/1.1\r\nRange: bytes=5000-",
        "GET /broken.mp4?start=1 HTTP/1.1",
        "GET /empty.mp4?start=1 HTTP/1.1",
        "GET /missing.mp4?start=1 HTTP/1.1",
        "GET /small/film.mp4?start=1 HTTP/1.1",
        "GET /film.flv HTTP/1.1",
        "GET /film.flv?start=5 HTTP/1.1",
        "GET /film.flv?start=50 HTTP/1.1",
        "GET /film.flv?start=x HTTP/1.1",
        "GET /film.flv?start=5 HTTP/1.1\r\nRange: bytes=3-15",
        "HEAD /film.flv?start=5 HTTP/1.1",
        "PUT /film.flv HTTP/1.1\r\nContent-Length: 0",
    ] {
        requests.push(other.to_owned());
    }
    let agents = [
        "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)",
        "Mozilla/4.0 (compatible; MSIE 5.0; Windows NT 5.1)",
        "Mozilla/5.0 (X11; U; Linux i686; en-US; rv:1.0.0) Gecko/20020610",
        "Mozilla/5.0 (X11; U; Linux i686; en-US; rv:0.9.4) Gecko/20020610",
        "Opera/9.01 (X11; FreeBSD 6 i386; U; en)",
        "Mozilla/4.0 (compatible; MSIE 6.0; X11; FreeBSD i386) Opera 7.50  [en]",
        "Lynx/2.8.5rel.1",
        "Mozilla/4.72 [en] (X11; U; Linux)",
        "curl/7",
    ];
    for target in ["/browser", "/unlisted"] {
        requests.push(format!("GET {target} HTTP/1.1"));
        requests.extend(agents.iter().map(|agent| format!("GET {target} HTTP/1.1\r\nUser-Agent: {agent}")));
    }
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    compare_with_nginx(&[], site, &requests);
}

#[test]
fn a_stretch_is_a_film_of_its_own() {
    let server = site("").start();
    let whole = server.get("/film.mp4");
    assert_eq!((whole.status, &whole.body), (200, &movie(true)));
    let part = server.get("/film.mp4?start=2&end=4");
    assert!(
        part.status == 200 && part.body.starts_with(&movie(true)[..24]) && part.body.len() < whole.body.len() / 2,
        "{} {}",
        part.status,
        part.body.len()
    );
    // It can be cut again: all boxes are where they say they are.
    std::fs::write(server.dir().join("html/part.mp4"), &part.body).unwrap();
    let again = server.get("/part.mp4?start=1&end=2");
    assert!(again.status == 200 && again.body.len() < part.body.len(), "{}", server.error_log());
    assert_eq!(server.get("/broken.mp4?start=1").status, 500);
    server.wait_for("logs/error.log", "mp4 atom too large");
    assert_eq!(server.get("/small/film.mp4?start=1").status, 500);
    server.wait_for("logs/error.log", "you may want to increase mp4_max_buffer_size");
    assert_eq!(server.get("/dir.mp4/").text(), "a directory");
}
