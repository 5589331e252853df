//! `ironweir top`: a running server in the terminal, by its API. Asks once a second (`api-client`), makes rates of what it hears
//! (`look`), draws (`page`). Knows nothing of the server but its API.

mod lists;
mod look;
mod page;

use api_client::{Client, Trust, URL};
use lists::Tab;
use look::Look;
use page::{Change, Page};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

const HELP: &str = "Usage: ironweir top [OPTIONS] [URL]

Shows a running server by its API. URL is where a location with \"api\" is (default: http://127.0.0.1:8080/api); http or https.

  --once               print two looks, a second apart, as text, and end
  --user NAME:PASSWORD for auth_basic
  --user-file FILE     the same from a file's first line, which other users of the machine cannot see
  --cacert FILE        certificates that are believed, in place of the system's authorities
  --insecure           any certificate is believed

Keys: q end, p pause, up/down choose a row, 1 peers, 2 zones, 3 caches, 4 limits, 5 certificates, 6 kernel; with api write=on, after a question:
d drain or take back, x down or up; at once: + and - weight
";

/// Runs the command; `arguments` are those behind `top`.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let (mut url, mut once, mut trust, mut user) = (URL.to_owned(), false, Trust::System, None);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--user" | "--user-file" | "--cacert" => {
                let Some(value) = arguments.next() else {
                    return complain(&format!("{argument} needs a value\n\n{HELP}"));
                };
                match argument.as_str() {
                    "--user" => user = Some(value),
                    "--cacert" => trust = Trust::File(value),
                    _ => match std::fs::read_to_string(&value) {
                        Ok(text) => user = text.lines().next().map(str::to_owned),
                        Err(e) => return complain(&format!("{value}: {e}")),
                    },
                }
            }
            "--insecure" => trust = Trust::Blind,
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--once" => once = true,
            a if a.starts_with('-') => return complain(&format!("unknown option {a}\n\n{HELP}")),
            a => url = a.to_owned(),
        }
    }
    let client = match Client::new(&url, &trust, user.as_deref()) {
        Ok(client) => client,
        Err(text) => return complain(&text),
    };
    let once = once || !std::io::stdout().is_terminal();
    let first = match Look::take(&client, if once { &Tab::ALL } else { &[] }) {
        Ok(look) => look,
        Err(text) => return complain(&text),
    };
    if once {
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
    match Look::take(client, &Tab::ALL) {
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
                page.take(Look::take(client, &[page.tab]));
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
    if let Some(change) = page.asks.take() {
        if matches!(key.code, KeyCode::Char('y' | 'Y')) {
            make(client, page, &change);
        }
        return true;
    }
    match key.code {
        KeyCode::Char(n @ '1'..='6') => {
            page.turn_to(Tab::ALL[n as usize - '1' as usize]);
            page.refresh(Look::take(client, &[page.tab]));
        }
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
            let (draining, down) = (peer.state == "draining", peer.state == "down");
            let (what, body) = match c {
                'd' => (if draining { "end the drain of" } else { "drain" }, json!({"drain": !draining})),
                'x' => (if down { "take back" } else { "take down" }, json!({"down": !down})),
                '+' => ("", json!({"weight": peer.weight.saturating_add(1)})),
                _ => ("", json!({"weight": peer.weight.saturating_sub(1).max(1)})),
            };
            let Some(path) = page.chosen_path() else { return true };
            let change = Change { question: format!("{what} {}?", peer.server), path, body };
            match c {
                'd' | 'x' => page.asks = Some(change),
                _ => make(client, page, &change),
            }
        }
        _ => {}
    }
    true
}

/// Makes a change, and looks what became of it.
fn make(client: &Client, page: &mut Page, change: &Change) {
    page.said = client.change("PATCH", &change.path, &change.body).err();
    page.refresh(Look::take(client, &[page.tab]));
}
