//! What is seen while a run lasts: a page in the terminal, or a plain line a second where there is none.

use super::{metric, time};
use crate::plan::Plan;
use crate::run::Watch;
use crate::sample::{Latencies, Second};
use crate::system::Interrupts;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};
use std::cell::RefCell;
use std::io::{Stdout, Write, stdout};
use std::rc::Rc;
use std::time::Duration;

/// Seconds that the curves show.
const SHOWN: usize = 120;
/// Steps of a search that are shown, the last ones.
const STEPS: usize = 6;

/// Lines about the steps of a search, shared with whoever makes them.
pub type Steps = Rc<RefCell<Vec<String>>>;

/// How a run is shown.
pub struct Live {
    view: View,
    interrupts: Option<Interrupts>,
    is_stopped: bool,
    threads: usize,
    duration: Option<Duration>,
    total: Option<u64>,
    title: String,
    answers: u64,
    errors: u64,
    all: Latencies,
    steps: Steps,
}

enum View {
    Nothing,
    Lines,
    Page(Box<Page>),
}

struct Page {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    rates: Vec<(f64, f64)>,
    medians: Vec<(f64, f64)>,
    highs: Vec<(f64, f64)>,
}

/// Which of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// `--quiet`
    Nothing,
    /// One line a second on the standard error.
    Lines,
    /// The whole terminal.
    Page,
}

impl Live {
    /// `interrupts`: opened before any thread was started. `machines`: how many share the load. Shown as a page, it has the terminal
    /// until it is dropped: nobody else prints meanwhile.
    pub fn new(plan: &Plan, style: Shown, interrupts: Option<Interrupts>, machines: usize, steps: Steps) -> Live {
        let view = match style {
            Shown::Nothing => View::Nothing,
            Shown::Lines => View::Lines,
            Shown::Page => Page::open().map_or(View::Lines, |p| View::Page(Box::new(p))),
        };
        Live {
            view,
            interrupts,
            is_stopped: false,
            threads: plan.threads * machines,
            duration: plan.duration,
            total: plan.total,
            title: format!(" {} ", plan.url),
            answers: 0,
            errors: 0,
            all: Latencies::default(),
            steps,
        }
    }

    fn line(&self, s: &Second) -> String {
        let (p50, p99) = (time(s.latency.quantile(0.5) as f64), time(s.latency.quantile(0.99) as f64));
        format!(
            "{:>5}s {:>9} req/s  p50 {p50:>9}  p99 {p99:>9}  errors {}  connections {}  generator CPU {:.0} %{}",
            s.number + 1,
            metric(s.answers as f64),
            s.errors,
            s.open,
            self.cpu(s) * 100.0,
            self.left(s).map(|l| format!("  {l} left")).unwrap_or_default()
        )
    }

    fn cpu(&self, s: &Second) -> f64 {
        s.cpu_ns as f64 / 1e9 / self.threads.max(1) as f64
    }

    fn left(&self, s: &Second) -> Option<String> {
        match (self.duration, self.total) {
            (_, Some(total)) => Some(format!("{} requests", total.saturating_sub(self.answers))),
            (Some(d), None) => Some(format!("{}s", (d.as_secs_f64() - f64::from(s.number) - 1.0).max(0.0).round())),
            (None, None) => None,
        }
    }

    fn done(&self, s: &Second) -> f64 {
        let part = match (self.duration, self.total) {
            (_, Some(total)) => self.answers as f64 / total.max(1) as f64,
            (Some(d), None) => f64::from(s.number + 1) / d.as_secs_f64().max(1e-9),
            (None, None) => 0.0,
        };
        part.clamp(0.0, 1.0)
    }
}

impl Watch for Live {
    /// Each run of a search has seconds of its own.
    fn start(&mut self) {
        if let View::Page(page) = &mut self.view {
            [&mut page.rates, &mut page.medians, &mut page.highs].into_iter().for_each(Vec::clear);
        }
        (self.answers, self.errors, self.all) = (0, 0, Latencies::default());
    }

    fn second(&mut self, s: &Second) {
        self.answers += s.answers;
        self.errors += s.errors;
        self.all.merge(&s.latency);
        match &mut self.view {
            View::Nothing => {}
            View::Lines => {
                let line = self.line(s);
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            View::Page(page) => {
                page.push(s);
                self.draw(s);
            }
        }
    }

    fn goes_on(&mut self) -> bool {
        self.is_stopped |= self.interrupts.as_ref().is_some_and(Interrupts::is_raised);
        !self.is_stopped
    }
}

impl Live {
    fn draw(&mut self, s: &Second) {
        let facts = vec![
            Line::from(vec![
                format!(" {} req/s", metric(s.answers as f64)).bold(),
                format!("   {} answers   ", self.answers).into(),
                if self.errors > 0 { format!("{} errors", self.errors).red() } else { "0 errors".green() },
            ]),
            Line::from(format!(
                " p50 {}   p90 {}   p99 {}   p99.9 {}   max {}",
                time(self.all.quantile(0.5) as f64),
                time(self.all.quantile(0.9) as f64),
                time(self.all.quantile(0.99) as f64),
                time(self.all.quantile(0.999) as f64),
                time(self.all.max() as f64)
            )),
            Line::from(format!(" {} connections   generator CPU {:.0} %", s.open, self.cpu(s) * 100.0)),
        ];
        let (done, left) = (self.done(s), self.left(s).map(|l| format!("{l} left")).unwrap_or_default());
        let View::Page(page) = &mut self.view else { return };
        let Page { terminal, rates, medians, highs } = page.as_mut();
        let title = self.title.as_str();
        let steps = self.steps.borrow();
        let shown = &steps[steps.len().saturating_sub(STEPS)..];
        let tall = if shown.is_empty() { 0 } else { shown.len() as u16 + 2 };
        let _ = terminal.draw(|frame| {
            let rows = [5, tall].map(Constraint::Length).into_iter();
            let rows = rows.chain([Constraint::Min(6), Constraint::Min(6), Constraint::Length(1)]);
            let [top, search, rate, latency, bottom] = Layout::vertical(rows).areas(frame.area());
            let lines: Vec<Line> = shown.iter().map(|line| Line::from(line.trim_end())).collect();
            frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" steps ")), search);
            frame.render_widget(Paragraph::new(facts).block(Block::bordered().title(title)), top);
            frame.render_widget(chart(" requests a second ", &[(rates, Color::Cyan)], &metric), rate);
            let curves: [(&[(f64, f64)], Color); 2] = [(medians, Color::Green), (highs, Color::Yellow)];
            let name = |us: f64| time(us * 1e3);
            frame.render_widget(chart(" latency: p50 green, p99 yellow ", &curves, &name), latency);
            frame.render_widget(Gauge::default().ratio(done).label(left).gauge_style(Style::new().blue()), bottom);
        });
    }
}

fn chart<'a>(title: &'a str, curves: &[(&'a [(f64, f64)], Color)], name: &dyn Fn(f64) -> String) -> Chart<'a> {
    let points = || curves.iter().flat_map(|c| c.0.iter());
    let first = points().map(|p| p.0).fold(f64::MAX, f64::min);
    let last = points().map(|p| p.0).fold(first + 1.0, f64::max);
    let top = points().map(|p| p.1).fold(1.0, f64::max) * 1.1;
    let set = |c: &(&'a [(f64, f64)], Color)| {
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(Style::new().fg(c.1)).data(c.0)
    };
    Chart::new(curves.iter().map(set).collect())
        .block(Block::bordered().title(title))
        .x_axis(Axis::default().bounds([first, last]).labels([format!("{first:.0}s"), format!("{last:.0}s")]))
        .y_axis(Axis::default().bounds([0.0, top]).labels(["0".to_owned(), name(top / 2.0), name(top)]))
}

impl Page {
    fn open() -> Option<Page> {
        execute!(stdout(), EnterAlternateScreen, cursor::Hide).ok()?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).ok()?;
        Some(Page { terminal, rates: Vec::new(), medians: Vec::new(), highs: Vec::new() })
    }

    fn push(&mut self, s: &Second) {
        let x = f64::from(s.number + 1);
        let us = |q: f64| s.latency.quantile(q) as f64 / 1e3;
        let points = [s.answers as f64, us(0.5), us(0.99)];
        for (list, y) in [&mut self.rates, &mut self.medians, &mut self.highs].into_iter().zip(points) {
            list.push((x, y));
            if list.len() > SHOWN {
                list.remove(0);
            }
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = execute!(stdout(), LeaveAlternateScreen, cursor::Show);
    }
}
