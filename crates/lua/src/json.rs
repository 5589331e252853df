//! `cjson` as programs know it: values of Lua to JSON and back, with lua-cjson's rules for arrays, numbers, `cjson.null` and depth.

use crate::Fault;
use crate::json_read::Reader;
use crate::quick::{Call, Kind, Place, Visit};
use mlua::{LightUserData, Value};
use std::ops::ControlFlow;

/// How deep tables may nest, in and out, unless a program says otherwise (lua-cjson's default).
pub const MAX_DEPTH: usize = 1000;
/// The most that a program may say: each level takes up to two places on the machine's stack, which has 8,000 for a call.
pub const LARGEST_DEPTH: usize = 4000;
/// Arrays whose last index is above this and more than twice the number of their elements are too sparse (lua-cjson's defaults).
const SPARSE_SAFE: usize = 10;
const SPARSE_RATIO: usize = 2;
/// Digits of numbers (lua-cjson's default).
const PRECISION: usize = 14;

/// Indexes of arrays are below this.
const MAX_INDEX: f64 = 2_147_483_648.0;

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

/// Writes a call's first argument as JSON. Its second is the metatable of tables that are arrays whatever is in them; its third: of
/// those that are arrays when they are empty.
///
/// # Errors
/// lua-cjson's texts.
pub fn encode(call: &Call, options: &Options, out: &mut Vec<u8>) -> Result<(), Fault> {
    if call.count() == 0 {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    Writer { options, out, open: Vec::new() }.whole(call.walk(1))
}

/// The argument that marks arrays.
const ARRAY_MARK: usize = 2;
/// The arguments that mark arrays, and empty ones.
const MARKS: [usize; 2] = [ARRAY_MARK, 3];

struct Writer<'w, 'c> {
    options: &'w Options,
    out: &'w mut Vec<u8>,
    /// The tables that are being written, the outermost first: depth takes no stack of the thread's.
    open: Vec<Open<'c>>,
}

/// A table that is being written.
struct Open<'c> {
    visit: Visit<'c>,
    form: Form,
    /// Elements of an array that were looked at.
    seen: usize,
    is_first: bool,
}

/// What a table is written as.
enum Form {
    Array(usize),
    Object,
}

impl<'c> Writer<'_, 'c> {
    fn whole(&mut self, value: Place<'c>) -> Result<(), Fault> {
        self.value(value)?;
        while let Some(open) = self.open.last_mut() {
            let next = match open.form {
                Form::Array(last) if open.seen < last => {
                    open.seen += 1;
                    Some((None, open.visit.element(open.seen)))
                }
                Form::Array(_) => None,
                Form::Object => open.visit.pair().map(|(key, value)| (Some(key), value)),
            };
            match next {
                None => self.close(),
                Some((_, value)) if self.options.skip_others && matches!(value.kind(), Kind::Other(_)) => {}
                Some((key, value)) => self.member(key, value)?,
            }
        }
        Ok(())
    }

    /// Writes a value; of a table its beginning, and `whole` goes on with what is in it.
    fn value(&mut self, value: Place<'c>) -> Result<(), Fault> {
        match value.kind() {
            Kind::Nil | Kind::Null => self.out.extend_from_slice(b"null"),
            Kind::Flag(b) => self.out.extend_from_slice(if b { b"true" } else { b"false" }),
            Kind::Number(n) => self.number(n)?,
            Kind::Text(text) => self.text(text),
            Kind::Table => self.open(value)?,
            Kind::Other(name) => return Err(Fault(format!("Cannot serialise {name}: type not supported"))),
        }
        Ok(())
    }

    fn open(&mut self, table: Place<'c>) -> Result<(), Fault> {
        let depth = self.open.len() + 1;
        let too_deep = || Fault(format!("Cannot serialise, excessive depth ({depth})"));
        if depth > self.options.encode_depth {
            return Err(too_deep());
        }
        let form = self.form(table)?;
        let visit = table.visit().ok_or_else(too_deep)?;
        self.out.push(if matches!(form, Form::Object) { b'{' } else { b'[' });
        self.open.push(Open { visit, form, seen: 0, is_first: true });
        Ok(())
    }

    fn close(&mut self) {
        let Some(open) = self.open.pop() else { return };
        if !open.is_first {
            self.line(self.open.len());
        }
        self.out.push(if matches!(open.form, Form::Object) { b'}' } else { b']' });
        open.visit.end();
    }

    /// Writes what is in the innermost table: an element, or a value with its name.
    fn member(&mut self, key: Option<Place<'c>>, value: Place<'c>) -> Result<(), Fault> {
        if !self.open.last_mut().is_some_and(|open| std::mem::take(&mut open.is_first)) {
            self.out.push(b',');
        }
        self.line(self.open.len());
        if let Some(key) = key {
            match key.kind() {
                Kind::Text(text) => self.text(text),
                Kind::Number(number) => {
                    self.out.push(b'"');
                    self.number(number)?;
                    self.out.push(b'"');
                }
                _ => return Err("Cannot serialise table: table key must be a number or string".into()),
            }
            self.out.push(b':');
            if !self.options.indent.is_empty() {
                self.out.push(b' ');
            }
        }
        self.value(value)
    }

    fn number(&mut self, number: f64) -> Result<(), Fault> {
        if number.is_finite() {
            crate::machine::write_digits(number, self.options.precision, self.out);
            return Ok(());
        }
        match self.options.encode_invalid {
            Invalid::Refused => return Err("Cannot serialise number: must not be NaN or Infinity".into()),
            Invalid::Null => self.out.extend_from_slice(b"null"),
            Invalid::Written if number.is_nan() => self.out.extend_from_slice(b"NaN"),
            Invalid::Written if number > 0.0 => self.out.extend_from_slice(b"Infinity"),
            Invalid::Written => self.out.extend_from_slice(b"-Infinity"),
        }
        Ok(())
    }

    fn form(&self, table: Place<'_>) -> Result<Form, Fault> {
        let [is_marked, is_marked_empty] = table.is_marked(MARKS);
        let (mut count, mut last) = (0usize, 0usize);
        let mut is_array = true;
        table.pairs(|key, _| {
            count += 1;
            match key.kind() {
                Kind::Number(n) if n >= 1.0 && n == n.trunc() && n < MAX_INDEX => last = last.max(n as usize),
                _ => {
                    is_array = false;
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if is_marked {
            return Ok(Form::Array(if is_array { last } else { table.length() }));
        }
        if count == 0 {
            return Ok(if self.options.empty_is_array || is_marked_empty { Form::Array(0) } else { Form::Object });
        }
        if !is_array {
            return Ok(Form::Object);
        }
        let Options { sparse_ratio, sparse_safe, .. } = *self.options;
        if sparse_ratio > 0 && last > sparse_safe && last > count.saturating_mul(sparse_ratio) {
            if !self.options.sparse_is_object {
                return Err("Cannot serialise table: excessively sparse array".into());
            }
            return Ok(Form::Object);
        }
        Ok(Form::Array(last))
    }

    fn line(&mut self, depth: usize) {
        if !self.options.indent.is_empty() {
            self.out.push(b'\n');
            (0..depth).for_each(|_| self.out.extend_from_slice(self.options.indent.as_bytes()));
        }
    }

    /// A text in quotes; bytes that are no UTF-8 pass as they are, as with lua-cjson.
    fn text(&mut self, text: &[u8]) {
        let out = &mut *self.out;
        let escape_slash = self.options.escape_slash;
        out.push(b'"');
        // Where the stretch begins that needs no escapes.
        let mut from = 0;
        for (at, &byte) in text.iter().enumerate() {
            let escape = match byte {
                b'"' | b'\\' => byte,
                b'/' if escape_slash => byte,
                8 => b'b',
                12 => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0..0x20 | 0x7f => b'u',
                _ => continue,
            };
            out.extend_from_slice(&text[from..at]);
            from = at + 1;
            out.extend_from_slice(&[b'\\', escape]);
            if escape == b'u' {
                out.extend_from_slice(format!("{byte:04x}").as_bytes());
            }
        }
        out.extend_from_slice(&text[from..]);
        out.push(b'"');
    }
}

/// Reads JSON: a text that is no argument of the call's or one that is. With `mark_arrays` the call's second argument is the metatable of
/// arrays. The call gives the value.
///
/// # Errors
/// lua-cjson's texts: what is wrong, and at which character.
pub fn decode(call: &Call, text: &[u8], options: &Options) -> Result<(), Fault> {
    let mark = options.mark_arrays.then_some(ARRAY_MARK);
    Reader::new(call, text, options, mark).whole()
}
