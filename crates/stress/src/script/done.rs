//! What `done` gets: a summary, and statistics with their percentiles.

use crate::run::Record;
use crate::sample::{Failure, Latencies};
use mlua::{Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods};

/// What a run came to, as `done` is told.
pub(super) struct Told {
    duration_us: u64,
    requests: u64,
    bytes: u64,
    errors: [(&'static str, u64); 5],
    latency: Latencies,
    rates: Latencies,
}

impl Told {
    pub(super) fn of(record: &Record) -> Told {
        let s = &record.sample;
        let of = |kinds: &[Failure]| kinds.iter().map(|&k| s.failures_of(k)).sum::<u64>();
        use Failure::*;
        // Rates are whole requests a second; as "nanoseconds" they fit the same histogram.
        let mut rates = Latencies::default();
        s.rates.iter().for_each(|&rate| rates.record(rate as u64));
        Told {
            duration_us: (record.seconds * 1e6) as u64,
            requests: s.answers,
            bytes: s.bytes_read,
            errors: [
                ("connect", of(&[Refused, ConnectTimeout, Connect, NoPort, NoDescriptor, Tls])),
                ("read", of(&[Reset, Closed, Protocol])),
                ("write", of(&[Write])),
                ("status", s.statuses.range(400..).map(|(_, c)| c).sum::<u64>()),
                ("timeout", of(&[Timeout])),
            ],
            latency: s.latency.clone(),
            rates,
        }
    }

    /// The arguments of `done`.
    pub(super) fn arguments(self, lua: &Lua) -> mlua::Result<(Table, Statistics, Statistics)> {
        let summary = lua.create_table()?;
        summary.set("duration", self.duration_us)?;
        summary.set("requests", self.requests)?;
        summary.set("bytes", self.bytes)?;
        summary.set("errors", lua.create_table_from(self.errors)?)?;
        Ok((summary, Statistics::new(self.latency, 1e-3), Statistics::new(self.rates, 1.0)))
    }
}

/// Statistics as `done` gets them: fields, percentiles by call, and each value that occurred with its count.
pub(super) struct Statistics {
    numbers: Latencies,
    pairs: Vec<(u64, u64)>,
    /// Turns the histogram's unit into the script's.
    scale: f64,
}

impl Statistics {
    fn new(numbers: Latencies, scale: f64) -> Statistics {
        Statistics { pairs: numbers.pairs().collect(), numbers, scale }
    }
}

impl UserData for Statistics {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("min", |_, s| Ok(s.numbers.min() as f64 * s.scale));
        fields.add_field_method_get("max", |_, s| Ok(s.numbers.max() as f64 * s.scale));
        fields.add_field_method_get("mean", |_, s| Ok(s.numbers.mean() * s.scale));
        fields.add_field_method_get("stdev", |_, s| Ok(s.numbers.stdev() * s.scale));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("percentile", |_, s, p: f64| Ok(s.numbers.quantile(p / 100.0) as f64 * s.scale));
        methods.add_meta_method(MetaMethod::Len, |_, s, ()| Ok(s.pairs.len()));
        methods.add_meta_method(MetaMethod::Call, |_, s, index: usize| {
            let (value, count) = index.checked_sub(1).and_then(|i| s.pairs.get(i)).copied().unwrap_or_default();
            Ok((value as f64 * s.scale, count))
        });
    }
}
