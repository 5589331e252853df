//! The controller: measures the agents' clocks, starts them together, merges what they send.

use super::agent_client::AgentClient;
use super::message::{ClockRequest, RunRequest, StopRequest};
use super::{Event, MAX_MESSAGE, Part, TOKEN_HEADER, read_token};
use crate::client::now_ns;
use crate::options::Options;
use crate::plan::Plan;
use crate::run::{Record, Watch, wanted};
use crate::sample::{Sample, Second};
use crate::verdict::{Evidence, judge};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

/// Looks at each agent's clock; the fastest answer counts.
const CLOCK_LOOKS: usize = 8;
/// From the last preparation to the common start: agents open their connections meanwhile.
const LEAD: Duration = Duration::from_secs(1);
/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An agent that does not answer a ping for so long is lost.
const ALIVE: Duration = Duration::from_secs(2);
/// Between two looks at whether the user ended the run.
const LOOK: Duration = Duration::from_millis(50);

/// One agent.
struct Remote {
    name: String,
    client: AgentClient<Channel>,
    /// Its clock minus ours, nanoseconds, and how far that may be off.
    offset_ns: i128,
    doubt_ns: u64,
}

/// What came of an agent.
#[derive(Default)]
struct Outcome {
    part: Option<Part>,
    lost: Option<String>,
    seconds: Vec<Second>,
}

/// Runs a plan on agents, as `--agents` lists them.
///
/// # Errors
/// If it could not begin.
pub fn run(plan: &Plan, options: &Options, list: &str, watch: &mut dyn Watch) -> Result<Record, String> {
    let token = options.token_file.as_deref().map(read_token).transpose()?;
    let token = token
        .map(|t| format!("Bearer {t}").parse().map_err(|_| "the token is no header value".to_owned()))
        .transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut remotes = Vec::new();
        for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            remotes.push(connect(name, token.as_ref()).await.map_err(|e| format!("agent {name}: {e}"))?);
        }
        if remotes.is_empty() || remotes.len() > plan.connections {
            return Err(format!("{} agents for {} connections", remotes.len(), plan.connections));
        }
        conduct(plan, options, remotes, token.as_ref(), watch).await
    })
}

fn with_token<T>(message: T, token: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN_HEADER, token.clone());
    }
    request
}

async fn connect(name: &str, token: Option<&MetadataValue<Ascii>>) -> Result<Remote, String> {
    let endpoint = Endpoint::from_shared(format!("http://{name}")).map_err(|e| e.to_string())?;
    let endpoint = endpoint.connect_timeout(PATIENCE).http2_keep_alive_interval(ALIVE).keep_alive_timeout(ALIVE);
    let channel = endpoint.connect().await.map_err(|e| format!("{e}: {}", cause(&e)))?;
    let mut client =
        AgentClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
    let (mut best, mut offset_ns) = (u64::MAX, 0);
    for _ in 0..CLOCK_LOOKS {
        let before = now_ns();
        let reply = client.clock(with_token(ClockRequest {}, token)).await.map_err(|s| s.message().to_owned())?;
        let trip = now_ns() - before;
        if trip < best {
            best = trip;
            offset_ns = i128::from(reply.into_inner().now_ns) - i128::from(before + trip / 2);
        }
    }
    Ok(Remote { name: name.to_owned(), client, offset_ns, doubt_ns: best / 2 })
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map(|e| e.to_string()).unwrap_or_default()
}

async fn conduct(
    plan: &Plan,
    options: &Options,
    remotes: Vec<Remote>,
    token: Option<&MetadataValue<Ascii>>,
    watch: &mut dyn Watch,
) -> Result<Record, String> {
    let start = now_ns() + LEAD.as_nanos() as u64;
    let began = SystemTime::now() + LEAD;
    let (out, mut events) = unbounded_channel();
    for (index, remote) in remotes.iter().enumerate() {
        let start_ns = u64::try_from(i128::from(start) + remote.offset_ns).map_err(|_| "a clock before its boot")?;
        let request = RunRequest {
            arguments: options.arguments.clone(),
            index: index as u32,
            of: remotes.len() as u32,
            start_ns,
        };
        tokio::spawn(listen(index, remote.client.clone(), with_token(request, token), out.clone()));
    }
    drop(out);
    watch.start();
    let outcomes = collect(&remotes, &mut events, token, watch).await;
    merge(plan, &remotes, outcomes, began)
}

/// Passes on what one agent sends; `None` at its end.
async fn listen(
    index: usize,
    mut client: AgentClient<Channel>,
    request: Request<RunRequest>,
    out: UnboundedSender<(usize, Event)>,
) {
    let fail = |text: String| {
        let _ = out.send((index, Event::Failed(text)));
    };
    let mut stream = match client.run(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return fail(status.message().to_owned()),
    };
    loop {
        match stream.message().await {
            Ok(Some(event)) => match serde_json::from_slice(&event.json) {
                Ok(event) => {
                    let _ = out.send((index, event));
                }
                Err(e) => return fail(format!("not understood: {e}")),
            },
            Ok(None) => return fail("it ended without a word".to_owned()),
            Err(status) => return fail(status.message().to_owned()),
        }
    }
}

async fn collect(
    remotes: &[Remote],
    events: &mut UnboundedReceiver<(usize, Event)>,
    token: Option<&MetadataValue<Ascii>>,
    watch: &mut dyn Watch,
) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = remotes.iter().map(|_| Outcome::default()).collect();
    let mut is_stopping = false;
    while outcomes.iter().any(|o| o.part.is_none() && o.lost.is_none()) {
        if let Ok(Some((index, event))) = tokio::time::timeout(LOOK, events.recv()).await {
            let outcome = &mut outcomes[index];
            match event {
                Event::Second(second) => {
                    let number = second.number;
                    outcome.seconds.push(second);
                    tell(&outcomes, number, watch);
                }
                Event::End(part) => outcome.part = Some(*part),
                Event::Failed(text) if outcome.part.is_none() => outcome.lost = Some(text),
                Event::Failed(_) => {}
            }
        }
        if !watch.goes_on() && !is_stopping {
            is_stopping = true;
            for remote in remotes {
                let mut client = remote.client.clone();
                let request = with_token(StopRequest {}, token);
                tokio::spawn(async move { client.stop(request).await.map(|_| ()) });
            }
        }
    }
    outcomes
}

/// Tells of a second when all agents that are left have sent theirs.
fn tell(outcomes: &[Outcome], number: u32, watch: &mut dyn Watch) {
    let of = |o: &Outcome| o.seconds.iter().find(|s| s.number == number).cloned();
    if outcomes.iter().all(|o| o.lost.is_some() || o.seconds.iter().any(|s| s.number == number)) {
        let mut all = Second { number, ..Second::default() };
        outcomes.iter().filter_map(of).for_each(|s| all.merge(&s));
        watch.second(&all);
    }
}

fn merge(plan: &Plan, remotes: &[Remote], outcomes: Vec<Outcome>, began: SystemTime) -> Result<Record, String> {
    let mut sample = Sample::new(plan.urls.len());
    let mut series: BTreeMap<u32, Second> = BTreeMap::new();
    let mut evidence = Evidence { connections: plan.connections as u64, ..Evidence::default() };
    let (mut on_time, mut seconds, mut lag_ns, mut lost) = (0, 0.0_f64, 0, Vec::new());
    for (remote, outcome) in remotes.iter().zip(&outcomes) {
        for second in &outcome.seconds {
            let number = second.number;
            series.entry(number).or_insert_with(|| Second { number, ..Second::default() }).merge(second);
        }
        if let Some(part) = &outcome.part {
            sample.merge(&part.sample);
            on_time += part.on_time;
            seconds = seconds.max(part.seconds);
            lag_ns = lag_ns.max(part.start_lag_ns + remote.doubt_ns);
            evidence.add(&part.evidence);
            continue;
        }
        // What it carried before it was lost is known by its seconds.
        let carried: u64 = outcome.seconds.iter().map(|s| s.answers).sum();
        on_time += carried;
        sample.answers += carried;
        outcome.seconds.iter().for_each(|s| sample.latency.merge(&s.latency));
        let why = outcome.lost.as_deref().unwrap_or_default();
        lost.push(format!(
            "agent {} was lost ({why}) after {} s and {carried} answers",
            remote.name,
            outcome.seconds.len()
        ));
    }
    if outcomes.iter().all(|o| o.part.is_none()) && sample.answers == 0 {
        return Err(lost.join("; "));
    }
    evidence.wanted = wanted(plan, seconds);
    evidence.on_time = on_time;
    evidence.seconds = seconds;
    let mut verdict = judge(&sample, &evidence);
    verdict.evidence.push(format!(
        "{} agents began within {} of each other",
        remotes.len(),
        crate::report::time(lag_ns as f64)
    ));
    let partial = (!lost.is_empty()).then(|| lost.join("; "));
    let series = series.into_values().collect();
    Ok(Record { began, seconds, sample, on_time, series, evidence, verdict, partial, start_lag_ns: lag_ns })
}
