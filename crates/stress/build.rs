//! Writes the agents' gRPC service, and what is used of etcd's. Without protoc: the messages are Rust (`agent/message.rs`,
//! `agent/etcd/message.rs`).

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

/// A method of a service whose messages stand in `module`.
fn method(module: &str, [name, route, input, output]: [&str; 4]) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::agent::{module}::{input}"))
        .output_type(format!("crate::agent::{module}::{output}"))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    let own = |names| method("message", names);
    let service = Service::builder()
        .name("Agent")
        .package("ironweir")
        .method(own(["clock", "Clock", "ClockRequest", "ClockReply"]).build())
        .method(own(["run", "Run", "RunRequest", "RunEvent"]).server_streaming().build())
        .method(own(["stop", "Stop", "StopRequest", "StopReply"]).build())
        .build();
    Builder::new().compile(&[service]);

    let etcd = |names| method("etcd::message", names);
    let service = |name: &str| Service::builder().name(name).package("etcdserverpb");
    let services = [
        service("KV")
            .method(etcd(["range", "Range", "RangeRequest", "RangeResponse"]).build())
            .method(etcd(["put", "Put", "PutRequest", "PutResponse"]).build())
            .method(etcd(["txn", "Txn", "TxnRequest", "TxnResponse"]).build())
            .build(),
        service("Lease")
            .method(etcd(["grant", "LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse"]).build())
            .method(etcd(["revoke", "LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"]).build())
            .method(
                etcd(["keep_alive", "LeaseKeepAlive", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse"])
                    .client_streaming()
                    .server_streaming()
                    .build(),
            )
            .build(),
        service("Watch")
            .method(
                etcd(["watch", "Watch", "WatchRequest", "WatchResponse"]).client_streaming().server_streaming().build(),
            )
            .build(),
    ];
    Builder::new().build_server(false).compile(&services);
}
