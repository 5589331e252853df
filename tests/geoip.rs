//! `geoip`: variables out of legacy databases of MaxMind's, written here; beside nginx with its modules.

use crate::harness::{Server, Site, compare_with_nginx};

/// A node's branch: to another node, or out of the tree with a number.
#[derive(Clone, Copy)]
enum Branch {
    Node(u32),
    Leaf(u32),
}

/// A database: each network with what its leaf says; `segment` none: leaves are places among the records behind the tree.
fn database(
    bits: u32,
    branch: usize,
    networks: &[(u128, u32, u32)],
    segment: Option<u32>,
    records: &[u8],
    kind: u8,
) -> Vec<u8> {
    let mut nodes = vec![[Branch::Leaf(0); 2]];
    for (address, length, leaf) in networks {
        let mut at = 0;
        for depth in 0..*length {
            let side = (address >> (bits - 1 - depth) & 1) as usize;
            at = match nodes[at][side] {
                _ if depth + 1 == *length => {
                    nodes[at][side] = Branch::Leaf(*leaf);
                    break;
                }
                Branch::Node(next) => next as usize,
                Branch::Leaf(around) => {
                    let next = nodes.len();
                    nodes[at][side] = Branch::Node(next as u32);
                    nodes.push([Branch::Leaf(around); 2]);
                    next
                }
            };
        }
    }
    let base = segment.unwrap_or(nodes.len() as u32);
    let mut out = Vec::new();
    for side in nodes.iter().flatten() {
        let value = match side {
            Branch::Node(node) => *node,
            Branch::Leaf(leaf) => base + leaf,
        };
        out.extend_from_slice(&value.to_le_bytes()[..branch]);
    }
    out.extend_from_slice(records);
    out.extend_from_slice(&[255, 255, 255, kind]);
    if segment.is_none() {
        out.extend_from_slice(&base.to_le_bytes()[..3]);
    }
    out
}

/// The numbers of countries, as the format has them.
const GERMANY: u32 = 56;
const UNITED_STATES: u32 = 225;
const CURACAO: u32 = 10;
/// A country edition's first leaf.
const COUNTRIES: u32 = 16_776_960;

fn v4(address: [u8; 4], length: u32, leaf: u32) -> (u128, u32, u32) {
    (u32::from_be_bytes(address).into(), length, leaf)
}

fn countries() -> Vec<u8> {
    let networks = [
        v4([127, 0, 0, 0], 8, GERMANY),
        v4([10, 0, 0, 0], 8, UNITED_STATES),
        v4([10, 9, 0, 0], 16, CURACAO),
        v4([255, 255, 255, 255], 32, 2),
    ];
    database(32, 3, &networks, Some(COUNTRIES), b"", 106)
}

fn countries_v6() -> Vec<u8> {
    let networks = [(1, 128, UNITED_STATES), (0xffff_7f00_0000, 104, GERMANY), (0x2001_0db8 << 96, 32, CURACAO)];
    database(128, 3, &networks, Some(COUNTRIES), b"", 12)
}

/// One city's record.
fn city(country: u32, texts: [&[u8]; 3], latitude: f64, longitude: f64, codes: u32) -> Vec<u8> {
    let mut out = vec![country as u8];
    for text in texts {
        out.extend_from_slice(text);
        out.push(0);
    }
    for degrees in [latitude, longitude] {
        let number = ((degrees + 180.0) * 10_000.0).round() as u32;
        out.extend_from_slice(&number.to_le_bytes()[..3]);
    }
    if country == UNITED_STATES {
        out.extend_from_slice(&codes.to_le_bytes()[..3]);
    }
    out
}

fn cities(kind: u8) -> Vec<u8> {
    let mut records = vec![0];
    let mut networks = Vec::new();
    let all = [
        ([127, 0, 0, 0], city(GERMANY, [b"02", b"M\xfcnchen", b"80331"], 48.1374, 11.5755, 0)),
        ([10, 0, 0, 0], city(UNITED_STATES, [b"CA", b"San Francisco", b""], 37.7749, -122.4194, 807_415)),
        ([11, 0, 0, 0], city(GERMANY, [b"", b"", b""], -0.5, 0.0001, 0)),
        ([12, 0, 0, 0], city(0, [b"ZZ", b"x", b"y"], -90.0, 179.9999, 0)),
        ([13, 0, 0, 0], city(CURACAO, [b"00", b"Willemstad", b"1"], 12.1, -68.9, 0)),
    ];
    for (address, record) in all {
        networks.push(v4(address, 8, records.len() as u32));
        records.extend_from_slice(&record);
    }
    // nginx's library asks for as many bytes as a record may have.
    records.extend_from_slice(&[0; 60]);
    database(32, 3, &networks, None, &records, kind)
}

fn names(kind: u8, branch: usize) -> Vec<u8> {
    let records = b"\0AS64496 Caf\xe9\0\0AS64497 Other\0";
    let networks = [v4([127, 0, 0, 0], 8, 1), v4([10, 0, 0, 0], 8, 14), v4([11, 0, 0, 0], 8, 15)];
    database(32, branch, &networks, None, records, kind)
}

const SERVER: &str = "geoip_proxy 127.0.0.1; geoip_proxy 10.1.0.0/16; geoip_proxy_recursive on;
    server { listen 127.0.0.1:@PORT@; location / {
        return 200 '[$geoip_country_code] [$geoip_country_code3] [$geoip_country_name] [$geoip_org]
[$geoip_city_continent_code] [$geoip_city_country_code] [$geoip_city_country_code3] [$geoip_city_country_name]
[$geoip_region] [$geoip_region_name] [$geoip_city] [$geoip_postal_code]
[$geoip_latitude] [$geoip_longitude] [$geoip_dma_code] [$geoip_area_code]'; } }";

/// `loads`: what stands before everything.
fn site_with(loads: &str, directives: &str) -> Site {
    let site = Site::whole(&format!(
        "{loads}events {{}} http {{ access_log off; default_type text/plain; {directives} {SERVER} }}"
    ));
    site.file("country.dat", countries())
        .file("country6.dat", countries_v6())
        .file("city.dat", cities(2))
        .file("city0.dat", cities(111))
        .file("org.dat", names(110, 4))
        .file("asnum.dat", names(9, 3))
}

fn site(directives: &str) -> Site {
    site_with("", directives)
}

/// What a client of this address is told.
fn asked(server: &Server, from: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {from}\r\n\r\n");
    server.connect().send(request).response().text()
}

const ALL: &str = "geoip_country @DIR@/country.dat; geoip_city @DIR@/city.dat; geoip_org @DIR@/org.dat;";

#[test]
fn an_address_has_a_country_a_city_and_an_organisation() {
    let server = site(ALL).start();
    let here = server.get("/");
    assert_eq!(
        here.body,
        b"[DE] [DEU] [Germany] [AS64496 Caf\xe9]\n[EU] [DE] [DEU] [Germany]\n[02] [Bayern] [M\xfcnchen] [80331]\n[48.1374] [11.5755] [0] [0]"
    );
    assert_eq!(
        asked(&server, "10.2.3.4"),
        "[US] [USA] [United States] []\n[NA] [US] [USA] [United States]\n[CA] [California] [San Francisco] []\n[37.7749] [-122.4194] [807] [415]"
    );
    // From the last to the first that no proxy is: 10.1.2.3 is one.
    assert!(asked(&server, "10.9.0.1, 10.1.2.3").starts_with("[CW] [CUW] [Curacao]"));
    assert_eq!(asked(&server, "9.9.9.9"), "[] [] [] []\n[] [] [] []\n[] [] [] []\n[] [] [] []");
    let utf8 = site(&ALL.replace(".dat;", ".dat utf8;")).start();
    assert!(utf8.get("/").text().contains("[AS64496 Café]") && utf8.get("/").text().contains("[München]"));
    assert!(asked(&utf8, "10.9.0.1").contains("[Curaçao]"));
}

#[test]
fn they_exist_without_a_database_and_may_be_others() {
    let server = site("").start();
    assert_eq!(server.get("/").text(), "[] [] [] []\n[] [] [] []\n[] [] [] []\n[] [] [] []");
    // Whoever took geoip2 or a map for them goes on with it.
    let server = Site::http(
        "map $remote_addr $geoip_country_code { default XX; }
         server { listen 127.0.0.1:@PORT@; location / { set $geoip_city here; return 200 '$geoip_country_code $geoip_city'; } }",
    );
    assert_eq!(server.start().get("/").text(), "XX here");
}

#[test]
fn the_same_as_the_module_in_nginx() {
    let requests: Vec<String> = [
        "127.0.0.1",
        "10.2.3.4",
        "10.9.1.1",
        "11.0.0.1",
        "12.0.0.1",
        "13.0.0.1",
        "9.9.9.9",
        "::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "10.9.0.1, 10.1.2.3",
        "nonsense",
    ]
    .iter()
    .map(|from| format!("GET / HTTP/1.1\r\nX-Forwarded-For: {from}"))
    .chain(["GET / HTTP/1.1".to_owned()])
    .collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    for directives in [
        "geoip_country @DIR@/country.dat; geoip_city @DIR@/city.dat; geoip_org @DIR@/org.dat;",
        "geoip_country @DIR@/country6.dat; geoip_city @DIR@/city0.dat; geoip_org @DIR@/asnum.dat;",
        "geoip_country @DIR@/country.dat utf8; geoip_city @DIR@/city.dat utf8; geoip_org @DIR@/org.dat utf8;",
        "geoip_org @DIR@/asnum.dat utf8;",
        "",
    ] {
        compare_with_nginx(&["ngx_http_geoip_module"], |loads| site_with(loads, directives), &requests);
    }
}

#[test]
fn what_is_no_database_is_refused_with_its_place() {
    let said = |directive: &str| {
        let (status, said) = site(directive)
            .file("junk.dat", "junk")
            .file("cut.dat", [&[255, 255, 255, 2, 99][..], &[0; 2]].concat())
            .check();
        assert!(!status.success(), "{directive}");
        said
    };
    let missing = said("geoip_country @DIR@/none.dat;");
    assert!(missing.contains("none.dat\" cannot be used") && missing.contains("No such file"), "{missing}");
    let junk = said("geoip_country @DIR@/junk.dat;");
    assert!(junk.contains("geoip_country database") && junk.contains("do not say what kind"), "{junk}");
    let cut = said("geoip_city @DIR@/cut.dat;");
    assert!(cut.contains("tree of 99 nodes takes 594 bytes, and the file has 7"), "{cut}");
    let other = said("geoip_city @DIR@/country.dat;");
    assert!(other.contains("invalid GeoIP database") && other.contains("type:1"), "{other}");
    let twice = said("geoip_org @DIR@/org.dat; geoip_org @DIR@/org.dat;");
    assert!(twice.contains("\"geoip_org\" directive is duplicate"), "{twice}");
    let word = said("geoip_org @DIR@/org.dat latin1;");
    assert!(word.contains("invalid parameter \"latin1\""), "{word}");
}

#[test]
fn a_damaged_database_costs_the_value_and_a_line() {
    let server = site("geoip_country @DIR@/loop.dat;").file("loop.dat", [0, 0, 0, 0, 0, 0, 255, 255, 255, 1]).start();
    assert!(server.get("/").text().starts_with("[] [] []"));
    server.wait_for("logs/error.log", "loop.dat\": its tree has no leaf below node 0");
}

#[test]
fn sessions_of_stream_have_them_too() {
    let server = Site::whole(
        "events {} stream { geoip_country @DIR@/country.dat; geoip_city @DIR@/city.dat utf8; geoip_org @DIR@/org.dat;
         server { listen 127.0.0.1:@PORT@; return '$geoip_country_code $geoip_city $geoip_org'; } }",
    )
    .file("country.dat", countries())
    .file("city.dat", cities(2))
    .file("org.dat", names(5, 4))
    .start();
    assert_eq!(server.connect().rest(), b"DE M\xc3\xbcnchen AS64496 Caf\xe9");
}
