//! `check_status`: what health checks found out about each peer, with the columns that the page of Tengine's module
//! (`ngx_http_upstream_check_module`) has, so that scripts which read it go on: as a table, as lines with commas and as JSON.
//! `?format=` names another form than the directive does, `?status=up` or `down` shows those alone.

use crate::config::{Directive, Scope, http};
use crate::health::check::Check;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, Text, body};
use crate::snapshot::Snapshot;
use conf::{Node, Problem};
use serde_json::{Value, json};
use std::fmt::Write;
use wire::http1::escape::html_of;
use wire::http1::target::argument;

/// The directive.
pub const DIRECTIVES: &[Directive] = &[http("check_status", check_status)];

/// The form of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Html,
    Csv,
    Json,
}

const FORMATS: [(&[u8], Format); 3] = [(b"html", Format::Html), (b"csv", Format::Csv), (b"json", Format::Json)];

/// A peer as one check sees it.
#[derive(Debug)]
struct Row {
    /// Among all rows, also those that are not shown.
    index: usize,
    upstream: String,
    name: String,
    is_up: bool,
    /// Passed in a row, failed in a row.
    rise: u32,
    fall: u32,
    kind: &'static str,
    /// The port that is asked instead of the peer's; 0: none.
    port: u16,
}

/// `check_status [html|csv|json]`
fn check_status(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let format = match node.args.first() {
        None => Format::Html,
        Some(word) => {
            find(&word.text).ok_or_else(|| word.problem(format!("invalid check format \"{}\"", word.as_str())))?
        }
    };
    scope.level.conf.core.handler = Some(Content::Later(match format {
        Format::Html => |r| show(r, Format::Html),
        Format::Csv => |r| show(r, Format::Csv),
        Format::Json => |r| show(r, Format::Json),
    }));
    Ok(())
}

fn find(name: &[u8]) -> Option<Format> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
}

fn show(r: &mut Request, format: Format) -> Waiting<'_> {
    Box::pin(async move {
        if !matches!(r.head.method, Method::Get | Method::Head) {
            return Verdict::Status(405);
        }
        if let Err(status) = body::discard_arrived(r) {
            return Verdict::Status(status);
        }
        let args = r.get(r.head.args);
        let format = argument(args, b"format").and_then(find).unwrap_or(format);
        let wanted = match argument(args, b"status") {
            Some(b"up") => Some(true),
            Some(b"down") => Some(false),
            _ => None,
        };
        let snapshot = r.snapshot.whole().clone();
        // Of a thousand peers it is long: nobody waits for it here.
        let page = move || async move {
            let mut rows = rows(&snapshot);
            rows.retain(|row| wanted.is_none_or(|up| up == row.is_up));
            page(&rows, format, snapshot.generation)
        };
        let Some(page) = crate::service::ask(page).await else { return Verdict::Status(500) };
        r.answer.headers.content_type = Some(Text::from(match format {
            Format::Html => "text/html",
            Format::Csv => "text/plain",
            Format::Json => "application/json",
        }));
        r.respond(200, page.as_bytes())
    })
}

/// The peers of all checks of `http`, then of `stream`, as they stand in the configuration.
fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    for part in std::iter::once(snapshot).chain(snapshot.stream.as_deref()) {
        part.main.health.checks.iter().for_each(|check| add(check, &mut rows));
    }
    rows
}

fn add(check: &Check, rows: &mut Vec<Row>) {
    for peer in check.group.tiers_now().iter().flat_map(|tier| &tier.peers) {
        let availability = peer.state.availability.now();
        let track = peer.state.health.notes().tracks[check.number];
        rows.push(Row {
            index: rows.len(),
            upstream: check.group.name.to_string(),
            name: peer.name.to_string(),
            is_up: !availability.fails(check.number) && !availability.lacks(check.number),
            rise: track.passed,
            fall: track.failed,
            kind: check.kind,
            port: check.port.unwrap_or(0),
        });
    }
}

fn page(rows: &[Row], format: Format, generation: u64) -> String {
    match format {
        Format::Html => html(rows, generation),
        Format::Csv => rows.iter().map(Row::line).collect(),
        Format::Json => {
            let up = rows.iter().filter(|row| row.is_up).count();
            let server: Vec<Value> = rows.iter().map(Row::json).collect();
            let all = json!({"total": rows.len(), "up": up, "down": rows.len() - up, "generation": generation, "server": server});
            format!("{:#}\n", json!({"servers": all}))
        }
    }
}

impl Row {
    fn status(&self) -> &'static str {
        if self.is_up { "up" } else { "down" }
    }

    fn line(&self) -> String {
        let Row { index, upstream, name, rise, fall, kind, port, .. } = self;
        let (upstream, name, status) = (quoted(upstream), quoted(name), self.status());
        format!("{index},{upstream},{name},{status},{rise},{fall},{kind},{port}\n")
    }

    fn json(&self) -> Value {
        json!({"index": self.index, "upstream": self.upstream, "name": self.name, "status": self.status(), "rise": self.rise, "fall": self.fall,
            "type": self.kind, "port": self.port})
    }
}

/// A value of a line with commas, RFC 4180: a path of a socket may have one.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn html(rows: &[Row], generation: u64) -> String {
    let down = rows.iter().filter(|row| !row.is_up).count();
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Health checks</title>\n\
         <style>body{font:15px/1.4 system-ui,sans-serif;margin:1.5em;color:#222}table{border-collapse:collapse}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}\
         .n{text-align:right}tr.down{background:#fde2e1}</style></head>\n<body><h1>Health checks</h1>\n",
    );
    let _ = writeln!(out, "<p>{} peers, {down} of them down. Configuration {generation}.</p>", rows.len());
    out.push_str("<table><tr><th class=\"n\">Index<th>Upstream<th>Name<th>Status<th class=\"n\">Rise counts<th class=\"n\">Fall counts<th>Check type<th class=\"n\">Check port");
    for row in rows {
        let status = row.status();
        let class = if row.is_up { "" } else { " class=\"down\"" };
        let _ = write!(
            out,
            "\n<tr{class}><td class=\"n\">{}<td>{}<td>{}<td>{status}",
            row.index,
            html_of(&row.upstream),
            html_of(&row.name)
        );
        let _ = write!(
            out,
            "<td class=\"n\">{}<td class=\"n\">{}<td>{}<td class=\"n\">{}",
            row.rise, row.fall, row.kind, row.port
        );
    }
    out.push_str("</table></body></html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: usize, name: &str, is_up: bool) -> Row {
        let (rise, fall) = if is_up { (46, 0) } else { (0, 3) };
        Row { index, upstream: "app".to_owned(), name: name.to_owned(), is_up, rise, fall, kind: "http", port: 80 }
    }

    #[test]
    fn lines_are_those_that_scripts_read() {
        let rows = [row(0, "10.0.0.1:80", true), row(1, "unix:/a,b", false)];
        assert_eq!(
            page(&rows, Format::Csv, 2),
            "0,app,10.0.0.1:80,up,46,0,http,80\n1,app,\"unix:/a,b\",down,0,3,http,80\n"
        );
    }

    #[test]
    fn numbers_of_json_are_numbers() {
        let value: Value = serde_json::from_str(&page(&[row(4, "10.0.0.1:80", false)], Format::Json, 7)).unwrap();
        let servers = &value["servers"];
        assert_eq!([&servers["total"], &servers["up"], &servers["down"], &servers["generation"]], [1, 0, 1, 7]);
        assert_eq!(
            servers["server"][0],
            json!({"index": 4, "upstream": "app", "name": "10.0.0.1:80", "status": "down", "rise": 0, "fall": 3, "type": "http", "port": 80})
        );
    }

    #[test]
    fn names_are_text_on_the_page() {
        let text = page(&[row(0, "unix:/<b>", false)], Format::Html, 1);
        assert!(
            text.contains("<tr class=\"down\">") && text.contains("unix:/&lt;b&gt;") && !text.contains("<b>"),
            "{text}"
        );
    }
}
