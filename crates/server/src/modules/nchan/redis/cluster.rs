//! A Redis Cluster: a connection to each of its masters, and who gets which order. A node that fails, a slot that moves: the map is asked for anew,
//! orders are given to who has the key then, and channels are followed there from the last message on. From: `backend`'s orders. To: `link`, one for
//! each node.

use super::backend::{Backend, Order, Publish, retire};
use super::given::Place;
use super::link::{MAX_DELAY, MAX_UNANSWERED, Member, RedisLink, Scripts, UNUSED, say};
use super::open::{ask, open};
use super::slots::Slots;
use super::wire_up;
use crate::log::error::Level;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// Time between two looks at orders that nobody could take.
const BEAT: Duration = Duration::from_millis(100);

/// What connections to nodes say.
pub(super) enum Event {
    /// An order for whoever has the key; with a place: for that node, though it has not the slot yet.
    Again(Order, Option<Place>),
    /// The map is not what the nodes go by.
    Stale,
    /// A node is connected to.
    Up(Place),
    /// A connection has ended.
    Down(Place),
}

/// A node, as the cluster sees it.
struct Node {
    orders: mpsc::Sender<Order>,
    /// Lets go of a connection that is still being made.
    _stop: oneshot::Sender<()>,
    is_up: bool,
}

struct Cluster<'b> {
    backend: &'b Arc<Backend>,
    entry: &'b Place,
    nodes: HashMap<Place, Node>,
    events: mpsc::UnboundedSender<Event>,
    /// Orders that nobody can take now, and since when they wait.
    held: VecDeque<(Instant, Order)>,
    is_stale: bool,
    /// When the map was asked for.
    asked: Instant,
}

/// Serves until no node answers any more, or nobody needs it: why, and what is left. `entry`: a node that has answered.
pub(super) async fn run(
    backend: &Arc<Backend>,
    entry: &Place,
    orders: &mut Receiver<Order>,
    again: VecDeque<Order>,
) -> (String, VecDeque<Order>) {
    let (events, mut said) = mpsc::unbounded_channel();
    let (held, now) = (VecDeque::new(), Instant::now());
    let mut cluster = Cluster { backend, entry, nodes: HashMap::new(), events, held, is_stale: true, asked: now };
    if let Err(why) = cluster.refresh().await {
        return (why, again);
    }
    say(Level::Notice, &format!("Redis {entry} is a cluster of {} masters", cluster.nodes.len()));
    again.into_iter().for_each(|order| cluster.route(order));
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let why = loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => cluster.route(order),
                None => break "nobody needs it".to_owned(),
            },
            event = said.recv() => if let Some(event) = event {
                cluster.event(event);
            },
            _ = beat.tick() => if let Err(why) = cluster.look().await {
                break why;
            },
        }
    };
    cluster.nodes.clear();
    drop(cluster.events);
    let mut left: VecDeque<Order> = cluster.held.into_iter().map(|(_, order)| order).collect();
    // The connections hand back what they have.
    while let Some(event) = said.recv().await {
        if let Event::Again(order, _) = event {
            left.push_back(order);
        }
    }
    left.retain(|order| matches!(order, Order::Publish(publish) if !publish.is_late()));
    (why, left)
}

impl Cluster<'_> {
    fn event(&mut self, event: Event) {
        match event {
            Event::Again(order, Some(place)) if self.nodes.contains_key(&place) => {
                self.give(&place, Order::Asking(Box::new(order)));
            }
            // Who has it will be known at the next look.
            Event::Again(order, _) => match order {
                Order::Retained(_) => self.route(order),
                order => self.hold(order),
            },
            Event::Stale => self.is_stale = true,
            Event::Up(place) => self.is_up(&place, true),
            Event::Down(place) => {
                self.is_up(&place, false);
                self.is_stale = true;
            }
        }
    }

    fn is_up(&mut self, place: &Place, is_up: bool) {
        if let Some(node) = self.nodes.get_mut(place) {
            node.is_up = is_up;
        }
        self.backend.is_up.store(self.nodes.values().any(|node| node.is_up), Relaxed);
    }

    /// Gives an order to who has the key.
    fn route(&mut self, mut order: Order) {
        let namespace = &self.backend.redis.given.namespace;
        // What is retained has a key of its own.
        if let Order::Publish(Publish { name, packed, retained, .. }) = &mut order
            && let Some((topic, is_there)) = retained.take()
        {
            let key = wire_up::retained_key(namespace, wire_up::split(name).0);
            let packed = is_there.then(|| packed.clone());
            self.route(Order::Retain(key, topic, packed));
        }
        match self.backend.slots().and_then(|slots| slots.owner(&order.key(namespace)).cloned()) {
            Some(place) => self.give(&place, order),
            None => self.hold(order),
        }
    }

    fn give(&mut self, place: &Place, order: Order) {
        let Some(node) = self.nodes.get(place) else { return self.hold(order) };
        if let Err(TrySendError::Full(order) | TrySendError::Closed(order)) = node.orders.try_send(order) {
            self.hold(order);
        }
    }

    /// Who waits for an order that has no room is told so at once: its end of the line is gone.
    fn hold(&mut self, order: Order) {
        if self.held.len() < MAX_UNANSWERED && !order.is_late() {
            self.held.push_back((Instant::now(), order));
        }
    }

    /// What is late, and what can go on.
    async fn look(&mut self) -> Result<(), String> {
        let given = &self.backend.redis.given;
        if retire(self.backend, 1 + self.nodes.len()) {
            return Err(UNUSED.to_owned());
        }
        let pause = if self.is_stale { given.check_interval_min } else { given.check_interval_max };
        if self.asked.elapsed() >= pause {
            self.refresh().await?;
        }
        let held = std::mem::take(&mut self.held);
        for (since, order) in held {
            if since.elapsed() < given.max_failing_time && !order.is_late() {
                let room = self.held.len();
                self.route(order);
                // It still waits, and not from now on.
                if let Some(again) = self.held.get_mut(room) {
                    again.0 = since;
                }
            }
        }
        Ok(())
    }

    /// Asks who has what: the nodes that answer first, then those that do not, then who was named.
    async fn refresh(&mut self) -> Result<(), String> {
        let given = &self.backend.redis.given;
        let mut places: Vec<(bool, Place)> =
            self.nodes.iter().map(|(place, node)| (!node.is_up, place.clone())).collect();
        places.sort_by_key(|(is_down, _)| *is_down);
        let known = places.len();
        let named = given.servers.iter().chain([self.entry]).cloned().map(|place| (true, place));
        for (_, place) in places.into_iter().chain(named).collect::<Vec<_>>() {
            let answer =
                ask(self.backend.redis.target(), &place, &[b"CLUSTER", b"SLOTS"], |value| Slots::read(value, &place));
            if let Ok(Ok(slots)) = timeout(given.cluster_connect_timeout, answer).await
                && !slots.nodes.is_empty()
            {
                self.asked = Instant::now();
                self.is_stale = false;
                self.mapped(slots);
                return Ok(());
            }
        }
        self.asked = Instant::now();
        match known {
            0 => Err("no node of the cluster says who has which slots".to_owned()),
            // Connections go on trying.
            _ => Ok(()),
        }
    }

    fn mapped(&mut self, slots: Slots) {
        let slots = Arc::new(slots);
        {
            let mut known = self.backend.slots.lock().expect("nothing panics while it is locked");
            if known.as_ref() == Some(&slots) && !self.nodes.is_empty() {
                return;
            }
            *known = Some(slots.clone());
        }
        // Who is no master any more hands back what it has.
        self.nodes.retain(|place, _| slots.nodes.contains(place));
        for place in &slots.nodes {
            if !self.nodes.contains_key(place) {
                let (orders, receiver) = mpsc::channel(MAX_UNANSWERED);
                let (stop, stopped) = oneshot::channel();
                let task = node(self.backend.clone(), place.clone(), receiver, stopped, self.events.clone());
                tokio::task::spawn_local(task);
                self.nodes.insert(place.clone(), Node { orders, _stop: stop, is_up: false });
            }
        }
        for node in self.nodes.values() {
            // Where there is no room each look finds what is not followed.
            let _ = node.orders.try_send(Order::Mapped);
        }
    }
}

/// Keeps a connection to a node, until the cluster lets go of it.
async fn node(
    backend: Arc<Backend>,
    place: Place,
    mut orders: Receiver<Order>,
    mut stop: oneshot::Receiver<()>,
    events: mpsc::UnboundedSender<Event>,
) {
    let given = &backend.redis.given;
    let (mut delay, mut said) = (given.reconnect_delay, String::new());
    loop {
        let opened = tokio::select! {
            opened = timeout(given.connect_timeout, open(backend.redis.target(), &place, &Scripts::TEXTS)) => opened,
            _ = &mut stop => break,
        };
        let why = match opened {
            Ok(Ok(opened)) => {
                (delay, said) = (given.reconnect_delay, String::new());
                say(Level::Notice, &format!("connected to Redis {place}"));
                let _ = events.send(Event::Up(place.clone()));
                let (reader, writer) = opened.halves;
                let member = Member::new(place.clone(), events.clone());
                let mut link = RedisLink::new(&backend, Scripts::named(opened.scripts), Some(member));
                link.is_at(&place, &opened.id, opened.took);
                link.begin();
                let why = link.serve(reader, writer, &mut orders).await;
                for order in link.left() {
                    let _ = events.send(Event::Again(order, None));
                }
                why
            }
            Ok(Err(why)) => why,
            Err(_) => "no answer in nchan_redis_connect_timeout".to_owned(),
        };
        let _ = events.send(Event::Down(place.clone()));
        if orders.is_closed() {
            break;
        }
        if said != why {
            say(Level::Error, &format!("no connection to Redis {place}: {why}"));
            said = why;
        }
        // What waits here may be another's by the time it can be done.
        while let Ok(order) = orders.try_recv() {
            let _ = events.send(Event::Again(order, None));
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {},
            _ = &mut stop => break,
        }
        delay = (delay * 2).min(MAX_DELAY.max(given.reconnect_delay));
    }
    orders.close();
    while let Ok(order) = orders.try_recv() {
        let _ = events.send(Event::Again(order, None));
    }
}
