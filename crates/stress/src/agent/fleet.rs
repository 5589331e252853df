//! The controller's side: finds and connects the agents, measures their clocks, starts them together, hears what they send,
//! and stops them. What they sent is put together in `merge`.

use super::agent_client::AgentClient;
use super::etcd::Membership;
use super::message::{ClockRequest, RunRequest, SentFile, StopRequest, TrialRequest};
use super::security::Security;
use super::{Event, MAX_MESSAGE, Slice, merge};
use crate::client::now_ns;
use crate::find_max::Trial;
use crate::hold::{HoldPlan, HoldRecord, HoldWatch};
use crate::options::Options;
use crate::plan::{Plan, TOO_FEW};
use crate::run::{Record, Watch};
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::transport::Channel;

/// Looks at each agent's clock; the fastest answer counts.
const CLOCK_LOOKS: usize = 8;
/// From the last preparation to the common start: agents open their connections meanwhile.
const LEAD: Duration = Duration::from_secs(1);
/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An agent that does not answer a ping for so long is lost. In etcd its lease says so.
const ALIVE: Duration = Duration::from_secs(2);
/// The same for agents of a cluster: long enough that the lease decides.
const ALIVE_IN_CLUSTER: Duration = Duration::from_secs(15);
/// Between two looks at whether the user ended the run, and at the cluster.
const LOOK: Duration = Duration::from_millis(50);
/// Events that wait for the controller.
const EVENTS: usize = 256;
/// An agent that has not sent its part so long after it was told to stop is given up: Ctrl-C takes less than a second.
const STOPPING: Duration = Duration::from_millis(700);

/// Connected agents.
pub struct Fleet {
    runtime: Runtime,
    remotes: Vec<Remote>,
    security: Security,
    /// Agents that were found in etcd: who is left of them, and our lock.
    membership: Option<Membership>,
}

/// One agent.
pub(super) struct Remote {
    pub name: String,
    client: AgentClient<Channel>,
    /// How far the look at its clock may be off, nanoseconds.
    pub doubt_ns: u64,
}

/// What came of an agent.
pub(super) struct Outcome<S, P> {
    pub part: Option<P>,
    pub lost: Option<String>,
    pub seconds: Vec<S>,
}

impl<S, P> Default for Outcome<S, P> {
    fn default() -> Self {
        Outcome { part: None, lost: None, seconds: Vec::new() }
    }
}

impl<S, P> Outcome<S, P> {
    fn is_open(&self) -> bool {
        self.part.is_none() && self.lost.is_none()
    }
}

impl Fleet {
    /// Connects the agents of `--agents` or of etcd's cluster; nothing if neither is asked for.
    ///
    /// # Errors
    /// If one cannot be reached, or another run has the cluster.
    pub fn gather(options: &Options) -> Result<Option<Fleet>, String> {
        let security = Security::new(options)?;
        let (names, membership) = match (&options.agents, &options.etcd) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err("--agents and --etcd both say which agents".to_owned()),
            (Some(list), None) => {
                let names = list.split(',').map(str::trim).filter(|n| !n.is_empty());
                (names.map(str::to_owned).collect::<Vec<_>>(), None)
            }
            (None, Some(_)) => {
                let (names, membership) = Membership::join(options, &security)?;
                (names, Some(membership))
            }
        };
        if names.is_empty() {
            return Err("--agents names none".to_owned());
        }
        let alive = if membership.is_some() { ALIVE_IN_CLUSTER } else { ALIVE };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let remotes = runtime.block_on(async {
            let mut remotes = Vec::with_capacity(names.len());
            for name in names {
                let client = connect(&security, &name, alive).await.map_err(|e| format!("agent {name}: {e}"))?;
                remotes.push(Remote { name, client, doubt_ns: 0 });
            }
            Ok::<_, String>(remotes)
        })?;
        Ok(Some(Fleet { runtime, remotes, security, membership }))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.remotes.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.remotes.is_empty()
    }

    /// Runs a plan, or a try of it.
    ///
    /// # Errors
    /// If no agent could run it.
    pub fn run(
        &mut self,
        plan: &Plan,
        options: &Options,
        trial: Option<Trial>,
        watch: &mut dyn Watch,
    ) -> Result<Record, String> {
        let began = SystemTime::now() + LEAD;
        watch.start();
        let watch = std::cell::RefCell::new(watch);
        let outcomes = self.conduct(
            plan.connections,
            options,
            trial,
            |second| watch.borrow_mut().second(second),
            || watch.borrow_mut().goes_on(),
        )?;
        let plan = trial.map_or_else(|| plan.clone(), |t| t.of(plan));
        let mut record = merge::runs(&plan, &self.remotes, outcomes, began)?;
        record.was_ended = !watch.into_inner().goes_on();
        record.partial = self.with_lock(record.partial);
        Ok(record)
    }

    /// Holds connections.
    ///
    /// # Errors
    /// If no agent could.
    pub fn hold(
        &mut self,
        plan: &HoldPlan,
        options: &Options,
        watch: &mut dyn HoldWatch,
    ) -> Result<HoldRecord, String> {
        let watch = std::cell::RefCell::new(watch);
        let outcomes = self.conduct(
            plan.count,
            options,
            None,
            |second| watch.borrow_mut().second(second),
            || watch.borrow_mut().goes_on(),
        )?;
        let mut record = merge::holds(plan, &self.remotes, outcomes)?;
        record.partial = self.with_lock(record.partial);
        Ok(record)
    }

    /// What is wrong with a result, and with the lock that it was measured under.
    fn with_lock(&self, partial: Option<String>) -> Option<String> {
        let lock = self.membership.as_ref().and_then(Membership::lost_lock);
        let both: Vec<String> = [lock, partial].into_iter().flatten().collect();
        (!both.is_empty()).then(|| both.join("; "))
    }

    /// Starts all agents together and hears them until all have ended or are lost.
    fn conduct<S: Slice + DeserializeOwned + Send + 'static, P: DeserializeOwned + Send + 'static>(
        &mut self,
        connections: usize,
        options: &Options,
        trial: Option<Trial>,
        second: impl FnMut(&S),
        goes_on: impl FnMut() -> bool,
    ) -> Result<Vec<Outcome<S, P>>, String> {
        if self.remotes.len() > connections {
            return Err(TOO_FEW.to_owned());
        }
        let files = options.files.gather(options.sendable())?;
        let files = files.into_iter().map(|(path, content)| SentFile { path: path.display().to_string(), content });
        let request = RunRequest {
            arguments: options.arguments.clone(),
            index: 0,
            of: self.remotes.len() as u32,
            start_ns: 0,
            trial: trial.map(|t| TrialRequest { rate: t.rate, length_ns: t.length.as_nanos() as u64 }),
            files: files.collect(),
        };
        let Fleet { runtime, remotes, security, membership } = self;
        runtime.block_on(async {
            let mut offsets = Vec::with_capacity(remotes.len());
            for remote in remotes.iter_mut() {
                offsets.push(remote.look_at_clock(security).await.map_err(|e| format!("agent {}: {e}", remote.name))?);
            }
            let start = now_ns() + LEAD.as_nanos() as u64;
            let (out, events) = channel(EVENTS);
            for (index, (remote, offset)) in remotes.iter().zip(offsets).enumerate() {
                let start_ns = u64::try_from(i128::from(start) + offset).map_err(|_| "a clock before its boot")?;
                let request = RunRequest { index: index as u32, start_ns, ..request.clone() };
                tokio::spawn(listen(index, remote.client.clone(), security.request(request), out.clone()));
            }
            drop(out);
            Ok(Collecting { remotes, security, membership: membership.as_ref() }.collect(events, second, goes_on).await)
        })
    }
}

impl Remote {
    /// Its clock minus ours, nanoseconds.
    async fn look_at_clock(&mut self, security: &Security) -> Result<i128, String> {
        let (mut best, mut offset_ns) = (u64::MAX, 0);
        for _ in 0..CLOCK_LOOKS {
            let before = now_ns();
            let asked = self.client.clock(security.request(ClockRequest {}));
            let reply = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "no answer".to_owned())?;
            let reply = reply.map_err(|s| s.message().to_owned())?;
            let trip = now_ns() - before;
            if trip < best {
                best = trip;
                offset_ns = i128::from(reply.into_inner().now_ns) - i128::from(before + trip / 2);
            }
        }
        self.doubt_ns = best / 2;
        Ok(offset_ns)
    }

    /// Asks it to end its run; nobody waits for the answer.
    fn stop(&self, security: &Security) {
        let (mut client, request) = (self.client.clone(), security.request(StopRequest {}));
        tokio::spawn(async move { client.stop(request).await.map(|_| ()) });
    }
}

async fn connect(security: &Security, name: &str, alive: Duration) -> Result<AgentClient<Channel>, String> {
    let endpoint = security.endpoint(name)?;
    let endpoint = endpoint.connect_timeout(PATIENCE).http2_keep_alive_interval(alive).keep_alive_timeout(alive);
    let channel = endpoint.connect().await.map_err(|e| chain(&e))?;
    Ok(AgentClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE))
}

/// An error with its causes: tonic's own text is only "transport error".
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Passes on what one agent sends, until its end.
async fn listen<S: DeserializeOwned, P: DeserializeOwned>(
    index: usize,
    mut client: AgentClient<Channel>,
    request: tonic::Request<RunRequest>,
    out: Sender<(usize, Event<S, P>)>,
) {
    let passed_on = async {
        let mut stream = client.run(request).await?.into_inner();
        while let Some(event) = stream.message().await? {
            let event = serde_json::from_slice(&event.json);
            let event = event.map_err(|e| tonic::Status::internal(format!("not understood: {e}")))?;
            let _ = out.send((index, event)).await;
        }
        Err::<(), _>(tonic::Status::aborted("it ended without a word"))
    };
    if let Err(status) = passed_on.await {
        let _ = out.send((index, Event::Failed(status.message().to_owned()))).await;
    }
}

/// What collecting needs of a fleet.
struct Collecting<'a> {
    remotes: &'a [Remote],
    security: &'a Security,
    membership: Option<&'a Membership>,
}

impl Collecting<'_> {
    async fn collect<S: Slice, P>(
        &self,
        mut events: Receiver<(usize, Event<S, P>)>,
        mut told: impl FnMut(&S),
        mut goes_on: impl FnMut() -> bool,
    ) -> Vec<Outcome<S, P>> {
        let mut outcomes: Vec<Outcome<S, P>> = self.remotes.iter().map(|_| Outcome::default()).collect();
        let mut stopping: Option<Instant> = None;
        while outcomes.iter().any(Outcome::is_open) {
            if let Ok(Some((index, event))) = tokio::time::timeout(LOOK, events.recv()).await {
                let outcome = &mut outcomes[index];
                match event {
                    Event::Second(second) => {
                        let number = second.number();
                        outcome.seconds.push(second);
                        tell(&outcomes, number, &mut told);
                    }
                    Event::End(part) => outcome.part = Some(*part),
                    Event::Failed(text) if outcome.is_open() => outcome.lost = Some(text),
                    Event::Failed(_) => {}
                }
            }
            let lock_lost = self.membership.and_then(Membership::lost_lock);
            if (!goes_on() || lock_lost.is_some()) && stopping.is_none() {
                stopping = Some(Instant::now());
                self.remotes.iter().for_each(|remote| remote.stop(self.security));
            }
            self.look_for_the_dead(&mut outcomes);
            if stopping.is_some_and(|since| since.elapsed() > STOPPING) {
                for outcome in outcomes.iter_mut().filter(|o| o.is_open()) {
                    outcome.lost = Some(format!("no word within {STOPPING:?} after it was told to stop"));
                }
            }
        }
        outcomes
    }

    /// Agents whose lease in etcd has ended. Such a one may still live, and then ends its run.
    fn look_for_the_dead<S, P>(&self, outcomes: &mut [Outcome<S, P>]) {
        let Some(membership) = self.membership else { return };
        for (remote, outcome) in self.remotes.iter().zip(outcomes).filter(|(_, o)| o.is_open()) {
            if membership.is_gone(&remote.name) {
                outcome.lost = Some("its lease in etcd has ended".to_owned());
                remote.stop(self.security);
            }
        }
    }
}

/// Tells of a second when all agents that are left have sent theirs.
fn tell<S: Slice, P>(outcomes: &[Outcome<S, P>], number: u32, told: &mut impl FnMut(&S)) {
    let of = |o: &Outcome<S, P>| o.seconds.iter().rev().find(|s| s.number() == number).cloned();
    if outcomes.iter().any(|o| o.is_open() && o.seconds.iter().rev().all(|s| s.number() != number)) {
        return;
    }
    let all = outcomes.iter().filter_map(of).reduce(|mut all, second| {
        all.merge(&second);
        all
    });
    if let Some(all) = all {
        told(&all);
    }
}
