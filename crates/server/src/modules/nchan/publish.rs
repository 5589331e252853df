//! Publishers: POST and PUT publish, GET tells of a channel, DELETE deletes it; frames of a WebSocket publish too.

use super::answer::{self, Form};
use super::hooks::{self, Forwarded};
use super::redis;
use super::redis::backend::{Backend, Failed};
use super::{Conf, deflate, handler, held, hub, names, websocket};
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, body};
use conf::value;
use push::limits::MAX_BUFFER;
use push::{Draft, Info, Keep, Marks, Refused};
use std::os::fd::AsFd;
use std::time::Duration;

/// A publisher over HTTP.
pub(super) async fn http(r: &mut Request, conf: &Conf) -> Result<Verdict, Verdict> {
    handler::position(r, conf)?;
    let names = names::channels(r, conf, &conf.publisher_ids)?;
    r.channels().publisher = "http";
    hooks::authorize(r, conf).await?;
    match r.head.method {
        Method::Post | Method::Put => post(r, conf, &names).await,
        Method::Delete => delete(r, conf, &names).await,
        _ => tell(r, conf, &names).await,
    }
}

async fn post(r: &mut Request, conf: &Conf, names: &[Box<[u8]>]) -> Result<Verdict, Verdict> {
    let keep = keep(r, conf)?;
    let stored = body::read_all(r).await.map_err(Verdict::from)?;
    let mut data = content(&stored).map_err(|e| {
        log_error!(r, Error, "a message cannot be read back ({})", crate::log::os_error(&e));
        Verdict::Status(500)
    })?;
    if !conf.upstream.is_empty() {
        match hooks::forward(r, conf, &data).await? {
            Forwarded::Same => {}
            Forwarded::Other(other) => data = other,
            Forwarded::Nothing => return Ok(answer::empty(r, 204)),
        }
    }
    let content_type = r.head.headers.find(K::ContentType).map_or(Vec::new(), |t| r.get(t).to_vec());
    let event = match conf.eventsource_event.is_empty() {
        false => conf.eventsource_event.to_vec(),
        true => {
            let line = r.head.headers.named(&r.arena, b"x-eventsource-event").next();
            line.map_or(Vec::new(), |line| r.get(line.value).to_vec())
        }
    };
    let deflated = deflate::deflated(&data, conf.deflation());
    let (content_type, event) = (&*content_type, &*event);
    let draft = Draft { data: &data, content_type, event, marks: marks(conf), deflated: &deflated };
    let published = match redis::backend::of(r, conf) {
        Some(backend) => publish_by(&backend, names, draft, keep).await,
        None => publish(names, draft, keep).map_err(Failed::from),
    };
    let (info, last) = match published {
        Ok(published) => published,
        Err(why) => return Ok(failed(r, why)),
    };
    hooks::event(r, conf, "channel_publish");
    let status = if info.subscribers > 0 { 201 } else { 202 };
    let form = Form::of(r);
    let text = answer::channel(&info, hub::now(), last.as_deref(), form);
    Ok(answer::said(r, status, form, text.as_bytes()))
}

fn content(stored: &body::Stored) -> std::io::Result<Vec<u8>> {
    let Some(file) = &stored.file else { return Ok(stored.memory.clone()) };
    let mut data = vec![0; usize::try_from(stored.len).unwrap_or(usize::MAX)];
    let mut at = 0;
    while at < data.len() {
        match rustix::io::pread(file.fd.as_fd(), &mut data[at..], at as u64)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => at += n,
        }
    }
    Ok(data)
}

/// Publishes to all of them. What they have together, and of several the id that who has had the message stands at.
pub(super) fn publish(names: &[Box<[u8]>], draft: Draft<'_>, keep: Keep) -> Result<(Info, Option<String>), Refused> {
    let mut together = Info::default();
    let mut tags = Vec::with_capacity(names.len());
    for name in names {
        let published = hub::store().publish(name, draft, keep, hub::now())?;
        add(&mut together, &published.info);
        tags.push(published.id.tag.to_string());
    }
    let time = together.last.map_or(0, |id| id.time);
    let last = (names.len() > 1).then(|| format!("{time}:{}", tags.join(",")));
    Ok((together, last))
}

/// What MQTT is told of messages of a location.
fn marks(conf: &Conf) -> Marks<'static> {
    Marks { retain: *conf.mqtt_retain, ..Marks::default() }
}

/// The same where several servers share the channels.
pub(super) async fn publish_by(
    backend: &Backend,
    names: &[Box<[u8]>],
    draft: Draft<'_>,
    keep: Keep,
) -> Result<(Info, Option<String>), Failed> {
    let mut together = Info::default();
    let mut tags = Vec::with_capacity(names.len());
    for name in names {
        let published = backend.publish(name, draft, keep).await?;
        add(&mut together, &published.info);
        tags.push(published.id.tag.max(0).to_string());
    }
    let time = together.last.map_or(0, |id| id.time);
    let last = (names.len() > 1).then(|| format!("{time}:{}", tags.join(",")));
    Ok((together, last))
}

/// A message was not published.
fn failed(r: &mut Request, why: Failed) -> Verdict {
    match why {
        Failed::Refused(why) => answer::refused(r, why),
        Failed::Unreachable => {
            log_error!(r, Error, "Redis does not answer: a message is not published");
            answer::empty(r, 503)
        }
    }
}

fn add(together: &mut Info, info: &Info) {
    together.messages = together.messages.max(info.messages);
    together.subscribers += info.subscribers;
    together.requested = together.requested.max(info.requested);
    together.last = together.last.max(info.last);
}

/// What is asked of the channels of a location: numbers may be a variable's.
pub(super) fn keep(r: &mut Request, conf: &Conf) -> Result<Keep, Verdict> {
    let keep = keep_of(r, conf);
    keep.ok_or_else(|| answer::plain(r, 403, "Message buffer length or timeout is invalid."))
}

/// The same for who is told in other words that a variable has no number; the log is told.
pub(super) fn keep_of(r: &mut Request, conf: &Conf) -> Option<Keep> {
    let mut number = |text: &Complex, parse: fn(&[u8]) -> Option<u64>| {
        let text = text.eval(r);
        parse(r.get(text)).and_then(|n| i64::try_from(n).ok())
    };
    let (length, seconds) = (number(&conf.buffer_length, value::number), number(&conf.message_timeout, value::seconds));
    let (Some(length), Some(seconds)) = (length, seconds) else {
        log_error!(r, Error, "nchan_message_buffer_length is no number, or nchan_message_timeout no time");
        return None;
    };
    let length = if *conf.store_messages { usize::try_from(length).unwrap_or(MAX_BUFFER) } else { 0 };
    let channel_timeout = conf.channel_timeout.as_secs() as i64;
    Some(Keep { length, seconds, accounting: *conf.accounting, channel_timeout })
}

/// Looks at those of the channels that there are at some server, and makes none.
async fn follow_existing(
    r: &mut Request,
    backend: &Backend,
    names: &[Box<[u8]>],
    idle: Duration,
) -> Result<(), Verdict> {
    for name in names {
        // Where Redis does not answer, what is here counts.
        if backend.exists(name).await == Ok(true) {
            backend.follow(std::slice::from_ref(name), idle).await.map_err(|why| answer::refused(r, why))?;
        }
    }
    Ok(())
}

/// What channels have.
async fn tell(r: &mut Request, conf: &Conf, names: &[Box<[u8]>]) -> Result<Verdict, Verdict> {
    if let Some(backend) = redis::backend::of(r, conf) {
        follow_existing(r, &backend, names, *conf.redis_idle).await?;
    }
    let (mut together, mut found) = (Info::default(), false);
    for channel in names.iter().filter_map(|name| hub::store().find(name)) {
        add(&mut together, &channel.info(hub::now()));
        found = true;
    }
    Ok(shown(r, found.then_some(together)))
}

async fn delete(r: &mut Request, conf: &Conf, names: &[Box<[u8]>]) -> Result<Verdict, Verdict> {
    let backend = redis::backend::of(r, conf);
    if let Some(backend) = &backend {
        follow_existing(r, backend, names, *conf.redis_idle).await?;
    }
    let (mut together, mut found) = (Info::default(), false);
    for name in names {
        let info = match &backend {
            Some(_) => hub::store().find(name).map(|channel| channel.info(hub::now())),
            None => hub::store().delete(name, hub::now()),
        };
        // A Redis is asked whatever is here: others may have more of it.
        if let Some(backend) = &backend
            && let Err(why) = backend.delete(name).await
        {
            return Err(failed(r, why));
        }
        let Some(info) = info else { continue };
        add(&mut together, &info);
        found = true;
    }
    if found {
        hooks::event(r, conf, "channel_delete");
    }
    Ok(shown(r, found.then_some(together)))
}

fn shown(r: &mut Request, info: Option<Info>) -> Verdict {
    let Some(info) = info else { return answer::empty(r, 404) };
    let form = Form::of(r);
    let text = answer::channel(&info, hub::now(), None, form);
    answer::said(r, 200, form, text.as_bytes())
}

/// What a WebSocket may publish, and how it is told.
pub(super) struct Publisher {
    pub(super) names: Vec<Box<[u8]>>,
    pub(super) keep: Keep,
    /// Each message is answered with what the channel has then.
    pub(super) answered: Option<Form>,
    /// What it publishes is asked about, or told, before: that takes a request.
    pub(super) asks: bool,
    pub(super) event: Box<[u8]>,
    marks: Marks<'static>,
}

impl Publisher {
    /// For a request of a location that takes frames. `answered`: it does nothing but publish.
    pub(super) fn of(r: &mut Request, conf: &Conf, names: Vec<Box<[u8]>>) -> Result<Publisher, Verdict> {
        Ok(Publisher {
            names,
            keep: keep(r, conf)?,
            answered: conf.publishers.alone.then(|| Form::of(r)),
            asks: !conf.upstream.is_empty() || !conf.events_id.is_empty() || redis::backend::of(r, conf).is_some(),
            event: (&**conf.eventsource_event).into(),
            marks: marks(conf),
        })
    }

    /// For another process.
    pub(super) fn write(&self, w: &mut heir::Writer) {
        w.number(self.names.len() as u64);
        self.names.iter().for_each(|name| w.bytes(name));
        let Keep { length, seconds, accounting, channel_timeout } = self.keep;
        w.number(length as u64);
        w.signed(seconds);
        w.flag(accounting);
        w.signed(channel_timeout);
        w.optional(self.answered.map(|form| form as i64));
        w.bytes(&self.event);
    }

    /// What another process wrote, for a location of this one.
    pub(super) fn read(r: &mut heir::Reader<'_>, conf: &Conf, backend: Option<&Backend>) -> Option<Publisher> {
        let names: Vec<Box<[u8]>> = r.list(push::limits::MAX_CHANNELS, |r| r.bytes().map(Box::from))?;
        if names.iter().any(|name| backend.map_or(name.contains(&0), |backend| !backend.has(name))) {
            return None;
        }
        let keep = Keep {
            length: usize::try_from(r.number()?).ok()?,
            seconds: r.signed()?,
            accounting: r.flag()?,
            channel_timeout: r.signed()?,
        };
        let answered = match r.optional()? {
            Some(number) => Some(*Form::ALL.get(usize::try_from(number).ok()?)?),
            None => None,
        };
        let event = r.bytes()?.into();
        let asks = !conf.upstream.is_empty() || !conf.events_id.is_empty() || backend.is_some();
        Some(Publisher { names, keep, answered, asks, event, marks: marks(conf) })
    }

    /// Publishes what a frame has brought. The text of the answer, if there is one.
    pub(super) fn publish(&self, data: &[u8], binary: bool, conf: &Conf) -> Result<Option<String>, Refused> {
        let deflated = deflate::deflated(data, conf.deflation());
        let draft = Draft { deflated: &deflated, ..self.draft(data, binary) };
        let (info, last) = publish(&self.names, draft, self.keep)?;
        Ok(self.answered.map(|form| answer::channel(&info, hub::now(), last.as_deref(), form)))
    }

    /// The same where several servers share the channels.
    pub(super) async fn publish_by(
        &self,
        backend: &Backend,
        data: &[u8],
        binary: bool,
    ) -> Result<Option<String>, Failed> {
        let (info, last) = publish_by(backend, &self.names, self.draft(data, binary), self.keep).await?;
        Ok(self.answered.map(|form| answer::channel(&info, hub::now(), last.as_deref(), form)))
    }

    fn draft<'d>(&'d self, data: &'d [u8], binary: bool) -> Draft<'d> {
        let content_type: &[u8] = if binary { b"application/octet-stream" } else { b"" };
        Draft { data, content_type, event: &self.event, marks: self.marks, deflated: b"" }
    }
}

/// A publisher over WebSocket that subscribes to nothing.
pub(super) async fn websocket(r: &mut Request, conf: &Conf) -> Result<Verdict, Verdict> {
    let names = names::channels(r, conf, &conf.publisher_ids)?;
    r.channels().publisher = "websocket";
    hooks::authorize(r, conf).await?;
    let publisher = Publisher::of(r, conf, names)?;
    let extension = websocket::extension(r, conf);
    websocket::shake_hands(r, None, extension.as_deref()).await?;
    Ok(held::websocket(r, None, Some(publisher), extension.is_some()))
}
