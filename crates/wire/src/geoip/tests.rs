use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A tree in which each of some addresses has a leaf of its own, and all others have `nothing`.
fn tree(bits: u32, branch: usize, leaves: &[(u128, u32)], nothing: u32) -> Vec<[u32; 2]> {
    // Leaves are marked until the number of nodes is known.
    const LEAF: u32 = 1 << 31;
    let mut nodes = vec![[LEAF | nothing; 2]];
    for (address, leaf) in leaves {
        let mut at = 0;
        for depth in 0..bits {
            let side = (address >> (bits - 1 - depth) & 1) as usize;
            if depth + 1 == bits {
                nodes[at][side] = LEAF | leaf;
            } else if nodes[at][side] & LEAF != 0 {
                nodes.push([LEAF | nothing; 2]);
                nodes[at][side] = nodes.len() as u32 - 1;
            }
            at = nodes[at][side] as usize;
        }
    }
    assert!(branch == 3 || branch == 4);
    nodes
}

fn file(bits: u32, branch: usize, leaves: &[(u128, u32)], segment: Option<u32>, records: &[u8], kind: u8) -> Vec<u8> {
    let nodes = tree(bits, branch, leaves, 0);
    let base = segment.unwrap_or(nodes.len() as u32);
    let mut out = Vec::new();
    for side in nodes.iter().flatten() {
        let value = if side >> 31 == 1 { base + (side & !(1 << 31)) } else { *side };
        out.extend_from_slice(&value.to_le_bytes()[..branch]);
    }
    out.extend_from_slice(records);
    out.extend_from_slice(&MARK);
    out.push(kind);
    if segment.is_none() {
        out.extend_from_slice(&base.to_le_bytes()[..3]);
    }
    out
}

#[test]
fn countries_of_both_families() {
    let v4 = file(32, 3, &[(0x7f00_0001, 56), (0x0a00_0001, 225), (0xffff_ffff, 2)], Some(COUNTRY_BEGIN), b"", 106);
    let v4 = Database::new(v4).unwrap();
    let code = |d: &Database, text| d.country(ip(text)).unwrap().map(|c| c.code);
    assert_eq!((v4.edition(), v4.kind()), (Edition::Country, 1));
    assert_eq!(code(&v4, "127.0.0.1"), Some("DE"));
    assert_eq!(code(&v4, "10.0.0.1"), Some("US"));
    assert_eq!(code(&v4, "10.0.0.2"), None);
    assert_eq!(code(&v4, "::ffff:10.0.0.1"), Some("US"));
    assert_eq!(code(&v4, "2001:db8::1"), Some("EU"), "as 255.255.255.255");
    let one = u128::from_str_radix("20010db8000000000000000000000001", 16).unwrap();
    let v6 = Database::new(file(128, 3, &[(one, 74), (0xffff_0a00_0001, 38)], Some(COUNTRY_BEGIN), b"", 12)).unwrap();
    assert_eq!(code(&v6, "2001:db8::1"), Some("FR"));
    assert_eq!(code(&v6, "10.0.0.1"), Some("CA"), "as a mapped address");
    assert_eq!(code(&v6, "::1"), None);
    let germany = v6.country(ip("2001:db8::1")).unwrap().unwrap();
    assert_eq!((germany.code3, germany.continent, germany.name), ("FRA", "EU", "France"));
    assert_eq!((v4.city(ip("10.0.0.1")), v4.name(ip("10.0.0.1"))), (Ok(None), Ok(None)));
}

/// Two cities, the second of which is `country`'s.
fn cities(kind: u8, country: u8) -> Vec<u8> {
    let mut records = vec![0];
    records.extend_from_slice(b"\x3816\0M\xfcnchen\x00080331\0");
    records.extend_from_slice(&[0x48, 0x84, 0x23, 0x53, 0x4d, 0x1d]);
    let second = records.len() as u32;
    records.push(country);
    records.extend_from_slice(b"CA\0\0\0");
    records.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
    records.extend_from_slice(&807_415_u32.to_le_bytes()[..3]);
    file(32, 3, &[(1, 1), (2, second)], None, &records, kind)
}

#[test]
fn cities_of_both_revisions() {
    let database = Database::new(cities(2, 225)).unwrap();
    let munich = database.city(ip("0.0.0.1")).unwrap().unwrap();
    assert_eq!(
        (munich.country.code, munich.region, munich.name, munich.postal_code),
        ("DE", &b"16"[..], &b"M\xfcnchen"[..], &b"080331"[..])
    );
    assert!((munich.latitude - 52.7624).abs() < 1e-9 && (munich.longitude - 12.0339).abs() < 1e-9, "{munich:?}");
    assert_eq!((munich.dma_code, munich.area_code), (0, 0));
    let second = database.city(ip("0.0.0.2")).unwrap().unwrap();
    assert_eq!((second.name, second.latitude, second.dma_code, second.area_code), (&b""[..], -180.0, 807, 415));
    assert_eq!(database.city(ip("0.0.0.3")), Ok(None));
    let first_revision = Database::new(cities(111, 225)).unwrap();
    assert_eq!(first_revision.city(ip("0.0.0.2")).unwrap().unwrap().dma_code, 0);
    let elsewhere = Database::new(cities(2, 38)).unwrap();
    assert_eq!(elsewhere.city(ip("0.0.0.2")).unwrap().unwrap().area_code, 0);
}

#[test]
fn names_in_branches_of_three_and_four_bytes() {
    for (kind, branch) in [(110, 4), (4, 4), (11, 4), (9, 3)] {
        let database = Database::new(file(32, branch, &[(7, 1), (8, 10)], None, b"\0AS1 One\0 \xe9\0", kind)).unwrap();
        assert_eq!(database.name(ip("0.0.0.7")), Ok(Some(&b"AS1 One"[..])), "{kind}");
        assert_eq!(database.name(ip("0.0.0.8")), Ok(Some(&b"\xe9"[..])), "{kind}");
        assert_eq!(database.name(ip("0.0.0.9")), Ok(None), "{kind}");
    }
    let v6 = Database::new(file(128, 4, &[(7, 1)], None, b"\0x\0", 23)).unwrap();
    assert_eq!(v6.name(ip("::7")), Ok(Some(&b"x"[..])));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let fault = |bytes: &[u8]| Database::new(bytes.to_vec()).err().map(|f| f.to_string()).unwrap_or_default();
    assert!(fault(b"").contains("do not say what kind"));
    assert!(fault(&[7; 100]).contains("do not say what kind"));
    assert_eq!(fault(&[1, 255, 255, 255]), "the description of its structure at byte 1 is cut off");
    assert_eq!(fault(&[255, 255, 255, 2, 0]), "the description of its structure at byte 0 is cut off");
    assert_eq!(fault(&[255, 255, 255, 3]), "GeoIP databases of type 3 are not read");
    assert_eq!(fault(&[255, 255, 255, 2, 9, 0, 0]), "its tree of 9 nodes takes 54 bytes, and the file has 7");
    let asked = |bytes: Vec<u8>| Database::new(bytes).unwrap().country(ip("1.2.3.4")).unwrap_err().to_string();
    assert_eq!(
        asked(vec![9, 0, 0, 9, 0, 0, 255, 255, 255, 1]),
        "its tree leads to node 9 at byte 54, which is not in the tree"
    );
    assert_eq!(asked(vec![0, 0, 0, 0, 0, 0, 255, 255, 255, 1]), "its tree has no leaf below node 0");
    let mut cut = cities(2, 225);
    let end = cut.len() - 7;
    cut.drain(end - 4..end);
    let cut = Database::new(cut).unwrap();
    // What is read there is wrong, but within the file.
    assert!(cut.city(ip("0.0.0.2")).is_ok());
    let beyond = file(32, 3, &[(1, 5000)], None, b"", 2);
    let said = Database::new(beyond).unwrap().city(ip("0.0.0.1")).unwrap_err().to_string();
    assert!(said.starts_with("the record at byte 51") && said.ends_with("has no end"), "{said}");
    let endless = Database::new(file(32, 4, &[(1, 1)], None, &[b'a'; 2 * MAX_TEXT], 5)).unwrap();
    assert!(matches!(endless.name(ip("0.0.0.1")), Err(Fault::Record(_))));
}

#[test]
fn the_tables_are_whole() {
    assert_eq!(rows(include_str!("countries.tsv")).count(), 256);
    for row in rows(include_str!("countries.tsv")) {
        assert_eq!(row.split('\t').count(), 4, "{row}");
    }
    let regions: Vec<_> = rows(include_str!("regions.tsv")).collect();
    let keys: Vec<_> = regions.iter().map(|row| row.split('\t').take(2).collect::<Vec<_>>()).collect();
    assert!(keys.is_sorted() && regions.iter().all(|row| row.is_ascii() && row.split('\t').count() == 3));
    assert_eq!(region_name("US", b"CA"), Some("California"));
    assert_eq!(region_name("DE", b"02"), Some("Bayern"));
    assert_eq!(region_name("ZW", regions[regions.len() - 1].split('\t').nth(1).unwrap().as_bytes()), Some("Harare"));
    assert_eq!((region_name("US", b"ZZ"), region_name("", b"")), (None, None));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(mut bytes: Vec<u8>, kind: u8, segment in 0_u32..40, address: u128, v4: u32) {
        bytes.extend_from_slice(&MARK);
        bytes.push(kind);
        bytes.extend_from_slice(&segment.to_le_bytes()[..3]);
        if let Ok(database) = Database::new(bytes) {
            for ip in [IpAddr::V6(address.into()), IpAddr::V4(v4.into())] {
                let _ = (database.country(ip), database.city(ip), database.name(ip));
            }
        }
    }
}
