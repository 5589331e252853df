//! `ironweir agent`: runs what a controller asks for, one load at a time. A load whose controller is gone ends.

use super::agent_server::{Agent, AgentServer};
use super::etcd::Registration;
use super::message::{ClockReply, ClockRequest, RunEvent, RunRequest, StopReply, StopRequest, TrialRequest};
use super::security::Security;
use super::{Event, MAX_MESSAGE, Part};
use crate::client::now_ns;
use crate::find_max::Trial;
use crate::hold::{self, HoldPlan, HoldRecord, HoldSecond, HoldWatch};
use crate::options::{self, AGENT, Files, Options, STRESS};
use crate::plan::{Part as Share, Plan};
use crate::run::{Watch, run_at};
use crate::sample::Second;
use crate::system::Interrupts;
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{Sender as Queue, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Between two looks for a controller that is gone without a word.
const ALIVE: Duration = Duration::from_secs(2);
/// Events that wait for a controller: at one a second, one that is behind by so many is none.
const EVENTS: usize = 256;
/// Between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command. `arguments` are those behind `agent`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    match options::parse(&AGENT, arguments).and_then(|o| dispatch(&o, version)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("ironweir agent: {}", wire::terminal::lines(&text));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(o: &Options, version: &str) -> Result<(), String> {
    if let Some(text) = AGENT.about(o, version)? {
        print!("{text}");
        return Ok(());
    }
    let listen = o.listen.as_deref().ok_or("--listen ADDRESS:PORT is needed; examples: ironweir agent --help")?;
    let text = if listen.starts_with(':') { format!("0.0.0.0{listen}") } else { listen.to_owned() };
    let address = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?.next().ok_or("no address")?;
    let security = Security::new(o)?;
    if !security.knows_its_controllers() && !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not loopback: --token-file is needed, or --tls-cert, --tls-key and --tls-ca, or anybody could send \
             load from here"
        ));
    }
    serve(o, address, security)
}

fn serve(o: &Options, address: SocketAddr, security: Security) -> Result<(), String> {
    // Before any thread is started: they inherit it.
    let interrupts = Interrupts::open().map_err(|e| format!("signals: {e}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(address).map_err(|e| format!("{address}: {e}"))?;
        let own = incoming.local_addr().map_err(|e| e.to_string())?;
        println!("ironweir agent listens on {own}");
        if !security.knows_its_controllers() {
            eprintln!("ironweir agent: it asks for no token (--token-file): whoever is on this machine may send load from here");
        }
        let registration = Registration::start(o, &security, own)?;
        let service = AgentServer::new(Service::new(security.knows_its_controllers()));
        let service = service.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        let mut server = Server::builder();
        if let Some(tls) = security.server_tls()? {
            server = server.tls_config(tls).map_err(|e| format!("TLS: {}", super::fleet::chain(&e)))?;
        }
        let checked = tonic::service::interceptor::InterceptedService::new(service, move |request: Request<()>| {
            security.check(request.metadata()).map(|()| request)
        });
        let server = server.http2_keepalive_interval(Some(ALIVE)).http2_keepalive_timeout(Some(ALIVE));
        let ended = tokio::select! {
            served = server.serve_with_incoming(checked, incoming) => served.map_err(|e| e.to_string()),
            () = raised(&interrupts) => Ok(()),
        };
        if let Some(registration) = registration {
            registration.end().await;
        }
        ended
    })
}

async fn raised(interrupts: &Interrupts) {
    while !interrupts.is_raised() {
        tokio::time::sleep(LOOK).await;
    }
}

struct Service {
    is_busy: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Scripts can do what this user can: only for those who have shown who they are.
    runs_scripts: bool,
}

impl Service {
    fn new(runs_scripts: bool) -> Service {
        Service { is_busy: Arc::default(), stop: Arc::default(), runs_scripts }
    }
}

#[tonic::async_trait]
impl Agent for Service {
    type RunStream = ReceiverStream<Result<RunEvent, Status>>;

    async fn clock(&self, _: Request<ClockRequest>) -> Result<Response<ClockReply>, Status> {
        Ok(Response::new(ClockReply { now_ns: now_ns() }))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(Response::new(StopReply {}))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        let request = request.into_inner();
        let options = read(&request, self.runs_scripts).map_err(Status::invalid_argument)?;
        if self.is_busy.swap(true, Ordering::Relaxed) {
            return Err(Status::resource_exhausted("this agent has a run already"));
        }
        self.stop.store(false, Ordering::Relaxed);
        let (out, events) = channel(EVENTS);
        let (is_busy, stop) = (self.is_busy.clone(), self.stop.clone());
        std::thread::spawn(move || {
            let mut sender = Sender { out, stop, is_broken: false };
            let part = Share { index: request.index as usize, of: request.of.max(1) as usize };
            match options.hold {
                Some(count) => {
                    let held = HoldPlan::new(&options, count, part);
                    let held = held.and_then(|plan| hold::run(&plan, &mut sender, Some(request.start_ns)));
                    is_busy.store(false, Ordering::Relaxed);
                    sender.end::<HoldSecond, HoldRecord>(held);
                }
                None => {
                    let done = carry(&request, &options, part, &mut sender);
                    is_busy.store(false, Ordering::Relaxed);
                    sender.end::<Second, Part>(done);
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

/// The command line of a controller, with the files that it has sent.
fn read(request: &RunRequest, runs_scripts: bool) -> Result<Options, String> {
    let mut options = options::parse(&STRESS, request.arguments.iter().cloned())?;
    if options.script.is_some() && !runs_scripts {
        return Err("it asks for no token and no certificate, and so runs no scripts".to_owned());
    }
    let sent = request.files.iter().map(|file| ((&file.path).into(), file.content.clone()));
    options.files = Files::Sent(sent.collect());
    Ok(options)
}

fn carry(request: &RunRequest, options: &Options, part: Share, sender: &mut Sender) -> Result<Part, String> {
    let mut plan = Plan::new(options)?;
    if let Some(TrialRequest { rate, length_ns }) = request.trial {
        plan = Trial { rate, length: Duration::from_nanos(length_ns) }.of(&plan);
    }
    run_at(&plan.part(part)?, sender, Some(request.start_ns)).map(Part::new)
}

/// Sends what a load tells; ends it when nobody listens any more.
struct Sender {
    out: Queue<Result<RunEvent, Status>>,
    stop: Arc<AtomicBool>,
    /// The controller has stopped taking events.
    is_broken: bool,
}

impl Sender {
    fn send<S: Serialize, P: Serialize>(&mut self, event: &Event<S, P>) {
        let json = serde_json::to_vec(event).unwrap_or_default();
        self.is_broken |= self.out.try_send(Ok(RunEvent { json })).is_err();
    }

    fn end<S: Serialize, P: Serialize>(&mut self, outcome: Result<P, String>) {
        self.send(&match outcome {
            Ok(part) => Event::<S, P>::End(Box::new(part)),
            Err(text) => Event::Failed(text),
        });
    }

    fn is_wanted(&self) -> bool {
        !self.is_broken && !self.out.is_closed() && !self.stop.load(Ordering::Relaxed)
    }
}

impl Watch for Sender {
    fn second(&mut self, second: &Second) {
        self.send(&Event::<_, Part>::Second(second.clone()));
    }

    fn goes_on(&mut self) -> bool {
        self.is_wanted()
    }
}

impl HoldWatch for Sender {
    fn second(&mut self, second: &HoldSecond) {
        self.send(&Event::<_, HoldRecord>::Second(*second));
    }

    fn goes_on(&mut self) -> bool {
        self.is_wanted()
    }
}
