//! What is seen: the whole terminal, or the same once as text.

use crate::look::{Look, Peer, Rates};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};
use std::collections::VecDeque;
use std::fmt::Write;
use wire::terminal::plain;

/// Seconds that the curves show.
const SHOWN: usize = 240;

/// The page.
pub(crate) struct Page {
    url: String,
    before: Option<Look>,
    now: Look,
    answers: VecDeque<u64>,
    latencies: VecDeque<u64>,
    table: TableState,
    /// `p`
    pub(crate) paused: bool,
    /// What went wrong.
    pub(crate) said: Option<String>,
}

fn count(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n if n > 0.0 && n < 10.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB", n / 1e3),
        n => format!("{n:.0} B"),
    }
}

fn ms(value: Option<u64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0) => "<1 ms".to_owned(),
        Some(ms) => format!("{ms} ms"),
    }
}

fn us(value: Option<u64>) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |us| if us < 1000 { format!("{us} us") } else { format!("{:.1} ms", us as f64 / 1e3) },
    )
}

fn color(state: &str) -> Color {
    match state {
        "up" => Color::Green,
        "draining" | "checking" => Color::Yellow,
        "down" => Color::DarkGray,
        _ => Color::Red,
    }
}

/// The lines above: rates, latency, connections.
fn facts(rates: &Rates) -> [String; 3] {
    let [reading, writing, idle] = rates.connections;
    let [p50, p90, p99] = rates.latency_ms.map(ms);
    [
        format!(
            "{} answers/s   4xx {}/s   5xx {}/s   out {}/s   in {}/s",
            count(rates.answers),
            count(rates.client_errors),
            count(rates.server_errors),
            bytes(rates.sent),
            bytes(rates.received)
        ),
        format!("latency p50 {p50}   p90 {p90}   p99 {p99}"),
        format!(
            "connections {writing} writing   {reading} reading   {idle} idle   accepted {}/s   dropped {}",
            count(rates.accepted),
            rates.dropped
        ),
    ]
}

fn peer_cells(now: &Look, before: &Look, p: &Peer) -> [String; 8] {
    let (requests, errors) = now.of_peer(before, p);
    let group = plain(&p.group).into_owned();
    let group = if p.plane == "stream" { format!("stream {group}") } else { group };
    let state = if p.reason.is_empty() { p.state.clone() } else { format!("{}: {}", p.state, p.reason) };
    [
        group,
        p.server.clone(),
        count(requests),
        count(errors),
        p.active.to_string(),
        us(p.header_us),
        p.weight.to_string(),
        if p.fails > 0 { format!("{state} ({} fails)", p.fails) } else { state },
    ]
}

const PEER_HEAD: [&str; 8] = ["upstream", "peer", "req/s", "5xx/s", "in use", "header", "weight", "state"];

fn thread_lines(now: &Look, before: &Look) -> Vec<String> {
    let threads = now.threads(before);
    let line = |t: &crate::look::Thread| {
        format!(
            "{:>3} {:>8} req/s {:>6} conn  CPU {:>3.0} %  waits {:>3.0} %  loop p99 {}",
            t.number,
            count(t.requests),
            t.connections,
            t.running * 100.0,
            t.waiting * 100.0,
            us(t.turn_p99_us)
        )
    };
    threads.iter().map(line).collect()
}

fn listener_lines(now: &Look, before: &Look) -> Vec<String> {
    let line = |l: &crate::look::Listener| {
        let queue = match l.queue {
            Some([waiting, limit]) => format!("queue {waiting} of {limit}"),
            None => "queue not told".to_owned(),
        };
        let drops = l.drops.map_or_else(String::new, |n| format!("  dropped {n}"));
        format!("{:<22} {:>8} acc/s  {queue}{drops}", l.address, count(l.accepted))
    };
    now.listeners(before).iter().map(line).collect()
}

/// Everything once.
pub(crate) fn text(before: &Look, now: &Look) -> String {
    let mut out = String::new();
    for line in facts(&now.rates(before)) {
        let _ = writeln!(out, "{line}");
    }
    if let Some((sentence, _)) = &now.why {
        let _ = writeln!(out, "{sentence}");
    }
    let _ = writeln!(out, "\nthreads");
    thread_lines(now, before).iter().for_each(|l| out += &format!("{l}\n"));
    let _ = writeln!(out, "\nlisteners");
    listener_lines(now, before).iter().for_each(|l| out += &format!("{l}\n"));
    let _ = writeln!(out, "\n{}", PEER_HEAD.join("\t"));
    for peer in &now.peers {
        let _ = writeln!(out, "{}", peer_cells(now, before, peer).join("\t"));
    }
    out
}

impl Page {
    /// The page with its first look.
    pub(crate) fn new(url: &str, now: Look) -> Page {
        let table = TableState::default().with_selected(Some(0));
        let (answers, latencies) = Default::default();
        Page { url: url.to_owned(), before: None, now, answers, latencies, table, paused: false, said: None }
    }

    /// Takes the next look, or why there is none.
    pub(crate) fn take(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.before = Some(std::mem::replace(&mut self.now, look));
                if let Some(before) = &self.before {
                    let rates = self.now.rates(before);
                    push(&mut self.answers, rates.answers as u64);
                    push(&mut self.latencies, rates.latency_ms[2].unwrap_or(0));
                }
                let last = self.now.peers.len().saturating_sub(1);
                self.table.select(self.table.selected().map(|s| s.min(last)));
            }
            Err(text) => self.said = Some(text),
        }
    }

    /// Whether changes may be made.
    pub(crate) fn may_write(&self) -> bool {
        self.now.may_write()
    }

    /// The peer that keys are about.
    pub(crate) fn chosen(&self) -> Option<&Peer> {
        self.now.peers.get(self.table.selected()?)
    }

    /// Its endpoint.
    pub(crate) fn chosen_path(&self) -> Option<String> {
        let p = self.chosen()?;
        // A name may have anything in it.
        let group: String = p
            .group
            .bytes()
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        Some(format!("{}/upstreams/{group}/servers/{}", p.plane, p.id))
    }

    /// Moves to another peer.
    pub(crate) fn choose(&mut self, by: isize) {
        let last = self.now.peers.len().saturating_sub(1);
        let at = self.table.selected().unwrap_or(0).saturating_add_signed(by).min(last);
        self.table.select(Some(at));
        self.said = None;
    }

    /// Draws all of it.
    pub(crate) fn draw(&mut self, frame: &mut Frame) {
        let before = self.before.as_ref().unwrap_or(&self.now);
        let (threads, listeners) = (thread_lines(&self.now, before), listener_lines(&self.now, before));
        let small = frame.area().height < 30;
        let tall = |lines: &Vec<String>| lines.len().clamp(1, if small { 3 } else { 8 }) as u16 + 2;
        let rows = [
            Constraint::Length(6),
            Constraint::Length(if small { 0 } else { 6 }),
            Constraint::Length(tall(&threads)),
            Constraint::Length(tall(&listeners)),
            Constraint::Min(4),
            Constraint::Length(1),
        ];
        let [top, curves, at_threads, at_listeners, peers, bottom] = Layout::vertical(rows).areas(frame.area());
        self.draw_facts(frame, top);
        if !small {
            let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(curves);
            draw_curve(frame, left, " answers a second ", &self.answers, Color::Cyan);
            draw_curve(frame, right, " latency p99, ms ", &self.latencies, Color::Yellow);
        }
        draw_lines(frame, at_threads, " threads ", &threads);
        draw_lines(frame, at_listeners, " listeners ", &listeners);
        self.draw_peers(frame, peers);
        frame.render_widget(self.foot(), bottom);
    }

    fn draw_facts(&self, frame: &mut Frame, area: Rect) {
        let rates = self.now.rates(self.before.as_ref().unwrap_or(&self.now));
        let [first, second, third] = facts(&rates);
        let first = if rates.server_errors > 0.0 { Line::from(first).red() } else { Line::from(first).bold() };
        let why = match &self.now.why {
            Some((sentence, true)) => Line::from(sentence.as_str()).red(),
            Some((sentence, false)) => Line::from(sentence.as_str()).green(),
            None => Line::from(""),
        };
        let about = &self.now.about;
        let build = plain(about["build"].as_str().unwrap_or_default());
        let generation = about["generation"].as_u64().unwrap_or_default();
        let title = format!(" {build} at {} · configuration {generation} ", self.url);
        let block = Block::bordered().title(title);
        frame.render_widget(Paragraph::new(vec![first, Line::from(second), Line::from(third), why]).block(block), area);
    }

    fn draw_peers(&mut self, frame: &mut Frame, area: Rect) {
        let before = self.before.as_ref().unwrap_or(&self.now);
        let rows = self.now.peers.iter().map(|p| {
            let [rest @ .., state] = peer_cells(&self.now, before, p);
            let cells =
                rest.into_iter().map(Cell::from).chain([Cell::from(state).style(Style::new().fg(color(&p.state)))]);
            Row::new(cells.collect::<Vec<_>>())
        });
        let widths = [
            Constraint::Max(18),
            Constraint::Max(24),
            Constraint::Length(6),
            Constraint::Length(5),
            Constraint::Length(6),
            Constraint::Length(7),
            Constraint::Length(6),
            Constraint::Min(12),
        ];
        // A reason is longer than a column: that of the chosen peer stands below.
        let chosen = self.chosen().filter(|p| !p.reason.is_empty());
        let why = chosen.map_or_else(String::new, |p| format!(" {}: {} ", p.server, p.reason));
        let table = Table::new(rows, widths)
            .header(Row::new(PEER_HEAD).dim())
            .row_highlight_style(Style::new().reversed())
            .block(Block::bordered().title(" peers of groups with a zone ").title_bottom(Line::from(why).red()));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn foot(&self) -> Line<'_> {
        if let Some(said) = &self.said {
            return Line::from(said.as_str()).red();
        }
        let keys = if self.may_write() {
            "q end  p pause  up/down peer  d drain  x down  +/- weight"
        } else {
            "q end  p pause  up/down peer  (write access is off)"
        };
        let state = if self.paused { Span::from("paused  ").yellow() } else { Span::from("live  ").green() };
        Line::from(vec![state, Span::from(keys).dim()])
    }
}

fn push(curve: &mut VecDeque<u64>, value: u64) {
    if curve.len() == SHOWN {
        curve.pop_front();
    }
    curve.push_back(value);
}

fn draw_curve(frame: &mut Frame, area: Rect, title: &str, curve: &VecDeque<u64>, color: Color) {
    let width = area.width.saturating_sub(2) as usize;
    let shown: Vec<u64> = curve.iter().skip(curve.len().saturating_sub(width)).copied().collect();
    let title = format!("{title}(highest {}) ", shown.iter().max().copied().unwrap_or(0));
    frame.render_widget(
        Sparkline::default().data(&shown).style(Style::new().fg(color)).block(Block::bordered().title(title)),
        area,
    );
}

fn draw_lines(frame: &mut Frame, area: Rect, title: &str, lines: &[String]) {
    let text: Vec<Line> = lines.iter().map(|l| Line::from(l.as_str())).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title.to_owned())), area);
}
