//! A check by gRPC's health service (grpc.health.v1.Health/Check of the gRPC health checking protocol), over our own HTTP/2.

use super::cause::Cause;
use super::check::GrpcAsk;
use super::link::ProbeLink;
use super::matching::shown;
use wire::http2::ErrorCode;
use wire::http2::connection::{Config, Connection, Event, Role};
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;

/// What is called.
const PATH: &[u8] = b"/grpc.health.v1.Health/Check";
/// The longest message of an answer: its one field needs two bytes.
const MAX_MESSAGE: usize = 4096;
/// Bounds of header blocks.
const LIMITS: Limits = Limits { field: 4096, block: 16 * 1024 };
/// Status codes by number (gRPC's `statuscodes`).
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// `ServingStatus` by number.
const SERVING: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// What has come of the answer.
#[derive(Debug, Default)]
struct Answer {
    http: Option<u16>,
    status: Option<u32>,
    message: Vec<u8>,
}

/// Asks. False: the connection is not used again.
///
/// # Errors
/// What is wrong with the answer.
pub async fn ask(link: &mut ProbeLink, ask: &GrpcAsk) -> Result<bool, Cause> {
    let config =
        Config { role: Role::Client, max_streams: 0, stream_window: 65_535, headers: LIMITS, extended_connect: false };
    let mut wire: Connection<()> = Connection::new(config);
    let id = wire.open(()).ok_or_else(|| nonsense("no stream can be opened"))?;
    call(&mut wire, id, ask, link);
    let (mut input, mut head, mut answer) = (Vec::new(), HeaderBlock::default(), Answer::default());
    loop {
        let out = wire.output().to_vec();
        wire.advance(out.len());
        link.send(&out).await?;
        if link.receive(&mut input).await? == 0 {
            return Err(if answer.http.is_none() { Cause::Closed } else { nonsense("an answer cut short") });
        }
        let mut at = 0;
        loop {
            let event =
                wire.next(&input, &mut at, &mut head).map_err(|e| nonsense(&wire::said_of("upstream", &e.text)))?;
            let end = match event {
                Event::More => break,
                Event::Head { stream, end, .. } if stream == id => {
                    answer.head(&head);
                    end
                }
                Event::Trailers { stream } if stream == id => {
                    answer.head(&head);
                    true
                }
                Event::Data { stream, span, end } if stream == id => {
                    answer.message.extend_from_slice(span.of(&input));
                    if answer.message.len() > MAX_MESSAGE {
                        return Err(nonsense("a message that is too long"));
                    }
                    end
                }
                Event::Reset { stream, code, .. } if stream == id => {
                    return Err(nonsense(&format!("the stream was reset ({})", code.0)));
                }
                Event::Goaway { code, .. } if code != ErrorCode::NO_ERROR => {
                    return Err(nonsense(&format!("the connection was ended ({})", code.0)));
                }
                _ => false,
            };
            if end {
                return answer.judge(ask).map(|()| false);
            }
        }
        input.drain(..at);
    }
}

fn call(wire: &mut Connection<()>, id: u32, ask: &GrpcAsk, link: &ProbeLink) {
    let scheme: &[u8] = if link.is_secure() { b"https" } else { b"http" };
    wire.send_head(id, false, |encoder, out| {
        encoder.field(b":method", b"POST", out);
        encoder.field(b":scheme", scheme, out);
        encoder.field(b":path", PATH, out);
        encoder.field(b":authority", &ask.authority, out);
        encoder.field(b"content-type", b"application/grpc", out);
        encoder.field(b"te", b"trailers", out);
    });
    let message = request(&ask.service);
    let sent: Result<(), std::convert::Infallible> = wire.send_data(id, message.len(), true, false, |out| {
        out.extend_from_slice(&message);
        Ok(())
    });
    let Ok(()) = sent;
}

/// A length-prefixed `HealthCheckRequest { string service = 1 }`. The service's name is shorter than 128 bytes.
fn request(service: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.extend_from_slice(&[0x0a, service.len() as u8]);
        message.extend_from_slice(service);
    }
    [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
}

impl Answer {
    fn head(&mut self, head: &HeaderBlock) {
        for (name, value) in head.iter() {
            let number = || std::str::from_utf8(value).ok().and_then(|v| v.parse::<u32>().ok());
            match name {
                b":status" => self.http = number().map(|n| n as u16),
                b"grpc-status" => self.status = number(),
                _ => {}
            }
        }
    }

    fn judge(&self, ask: &GrpcAsk) -> Result<(), Cause> {
        if self.http != Some(200) {
            return Err(Cause::Status { status: self.http.unwrap_or(0), wanted: "200".into() });
        }
        let status = self.status.ok_or_else(|| nonsense("no grpc-status"))?;
        if status != 0 {
            // A server that has no health service, and is meant to have none, is there all the same.
            if ask.status == Some(status) {
                return Ok(());
            }
            let name = CODES.get(status as usize).copied().unwrap_or("a status that does not exist");
            return Err(Cause::Grpc(format!("{name} ({status})").into()));
        }
        match serving(&self.message) {
            Some(1) => Ok(()),
            Some(n) => Err(Cause::Grpc(SERVING.get(n).copied().unwrap_or("UNKNOWN").into())),
            None => Err(nonsense(&format!("a message \"{}\"", shown(&self.message)))),
        }
    }
}

/// Of a length-prefixed `HealthCheckResponse { ServingStatus status = 1 }`; a field that is missing is 0.
fn serving(message: &[u8]) -> Option<usize> {
    let (prefix, fields) = message.split_at_checked(5)?;
    if prefix[0] != 0 || usize::try_from(u32::from_be_bytes(prefix[1..].try_into().ok()?)).ok()? != fields.len() {
        return None;
    }
    match fields {
        [] => Some(0),
        [0x08, status, ..] if *status < 0x80 => Some(usize::from(*status)),
        _ => None,
    }
}

fn nonsense(text: &str) -> Cause {
    Cause::Protocol(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_as_the_protocol_has_them() {
        assert_eq!(request(b""), [0; 5]);
        assert_eq!(request(b"ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(serving(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(serving(&[0; 5]), Some(0));
        for bad in [&[0, 0, 0, 0][..], &[0, 0, 0, 0, 3, 8, 1], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0, 2, 16, 1]] {
            assert_eq!(serving(bad), None, "{bad:?}");
        }
    }
}
