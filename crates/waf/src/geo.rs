//! Where an address is: a database of MaxMind's format (`SecGeoLookupDb`), of which `@geoLookup` puts into `GEO` what libmodsecurity puts there, and more.

use maxminddb::{PathElement, Reader};
use serde_json::Value;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Larger databases are refused: they are kept in memory. MaxMind's largest has some 100 MB.
const MAX_DATABASE_BYTES: usize = 1 << 30;

/// A step into a record.
type Step = PathElement<'static>;

/// `GEO`'s names, and where a record has what they mean.
const FIELDS: &[(&str, &[Step])] = &[
    ("COUNTRY_CODE", &[Step::Key("country"), Step::Key("iso_code")]),
    ("COUNTRY_NAME", &[Step::Key("country"), Step::Key("names"), Step::Key("en")]),
    ("COUNTRY_CONTINENT", &[Step::Key("continent"), Step::Key("names"), Step::Key("en")]),
    ("REGION", &[Step::Key("subdivisions"), Step::Index(0), Step::Key("names"), Step::Key("en")]),
    ("CITY", &[Step::Key("city"), Step::Key("names"), Step::Key("en")]),
    ("POSTAL_CODE", &[Step::Key("postal"), Step::Key("code")]),
    ("LATITUDE", &[Step::Key("location"), Step::Key("latitude")]),
    ("LONGITUDE", &[Step::Key("location"), Step::Key("longitude")]),
    ("DMA_CODE", &[Step::Key("location"), Step::Key("metro_code")]),
];
/// Names that are documented and that databases of this format know nothing of.
const WITHOUT_DATA: [&str; 2] = ["COUNTRY_CODE3", "AREA_CODE"];

/// Whether `GEO` can have a value of this name; else why not.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if FIELDS.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    if WITHOUT_DATA.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Err(format!("\"GEO:{name}\" is not supported: databases of MaxMind's format do not have it"));
    }
    Err(format!("unknown name \"{name}\" of \"GEO\""))
}

/// A database.
pub(crate) struct Geo {
    bytes: Bytes,
    reader: Reader<Bytes>,
}

#[derive(Clone)]
struct Bytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Geo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Geo({} bytes)", self.bytes.0.len())
    }
}

/// What is in memory, so that levels of a configuration, and the ones before and after a reload, share what is the same.
static LOADED: Mutex<Vec<Weak<Geo>>> = Mutex::new(Vec::new());

impl Geo {
    /// A database of the bytes of a file.
    pub(crate) fn open(bytes: Vec<u8>) -> Result<Arc<Geo>, String> {
        if bytes.len() > MAX_DATABASE_BYTES {
            return Err(format!("it has more than {MAX_DATABASE_BYTES} bytes"));
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|geo| geo.strong_count() > 0);
        if let Some(same) = loaded.iter().filter_map(Weak::upgrade).find(|geo| *geo.bytes.0 == bytes) {
            return Ok(same);
        }
        let bytes = Bytes(Arc::new(bytes));
        let reader = Reader::from_source(bytes.clone()).map_err(|e| e.to_string())?;
        let geo = Arc::new(Geo { bytes, reader });
        loaded.push(Arc::downgrade(&geo));
        Ok(geo)
    }

    /// What is known of an address, by `GEO`'s names. None: nothing, or it is no address.
    pub(crate) fn look_up(&self, address: &[u8]) -> Option<Vec<(&'static str, String)>> {
        let address: IpAddr = std::str::from_utf8(address).ok()?.trim().parse().ok()?;
        let found = self.reader.lookup(address).ok()?;
        if !found.has_data() {
            return None;
        }
        let field = |(name, path): &(&'static str, &[Step])| {
            let text = match found.decode_path::<Value>(path).ok()?? {
                Value::String(text) => text,
                // As C++'s to_string has it.
                Value::Number(number) if number.is_f64() => format!("{:.6}", number.as_f64()?),
                Value::Number(number) => number.to_string(),
                _ => return None,
            };
            Some((*name, text))
        };
        Some(FIELDS.iter().filter_map(field).collect())
    }
}
