//! What answers look like, for the OpenAPI document, and for the tests that hold answers against it.

use serde_json::{Value, json};

/// The form of a value.
pub enum Schema {
    /// A whole number, not negative.
    Number,
    /// A number with a fraction, not negative.
    Ratio,
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
            Schema::Ratio => json!({"type": "number", "minimum": 0}),
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
}
