//! XML: its text and its attributes. Nothing is loaded and nothing is expanded; a document type is looked at as text, since what
//! it declares may stand for anything.

use crate::limits::{MAX_XML_DEPTH, MAX_XML_NODES};
use quick_xml::Reader;
use quick_xml::events::{BytesRef, BytesStart, Event};

/// What a document holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xml {
    /// All text of the root element together: `XML:/*`. A document type is a second one.
    pub texts: Vec<Vec<u8>>,
    /// The values of all attributes: `XML://@*`.
    pub attributes: Vec<Vec<u8>>,
}

/// Reads a document. Err: what is wrong with it, or what it has too much of.
pub(crate) fn parse(text: &[u8]) -> Result<Xml, String> {
    let mut reader = Reader::from_reader(text);
    let mut xml = Xml::default();
    let mut content = Vec::new();
    let (mut depth, mut nodes, mut roots) = (0_usize, 0_usize, 0_usize);
    loop {
        nodes += 1;
        if nodes > MAX_XML_NODES {
            return Err(format!("more than {MAX_XML_NODES} nodes"));
        }
        match reader.read_event().map_err(|e| e.to_string())? {
            Event::Start(element) => {
                roots += usize::from(depth == 0);
                depth += 1;
                if depth > MAX_XML_DEPTH {
                    return Err(format!("nested deeper than {MAX_XML_DEPTH}"));
                }
                attributes(&element, &mut xml, &mut nodes)?;
            }
            Event::Empty(element) => {
                roots += usize::from(depth == 0);
                attributes(&element, &mut xml, &mut nodes)?;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) => {
                if depth == 0 && !text.trim().is_empty() {
                    return Err("text outside of the root element".to_owned());
                }
                content.extend_from_slice(text.as_bytes());
            }
            Event::CData(text) => content.extend_from_slice(text.as_bytes()),
            Event::GeneralRef(name) => reference(&name, &mut content),
            Event::DocType(text) => xml.texts.push(text.as_bytes().to_vec()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    if depth > 0 {
        return Err("an element is not closed".to_owned());
    }
    if roots != 1 {
        return Err("there is not one root element".to_owned());
    }
    xml.texts.insert(0, content);
    Ok(xml)
}

fn attributes(element: &BytesStart<'_>, xml: &mut Xml, nodes: &mut usize) -> Result<(), String> {
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|e| e.to_string())?;
        *nodes += 1;
        if *nodes > MAX_XML_NODES {
            return Err(format!("more than {MAX_XML_NODES} nodes"));
        }
        let mut value = Vec::new();
        let mut rest = attribute.value.as_bytes();
        while let Some(at) = memchr::memchr(b'&', rest) {
            value.extend_from_slice(&rest[..at]);
            rest = &rest[at + 1..];
            let Some(end) = memchr::memchr(b';', rest) else {
                value.push(b'&');
                continue;
            };
            resolve(&rest[..end], &mut value);
            rest = &rest[end + 1..];
        }
        value.extend_from_slice(rest);
        xml.attributes.push(value);
    }
    Ok(())
}

fn reference(name: &BytesRef<'_>, out: &mut Vec<u8>) {
    resolve(name.as_bytes(), out);
}

/// Writes what a reference stands for; one that the document declares itself stays as it is.
fn resolve(name: &[u8], out: &mut Vec<u8>) {
    let number = name.strip_prefix(b"#").and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| {
        let hex = n.strip_prefix('x');
        let value = hex.map_or_else(|| n.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
        value.and_then(char::from_u32)
    });
    let known = match name {
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"amp" => Some('&'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        _ => number,
    };
    match known {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            out.push(b'&');
            out.extend_from_slice(name);
            out.push(b';');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_found() {
        let text = br#"<?xml version="1.0"?><a x="1&lt;2"><b>t&#x41;</b><![CDATA[<c>]]>&amp;&own;<d y='2'/></a>"#;
        let xml = parse(text).unwrap();
        assert_eq!(xml.texts, [b"tA<c>&&own;".to_vec()]);
        assert_eq!(xml.attributes, [b"1<2".to_vec(), b"2".to_vec()]);
    }

    #[test]
    fn a_document_type_is_looked_at() {
        let xml = parse(br#"<!DOCTYPE a [<!ENTITY own "<script>">]><a>&own;</a>"#).unwrap();
        assert!(String::from_utf8_lossy(&xml.texts[1]).contains("<script>"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in ["<a>", "<a></b>", "x", "", "<a/><b/>", "<a x=1>", "<a/>text"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("<a>".repeat(1000).as_bytes()).unwrap_err().contains("deeper"));
    }
}
