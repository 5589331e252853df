//! The REST API (nginx Plus' `ngx_http_api_module`, versions 8 and 9): what `status` counts and what can be changed while the
//! server runs. Works on the service thread alone, one call after another: a long list costs no request, and two changes
//! never meet. From: `modules::api` (reads the request, sends the reply).
//!
//! ```text
//!  /8/http/server_zones/site?fields=requests ─> version ─> table (who knows the path) ─> show or change ─> fields ─> JSON
//! ```

pub mod error;
pub mod fields;
pub mod general;
pub mod guards;
pub mod http;
pub mod kernel;
pub mod keyvals;
pub mod memory;
pub mod openapi;
pub mod own;
pub mod render;
pub mod schema;
pub mod servers;
pub mod table;
pub mod upstreams;

use crate::snapshot::Snapshot;
use error::Failure;
use serde_json::{Value, json};
use std::sync::Arc;

/// The versions there are.
pub const VERSIONS: [u32; 2] = [8, 9];
/// What messages about errors refer to.
pub const REFERENCE: &str = "https://nginx.org/en/docs/http/ngx_http_api_module.html";

/// What is done with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `GET`, `HEAD`
    Get,
    /// `POST`
    Post,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
}

impl Verb {
    /// As it stands in a request.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }
}

/// A call.
pub struct Call {
    /// What is to be done; none: a method that no endpoint has.
    pub verb: Option<Verb>,
    /// The path behind the location's: `/9/http/requests`.
    pub path: String,
    /// What follows the `?`.
    pub query: String,
    /// What was sent.
    pub body: Vec<u8>,
    /// `write=on`
    pub write: bool,
    /// The configuration.
    pub snapshot: Arc<Snapshot>,
    /// The address that the call came to.
    pub address: String,
    /// `$request_id`
    pub request_id: String,
}

/// What comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// JSON; empty for 204.
    pub body: Vec<u8>,
    /// What was made, for `Location`, behind the version.
    pub location: Option<String>,
    /// The methods that the endpoint has, for `Allow`.
    pub allow: Option<String>,
}

/// What an endpoint has to say.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// 200
    Found(Value),
    /// 201 and where it is.
    Created(Value, String),
    /// 204
    Done,
}

/// Answers a call.
pub fn answer(call: &Call) -> Reply {
    match work(call) {
        Ok((outcome, version)) => {
            let (status, value, location) = match outcome {
                Outcome::Found(value) => (200, Some(value), None),
                Outcome::Created(value, path) => (201, Some(value), Some(format!("/{version}{path}"))),
                Outcome::Done => (204, None, None),
            };
            let body = value.map_or_else(Vec::new, |v| v.to_string().into_bytes());
            Reply { status, body, location, allow: None }
        }
        Err(failure) => {
            let Failure { status, code, text, allow } = failure;
            let body = json!({
                "error": {"status": status, "text": text, "code": code},
                "request_id": call.request_id,
                "href": REFERENCE,
            });
            Reply { status, body: body.to_string().into_bytes(), location: None, allow }
        }
    }
}

fn work(call: &Call) -> Result<(Outcome, u32), Failure> {
    let mut segments = fields::segments(&call.path)?;
    if segments.is_empty() {
        only_get(call)?;
        return Ok((Outcome::Found(json!(VERSIONS)), 0));
    }
    let version = segments.remove(0);
    let version: u32 = version.parse().ok().filter(|v| VERSIONS.contains(v)).ok_or_else(Failure::unknown_version)?;
    let outcome = table::find_and_call(call, version, &segments)?;
    Ok((outcome, version))
}

fn only_get(call: &Call) -> Result<(), Failure> {
    if call.verb == Some(Verb::Get) { Ok(()) } else { Err(Failure::not_allowed("GET, HEAD".to_owned())) }
}

#[cfg(test)]
mod tests;
