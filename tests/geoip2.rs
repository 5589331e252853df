//! `geoip2`: variables out of a database of MaxMind's format, written here; beside nginx with its module.

use crate::harness::{Site, compare_with_nginx};

/// A value of the format (MaxMind DB 2.0).
pub(crate) enum Data<'d> {
    Text(&'d str),
    Number(u32),
    Small(u16),
    Large(u64),
    Double(f64),
    Yes,
    Map(Vec<(&'d str, Data<'d>)>),
    List(Vec<Data<'d>>),
}

impl Data<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let small = |out: &mut Vec<u8>, kind: u8, size: usize| match size {
            0..29 => out.push(kind << 5 | size as u8),
            _ => out.extend([kind << 5 | 29, (size - 29) as u8]),
        };
        match self {
            Data::Text(text) => {
                small(out, 2, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Data::Number(n) => {
                small(out, 6, 4);
                out.extend_from_slice(&n.to_be_bytes());
            }
            Data::Small(n) => {
                small(out, 5, 2);
                out.extend_from_slice(&n.to_be_bytes());
            }
            Data::Large(n) => {
                out.extend_from_slice(&[8, 2]);
                out.extend_from_slice(&n.to_be_bytes());
            }
            Data::Double(n) => {
                small(out, 3, 8);
                out.extend_from_slice(&n.to_be_bytes());
            }
            Data::Yes => out.extend_from_slice(&[1, 7]),
            Data::Map(fields) => {
                small(out, 7, fields.len());
                for (name, value) in fields {
                    Data::Text(name).write(out);
                    value.write(out);
                }
            }
            Data::List(items) => {
                out.extend_from_slice(&[items.len() as u8, 4]);
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

/// A database of IPv4 networks.
pub(crate) fn database(networks: &[([u8; 4], u32, Data<'_>)]) -> Vec<u8> {
    // Nodes are pairs; `Err` is a place among the data.
    let mut nodes: Vec<[Option<Result<usize, usize>>; 2]> = vec![[None; 2]];
    let mut data = Vec::new();
    for (address, length, value) in networks {
        let (bits, mut at) = (u32::from_be_bytes(*address), 0);
        for depth in 0..*length {
            let side = (bits >> (31 - depth) & 1) as usize;
            if depth + 1 == *length {
                nodes[at][side] = Some(Err(data.len()));
            } else {
                at = match nodes[at][side] {
                    Some(Ok(next)) => next,
                    _ => {
                        nodes.push([None; 2]);
                        let next = nodes.len() - 1;
                        nodes[at][side] = Some(Ok(next));
                        next
                    }
                };
            }
        }
        value.write(&mut data);
    }
    let count = nodes.len();
    let mut out = Vec::new();
    for record in nodes.iter().flatten() {
        let value = match record {
            None => count,
            Some(Ok(node)) => *node,
            Some(Err(place)) => count + 16 + place,
        };
        out.extend_from_slice(&(value as u32).to_be_bytes()[1..]);
    }
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&data);
    out.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    let metadata = Data::Map(vec![
        ("binary_format_major_version", Data::Small(2)),
        ("binary_format_minor_version", Data::Small(0)),
        ("build_epoch", Data::Large(1_700_000_000)),
        ("database_type", Data::Text("Test")),
        ("description", Data::Map(vec![("en", Data::Text("a test"))])),
        ("ip_version", Data::Small(4)),
        ("languages", Data::List(vec![Data::Text("en")])),
        ("node_count", Data::Number(count as u32)),
        ("record_size", Data::Small(24)),
    ]);
    metadata.write(&mut out);
    out
}

fn country<'d>(code: &'d str, name: &'d str) -> Data<'d> {
    let names = Data::Map(vec![("de", Data::Text(name)), ("en", Data::Text(name))]);
    Data::Map(vec![
        ("country", Data::Map(vec![("iso_code", Data::Text(code)), ("names", names)])),
        ("location", Data::Map(vec![("latitude", Data::Double(52.5)), ("radius", Data::Number(10))])),
        ("subdivisions", Data::List(vec![Data::Text("first"), Data::Text("last")])),
        ("traits", Data::Map(vec![("is_anycast", Data::Yes), ("asn", Data::Large(64_512))])),
    ])
}

fn whole() -> Vec<u8> {
    database(&[
        ([127, 0, 0, 0], 8, country("LO", "Loopback")),
        ([10, 1, 0, 0], 16, country("DE", "Germany")),
        ([10, 2, 3, 4], 32, country("FR", "France")),
    ])
}

const TEXT: &str = "events {} http { access_log off; default_type text/plain;
    geoip2 @DIR@/geo.mmdb {
        $code default=XX country iso_code;
        $by_arg default=none source=$arg_ip country iso_code;
        $name country names en;
        $missing country names fr;
        $latitude location latitude;
        $radius location radius;
        $asn traits asn;
        $anycast traits is_anycast;
        $first subdivisions 0;
        $map default=map country;
        $built metadata build_epoch;
    }
    geoip2_proxy 127.0.0.1;
    geoip2_proxy_recursive on;
    server { listen 127.0.0.1:@PORT@;
        location / { return 200 '$code $by_arg [$name] [$missing] $latitude $radius $asn $anycast $first $map $built'; } } }";

#[test]
fn the_same_as_the_module_in_nginx() {
    let site = |loads: &str| Site::whole(&format!("{loads}{TEXT}")).file("geo.mmdb", whole());
    let requests = [
        "GET / HTTP/1.1",
        "GET /?ip=10.1.2.3 HTTP/1.1",
        "GET /?ip=10.2.3.4 HTTP/1.1",
        "GET /?ip=10.2.3.5 HTTP/1.1",
        "GET /?ip=nonsense HTTP/1.1",
        "GET / HTTP/1.1\r\nX-Forwarded-For: 10.1.9.9",
        "GET / HTTP/1.1\r\nX-Forwarded-For: 10.1.9.9, 10.2.3.4",
        "GET / HTTP/1.1\r\nX-Forwarded-For: 10.1.9.9, 127.0.0.1",
    ];
    compare_with_nginx(&["ngx_http_geoip2_module"], site, &requests);
}

#[test]
fn a_database_that_changes_is_read_again() {
    let server = Site::http(
        "geoip2 @DIR@/geo.mmdb { auto_reload 1s; $code country iso_code; }
         server { listen 127.0.0.1:@PORT@; location / { return 200 $code; } }",
    )
    .file("geo.mmdb", whole())
    .start();
    assert_eq!(server.get("/").text(), "LO");
    let path = server.dir().join("geo.mmdb");
    // What is no database leaves the old one in place.
    std::fs::write(&path, "not yet").unwrap();
    assert_eq!(server.get("/").text(), "LO");
    std::fs::write(&path, database(&[([127, 0, 0, 0], 8, country("NW", "New"))])).unwrap();
    assert!(crate::harness::wait(|| server.get("/").text() == "NW"));
    let (status, said) = Site::http("geoip2 @DIR@/none.mmdb { $a b; }").check();
    assert!(!status.success() && said.contains("none.mmdb") && said.contains("No such file"), "{said}");
    // A word that no database has: the module says nothing, and gives nothing.
    let odd = "geoip2 @DIR@/geo.mmdb { $a metadata last_reload; $code country iso_code; } server { listen 127.0.0.1:@PORT@; return 200 '[$a] $code'; }";
    let (status, said) = Site::http(odd).file("geo.mmdb", whole()).check();
    assert!(status.success() && said.contains("unknown metadata \"last_reload\""), "{said}");
    assert_eq!(Site::http(odd).file("geo.mmdb", whole()).start().get("/").text(), "[] LO");
    let (status, said) = Site::http("geoip2 @DIR@/bad.mmdb { $a b; }").file("bad.mmdb", "x").check();
    assert!(!status.success() && said.contains("cannot be used"), "{said}");
}

#[test]
fn sessions_of_stream_have_them_too() {
    let server = Site::whole(
        "events {} stream { geoip2 @DIR@/geo.mmdb { $code country iso_code; } server { listen 127.0.0.1:@PORT@; return $code; } }",
    )
    .file("geo.mmdb", whole())
    .start();
    assert_eq!(server.connect().rest(), b"LO");
}
