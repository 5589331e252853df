//! What a rule set says of the engine itself: `SecRuleEngine`, limits, which bodies are read, what the audit log holds.

use crate::geo::Geo;
use crate::limits;
use crate::operator::rx::Rx;
use crate::transform::UnicodeMap;
use std::sync::Arc;

/// `SecRuleEngine`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Rules are not run.
    #[default]
    Off,
    /// Rules are run and disturb nothing.
    DetectionOnly,
    /// Rules may refuse.
    On,
}

/// `SecAuditEngine`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditEngine {
    /// Nothing is written.
    #[default]
    Off,
    /// Every transaction is written.
    On,
    /// Those that a rule marked, or whose status is relevant.
    RelevantOnly,
}

/// `Sec*BodyLimitAction`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAction {
    /// What is too long is refused.
    Reject,
    /// What fits is looked at.
    ProcessPartial,
}

/// `SecParseXmlIntoArgs`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XmlArguments {
    /// XML is in `XML` only.
    #[default]
    Off,
    /// Its elements are arguments as well.
    On,
    /// They are arguments, and `XML` is empty.
    Only,
}

/// All settings of a rule set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `SecRuleEngine`
    pub engine: Engine,
    /// `SecRequestBodyAccess`
    pub request_body: bool,
    /// `SecRequestBodyLimit`, in bytes.
    pub request_body_limit: usize,
    /// `SecRequestBodyNoFilesLimit`, in bytes.
    pub request_body_no_files_limit: usize,
    /// `SecRequestBodyLimitAction`
    pub request_body_action: LimitAction,
    /// `SecRequestBodyJsonDepthLimit`
    pub json_depth: usize,
    /// `SecArgumentsLimit`
    pub arguments: usize,
    /// `SecParseXmlIntoArgs`
    pub xml_arguments: XmlArguments,
    /// `SecResponseBodyAccess`
    pub response_body: bool,
    /// `SecResponseBodyLimit`, in bytes.
    pub response_body_limit: usize,
    /// `SecResponseBodyLimitAction`
    pub response_body_action: LimitAction,
    /// `SecResponseBodyMimeType`, in small letters.
    pub response_types: Vec<Box<str>>,
    /// `SecArgumentSeparator`
    pub separator: u8,
    /// `SecCookieV0Separator`
    pub cookie_separator: u8,
    /// `SecGeoLookupDb`
    pub(crate) geo: Option<Arc<Geo>>,
    /// `SecSensorId`: which machine it is, for the audit log.
    pub sensor: Option<Box<str>>,
    /// `SecAuditEngine`
    pub audit: AuditEngine,
    /// `SecAuditLogParts`
    pub audit_parts: Box<[u8]>,
    /// `SecAuditLogRelevantStatus`
    pub audit_status: Option<Arc<Rx>>,
    /// `SecAuditLog`: where the server writes the lines.
    pub audit_file: Option<Box<str>>,
    /// `SecComponentSignature`
    pub components: Vec<Box<str>>,
    /// `SecWebAppId`
    pub web_app: Box<str>,
    /// `SecUnicodeMapFile`
    pub unicode: Option<Arc<UnicodeMap>>,
    /// `SecCollectionTimeout`, in seconds.
    pub collection_timeout_s: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            engine: Engine::Off,
            request_body: false,
            request_body_limit: limits::REQUEST_BODY_BYTES,
            request_body_no_files_limit: limits::REQUEST_BODY_BYTES,
            request_body_action: LimitAction::Reject,
            json_depth: limits::MAX_JSON_DEPTH,
            arguments: limits::ARGUMENTS,
            xml_arguments: XmlArguments::Off,
            response_body: false,
            response_body_limit: limits::RESPONSE_BODY_BYTES,
            response_body_action: LimitAction::ProcessPartial,
            response_types: vec!["text/plain".into(), "text/html".into()],
            separator: b'&',
            cookie_separator: b';',
            geo: None,
            sensor: None,
            audit: AuditEngine::Off,
            audit_parts: (*b"ABCFHZ").into(),
            audit_status: None,
            audit_file: None,
            components: Vec::new(),
            web_app: "".into(),
            unicode: None,
            collection_timeout_s: 3600,
        }
    }
}
