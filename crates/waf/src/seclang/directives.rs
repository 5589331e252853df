//! The directives that set something of the engine itself.

use super::ctl::{audit_engine, engine, on_off, xml_arguments};
use super::lexer::Statement;
use super::load::Reader;
use crate::geo::Geo;
use crate::limits::{MAX_BODY_BYTES, MAX_JSON_DEPTH, MAX_VALUES};
use crate::operator::Phrases;
use crate::operator::rx::Rx;
use crate::settings::{LimitAction, Settings};
use crate::transform::UnicodeMap;
use std::sync::Arc;

/// Directives that ask for something that this engine does in another way, or always. They are read and noted.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("secrequestbodyinmemorylimit", "request bodies are held in memory up to SecRequestBodyLimit"),
    ("sectmpdir", "nothing is written to disk"),
    ("secdatadir", "collections are kept in memory"),
    ("secuploaddir", "uploads are not written to disk"),
    ("secuploadkeepfiles", "uploads are not written to disk"),
    ("secuploadfilemode", "uploads are not written to disk"),
    ("secuploadfilelimit", "parts are limited by a constant"),
    ("secpcrematchlimit", "expressions have a limit of steps of their own"),
    ("secpcrematchlimitrecursion", "expressions have a limit of steps of their own"),
    ("secauditlog2", "the audit log is written once, where \"SecAuditLog\" says"),
    ("secauditlogtype", "the audit log is one stream of JSON lines"),
    ("secauditlogformat", "the audit log is one stream of JSON lines"),
    ("secauditlogstoragedir", "the audit log is one stream of JSON lines"),
    ("secauditlogdirmode", "the audit log is one stream of JSON lines"),
    ("secauditlogfilemode", "the audit log is one stream of JSON lines"),
    ("secdebuglog", "there is no debug log"),
    ("secdebugloglevel", "there is no debug log"),
    ("secstatusengine", "nothing is reported to anyone"),
    ("secserversignature", "the server's name is the server's matter"),
];

/// Directives that are refused, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("secrulescript", "no scripts are run"),
    ("secremoterules", "rules are read from files"),
    ("secremoterulesfailaction", "rules are read from files"),
    ("secgsblookupdb", "there is no Google Safe Browsing database"),
    ("sechttpblkey", "a request never waits for a name server"),
    ("secxmlexternalentity", "external entities are never loaded"),
    ("seccontentinjection", "answers are not rewritten"),
    ("secstreaminbodyinspection", "bodies are not rewritten"),
    ("secstreamoutbodyinspection", "bodies are not rewritten"),
    ("secdisablebackendcompression", "set proxy_set_header Accept-Encoding \"\""),
    ("secconnengine", "connections are limited by \"limit_conn\" and by \"guard\""),
    (
        "secconnreadstatelimit",
        "slow clients are limited by \"client_header_min_rate\" and \"slow_connections_per_address\"",
    ),
    ("secconnwritestatelimit", "slow clients are limited by \"send_min_rate\" and \"slow_connections_per_address\""),
    (
        "secreadstatelimit",
        "slow clients are limited by \"client_header_min_rate\" and \"slow_connections_per_address\"",
    ),
    ("secwritestatelimit", "slow clients are limited by \"send_min_rate\" and \"slow_connections_per_address\""),
    ("secguardianlog", "no program is started for a request"),
    ("secinterceptonerror", "a request that cannot be judged is refused with 500"),
    ("secruleperftime", "what rules cost is not measured"),
    ("secruleinheritance", "a level has the rules of the levels around it"),
    ("seccachetransformations", "each transformation is done once, always"),
    ("secchrootdir", "the server does not change its root"),
    ("sechashengine", "links are not signed"),
    ("sechashkey", "links are not signed"),
    ("sechashparam", "links are not signed"),
    ("sechashmethodrx", "links are not signed"),
    ("sechashmethodpm", "links are not signed"),
];

/// Applies a directive. Some: it was read and has no effect, and why.
pub(super) fn apply(settings: &mut Settings, s: &Statement, files: &mut Reader<'_>) -> Result<Option<String>, String> {
    let name = s.name.to_ascii_lowercase();
    if let Some((_, why)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
        return Ok(Some(format!("\"{}\" has no effect: {why}", s.name)));
    }
    if let Some((_, why)) = REFUSED.iter().find(|(known, _)| *known == name) {
        return Err(format!("\"{}\" is not supported: {why}", s.name));
    }
    let words: Vec<String> = s.args.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect();
    let first = words.first().ok_or_else(|| format!("\"{}\" takes an argument", s.name))?;
    let many = matches!(name.as_str(), "secresponsebodymimetype" | "secunicodemapfile");
    if words.len() > 1 && !many {
        return Err(format!("\"{}\" takes one argument", s.name));
    }
    let invalid = || format!("invalid value \"{first}\" of \"{}\"", s.name);
    let bytes = || first.parse::<usize>().ok().filter(|n| *n <= MAX_BODY_BYTES).ok_or_else(invalid);
    let action = || match first.to_ascii_lowercase().as_str() {
        "reject" => Ok(LimitAction::Reject),
        "processpartial" => Ok(LimitAction::ProcessPartial),
        _ => Err(invalid()),
    };
    match name.as_str() {
        "secruleengine" => settings.engine = engine(first).ok_or_else(invalid)?,
        "secrequestbodyaccess" => settings.request_body = on_off(first).ok_or_else(invalid)?,
        "secrequestbodylimit" => settings.request_body_limit = bytes()?,
        "secrequestbodynofileslimit" => settings.request_body_no_files_limit = bytes()?,
        "secrequestbodylimitaction" => settings.request_body_action = action()?,
        "secrequestbodyjsondepthlimit" => {
            let depth: usize = first.parse().map_err(|_| invalid())?;
            settings.json_depth = depth.min(MAX_JSON_DEPTH);
        }
        "secargumentslimit" => {
            settings.arguments = first.parse().ok().filter(|n| *n <= MAX_VALUES).ok_or_else(invalid)?;
        }
        "secparsexmlintoargs" => settings.xml_arguments = xml_arguments(first).ok_or_else(invalid)?,
        "secresponsebodyaccess" => settings.response_body = on_off(first).ok_or_else(invalid)?,
        "secresponsebodylimit" => settings.response_body_limit = bytes()?,
        "secresponsebodylimitaction" => settings.response_body_action = action()?,
        "secresponsebodymimetype" => {
            settings.response_types = words.iter().map(|w| w.to_ascii_lowercase().into()).collect();
        }
        "secresponsebodymimetypesclear" => settings.response_types.clear(),
        "secargumentseparator" => match first.as_bytes() {
            [byte] => settings.separator = *byte,
            _ => return Err(invalid()),
        },
        "seccookiev0separator" => match first.as_bytes() {
            [byte] if *byte != b'=' => settings.cookie_separator = *byte,
            _ => return Err(invalid()),
        },
        // They are read as version 0; libmodsecurity refuses the other one as well.
        "seccookieformat" => match first.as_str() {
            "0" => {}
            "1" => return Err("\"SecCookieFormat 1\" is not supported: cookies are read as version 0".to_owned()),
            _ => return Err(invalid()),
        },
        "sectmpsaveuploadedfiles" => {
            if on_off(first).ok_or_else(invalid)? {
                return Err(
                    "\"SecTmpSaveUploadedFiles On\" is not supported: uploads are not written to disk".to_owned()
                );
            }
        }
        "secsensorid" => settings.sensor = Some(first.as_str().into()),
        "secgeolookupdb" => {
            let geo = files.read(first).and_then(Geo::open);
            settings.geo = Some(geo.map_err(|e| format!("database \"{first}\" cannot be used: {e}"))?);
        }
        "secauditengine" => settings.audit = audit_engine(first).ok_or_else(invalid)?,
        "secauditlogparts" => {
            if !first.bytes().all(|b| b.is_ascii_uppercase()) {
                return Err(invalid());
            }
            settings.audit_parts = first.as_bytes().into();
        }
        "secauditlogrelevantstatus" => settings.audit_status = Some(Arc::new(Rx::compile(first.as_bytes(), false)?)),
        "secauditlog" => settings.audit_file = Some(first.as_str().into()),
        "seccomponentsignature" => settings.components.push(first.as_str().into()),
        "secwebappid" => settings.web_app = first.as_str().into(),
        "seccollectiontimeout" => settings.collection_timeout_s = first.parse().map_err(|_| invalid())?,
        "secunicodemapfile" => {
            let page = words.get(1).and_then(|p| p.parse().ok()).ok_or_else(invalid)?;
            let text = files.read(first)?;
            let map = UnicodeMap::read(&String::from_utf8_lossy(&text), page);
            settings.unicode = Some(Arc::new(map.ok_or_else(|| format!("no code page {page} in \"{first}\""))?));
        }
        _ => return Err(format!("unknown directive \"{}\"", s.name)),
    }
    Ok(None)
}
