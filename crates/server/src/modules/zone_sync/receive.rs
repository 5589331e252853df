//! Hears another node: a session of `stream` whose server has `zone_sync`. From: its content handler. To: `zone::synced`.

use super::NODE;
use crate::connection::Client;
use crate::connection::incoming::{Filled, Incoming};
use crate::log_error;
use crate::request::Request;
use crate::stream::StreamSession;
use crate::stream::facts::facts;
use crate::zone::synced::{self, COUNTS};
use runtime::timer::Timer;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use wire::zone_sync::{Frame, HELLO, Invalid, Kind, MAX_FRAME, Parsed, parse, read_hello, write_hello};

/// Zones that a node may name.
const MAX_ZONES: usize = 1024;

/// The zones of the other node, by its numbers.
type Zones = HashMap<u16, (Kind, Box<[u8]>)>;

/// Hears the node until it goes. Gives the session's status.
pub async fn serve(session: &mut StreamSession) -> u16 {
    let StreamSession { r, incoming } = session;
    facts(r).action = "receiving zones of another node";
    let client = r.client.clone();
    match hear(r, incoming, &client).await {
        Ok(()) => 200,
        Err(Invalid(text)) => {
            log_error!(r, Error, "zone_sync: {text}");
            400
        }
    }
}

async fn hear(r: &mut Request, incoming: &mut Incoming, client: &Rc<Client>) -> Result<(), Invalid> {
    let timeout = *r.conf().zone_sync.own.timeout;
    let mut answer = Vec::new();
    loop {
        if read_hello(incoming.unread())?.is_some() {
            break;
        }
        incoming.timer.set(timeout);
        if !fill(r, incoming, client).await {
            return Ok(());
        }
    }
    incoming.consume(HELLO);
    write_hello(*NODE, &mut answer);
    let mut zones = Zones::new();
    loop {
        take(incoming, &mut zones, &mut answer)?;
        if !answer.is_empty() {
            let timer = Timer::new();
            timer.set(timeout);
            if !matches!(timer.guard(incoming.socket.write_all(&answer)).await, Some(Ok(()))) {
                return Ok(());
            }
            facts(r).sent += answer.len() as u64;
            answer.clear();
        }
        // Another process has the listener: whoever is told goes there, and is told everything. Or a reload has ended it.
        if crate::worker::draining() || !has_cluster() {
            return Ok(());
        }
        incoming.timer.set(timeout);
        if !fill(r, incoming, client).await {
            return Ok(());
        }
    }
}

/// Whether the present configuration has a cluster still.
fn has_cluster() -> bool {
    crate::worker::snapshot().stream.as_ref().is_some_and(|stream| stream.main.zone_sync.cluster.is_some())
}

/// Takes the whole frames of what has come. Beats are answered.
fn take(incoming: &mut Incoming, zones: &mut Zones, answer: &mut Vec<u8>) -> Result<(), Invalid> {
    loop {
        let (frame, len) = match parse(incoming.unread())? {
            Parsed::Complete(frame, len) => (frame, len),
            Parsed::Partial if incoming.unread().len() > MAX_FRAME + HELLO => {
                return Err(Invalid("a message is too long"));
            }
            Parsed::Partial => return Ok(()),
        };
        COUNTS.messages_in.fetch_add(1, Relaxed);
        match frame {
            Some(Frame::Zone { number, kind: Some(kind), name }) => {
                if zones.len() >= MAX_ZONES && !zones.contains_key(&number) {
                    return Err(Invalid("a node has too many zones"));
                }
                zones.insert(number, (kind, name.into()));
            }
            Some(Frame::Record { number, key, value }) => {
                if let Some((kind, name)) = zones.get(&number) {
                    synced::take(*kind, name, key, value);
                }
            }
            Some(Frame::Beat) => drop(Frame::Beat.write(answer)),
            // Of a later version.
            Some(Frame::Zone { kind: None, .. }) | None => {}
        }
        incoming.consume(len);
    }
}

/// Reads on. False: the node is gone.
async fn fill(r: &mut Request, incoming: &mut Incoming, client: &Rc<Client>) -> bool {
    match incoming.fill(client).await {
        Filled::Read(Ok(n @ 1..)) => {
            facts(r).received += n as u64;
            COUNTS.bytes_in.fetch_add(n as u64, Relaxed);
            true
        }
        Filled::Read(Ok(_)) => false,
        Filled::Read(Err(e)) => {
            log_error!(r, Info, "{}", crate::log::read_error("recv()", &e));
            false
        }
        Filled::Late => {
            log_error!(r, Error, "zone_sync: the node says nothing any more (110: Connection timed out)");
            false
        }
        Filled::Taken => false,
    }
}
