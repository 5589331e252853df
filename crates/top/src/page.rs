//! What is seen: the whole terminal, or the same once as text.

use crate::lists::{Tab, bytes, count};
use crate::look::{Look, Peer, Rates};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};
use std::collections::VecDeque;
use std::fmt::Write;
use wire::terminal::plain;

/// From so many columns on all of a peer is shown.
const WIDE: u16 = 100;
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
    /// What is shown below.
    pub(crate) tab: Tab,
    /// A change that is to be confirmed.
    pub(crate) asks: Option<Change>,
}

/// A change of a peer.
pub(crate) struct Change {
    /// What it is, as a question.
    pub(crate) question: String,
    /// Where it is made.
    pub(crate) path: String,
    /// What is said there.
    pub(crate) body: serde_json::Value,
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

/// A text in so many columns. What is too long loses its beginning: a port is at the end.
fn end_of(text: &str, columns: usize) -> String {
    let count = text.chars().count();
    match count > columns {
        true => format!("…{}", text.chars().skip(count + 1 - columns.max(1)).collect::<String>()),
        false => text.to_owned(),
    }
}

fn peer_cells(now: &Look, before: &Look, p: &Peer) -> [String; 8] {
    let (requests, errors) = now.of_peer(before, p);
    let group = plain(&p.group).into_owned();
    let group = if p.subsystem == "stream" { format!("stream {group}") } else { group };
    let server = if p.backup { format!("{} (backup)", p.server) } else { p.server.clone() };
    let state = if p.reason.is_empty() { p.state.clone() } else { format!("{}: {}", p.state, p.reason) };
    [
        group,
        server,
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

/// A color for each part of a request's time, by its place in its life.
const PART_COLORS: [Color; 5] = [Color::Blue, Color::Cyan, Color::Green, Color::Yellow, Color::Magenta];
/// Columns of the bar.
const BAR: f64 = 40.0;

/// What a request waits for, as pieces of a bar with their names: each is at least a column wide.
fn request_bar(parts: &[(&'static str, f64)]) -> Vec<(String, String)> {
    let whole: f64 = parts.iter().map(|p| p.1).sum();
    let piece = |(name, us): &(&'static str, f64)| {
        let part = us / whole.max(f64::MIN_POSITIVE);
        ("\u{2588}".repeat(((part * BAR).round() as usize).max(1)), format!("{name} {:.0} %", part * 100.0))
    };
    parts.iter().map(piece).collect()
}

fn request_time(parts: &[(&'static str, f64)]) -> String {
    format!("request {}", us(Some(parts.iter().map(|p| p.1).sum::<f64>().round() as u64)))
}

fn interface_line(i: &crate::look::Interface) -> String {
    let [rx, tx] = i.bits.map(|b| format!("{:.2} Mbit/s", b / 1e6));
    let [rx_packets, tx_packets] = i.packets.map(count);
    let most = i.bits[0].max(i.bits[1]);
    let full =
        i.speed.filter(|s| *s > 0).map_or_else(String::new, |s| format!("   {:.0} % full", most / s as f64 * 100.0));
    let lost = if i.drops + i.errors > 0.0 {
        format!("   drops {}/s   errors {}/s", count(i.drops), count(i.errors))
    } else {
        String::new()
    };
    format!("{}   in {rx} {rx_packets} pps   out {tx} {tx_packets} pps{full}{lost}", i.name)
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
    if !now.parts_us.is_empty() {
        let parts: Vec<String> = request_bar(&now.parts_us).into_iter().map(|(_, name)| name).collect();
        let _ = writeln!(out, "{}: {}", request_time(&now.parts_us), parts.join(", "));
    }
    if let Some(held) = &now.held {
        let _ = writeln!(out, "{held}");
    }
    if !now.interfaces.is_empty() {
        let _ = writeln!(out, "\ninterfaces");
        now.interfaces.iter().for_each(|i| out += &format!("{}\n", interface_line(i)));
    }
    let _ = writeln!(out, "\nthreads");
    thread_lines(now, before).iter().for_each(|l| out += &format!("{l}\n"));
    let _ = writeln!(out, "\nlisteners");
    listener_lines(now, before).iter().for_each(|l| out += &format!("{l}\n"));
    let _ = writeln!(out, "\n{}", PEER_HEAD.join("\t"));
    for peer in &now.peers {
        let _ = writeln!(out, "{}", peer_cells(now, before, peer).join("\t"));
    }
    for tab in Tab::ALL {
        let rows = now.rows(before, tab);
        if !rows.is_empty() {
            let _ = writeln!(out, "\n{}\n{}", tab.name(), tab.head().join("\t"));
            rows.iter().for_each(|row| out += &format!("{}\n", row.cells.join("\t")));
        }
    }
    out
}

impl Page {
    /// The page with its first look.
    pub(crate) fn new(url: &str, now: Look) -> Page {
        let table = TableState::default().with_selected(Some(0));
        let (answers, latencies) = Default::default();
        Page {
            url: url.to_owned(),
            before: None,
            now,
            answers,
            latencies,
            table,
            paused: false,
            said: None,
            tab: Tab::Peers,
            asks: None,
        }
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
                self.choose_at_most(self.table.selected().unwrap_or(0));
            }
            Err(text) => self.said = Some(text),
        }
    }

    /// Takes a look out of turn: it is measured against the same one as the last, and is no point of the curves.
    pub(crate) fn refresh(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.now = look;
                self.choose_at_most(self.table.selected().unwrap_or(0));
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
        self.now.peers.get(self.table.selected()?).filter(|_| self.tab == Tab::Peers)
    }

    /// How many rows the list has.
    fn len(&self) -> usize {
        match self.tab {
            Tab::Peers => self.now.peers.len(),
            tab => self.now.rows(self.before.as_ref().unwrap_or(&self.now), tab).len(),
        }
    }

    fn choose_at_most(&mut self, at: usize) {
        self.table.select(Some(at.min(self.len().saturating_sub(1))));
    }

    /// Shows another list.
    pub(crate) fn turn_to(&mut self, tab: Tab) {
        (self.tab, self.asks, self.said) = (tab, None, None);
        self.table.select(Some(0));
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
        Some(format!("{}/upstreams/{group}/servers/{}", p.subsystem, p.id))
    }

    /// Moves to another peer.
    pub(crate) fn choose(&mut self, by: isize) {
        self.choose_at_most(self.table.selected().unwrap_or(0).saturating_add_signed(by));
        (self.said, self.asks) = (None, None);
    }

    /// Draws all of it.
    pub(crate) fn draw(&mut self, frame: &mut Frame) {
        let before = self.before.as_ref().unwrap_or(&self.now);
        let (threads, listeners) = (thread_lines(&self.now, before), listener_lines(&self.now, before));
        let small = frame.area().height < 30;
        let tall = |lines: &Vec<String>| lines.len().clamp(1, if small { 3 } else { 8 }) as u16 + 2;
        let rows = [
            Constraint::Length(6 + self.more_facts(small)),
            Constraint::Length(if small { 0 } else { 6 }),
            Constraint::Length(tall(&threads)),
            Constraint::Length(tall(&listeners)),
            Constraint::Min(4),
            Constraint::Length(1),
        ];
        let [top, curves, at_threads, at_listeners, peers, bottom] = Layout::vertical(rows).areas(frame.area());
        self.draw_facts(frame, top, small);
        if !small {
            let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(curves);
            draw_curve(frame, left, " answers a second ", &self.answers, Color::Cyan);
            draw_curve(frame, right, " latency p99, ms ", &self.latencies, Color::Yellow);
        }
        draw_lines(frame, at_threads, " threads ", &threads);
        draw_lines(frame, at_listeners, " listeners ", &listeners);
        match self.tab {
            Tab::Peers => self.draw_peers(frame, peers),
            tab => self.draw_list(frame, peers, tab),
        }
        frame.render_widget(self.foot(), bottom);
    }

    /// Lines of facts that are not always there. Where there is little room, only the busiest interface is shown.
    fn more_facts(&self, small: bool) -> u16 {
        let interfaces = if small { self.now.interfaces.len().min(1) } else { self.now.interfaces.len() };
        u16::from(self.now.held.is_some()) + u16::from(!self.now.parts_us.is_empty()) + interfaces as u16
    }

    /// A request's time from its SYN to its last byte, as a bar.
    fn time_line(&self) -> Line<'static> {
        let mut spans = vec![Span::from(request_time(&self.now.parts_us) + "  ")];
        let pieces = request_bar(&self.now.parts_us);
        let color = |at: usize| PART_COLORS[at % PART_COLORS.len()];
        spans.extend(pieces.iter().enumerate().map(|(at, (bar, _))| Span::from(bar.clone()).fg(color(at))));
        spans.extend(pieces.iter().enumerate().map(|(at, (_, name))| Span::from(format!("  {name}")).fg(color(at))));
        Line::from(spans)
    }

    fn draw_facts(&self, frame: &mut Frame, area: Rect, small: bool) {
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
        let mut lines = vec![first, Line::from(second), Line::from(third), why];
        lines.extend((!self.now.parts_us.is_empty()).then(|| self.time_line()));
        lines.extend(self.now.held.as_deref().map(Line::from));
        let interfaces = self.now.interfaces.iter().take(if small { 1 } else { usize::MAX });
        lines.extend(interfaces.map(|i| Line::from(interface_line(i))));
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    /// Where in the list the chosen row is.
    fn place(&self, len: usize) -> String {
        match len {
            0 => "none".to_owned(),
            len => format!("{} of {len}", self.table.selected().unwrap_or(0).min(len - 1) + 1),
        }
    }

    fn draw_peers(&mut self, frame: &mut Frame, area: Rect) {
        let before = self.before.as_ref().unwrap_or(&self.now);
        let narrow = area.width < WIDE;
        let all: Vec<[String; 8]> = self.now.peers.iter().map(|p| peer_cells(&self.now, before, p)).collect();
        let longest = |at: usize, most: usize| all.iter().map(|c| c[at].chars().count()).max().unwrap_or(0).min(most);
        let (group, server) =
            (longest(0, if narrow { 12 } else { 24 }).max(8), longest(1, if narrow { 26 } else { 48 }).max(8));
        let rows = all.iter().zip(&self.now.peers).map(|(cells, p)| {
            let [name, peer, requests, errors, active, header, weight, state] = cells;
            let mut shown = vec![Cell::from(end_of(name, group)), Cell::from(end_of(peer, server))];
            shown.extend([requests, errors, active, header].map(|c| Cell::from(c.clone())));
            if !narrow {
                shown.push(Cell::from(weight.clone()));
            }
            shown.push(Cell::from(state.clone()).style(Style::new().fg(color(&p.state))));
            Row::new(shown)
        });
        let mut widths = vec![Constraint::Length(group as u16), Constraint::Length(server as u16)];
        widths.extend([6, 5, 6, 7].map(Constraint::Length));
        let mut head = PEER_HEAD.to_vec();
        match narrow {
            true => drop(head.remove(6)),
            false => widths.push(Constraint::Length(6)),
        }
        widths.push(Constraint::Min(4));
        // A reason is longer than a column: that of the chosen peer stands below, and its weight where there is no column.
        let chosen = self.chosen();
        let why = chosen
            .filter(|p| !p.reason.is_empty())
            .map_or_else(String::new, |p| format!(" {}: {} ", p.server, p.reason));
        let weight = chosen.filter(|_| narrow).map_or_else(String::new, |p| format!(", weight {}", p.weight));
        let title = format!(" peers of groups with a zone: {}{weight} ", self.place(all.len()));
        let table = Table::new(rows, widths)
            .header(Row::new(head).dim())
            .row_highlight_style(Style::new().reversed())
            .block(Block::bordered().title(title).title_bottom(Line::from(why).red()));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn draw_list(&mut self, frame: &mut Frame, area: Rect, tab: Tab) {
        let lines = self.now.rows(self.before.as_ref().unwrap_or(&self.now), tab);
        let head = tab.head();
        let width = |at: usize| {
            let cells = lines.iter().map(|l| l.cells[at].chars().count());
            cells.chain([head[at].len()]).max().unwrap_or(0).min(40) as u16
        };
        let mut widths: Vec<_> = (0..head.len()).map(|at| Constraint::Length(width(at))).collect();
        if let Some(last) = widths.last_mut() {
            *last = Constraint::Min(6);
        }
        let title = format!(" {}: {} ", tab.name(), self.place(lines.len()));
        let rows = lines.into_iter().map(|l| {
            let row = Row::new(l.cells);
            if l.bad { row.style(Style::new().fg(Color::Red)) } else { row }
        });
        let table = Table::new(rows, widths)
            .header(Row::new(head.iter().copied()).dim())
            .row_highlight_style(Style::new().reversed())
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn foot(&self) -> Line<'_> {
        if let Some(said) = &self.said {
            return Line::from(said.as_str()).red();
        }
        if let Some(change) = &self.asks {
            return Line::from(format!("{} y: yes, any other key: no", change.question)).yellow();
        }
        let keys = match (self.tab, self.may_write()) {
            (Tab::Peers, true) => "q end p pause 1-6 lists ↑↓ peer d drain x down +- weight",
            (Tab::Peers, false) => "q end  p pause  1-6 lists  ↑↓ peer  (write access is off)",
            _ => "q end  p pause  1 peers 2 zones 3 caches 4 limits 5 certificates 6 kernel",
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a terminal of this size shows.
    fn drawn(page: &mut Page, width: u16, height: u16) -> String {
        let backend = ratatui::backend::TestBackend::new(width, height);
        let mut terminal = ratatui::Terminal::new(backend).expect("it is in memory");
        terminal.draw(|frame| page.draw(frame)).expect("it is in memory");
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content.chunks(width as usize).map(|row| row.iter().map(|c| c.symbol()).collect::<String>());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn page() -> Page {
        let peer = |id: u64, server: &str, backup: bool| json!({"id": id, "server": server, "state": "up", "weight": 7, "backup": backup});
        let peers = [
            ("first", peer(0, "192.168.100.101:18080", false)),
            ("second", peer(1, "[2001:db8:ffff:ffff:ffff:ffff:1:2]:28080", false)),
            ("second", peer(2, "10.0.0.3:38080", true)),
        ];
        Page::new("http://h/api", Look::of_peers(&peers))
    }

    #[test]
    fn a_small_terminal_shows_ports_whole() {
        let mut page = page();
        page.choose(1);
        let shown = drawn(&mut page, 80, 24);
        for text in ["192.168.100.101:18080", "…", ":28080", "10.0.0.3:38080 (backup)", "2 of 3, weight 7", "1-6 lists"]
        {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        let shown = drawn(&mut page, 140, 40);
        assert!(shown.contains("[2001:db8:ffff:ffff:ffff:ffff:1:2]:28080") && shown.contains("weight"), "{shown}");
    }

    #[test]
    fn a_requests_time_and_interfaces_are_shown() {
        let mut look = Look::of_peers(&[]);
        look.parts_us = vec![("server", 500.0), ("first byte", 1_500.0)];
        let interface = |name: &str, drops| crate::look::Interface {
            name: name.to_owned(),
            bits: [12e6, 1e6],
            packets: [1_200.0, 90.0],
            drops,
            errors: 0.0,
            speed: Some(100_000_000),
        };
        look.interfaces = vec![interface("eth0", 0.0), interface("eth1", 4.0)];
        let mut page = Page::new("http://h/api", look);
        let shown = drawn(&mut page, 120, 40);
        for text in [
            "request 2.0 ms  \u{2588}",
            "server 25 %",
            "first byte 75 %",
            "eth0   in 12.00 Mbit/s 1",
            "12 % full",
            "drops 4.0/s",
        ] {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        let small = drawn(&mut page, 80, 24);
        assert!(small.contains("eth0") && !small.contains("eth1"), "{small}");
    }

    #[test]
    fn lists_are_turned_to_and_questions_asked() {
        let mut page = page();
        page.turn_to(Tab::Certificates);
        let shown = drawn(&mut page, 80, 24);
        assert!(shown.contains("certificates: none") && shown.contains("hosts") && page.chosen().is_none(), "{shown}");
        page.turn_to(Tab::Peers);
        page.asks = Some(Change { question: "drain 10.0.0.3:38080?".to_owned(), path: String::new(), body: json!({}) });
        assert!(drawn(&mut page, 80, 24).contains("drain 10.0.0.3:38080? y: yes"));
    }
}
