//! `ironweir agent`: runs what a controller asks for, one run at a time. A run whose controller is gone ends.

use super::agent_server::{Agent, AgentServer};
use super::message::{ClockReply, ClockRequest, RunEvent, RunRequest, StopReply, StopRequest};
use super::{Event, MAX_MESSAGE, Part, TOKEN_HEADER, read_token};
use crate::client::now_ns;
use crate::options;
use crate::plan::{Part as Share, Plan};
use crate::run::{Watch, run_at};
use crate::sample::Second;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

const USAGE: &str = "Usage: ironweir agent --listen ADDRESS:PORT [--token-file FILE]

Puts load where a controller (ironweir stress --agents ADDRESS:PORT,...) says. Without a token it listens on loopback only:
whoever can reach it can send load anywhere.";
/// Between two looks for a controller that is gone without a word.
const ALIVE: Duration = Duration::from_secs(2);

/// Runs the command. `arguments` are those behind `agent`.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    match parse(arguments).and_then(|o| o.map_or(Ok(()), |(address, token)| serve(address, token))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("ironweir agent: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Address and token; nothing: help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<(SocketAddr, Option<String>)>, String> {
    let (mut listen, mut token) = (None, None);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--listen" => listen = Some(value()?),
            "--token-file" => token = Some(read_token(value()?.as_ref())?),
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    let listen = listen.ok_or(USAGE)?;
    let text = if listen.starts_with(':') { format!("0.0.0.0{listen}") } else { listen };
    let address = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?.next().ok_or("no address")?;
    if token.is_none() && !address.ip().is_loopback() {
        return Err(format!("{address} is not loopback: --token-file is needed, or anybody could send load from here"));
    }
    Ok(Some((address, token)))
}

fn serve(address: SocketAddr, token: Option<String>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(address).map_err(|e| format!("{address}: {e}"))?;
        let own = incoming.local_addr().map_err(|e| e.to_string())?;
        println!("ironweir agent listens on {own}");
        let service = AgentServer::new(Service::default());
        let service = service.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        let checked = tonic::service::interceptor::InterceptedService::new(service, move |request: Request<()>| {
            let given = request.metadata().get(TOKEN_HEADER).map(|v| v.as_bytes().to_vec());
            match &token {
                Some(token) if !is_same(&given.unwrap_or_default(), format!("Bearer {token}").as_bytes()) => {
                    Err(Status::unauthenticated("the token is not this agent's"))
                }
                _ => Ok(request),
            }
        });
        let server = Server::builder().http2_keepalive_interval(Some(ALIVE)).http2_keepalive_timeout(Some(ALIVE));
        server.serve_with_incoming(checked, incoming).await.map_err(|e| e.to_string())
    })
}

/// Takes the same time whatever differs.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

#[derive(Default)]
struct Service {
    is_busy: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Agent for Service {
    type RunStream = UnboundedReceiverStream<Result<RunEvent, Status>>;

    async fn clock(&self, _: Request<ClockRequest>) -> Result<Response<ClockReply>, Status> {
        Ok(Response::new(ClockReply { now_ns: now_ns() }))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(Response::new(StopReply {}))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        if self.is_busy.swap(true, Ordering::Relaxed) {
            return Err(Status::resource_exhausted("this agent has a run already"));
        }
        self.stop.store(false, Ordering::Relaxed);
        let (out, events) = unbounded_channel();
        let (is_busy, stop, request) = (self.is_busy.clone(), self.stop.clone(), request.into_inner());
        std::thread::spawn(move || {
            let mut sender = Sender { out, stop };
            let last = match part(&request, &mut sender) {
                Ok(part) => Event::End(Box::new(part)),
                Err(text) => Event::Failed(text),
            };
            is_busy.store(false, Ordering::Relaxed);
            sender.send(&last);
        });
        Ok(Response::new(UnboundedReceiverStream::new(events)))
    }
}

fn part(request: &RunRequest, watch: &mut Sender) -> Result<Part, String> {
    let options = options::parse(request.arguments.iter().cloned())?;
    let plan = Plan::new(&options)?.part(Share { index: request.index as usize, of: request.of.max(1) as usize })?;
    run_at(&plan, watch, Some(request.start_ns)).map(Part::new)
}

/// Sends what the run tells; ends it when nobody listens any more.
struct Sender {
    out: UnboundedSender<Result<RunEvent, Status>>,
    stop: Arc<AtomicBool>,
}

impl Sender {
    fn send(&mut self, event: &Event) {
        let json = serde_json::to_vec(event).unwrap_or_default();
        let _ = self.out.send(Ok(RunEvent { json }));
    }
}

impl Watch for Sender {
    fn second(&mut self, second: &Second) {
        self.send(&Event::Second(second.clone()));
    }

    fn goes_on(&mut self) -> bool {
        !self.out.is_closed() && !self.stop.load(Ordering::Relaxed)
    }
}
