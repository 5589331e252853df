//! The two things that QuickJS cannot do without trust: bytes that belong to it are looked at, and code is taken as it was compiled.

use rquickjs::module::Declared;
use rquickjs::{ArrayBuffer, Ctx, Module, TypedArray, Value};

/// A module that this process has compiled.
///
/// # Errors
/// Out of memory.
pub(crate) fn load<'js>(ctx: &Ctx<'js>, code: &[u8]) -> rquickjs::Result<Module<'js, Declared>> {
    // SAFETY: the bytes come from `Module::write` of the same QuickJS in the same process (`program::Program`, `library::parts`), and
    // nobody else can make a `Compiled`.
    #[allow(unsafe_code)]
    let module = unsafe { Module::load(ctx.clone(), code) };
    module
}

/// A copy of the bytes of an `ArrayBuffer` or of an array of bytes; none: it is neither.
pub(crate) fn copy(value: &Value<'_>) -> Option<Vec<u8>> {
    let object = value.as_object()?;
    if let Some(array) = object.as_typed_array::<u8>() {
        return Some(bytes_of_array(array));
    }
    let buffer = ArrayBuffer::from_object(object.clone())?;
    // SAFETY: the slice is copied before anything of JavaScript runs.
    #[allow(unsafe_code)]
    let bytes = unsafe { buffer.as_bytes() };
    Some(bytes.map(<[u8]>::to_vec).unwrap_or_default())
}

fn bytes_of_array(array: &TypedArray<'_, u8>) -> Vec<u8> {
    // SAFETY: the slice is copied before anything of JavaScript runs.
    #[allow(unsafe_code)]
    let bytes = unsafe { array.as_bytes() };
    bytes.map(<[u8]>::to_vec).unwrap_or_default()
}
