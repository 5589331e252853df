//! `cjson` as programs know it: values of Lua to JSON and back, with the same rules for arrays, `cjson.null` and depth.

use mlua::{LightUserData, Lua, Table, Value};
use serde_json::de::{Deserializer, SliceRead};
use std::fmt;

/// How deep tables may nest, in and out (lua-cjson's default).
pub const MAX_DEPTH: usize = 1000;
/// Arrays whose last index is above this and more than twice the number of their elements are too sparse (lua-cjson's defaults).
const SPARSE_SAFE: usize = 10;
const SPARSE_RATIO: usize = 2;

/// `cjson.null` and `ngx.null`.
pub fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

/// What an empty table becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// `{}`
    Object,
    /// `[]`
    Array,
}

/// Writes a value as JSON. `array_mark`: the metatable of tables that are arrays whatever is in them.
///
/// # Errors
/// lua-cjson's texts.
pub fn encode(value: &Value, empty: Empty, array_mark: &Table) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    write(value, empty, array_mark, 1, &mut out)?;
    Ok(out)
}

fn write(value: &Value, empty: Empty, mark: &Table, depth: usize, out: &mut Vec<u8>) -> Result<(), String> {
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::LightUserData(p) if p.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(b) => out.extend_from_slice(if *b { b"true" } else { b"false" }),
        Value::Integer(i) => out.extend_from_slice(i.to_string().as_bytes()),
        Value::Number(n) if !n.is_finite() => return Err("Cannot serialise number: must not be NaN or Inf".to_owned()),
        Value::Number(n) => crate::machine::write_number(*n, out),
        Value::String(text) => write_text(&text.as_bytes(), out),
        Value::Table(table) => write_table(table, empty, mark, depth, out)?,
        other => return Err(format!("Cannot serialise {}: type not supported", other.type_name())),
    }
    Ok(())
}

fn write_table(table: &Table, empty: Empty, mark: &Table, depth: usize, out: &mut Vec<u8>) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("Cannot serialise, excessive depth ({depth})"));
    }
    let broken = |e: mlua::Error| e.to_string();
    let is_marked = table.metatable().is_some_and(|m| m == *mark);
    let (mut count, mut last) = (0usize, 0usize);
    let mut is_array = true;
    for pair in table.pairs::<Value, Value>() {
        count += 1;
        match pair.map_err(broken)?.0 {
            Value::Integer(i) if i > 0 => last = last.max(i as usize),
            _ => {
                is_array = false;
                break;
            }
        }
    }
    if count == 0 && !is_marked {
        out.extend_from_slice(if empty == Empty::Array { b"[]" } else { b"{}" });
        return Ok(());
    }
    if is_array || is_marked {
        if last > SPARSE_SAFE && last > count.saturating_mul(SPARSE_RATIO) && !is_marked {
            return Err("Cannot serialise table: excessively sparse array".to_owned());
        }
        out.push(b'[');
        for index in 1..=last {
            if index > 1 {
                out.push(b',');
            }
            write(&table.raw_get::<Value>(index).map_err(broken)?, empty, mark, depth + 1, out)?;
        }
        out.push(b']');
        return Ok(());
    }
    out.push(b'{');
    let mut first = true;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(broken)?;
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        match key {
            Value::String(text) => write_text(&text.as_bytes(), out),
            Value::Integer(i) => out.extend_from_slice(format!("\"{i}\"").as_bytes()),
            Value::Number(n) => {
                out.push(b'"');
                crate::machine::write_number(n, out);
                out.push(b'"');
            }
            _ => return Err("Cannot serialise table: table key must be a number or string".to_owned()),
        }
        out.push(b':');
        write(&value, empty, mark, depth + 1, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// A text in quotes; bytes that are no UTF-8 pass as they are, as with lua-cjson.
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => out.push(other),
        }
    }
    out.push(b'"');
}

/// Reads JSON. Objects and arrays nest to the depth that the reader allows.
///
/// # Errors
/// What is wrong, and at which character.
pub fn decode(lua: &Lua, text: &[u8], array_mark: Option<&Table>) -> Result<Value, String> {
    let mut reader = Deserializer::new(SliceRead::new(text));
    let read = serde::de::DeserializeSeed::deserialize(Seed { lua, array_mark }, &mut reader);
    let read = read.and_then(|value| reader.end().map(|()| value));
    read.map_err(|e| {
        let line_start = text.split_inclusive(|b| *b == b'\n').take(e.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at: usize = line_start;
        let at = (at + e.column()).max(1);
        let what = match text.get(at - 1) {
            None => "T_END",
            _ if e.is_eof() => "T_END",
            _ => "invalid token",
        };
        format!("Expected value but found {what} at character {at}")
    })
}

#[derive(Clone, Copy)]
struct Seed<'l> {
    lua: &'l Lua,
    array_mark: Option<&'l Table>,
}

fn broken<E: serde::de::Error>(error: mlua::Error) -> E {
    E::custom(error)
}

impl<'de> serde::de::DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> serde::de::Visitor<'de> for Seed<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(null())
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Boolean(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v as f64))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v as f64))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Number(v))
    }
    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Value, E> {
        self.lua.create_string(v).map(Value::String).map_err(broken)
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(broken)?;
        if let Some(mark) = self.array_mark {
            table.set_metatable(Some(mark.clone())).map_err(broken)?;
        }
        let mut index = 0;
        while let Some(value) = access.next_element_seed(self)? {
            index += 1;
            table.raw_set(index, value).map_err(broken)?;
        }
        Ok(Value::Table(table))
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(broken)?;
        while let Some(key) = access.next_key_seed(self)? {
            let value: Value = access.next_value_seed(self)?;
            table.raw_set(key, value).map_err(broken)?;
        }
        Ok(Value::Table(table))
    }
}
