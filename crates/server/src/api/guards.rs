//! `/ironweir/guards`, `/ironweir/bans`, `/ironweir/shed`: what guards and limits of load have done (docs/shield.md).

use super::error::Failure;
use super::render;
use super::schema::{Schema, field, maybe, number};
use super::table::{Context, Item};
use crate::connection::slow;
use crate::modules::guard::state::{self, BANS, EVENTS};
use crate::modules::sysguard;
use crate::snapshot::Snapshot;
use crate::status::refusals::{self, Refusal};
use runtime::clock;
use serde_json::{Map, Value, json};
use shield::bans;
use shield::breaker::State;

/// Talkers that are shown of each kind.
const SHOWN: usize = 10;

const TALKERS: Schema = Schema::Map(&Schema::Number);
/// One of `/ironweir/guards`.
pub static GUARD: Schema = Schema::Object(&[
    number("requests"),
    number("passed"),
    number("proved"),
    number("logged"),
    number("delayed"),
    number("challenged"),
    number("refused"),
    number("closed"),
    number("banned"),
    number("from_banned"),
    field("under_attack", Schema::Flag),
    field("limits", Schema::Map(&Schema::Number)),
    field("addresses", TALKERS),
    field("urls", TALKERS),
]);

/// `/ironweir/guards`
pub fn guards(context: &Context) -> Vec<Item> {
    let guards = context.call.snapshot.main.guard.guards();
    let item = |guard: &crate::modules::guard::Guard| {
        let state = guard.state.clone();
        let mut all: Map<_, _> =
            EVENTS.iter().zip(state.counts.sums()).map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
        let [addresses, urls] = state.talkers(SHOWN).map(of_pairs);
        all.insert("under_attack".to_owned(), json!(state.attack.is_on(clock::monotonic_ms())));
        all.insert("limits".to_owned(), of_pairs(state.above()));
        all.insert("addresses".to_owned(), addresses);
        all.insert("urls".to_owned(), urls);
        Item::new(&*guard.name, all.into(), move || state.reset())
    };
    guards.map(item).collect()
}

fn of_pairs(pairs: Vec<(String, u64)>) -> Value {
    let all: Map<_, _> = pairs.into_iter().map(|(key, n)| (key, json!(n))).collect();
    all.into()
}

/// One of `/ironweir/bans`.
pub static BAN: Schema = Schema::Object(&[field("reason", Schema::Text), number("seconds_left")]);

/// `/ironweir/bans`
pub fn bans(context: &Context) -> Vec<Item> {
    let now = clock::wall_ms();
    let sets = context.call.snapshot.main.guard.kernel_sets();
    let states: Vec<_> = context.call.snapshot.main.guard.guards().map(|guard| guard.state.clone()).collect();
    let item = |(subject, ban): (u128, bans::Ban)| {
        let address = bans::address(subject);
        let left = ban.until_ms.saturating_sub(now) / 1000;
        let (sets, states) = (sets.clone(), states.clone());
        Item::new(address.to_string(), json!({"reason": ban.reason, "seconds_left": left}), move || {
            BANS.lift(subject);
            states.iter().for_each(|state| state.forgive(subject));
            sets.iter().for_each(|set| state::tell(set, address, 0));
        })
    };
    BANS.all(now).into_iter().map(item).collect()
}

/// Refused requests that are shown at once.
const NEWEST: usize = 50;

/// One of `/ironweir/refusals`.
pub static REFUSAL: Schema = Schema::Object(&[
    field("id", Schema::Text),
    field("time", Schema::Time),
    field("client", Schema::Text),
    field("request", Schema::Text),
    number("status"),
    field("by", Schema::Text),
    field("why", Schema::Text),
]);

/// `/ironweir/refusals`: the newest ones, or the one with an id, however old it is as long as it is remembered.
pub fn refusals(context: &Context) -> Vec<Item> {
    let item = |r: Refusal| {
        let value = json!({
            "id": r.id, "time": render::time(r.at_ms), "client": r.client, "request": r.request, "status": r.status, "by": r.by, "why": r.why,
        });
        Item::new(r.id, value, || {})
    };
    match context.call.path.rsplit_once("/refusals/") {
        Some((_, id)) if !id.is_empty() => refusals::find(id).map(item).into_iter().collect(),
        _ => refusals::newest(NEWEST).into_iter().map(item).collect(),
    }
}

const UPSTREAM: Schema = Schema::Object(&[
    maybe("limit", Schema::Number),
    maybe("under_way", Schema::Number),
    maybe("refused", Schema::Number),
    maybe("alone_us", Schema::Number),
    maybe("breaker", Schema::Text),
    maybe("opened", Schema::Number),
    maybe("refused_by_breaker", Schema::Number),
]);
/// `/ironweir/shed`
pub static SHED: Schema = Schema::Object(&[
    number("slow_clients"),
    number("closed_at_accept"),
    field("sysguard", Schema::Map(&Schema::Number)),
    field("upstreams", Schema::Map(&UPSTREAM)),
]);

/// What a breaker's state is called.
pub fn word(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::Open => "open",
        State::HalfOpen => "half_open",
    }
}

/// `/ironweir/shed`: clients below their least rate now, connections of banned addresses, requests shed by `sysguard`, and what each upstream may do.
pub fn shed(context: &Context) -> Result<Value, Failure> {
    let groups = context.call.snapshot.groups.iter().filter_map(|g| Some((&g.name, g.shed.as_ref()?)));
    let show = |(name, shed): (&std::sync::Arc<str>, &std::sync::Arc<crate::upstream::shed::Shed>)| {
        let mut all = json!({});
        if let Some((limit, under_way, refused)) = shed.concurrency() {
            (all["limit"], all["under_way"], all["refused"]) = (json!(limit), json!(under_way), json!(refused));
        }
        if let Some(us) = shed.alone_us() {
            all["alone_us"] = json!(us);
        }
        if let Some((state, opened, refused)) = shed.breaker() {
            (all["breaker"], all["opened"]) = (json!(word(state)), json!(opened));
            all["refused_by_breaker"] = json!(refused);
        }
        (name.to_string(), all)
    };
    let upstreams: Map<_, _> = groups.map(show).collect();
    let sysguard: Map<_, _> =
        sysguard::NAMES.iter().zip(sysguard::COUNTS.sums()).map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
    let accepts = state::AT_ACCEPT.sums()[0];
    Ok(json!({
        "slow_clients": slow::total(), "closed_at_accept": accepts, "sysguard": sysguard, "upstreams": upstreams,
    }))
}

/// `DELETE /ironweir/shed`
pub fn reset_shed(_: &Snapshot) {
    sysguard::COUNTS.reset(&[]);
    state::AT_ACCEPT.reset(&[]);
}
