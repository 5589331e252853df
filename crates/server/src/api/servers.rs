//! The servers of a group: what their lines say, and how that is changed while the server runs.

use super::error::Failure;
use super::schema::{Schema, field, maybe, number};
use super::table::{Context, verb};
use super::{Outcome, Verb};
use crate::config::Subsystem;
use crate::modules::upstream_server;
use crate::upstream::availability::Role;
use crate::upstream::group::{Group, Method};
use crate::upstream::peer::{PeerSettings, name_of};
use crate::upstream::servers::{At, EditError, Line, Servers};
use conf::value;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The longest `route`, as in the configuration.
const LONGEST_ROUTE: usize = 32;

/// A server.
pub static SERVER: Schema = Schema::Object(&[
    number("id"),
    field("server", Schema::Text),
    maybe("service", Schema::Text),
    number("weight"),
    number("max_conns"),
    number("max_fails"),
    field("fail_timeout", Schema::Text),
    field("slow_start", Schema::Text),
    maybe("route", Schema::Text),
    field("backup", Schema::Flag),
    field("down", Schema::Flag),
    maybe("drain", Schema::Flag),
]);

/// `/servers`: all of them, or one more.
pub fn list(context: &Context, subsystem: Subsystem, group: &Arc<Group>) -> Result<Outcome, Failure> {
    match verb(context, false, &[Verb::Post])? {
        Verb::Post => add(context, subsystem, group),
        _ => Ok(Outcome::Found(group.servers().iter().map(|l| show(l, subsystem)).collect())),
    }
}

/// `/servers/{id}`
pub fn one(context: &Context, subsystem: Subsystem, group: &Arc<Group>, id: &str) -> Result<Outcome, Failure> {
    let verb = verb(context, true, &[Verb::Patch])?;
    let id = id.parse::<u32>().map_err(|_| Failure::new(400, "UpstreamBadServerId", "invalid server ID"))?;
    match verb {
        Verb::Patch => change(context, subsystem, group, id),
        Verb::Delete => {
            group
                .edit(|servers| {
                    let place = place_of(servers, id)?;
                    servers.lines.remove(place);
                    Ok(())
                })
                .map_err(|e| failure(e, id))?;
            Ok(Outcome::Found(group.servers().iter().map(|l| show(l, subsystem)).collect()))
        }
        _ => {
            let line = group.servers().into_iter().find(|l| l.id == id);
            line.map(|l| Outcome::Found(show(&l, subsystem))).ok_or_else(|| failure(EditError::NotFound, id))
        }
    }
}

fn show(line: &Line, subsystem: Subsystem) -> Value {
    let s = &line.settings;
    let server = match &line.at {
        At::Fixed(address, _) => name_of(address),
        At::Named(..) => line.server.to_string(),
    };
    let slow = s.slow_start_ms;
    let mut value = json!({
        "id": line.id,
        "server": server,
        "weight": s.weight,
        "max_conns": s.max_conns,
        "max_fails": s.policy.max_fails,
        "fail_timeout": format!("{}s", s.policy.fail_timeout_s),
        "slow_start": if slow.is_multiple_of(1000) { format!("{}s", slow / 1000) } else { format!("{slow}ms") },
        "backup": line.backup,
        "down": s.role == Role::Down,
    });
    if !subsystem.is_stream() || !s.route.is_empty() {
        value["route"] = json!(s.route);
    }
    if s.role == Role::Drain {
        value["drain"] = json!(true);
    }
    if let Some(service) = &line.service {
        value["service"] = json!(service);
    }
    value
}

fn place_of(servers: &Servers, id: u32) -> Result<usize, EditError> {
    servers.lines.iter().position(|l| l.id == id).ok_or(EditError::NotFound)
}

fn failure(error: EditError, id: u32) -> Failure {
    match error {
        EditError::Fixed => Failure::new(400, "UpstreamStatic", "upstream is static"),
        EditError::NotFound => {
            Failure::new(404, "UpstreamServerNotFound", format!("server with ID \"{id}\" does not exist"))
        }
        EditError::Invalid(text) if text.starts_with("no resolver") => {
            Failure::new(400, "UpstreamConfNoResolver", text)
        }
        EditError::Invalid(text) => Failure::new(400, "UpstreamConfFormatError", text),
        EditError::Full(room) => {
            Failure::new(507, "UpstreamOutOfMemory", format!("the zone of this upstream has room for {room} servers"))
        }
        EditError::State(text) => Failure::new(500, "UpstreamStateError", text),
    }
}

fn format_error(text: String) -> Failure {
    Failure::new(400, "UpstreamConfFormatError", text)
}

fn body(context: &Context) -> Result<Map<String, Value>, Failure> {
    let value: Value = serde_json::from_slice(&context.call.body)
        .map_err(|e| Failure::new(415, "JsonError", format!("json error: {e}")))?;
    match value {
        Value::Object(all) => Ok(all),
        _ => Err(format_error("nested object or list".to_owned())),
    }
}

/// What a call says of a server. What it does not say stays.
#[derive(Default)]
struct Wanted {
    server: Option<String>,
    service: Option<String>,
    backup: Option<bool>,
    down: Option<bool>,
    drain: Option<bool>,
    settings: Vec<Setting>,
}

type Setting = Box<dyn Fn(&mut PeerSettings)>;

impl Wanted {
    fn read(all: &Map<String, Value>) -> Result<Wanted, Failure> {
        let mut w = Wanted::default();
        for (name, value) in all {
            if value.is_object() || value.is_array() {
                return Err(format_error("nested object or list".to_owned()));
            }
            w.take(name, value)?;
        }
        Ok(w)
    }

    fn take(&mut self, name: &str, value: &Value) -> Result<(), Failure> {
        let invalid = || format_error(format!("invalid \"{name}\" value"));
        let text = || value.as_str().map(str::to_owned).ok_or_else(invalid);
        let flag = || value.as_bool().ok_or_else(invalid);
        let number = |code: &'static str| {
            let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
            n.ok_or_else(|| Failure::new(400, code, format!("invalid \"{name}\" value")))
        };
        match name {
            // What a server is shown with may be sent back.
            "id" | "parent" | "host" => {}
            "server" => self.server = Some(text()?),
            "service" => {
                let service = text()?;
                if service.is_empty() {
                    return Err(Failure::new(400, "UpstreamBadService", "\"service\" is empty"));
                }
                self.service = Some(service);
            }
            "backup" => self.backup = Some(flag()?),
            "down" => self.down = Some(flag()?),
            // Of servers of `stream` nginx Plus has only `down`; here sessions, and flows in the kernel, may end by themselves.
            "drain" => self.drain = Some(flag()?),
            "weight" => {
                let n = number("UpstreamBadWeight")?;
                if n == 0 {
                    return Err(Failure::new(400, "UpstreamBadWeight", "invalid \"weight\" value"));
                }
                self.settings.push(Box::new(move |s| s.weight = n));
            }
            "max_conns" => {
                let n = number("UpstreamBadMaxConns")?;
                self.settings.push(Box::new(move |s| s.max_conns = n));
            }
            "max_fails" => {
                let n = number("UpstreamBadMaxFails")?;
                self.settings.push(Box::new(move |s| s.policy.max_fails = n));
            }
            "fail_timeout" => {
                let seconds = duration(value, value::seconds);
                let seconds = seconds
                    .ok_or_else(|| Failure::new(400, "UpstreamBadFailTimeout", "invalid \"fail_timeout\" value"))?;
                self.settings.push(Box::new(move |s| s.policy.fail_timeout_s = seconds));
            }
            "slow_start" => {
                let ms = duration(value, value::milliseconds);
                let ms = ms.ok_or_else(|| Failure::new(400, "UpstreamBadSlowStart", "invalid \"slow_start\" value"))?;
                self.settings.push(Box::new(move |s| s.slow_start_ms = ms));
            }
            "route" => {
                let route = text()?;
                if route.len() > LONGEST_ROUTE {
                    return Err(Failure::new(400, "UpstreamBadRoute", "route is too long"));
                }
                // It becomes a word of a `state` file.
                if route.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'\\;{}$#".contains(c)) {
                    return Err(Failure::new(400, "UpstreamBadRoute", "invalid \"route\" value"));
                }
                self.settings.push(Box::new(move |s| s.route = route.as_str().into()));
            }
            other => return Err(format_error(format!("unknown parameter \"{other}\""))),
        }
        Ok(())
    }

    fn apply(&self, settings: &mut PeerSettings) {
        self.settings.iter().for_each(|set| set(settings));
        let (down, drain) = (settings.role == Role::Down, settings.role == Role::Drain);
        settings.role = match (self.down.unwrap_or(down), self.drain.unwrap_or(drain)) {
            (true, _) => Role::Down,
            (false, true) => Role::Drain,
            (false, false) => Role::Up,
        };
    }
}

/// A time, in nginx's words or as a number of seconds.
fn duration(value: &Value, parse: fn(&[u8]) -> Option<u64>) -> Option<u64> {
    match value {
        Value::String(text) => parse(text.as_bytes()),
        Value::Number(n) => parse(n.as_u64()?.to_string().as_bytes()),
        _ => None,
    }
}

/// Where a server is: an address, or a name that is followed.
enum Place {
    Address(crate::connection::Address),
    Name(String, u16),
}

fn place(server: &str, service: Option<&str>, subsystem: Subsystem) -> Result<Place, Failure> {
    let bad = |text: String| Failure::new(400, "UpstreamBadAddress", text);
    if server.is_empty() || server.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'\\;{}$#".contains(c)) {
        return Err(bad(format!("invalid host in upstream \"{server}\"")));
    }
    // A name is followed: it must not be looked up while everybody waits.
    if let Some((host, port)) = upstream_server::named(server, true, service).map_err(bad)? {
        return Ok(Place::Name(host.to_owned(), port));
    }
    let found = upstream_server::resolve(server, upstream_server::default_port(subsystem))
        .map_err(|e| bad(format!("{e} in upstream \"{server}\"")))?;
    found.into_iter().next().map(Place::Address).ok_or_else(|| bad(format!("no address in upstream \"{server}\"")))
}

fn may_have_backups(group: &Group) -> bool {
    !matches!(group.method, Method::IpHash | Method::Hash { .. } | Method::Random { .. })
}

fn add(context: &Context, subsystem: Subsystem, group: &Arc<Group>) -> Result<Outcome, Failure> {
    let wanted = Wanted::read(&body(context)?)?;
    let server = wanted.server.as_deref().ok_or_else(|| format_error("missing \"server\" argument".to_owned()))?;
    let place = place(server, wanted.service.as_deref(), subsystem)?;
    let backup = wanted.backup.unwrap_or(false);
    if backup && !may_have_backups(group) {
        let text = format!("upstream \"{}\" has no backup", group.name);
        return Err(Failure::new(400, "UpstreamNoBackup", text));
    }
    let mut settings = PeerSettings::default();
    wanted.apply(&mut settings);
    let id = group.edit(|servers| {
        Ok(match place {
            Place::Address(address) => servers.add_fixed(server, address, settings, backup),
            Place::Name(host, port) => {
                servers.add_named(server, (&host, port), wanted.service.as_deref(), settings, backup)
            }
        })
    });
    let id = id.map_err(|e| failure(e, 0))?;
    let line = group.servers().into_iter().find(|l| l.id == id);
    let line = line.ok_or_else(|| failure(EditError::NotFound, id))?;
    let subsystem_name = if subsystem.is_stream() { "stream" } else { "http" };
    let path = format!("/{subsystem_name}/upstreams/{}/servers/{id}", group.name);
    Ok(Outcome::Created(show(&line, subsystem), path))
}

fn change(context: &Context, subsystem: Subsystem, group: &Arc<Group>, id: u32) -> Result<Outcome, Failure> {
    let wanted = Wanted::read(&body(context)?)?;
    let line = group.servers().into_iter().find(|l| l.id == id).ok_or_else(|| failure(EditError::NotFound, id))?;
    if wanted.backup.is_some_and(|b| b != line.backup) {
        return Err(format_error(format!("server \"{id}\" backup is immutable")));
    }
    if wanted.service.is_some() && wanted.service.as_deref() != line.service.as_deref() {
        return Err(format_error(format!("server \"{id}\" service is immutable")));
    }
    let moved = match (&wanted.server, &line.at) {
        (None, _) => None,
        (Some(server), At::Named(..)) if **server == *line.server => None,
        (Some(_), At::Named(..)) => {
            return Err(Failure::new(400, "UpstreamServerImmutable", format!("server \"{id}\" address is immutable")));
        }
        (Some(server), At::Fixed(before, _)) => match place(server, None, subsystem)? {
            Place::Address(address) if address == *before => None,
            Place::Address(address) => Some((server.clone(), address)),
            Place::Name(..) => {
                return Err(Failure::new(400, "UpstreamBadAddress", "invalid \"server\" argument"));
            }
        },
    };
    let changed = group.edit(|servers| {
        let place = place_of(servers, id)?;
        let line = &mut servers.lines[place];
        wanted.apply(&mut line.settings);
        if let Some((server, address)) = moved {
            // A line for the new address, in the old one's place and with its number.
            let (settings, backup) = (line.settings.clone(), line.backup);
            servers.add_fixed(&server, address, settings, backup);
            if let Some(mut new) = servers.lines.pop() {
                new.id = id;
                servers.lines[place] = new;
            }
        }
        Ok(())
    });
    changed.map_err(|e| failure(e, id))?;
    let line = group.servers().into_iter().find(|l| l.id == id);
    line.map(|l| Outcome::Found(show(&l, subsystem))).ok_or_else(|| failure(EditError::NotFound, id))
}

/// The form of what is sent.
pub fn sent(is_new: bool) -> Value {
    let (text, flag) = (json!({"type": "string"}), json!({"type": "boolean"}));
    let number = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let time = json!({"type": "string", "pattern": "^[0-9]{1,6}s$"});
    let mut properties = json!({
        "server": {"type": "string", "minLength": 1},
        "weight": {"type": "integer", "minimum": 1, "maximum": u32::MAX},
        "max_conns": number,
        "max_fails": number,
        "fail_timeout": time,
        "slow_start": time,
        "down": flag,
    });
    if is_new {
        properties["service"] = text;
        properties["backup"] = flag.clone();
    }
    properties["route"] = json!({"type": "string", "maxLength": LONGEST_ROUTE});
    properties["drain"] = flag;
    let mut all = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if is_new {
        all["required"] = json!(["server"]);
    }
    all
}
