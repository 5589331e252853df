//! What is used of etcd's API v3 (`rpc.proto`, `kv.proto` of etcd 3.4): its numbers, and only the fields that matter here.
//! Where etcd has a choice of messages, the one that is used stands alone: on the wire that is the same.

/// `ResponseHeader`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    /// The store's revision.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// `mvccpb.KeyValue`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Its value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

/// All keys from `key` up to, not with, `range_end`; without that, one key.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Behind the last.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// At most so many.
    #[prost(int64, tag = "3")]
    pub limit: i64,
}

/// The keys.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeResponse {
    /// At which revision.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// In order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
}

/// Sets a key.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PutRequest {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// To what.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// It goes when this lease ends.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// It is set.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PutResponse {}

/// `Compare`: the key was created at this revision; 0: it is not there.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CompareCreated {
    /// `CompareResult`: 0 is EQUAL.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// `CompareTarget`: 1 is CREATE.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// Present even if it is 0: it says what is compared.
    #[prost(int64, optional, tag = "5")]
    pub create_revision: Option<i64>,
}

/// `RequestOp`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestOp {
    /// Reads.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeRequest>,
    /// Writes.
    #[prost(message, optional, tag = "2")]
    pub put: Option<PutRequest>,
}

/// If all comparisons hold, one list is done, else the other; at once.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnRequest {
    /// Comparisons.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<CompareCreated>,
    /// If they hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// If not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// `ResponseOp`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseOp {
    /// What was read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// What was done.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnResponse {
    /// The comparisons held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// In the order of the requests.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

/// A lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseGrantResponse {
    /// Its number.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// Ends a lease, with its keys.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseRevokeRequest {
    /// Which.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// It has ended.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseRevokeResponse {}

/// Begins a lease's time anew.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseKeepAliveRequest {
    /// Which.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// It has begun anew.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseKeepAliveResponse {
    /// Seconds; 0: the lease has ended.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Asks for changes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WatchRequest {
    /// A new watch.
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreateRequest>,
}

/// A new watch.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WatchCreateRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Behind the last.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// From which revision on.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

/// Changes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WatchResponse {
    /// The watch has ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// In their order.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// `mvccpb.Event`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Event {
    /// 0: set; 1: deleted, or its lease has ended.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Which.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}
