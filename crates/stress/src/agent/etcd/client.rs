//! Calls of etcd, each with its time-out, and errors as sentences.

use super::PATIENCE;
use super::message::{
    CompareCreated, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::wire_service::k_v_client::KVClient;
use super::wire_service::lease_client::LeaseClient;
use super::wire_service::watch_client::WatchClient;
use crate::agent::fleet::chain;
use crate::agent::security::Security;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// `CompareTarget.CREATE`
const CREATED: i32 = 1;
/// Agents of one cluster: more than any lab has machines.
const MAX_AGENTS: i64 = 10_000;

/// A connection.
#[derive(Clone)]
pub(super) struct Etcd {
    kv: KVClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: WatchClient<Channel>,
}

/// A key, and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Waits for a call.
async fn call<T>(answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, String> {
    let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(|_| format!("no answer within {PATIENCE:?}"))?;
    answer.map(Response::into_inner).map_err(|status| status.message().to_owned())
}

/// Behind all keys that begin with `prefix`: its last byte is no 0xff.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

impl Etcd {
    /// `urls` with commas: the members of one etcd.
    pub(super) async fn connect(urls: &str, security: &Security) -> Result<Etcd, String> {
        let urls: Vec<&str> = urls.split(',').map(str::trim).filter(|u| !u.is_empty()).collect();
        let mut endpoints = Vec::with_capacity(urls.len());
        for url in &urls {
            endpoints.push(security.endpoint_of(url)?.connect_timeout(PATIENCE));
        }
        let channel = match endpoints.pop() {
            None => return Err("--etcd http://host:2379".to_owned()),
            Some(only) if endpoints.is_empty() => only.connect().await.map_err(|e| chain(&e))?,
            Some(last) => Channel::balance_list(endpoints.into_iter().chain([last])),
        };
        let (kv, lease) = (KVClient::new(channel.clone()), LeaseClient::new(channel.clone()));
        Ok(Etcd { kv, lease, watch: WatchClient::new(channel) })
    }

    /// A lease that ends by itself after `ttl`.
    pub(super) async fn grant(&mut self, ttl: Duration) -> Result<i64, String> {
        let request = LeaseGrantRequest { ttl: ttl.as_secs() as i64 };
        call(self.lease.grant(request)).await.map(|lease| lease.id)
    }

    pub(super) async fn revoke(&mut self, id: i64) -> Result<(), String> {
        call(self.lease.revoke(LeaseRevokeRequest { id })).await.map(|_| ())
    }

    /// The way on which a lease is renewed.
    pub(super) async fn beats(&mut self, id: i64) -> Result<Beats, String> {
        let (out, requests) = channel(1);
        // etcd answers with the head of its stream only once something is asked.
        out.send(LeaseKeepAliveRequest { id }).await.map_err(|e| e.to_string())?;
        let answers = call(self.lease.keep_alive(ReceiverStream::new(requests))).await?;
        let mut beats = Beats { id, out, answers };
        beats.hear().await?;
        Ok(beats)
    }

    pub(super) async fn put(&mut self, (key, value): Pair, lease: i64) -> Result<(), String> {
        call(self.kv.put(PutRequest { key, value, lease })).await.map(|_| ())
    }

    /// Sets a key that is not there; the value that it has, if it is.
    pub(super) async fn create(&mut self, (key, value): Pair, lease: i64) -> Result<Option<Vec<u8>>, String> {
        let is_new = CompareCreated { result: 0, target: CREATED, key: key.clone(), create_revision: Some(0) };
        let read = RangeRequest { key: key.clone(), range_end: Vec::new(), limit: 1 };
        let answer = call(self.kv.txn(TxnRequest {
            compare: vec![is_new],
            success: vec![RequestOp { range: None, put: Some(PutRequest { key, value, lease }) }],
            failure: vec![RequestOp { range: Some(read), put: None }],
        }))
        .await?;
        if answer.succeeded {
            return Ok(None);
        }
        let found = answer.responses.into_iter().next().and_then(|r| r.range?.kvs.into_iter().next());
        Ok(Some(found.map(|kv| kv.value).unwrap_or_default()))
    }

    /// All keys with a prefix, and the revision at which they were so.
    pub(super) async fn list(&mut self, prefix: &[u8]) -> Result<(Vec<Pair>, i64), String> {
        let request = RangeRequest { key: prefix.to_vec(), range_end: behind(prefix), limit: MAX_AGENTS };
        let answer = call(self.kv.range(request)).await?;
        let revision = answer.header.map_or(0, |h| h.revision);
        Ok((answer.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect(), revision))
    }

    /// Changes of keys with a prefix, from a revision on.
    pub(super) async fn watch(&mut self, prefix: &[u8], start_revision: i64) -> Result<Changes, String> {
        let (out, requests) = channel(1);
        let create = WatchCreateRequest { key: prefix.to_vec(), range_end: behind(prefix), start_revision };
        out.send(WatchRequest { create: Some(create) }).await.map_err(|e| e.to_string())?;
        let answers = call(self.watch.watch(ReceiverStream::new(requests))).await?;
        Ok(Changes { _out: out, answers })
    }
}

/// See [`Etcd::beats`].
pub(super) struct Beats {
    id: i64,
    out: Sender<LeaseKeepAliveRequest>,
    answers: Streaming<LeaseKeepAliveResponse>,
}

impl Beats {
    /// Begins the lease's time anew.
    pub(super) async fn beat(&mut self) -> Result<(), String> {
        self.out.send(LeaseKeepAliveRequest { id: self.id }).await.map_err(|_| "the stream has ended".to_owned())?;
        self.hear().await
    }

    async fn hear(&mut self) -> Result<(), String> {
        let answer = tokio::time::timeout(PATIENCE, self.answers.message()).await;
        match answer.map_err(|_| format!("no answer within {PATIENCE:?}"))?.map_err(|s| s.message().to_owned())? {
            Some(answer) if answer.ttl > 0 => Ok(()),
            Some(_) => Err("the lease has ended".to_owned()),
            None => Err("the stream has ended".to_owned()),
        }
    }
}

/// See [`Etcd::watch`].
pub(super) struct Changes {
    /// While it is there, the watch goes on.
    _out: Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Changes {
    /// The next changes: keys, and whether they are there now.
    pub(super) async fn next(&mut self) -> Result<Vec<(Vec<u8>, bool)>, String> {
        match self.answers.message().await.map_err(|s| s.message().to_owned())? {
            Some(answer) if !answer.canceled => {
                let change = |e: super::message::Event| Some((e.kv?.key, e.kind == 0));
                Ok(answer.events.into_iter().filter_map(change).collect())
            }
            _ => Err("the watch has ended".to_owned()),
        }
    }
}
