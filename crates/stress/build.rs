//! Writes the client and the server of the agents' gRPC service. Without protoc: the messages are Rust (`agent/message.rs`).

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::agent::message::{input}"))
            .output_type(format!("crate::agent::message::{output}"))
            .codec_path("tonic_prost::ProstCodec")
    };
    let service = Service::builder()
        .name("Agent")
        .package("ironweir")
        .method(method("clock", "Clock", "ClockRequest", "ClockReply").build())
        .method(method("run", "Run", "RunRequest", "RunEvent").server_streaming().build())
        .method(method("stop", "Stop", "StopRequest", "StopReply").build())
        .build();
    Builder::new().compile(&[service]);
}
