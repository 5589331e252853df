//! The messages between controller and agents (gRPC, protobuf).

/// Asks for the agent's clock.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockRequest {}

/// The agent's monotonic clock.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockReply {
    /// Nanoseconds.
    #[prost(uint64, tag = "1")]
    pub now_ns: u64,
}

/// A part of a run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunRequest {
    /// The command line behind `stress`; what is about output is ignored.
    #[prost(string, repeated, tag = "1")]
    pub arguments: Vec<String>,
    /// Which part, from 0.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Of how many.
    #[prost(uint32, tag = "3")]
    pub of: u32,
    /// When it begins, by the agent's monotonic clock, nanoseconds.
    #[prost(uint64, tag = "4")]
    pub start_ns: u64,
    /// A try of `--find-max`.
    #[prost(message, optional, tag = "5")]
    pub trial: Option<TrialRequest>,
    /// The files that the command line names.
    #[prost(message, repeated, tag = "6")]
    pub files: Vec<SentFile>,
}

/// What a try replaces of the command line.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TrialRequest {
    /// Requests a second over all agents; none: as fast as it goes.
    #[prost(double, optional, tag = "1")]
    pub rate: Option<f64>,
    /// Nanoseconds.
    #[prost(uint64, tag = "2")]
    pub length_ns: u64,
}

/// A file of the controller's.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SentFile {
    /// As the command line has it.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its content.
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

/// Something of a run: an `Event` as JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunEvent {
    /// UTF-8.
    #[prost(bytes = "vec", tag = "1")]
    pub json: Vec<u8>,
}

/// Ends the run; what it carried still comes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StopRequest {}

/// It will end.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StopReply {}
