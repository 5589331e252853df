//! Tells a Redis what a zone has counted and hears what others have, in beats, on the service thread. From: requests, which note keys. One connection for
//! each zone; when it is lost it is made anew.

use super::super::nchan::redis::conf::Redis;
use super::super::nchan::redis::session::Session;
use super::{Kind, LEASE_MS, OWN, Shared};
use crate::log::error::Level;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// From the first request that is to be told until it is: what a limit may be passed by is what comes in this time.
const BEAT: Duration = Duration::from_millis(100);
/// How often it is looked whether the zone is still in use.
const LOOK: Duration = Duration::from_secs(1);
/// Tries to connect follow each other at least in this time once several have failed.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Keys of one command: a script holds Redis up for all.
const KEYS_AT_ONCE: usize = 128;

/// Puts requests into buckets and gives what is in each, in thousandths of a request, as `limit_req` counts: the first into an empty bucket leaves it empty.
/// Arguments: the rate in thousandths a second, and for each key how many requests.
const RATE: &str = r"
local time = redis.call('TIME')
local now, rate, out = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]), {}
for i, key in ipairs(KEYS) do
  local count = tonumber(ARGV[i + 1])
  local excess, last = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  local level = (count - 1) * 1000
  if excess then level = math.max(level, excess - math.floor(rate * math.max(now - last, 0) / 1000) + count * 1000) end
  redis.call('SET', key, string.format('%.0f %.0f', level, now), 'PX', math.ceil(level * 1000 / rate) + 1000)
  out[i] = level
end
return out";

/// Says how many places a machine has of each key and gives what the others have. A machine that says nothing for a lease has none.
/// Arguments: the machine, the lease in ms, and for each key how many.
const PLACES: &str = r"
local time = redis.call('TIME')
local now, out = time[1] * 1000 + math.floor(time[2] / 1000), {}
for i, key in ipairs(KEYS) do
  local all, others = redis.call('HGETALL', key), 0
  for n = 1, #all, 2 do
    local count, ends = string.match(all[n + 1], '^(%d+) (%d+)$')
    if all[n] ~= ARGV[1] then
      if ends and tonumber(ends) > now then others = others + count else redis.call('HDEL', key, all[n]) end
    end
  end
  if ARGV[i + 2] == '0' then
    redis.call('HDEL', key, ARGV[1])
  else
    redis.call('HSET', key, ARGV[1], string.format('%s %.0f', ARGV[i + 2], now + ARGV[2]))
    redis.call('PEXPIRE', key, ARGV[2])
  end
  out[i] = others
end
return out";

/// Why a conversation ends.
enum End {
    /// No configuration has the zone any more.
    Unused,
    Lost(String),
}

/// Keeps the zone and Redis in step for as long as some configuration has the zone.
pub(super) async fn run(shared: Weak<Shared>, redis: Arc<Redis>) {
    let (mut delay, mut is_down) = (redis.reconnect_delay(), false);
    loop {
        let Some(zone) = shared.upgrade() else { return };
        let script = match &zone.kind {
            Kind::Rate { .. } => RATE,
            Kind::Places { .. } => PLACES,
        };
        let name = zone.zone.clone();
        let why = match Session::open(&redis, &[script]).await {
            Ok(session) => {
                zone.set_down(false);
                if std::mem::take(&mut is_down) {
                    say(Level::Notice, &format!("zone \"{name}\" is shared again"));
                }
                delay = redis.reconnect_delay();
                drop(zone);
                match talk(&shared, &redis, session).await {
                    End::Unused => return,
                    End::Lost(why) => why,
                }
            }
            Err(why) => {
                drop(zone);
                why
            }
        };
        let Some(zone) = shared.upgrade() else { return };
        zone.set_down(true);
        if !std::mem::replace(&mut is_down, true) {
            let upstream = &zone.upstream;
            say(
                Level::Error,
                &format!("zone \"{name}\" has this server's limits only, Redis \"{upstream}\" is gone: {why}"),
            );
        }
        drop(zone);
        sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY.max(redis.reconnect_delay()));
    }
}

fn say(level: Level, text: &str) {
    crate::log::process_line(level, format_args!("{text}"));
}

async fn talk(shared: &Weak<Shared>, redis: &Redis, mut session: Session) -> End {
    loop {
        let Some(zone) = shared.upgrade() else { return End::Unused };
        if !zone.has_news() {
            let _ = timeout(LOOK, zone.told.notified()).await;
            continue;
        }
        sleep(BEAT).await;
        let news = zone.news();
        for some in news.chunks(KEYS_AT_ONCE) {
            ask(&zone, &mut session, some);
        }
        let outcome = session.answers(redis, |number, value| {
            let asked = &news[number * KEYS_AT_ONCE..];
            let numbers = value.list().ok_or("it answers what was not asked")?;
            for ((key, _), said) in asked.iter().take(KEYS_AT_ONCE).zip(numbers) {
                zone.heard(key, said.number().ok_or("it answers what was not asked")?);
            }
            Ok(())
        });
        if let Err(why) = outcome.await {
            return End::Lost(why);
        }
    }
}

fn ask(zone: &Shared, session: &mut Session, some: &[(Box<[u8]>, u64)]) {
    let (kind, first) = match &zone.kind {
        Kind::Rate { rate, .. } => ("limit_req", vec![rate.to_string()]),
        Kind::Places { .. } => ("limit_conn", vec![OWN.clone(), LEASE_MS.to_string()]),
    };
    let keys: Vec<Vec<u8>> =
        some.iter().map(|(key, _)| [format!("ironweir:{kind}:{}:", zone.zone).as_bytes(), &key[..]].concat()).collect();
    let count = keys.len().to_string();
    let numbers: Vec<String> = some.iter().map(|(_, number)| number.to_string()).collect();
    let script = session.scripts.first().cloned().unwrap_or_default();
    let mut words: Vec<&[u8]> = vec![b"EVALSHA", script.as_bytes(), count.as_bytes()];
    words.extend(keys.iter().map(Vec::as_slice));
    words.extend(first.iter().chain(&numbers).map(|word| word.as_bytes()));
    session.command(&words);
}
