//! `vhost_traffic_status`: requests counted by host and by keys of one's own, shown as the module of vozlt (`nginx-module-vts`) shows
//! them. What is counted is in `count`, what is shown in `page`.

mod count;
pub mod dump;
pub mod limit;
mod page;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::{Directive, Scope, http};
use crate::log_error;
use crate::modules::{ignored, rewrite};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, Text, body};
use crate::status::caches::STATUSES;
use crate::{merged_values, zone};
use conf::{Node, Problem, value};
use runtime::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("vhost_traffic_status", |s, n| setters::flag(&mut s.level.conf.vts.settings.vhost_traffic_status, n)),
    http("vhost_traffic_status_zone", shared_zone),
    http("vhost_traffic_status_display", display),
    http("vhost_traffic_status_display_format", |s, n| {
        setters::one_of(&mut s.level.conf.vts.settings.display_format, n, &FORMATS)
    }),
    http("vhost_traffic_status_display_sum_key", |s, n| {
        let key = n.args[0].as_str().into_owned().into_boxed_str();
        setters::value(&mut s.level.conf.vts.settings.display_sum_key, n, key)
    }),
    http("vhost_traffic_status_filter", |s, n| setters::flag(&mut s.level.conf.vts.settings.filter, n)),
    http("vhost_traffic_status_filter_by_host", |s, n| setters::flag(&mut s.level.conf.vts.settings.filter_by_host, n)),
    http("vhost_traffic_status_filter_by_set_key", filter_by_set_key),
    http("vhost_traffic_status_filter_max_node", max_node),
    http("vhost_traffic_status_histogram_buckets", buckets),
    http("vhost_traffic_status_dump", dump),
    http("vhost_traffic_status_display_jsonp", |s, n| {
        let callback = n.args[0].as_str().into_owned().into_boxed_str();
        setters::value(&mut s.level.conf.vts.settings.display_jsonp, n, callback)
    }),
    http("vhost_traffic_status_filter_check_duplicate", |s, n| {
        setters::flag(&mut s.level.conf.vts.settings.filter_check_duplicate, n)
    }),
    http("vhost_traffic_status_ignore_status", ignore_status),
    http("vhost_traffic_status_stats_by_upstream", |s, n| {
        setters::flag(&mut s.level.conf.vts.settings.stats_by_upstream, n)
    }),
    http("vhost_traffic_status_set_by_filter", set_by_filter),
    http("vhost_traffic_status_limit", |s, n| setters::flag(&mut s.level.conf.vts.settings.limit, n)),
    http("vhost_traffic_status_limit_traffic", limit::traffic),
    http("vhost_traffic_status_limit_traffic_by_set_key", limit::traffic_by_key),
    // The same limit twice refuses what one refuses.
    http("vhost_traffic_status_limit_check_duplicate", ignored::any),
    http("vhost_traffic_status_bypass_limit", |s, n| setters::flag(&mut s.level.conf.vts.settings.bypass_limit, n)),
    http("vhost_traffic_status_bypass_stats", |s, n| setters::flag(&mut s.level.conf.vts.settings.bypass_stats, n)),
];

const OWNER: &str = "vhost_traffic_status_zone";
/// As the module has it.
const DEFAULT_ZONE: (&str, u64) = ("ngx_http_vhost_traffic_status", 1024 * 1024);
const FORMATS: [(&str, Format); 4] =
    [("json", Format::Json), ("html", Format::Html), ("jsonp", Format::Jsonp), ("prometheus", Format::Prometheus)];
/// Keys that a request is counted by, all levels together.
const MAX_FILTERS: usize = 32;

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For programs.
    Json,
    /// The same as the argument of a function, for pages of other sites.
    Jsonp,
    /// For people.
    Html,
    /// For Prometheus.
    Prometheus,
}

/// Upper bounds of histograms, ms.
pub type Bounds = Arc<[u64]>;

merged_values! {
    /// What is set once on a level.
    pub struct Settings {
        /// Whether requests are counted.
        vhost_traffic_status: bool = true,
        /// The form, if the address does not say.
        display_format: Format = Format::Json,
        /// Under which name all hosts are summed up.
        display_sum_key: Box<str> = "*".into(),
        /// Whether they are counted by keys as well.
        filter: bool = true,
        /// Hosts are those that clients name, not those of the configuration.
        filter_by_host: bool = false,
        /// Requests that end here are not counted.
        bypass_stats: bool = false,
        /// The function that `jsonp` names.
        display_jsonp: Box<str> = "ngx_http_vhost_traffic_status_jsonp_callback".into(),
        /// A key that two levels have is counted once.
        filter_check_duplicate: bool = true,
        /// Requests with these statuses are not counted.
        ignore_status: Box<[u16]> = Box::default(),
        /// Peers are shown.
        stats_by_upstream: bool = true,
        /// Whether limits hold.
        limit: bool = true,
        /// Limits do not hold here.
        bypass_limit: bool = false,
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// `vhost_traffic_status_filter_by_set_key`, those of the levels around too.
    filters: Vec<Filter>,
    limits: limit::Limits,
    limits_by_key: limit::Limits,
}

#[derive(Clone, Debug)]
struct Filter {
    text: Box<[u8]>,
    key: Complex,
    group: Complex,
}

impl Conf {
    /// Whether requests are counted.
    pub fn counts(&self, main: &Main) -> bool {
        main.zone.is_some() && *self.settings.vhost_traffic_status
    }

    /// Whether the level has limits.
    pub fn limits(&self) -> bool {
        self.limits.is_some() || self.limits_by_key.is_some()
    }

    /// Whether they hold.
    fn limits_now(&self) -> bool {
        *self.settings.limit && !*self.settings.bypass_limit
    }

    /// A level counts by its own keys and by those of the level around.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        limit::merge(&mut self.limits, &parent.limits);
        limit::merge(&mut self.limits_by_key, &parent.limits_by_key);
        let once = *self.settings.filter_check_duplicate;
        for filter in &parent.filters {
            if self.filters.len() < MAX_FILTERS && !(once && self.filters.iter().any(|own| own.text == filter.text)) {
                self.filters.push(filter.clone());
            }
        }
    }
}

crate::inherited!(Conf, |_| true);

/// What is set once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    /// The zone, if there is one: its name and bytes.
    zone: Option<(Box<str>, u64)>,
    /// `vhost_traffic_status_filter_max_node`
    max_node: Option<usize>,
    bounds: Option<Bounds>,
    /// `vhost_traffic_status_dump`
    dump: Option<dump::Dump>,
    /// It was said that there is no room.
    is_full: AtomicBool,
}

impl Main {
    fn most(&self) -> usize {
        let bytes = self.zone.as_ref().map_or(0, |(_, bytes)| *bytes);
        let room = (bytes / count::NODE_BYTES) as usize;
        self.max_node.map_or(room, |most| most.min(room))
    }
}

fn shared_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.build.main.vts.zone.is_some() {
        return Err(setters::duplicate(node));
    }
    let (name, size) = match node.args.first() {
        None => (DEFAULT_ZONE.0.as_bytes(), DEFAULT_ZONE.1),
        Some(word) => match word.text.strip_prefix(b"shared:") {
            Some(text) => zone::name_and_size(node, word, text)?,
            None => return Err(word.problem(format!("invalid parameter \"{}\"", word.as_str()))),
        },
    };
    scope.build.main.zones.add(name, size, OWNER).map_err(|t| node.problem(t))?;
    scope.build.main.vts.zone = Some((String::from_utf8_lossy(name).into(), size));
    Ok(())
}

fn display(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if let Some(word) = node.args.first() {
        setters::one_of(&mut scope.level.conf.vts.settings.display_format, node, &FORMATS)
            .map_err(|_| word.problem(format!("invalid parameter \"{}\"", word.as_str())))?;
    }
    scope.level.conf.core.handler = Some(Content::Later(show));
    Ok(())
}

fn filter_by_set_key(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(scope.build, &node.args[0])?;
    let group = match node.args.get(1) {
        Some(word) => Complex::compile(scope.build, word)?,
        None => Complex::default(),
    };
    let text = node.args.iter().map(|word| word.text.as_slice()).collect::<Vec<_>>().join(&b' ').into_boxed_slice();
    let filters = &mut scope.level.conf.vts.filters;
    if filters.iter().any(|f| f.text == text) {
        return Err(setters::duplicate(node));
    }
    if filters.len() == MAX_FILTERS {
        return Err(node.problem(format!("number of keys exceeds {MAX_FILTERS}")));
    }
    filters.push(Filter { text, key, group });
    Ok(())
}

/// `FILE [PERIOD]`
fn dump(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.build.main.vts.dump.is_some() {
        return Err(setters::duplicate(node));
    }
    let path = scope.build.full_path(&node.args[0].text);
    let period = match node.args.get(1) {
        None => dump::PERIOD,
        Some(word) => {
            let ms = value::milliseconds(&word.text).filter(|ms| *ms > 0);
            Duration::from_millis(ms.ok_or_else(|| word.problem(format!("invalid parameter \"{}\"", word.as_str())))?)
        }
    };
    scope.build.state_files.push(path.clone());
    scope.build.main.vts.dump = Some(dump::Dump { path, period });
    Ok(())
}

fn ignore_status(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut statuses = Vec::with_capacity(node.args.len());
    for word in &node.args {
        match value::number(&word.text) {
            Some(status @ 100..=599) => statuses.push(status as u16),
            _ => return Err(word.problem(format!("invalid status \"{}\"", word.as_str()))),
        }
    }
    setters::value(&mut scope.level.conf.vts.settings.ignore_status, node, statuses.into())
}

/// `$VARIABLE GROUP/ZONE/NAME`: what was counted so far, in the order of the rewrites around.
fn set_by_filter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[1];
    let text = word.as_str();
    let parts: Vec<&str> = text.splitn(3, '/').collect();
    let [group, _, name] = parts[..] else {
        return Err(word.problem(format!("invalid parameter \"{text}\"")));
    };
    if !["server", "filter"].iter().any(|known| group.eq_ignore_ascii_case(known)) {
        let text =
            format!("\"{group}\" is not read here: \"server\" and \"filter\" are; the API tells of peers and caches");
        return Err(word.problem(text));
    }
    if number_of(name, &count::Totals::default()).is_none() {
        return Err(word.problem(format!("invalid parameter \"{text}\"")));
    }
    let value = Complex::compile(scope.build, word)?;
    rewrite::set_to(scope, node, vec![value], counted_so_far)
}

fn counted_so_far(r: &mut Request, texts: &[Text]) -> Option<Text> {
    let text = r.get(*texts.first()?).to_vec();
    let mut parts = text.splitn(3, |byte| *byte == b'/');
    let (group, zone, name) = (parts.next()?, parts.next()?, parts.next()?);
    let zone = String::from_utf8_lossy(zone);
    let (group, zone) = match group.eq_ignore_ascii_case(b"filter") {
        true => zone.split_once('@')?,
        false => ("", &*zone),
    };
    // A character that parts this text is written so in names.
    let plain = |text: &str| text.replace("[:alpha:]", "@").replace("[:slash:]", "/");
    let totals = count::totals_of(plain(group).as_bytes(), plain(zone).as_bytes())?;
    let number = number_of(std::str::from_utf8(name).ok()?, &totals)?;
    Some(crate::text!(r, "{number}"))
}

/// One of the numbers that were counted, by its name.
fn number_of(name: &str, t: &count::Totals) -> Option<u64> {
    let cached = || {
        let said = name.strip_prefix("cache")?;
        let place = STATUSES.iter().position(|status| status.text().eq_ignore_ascii_case(said))?;
        Some(t.statuses[place])
    };
    match name {
        "requestCounter" => Some(t.requests),
        "requestMsecCounter" => Some(t.ms),
        "requestMsec" => Some(t.mean_ms()),
        "inBytes" => Some(t.received),
        "outBytes" => Some(t.sent),
        _ => limit::class(name).map(|class| t.classes[class]).or_else(cached),
    }
}

fn max_node(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let most = value::number(&node.args[0].text).ok_or_else(|| Problem::invalid_number(node))?;
    // Zero is no bound but the zone's.
    scope.build.main.vts.max_node = (most > 0).then_some(most as usize);
    Ok(())
}

/// Bounds in seconds, in their order.
fn buckets(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut bounds: Vec<u64> = Vec::new();
    for word in &node.args {
        let invalid = || word.problem(format!("invalid parameter \"{}\"", word.as_str()));
        let seconds: f64 = word.as_str().parse().map_err(|_| invalid())?;
        let ms = (seconds * 1000.0).round();
        if !(1.0..=1e12).contains(&ms) || bounds.last().is_some_and(|last| *last >= ms as u64) {
            return Err(invalid());
        }
        bounds.push(ms as u64);
    }
    if bounds.len() > count::MAX_BUCKETS {
        return Err(node.problem(format!("number of buckets exceeds {}", count::MAX_BUCKETS)));
    }
    scope.build.main.vts.bounds = Some(bounds.into());
    Ok(())
}

/// The logger: counts a request that is done.
pub fn logger(r: &mut Request) {
    let snapshot = r.snapshot.clone();
    let main = &snapshot.main.vts;
    let conf = &snapshot.location(r.location).conf.vts;
    let settings = &conf.settings;
    if main.zone.is_none()
        || !r.is_main()
        || r.ctx.stream.is_some()
        || !*settings.vhost_traffic_status
        || *settings.bypass_stats
        || settings.ignore_status.contains(&r.status())
    {
        return;
    }
    let ms = clock::wall_ms().saturating_sub(r.started_ms);
    let bounds = main.bounds.as_deref().unwrap_or_default();
    let done = count::Done {
        status: r.status(),
        received: r.request_length,
        sent: r.bytes_sent(),
        ms,
        cache: r.attempts.cache,
        bucket: bounds.iter().position(|bound| ms <= *bound),
    };
    let most = main.most();
    let mut fits = with_host(r, |host| count::count(b"", host, &done, most));
    if *settings.filter {
        for filter in &conf.filters {
            let (key, group) = (filter.key.eval(r), filter.group.eval(r));
            if !r.get(key).is_empty() {
                fits &= count::count(r.get(group), r.get(key), &done, most);
            }
        }
    }
    if !fits && !main.is_full.swap(true, Relaxed) {
        log_error!(r, Warn, "vhost_traffic_status: the zone has room for {most} names, others are not counted");
    }
}

/// The host that a request is counted for.
fn with_host<T>(r: &Request, then: impl FnOnce(&[u8]) -> T) -> T {
    let named = r.head.headers.host.filter(|_| *r.conf().vts.settings.filter_by_host);
    let snapshot = &r.snapshot;
    let name = &snapshot.server(r.server).name;
    match named {
        Some(host) => then(r.get(host)),
        None => then(if name.is_empty() { b"_" } else { name }),
    }
}

/// Which form the address asks for: `.../format/json`.
fn format_of(uri: &[u8]) -> Option<Format> {
    let known = |(name, format): &(&str, Format)| {
        uri.strip_suffix(name.as_bytes()).is_some_and(|rest| rest.ends_with(b"/format/")).then_some(*format)
    };
    FORMATS.iter().find_map(known)
}

fn show(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        if !matches!(r.head.method, Method::Get | Method::Head) {
            return Verdict::Status(405);
        }
        if let Err(status) = body::discard_arrived(r) {
            return Verdict::Status(status);
        }
        let snapshot = r.snapshot.whole().clone();
        let Some(zone) = snapshot.main.vts.zone.clone() else { return Verdict::Status(500) };
        let settings = &r.conf().vts.settings;
        let format = format_of(r.get(r.head.uri)).unwrap_or(*settings.display_format);
        let sum_key = (*settings.display_sum_key).clone();
        let bounds = snapshot.main.vts.bounds.clone().unwrap_or_default();
        let (callback, peers) = ((*settings.display_jsonp).clone(), *settings.stats_by_upstream);
        let host = crate::log::hostname().to_owned();
        let wanted = page::Wanted { format, callback, peers, sum_key, bounds, zone, host };
        let page = crate::service::ask(move || async move { page::make(&snapshot, &wanted) }).await;
        let Some(page) = page else { return Verdict::Status(500) };
        r.answer.headers.content_type = Some(Text::from(match format {
            Format::Json => "application/json",
            Format::Jsonp => "application/javascript",
            Format::Html => "text/html",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }));
        r.respond(200, page.as_bytes())
    })
}
