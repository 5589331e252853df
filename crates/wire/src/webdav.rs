//! What WebDAV clients ask for in XML (RFC 4918): which properties PROPFIND wants, which PROPPATCH changes, and whose LOCK it is. A reader of just that much
//! XML: elements with namespaces, text; no entities but the five of XML, no document types.

/// Longer bodies are refused.
pub const MAX_BODY: usize = 64 * 1024;
/// Elements of one body.
const MAX_ELEMENTS: usize = 512;
/// How deep they nest.
const MAX_DEPTH: usize = 16;
/// Prefixes that are declared at one time.
const MAX_PREFIXES: usize = 64;
/// The namespace of WebDAV's own names.
const DAV: &[u8] = b"DAV:";

/// What PROPFIND asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// All properties with their values; also without a body.
    All,
    /// Their names.
    Names,
    /// These.
    Some(Vec<Name>),
}

/// The name of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its namespace.
    pub space: Vec<u8>,
    /// Without a prefix.
    pub local: Vec<u8>,
}

impl Name {
    /// Whether it is one of WebDAV's own.
    pub fn is_dav(&self, local: &[u8]) -> bool {
        self.space == DAV && self.local == local
    }
}

/// What LOCK asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Nobody else may have one.
    pub exclusive: bool,
    /// Who has it: the inside of `owner`, as text alone.
    pub owner: Vec<u8>,
}

/// The body is not XML as it is needed here, or too much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadXml;

/// Reads the body of PROPFIND.
///
/// # Errors
/// [`BadXml`]
pub fn propfind(body: &[u8]) -> Result<Find, BadXml> {
    if body.trim_ascii().is_empty() {
        return Ok(Find::All);
    }
    let mut found = None;
    let mut properties = Vec::new();
    let mut path: Vec<Name> = Vec::new();
    read(body, |event, _| {
        match event {
            Event::Start(name) => {
                match path.len() {
                    0 if !name.is_dav(b"propfind") => return Err(BadXml),
                    1 if name.is_dav(b"allprop") => found = Some(Find::All),
                    1 if name.is_dav(b"propname") => found = Some(Find::Names),
                    1 if name.is_dav(b"prop") => found = Some(Find::Some(Vec::new())),
                    2 if path[1].is_dav(b"prop") => properties.push(name.clone()),
                    _ => {}
                }
                path.push(name);
            }
            Event::End => drop(path.pop()),
            Event::Text(_) => {}
        }
        Ok(())
    })?;
    match found {
        Some(Find::Some(_)) => Ok(Find::Some(properties)),
        Some(other) => Ok(other),
        None => Err(BadXml),
    }
}

/// Reads the body of LOCK. `None`: there is none, so a lock is to be refreshed.
///
/// # Errors
/// [`BadXml`]
pub fn lock(body: &[u8]) -> Result<Option<Lock>, BadXml> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let (mut exclusive, mut write, mut owner) = (None, false, Vec::new());
    let mut path: Vec<Name> = Vec::new();
    read(body, |event, _| {
        match event {
            Event::Start(name) => {
                match path.len() {
                    0 if !name.is_dav(b"lockinfo") => return Err(BadXml),
                    2 if path[1].is_dav(b"lockscope") => exclusive = Some(name.is_dav(b"exclusive")),
                    2 if path[1].is_dav(b"locktype") => write = name.is_dav(b"write"),
                    _ => {}
                }
                path.push(name);
            }
            Event::Text(text) if path.len() >= 2 && path[1].is_dav(b"owner") => {
                owner.extend_from_slice(text.trim_ascii())
            }
            Event::Text(_) => {}
            Event::End => drop(path.pop()),
        }
        Ok(())
    })?;
    match exclusive {
        Some(exclusive) if write => Ok(Some(Lock { exclusive, owner })),
        _ => Err(BadXml),
    }
}

/// What PROPPATCH does with a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It gets a value: the whole element as it was sent, with the namespaces that it needs.
    Set(Name, Vec<u8>),
    /// There is to be none.
    Remove(Name),
}

impl Change {
    /// Of which.
    pub fn name(&self) -> &Name {
        let (Change::Set(name, _) | Change::Remove(name)) = self;
        name
    }
}

/// Reads the body of PROPPATCH: its changes in their order.
///
/// # Errors
/// [`BadXml`]
pub fn proppatch(body: &[u8]) -> Result<Vec<Change>, BadXml> {
    /// How deep a property's element stands: `propertyupdate`, `set`, `prop`.
    const PROPERTY: usize = 3;
    let mut changes = Vec::new();
    let mut path: Vec<Name> = Vec::new();
    // Of the property that is being read: where it begins, and its namespaces.
    let mut begun: Option<(usize, Vec<u8>)> = None;
    read(body, |event, at| {
        match event {
            Event::Start(name) => {
                match path.len() {
                    0 if !name.is_dav(b"propertyupdate") => return Err(BadXml),
                    PROPERTY if path[2].is_dav(b"prop") => begun = Some((at.start, at.declarations())),
                    _ => {}
                }
                path.push(name);
            }
            Event::Text(_) => {}
            Event::End => {
                let name = path.pop().ok_or(BadXml)?;
                if path.len() == PROPERTY
                    && let Some((start, declarations)) = begun.take()
                {
                    if path[1].is_dav(b"set") {
                        let raw = &body[start..at.end];
                        let (head, rest) = raw.split_at(1 + tag_name(&raw[1..]).len());
                        changes.push(Change::Set(name, [head, &declarations, rest].concat()));
                    } else if path[1].is_dav(b"remove") {
                        changes.push(Change::Remove(name));
                    }
                }
            }
        }
        Ok(())
    })?;
    if changes.is_empty() { Err(BadXml) } else { Ok(changes) }
}

/// Where an event stands in the document.
struct Place<'s, 'x> {
    /// Where the tag begins, and ends.
    start: usize,
    end: usize,
    /// Prefixes that are known there, the element's own behind `outer` others.
    prefixes: &'s [(&'x [u8], &'x [u8])],
    outer: usize,
}

impl Place<'_, '_> {
    /// What has to be declared for an element that is taken out of its document.
    fn declarations(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, (prefix, space)) in self.prefixes[..self.outer].iter().enumerate() {
            if self.prefixes[at + 1..].iter().any(|(later, _)| later == prefix) {
                continue;
            }
            out.extend_from_slice(b" xmlns");
            if !prefix.is_empty() {
                out.push(b':');
                out.extend_from_slice(prefix);
            }
            let quote = if space.contains(&b'"') { b'\'' } else { b'"' };
            out.extend_from_slice(&[b'=', quote]);
            out.extend_from_slice(space);
            out.push(quote);
        }
        out
    }
}

/// The name that a start tag begins with.
fn tag_name(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|b| b.is_ascii_whitespace() || matches!(b, b'>' | b'/'));
    &text[..end.unwrap_or(text.len())]
}

enum Event<'x> {
    Start(Name),
    Text(&'x [u8]),
    End,
}

/// Goes through a document.
fn read<'x>(
    whole: &'x [u8],
    mut take: impl FnMut(Event<'x>, &Place<'_, 'x>) -> Result<(), BadXml>,
) -> Result<(), BadXml> {
    if whole.len() > MAX_BODY {
        return Err(BadXml);
    }
    let at = |rest: &[u8]| whole.len() - rest.len();
    let mut text = whole.strip_prefix(b"\xef\xbb\xbf").unwrap_or(whole);
    // Open elements by their names as written, and how many prefixes were known before each.
    let mut open: Vec<(&[u8], usize)> = Vec::new();
    let mut prefixes: Vec<(&[u8], &[u8])> = Vec::new();
    let (mut elements, mut closed) = (0, false);
    while !text.is_empty() {
        let Some(rest) = text.strip_prefix(b"<") else {
            let end = memchr::memchr(b'<', text).unwrap_or(text.len());
            let (piece, after) = text.split_at(end);
            if !open.is_empty() {
                take(
                    Event::Text(piece),
                    &Place { start: at(text), end: at(after), prefixes: &prefixes, outer: prefixes.len() },
                )?;
            } else if !piece.trim_ascii().is_empty() {
                return Err(BadXml);
            }
            text = after;
            continue;
        };
        let start = at(text);
        text = match rest {
            [b'?', rest @ ..] => after(rest, b"?>")?,
            [b'!', b'-', b'-', rest @ ..] => after(rest, b"-->")?,
            // Document types are where entities are defined.
            [b'!', ..] => return Err(BadXml),
            [b'/', rest @ ..] => {
                let end = memchr::memchr(b'>', rest).ok_or(BadXml)?;
                let (name, known) = open.pop().ok_or(BadXml)?;
                if rest[..end].trim_ascii_end() != name {
                    return Err(BadXml);
                }
                prefixes.truncate(known);
                closed = open.is_empty();
                let after = &rest[end + 1..];
                take(Event::End, &Place { start, end: at(after), prefixes: &prefixes, outer: known })?;
                after
            }
            _ => {
                elements += 1;
                if closed || elements > MAX_ELEMENTS || open.len() >= MAX_DEPTH {
                    return Err(BadXml);
                }
                let known = prefixes.len();
                let (name, empty, after) = start_tag(rest, &mut prefixes)?;
                let place = Place { start, end: at(after), prefixes: &prefixes, outer: known };
                take(Event::Start(resolve(name, &prefixes)?), &place)?;
                if empty {
                    closed = open.is_empty();
                    take(Event::End, &place)?;
                    prefixes.truncate(known);
                } else {
                    open.push((name, known));
                }
                after
            }
        };
    }
    if closed && open.is_empty() { Ok(()) } else { Err(BadXml) }
}

fn after<'x>(text: &'x [u8], end: &[u8]) -> Result<&'x [u8], BadXml> {
    let at = memchr::memmem::find(text, end).ok_or(BadXml)?;
    Ok(&text[at + end.len()..])
}

/// Reads the rest of a start tag: its name, whether it is empty, and what follows it.
fn start_tag<'x>(
    text: &'x [u8],
    prefixes: &mut Vec<(&'x [u8], &'x [u8])>,
) -> Result<(&'x [u8], bool, &'x [u8]), BadXml> {
    let (name, mut rest) = text.split_at(tag_name(text).len());
    if name.is_empty() || name.iter().any(|b| matches!(b, b'<' | b'"' | b'\'' | b'&' | b'=')) {
        return Err(BadXml);
    }
    loop {
        rest = rest.trim_ascii_start();
        match rest {
            [b'>', rest @ ..] => return Ok((name, false, rest)),
            [b'/', b'>', rest @ ..] => return Ok((name, true, rest)),
            _ => {}
        }
        let equals = memchr::memchr(b'=', rest).ok_or(BadXml)?;
        let attribute = rest[..equals].trim_ascii_end();
        if attribute.is_empty() || attribute.iter().any(|b| b.is_ascii_whitespace() || matches!(b, b'<' | b'>' | b'/'))
        {
            return Err(BadXml);
        }
        let value = rest[equals + 1..].trim_ascii_start();
        let (quote, inside) = value.split_first().ok_or(BadXml)?;
        if !matches!(quote, b'"' | b'\'') {
            return Err(BadXml);
        }
        let close = memchr::memchr(*quote, inside).ok_or(BadXml)?;
        let (value, after) = (&inside[..close], &inside[close + 1..]);
        let declared = match attribute {
            b"xmlns" => Some(&b""[..]),
            _ => attribute.strip_prefix(b"xmlns:"),
        };
        if let Some(prefix) = declared {
            if prefixes.len() >= MAX_PREFIXES || value.contains(&b'<') {
                return Err(BadXml);
            }
            prefixes.push((prefix, value));
        }
        rest = after;
    }
}

fn resolve(name: &[u8], prefixes: &[(&[u8], &[u8])]) -> Result<Name, BadXml> {
    let (prefix, local) = match memchr::memchr(b':', name) {
        Some(colon) => (&name[..colon], &name[colon + 1..]),
        None => (&b""[..], name),
    };
    let known = prefixes.iter().rev().find(|(known, _)| *known == prefix).map(|(_, space)| *space);
    match known {
        None if !prefix.is_empty() => Err(BadXml),
        _ if local.is_empty() => Err(BadXml),
        space => Ok(Name { space: space.unwrap_or_default().to_vec(), local: local.to_vec() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_propfind_asks_for() {
        let names = |body: &str| match propfind(body.as_bytes()) {
            Ok(Find::Some(list)) => list
                .iter()
                .map(|n| format!("{}|{}", String::from_utf8_lossy(&n.space), String::from_utf8_lossy(&n.local)))
                .collect::<Vec<_>>()
                .join(" "),
            Ok(other) => format!("{other:?}"),
            Err(e) => format!("{e:?}"),
        };
        assert_eq!(names(""), "All");
        assert_eq!(names("<?xml version=\"1.0\"?>\n<propfind xmlns=\"DAV:\"><allprop/></propfind>\n"), "All");
        assert_eq!(names("<D:propfind xmlns:D='DAV:'><D:propname/></D:propfind>"), "Names");
        let body = "<a:propfind xmlns:a=\"DAV:\"><!-- x --><a:prop><a:getetag/><b xmlns=\"urn:x\"><c/></b><d/></a:prop></a:propfind>";
        assert_eq!(names(body), "DAV:|getetag urn:x|b |d");
    }

    #[test]
    fn whose_lock_it_is() {
        let body = b"<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype><owner> <href>me</href></owner></lockinfo>";
        assert_eq!(lock(body), Ok(Some(Lock { exclusive: true, owner: b"me".to_vec() })));
        assert_eq!(lock(b" "), Ok(None));
        assert_eq!(lock(b"<lockinfo xmlns='DAV:'><lockscope><shared/></lockscope></lockinfo>"), Err(BadXml));
    }

    #[test]
    fn what_proppatch_changes() {
        let body = b"<D:propertyupdate xmlns:D='DAV:' xmlns:n=\"urn:n\"><D:set><D:prop><n:a x='1'><n:b>&amp;</n:b></n:a><c xmlns=''/></D:prop></D:set>\
            <D:remove><D:prop><n:d/></D:prop></D:remove></D:propertyupdate>";
        let name = |space: &[u8], local: &[u8]| Name { space: space.to_vec(), local: local.to_vec() };
        let first = b"<n:a xmlns:D=\"DAV:\" xmlns:n=\"urn:n\" x='1'><n:b>&amp;</n:b></n:a>".to_vec();
        let second = b"<c xmlns:D=\"DAV:\" xmlns:n=\"urn:n\" xmlns=''/>".to_vec();
        let expected = vec![
            Change::Set(name(b"urn:n", b"a"), first),
            Change::Set(name(b"", b"c"), second),
            Change::Remove(name(b"urn:n", b"d")),
        ];
        assert_eq!(proppatch(body), Ok(expected));
        for bad in [&b"<propertyupdate xmlns='DAV:'/>"[..], b"", b"<propfind xmlns='DAV:'/>"] {
            assert_eq!(proppatch(bad), Err(BadXml));
        }
    }

    #[test]
    fn what_is_no_xml_for_us() {
        for bad in [
            "x",
            "<",
            "<a",
            "<a>",
            "<a/><b/>",
            "<propfind xmlns='DAV:'>",
            "<propfind/>",
            "<p:propfind/>",
            "<propfind xmlns=DAV:/>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><propfind xmlns='DAV:'><allprop/></propfind>",
            "<propfind xmlns='DAV:'><a></b></propfind>",
            "<propfind xmlns='DAV:'></propfind>",
            "<propfind xmlns='DAV:'><allprop/></propfind>x",
        ] {
            assert_eq!(propfind(bad.as_bytes()), Err(BadXml), "{bad}");
        }
        let deep = format!("<propfind xmlns='DAV:'>{}", "<a>".repeat(100));
        assert_eq!(propfind(deep.as_bytes()), Err(BadXml));
        assert_eq!(propfind(&vec![b' '; MAX_BODY + 1]), Ok(Find::All));
    }
}
