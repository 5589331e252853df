//! Values on their way between Rust and JavaScript: texts and bytes, what operations give back, mistakes of a program's call.

use crate::unsafety;
use rquickjs::{Array, ArrayBuffer, Ctx, Error, Exception, FromJs, Function, IntoJs, Result, String as Text, Value};

/// Bytes of a text (UTF-8), of an `ArrayBuffer` or of a view of one; anything else as the text that it becomes. As a value of
/// JavaScript it is a text, in which what is no UTF-8 has become U+FFFD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// Bytes that become an `ArrayBuffer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer(pub Vec<u8>);

impl<'js> FromJs<'js> for Bytes {
    fn from_js(ctx: &Ctx<'js>, value: Value<'js>) -> Result<Bytes> {
        bytes_of(ctx, &value).map(Bytes)
    }
}

impl<'js> IntoJs<'js> for Bytes {
    fn into_js(self, ctx: &Ctx<'js>) -> Result<Value<'js>> {
        text(ctx, &self.0)
    }
}

impl<'js> IntoJs<'js> for Buffer {
    fn into_js(self, ctx: &Ctx<'js>) -> Result<Value<'js>> {
        ArrayBuffer::new(ctx.clone(), self.0).map(ArrayBuffer::into_value)
    }
}

/// The bytes of a value. Nothing (`undefined`, `null`) has none.
///
/// # Errors
/// An exception: the value becomes no text.
pub fn bytes_of<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> Result<Vec<u8>> {
    if value.is_undefined() || value.is_null() {
        return Ok(Vec::new());
    }
    if let Some(text) = value.as_string() {
        return bytes_of_text(ctx, text);
    }
    if let Some(bytes) = unsafety::copy(value) {
        return Ok(bytes);
    }
    if let Some(object) = value.as_object() {
        // A view of another kind: the bytes that it shows.
        let buffer: Value<'js> = object.get("buffer")?;
        if buffer.as_object().is_some_and(|b| ArrayBuffer::from_object(b.clone()).is_some()) {
            let (at, length): (usize, usize) = (object.get("byteOffset")?, object.get("byteLength")?);
            let all = unsafety::copy(&buffer).unwrap_or_default();
            return Ok(all.get(at..at + length).unwrap_or_default().to_vec());
        }
    }
    let text: rquickjs::Coerced<Text<'js>> = FromJs::from_js(ctx, value.clone())?;
    bytes_of_text(ctx, &text.0)
}

fn bytes_of_text<'js>(ctx: &Ctx<'js>, text: &Text<'js>) -> Result<Vec<u8>> {
    match text.to_string() {
        Ok(text) => Ok(text.into_bytes()),
        Err(Error::Utf8(_)) => {
            // Half a pair of UTF-16 stands alone.
            let repair: Function<'js> = ctx.eval("(text) => text.toWellFormed()")?;
            let repaired: String = repair.call((text.clone(),))?;
            Ok(repaired.into_bytes())
        }
        Err(e) => Err(e),
    }
}

/// A text of JavaScript.
///
/// # Errors
/// Out of memory.
pub fn text<'js>(ctx: &Ctx<'js>, bytes: &[u8]) -> Result<Value<'js>> {
    Text::from_str(ctx.clone(), &String::from_utf8_lossy(bytes)).map(Text::into_value)
}

/// What an operation gives back.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `undefined`
    Undefined,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(Vec<u8>),
    /// An `ArrayBuffer`.
    Buffer(Vec<u8>),
    /// An array.
    List(Vec<Item>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Item {
        Item::Text(text.as_bytes().to_vec())
    }
}

impl<'js> IntoJs<'js> for Item {
    fn into_js(self, ctx: &Ctx<'js>) -> Result<Value<'js>> {
        Ok(match self {
            Item::Undefined => Value::new_undefined(ctx.clone()),
            Item::Flag(flag) => Value::new_bool(ctx.clone(), flag),
            Item::Number(number) => Value::new_number(ctx.clone(), number),
            Item::Text(bytes) => return text(ctx, &bytes),
            Item::Buffer(bytes) => return Buffer(bytes).into_js(ctx),
            Item::List(items) => {
                let array = Array::new(ctx.clone())?;
                for (at, item) in items.into_iter().enumerate() {
                    array.set(at, item)?;
                }
                array.into_value()
            }
        })
    }
}

/// What kind of error a mistake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `Error`
    Plain,
    /// `TypeError`
    Type,
    /// `RangeError`
    Range,
    /// `InternalError`
    Internal,
}

/// Why a call or an operation failed, in the words that the program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is thrown.
    pub kind: Kind,
    /// Its message.
    pub text: String,
}

impl Fault {
    /// An `Error`.
    pub fn plain(text: impl Into<String>) -> Fault {
        Fault { kind: Kind::Plain, text: text.into() }
    }

    /// A `TypeError`.
    pub fn of_type(text: impl Into<String>) -> Fault {
        Fault { kind: Kind::Type, text: text.into() }
    }

    /// A `RangeError`.
    pub fn of_range(text: impl Into<String>) -> Fault {
        Fault { kind: Kind::Range, text: text.into() }
    }

    /// An `InternalError`.
    pub fn internal(text: impl Into<String>) -> Fault {
        Fault { kind: Kind::Internal, text: text.into() }
    }

    /// Throws it.
    pub fn throw(&self, ctx: &Ctx<'_>) -> Error {
        match self.kind {
            Kind::Plain => Exception::throw_message(ctx, &self.text),
            Kind::Type => Exception::throw_type(ctx, &self.text),
            Kind::Range => Exception::throw_range(ctx, &self.text),
            Kind::Internal => Exception::throw_internal(ctx, &self.text),
        }
    }
}

/// Throws what went wrong.
pub trait OrThrow<T> {
    /// The value, or an exception.
    ///
    /// # Errors
    /// The exception.
    fn or_throw(self, ctx: &Ctx<'_>) -> Result<T>;
}

impl<T> OrThrow<T> for std::result::Result<T, Fault> {
    fn or_throw(self, ctx: &Ctx<'_>) -> Result<T> {
        self.map_err(|fault| fault.throw(ctx))
    }
}
