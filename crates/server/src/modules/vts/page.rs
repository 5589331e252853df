//! What `vhost_traffic_status_display` shows: JSON in the form that the module of vozlt documents (exporters read it), Prometheus' text
//! with its names, and a plain page. On the service thread.

use super::count::{self, Counted, Totals};
use super::{Bounds, Format};
use crate::snapshot::Snapshot;
use crate::status::caches::{self, STATUSES};
use crate::status::metrics::Page;
use crate::status::peers::{self, BOUNDS_MS};
use crate::upstream::group::Group;
use crate::upstream::peer::{Peer, State};
use crate::worker::counters::Sum;
use runtime::clock;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;
use wire::http1::escape::html_of;

/// The form of the module whose JSON this is.
const MODULE_VERSION: &str = "v0.2.4";
/// Where peers without an `upstream` block are shown.
const NO_GROUP: &str = "::nogroups";
/// The largest number that readers in JavaScript take exactly; nothing here overflows before.
const MAX_INTEGER: u64 = u64::MAX;

/// What one page is made of.
pub(super) struct Wanted {
    /// The form.
    pub format: Format,
    /// The function that `jsonp` names.
    pub callback: Box<str>,
    /// Peers are shown.
    pub peers: bool,
    /// Under which name all hosts are summed up.
    pub sum_key: Box<str>,
    /// The bounds of histograms.
    pub bounds: Bounds,
    /// The zone of the counts.
    pub zone: (Box<str>, u64),
    /// This machine's name.
    pub host: String,
}

/// Everything that was counted, at one moment.
struct Counts<'s> {
    wanted: &'s Wanted,
    snapshot: &'s Snapshot,
    connections: Sum,
    hosts: Counted,
    filters: Vec<(Box<str>, Counted)>,
}

/// The page.
pub(super) fn make(snapshot: &Snapshot, wanted: &Wanted) -> String {
    let mut filters = count::all();
    let hosts = filters.iter().position(|(group, _)| group.is_empty());
    let mut hosts = hosts.map(|at| filters.remove(at).1).unwrap_or_default();
    let mut all = Totals::default();
    hosts.iter().for_each(|(_, totals)| all.add(totals));
    if !hosts.is_empty() {
        hosts.push((wanted.sum_key.clone(), all));
    }
    let connections = crate::listen::silent::with(&snapshot.listens);
    let counts = Counts { wanted, snapshot, connections, hosts, filters };
    match wanted.format {
        Format::Json => counts.json().to_string(),
        Format::Jsonp => format!("{}({})", wanted.callback, counts.json()),
        Format::Prometheus => counts.prometheus(),
        Format::Html => counts.html(),
    }
}

impl Counts<'_> {
    fn json(&self) -> Value {
        let c = &self.connections;
        let nodes = |counted: &Counted| -> Map<String, Value> {
            counted.iter().map(|(name, totals)| (name.to_string(), self.node(totals))).collect()
        };
        let filters: Map<_, _> =
            self.filters.iter().map(|(group, counted)| (group.to_string(), nodes(counted).into())).collect();
        let mut whole = json!({
            "hostName": self.wanted.host,
            "moduleVersion": MODULE_VERSION,
            "nginxVersion": crate::NGINX_VERSION,
            "loadMsec": self.snapshot.loaded_ms,
            "nowMsec": clock::wall_ms(),
            "connections": {
                "active": c.active, "reading": c.reading, "writing": c.writing, "waiting": c.waiting,
                "accepted": c.accepted, "handled": c.handled, "requests": c.requests,
            },
            "sharedZones": {
                "name": &*self.wanted.zone.0,
                "maxSize": self.wanted.zone.1,
                "usedSize": count::len() as u64 * count::NODE_BYTES,
                "usedNode": count::len(),
            },
            "serverZones": nodes(&self.hosts),
        });
        if !filters.is_empty() {
            whole["filterZones"] = filters.into();
        }
        let mut upstreams: Map<String, Value> = Map::new();
        for (name, peer, backup) in peers_of(self.snapshot).filter(|_| self.wanted.peers) {
            let list = upstreams.entry(name).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(show_peer(&peer, backup));
            }
        }
        if !upstreams.is_empty() {
            whole["upstreamZones"] = upstreams.into();
        }
        let caches: Map<String, Value> = self.caches().map(|(name, value, _)| (name, value)).collect();
        if !caches.is_empty() {
            whole["cacheZones"] = caches.into();
        }
        whole
    }

    fn node(&self, t: &Totals) -> Value {
        let mut responses = Map::new();
        for (class, n) in t.classes.iter().enumerate() {
            responses.insert(format!("{}xx", class + 1), json!(n));
        }
        for (status, n) in STATUSES.iter().zip(t.statuses) {
            responses.insert(status.text().to_ascii_lowercase(), json!(n));
        }
        // What needs `proxy_cache_min_uses` and had too few uses: counted as a miss here.
        responses.insert("scarce".to_owned(), json!(0));
        let mut over = Map::from_iter(responses.keys().map(|name| (name.clone(), json!(0))));
        for name in ["requestCounter", "inBytes", "outBytes", "requestMsecCounter"] {
            over.insert(name.to_owned(), json!(0));
        }
        over.insert("maxIntegerSize".to_owned(), json!(MAX_INTEGER));
        let bounds = &self.wanted.bounds;
        let mut seen = 0;
        let counters: Vec<u64> = t
            .buckets
            .iter()
            .take(bounds.len())
            .map(|n| {
                seen += n;
                seen
            })
            .collect();
        json!({
            "requestCounter": t.requests,
            "inBytes": t.received,
            "outBytes": t.sent,
            "responses": responses,
            "requestMsecCounter": t.ms,
            "requestMsec": t.mean_ms(),
            "requestMsecs": {"times": [], "msecs": []},
            "requestBuckets": {"msecs": bounds.to_vec(), "counters": counters},
            "overCounts": over,
        })
    }

    /// Caches by name, with what was counted by status.
    fn caches(&self) -> impl Iterator<Item = (String, Value, [u64; 4])> {
        self.snapshot.main.cache.caches.iter().map(|cache| {
            let zone = &cache.zone;
            let (mut responses, mut received, mut sent) = (Map::new(), 0, 0);
            for (status, totals) in caches::totals(&zone.counts) {
                responses.insert(status.text().to_ascii_lowercase(), json!(totals.responses));
                received += totals.bytes_written;
                sent += totals.bytes;
            }
            responses.insert("scarce".to_owned(), json!(0));
            let used = zone.index.blocks() * zone.block();
            let name = String::from_utf8_lossy(&zone.name).into_owned();
            let mut over = Map::from_iter(responses.keys().map(|name| (name.clone(), json!(0))));
            over.insert("maxIntegerSize".to_owned(), json!(MAX_INTEGER));
            over.insert("inBytes".to_owned(), json!(0));
            over.insert("outBytes".to_owned(), json!(0));
            let value = json!({
                "maxSize": cache.max_size, "usedSize": used, "inBytes": received, "outBytes": sent,
                "responses": responses, "overCounts": over,
            });
            (name, value, [cache.max_size, used, received, sent])
        })
    }

    fn prometheus(&self) -> String {
        let mut page = Page::default();
        page.metric("nginx_vts_info", "gauge", "Nginx info");
        let labels = [
            ("hostname", self.wanted.host.as_str()),
            ("module_version", MODULE_VERSION),
            ("version", crate::NGINX_VERSION),
        ];
        page.sample("nginx_vts_info", &labels, 1);
        let started = self.snapshot.loaded_ms as f64 / 1000.0;
        page.one("nginx_vts_start_time_seconds", "gauge", "Nginx start time", started);
        let c = &self.connections;
        page.metric("nginx_vts_main_connections", "gauge", "Nginx connections");
        let numbers = [
            ("accepted", c.accepted as i64),
            ("active", c.active),
            ("handled", c.handled as i64),
            ("reading", c.reading),
            ("requests", c.requests as i64),
            ("waiting", c.waiting),
            ("writing", c.writing),
        ];
        for (status, n) in numbers {
            page.sample("nginx_vts_main_connections", &[("status", status)], n);
        }
        let hosts: Vec<_> = self.hosts.iter().map(|(name, t)| (vec![("host", name.to_string())], t)).collect();
        self.samples(&mut page, "nginx_vts_server", &hosts);
        let filters = self.filters.iter().flat_map(|(group, counted)| {
            counted
                .iter()
                .map(move |(name, t)| (vec![("filter", group.to_string()), ("filter_name", name.to_string())], t))
        });
        self.samples(&mut page, "nginx_vts_filter", &filters.collect::<Vec<_>>());
        if self.wanted.peers {
            self.peers(&mut page);
        }
        let caches: Vec<_> = self.caches().collect();
        page.each(("nginx_vts_cache_usage_bytes", "gauge", "THe cache zones info"), &usages(&caches), |(labels, n)| {
            Some((labels.clone(), *n))
        });
        page.text
    }

    /// The samples of hosts or of keys.
    fn samples(&self, page: &mut Page, prefix: &str, all: &[(Vec<(&'static str, String)>, &Totals)]) {
        let with = |labels: &[(&'static str, String)], name, value: &str| {
            let mut labels = labels.to_vec();
            labels.push((name, value.to_owned()));
            labels
        };
        let bytes: Vec<_> = all.iter().flat_map(|(l, t)| [(l, "in", t.received), (l, "out", t.sent)]).collect();
        let name = format!("{prefix}_bytes_total");
        page.each((&name, "counter", "The request/response bytes"), &bytes, |(l, way, n)| {
            Some((with(l, "direction", way), *n))
        });
        let classes: Vec<_> =
            all.iter().flat_map(|(l, t)| t.classes.into_iter().zip(1..).map(move |(n, class)| (l, class, n))).collect();
        let name = format!("{prefix}_requests_total");
        page.each((&name, "counter", "The requests counter"), &classes, |(l, class, n)| {
            Some((with(l, "code", &format!("{class}xx")), *n))
        });
        let name = format!("{prefix}_request_seconds_total");
        page.each((&name, "counter", "The request processing time in seconds"), all, |(l, t)| {
            Some((l.clone(), t.ms as f64 / 1000.0))
        });
        let name = format!("{prefix}_request_seconds");
        page.each((&name, "gauge", "The average of request processing times in seconds"), all, |(l, t)| {
            Some((l.clone(), t.mean_ms() as f64 / 1000.0))
        });
        if !self.wanted.bounds.is_empty() && !all.is_empty() {
            let name = format!("{prefix}_request_duration_seconds");
            page.metric(&name, "histogram", "The histogram of request processing time");
            for (labels, t) in all {
                let labels: Vec<(&str, &str)> = labels.iter().map(|(n, v)| (*n, v.as_str())).collect();
                let within: u64 = t.buckets[..self.wanted.bounds.len()].iter().sum();
                let mut counts = t.buckets[..self.wanted.bounds.len()].to_vec();
                counts.push(t.requests.saturating_sub(within));
                page.buckets(&name, &labels, &self.wanted.bounds, &counts, Some(t.ms));
            }
        }
        let said: Vec<_> =
            all.iter().flat_map(|(l, t)| STATUSES.iter().zip(t.statuses).map(move |(s, n)| (l, s, n))).collect();
        let name = format!("{prefix}_cache_total");
        page.each((&name, "counter", "The requests cache counter"), &said, |(l, status, n)| {
            Some((with(l, "status", &status.text().to_ascii_lowercase()), *n))
        });
    }

    fn peers(&self, page: &mut Page) {
        let all: Vec<_> =
            peers_of(self.snapshot).map(|(group, peer, _)| (group, peers::counted(&peer.state), peer)).collect();
        let labels =
            |group: &str, peer: &Peer| vec![("upstream", group.to_owned()), ("backend", peer.name.to_string())];
        let bytes: Vec<_> =
            all.iter().flat_map(|(g, c, p)| [(g, p, "in", c.totals.sent), (g, p, "out", c.totals.received)]).collect();
        page.each(
            ("nginx_vts_upstream_bytes_total", "counter", "The request/response bytes"),
            &bytes,
            |(g, p, way, n)| {
                let mut labels = labels(g, p);
                labels.push(("direction", (*way).to_owned()));
                Some((labels, *n))
            },
        );
        let classes: Vec<_> = all
            .iter()
            .flat_map(|(g, c, p)| c.totals.classes.into_iter().zip(1..).map(move |(n, class)| (g, p, class, n)))
            .collect();
        page.each(
            ("nginx_vts_upstream_requests_total", "counter", "The upstream requests counter"),
            &classes,
            |(g, p, class, n)| {
                let mut labels = labels(g, p);
                labels.push(("code", format!("{class}xx")));
                Some((labels, *n))
            },
        );
        let help = "The time spent on receiving the response from the upstream server in seconds";
        page.each(("nginx_vts_upstream_response_seconds_total", "counter", help), &all, |(g, c, p)| {
            Some((labels(g, p), c.times_sum_ms as f64 / 1000.0))
        });
    }

    fn html(&self) -> String {
        let mut out = String::from(
            "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>Traffic status</title>\
             <meta http-equiv=\"refresh\" content=\"5\"><style>body{font:14px sans-serif;margin:2em}\
             table{border-collapse:collapse;margin-bottom:2em}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}\
             td:first-child,th:first-child{text-align:left}</style></head><body>\n",
        );
        let c = &self.connections;
        let _ = writeln!(
            out,
            "<h1>{}</h1><p>Active {} &middot; reading {} &middot; writing {} &middot; waiting {} &middot; requests {}</p>",
            html_of(&self.wanted.host),
            c.active,
            c.reading,
            c.writing,
            c.waiting,
            c.requests
        );
        table(&mut out, "Server zones", &self.hosts);
        for (group, counted) in &self.filters {
            table(&mut out, group, counted);
        }
        out.push_str("</body></html>\n");
        out
    }
}

fn table(out: &mut String, heading: &str, counted: &Counted) {
    let _ = write!(out, "<h2>{}</h2><table><tr><th>Zone", html_of(heading));
    for name in ["Requests", "Mean, ms", "1xx", "2xx", "3xx", "4xx", "5xx", "In, bytes", "Out, bytes"] {
        let _ = write!(out, "<th>{name}");
    }
    for (name, t) in counted {
        let _ = write!(out, "\n<tr><td>{}<td>{}<td>{}", html_of(name), t.requests, t.mean_ms());
        for n in t.classes.iter().chain([&t.received, &t.sent]) {
            let _ = write!(out, "<td>{n}");
        }
    }
    out.push_str("</table>\n");
}

/// Peers with the name that their group is shown under, and whether they stand in for others.
fn peers_of(snapshot: &Snapshot) -> impl Iterator<Item = (String, Arc<Peer>, bool)> {
    snapshot.groups.iter().filter(|g| !g.for_one_request).flat_map(|group: &Arc<Group>| {
        let name = if group.is_block { group.name.to_string() } else { NO_GROUP.to_owned() };
        let tiers = group.tiers_now();
        let peers: Vec<_> = tiers
            .iter()
            .zip([false, true])
            .flat_map(|(tier, backup)| tier.peers.iter().map(move |peer| (peer.clone(), backup)))
            .collect();
        peers.into_iter().map(move |(peer, backup)| (name.clone(), peer, backup))
    })
}

fn show_peer(peer: &Peer, backup: bool) -> Value {
    let counted = peers::counted(&peer.state);
    let t = &counted.totals;
    let classes: Map<_, _> = t.classes.iter().enumerate().map(|(i, n)| (format!("{}xx", i + 1), json!(n))).collect();
    let mut over: Map<_, _> = classes.keys().map(|name| (name.clone(), json!(0))).collect();
    for name in ["requestCounter", "inBytes", "outBytes", "requestMsecCounter", "responseMsecCounter"] {
        over.insert(name.to_owned(), json!(0));
    }
    over.insert("maxIntegerSize".to_owned(), json!(MAX_INTEGER));
    let mut seen = 0;
    let counters: Vec<u64> = counted
        .times
        .iter()
        .take(BOUNDS_MS.len())
        .map(|n| {
            seen += n;
            seen
        })
        .collect();
    let mean = counted.times_sum_ms.checked_div(counted.times.iter().sum()).unwrap_or(0);
    let buckets = json!({"msecs": BOUNDS_MS, "counters": counters});
    json!({
        "server": &*peer.name,
        "requestCounter": t.requests,
        "inBytes": t.sent,
        "outBytes": t.received,
        "responses": classes,
        "requestMsecCounter": counted.times_sum_ms,
        "requestMsec": mean,
        "requestMsecs": {"times": [], "msecs": []},
        "requestBuckets": buckets,
        "responseMsecCounter": counted.times_sum_ms,
        "responseMsec": mean,
        "responseMsecs": {"times": [], "msecs": []},
        "responseBuckets": buckets,
        "weight": peer.settings.weight,
        "maxFails": peer.settings.policy.max_fails,
        "failTimeout": peer.settings.policy.fail_timeout_s,
        "backup": backup,
        "down": peer.state() == State::Down,
        "overCounts": over,
    })
}

type Sample = (Vec<(&'static str, String)>, u64);

fn usages(caches: &[(String, Value, [u64; 4])]) -> Vec<Sample> {
    let of = |name: &String, word: &str, n| (vec![("cache_zone", name.clone()), ("cache_size", word.to_owned())], n);
    caches.iter().flat_map(|(name, _, [max, used, ..])| [of(name, "max", *max), of(name, "used", *used)]).collect()
}
