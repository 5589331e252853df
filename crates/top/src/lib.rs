//! `ironweir top`: a running server in the terminal, by its API. Asks once a second (`api-client`), makes rates of what it hears
//! (`look`), draws (`page`). Knows nothing of the server but its API.

mod look;
mod page;

use api_client::{Client, URL};
use look::Look;
use page::Page;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

const HELP: &str = "Usage: ironweir top [--once] [URL]

Shows a running server by its API. URL is where a location with \"api\" is (default: http://127.0.0.1:8080/api).

  --once  print two looks, a second apart, as text, and end

Keys: q end, p pause, up/down choose a peer; with api write=on: d drain or take back, x down or up, + and - weight
";

/// Runs the command; `arguments` are those behind `top`.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let (mut url, mut once) = (URL.to_owned(), false);
    for argument in arguments {
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--once" => once = true,
            a if a.starts_with('-') => return complain(&format!("unknown option {a}\n\n{HELP}")),
            a => url = a.to_owned(),
        }
    }
    let client = match Client::new(&url) {
        Ok(client) => client,
        Err(text) => return complain(&text),
    };
    let first = match Look::take(&client) {
        Ok(look) => look,
        Err(text) => return complain(&text),
    };
    if once || !std::io::stdout().is_terminal() {
        return print_once(&client, &first);
    }
    match watch(&client, first) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => complain(&format!("the terminal failed ({e})")),
    }
}

fn complain(text: &str) -> ExitCode {
    eprintln!("ironweir top: {text}");
    ExitCode::FAILURE
}

fn print_once(client: &Client, first: &Look) -> ExitCode {
    std::thread::sleep(PAUSE);
    match Look::take(client) {
        Ok(second) => {
            print!("{}", page::text(first, &second));
            ExitCode::SUCCESS
        }
        Err(text) => complain(&text),
    }
}

/// Draws until `q`.
fn watch(client: &Client, first: Look) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut page = Page::new(client.url(), first);
    let mut due = Instant::now() + PAUSE;
    let ended = loop {
        if let Err(e) = terminal.draw(|frame| page.draw(frame)) {
            break Err(e);
        }
        let wait = due.saturating_duration_since(Instant::now());
        match event::poll(wait) {
            Err(e) => break Err(e),
            Ok(true) => match event::read() {
                Err(e) => break Err(e),
                Ok(event) => {
                    if !act(client, &mut page, &event) {
                        break Ok(());
                    }
                }
            },
            Ok(false) => {}
        }
        if Instant::now() >= due {
            due = Instant::now() + PAUSE;
            if !page.paused {
                page.take(Look::take(client));
            }
        }
    };
    ratatui::restore();
    ended
}

/// Does what a key says; false: end.
fn act(client: &Client, page: &mut Page, event: &Event) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('p') => page.paused = !page.paused,
        KeyCode::Up | KeyCode::Char('k') => page.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => page.choose(1),
        KeyCode::Char(c @ ('d' | 'x' | '+' | '-')) => {
            let Some(peer) = page.chosen().cloned() else { return true };
            if !page.may_write() {
                page.said = Some("write access is off: the location says \"api\", not \"api write=on\"".to_owned());
                return true;
            }
            let body = match c {
                'd' => json!({"drain": peer.state != "draining"}),
                'x' => json!({"down": peer.state != "down"}),
                '+' => json!({"weight": peer.weight.saturating_add(1)}),
                _ => json!({"weight": peer.weight.saturating_sub(1).max(1)}),
            };
            if let Some(path) = page.chosen_path() {
                page.said = client.change("PATCH", &path, &body).err();
                page.take(Look::take(client));
            }
        }
        _ => {}
    }
    true
}
