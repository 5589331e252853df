//! XML: its text and its attributes. Nothing is loaded and nothing is expanded; a document type is looked at as text, since what
//! it declares may stand for anything.

use super::Problem;
use crate::limits::{MAX_PATH_BYTES, MAX_XML_DEPTH, MAX_XML_NODES};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// What a document holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xml {
    /// All text of the root element together: `XML:/*`. A document type is a second one.
    pub texts: Vec<Vec<u8>>,
    /// The values of all attributes: `XML://@*`.
    pub attributes: Vec<Vec<u8>>,
}

/// The same as arguments: each element without others in it by the path to it, `xml.order.item`, as libmodsecurity's `SecParseXmlIntoArgs` names them; and what
/// is written beside others, which a rule should see too.
pub(crate) struct Arguments<'a> {
    /// How many there may be.
    pub left: usize,
    /// Where they go, name and value.
    pub give: &'a mut dyn FnMut(&[u8], &[u8]),
}

/// An element that is open.
struct Open {
    /// Where its name begins in the path.
    path: usize,
    /// Another element is in it.
    has_others: bool,
    text: Vec<u8>,
}

struct Walk<'a> {
    xml: Xml,
    content: Vec<u8>,
    depth: usize,
    nodes: usize,
    roots: usize,
    arguments: Option<Arguments<'a>>,
    path: Vec<u8>,
    /// Bytes that the paths may still have together.
    names: usize,
    open: Vec<Open>,
}

/// Reads a document.
pub(crate) fn parse(text: &[u8], arguments: Option<Arguments<'_>>) -> Result<Xml, Problem> {
    // Of UTF-16 and its like every other byte of what is written in ASCII is zero; XML has no such character.
    if memchr::memchr(0, text).is_some() || text.starts_with(b"\xfe\xff") || text.starts_with(b"\xff\xfe") {
        return Err(Problem::wrong("it is not encoded in UTF-8"));
    }
    let mut reader = Reader::from_reader(text);
    // Others may take what stands behind two hyphens for no comment.
    reader.config_mut().check_comments = true;
    let mut walk = Walk {
        xml: Xml::default(),
        content: Vec::new(),
        depth: 0,
        nodes: 0,
        roots: 0,
        arguments,
        path: b"xml".to_vec(),
        names: MAX_PATH_BYTES + text.len(),
        open: Vec::new(),
    };
    loop {
        walk.node()?;
        match reader.read_event().map_err(Problem::wrong)? {
            Event::Start(element) => walk.start(&element)?,
            Event::Empty(element) => {
                walk.start(&element)?;
                walk.end()?;
            }
            Event::End(_) => walk.end()?,
            Event::Text(text) => {
                if walk.depth == 0 && !text.trim().is_empty() {
                    return Err(Problem::wrong("text outside of the root element"));
                }
                walk.text(text.as_bytes());
            }
            Event::CData(text) => walk.text(text.as_bytes()),
            Event::GeneralRef(name) => {
                let mut text = Vec::new();
                resolve(name.as_bytes(), &mut text)?;
                walk.text(&text);
            }
            Event::DocType(text) => walk.xml.texts.push(text.as_bytes().to_vec()),
            Event::Decl(declaration) => {
                // Others may take one that comes late for text.
                if walk.nodes > 1 {
                    return Err(Problem::wrong("its declaration does not stand at its beginning"));
                }
                let named = declaration.encoding().transpose().map_err(Problem::wrong)?;
                if let Some(named) = named.filter(|named| !extends_ascii(named)) {
                    return Err(Problem::wrong(format_args!("its encoding is {named}")));
                }
            }
            Event::Comment(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    if walk.depth > 0 {
        return Err(Problem::wrong("an element is not closed"));
    }
    if walk.roots != 1 {
        return Err(Problem::wrong("there is not one root element"));
    }
    let mut xml = walk.xml;
    xml.texts.insert(0, walk.content);
    Ok(xml)
}

impl Walk<'_> {
    fn node(&mut self) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_XML_NODES {
            return Err(Problem::limit(format_args!("more than {MAX_XML_NODES} nodes")));
        }
        Ok(())
    }

    fn start(&mut self, element: &BytesStart<'_>) -> Result<(), Problem> {
        self.roots += usize::from(self.depth == 0);
        self.depth += 1;
        if self.depth > MAX_XML_DEPTH {
            return Err(Problem::limit(format_args!("nested deeper than {MAX_XML_DEPTH}")));
        }
        if self.arguments.is_some() {
            if let Some(around) = self.open.last_mut() {
                around.has_others = true;
            }
            self.open.push(Open { path: self.path.len(), has_others: false, text: Vec::new() });
            self.path.push(b'.');
            self.path.extend_from_slice(element.local_name().as_ref().as_bytes());
        }
        self.attributes(element)
    }

    fn end(&mut self) -> Result<(), Problem> {
        self.depth = self.depth.saturating_sub(1);
        let (Some(arguments), Some(element)) = (&mut self.arguments, self.open.pop()) else { return Ok(()) };
        if !element.has_others || !element.text.trim_ascii().is_empty() {
            arguments.left = arguments.left.checked_sub(1).ok_or_else(|| Problem::limit("too many values"))?;
            let names = self.names.checked_sub(self.path.len());
            self.names = names.ok_or_else(|| Problem::limit("the names are too long together"))?;
            (arguments.give)(&self.path, &element.text);
        }
        self.path.truncate(element.path);
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.content.extend_from_slice(text);
        if let Some(element) = self.open.last_mut() {
            element.text.extend_from_slice(text);
        }
    }

    fn attributes(&mut self, element: &BytesStart<'_>) -> Result<(), Problem> {
        if !is_name(element.name().as_ref().as_bytes()) {
            return Err(Problem::wrong("an element has no name"));
        }
        if !are_apart(element.attributes_raw().as_bytes()) {
            return Err(Problem::wrong("attributes are not apart"));
        }
        for attribute in element.attributes() {
            let attribute = attribute.map_err(Problem::wrong)?;
            self.node()?;
            if !is_name(attribute.key.as_ref().as_bytes()) {
                return Err(Problem::wrong("an attribute has no name"));
            }
            let mut value = Vec::new();
            let mut rest = attribute.value.as_bytes();
            if memchr::memchr(b'<', rest).is_some() {
                return Err(Problem::wrong("an attribute holds a tag"));
            }
            while let Some(at) = memchr::memchr(b'&', rest) {
                value.extend_from_slice(&rest[..at]);
                rest = &rest[at + 1..];
                let Some(end) = memchr::memchr(b';', rest) else {
                    value.push(b'&');
                    continue;
                };
                resolve(&rest[..end], &mut value)?;
                rest = &rest[end + 1..];
            }
            value.extend_from_slice(rest);
            self.xml.attributes.push(value);
        }
        Ok(())
    }
}

/// A name of XML, as far as ASCII goes. What is none, others may read as an end of the element.
fn is_name(name: &[u8]) -> bool {
    let in_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-' | b'.') || *b >= 0x80;
    let begins = name.first().is_some_and(|b| !b.is_ascii_digit() && !matches!(b, b'-' | b'.'));
    begins && name.iter().all(in_name)
}

/// Whether a blank follows each value of an element's attributes.
fn are_apart(attributes: &[u8]) -> bool {
    let mut rest = attributes;
    while let Some(at) = memchr::memchr2(b'"', b'\'', rest) {
        let (quote, behind) = (rest[at], &rest[at + 1..]);
        let Some(end) = memchr::memchr(quote, behind) else { return true };
        rest = &behind[end + 1..];
        if rest.first().is_some_and(|b| !b.is_ascii_whitespace() && *b != b'/') {
            return false;
        }
    }
    true
}

/// Whether a byte below 128 is ASCII's character in an encoding, and nothing else stands for one. In others (UTF-7, EBCDIC) an attack has other bytes.
fn extends_ascii(encoding: &str) -> bool {
    let name = encoding.trim().to_ascii_lowercase();
    matches!(name.as_str(), "" | "utf-8" | "utf8" | "us-ascii" | "ascii" | "latin1")
        || ["iso-8859-", "iso8859-", "windows-125"].iter().any(|family| name.starts_with(family))
}

/// Writes what a reference stands for; one that the document declares itself stays as it is. Err: it stands for no character, and others may read one.
fn resolve(name: &[u8], out: &mut Vec<u8>) -> Result<(), Problem> {
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
        None if name.starts_with(b"#") => return Err(Problem::wrong("a reference stands for no character")),
        None => {
            out.push(b'&');
            out.extend_from_slice(name);
            out.push(b';');
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<Xml, String> {
        super::parse(text, None).map_err(|problem| problem.message)
    }

    fn arguments(text: &str, left: usize) -> (Vec<String>, Result<Xml, Problem>) {
        let mut list = Vec::new();
        let mut give = |name: &[u8], value: &[u8]| {
            list.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        };
        let read = super::parse(text.as_bytes(), Some(Arguments { left, give: &mut give }));
        (list, read)
    }

    #[test]
    fn elements_are_arguments() {
        let text = "<s:a xmlns:s='x'>\n <b>1&lt;</b><b><c/>two</b><d y='3'><![CDATA[<x>]]></d>\n</s:a>";
        let (list, read) = arguments(text, 10);
        assert_eq!(list, ["xml.a.b=1<", "xml.a.b.c=", "xml.a.b=two", "xml.a.d=<x>"]);
        assert_eq!(read.unwrap().attributes.len(), 2);
        assert!(arguments(text, 3).1.unwrap_err().is_limit);
        let name = "k".repeat(5_000);
        let many = format!("<{name}>{}</{name}>", "<a/>".repeat(900));
        assert!(arguments(&many, 1_000).1.unwrap_err().message.contains("too long together"));
        assert!(!arguments("<a>", 10).1.unwrap_err().is_limit);
    }

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
    fn other_encodings_are_refused() {
        let with = |encoding: &str| parse(format!("<?xml version='1.0' encoding='{encoding}'?><a>x</a>").as_bytes());
        for encoding in ["utf-8", "UTF-8", "us-ascii", "ISO-8859-1", "iso-8859-15", "windows-1252"] {
            assert!(with(encoding).is_ok(), "{encoding}");
        }
        for encoding in
            ["utf-7", "UTF-7", "utf-16", "UCS-4", "ibm037", "cp500", "shift_jis", "iso-2022-jp", "hz-gb-2312"]
        {
            assert!(with(encoding).unwrap_err().contains("encoding"), "{encoding}");
        }
        let wide: Vec<u8> = "<a>x</a>".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert!(parse(&wide).is_err() && parse(&[&b"\xfe\xff"[..], &wide].concat()).is_err());
        assert!(parse(b"\xef\xbb\xbf<a>x</a>").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(parse("<s:a.b-c xml:d_e='1' f=\"2\"\n><\u{e9}/><b x='1' /></s:a.b-c>".as_bytes()).is_ok());
        for text in
            ["<a x='1'y='2'/>", "<a \"x\":1,q='2'/>", "<a% x='1'/>", "<}b x='1'/>", "< x='1'/>", "<a /q='1'/>", "<1a/>"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        for text in [
            "<a><!-- x -- y --></a>",
            "<a>&#X41;</a>",
            "<a>&#1114112;</a>",
            "<a x='<b>'/>",
            "<a/><?xml version='1.0'?>",
            "<a x='&#y;'/>",
            "<a>",
            "<a></b>",
            "x",
            "",
            "<a/><b/>",
            "<a x=1>",
            "<a/>text",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("<a>".repeat(1000).as_bytes()).unwrap_err().contains("deeper"));
    }
}
