//! What answers look like, for the OpenAPI document, and for the tests that hold answers against it.

use serde_json::{Value, json};

/// The form of a value.
pub enum Schema {
    /// A whole number, not negative.
    Number,
    /// A text.
    Text,
    /// A moment, ISO 8601.
    Time,
    /// True or false.
    Flag,
    /// An object with these fields; those marked may be missing.
    Object(&'static [Field]),
    /// An object with any names and values of one form.
    Map(&'static Schema),
    /// A list of values of one form.
    List(&'static Schema),
    /// Any object.
    Anything,
}

/// A field of an object.
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its form.
    pub schema: Schema,
    /// It may be missing.
    pub optional: bool,
}

/// A field that is always there.
pub const fn field(name: &'static str, schema: Schema) -> Field {
    Field { name, schema, optional: false }
}

/// A field that may be missing.
pub const fn maybe(name: &'static str, schema: Schema) -> Field {
    Field { name, schema, optional: true }
}

/// A number.
pub const fn number(name: &'static str) -> Field {
    field(name, Schema::Number)
}

/// Names.
pub static TEXTS: Schema = Schema::List(&Schema::Text);

impl Schema {
    /// As JSON Schema. `partial`: with `fields=` any field may be missing.
    pub fn describe(&self, partial: bool) -> Value {
        match self {
            Schema::Number => json!({"type": "integer", "minimum": 0}),
            Schema::Text => json!({"type": "string"}),
            Schema::Time => json!({"type": "string", "format": "date-time"}),
            Schema::Flag => json!({"type": "boolean"}),
            Schema::Object(fields) => {
                let properties: serde_json::Map<_, _> =
                    fields.iter().map(|f| (f.name.to_owned(), f.schema.describe(false))).collect();
                let required: Vec<_> = fields.iter().filter(|f| !partial && !f.optional).map(|f| f.name).collect();
                let mut all = json!({"type": "object", "properties": properties, "additionalProperties": false});
                if !required.is_empty() {
                    all["required"] = json!(required);
                }
                all
            }
            Schema::Map(values) => json!({"type": "object", "additionalProperties": values.describe(partial)}),
            Schema::Anything => json!({"type": "object"}),
            Schema::List(items) => json!({"type": "array", "items": items.describe(false)}),
        }
    }

    /// What does not fit, and where; nothing if all does.
    #[cfg(test)]
    pub(super) fn complain(&self, value: &Value, at: &str) -> Vec<String> {
        let bad = |what: &str| vec![format!("{at}: {value} is no {what}")];
        match (self, value) {
            (Schema::Anything, Value::Object(_)) => Vec::new(),
            (Schema::Number, v) if v.is_u64() => Vec::new(),
            (Schema::Number, _) => bad("number"),
            (Schema::Text, Value::String(_)) | (Schema::Flag, Value::Bool(_)) => Vec::new(),
            (Schema::Time, Value::String(t)) if t.len() == 24 && t.ends_with('Z') => Vec::new(),
            (Schema::Object(fields), Value::Object(all)) => {
                let missing = fields.iter().filter(|f| !f.optional && !all.contains_key(f.name));
                let mut found: Vec<_> = missing.map(|f| format!("{at}: no {}", f.name)).collect();
                for (name, value) in all {
                    match fields.iter().find(|f| f.name == name) {
                        Some(f) => found.extend(f.schema.complain(value, &format!("{at}/{name}"))),
                        None => found.push(format!("{at}: {name} is not in the schema")),
                    }
                }
                found
            }
            (Schema::Map(values), Value::Object(all)) => {
                all.iter().flat_map(|(name, v)| values.complain(v, &format!("{at}/{name}"))).collect()
            }
            (Schema::List(items), Value::Array(all)) => {
                all.iter().flat_map(|v| items.complain(v, &format!("{at}[]"))).collect()
            }
            _ => bad("such thing"),
        }
    }
}
