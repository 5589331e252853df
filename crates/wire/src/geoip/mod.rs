//! MaxMind's legacy databases (`GeoIP.dat`): a binary tree over the bits of an address, the records behind it, and at the end of
//! the file what kind it is. To: the `geoip` module. The format has no checksums, so every step into a file is checked.
//!
//! ```text
//! nodes: left, right (3 or 4 bytes each, little-endian)   a value below the segment is a node, any other a leaf
//! records: texts of cities or organisations               a leaf is a place in them; in a country edition it is a number
//! ... ff ff ff, kind, segment (3 bytes, if not a country edition)
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;

/// Larger files are refused: 3 bytes of a segment cannot say more than 16 million nodes, and records follow.
pub const MAX_DATABASE: usize = 1024 * 1024 * 1024;
/// Where the description of the structure may begin, counted from the last place that it fits in.
const MAX_INFO_SEARCH: usize = 20;
/// What a description begins with.
const MARK: [u8; 3] = [0xff; 3];
/// A country edition's leaves are this and a country's number.
const COUNTRY_BEGIN: u32 = 16_776_960;
/// Kinds were counted from here until 2003.
const OLD_KINDS: u8 = 106;
/// A text in a record ends within so many bytes (the format's `MAX_ORG_RECORD_LENGTH`).
const MAX_TEXT: usize = 300;
/// How many texts stand in a city's record: its region, its name and its postal code.
const CITY_TEXTS: usize = 3;
/// The country whose cities have codes of their area, in the second revision.
const WITH_AREAS: &str = "US";

/// What a database's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// Countries.
    Country,
    /// Cities; `areas`: those of the United States with codes of their area (the second revision).
    City {
        /// Whether there are such codes.
        areas: bool,
    },
    /// Texts: organisations, providers, domains, autonomous systems.
    Name,
}

/// A country, or what stands for none in particular.
#[derive(Debug, PartialEq, Eq)]
pub struct Country {
    /// Two letters; `--` for number 0.
    pub code: &'static str,
    /// Three letters.
    pub code3: &'static str,
    /// The continent's two letters.
    pub continent: &'static str,
    /// The name, in ASCII.
    pub name: &'static str,
}

impl Country {
    /// Whether it is more than the row of number 0, which has codes and no name.
    pub fn is_one(&self) -> bool {
        self.code != "--"
    }

    /// The name in UTF-8: one country's is written with a letter that ASCII lacks.
    pub fn name_utf8(&self) -> &'static str {
        if self.code == "CW" { "Cura\u{e7}ao" } else { self.name }
    }
}

/// A city's record. Texts are in ISO 8859-1, and empty where the record has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct City<'d> {
    /// The country.
    pub country: &'static Country,
    /// The region's code.
    pub region: &'d [u8],
    /// The name.
    pub name: &'d [u8],
    /// The postal code.
    pub postal_code: &'d [u8],
    /// Degrees.
    pub latitude: f64,
    /// Degrees.
    pub longitude: f64,
    /// The code of the market (DMA); 0 outside of the United States.
    pub dma_code: u32,
    /// The telephones' area code; 0 outside of the United States.
    pub area_code: u32,
}

/// What is wrong with a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has more bytes than [`MAX_DATABASE`].
    TooLarge,
    /// Nowhere at its end is a description of its structure.
    NoStructure,
    /// The description at a byte ends with the file.
    ShortStructure(usize),
    /// A kind that is none of the [`Edition`]s.
    Kind(u8),
    /// The tree does not fit into the file.
    Tree {
        /// Its nodes.
        nodes: u32,
        /// Bytes that they take.
        needs: usize,
        /// Bytes of the file.
        has: usize,
    },
    /// A branch leads to a node outside of the tree.
    Node {
        /// The node's number.
        node: u32,
        /// Where it would begin.
        at: usize,
    },
    /// All bits of an address lead to a node, and there is no leaf.
    NoLeaf(u32),
    /// A record ends outside of the file, or a text has no end.
    Record(usize),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TooLarge => write!(f, "it has more than {MAX_DATABASE} bytes"),
            Fault::NoStructure => {
                write!(
                    f,
                    "its last bytes do not say what kind it is, as those of a GeoIP database do (ff ff ff and a number)"
                )
            }
            Fault::ShortStructure(at) => write!(f, "the description of its structure at byte {at} is cut off"),
            Fault::Kind(kind) => write!(f, "GeoIP databases of type {kind} are not read"),
            Fault::Tree { nodes, needs, has } => {
                write!(f, "its tree of {nodes} nodes takes {needs} bytes, and the file has {has}")
            }
            Fault::Node { node, at } => {
                write!(f, "its tree leads to node {node} at byte {at}, which is not in the tree")
            }
            Fault::NoLeaf(node) => write!(f, "its tree has no leaf below node {node}"),
            Fault::Record(at) => write!(f, "the record at byte {at} has no end"),
        }
    }
}

/// A database in memory.
pub struct Database {
    bytes: Vec<u8>,
    kind: u8,
    edition: Edition,
    /// Bits of an address: 32 or 128.
    bits: u32,
    /// Bytes of a branch.
    branch: usize,
    /// The first value that is no node.
    segment: u32,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.edition, self.bytes.len())
    }
}

impl Database {
    /// Reads the description at the end of a file.
    pub fn new(bytes: Vec<u8>) -> Result<Database, Fault> {
        if bytes.len() > MAX_DATABASE {
            return Err(Fault::TooLarge);
        }
        let mark = structure(&bytes).ok_or(Fault::NoStructure)?;
        let said = *bytes.get(mark + MARK.len()).ok_or(Fault::ShortStructure(mark))?;
        let kind = if said >= OLD_KINDS { said - (OLD_KINDS - 1) } else { said };
        let (edition, bits, branch) = shape(kind).ok_or(Fault::Kind(kind))?;
        let segment = match edition {
            Edition::Country => COUNTRY_BEGIN,
            _ => little(&bytes, mark + MARK.len() + 1, 3).ok_or(Fault::ShortStructure(mark))?,
        };
        let database = Database { bytes, kind, edition, bits, branch, segment };
        let (needs, has) = (database.node_at(segment), database.bytes.len());
        if edition != Edition::Country && needs > has {
            return Err(Fault::Tree { nodes: segment, needs, has });
        }
        Ok(database)
    }

    /// What its records are.
    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// The number of its kind.
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// The country of an address; none if nothing is known of it, or this is no country edition.
    pub fn country(&self, address: IpAddr) -> Result<Option<&'static Country>, Fault> {
        if self.edition != Edition::Country {
            return Ok(None);
        }
        let number = self.leaf(address)? - self.segment;
        Ok(if number == 0 { None } else { country(number as u8) })
    }

    /// The city of an address; none if nothing is known of it, or this is no city edition.
    pub fn city(&self, address: IpAddr) -> Result<Option<City<'_>>, Fault> {
        let Edition::City { areas } = self.edition else { return Ok(None) };
        let Some(at) = self.record(address)? else { return Ok(None) };
        let cut_off = Fault::Record(at);
        let country = self.bytes.get(at).and_then(|number| country(*number)).ok_or(cut_off)?;
        let (mut texts, mut end) = ([&b""[..]; CITY_TEXTS], at + 1);
        for text in &mut texts {
            *text = self.text(end).ok_or(cut_off)?;
            end += text.len() + 1;
        }
        let degrees = |at| little(&self.bytes, at, 3).map(|n| f64::from(n) / 10_000.0 - 180.0);
        let (latitude, longitude) = (degrees(end).ok_or(cut_off)?, degrees(end + 3).ok_or(cut_off)?);
        let codes = match areas && country.code == WITH_AREAS {
            true => little(&self.bytes, end + 6, 3).ok_or(cut_off)?,
            false => 0,
        };
        let [region, name, postal_code] = texts;
        Ok(Some(City {
            country,
            region,
            name,
            postal_code,
            latitude,
            longitude,
            dma_code: codes / 1000,
            area_code: codes % 1000,
        }))
    }

    /// The text for an address, in ISO 8859-1; none if nothing is known of it, or this is no edition of names.
    pub fn name(&self, address: IpAddr) -> Result<Option<&[u8]>, Fault> {
        if self.edition != Edition::Name {
            return Ok(None);
        }
        let Some(at) = self.record(address)? else { return Ok(None) };
        self.text(at).map(Some).ok_or(Fault::Record(at))
    }

    /// Where an address's record begins. The first leaf is no record.
    fn record(&self, address: IpAddr) -> Result<Option<usize>, Fault> {
        let leaf = self.leaf(address)?;
        // Leaves are counted on from the nodes, so the first one would be the tree's end.
        let at = leaf as usize + (2 * self.branch - 1) * self.segment as usize;
        Ok((leaf != self.segment).then_some(at))
    }

    /// Goes from the root to a leaf.
    fn leaf(&self, address: IpAddr) -> Result<u32, Fault> {
        let bits = self.bits_of(address);
        let mut node = 0;
        for bit in 0..self.bits {
            let side = (bits >> (127 - bit) & 1) as usize;
            let at = self.node_at(node);
            let next = little(&self.bytes, at + side * self.branch, self.branch).ok_or(Fault::Node { node, at })?;
            if next >= self.segment {
                return Ok(next);
            }
            node = next;
        }
        Err(Fault::NoLeaf(node))
    }

    /// An address's bits from the left. One of IPv6 is `255.255.255.255` to a database of IPv4; one of IPv4 is a mapped one to a
    /// database of IPv6 (nginx's `ngx_http_geoip_addr`).
    fn bits_of(&self, address: IpAddr) -> u128 {
        match (self.bits, address.to_canonical()) {
            (32, IpAddr::V4(v4)) => u128::from(v4.to_bits()) << 96,
            (32, IpAddr::V6(_)) => u128::from(u32::MAX) << 96,
            (_, IpAddr::V4(v4)) => v4.to_ipv6_mapped().to_bits(),
            (_, IpAddr::V6(v6)) => v6.to_bits(),
        }
    }

    fn node_at(&self, node: u32) -> usize {
        2 * self.branch * node as usize
    }

    /// A text that ends with a zero, without it.
    fn text(&self, at: usize) -> Option<&[u8]> {
        let rest = self.bytes.get(at..)?;
        let end = rest.iter().take(MAX_TEXT).position(|b| *b == 0)?;
        Some(&rest[..end])
    }
}

/// Where the description begins: the last mark of the file.
fn structure(bytes: &[u8]) -> Option<usize> {
    let last = bytes.len().checked_sub(MARK.len())?;
    (last.saturating_sub(MAX_INFO_SEARCH - 1)..=last).rev().find(|at| bytes[*at..].starts_with(&MARK))
}

/// The edition of a kind, its addresses' bits, and the bytes of a branch.
fn shape(kind: u8) -> Option<(Edition, u32, usize)> {
    let (edition, bits, branch) = match kind {
        1 => (Edition::Country, 32, 3),
        12 => (Edition::Country, 128, 3),
        6 => (Edition::City { areas: false }, 32, 3),
        31 => (Edition::City { areas: false }, 128, 3),
        2 => (Edition::City { areas: true }, 32, 3),
        30 => (Edition::City { areas: true }, 128, 3),
        // Providers, organisations and domains.
        4 | 5 | 11 => (Edition::Name, 32, 4),
        22..=24 => (Edition::Name, 128, 4),
        // Numbers of autonomous systems.
        9 => (Edition::Name, 32, 3),
        21 => (Edition::Name, 128, 3),
        _ => return None,
    };
    Some((edition, bits, branch))
}

/// A number of a few bytes, the lowest first.
fn little(bytes: &[u8], at: usize, len: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// The country of a number.
fn country(number: u8) -> Option<&'static Country> {
    static COUNTRIES: OnceLock<Vec<Country>> = OnceLock::new();
    let rows = COUNTRIES.get_or_init(|| {
        let rows = rows(include_str!("countries.tsv")).map(|row| {
            let mut columns = row.split('\t');
            let mut column = || columns.next().unwrap_or_default();
            Country { code: column(), code3: column(), continent: column(), name: column() }
        });
        rows.collect()
    });
    rows.get(usize::from(number))
}

/// A region's name by its country's code and its own, if it has one.
pub fn region_name(country: &str, region: &[u8]) -> Option<&'static str> {
    static REGIONS: OnceLock<Vec<&'static str>> = OnceLock::new();
    let rows = REGIONS.get_or_init(|| rows(include_str!("regions.tsv")).collect());
    let wanted = (country.as_bytes(), region);
    let key = |row: &&'static str| {
        let mut columns = row.splitn(3, '\t');
        let mut column = || columns.next().unwrap_or_default();
        (column(), column(), column())
    };
    let found = rows.binary_search_by(|row| {
        let (country, region, _) = key(row);
        (country.as_bytes(), region.as_bytes()).cmp(&wanted)
    });
    found.ok().map(|place| key(&rows[place]).2)
}

/// The rows of a table, without its remarks.
fn rows(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|row| !row.starts_with('#'))
}
