//! `cjson` as programs know it: values of Lua to JSON and back, with lua-cjson's rules for arrays, numbers, `cjson.null` and depth.

use crate::json_read::Reader;
use mlua::{LightUserData, Lua, Table, Value};

/// How deep tables may nest, in and out, unless a program says otherwise (lua-cjson's default).
pub const MAX_DEPTH: usize = 1000;
/// The most that a program may say: each level takes room on the thread's own stack.
pub const LARGEST_DEPTH: usize = 4000;
/// Arrays whose last index is above this and more than twice the number of their elements are too sparse (lua-cjson's defaults).
const SPARSE_SAFE: usize = 10;
const SPARSE_RATIO: usize = 2;
/// Digits of numbers (lua-cjson's default).
const PRECISION: usize = 14;

/// `cjson.null` and `ngx.null`.
pub fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

/// What numbers that are none become: NaN and the infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// An error.
    Refused,
    /// `nan`, `inf`.
    Written,
    /// `null`
    Null,
}

/// What a program has set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Empty tables are `[]`, otherwise `{}`.
    pub empty_is_array: bool,
    /// Arrays that are too sparse are objects, otherwise an error.
    pub sparse_is_object: bool,
    /// An array is too sparse with so many times more places than elements; 0: never.
    pub sparse_ratio: usize,
    /// As long as it has more places than this.
    pub sparse_safe: usize,
    /// How deep what is written may nest.
    pub encode_depth: usize,
    /// How deep what is read may nest.
    pub decode_depth: usize,
    /// Digits of numbers, 1 to 16.
    pub precision: usize,
    /// Numbers that are none, when written.
    pub encode_invalid: Invalid,
    /// Such numbers, and hexadecimal ones, are read.
    pub decode_invalid: bool,
    /// `/` is written as `\/`.
    pub escape_slash: bool,
    /// Values of other types are left out, otherwise an error.
    pub skip_others: bool,
    /// Arrays that are read have the mark of arrays.
    pub mark_arrays: bool,
    /// What each level is indented by; empty: all stands in one line.
    pub indent: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            empty_is_array: false,
            sparse_is_object: false,
            sparse_ratio: SPARSE_RATIO,
            sparse_safe: SPARSE_SAFE,
            encode_depth: MAX_DEPTH,
            decode_depth: MAX_DEPTH,
            precision: PRECISION,
            encode_invalid: Invalid::Refused,
            decode_invalid: true,
            escape_slash: true,
            skip_others: false,
            mark_arrays: false,
            indent: String::new(),
        }
    }
}

/// Writes a value as JSON. `array_mark`: the metatable of tables that are arrays whatever is in them; `empty_mark`: of those that are
/// arrays when they are empty.
///
/// # Errors
/// lua-cjson's texts.
pub fn encode(value: &Value, options: &Options, array_mark: &Table, empty_mark: &Table) -> Result<Vec<u8>, String> {
    let mut writer = Writer { options, array_mark, empty_mark, out: Vec::new() };
    writer.value(value, 1)?;
    Ok(writer.out)
}

struct Writer<'w> {
    options: &'w Options,
    array_mark: &'w Table,
    empty_mark: &'w Table,
    out: Vec<u8>,
}

/// What a table is written as.
enum Kind {
    Array(usize),
    Object,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(p) if p.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(b) => self.out.extend_from_slice(if *b { b"true" } else { b"false" }),
            Value::Integer(i) => self.number(*i as f64)?,
            Value::Number(n) => self.number(*n)?,
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Table(table) => self.table(table, depth)?,
            other => return Err(format!("Cannot serialise {}: type not supported", other.type_name())),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if number.is_finite() {
            crate::machine::write_digits(number, self.options.precision, &mut self.out);
            return Ok(());
        }
        match self.options.encode_invalid {
            Invalid::Refused => return Err("Cannot serialise number: must not be NaN or Infinity".to_owned()),
            Invalid::Null => self.out.extend_from_slice(b"null"),
            Invalid::Written if number.is_nan() => self.out.extend_from_slice(b"NaN"),
            Invalid::Written if number > 0.0 => self.out.extend_from_slice(b"Infinity"),
            Invalid::Written => self.out.extend_from_slice(b"-Infinity"),
        }
        Ok(())
    }

    fn kind(&self, table: &Table) -> Result<Kind, String> {
        let mark = table.metatable();
        let is_marked = mark.as_ref().is_some_and(|m| m == self.array_mark);
        let (mut count, mut last) = (0usize, 0usize);
        let mut is_array = true;
        for pair in table.pairs::<Value, Value>() {
            count += 1;
            match pair.map_err(|e| e.to_string())?.0 {
                Value::Integer(i) if i > 0 => last = last.max(i as usize),
                _ => {
                    is_array = false;
                    break;
                }
            }
        }
        if is_marked {
            return Ok(Kind::Array(if is_array { last } else { table.raw_len() }));
        }
        if count == 0 {
            let empty = self.options.empty_is_array || mark.as_ref().is_some_and(|m| m == self.empty_mark);
            return Ok(if empty { Kind::Array(0) } else { Kind::Object });
        }
        if !is_array {
            return Ok(Kind::Object);
        }
        let Options { sparse_ratio, sparse_safe, .. } = *self.options;
        if sparse_ratio > 0 && last > sparse_safe && last > count.saturating_mul(sparse_ratio) {
            if !self.options.sparse_is_object {
                return Err("Cannot serialise table: excessively sparse array".to_owned());
            }
            return Ok(Kind::Object);
        }
        Ok(Kind::Array(last))
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        if depth > self.options.encode_depth {
            return Err(format!("Cannot serialise, excessive depth ({depth})"));
        }
        match self.kind(table)? {
            Kind::Array(last) => self.array(table, last, depth),
            Kind::Object => self.object(table, depth),
        }
    }

    fn is_left_out(&self, value: &Value) -> bool {
        self.options.skip_others
            && match value {
                Value::LightUserData(p) => !p.0.is_null(),
                Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::String(_) => false,
                Value::Table(_) => false,
                _ => true,
            }
    }

    fn line(&mut self, depth: usize) {
        if !self.options.indent.is_empty() {
            self.out.push(b'\n');
            (0..depth).for_each(|_| self.out.extend_from_slice(self.options.indent.as_bytes()));
        }
    }

    fn array(&mut self, table: &Table, last: usize, depth: usize) -> Result<(), String> {
        self.out.push(b'[');
        let mut is_first = true;
        for index in 1..=last {
            let value = table.raw_get::<Value>(index).map_err(|e| e.to_string())?;
            if self.is_left_out(&value) {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            self.line(depth);
            self.value(&value, depth + 1)?;
        }
        if !is_first {
            self.line(depth - 1);
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|e| e.to_string())?;
            if self.is_left_out(&value) {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            self.line(depth);
            match key {
                Value::String(text) => self.text(&text.as_bytes()),
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.number(key.as_f64().or(key.as_i64().map(|i| i as f64)).unwrap_or_default())?;
                    self.out.push(b'"');
                }
                _ => return Err("Cannot serialise table: table key must be a number or string".to_owned()),
            }
            self.out.push(b':');
            if !self.options.indent.is_empty() {
                self.out.push(b' ');
            }
            self.value(&value, depth + 1)?;
        }
        if !is_first {
            self.line(depth - 1);
        }
        self.out.push(b'}');
        Ok(())
    }

    /// A text in quotes; bytes that are no UTF-8 pass as they are, as with lua-cjson.
    fn text(&mut self, text: &[u8]) {
        let out = &mut self.out;
        out.push(b'"');
        for &byte in text {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'/' if self.options.escape_slash => out.extend_from_slice(b"\\/"),
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
}

/// Reads JSON.
///
/// # Errors
/// lua-cjson's texts: what is wrong, and at which character.
pub fn decode(lua: &Lua, text: &[u8], options: &Options, array_mark: Option<&Table>) -> Result<Value, String> {
    Reader::new(lua, text, options, array_mark).whole()
}
