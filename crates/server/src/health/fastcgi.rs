//! A check by a FastCGI request: its answer is judged by the status, as one over HTTP.

use super::cause::Cause;
use super::check::HttpAsk;
use super::http::{Answer, nonsense};
use super::link::ProbeLink;
use super::matching::{MAX_BODY, shown};
use crate::upstream::cgi;
use wire::fastcgi::{Decoder, begin, end_of_stdin, param, params};
use wire::http1::response::ResponseHead;

/// Messages of an application that are looked at, in bytes.
const MAX_ERRORS: usize = 4096;

/// A parameter: its name and its value.
pub type Param = (Box<[u8]>, Box<[u8]>);

/// A request that has these parameters and no body.
pub fn request(all: &[Param]) -> Box<[u8]> {
    let (mut content, mut out) = (Vec::new(), Vec::new());
    all.iter().for_each(|(name, value)| param(&[name], &[value], &mut content));
    begin(false, &mut out);
    params(&content, &mut out);
    end_of_stdin(&mut out);
    out.into()
}

/// Asks.
///
/// # Errors
/// What is wrong with the answer.
pub async fn ask(link: &mut ProbeLink, ask: &HttpAsk) -> Result<(), Cause> {
    link.send(&ask.request).await?;
    let (mut records, mut came) = (Decoder::default(), Vec::new());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let mut is_silent = true;
    // To the end of the request: an application that is cut off before takes harm.
    while !records.ended && output.len() <= MAX_BODY {
        came.clear();
        if link.receive(&mut came).await? == 0 {
            break;
        }
        is_silent = false;
        records.decode(&came, &mut output, &mut errors).map_err(|e| nonsense(&e.to_string()))?;
        errors.truncate(MAX_ERRORS);
    }
    if is_silent {
        return Err(Cause::Closed);
    }
    let mut head = ResponseHead::default();
    if !cgi::parse(&mut head, &output, cgi::Kind::Fields) {
        let said = if output.is_empty() { &errors } else { &output };
        return Err(nonsense(&format!("no head: \"{}\"", shown(said))));
    }
    ask.wanted.judge(&Answer { head: &head, bytes: &output, body: &[] })
}
