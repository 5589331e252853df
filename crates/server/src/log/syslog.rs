//! Log lines as datagrams to a syslog server (RFC 3164), as nginx writes them: `<PRI>Mon dd hh:mm:ss host tag: text`.
//! Used by error logs and access logs. Never waits: what the socket does not take is lost.

use crate::log::error::{self, Errno, Level};
use crate::master::sys;
use crate::process_settings::{SyslogServer, SyslogSpec};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, sendmsg,
    socket_with,
};
use std::cell::Cell;
use std::fmt::Write;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{OnceLock, PoisonError, RwLock};

/// RFC 3164 section 4.1.3.
const MAX_TAG: usize = 32;

const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp", "ntp",
    "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];
const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"];

/// A sender to one syslog server, for all threads.
#[derive(Debug)]
pub struct Syslog {
    spec: SyslogSpec,
    /// Opened by the first line, and again after a line that could not be sent.
    socket: RwLock<Option<OwnedFd>>,
}

thread_local! {
    /// A failed send is itself logged, maybe here.
    static SENDING: Cell<bool> = const { Cell::new(false) };
}

impl Syslog {
    /// A sender that has not connected yet.
    pub fn new(spec: SyslogSpec) -> Syslog {
        Syslog { spec, socket: RwLock::new(None) }
    }

    /// What it was made of.
    pub fn spec(&self) -> &SyslogSpec {
        &self.spec
    }

    /// Sends a line with the severity of the `severity=` parameter: access logs.
    pub fn send(&self, message: &[u8]) {
        self.send_with(self.spec.severity, message);
    }

    /// Sends a line with severity 0 (emerg) to 7 (debug). A failure is written to the default error log.
    pub fn send_with(&self, severity: u8, message: &[u8]) {
        if SENDING.replace(true) {
            return;
        }
        let header = header(&self.spec, severity);
        if let Err((step, cause)) = self.try_send(header.as_bytes(), message) {
            let server = &self.spec.server;
            let text = format_args!("{step} failed {} while logging to syslog, server: {server}", Errno(&cause));
            error::default_log().write(if step == "send()" { Level::Error } else { Level::Alert }, None, text);
        }
        SENDING.set(false);
    }

    fn try_send(&self, header: &[u8], message: &[u8]) -> Result<(), (&'static str, io::Error)> {
        let sent = match self.send_open(header, message) {
            Some(sent) => sent,
            None => {
                let mut socket = self.socket.write().unwrap_or_else(PoisonError::into_inner);
                if socket.is_none() {
                    *socket = Some(connected(&self.spec.server)?);
                }
                send(socket.as_ref().expect("opened just now"), header, message)
            }
        };
        match sent {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => {
                *self.socket.write().unwrap_or_else(PoisonError::into_inner) = None;
                Err(("send()", e))
            }
            Ok(()) => Ok(()),
        }
    }

    /// The way of every line but the first: threads send side by side.
    fn send_open(&self, header: &[u8], message: &[u8]) -> Option<io::Result<()>> {
        let socket = self.socket.read().unwrap_or_else(PoisonError::into_inner);
        socket.as_ref().map(|socket| send(socket, header, message))
    }
}

fn send(socket: &OwnedFd, header: &[u8], message: &[u8]) -> io::Result<()> {
    let parts = [IoSlice::new(header), IoSlice::new(message)];
    sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

fn connected(server: &SyslogServer) -> Result<OwnedFd, (&'static str, io::Error)> {
    let family = match server {
        SyslogServer::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        SyslogServer::Inet(_) => AddressFamily::INET6,
        SyslogServer::Unix(_) => AddressFamily::UNIX,
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
        .map_err(|e| ("socket()", e.into()))?;
    match server {
        SyslogServer::Inet(address) => connect(socket.as_fd(), address),
        SyslogServer::Unix(path) => SocketAddrUnix::new(path).and_then(|address| connect(socket.as_fd(), &address)),
    }
    .map_err(|e| ("connect()", e.into()))?;
    Ok(socket)
}

fn header(spec: &SyslogSpec, severity: u8) -> String {
    let now = error::now();
    let time = wire::date::format_syslog(now, sys::local_time(now).offset_minutes);
    let priority = u32::from(spec.facility) * 8 + u32::from(severity);
    let mut text = String::with_capacity(96);
    let _ = write!(text, "<{priority}>{} ", time.escape_ascii());
    if !spec.nohostname {
        let _ = write!(text, "{} ", hostname());
    }
    let _ = write!(text, "{}: ", spec.tag);
    text
}

/// The host's name in lower case, asked once.
pub fn hostname() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim_end().to_ascii_lowercase()
    })
}

/// Reads what follows `syslog:` in a directive. `resolve` turns the text of `server=` (default port 514) into
/// an address. Errors are nginx's texts.
pub fn parse(parameters: &str, resolve: impl Fn(&str) -> Result<SyslogServer, String>) -> Result<SyslogSpec, String> {
    let (mut server, mut facility, mut severity, mut tag, mut nohostname) = (None, None, None, None, false);
    for parameter in parameters.split(',') {
        if parameter == "nohostname" {
            nohostname = true;
            continue;
        }
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "server" => once(&mut server, name, resolve(value)?)?,
            "facility" => once(&mut facility, name, number_of(&FACILITIES, name, value)?)?,
            "severity" => once(&mut severity, name, number_of(&SEVERITIES, name, value)?)?,
            "tag" => once(&mut tag, name, checked_tag(value)?)?,
            _ => return Err(format!("unknown syslog parameter \"{parameter}\"")),
        }
    }
    Ok(SyslogSpec {
        server: server.ok_or("no syslog server specified")?,
        facility: facility.unwrap_or(23),
        severity: severity.unwrap_or(6),
        tag: tag.unwrap_or_else(|| "nginx".to_owned()),
        nohostname,
    })
}

fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match slot.replace(value) {
        Some(_) => Err(format!("duplicate syslog \"{name}\"")),
        None => Ok(()),
    }
}

fn number_of(names: &[&str], kind: &str, value: &str) -> Result<u8, String> {
    match names.iter().position(|name| *name == value) {
        Some(number) => Ok(number as u8),
        None => Err(format!("unknown syslog {kind} \"{value}\"")),
    }
}

fn checked_tag(value: &str) -> Result<String, String> {
    if value.len() > MAX_TAG {
        return Err(format!("syslog tag length exceeds {MAX_TAG}"));
    }
    if !value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("syslog \"tag\" only allows alphanumeric characters and underscore".to_owned());
    }
    Ok(value.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<SyslogServer, String> {
        text.parse().map(SyslogServer::Inet).map_err(|_| format!("host not found in syslog server \"{text}\""))
    }

    #[test]
    fn parameters_are_read() {
        let spec = parse("severity=alert,server=127.0.0.1:8984,facility=user,tag=SEETHIS,nohostname", resolve).unwrap();
        assert_eq!((spec.facility, spec.severity, spec.tag.as_str(), spec.nohostname), (1, 1, "SEETHIS", true));
        let spec = parse("server=127.0.0.1:514", resolve).unwrap();
        assert_eq!((spec.facility, spec.severity, spec.tag.as_str(), spec.nohostname), (23, 6, "nginx", false));
    }

    #[test]
    fn errors_are_nginx_s() {
        for (text, error) in [
            ("tag=x", "no syslog server specified"),
            ("server=127.0.0.1:1,server=127.0.0.1:1", "duplicate syslog \"server\""),
            ("facility=nothing", "unknown syslog facility \"nothing\""),
            ("severity=err", "unknown syslog severity \"err\""),
            ("tag=a-b", "syslog \"tag\" only allows alphanumeric characters and underscore"),
            ("what=x", "unknown syslog parameter \"what=x\""),
        ] {
            assert_eq!(parse(text, resolve).unwrap_err(), error);
        }
    }

    #[test]
    fn a_line_arrives_with_its_header() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let text = format!("server={},facility=user,tag=me", server.local_addr().unwrap());
        let log = Syslog::new(parse(&text, resolve).unwrap());
        log.send_with(3, b"hello");
        let mut buf = [0; 256];
        let n = server.recv(&mut buf).unwrap();
        let line = std::str::from_utf8(&buf[..n]).unwrap();
        assert!(line.starts_with("<11>"), "{line}");
        assert!(line.ends_with(&format!(" {} me: hello", hostname())), "{line}");
    }
}
