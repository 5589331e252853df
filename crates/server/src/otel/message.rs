//! The messages of OTLP that traces need (opentelemetry-proto 1.x, `trace.proto`, `common.proto`, `resource.proto`). Field
//! numbers are the protocol's; fields that are never set here are left out, as Protocol Buffers allow.

use prost::{Message, Oneof};

/// `ExportTraceServiceRequest`
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    /// One for each resource: one here.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`: what it may say is not acted on.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ExportTraceServiceResponse {}

/// `ResourceSpans`
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// Whose spans these are.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// One for each library that made spans: one here.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// `Resource`
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// `service.name` and others.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// `ScopeSpans`
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// What made the spans.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// `InstrumentationScope`
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// Ironweir.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// `Span`
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// `tracestate` of the parent.
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// 8 bytes, or none.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What was done.
    #[prost(string, tag = "5")]
    pub name: String,
    /// [`KIND_SERVER`]
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// What is known of it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// Whether it failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// `SPAN_KIND_SERVER`
pub const KIND_SERVER: i32 = 2;
/// `STATUS_CODE_ERROR`
pub const STATUS_ERROR: i32 = 2;

/// `Status`
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Status {
    /// [`STATUS_ERROR`]
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// `KeyValue`
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// `AnyValue`
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value.
    #[prost(oneof = "Value", tags = "1, 3")]
    pub value: Option<Value>,
}

/// The kinds of values that are used here.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl KeyValue {
    /// A text. Bytes that are no UTF-8 are replaced: the protocol has texts only.
    pub fn text(key: &str, value: &[u8]) -> KeyValue {
        let value = Value::Text(String::from_utf8_lossy(value).into_owned());
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }

    /// A number.
    pub fn number(key: &str, value: u64) -> KeyValue {
        let value = Value::Number(i64::try_from(value).unwrap_or(i64::MAX));
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}

impl ExportTraceServiceRequest {
    /// A batch.
    pub fn new(resource: Vec<KeyValue>, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = Scope { name: "ironweir".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let resource = Some(Resource { attributes: resource });
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}
