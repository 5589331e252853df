//! Traces on their way out: spans of requests wait in bounded buffers, one for each thread, and leave in batches over OTLP
//! (gRPC) from the service thread. What does not fit is dropped and counted; a collector that is slow or gone costs requests
//! nothing. From: `modules::otel`.

pub mod identifier;
pub mod message;

use crate::log::error::Level;
use crate::log::process_line;
use crate::status::slot::SLOTS;
use crate::status::{Tally, slot};
use message::{ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use tonic::transport::{Channel, Endpoint};

/// How long an export may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the last spans.
pub const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// What `otel_exporter` says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `endpoint`: `http://host:port`.
    pub endpoint: String,
    /// `header`: sent with each export.
    pub headers: Vec<(MetadataKey<Ascii>, MetadataValue<Ascii>)>,
    /// `interval`
    pub interval: Duration,
    /// `batch_size`
    pub batch_size: usize,
    /// `batch_count`
    pub batch_count: usize,
    /// What all spans are of.
    pub resource: Vec<KeyValue>,
}

/// Takes spans and sends them.
#[derive(Debug)]
pub struct Exporter {
    settings: Settings,
    /// A thread's own; locked by another only when it is emptied.
    buffers: Box<[OnceLock<Mutex<Vec<Span>>>]>,
    full: Notify,
    started: AtomicBool,
    /// Spans that were sent, and that were dropped.
    counts: Tally<2>,
}

const SENT: usize = 0;
const DROPPED: usize = 1;

impl Exporter {
    /// An exporter that nobody has started yet.
    pub fn new(settings: Settings) -> Arc<Exporter> {
        Arc::new(Exporter {
            settings,
            buffers: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            full: Notify::new(),
            started: AtomicBool::new(false),
            counts: Tally::new(),
        })
    }

    /// Takes a span, if there is room.
    pub fn push(&self, span: Span) {
        let Some(buffer) = self.buffers.get(slot::mine()) else { return };
        let mut buffer = buffer.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() >= self.settings.batch_size * self.settings.batch_count {
            drop(buffer);
            return self.counts.count(DROPPED);
        }
        buffer.push(span);
        if buffer.len().is_multiple_of(self.settings.batch_size) {
            self.full.notify_one();
        }
    }

    /// All that waits.
    fn take(&self) -> Vec<Span> {
        let mut all = Vec::new();
        for buffer in self.buffers.iter().filter_map(OnceLock::get) {
            all.append(&mut buffer.lock().unwrap_or_else(PoisonError::into_inner));
        }
        all
    }

    /// Spans sent and dropped.
    pub fn counts(&self) -> (u64, u64) {
        let n = self.counts.sums();
        (n[SENT], n[DROPPED])
    }

    async fn export(&self, channel: &Channel) {
        let mut spans = self.take();
        while !spans.is_empty() {
            let rest = spans.split_off(spans.len().min(self.settings.batch_size));
            let (count, batch) = (spans.len() as u64, std::mem::replace(&mut spans, rest));
            match tokio::time::timeout(PATIENCE, self.send(channel, batch)).await {
                Ok(Ok(())) => self.counts.mine().add(SENT, count),
                failed => {
                    self.counts.mine().add(DROPPED, count);
                    let text = match failed {
                        Ok(Err(status)) => format!("{}: {}", status.code(), status.message()),
                        _ => format!("no answer within {} s", PATIENCE.as_secs()),
                    };
                    let endpoint = &self.settings.endpoint;
                    process_line(
                        Level::Error,
                        format_args!("OTel export of {count} spans to {endpoint} failed ({text})"),
                    );
                }
            }
        }
    }

    async fn send(&self, channel: &Channel, spans: Vec<Span>) -> Result<(), tonic::Status> {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|e| tonic::Status::unavailable(reason(&e)))?;
        let message = ExportTraceServiceRequest::new(self.settings.resource.clone(), spans);
        let mut request = tonic::Request::new(message);
        for (name, value) in &self.settings.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        let path = http::uri::PathAndQuery::from_static("/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        let codec = tonic_prost::ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
        client.unary(request, path, codec).await.map(drop)
    }
}

/// The last cause of an error: the first says "transport error".
fn reason(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// Begins to send what an exporter takes, as long as somebody holds it. The second time does nothing.
pub fn start(exporter: &Arc<Exporter>) {
    if exporter.started.swap(true, Relaxed) {
        return;
    }
    let mut all = EXPORTERS.lock().unwrap_or_else(PoisonError::into_inner);
    // Those of configurations before are gone.
    all.retain(|e| e.strong_count() > 0);
    all.push(Arc::downgrade(exporter));
    drop(all);
    let exporter = Arc::downgrade(exporter);
    crate::service::spawn(move || run(exporter));
}

static EXPORTERS: Mutex<Vec<Weak<Exporter>>> = Mutex::new(Vec::new());

async fn run(exporter: Weak<Exporter>) {
    let Some(channel) = exporter.upgrade().and_then(|e| channel(&e.settings)) else { return };
    loop {
        let Some(held) = exporter.upgrade() else { return };
        let _ = tokio::time::timeout(held.settings.interval, held.full.notified()).await;
        let is_last = Arc::strong_count(&held) == 1;
        held.export(&channel).await;
        if is_last {
            return;
        }
    }
}

fn channel(settings: &Settings) -> Option<Channel> {
    match Endpoint::from_shared(settings.endpoint.clone()) {
        Ok(endpoint) => Some(endpoint.connect_timeout(PATIENCE).connect_lazy()),
        Err(e) => {
            process_line(Level::Error, format_args!("OTel endpoint \"{}\" is none ({e})", settings.endpoint));
            None
        }
    }
}

/// Sends what waits, before the process ends. On the control thread: waits.
pub fn flush() {
    let exporters: Vec<_> = {
        let mut all = EXPORTERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.drain(..).filter_map(|e| e.upgrade()).collect()
    };
    if exporters.is_empty() {
        return;
    }
    let (done, ended) = std::sync::mpsc::channel();
    crate::service::spawn(move || async move {
        for exporter in exporters {
            if let Some(channel) = channel(&exporter.settings) {
                exporter.export(&channel).await;
            }
        }
        let _ = done.send(());
    });
    let _ = ended.recv_timeout(LAST_PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let settings = Settings {
            endpoint: String::new(),
            headers: Vec::new(),
            interval: Duration::from_secs(1),
            batch_size: 2,
            batch_count: 2,
            resource: Vec::new(),
        };
        let exporter = Exporter::new(settings);
        (0..6).for_each(|_| exporter.push(Span::default()));
        assert_eq!(exporter.take().len(), 4);
        assert_eq!(exporter.counts(), (0, 2));
    }
}
