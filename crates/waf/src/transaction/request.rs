//! The steps of a request: what arrives becomes variables, then the phase's rules run.

use super::{Connection, Intervention, Transaction};
use crate::body::{json, multipart, urlencoded, xml};
use crate::limits::MAX_VALUES;
use crate::rule::{Allow, Processor};
use crate::settings::{LimitAction, XmlArguments};
use crate::texts::EMPTY;
use crate::transform::base64_decode;
use crate::variable::{Collection, Single};

impl Transaction {
    /// Step 1: who talks to whom.
    pub fn connection(&mut self, connection: &Connection) {
        let client = self.texts.add_address(connection.client);
        self.set(Single::RemoteAddr, client);
        self.set(Single::RemoteHost, client);
        let server = self.texts.add_address(connection.server);
        self.set(Single::ServerAddr, server);
        let client_port = self.texts.add_number(i64::from(connection.client_port));
        self.set(Single::RemotePort, client_port);
        let server_port = self.texts.add_number(i64::from(connection.server_port));
        self.set(Single::ServerPort, server_port);
    }

    /// Step 2: the request line. `uri` is as the client sent it, `protocol` is `HTTP/1.1` and the like.
    pub fn uri(&mut self, method: &[u8], uri: &[u8], protocol: &[u8]) -> Option<Intervention> {
        self.guarded(|t| t.take_uri(method, uri, protocol))
    }

    fn take_uri(&mut self, method: &[u8], uri: &[u8], protocol: &[u8]) {
        self.set_text(Single::RequestMethod, method);
        self.set_text(Single::RequestProtocol, protocol);
        let line = self.texts.add_parts([method, b" ", uri, b" ", protocol]);
        self.set(Single::RequestLine, line);
        let raw = self.texts.add(uri);
        self.set(Single::RequestUriRaw, raw);
        let whole = uri;
        let uri = uri.split(|b| *b == b'#').next().unwrap_or(uri);
        let local = without_authority(uri);
        // What is the same text is judged once.
        let id = if local.len() == whole.len() { raw } else { self.texts.add(local) };
        self.set(Single::RequestUri, id);
        let (path, query) = match memchr::memchr(b'?', local) {
            Some(at) => (&local[..at], &local[at + 1..]),
            None => (local, &[][..]),
        };
        let (path_end, local_end) = (path.len() as u32, local.len() as u32);
        let query_id = self.texts.part(id, local_end - query.len() as u32, local_end);
        self.set(Single::QueryString, query_id);
        let filename = if memchr::memchr(b'%', path).is_none() {
            self.texts.part(id, 0, path_end)
        } else {
            self.texts.add(&percent_decoded(path))
        };
        self.set(Single::RequestFilename, filename);
        self.set(Single::PathInfo, filename);
        let path = self.texts.get(filename);
        let base = path.iter().rposition(|b| matches!(b, b'/' | b'\\')).map_or(0, |at| at + 1);
        let end = path.len() as u32;
        let base = self.texts.part(filename, base as u32, end);
        self.set(Single::RequestBasename, base);
        self.arguments(query, Collection::ArgsGet);
    }

    fn arguments(&mut self, text: &[u8], into: Collection) {
        let (separator, limit) = (self.rules.settings.separator, self.rules.settings.arguments);
        let found = urlencoded::parse(text, separator, limit, |name, value| {
            let (name, value) = (self.texts.add(name), self.texts.add(value));
            self.push(into, name, value);
        });
        if found.invalid {
            self.set_text(Single::UrlencodedError, b"1");
        }
        if found.too_many {
            self.set_text(Single::InboundDataError, b"1");
            self.body_error("more arguments than SecArgumentsLimit");
            self.unseen = Some("there are more arguments than SecArgumentsLimit");
        }
    }

    /// Step 3: the request's headers, all of them. Runs phase 1.
    pub fn request_headers<'h>(
        &mut self,
        headers: impl IntoIterator<Item = (&'h [u8], &'h [u8])>,
    ) -> Option<Intervention> {
        if self.is_over() {
            return None;
        }
        for (name, value) in headers.into_iter().take(MAX_VALUES) {
            self.request_header(name, value);
        }
        self.guarded(|t| {
            if let Some(processor) = t.switches.processor {
                t.set_text(Single::ReqbodyProcessor, processor.name().as_bytes());
            }
            t.phase(1);
        })
    }

    fn request_header(&mut self, name: &[u8], value: &[u8]) {
        let id = self.texts.add(name);
        let text = self.texts.add(value);
        self.push(Collection::RequestHeaders, id, text);
        if name.eq_ignore_ascii_case(b"cookie") {
            self.cookies(value);
        } else if name.eq_ignore_ascii_case(b"content-type") {
            let starts = |kind: &[u8]| value.len() >= kind.len() && value[..kind.len()].eq_ignore_ascii_case(kind);
            if starts(b"application/x-www-form-urlencoded") {
                self.switches.processor = Some(Processor::Urlencoded);
            } else if starts(b"multipart/form-data") {
                self.switches.processor = Some(Processor::Multipart);
            }
        } else if name.eq_ignore_ascii_case(b"host") {
            let end = match value.strip_prefix(b"[") {
                Some(v6) => memchr::memchr(b']', v6).map_or(value.len(), |at| at + 2),
                None => memchr::memchr(b':', value).unwrap_or(value.len()),
            };
            self.set_text(Single::ServerName, &value[..end]);
        } else if name.eq_ignore_ascii_case(b"authorization") {
            let end = memchr::memchr(b' ', value).unwrap_or(value.len());
            self.set_text(Single::AuthType, &value[..end]);
            if value[..end].eq_ignore_ascii_case(b"basic") {
                self.remote_user(&value[end..]);
            }
        }
    }

    /// The name in front of the colon of `Authorization: Basic`: RFC 7617 section 2.
    fn remote_user(&mut self, encoded: &[u8]) {
        let mut decoded = Vec::new();
        base64_decode(encoded.trim_ascii(), false, &mut decoded);
        if let Some(end) = memchr::memchr(b':', &decoded) {
            self.set_text(Single::RemoteUser, &decoded[..end]);
        }
    }

    /// `a=b; c=d`, neither decoded: RFC 6265 section 5.4.
    fn cookies(&mut self, value: &[u8]) {
        let separator = self.rules.settings.cookie_separator;
        for pair in value.split(|b| *b == separator) {
            let pair = pair.trim_ascii_start();
            if pair.is_empty() {
                continue;
            }
            let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
            let name = self.texts.add(pair[..at].trim_ascii_end());
            let value = self.texts.add(&pair[(at + 1).min(pair.len())..]);
            self.push(Collection::RequestCookies, name, value);
        }
    }

    /// Whether the body is to be handed over: `SecRequestBodyAccess`, or `ctl:requestBodyAccess` of a rule in phase 1.
    pub fn wants_request_body(&self) -> bool {
        self.switches.request_body && !self.is_over()
    }

    /// What the head says of the body's length, where it says something: one that is longer than allowed need not be waited for.
    pub fn request_body_length(&mut self, length: u64) -> Option<Intervention> {
        if !self.wants_request_body() || length <= self.switches.request_body_limit as u64 {
            return None;
        }
        self.too_long();
        self.intervention.clone()
    }

    fn too_long(&mut self) {
        self.set_text(Single::InboundDataError, b"1");
        self.refuse(
            413,
            self.rules.settings.request_body_action,
            "the request body is longer than SecRequestBodyLimit",
        );
    }

    /// Step 4: a piece of the request's body. Returns an intervention as soon as it is longer than allowed.
    pub fn request_body(&mut self, piece: &[u8]) -> Option<Intervention> {
        if !self.wants_request_body() {
            return None;
        }
        let room = self.switches.request_body_limit.saturating_sub(self.request_body.len());
        self.request_body.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() <= room {
            return None;
        }
        self.too_long();
        self.intervention.clone()
    }

    /// Whether more of the request's body would change nothing.
    pub fn request_body_is_full(&self) -> bool {
        self.singles[Single::InboundDataError as usize] != EMPTY
            && self.request_body.len() >= self.switches.request_body_limit
    }

    /// Step 5: the request's body is complete, or there was none. Runs phase 2.
    pub fn request_body_end(&mut self) -> Option<Intervention> {
        self.guarded(|t| {
            if t.switches.request_body && !t.request_body.is_empty() {
                t.take_body();
            }
            let is_allowed = matches!(t.switches.allow, Some(Allow::All | Allow::Request));
            if t.intervention.is_none() {
                t.phase(2);
            }
            // Behind the rules, which may have something to say of it: what they have not seen could be anything.
            if let Some(what) = t.unseen.filter(|_| !is_allowed) {
                t.refuse(400, LimitAction::Reject, what);
            }
        })
    }

    fn take_body(&mut self) {
        let body = std::mem::take(&mut self.request_body);
        let length = self.texts.add_number(body.len() as i64);
        self.set(Single::RequestBodyLength, length);
        let processor = self.switches.processor;
        let forced = self.switches.force_request_body;
        // Of other bodies rules see what the processor found: so the Core Rule Set is written, and so ModSecurity documents it.
        if processor == Some(Processor::Urlencoded) || forced {
            self.set_text(Single::RequestBody, &body);
        }
        let no_files = self.rules.settings.request_body_no_files_limit;
        if processor != Some(Processor::Multipart) && body.len() > no_files {
            let message = "the request body without files is longer than SecRequestBodyNoFilesLimit";
            self.refuse(413, self.rules.settings.request_body_action, message);
        }
        let mut judged = body.len();
        match processor {
            Some(Processor::Urlencoded) => self.arguments(&body, Collection::ArgsPost),
            Some(Processor::Json) => self.json(&body),
            Some(Processor::Xml) => self.xml(&body),
            Some(Processor::Multipart) => judged = self.multipart(&body),
            None => judged = 0,
        }
        // What no rule sees allows no work: an upload would pay for what its fields cost.
        self.judged_bytes = if forced { body.len() } else { judged };
        self.request_body = body;
    }

    fn body_error(&mut self, message: &str) {
        self.set_text(Single::ReqbodyError, b"1");
        self.set_text(Single::ReqbodyErrorMsg, message.as_bytes());
    }

    fn json(&mut self, body: &[u8]) {
        let (depth, limit) = (self.rules.settings.json_depth, self.rules.settings.arguments);
        let read = json::parse(body, depth, limit, &mut |name, value| {
            let (name, value) = (self.texts.add(name), self.texts.add(value));
            self.push(Collection::ArgsPost, name, value);
        });
        if let Err(problem) = read {
            let message = format!("JSON parsing error: {}", problem.message);
            self.body_error(&message);
            if problem.is_limit {
                self.unseen = Some("the JSON of the request body has more than the rules can look at");
            }
        }
    }

    fn xml(&mut self, body: &[u8]) {
        let (wanted, left) = (self.switches.xml_arguments, self.rules.settings.arguments);
        let mut give = |name: &[u8], value: &[u8]| {
            let (name, value) = (self.texts.add(name), self.texts.add(value));
            self.push(Collection::ArgsPost, name, value);
        };
        let arguments = xml::Arguments { left, give: &mut give };
        match xml::parse(body, (wanted != XmlArguments::Off).then_some(arguments)) {
            Err(problem) => {
                self.body_error(&format!("XML parsing error: {}", problem.message));
                if problem.is_limit {
                    self.unseen = Some("the XML of the request body has more than the rules can look at");
                }
            }
            Ok(_) if wanted == XmlArguments::Only => {}
            Ok(document) => {
                for (texts, into) in
                    [(document.texts, Collection::XmlText), (document.attributes, Collection::XmlAttributes)]
                {
                    for text in texts {
                        let value = self.texts.add(&text);
                        self.push(into, EMPTY, value);
                    }
                }
            }
        }
    }

    /// Returns how many of its bytes rules may look at.
    fn multipart(&mut self, body: &[u8]) -> usize {
        let list = &self.lists[Collection::RequestHeaders as usize];
        let kind = list.iter().find(|i| self.texts.get(i.name).eq_ignore_ascii_case(b"content-type"));
        let kind = kind.map(|i| self.texts.get(i.value).to_vec()).unwrap_or_default();
        let read = multipart::parse(body, &kind);
        let (mut fields, mut others) = (0, 0);
        for part in &read.parts {
            let name = self.texts.add(&part.name);
            for line in &part.headers {
                others += line.len();
                let line = self.texts.add(line);
                self.push(Collection::MultipartPartHeaders, name, line);
            }
            self.push(Collection::MultipartName, name, name);
            if part.is_field {
                fields += part.content.len();
                let value = self.texts.add(part.content);
                self.push(Collection::ArgsPost, name, value);
            }
            let Some(filename) = &part.filename else { continue };
            let filename = self.texts.add(filename);
            self.push(Collection::Files, name, filename);
            self.push(Collection::MultipartFilename, name, filename);
            let size = self.texts.add_number(part.content.len() as i64);
            self.push(Collection::FilesSizes, name, size);
            if self.rules.reads_files {
                others += part.content.len();
                let content = self.texts.add(part.content);
                self.push(Collection::FilesTmpContent, name, content);
            }
        }
        if fields > self.rules.settings.request_body_no_files_limit {
            let message = "the fields of the request body are longer than SecRequestBodyNoFilesLimit";
            self.refuse(413, self.rules.settings.request_body_action, message);
        }
        self.multipart_flags(&read);
        if read.is_over {
            self.unseen = Some("the parts of the request body are more than the rules can look at");
        }
        fields + others
    }

    fn multipart_flags(&mut self, read: &multipart::Multipart<'_>) {
        let f = &read.flags;
        let strict = f.strict() || read.error.is_some();
        for (single, on) in [
            (Single::MultipartBoundaryQuoted, f.boundary_quoted),
            (Single::MultipartBoundaryWhitespace, f.boundary_whitespace),
            (Single::MultipartDataBefore, f.data_before),
            (Single::MultipartDataAfter, f.data_after),
            (Single::MultipartHeaderFolding, f.header_folding),
            (Single::MultipartInvalidHeaderFolding, f.invalid_header_folding),
            (Single::MultipartInvalidQuoting, f.invalid_quoting),
            (Single::MultipartInvalidPart, f.invalid_part),
            (Single::MultipartLfLine, f.lf_line),
            (Single::MultipartCrlfLfLines, f.lf_line && f.crlf_line),
            (Single::MultipartMissingSemicolon, f.missing_semicolon),
            (Single::MultipartUnmatchedBoundary, f.unmatched_boundary),
            (Single::MultipartFileLimitExceeded, f.too_many_parts),
            (Single::MultipartStrictError, strict),
        ] {
            let value = self.texts.add_number(i64::from(on));
            self.set(single, value);
        }
        if let Some(message) = &read.error {
            self.body_error(&format!("Multipart parsing error: {message}"));
        }
    }

    /// What a limit does: see [`LimitAction`].
    pub fn request_body_action(&self) -> LimitAction {
        self.rules.settings.request_body_action
    }
}

/// A URI without scheme and host: what `REQUEST_URI` holds.
fn without_authority(uri: &[u8]) -> &[u8] {
    let scheme = |name: &[u8]| uri.len() > name.len() && uri[..name.len()].eq_ignore_ascii_case(name);
    let skip = if scheme(b"http://") {
        7
    } else if scheme(b"https://") {
        8
    } else {
        return uri;
    };
    let rest = &uri[skip..];
    memchr::memchr2(b'/', b'?', rest).map_or(b"/", |at| &rest[at..])
}

fn percent_decoded(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest) {
        out.extend_from_slice(&rest[..at]);
        let digit = |at: usize| rest.get(at).and_then(|b| (*b as char).to_digit(16));
        match (digit(at + 1), digit(at + 2)) {
            (Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                rest = &rest[at + 3..];
            }
            _ => {
                out.push(b'%');
                rest = &rest[at + 1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_lose_their_authority_and_paths_their_escapes() {
        assert_eq!(without_authority(b"http://h/a?b"), b"/a?b");
        assert_eq!(without_authority(b"HTTPS://h?b"), b"?b");
        assert_eq!(without_authority(b"http://h"), b"/");
        assert_eq!(without_authority(b"/a"), b"/a");
        assert_eq!(percent_decoded(b"/%41+%zz%4"), b"/A+%zz%4");
    }
}
