//! What nchan says to publishers and of groups: short answers, what a channel has as text, JSON, XML or YAML, headers for other origins.

use super::Conf;
use crate::request::chunk::Chunk;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use push::{Info, Limits, Refused, Totals};

/// How a client wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Plain,
    Json,
    Xml,
    Yaml,
}

impl Form {
    /// All of them, as they are numbered between processes.
    pub(super) const ALL: [Form; 4] = [Form::Plain, Form::Json, Form::Xml, Form::Yaml];

    /// By `Accept`: the first that is named.
    pub(super) fn of(r: &Request) -> Form {
        r.head.headers.find(K::Accept).map_or(Form::Plain, |accept| Form::named(r.get(accept)))
    }

    fn named(accept: &[u8]) -> Form {
        let kinds = accept.split(|b| *b == b',').map(|part| part.split(|b| *b == b';').next().unwrap_or(part));
        let form = |kind: &[u8]| {
            let kind = kind.trim_ascii().to_ascii_lowercase();
            let of = kind.strip_prefix(b"text/").or_else(|| kind.strip_prefix(b"application/"))?;
            match of {
                b"plain" => Some(Form::Plain),
                b"json" | b"x-json" => Some(Form::Json),
                b"xml" => Some(Form::Xml),
                b"yaml" | b"x-yaml" => Some(Form::Yaml),
                _ => None,
            }
        };
        kinds.into_iter().find_map(form).unwrap_or_default()
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Plain => "text/plain",
            Form::Json => "text/json",
            Form::Xml => "text/xml",
            Form::Yaml => "text/yaml",
        }
    }
}

/// A status without more.
pub(super) fn empty(r: &mut Request, status: u16) -> Verdict {
    r.answer.disable_not_modified = true;
    r.answer.headers.content_type = None;
    if status != 304 {
        return r.respond(status, b"");
    }
    // A length there would be that of the answer that the client has (RFC 9110 section 8.6).
    r.answer.headers.status = status;
    r.answer.headers.content_length = None;
    match r.send_header().and_then(|()| r.send_body(Chunk::Bytes(b""), true)) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// A status and a sentence.
pub(super) fn plain(r: &mut Request, status: u16, text: &'static str) -> Verdict {
    said(r, status, Form::Plain, text.as_bytes())
}

/// A status and a text.
pub(super) fn said(r: &mut Request, status: u16, form: Form, text: &[u8]) -> Verdict {
    r.answer.disable_not_modified = true;
    r.answer.headers.content_type = Some(Text::from(form.content_type()));
    r.respond(status, text)
}

/// Why something was not done.
pub(super) fn refused(r: &mut Request, why: Refused) -> Verdict {
    crate::log_error!(r, Warn, "channel request refused: {}", reason(why));
    match why {
        Refused::NoChannel | Refused::ChannelSubscribers => empty(r, 403),
        Refused::Memory => empty(r, 507),
        _ => plain(r, 403, reason(why)),
    }
}

/// The same as a sentence.
pub(super) fn reason(why: Refused) -> &'static str {
    match why {
        Refused::NoChannel => "There is no such channel.",
        Refused::ChannelSubscribers => "Channel has too many subscribers.",
        Refused::GroupChannels => "Group limit reached for number of channels.",
        Refused::GroupSubscribers => "Group limit reached for number of subscribers.",
        Refused::GroupMessages => "Group limit reached for number of messages.",
        Refused::GroupMemory => "Group limit reached for memory used by messages.",
        Refused::Memory => "nchan_shared_memory_size is used up.",
    }
}

/// `Vary` of all that a subscriber gets in one piece.
pub(super) fn vary(r: &mut Request) {
    r.answer.headers.add(K::Vary, "Vary", "If-None-Match, If-Modified-Since");
}

/// Whether the request's origin may come (`nchan_access_control_allow_origin`), and the headers that tell its browser so.
pub(super) fn admit_origin(r: &mut Request, conf: &Conf) -> bool {
    let Some(origin) = r.head.headers.find(K::Origin) else { return true };
    let mut shown = origin;
    if let Some(allowed) = &*conf.allow_origin {
        let allowed = allowed.eval(r);
        let any = r.get(allowed) == b"*";
        if !any && !r.get(allowed).split(|b| *b == b' ').any(|one| one == r.get(origin)) {
            crate::log_error!(r, Info, "origin \"{}\" is not allowed", String::from_utf8_lossy(r.get(origin)));
            return false;
        }
        if any {
            shown = Text::from("*");
        }
    }
    if *conf.allow_credentials {
        r.answer.headers.push(Text::from("Access-Control-Allow-Credentials"), Text::from("true"));
    }
    r.answer.headers.push(Text::from("Access-Control-Allow-Origin"), shown);
    true
}

/// What `OPTIONS` says.
pub(super) fn options(r: &mut Request, headers: &'static str, methods: &'static str) -> Verdict {
    r.answer.headers.push(Text::from("Allow"), Text::from(methods));
    if r.head.headers.find(K::Origin).is_some() {
        r.answer.headers.push(Text::from("Access-Control-Allow-Headers"), Text::from(headers));
        r.answer.headers.push(Text::from("Access-Control-Allow-Methods"), Text::from(methods));
    }
    empty(r, 200)
}

/// What a channel has. `last`: the id to show where it is not the channel's own, of several.
pub(super) fn channel(info: &Info, now: i64, last: Option<&str>, form: Form) -> String {
    let requested = info.requested.map_or(-1, |at| (now - at).max(0));
    let own = info.last.map_or_else(|| "0:0".to_owned(), |id| id.to_string());
    let (last, messages, subscribers) = (last.unwrap_or(&own), info.messages, info.subscribers);
    match form {
        Form::Plain => format!(
            "queued messages: {messages}\r\nlast requested: {requested} sec. ago\r\nactive subscribers: {subscribers}\r\n\
             last message id: {last}"
        ),
        Form::Json => format!(
            "{{\"messages\": {messages}, \"requested\": {requested}, \"subscribers\": {subscribers}, \
             \"last_message_id\": \"{last}\" }}"
        ),
        Form::Xml => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\" ?>\r\n<channel>\r\n  <messages>{messages}</messages>\r\n  \
             <requested>{requested}</requested>\r\n  <subscribers>{subscribers}</subscribers>\r\n  \
             <last_message_id>{last}</last_message_id>\r\n</channel>"
        ),
        Form::Yaml => format!(
            "---\r\nmessages: {messages}\r\nrequested: {requested}\r\nsubscribers: {subscribers}\r\n\
             last_message_id: \"{last}\"\r\n\r\n"
        ),
    }
}

/// What a group has, and may have.
pub(super) fn group(has: &Totals, may: &Limits, form: Form) -> String {
    let rows = [
        ("channels", has.channels, may.channels),
        ("subscribers", has.subscribers, may.subscribers),
        ("messages", has.messages, may.messages),
        ("messages_memory", has.memory, may.memory),
        ("messages_disk", 0, may.disk),
    ];
    let lines = |line: &dyn Fn(&str, u64, bool) -> String, limits: bool| -> String {
        let one = |(at, row): (usize, &(&str, u64, u64))| line(row.0, if limits { row.2 } else { row.1 }, at == 4);
        rows.iter().enumerate().map(one).collect()
    };
    match form {
        Form::Plain => format!(
            "channels: {}\r\nsubscribers: {}\r\nmessages: {}\r\nshared memory used by messages: {} bytes\r\n\
             disk space used by messages: 0 bytes\r\nlimits:\r\n  max channels: {}\r\n  max subscribers: {}\r\n  \
             max messages: {}\r\n  max messages shared memory: {}\r\n  max messages disk space: {}\r\n",
            has.channels,
            has.subscribers,
            has.messages,
            has.memory,
            may.channels,
            may.subscribers,
            may.messages,
            may.memory,
            may.disk
        ),
        Form::Json => format!(
            "{{\r\n{}  \"limits\": {{\r\n{}  }}\r\n}}",
            lines(&|name, n, _| format!("  \"{name}\": {n},\r\n"), false),
            lines(&|name, n, last| format!("    \"{name}\": {n}{}\r\n", if last { "" } else { "," }), true)
        ),
        Form::Xml => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\" ?>\r\n<group>\r\n{}  <limits>\r\n{}  </limits>\r\n</group>",
            lines(&|name, n, _| format!("  <{name}>{n}</{name}>\r\n"), false),
            lines(&|name, n, _| format!("    <{name}>{n}</{name}>\r\n"), true)
        ),
        Form::Yaml => format!(
            "---\r\n{}limits:\r\n{}\r\n",
            lines(&|name, n, _| format!("{name}: {n}\r\n"), false),
            lines(&|name, n, _| format!("  {name}: {n}\r\n"), true)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian's nchan 1.3.6 says it.
    #[test]
    fn forms_are_those_that_scripts_read() {
        let info = Info { messages: 2, subscribers: 0, requested: None, last: Some(push::Id { time: 17, tag: 1 }) };
        let json = "{\"messages\": 2, \"requested\": -1, \"subscribers\": 0, \"last_message_id\": \"17:1\" }";
        assert_eq!(channel(&info, 20, None, Form::Json), json);
        let yaml = "---\r\nmessages: 2\r\nrequested: -1\r\nsubscribers: 0\r\nlast_message_id: \"17:1\"\r\n\r\n";
        assert_eq!(channel(&info, 20, None, Form::Yaml), yaml);
        assert_eq!(Form::named(b"text/html, application/xml;q=0.9"), Form::Xml);
        let group = group(&Totals::default(), &Limits { disk: 5, ..Limits::default() }, Form::Json);
        assert!(
            group.starts_with("{\r\n  \"channels\": 0,\r\n") && group.ends_with("    \"messages_disk\": 5\r\n  }\r\n}")
        );
    }
}
