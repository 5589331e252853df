//! The audit log: one JSON object a line, for each transaction that is worth one. Field names are those of libmodsecurity's JSON
//! format, so that what reads one reads the other.

use crate::limits::MAX_AUDITED_BYTES;
use crate::operator::rx::Rx;
use crate::rule::{Processor, Sanitise};
use crate::settings::AuditEngine;
use crate::texts::TextId;
use crate::transaction::{Item, Transaction};
use crate::variable::{Collection, Single};
use serde_json::{Map, Value, json};

/// What stands in place of what must not be shown.
const HIDDEN: &str = "****";

impl Transaction {
    /// Whether the audit log gets a line: `SecAuditEngine`, and for `RelevantOnly` a rule with `auditlog`, a status that
    /// `SecAuditLogRelevantStatus` matches, or a transaction that was given up.
    pub fn is_audited(&self) -> bool {
        match self.switches_audit() {
            AuditEngine::Off => false,
            AuditEngine::On => true,
            AuditEngine::RelevantOnly => {
                let status = self.answered().to_string();
                self.fault().is_some()
                    || self.matches().iter().any(|m| m.audit)
                    || self
                        .settings()
                        .audit_status
                        .as_ref()
                        .is_some_and(|rx: &std::sync::Arc<Rx>| rx.is_match(status.as_bytes()))
            }
        }
    }

    /// The line of the audit log, without a line end. `SecAuditLogParts` says what it holds; arguments and headers that a rule
    /// sanitises are hidden wherever they stand.
    pub fn audit_line(&self, producer: &str) -> String {
        let parts = self.audit_parts();
        let has = |part: u8| parts.contains(&part);
        let mut request = Map::new();
        let text = |single| Value::String(String::from_utf8_lossy(self.text_of(single)).into_owned());
        request.insert("method".to_owned(), text(Single::RequestMethod));
        request.insert("http_version".to_owned(), text(Single::RequestProtocol));
        request.insert("uri".to_owned(), Value::String(self.hidden(self.text_of(Single::RequestUriRaw))));
        if has(b'B') {
            request.insert("headers".to_owned(), self.headers(Collection::RequestHeaders));
        }
        // `I` is `C` without files: of such a body nothing is shown.
        if has(b'C') || has(b'I') && !self.has_processor(Processor::Multipart) {
            request.insert("body".to_owned(), Value::String(self.body()));
        }
        if has(b'J') {
            request.insert("files".to_owned(), self.headers(Collection::Files));
        }
        let mut response = Map::new();
        response.insert("http_code".to_owned(), json!(self.answered()));
        if has(b'F') {
            response.insert("headers".to_owned(), self.headers(Collection::ResponseHeaders));
        }
        if has(b'E') {
            let body = self.text_of(Single::ResponseBody);
            let body = String::from_utf8_lossy(&body[..body.len().min(MAX_AUDITED_BYTES)]);
            response.insert("body".to_owned(), Value::String(body.into_owned()));
        }
        let mut transaction = json!({
            "client_ip": text(Single::RemoteAddr),
            "client_port": text(Single::RemotePort),
            "host_ip": text(Single::ServerAddr),
            "host_port": text(Single::ServerPort),
            "unique_id": text(Single::UniqueId),
            "time_stamp_ms": self.began_ms(),
            "request": request,
            "response": response,
        });
        if has(b'H') {
            transaction["producer"] = json!({
                "modsecurity": producer,
                "secrules_engine": format!("{:?}", self.settings().engine),
                "components": self.settings().components,
            });
            if let Some(sensor) = &self.settings().sensor {
                transaction["producer"]["sensor_id"] = json!(sensor);
            }
            transaction["messages"] = Value::Array(self.messages());
            if let Some(refused) = self.intervention() {
                transaction["intervention"] = json!({ "status": refused.status, "rule": refused.rule, "drop": refused.drop, "redirect": refused.redirect });
            }
            if let Some(fault) = self.fault() {
                transaction["fault"] = json!(format!("{fault:?}"));
            }
        }
        json!({ "transaction": transaction }).to_string()
    }

    fn messages(&self) -> Vec<Value> {
        let hide_matched = self.sanitised().contains(&Sanitise::Matched);
        let shown = self.matches().iter().filter(|m| m.audit);
        shown
            .map(|m| {
                let rule = self.rule_of(m);
                let data = if hide_matched { HIDDEN } else { &m.data };
                json!({
                    "message": m.msg,
                    "details": {
                        "match": rule.operator.shown,
                        "variable": m.variable,
                        "value": if hide_matched { HIDDEN } else { &m.value },
                        "ruleId": m.id.to_string(),
                        "file": &*rule.place.file,
                        "lineNumber": rule.place.line.to_string(),
                        "data": data,
                        "severity": rule.meta.severity.map(Transaction::severity_name),
                        "ver": rule.meta.ver,
                        "rev": rule.meta.rev,
                        "tags": m.tags,
                        "maturity": rule.meta.maturity,
                        "accuracy": rule.meta.accuracy,
                        "disruptive": m.disruptive,
                    }
                })
            })
            .collect()
    }

    fn headers(&self, of: Collection) -> Value {
        let hidden = |item: &Item| {
            let is = |name: &[u8], id: TextId| self.texts().get(id).eq_ignore_ascii_case(name);
            self.sanitised().iter().any(|s| match s {
                Sanitise::RequestHeader(name) => of == Collection::RequestHeaders && is(name, item.name),
                Sanitise::ResponseHeader(name) => of == Collection::ResponseHeaders && is(name, item.name),
                _ => false,
            })
        };
        let mut map = Map::new();
        for item in self.items(of) {
            let name = String::from_utf8_lossy(self.texts().get(item.name)).into_owned();
            let value =
                if hidden(item) { HIDDEN.into() } else { String::from_utf8_lossy(self.texts().get(item.value)) };
            // A header that came twice is shown with both values.
            match map.entry(name).or_insert(Value::Null) {
                Value::String(known) => {
                    known.push_str(", ");
                    known.push_str(&value);
                }
                place => *place = Value::String(value.into_owned()),
            }
        }
        Value::Object(map)
    }

    /// The request's body. What a sanitised argument holds in JSON or in a part is not found by its name: nothing of such a body
    /// is shown.
    fn body(&self) -> String {
        let body = self.raw_body();
        let body = &body[..body.len().min(MAX_AUDITED_BYTES)];
        let hides = self.sanitised().iter().any(|s| matches!(s, Sanitise::Arg(_)));
        if hides && !body.is_empty() && !self.has_processor(Processor::Urlencoded) {
            return HIDDEN.to_owned();
        }
        self.hidden(body)
    }

    /// A text with the values of sanitised arguments hidden, as they stand in URIs and forms.
    fn hidden(&self, text: &[u8]) -> String {
        let names: Vec<&[u8]> = self
            .sanitised()
            .iter()
            .filter_map(|s| if let Sanitise::Arg(name) = s { Some(&name[..]) } else { None })
            .collect();
        if names.is_empty() {
            return String::from_utf8_lossy(text).into_owned();
        }
        let mut out = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.iter().position(|b| matches!(b, b'?' | b'&')).map_or(rest.len(), |at| at + 1);
            let (pair, behind) = rest.split_at(end);
            let at = memchr::memchr(b'=', pair);
            match at.filter(|at| names.iter().any(|n| n.eq_ignore_ascii_case(&pair[..*at]))) {
                Some(at) => {
                    out.extend_from_slice(&pair[..=at]);
                    out.extend_from_slice(HIDDEN.as_bytes());
                    out.extend(pair.last().filter(|b| matches!(b, b'&' | b'?')));
                }
                None => out.extend_from_slice(pair),
            }
            rest = behind;
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}
