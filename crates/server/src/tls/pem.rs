//! PEM (RFC 7468, and the headers of RFC 1421 that old encrypted keys have): sections of a text.

use wire::encoding::{Alphabet, base64_decode};

/// One section: `-----BEGIN label-----` and what it holds.
pub struct Section {
    /// `CERTIFICATE`, `PRIVATE KEY`, ...
    pub label: String,
    /// `Proc-Type`, `DEK-Info`.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub der: Vec<u8>,
}

/// The text ends within a section, or holds something else than base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPem;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// The sections of a text; what stands between them is passed over.
pub fn sections(text: &[u8]) -> Result<Vec<Section>, BadPem> {
    let text = String::from_utf8_lossy(text);
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        if let Some(label) = line.strip_prefix(BEGIN).and_then(|l| l.strip_suffix(DASHES)) {
            found.push(section(label, &mut lines)?);
        }
    }
    Ok(found)
}

fn section<'t>(label: &str, lines: &mut impl Iterator<Item = &'t str>) -> Result<Section, BadPem> {
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut base64 = String::new();
    for line in lines {
        if let Some(end) = line.strip_prefix(END) {
            if end.strip_suffix(DASHES) != Some(label) {
                return Err(BadPem);
            }
            let mut der = Vec::new();
            base64_decode(base64.as_bytes(), Alphabet::Standard, &mut der).map_err(|_| BadPem)?;
            return Ok(Section { label: label.to_owned(), headers, der });
        }
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => base64.extend(line.split_whitespace()),
        }
    }
    Err(BadPem)
}

/// Writes a section, 64 characters a line.
pub fn write(label: &str, der: &[u8]) -> Vec<u8> {
    let mut base64 = Vec::new();
    wire::encoding::base64_encode(der, Alphabet::Standard, &mut base64);
    let mut out = format!("{BEGIN}{label}{DASHES}\n").into_bytes();
    for line in base64.chunks(64) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.extend_from_slice(format!("{END}{label}{DASHES}\n").as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read_back() {
        let der: Vec<u8> = (0..=200).collect();
        let mut text = b"subject=/CN=x\n".to_vec();
        text.extend(write("CERTIFICATE", &der));
        text.extend_from_slice(
            b"-----BEGIN X-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES\r\n\r\nAAAA\r\n-----END X-----\r\n",
        );
        let all = sections(&text).expect("well formed");
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].label.as_str(), &all[0].der), ("CERTIFICATE", &der));
        assert_eq!(all[1].headers[1], ("DEK-Info".to_owned(), "AES".to_owned()));
        assert_eq!(all[1].der, [0, 0, 0]);
    }

    #[test]
    fn broken_texts() {
        for bad in [
            "-----BEGIN A-----\nAAAA\n",
            "-----BEGIN A-----\n!!\n-----END A-----\n",
            "-----BEGIN A-----\n-----END B-----\n",
        ] {
            assert!(sections(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(sections(b"no sections").is_ok_and(|s| s.is_empty()));
    }
}
