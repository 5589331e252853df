//! The table of endpoints as an OpenAPI 3.1 document, for the version that is asked.

use super::error::Failure;
use super::schema::{Schema, TEXTS};
use super::table::{Context, ENDPOINTS, Endpoint, Kind, Resets, Shape};
use super::{REFERENCE, Verb, keyvals, servers, upstreams};
use crate::config::Subsystem;
use serde_json::{Map, Value, json};

/// The document has a schema of its own, which is not repeated here.
pub static DOCUMENT: Schema = Schema::Anything;

/// `/openapi.json`
pub fn show(context: &Context) -> Result<Value, Failure> {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        for (path, operations) in endpoint.paths() {
            paths.insert(path, operations);
        }
    }
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ironweir's API",
            "description": "nginx Plus' REST API, as far as Ironweir has what it is about, and /ironweir beside it.",
            "version": context.version.to_string(),
        },
        // Relative to where the document is.
        "servers": [{"url": "."}],
        "externalDocs": {"url": REFERENCE},
        "paths": paths,
        "components": {"schemas": {"Error": error()}},
    }))
}

fn error() -> Value {
    json!({
        "type": "object",
        "required": ["error", "request_id", "href"],
        "additionalProperties": false,
        "properties": {
            "error": {
                "type": "object",
                "required": ["status", "text", "code"],
                "additionalProperties": false,
                "properties": {
                    "status": {"type": "integer"}, "text": {"type": "string"}, "code": {"type": "string"},
                },
            },
            "request_id": {"type": "string"},
            "href": {"type": "string"},
        },
    })
}

/// One operation.
struct Operation<'s> {
    verb: Verb,
    summary: String,
    /// Status, and what comes with it.
    success: (u16, Option<Value>),
    body: Option<Value>,
    parameters: Vec<Value>,
    errors: &'s [(u16, &'static str)],
}

const READ_ERRORS: &[(u16, &str)] = &[(404, "there is no such thing")];
const WRITE_ERRORS: &[(u16, &str)] = &[
    (400, "what is asked for cannot be"),
    (404, "there is no such thing"),
    (405, "write access is off"),
    (409, "it is there already"),
    (413, "what was sent is too long"),
    (415, "what was sent is no JSON"),
    (500, "the state file cannot be written"),
    (507, "the zone is full"),
];

impl Operation<'_> {
    fn describe(&self, path: &str) -> (String, Value) {
        let mut responses = Map::new();
        let (status, content) = &self.success;
        let mut success = json!({"description": "done"});
        if let Some(schema) = content {
            success["content"] = json!({"application/json": {"schema": schema}});
        }
        responses.insert(status.to_string(), success);
        let error = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}});
        for (status, text) in self.errors {
            responses.insert(status.to_string(), json!({"description": text, "content": error}));
        }
        let name = path.replace(['/', '{', '}'], "_");
        let mut all = json!({
            "operationId": format!("{}{name}", self.verb.name().to_ascii_lowercase()),
            "summary": self.summary,
            "responses": responses,
        });
        if !self.parameters.is_empty() {
            all["parameters"] = json!(self.parameters);
        }
        if let Some(schema) = &self.body {
            all["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        (self.verb.name().to_ascii_lowercase(), all)
    }
}

fn fields() -> Value {
    json!({
        "name": "fields", "in": "query", "required": false, "schema": {"type": "string"},
        "description": "the fields that are wanted, separated by commas",
    })
}

fn in_path(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
}

fn path(template: String, operations: &[Operation]) -> (String, Value) {
    let all: Map<_, _> = operations.iter().map(|o| o.describe(&template)).collect();
    (template, all.into())
}

fn get<'s>(summary: &str, schema: Value, parameters: Vec<Value>) -> Operation<'s> {
    let (summary, success) = (summary.to_owned(), (200, Some(schema)));
    Operation { verb: Verb::Get, summary, success, body: None, parameters, errors: READ_ERRORS }
}

fn delete<'s>(summary: String, success: (u16, Option<Value>), parameters: Vec<Value>) -> Operation<'s> {
    Operation { verb: Verb::Delete, summary, success, body: None, parameters, errors: WRITE_ERRORS }
}

/// A map of objects, or their names alone.
fn map_of(schema: &Schema) -> Value {
    json!({"oneOf": [
        {"type": "object", "additionalProperties": schema.describe(true)},
        TEXTS.describe(false),
    ]})
}

impl Endpoint {
    fn paths(&self) -> Vec<(String, Value)> {
        let (base, summary) = (self.path, self.summary);
        match &self.kind {
            Kind::One { schema, reset, .. } => {
                let is_object = matches!(schema, Schema::Object(_));
                let parameters = if is_object { vec![fields()] } else { Vec::new() };
                let mut all = vec![get(summary, schema.describe(is_object), parameters)];
                if reset.is_some() {
                    all.push(delete(format!("sets to zero: {summary}"), (204, None), Vec::new()));
                }
                vec![path(base.to_owned(), &all)]
            }
            Kind::Many { shape, schema, resets, .. } => {
                let mut one = vec![get(summary, schema.describe(true), vec![in_path("name"), fields()])];
                let whole = match shape {
                    Shape::Map => map_of(schema),
                    Shape::List => json!({"type": "array", "items": schema.describe(true)}),
                };
                let mut all = vec![get(summary, whole, vec![fields()])];
                let reset = |parameters| delete(format!("sets to zero: {summary}"), (204, None), parameters);
                if *resets != Resets::Nothing {
                    one.push(reset(vec![in_path("name")]));
                }
                if *resets == Resets::All {
                    all.push(reset(Vec::new()));
                }
                vec![path(base.to_owned(), &all), path(format!("{base}/{{name}}"), &one)]
            }
            Kind::Upstreams(subsystem) => upstream_paths(base, *subsystem),
            Kind::Keyvals(_) => keyval_paths(base),
        }
    }
}

fn upstream_paths(base: &str, subsystem: Subsystem) -> Vec<(String, Value)> {
    let schema = if subsystem.is_stream() { &upstreams::STREAM } else { &upstreams::HTTP };
    let (server, of_group) = (servers::SERVER.describe(false), vec![in_path("name")]);
    let list = json!({"type": "array", "items": server});
    let of_server = vec![in_path("name"), in_path("id")];
    let change = |verb, summary: &str, status, parameters: &[Value]| Operation {
        verb,
        summary: summary.to_owned(),
        success: (status, Some(server.clone())),
        body: Some(servers::sent(verb == Verb::Post)),
        parameters: parameters.to_vec(),
        errors: WRITE_ERRORS,
    };
    let with_400 = |mut operation: Operation<'static>| {
        operation.errors = &[(400, "the upstream has no zone"), (404, "there is no such thing")];
        operation
    };
    vec![
        path(base.to_owned(), &[get("groups of peers that have a zone", map_of(schema), vec![fields()])]),
        path(
            format!("{base}/{{name}}"),
            &[
                with_400(get("a group of peers", schema.describe(true), vec![in_path("name"), fields()])),
                delete("sets what is counted of its peers to zero".to_owned(), (204, None), of_group.clone()),
            ],
        ),
        path(
            format!("{base}/{{name}}/servers"),
            &[
                with_400(get("the servers of a group", list.clone(), of_group.clone())),
                change(Verb::Post, "adds a server", 201, &of_group),
            ],
        ),
        path(
            format!("{base}/{{name}}/servers/{{id}}"),
            &[
                with_400(get("a server", server.clone(), of_server.clone())),
                change(Verb::Patch, "changes a server", 200, &of_server),
                delete("removes a server".to_owned(), (200, Some(list)), of_server.clone()),
            ],
        ),
    ]
}

fn keyval_paths(base: &str) -> Vec<(String, Value)> {
    let zone = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let key = json!({"name": "key", "in": "query", "required": false, "schema": {"type": "string"}});
    let all = json!({"oneOf": [{"type": "object", "additionalProperties": zone}, TEXTS.describe(false)]});
    let change = |verb, summary: &str, success| Operation {
        verb,
        summary: summary.to_owned(),
        success,
        body: Some(keyvals::sent(verb == Verb::Patch)),
        parameters: vec![in_path("name")],
        errors: WRITE_ERRORS,
    };
    vec![
        path(base.to_owned(), &[get("all keys and values", all, vec![fields()])]),
        path(
            format!("{base}/{{name}}"),
            &[
                get("the keys and values of a zone", zone, vec![in_path("name"), key]),
                change(Verb::Post, "adds a key, or several to an empty zone", (201, Some(json!({"type": "object"})))),
                change(Verb::Patch, "changes a key, or removes it (null)", (204, None)),
                delete("removes all keys".to_owned(), (204, None), vec![in_path("name")]),
            ],
        ),
    ]
}
