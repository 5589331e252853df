//! `vhost_traffic_status`: requests counted by host and by keys of one's own, shown as the module of vozlt (`nginx-module-vts`) shows
//! them. What is counted is in `count`, what is shown in `page`.

mod count;
mod page;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::{Directive, Scope, http};
use crate::log_error;
use crate::modules::ignored;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, Text, body};
use crate::{merged_values, zone};
use conf::{Node, Problem, value};
use runtime::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
    http("vhost_traffic_status_bypass_stats", |s, n| setters::flag(&mut s.level.conf.vts.settings.bypass_stats, n)),
    // There are no limits of this module here that could be passed by.
    http("vhost_traffic_status_bypass_limit", ignored::any),
];

const OWNER: &str = "vhost_traffic_status_zone";
/// As the module has it.
const DEFAULT_ZONE: (&str, u64) = ("ngx_http_vhost_traffic_status", 1024 * 1024);
const FORMATS: [(&str, Format); 3] =
    [("json", Format::Json), ("html", Format::Html), ("prometheus", Format::Prometheus)];
/// Keys that a request is counted by, all levels together.
const MAX_FILTERS: usize = 32;

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For programs.
    Json,
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
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// `vhost_traffic_status_filter_by_set_key`, those of the levels around too.
    filters: Vec<Filter>,
}

#[derive(Clone, Debug)]
struct Filter {
    text: Box<[u8]>,
    key: Complex,
    group: Complex,
}

impl Conf {
    /// Whether requests are counted.
    pub fn counts(&self) -> bool {
        *self.settings.vhost_traffic_status
    }

    /// A level counts by its own keys and by those of the level around.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        for filter in &parent.filters {
            if self.filters.len() < MAX_FILTERS && !self.filters.iter().any(|own| own.text == filter.text) {
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
    let name = &snapshot.server(r.server).name;
    let host = r.head.headers.host.filter(|_| *settings.filter_by_host);
    let most = main.most();
    let mut fits = match host {
        Some(host) => count::count(b"", r.get(host), &done, most),
        None => count::count(b"", if name.is_empty() { b"_" } else { name }, &done, most),
    };
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
        let host = crate::log::hostname().to_owned();
        let wanted = page::Wanted { format, sum_key, bounds, zone, host };
        let page = crate::service::ask(move || async move { page::make(&snapshot, &wanted) }).await;
        let Some(page) = page else { return Verdict::Status(500) };
        r.answer.headers.content_type = Some(Text::from(match format {
            Format::Json => "application/json",
            Format::Html => "text/html",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }));
        r.respond(200, page.as_bytes())
    })
}
