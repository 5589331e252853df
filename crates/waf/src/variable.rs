//! SecLang's variables: their names, and where a transaction finds their values. One table; the parser, the engine and the logs
//! read it.

/// Declares an enum of which a transaction keeps one entry for each value.
macro_rules! entries {
    ($(#[$doc:meta])* $vis:vis $name:ident { $($(#[$inner:meta])* $entry:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names are SecLang's own")]
        $vis enum $name { $($(#[$inner])* $entry),* }
        impl $name {
            /// How many there are.
            pub(crate) const COUNT: usize = [$($name::$entry),*].len();
        }
    };
}

entries! {
    /// Variables with one value, which a step of the transaction sets.
    pub(crate) Single {
        AuthType, InboundDataError, MscPcreError, MscPcreLimitsExceeded,
        MultipartBoundaryQuoted, MultipartBoundaryWhitespace, MultipartCrlfLfLines, MultipartDataAfter, MultipartDataBefore,
        MultipartFileLimitExceeded, MultipartHeaderFolding, MultipartInvalidHeaderFolding, MultipartInvalidPart,
        MultipartInvalidQuoting, MultipartLfLine, MultipartMissingSemicolon, MultipartStrictError, MultipartUnmatchedBoundary,
        OutboundDataError, PathInfo, QueryString, RemoteAddr, RemoteHost, RemotePort, RemoteUser, ReqbodyError,
        ReqbodyErrorMsg, ReqbodyProcessor, RequestBasename, RequestBody, RequestBodyLength, RequestFilename, RequestLine,
        RequestMethod, RequestProtocol, RequestUri, RequestUriRaw, ResponseBody, ResponseContentLength,
        ResponseContentType, ResponseProtocol, ResponseStatus, ServerAddr, ServerName, ServerPort, Sessionid, StatusLine,
        UniqueId, UrlencodedError, Userid, Resource, Webappid,
    }
}

entries! {
    /// Lists of names and values, which steps of the transaction fill.
    pub(crate) Collection {
        ArgsGet, ArgsPost, RequestHeaders, RequestCookies, ResponseHeaders, Files, FilesSizes, FilesTmpContent,
        MultipartFilename, MultipartName, MultipartPartHeaders, XmlText, XmlAttributes, Env, Geo,
    }
}

entries! {
    /// Collections that outlive a transaction once `initcol`, `setsid`, `setuid` or `setrsc` has named their record.
    pub Stored { Ip, Global, Session, User, Resource }
}

impl Collection {
    /// Those that rules set values of while they run, a bit for each: what they have is not known beforehand.
    pub(crate) const SET_BY_RULES: u16 = 1 << Collection::Env as u16 | 1 << Collection::Geo as u16;

    /// Whether it is one of these.
    pub(crate) fn is_set_by_rules(self) -> bool {
        Collection::SET_BY_RULES & 1 << self as u16 != 0
    }
}

impl Stored {
    /// All of them.
    pub const ALL: [Stored; Stored::COUNT] =
        [Stored::Ip, Stored::Global, Stored::Session, Stored::User, Stored::Resource];
}

/// Values that are made when a rule asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) enum Computed {
    ArgsCombinedSize,
    FilesCombinedSize,
    FullRequest,
    FullRequestLength,
    HighestSeverity,
    MatchedVar,
    MatchedVarName,
    ModsecBuild,
    Duration,
    Time,
    TimeDay,
    TimeEpoch,
    TimeHour,
    TimeMin,
    TimeMon,
    TimeSec,
    TimeWday,
    TimeYear,
}

/// Where the values of a variable are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// One value.
    Single(Single),
    /// The values of some collections.
    Values(&'static [Collection]),
    /// Their names.
    Names(&'static [Collection]),
    /// Made when asked for.
    Computed(Computed),
    /// `TX`: the transaction's own variables.
    Tx,
    /// What the rule before this one in a chain matched.
    MatchedVars,
    /// Under which names.
    MatchedVarsNames,
    /// `RULE`: what the running rule says of itself.
    Rule,
    /// A record that outlives the transaction.
    Stored(Stored),
    /// `XML`, whose selector is an expression of XPath.
    Xml,
}

/// A variable as rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    /// Its name, in capitals.
    pub label: &'static str,
    /// Where its values are.
    pub source: Source,
}

impl Variable {
    /// Whether a rule may choose some of its values by name.
    pub(crate) fn has_names(&self) -> bool {
        !matches!(self.source, Source::Single(_) | Source::Computed(_))
    }
}

/// Finds a variable by its name, in capitals or not.
pub(crate) fn find(name: &str) -> Option<Variable> {
    TABLE.iter().find(|v| v.label.eq_ignore_ascii_case(name)).copied()
}

const fn one(label: &'static str, single: Single) -> Variable {
    Variable { label, source: Source::Single(single) }
}

const fn values(label: &'static str, of: &'static [Collection]) -> Variable {
    Variable { label, source: Source::Values(of) }
}

const fn names(label: &'static str, of: &'static [Collection]) -> Variable {
    Variable { label, source: Source::Names(of) }
}

const fn made(label: &'static str, computed: Computed) -> Variable {
    Variable { label, source: Source::Computed(computed) }
}

const fn kept(label: &'static str, stored: Stored) -> Variable {
    Variable { label, source: Source::Stored(stored) }
}

use Collection as C;
use Single as S;

const TABLE: &[Variable] = &[
    values("ARGS", &[C::ArgsGet, C::ArgsPost]),
    made("ARGS_COMBINED_SIZE", Computed::ArgsCombinedSize),
    values("ARGS_GET", &[C::ArgsGet]),
    names("ARGS_GET_NAMES", &[C::ArgsGet]),
    names("ARGS_NAMES", &[C::ArgsGet, C::ArgsPost]),
    values("ARGS_POST", &[C::ArgsPost]),
    names("ARGS_POST_NAMES", &[C::ArgsPost]),
    one("AUTH_TYPE", S::AuthType),
    made("DURATION", Computed::Duration),
    values("ENV", &[C::Env]),
    values("FILES", &[C::Files]),
    made("FILES_COMBINED_SIZE", Computed::FilesCombinedSize),
    names("FILES_NAMES", &[C::Files]),
    values("FILES_SIZES", &[C::FilesSizes]),
    values("FILES_TMP_CONTENT", &[C::FilesTmpContent]),
    made("FULL_REQUEST", Computed::FullRequest),
    made("FULL_REQUEST_LENGTH", Computed::FullRequestLength),
    values("GEO", &[C::Geo]),
    kept("GLOBAL", Stored::Global),
    made("HIGHEST_SEVERITY", Computed::HighestSeverity),
    one("INBOUND_DATA_ERROR", S::InboundDataError),
    kept("IP", Stored::Ip),
    made("MATCHED_VAR", Computed::MatchedVar),
    Variable { label: "MATCHED_VARS", source: Source::MatchedVars },
    Variable { label: "MATCHED_VARS_NAMES", source: Source::MatchedVarsNames },
    made("MATCHED_VAR_NAME", Computed::MatchedVarName),
    made("MODSEC_BUILD", Computed::ModsecBuild),
    one("MSC_PCRE_ERROR", S::MscPcreError),
    one("MSC_PCRE_LIMITS_EXCEEDED", S::MscPcreLimitsExceeded),
    one("MULTIPART_BOUNDARY_QUOTED", S::MultipartBoundaryQuoted),
    one("MULTIPART_BOUNDARY_WHITESPACE", S::MultipartBoundaryWhitespace),
    one("MULTIPART_CRLF_LF_LINES", S::MultipartCrlfLfLines),
    one("MULTIPART_DATA_AFTER", S::MultipartDataAfter),
    one("MULTIPART_DATA_BEFORE", S::MultipartDataBefore),
    values("MULTIPART_FILENAME", &[C::MultipartFilename]),
    one("MULTIPART_FILE_LIMIT_EXCEEDED", S::MultipartFileLimitExceeded),
    one("MULTIPART_HEADER_FOLDING", S::MultipartHeaderFolding),
    one("MULTIPART_INVALID_HEADER_FOLDING", S::MultipartInvalidHeaderFolding),
    one("MULTIPART_INVALID_PART", S::MultipartInvalidPart),
    one("MULTIPART_INVALID_QUOTING", S::MultipartInvalidQuoting),
    one("MULTIPART_LF_LINE", S::MultipartLfLine),
    one("MULTIPART_MISSING_SEMICOLON", S::MultipartMissingSemicolon),
    one("MULTIPART_SEMICOLON_MISSING", S::MultipartMissingSemicolon),
    values("MULTIPART_NAME", &[C::MultipartName]),
    values("MULTIPART_PART_HEADERS", &[C::MultipartPartHeaders]),
    one("MULTIPART_STRICT_ERROR", S::MultipartStrictError),
    one("MULTIPART_UNMATCHED_BOUNDARY", S::MultipartUnmatchedBoundary),
    one("OUTBOUND_DATA_ERROR", S::OutboundDataError),
    one("PATH_INFO", S::PathInfo),
    one("QUERY_STRING", S::QueryString),
    one("REMOTE_ADDR", S::RemoteAddr),
    one("REMOTE_HOST", S::RemoteHost),
    one("REMOTE_PORT", S::RemotePort),
    one("REMOTE_USER", S::RemoteUser),
    one("REQBODY_ERROR", S::ReqbodyError),
    one("REQBODY_ERROR_MSG", S::ReqbodyErrorMsg),
    one("REQBODY_PROCESSOR", S::ReqbodyProcessor),
    one("REQBODY_PROCESSOR_ERROR", S::ReqbodyError),
    one("REQBODY_PROCESSOR_ERROR_MSG", S::ReqbodyErrorMsg),
    one("REQUEST_BASENAME", S::RequestBasename),
    one("REQUEST_BODY", S::RequestBody),
    one("REQUEST_BODY_LENGTH", S::RequestBodyLength),
    values("REQUEST_COOKIES", &[C::RequestCookies]),
    names("REQUEST_COOKIES_NAMES", &[C::RequestCookies]),
    one("REQUEST_FILENAME", S::RequestFilename),
    values("REQUEST_HEADERS", &[C::RequestHeaders]),
    names("REQUEST_HEADERS_NAMES", &[C::RequestHeaders]),
    one("REQUEST_LINE", S::RequestLine),
    one("REQUEST_METHOD", S::RequestMethod),
    one("REQUEST_PROTOCOL", S::RequestProtocol),
    one("REQUEST_URI", S::RequestUri),
    one("REQUEST_URI_RAW", S::RequestUriRaw),
    kept("RESOURCE", Stored::Resource),
    one("RESPONSE_BODY", S::ResponseBody),
    one("RESPONSE_CONTENT_LENGTH", S::ResponseContentLength),
    one("RESPONSE_CONTENT_TYPE", S::ResponseContentType),
    values("RESPONSE_HEADERS", &[C::ResponseHeaders]),
    names("RESPONSE_HEADERS_NAMES", &[C::ResponseHeaders]),
    one("RESPONSE_PROTOCOL", S::ResponseProtocol),
    one("RESPONSE_STATUS", S::ResponseStatus),
    Variable { label: "RULE", source: Source::Rule },
    one("SERVER_ADDR", S::ServerAddr),
    one("SERVER_NAME", S::ServerName),
    one("SERVER_PORT", S::ServerPort),
    kept("SESSION", Stored::Session),
    one("SESSIONID", S::Sessionid),
    one("STATUS", S::ResponseStatus),
    one("STATUS_LINE", S::StatusLine),
    made("TIME", Computed::Time),
    made("TIME_DAY", Computed::TimeDay),
    made("TIME_EPOCH", Computed::TimeEpoch),
    made("TIME_HOUR", Computed::TimeHour),
    made("TIME_MIN", Computed::TimeMin),
    made("TIME_MON", Computed::TimeMon),
    made("TIME_SEC", Computed::TimeSec),
    made("TIME_WDAY", Computed::TimeWday),
    made("TIME_YEAR", Computed::TimeYear),
    Variable { label: "TX", source: Source::Tx },
    one("UNIQUE_ID", S::UniqueId),
    one("URLENCODED_ERROR", S::UrlencodedError),
    kept("USER", Stored::User),
    one("USERID", S::Userid),
    one("WEBAPPID", S::Webappid),
    Variable { label: "XML", source: Source::Xml },
];

/// Variables that libmodsecurity documents and this engine refuses, with the reason.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("FILES_TMPNAMES", "uploads are not written to disk"),
    ("PERF_ALL", "what rules cost is not measured"),
    ("PERF_COMBINED", "what rules cost is not measured"),
    ("PERF_GC", "what rules cost is not measured"),
    ("PERF_LOGGING", "what rules cost is not measured"),
    ("PERF_PHASE1", "what rules cost is not measured"),
    ("PERF_PHASE2", "what rules cost is not measured"),
    ("PERF_PHASE3", "what rules cost is not measured"),
    ("PERF_PHASE4", "what rules cost is not measured"),
    ("PERF_PHASE5", "what rules cost is not measured"),
    ("PERF_RULES", "what rules cost is not measured"),
    ("PERF_SREAD", "what rules cost is not measured"),
    ("PERF_SWRITE", "what rules cost is not measured"),
    ("SCRIPT_BASENAME", "requests are judged before it is known what answers them"),
    ("SCRIPT_FILENAME", "requests are judged before it is known what answers them"),
    ("SCRIPT_GID", "requests are judged before it is known what answers them"),
    ("SCRIPT_GROUPNAME", "requests are judged before it is known what answers them"),
    ("SCRIPT_MODE", "requests are judged before it is known what answers them"),
    ("SCRIPT_UID", "requests are judged before it is known what answers them"),
    ("SCRIPT_USERNAME", "requests are judged before it is known what answers them"),
    ("STREAM_INPUT_BODY", "bodies are not rewritten"),
    ("STREAM_OUTPUT_BODY", "bodies are not rewritten"),
    ("USERAGENT_IP", "it is none of libmodsecurity's: REMOTE_ADDR is the client that \"real_ip_header\" names"),
    ("WEBSERVER_ERROR_LOG", "the server's error log is not read back"),
    ("REQUEST_FILENAME_RAW", "it is none of libmodsecurity's"),
];
