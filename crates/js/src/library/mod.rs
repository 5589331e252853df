//! What njs has beside the language and needs no server: what its parts in JavaScript (`prelude/`) stand on, and the modules that are
//! always there.

mod digest;
mod files;
mod keys;

use crate::value::{Buffer, Bytes, Fault, OrThrow};
use crate::{Part, Parts, engine, runtime, unsafety};
use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use rquickjs::convert::List;
use rquickjs::module::WriteOptions;
use rquickjs::prelude::Func;
use rquickjs::{Context, Ctx, Error, Module, Object, Result, Value};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What every context begins with.
pub(crate) const CORE: &[Part] = &[("njs:core", include_str!("../prelude/core.js"))];

/// What is run when it is asked for.
const LATER: &[Part] = &[
    ("njs:text", include_str!("../prelude/text.js")),
    ("njs:buffer", include_str!("../prelude/buffer.js")),
    ("njs:crypto", include_str!("../prelude/crypto.js")),
    ("njs:files", include_str!("../prelude/files.js")),
];

/// The modules that are always there: each gives what a part has put into `raw.modules`.
const MODULES: &[Part] = &[
    (
        "fs",
        "const m = import.meta.value; export default m; export const { constants, promises, accessSync, appendFileSync, closeSync, \
         existsSync, fstatSync, lstatSync, mkdirSync, openSync, readSync, readFileSync, readdirSync, readlinkSync, realpathSync, \
         renameSync, rmdirSync, statSync, symlinkSync, unlinkSync, writeSync, writeFileSync } = m;",
    ),
    ("crypto", "const m = import.meta.value; export default m; export const { createHash, createHmac } = m;"),
    (
        "querystring",
        "const m = import.meta.value; export default m; \
         export const { parse, decode, stringify, encode, escape, unescape } = m;",
    ),
    ("buffer", "const m = import.meta.value; export default m; export const { Buffer, constants, kMaxLength } = m;"),
];

/// What parts were compiled to, by their names: once in a process.
static COMPILED: LazyLock<Mutex<Compiled>> = LazyLock::new(Mutex::default);

type Compiled = HashMap<&'static str, Arc<[u8]>>;

fn known() -> MutexGuard<'static, Compiled> {
    COMPILED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a part was compiled to.
fn compiled(part: &Part) -> Result<Arc<[u8]>> {
    known().get(part.0).cloned().ok_or_else(|| Error::new_loading(part.0))
}

/// Compiles what is not compiled yet. No program may be running: a context of its own does it.
fn compile_all(parts: &[Part]) -> std::result::Result<(), String> {
    for part in parts {
        if compiled(part).is_ok() {
            continue;
        }
        let context = Context::full(&runtime::of_thread()).map_err(|e| e.to_string())?;
        let code = context.with(|ctx| {
            let module = Module::declare(ctx.clone(), part.0, part.1);
            module.and_then(|m| m.write(WriteOptions::default())).map_err(|e| plain_text(&ctx, &e))
        })?;
        known().insert(part.0, code.into());
    }
    Ok(())
}

/// Makes ready what contexts with these parts need.
///
/// # Errors
/// A part is not well formed.
pub(crate) fn prepare(parts: Parts) -> std::result::Result<(), String> {
    [CORE, LATER, MODULES, parts.now, parts.later].into_iter().try_for_each(compile_all)
}

/// `raw.part`: runs a part that is needed now.
fn part<'js>(ctx: Ctx<'js>, name: String) -> Result<()> {
    let code = known().get(name.as_str()).cloned();
    let code = code.ok_or_else(|| Error::new_loading(&name))?;
    run_part(&ctx, &engine::raw_of(&ctx)?, &code)
}

/// What a module that is always there was compiled to.
pub(crate) fn module(name: &str) -> Option<Arc<[u8]>> {
    let part = MODULES.iter().find(|(known, _)| *known == name)?;
    compiled(part).ok()
}

/// Runs parts.
pub(crate) fn load<'js>(ctx: &Ctx<'js>, raw: &Object<'js>, parts: &[Part]) -> Result<()> {
    parts.iter().try_for_each(|part| run_part(ctx, raw, &compiled(part)?))
}

fn run_part<'js>(ctx: &Ctx<'js>, raw: &Object<'js>, code: &[u8]) -> Result<()> {
    let module = unsafety::load(ctx, code)?;
    module.meta()?.set("raw", raw.clone())?;
    let (_, promise) = module.eval()?;
    promise.result::<Value<'js>>().map_or(Ok(()), |result| result.map(|_| ()))
}

/// An error without the help of any part.
pub(crate) fn plain_text(ctx: &Ctx<'_>, error: &Error) -> String {
    if !matches!(error, Error::Exception) {
        return error.to_string();
    }
    let thrown = ctx.catch();
    match thrown.as_exception() {
        Some(e) => format!("{}\n{}", e.message().unwrap_or_default(), e.stack().unwrap_or_default().trim_end()),
        None => "something was thrown".to_owned(),
    }
}

/// Puts the functions in that parts stand on.
pub(crate) fn add<'js>(ctx: &Ctx<'js>, raw: &Object<'js>) -> Result<()> {
    raw.set("encode", Func::from(encode))?;
    raw.set("decode", Func::from(decode))?;
    raw.set("utf8", Func::from(utf8))?;
    raw.set("unescape", Func::from(unescape))?;
    raw.set("memory", Func::from(|| runtime::memory() as f64))?;
    raw.set("process", Func::from(process))?;
    raw.set("part", Func::from(part))?;
    raw.set(
        "cancel",
        Func::from(|number: u32| {
            if let Ok(engine) = engine::current() {
                engine.cancel(number)
            }
        }),
    )?;
    digest::add(raw)?;
    keys::add(raw)?;
    files::add(ctx, raw)
}

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const FROM_BASE64: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);

fn encode<'js>(ctx: Ctx<'js>, bytes: Bytes, encoding: String) -> Result<Value<'js>> {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    let text = match encoding.as_str() {
        "hex" => bytes.0.iter().map(|b| format!("{b:02x}")).collect(),
        "base64" => STANDARD.encode(&bytes.0),
        "base64url" => URL_SAFE_NO_PAD.encode(&bytes.0),
        _ => return crate::value::text(&ctx, &bytes.0),
    };
    crate::value::text(&ctx, text.as_bytes())
}

/// Bytes of a text; what does not belong to the encoding ends it, or in base64 is left out.
fn decode(text: Bytes, encoding: String) -> Buffer {
    let Bytes(text) = text;
    Buffer(match encoding.as_str() {
        "hex" => text.chunks_exact(2).map_while(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect(),
        "base64" | "base64url" => from_base64(&text),
        _ => text,
    })
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|d| d as u8)
}

fn from_base64(text: &[u8]) -> Vec<u8> {
    let mut clean: Vec<u8> = text
        .iter()
        .take_while(|b| **b != b'=')
        .filter_map(|b| match b {
            b'-' => Some(b'+'),
            b'_' => Some(b'/'),
            b if b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/') => Some(*b),
            _ => None,
        })
        .collect();
    if clean.len() % 4 == 1 {
        clean.pop();
    }
    FROM_BASE64.decode(&clean).unwrap_or_default()
}

/// The text of UTF-8, and how many bytes at its end are the beginning of a letter (`stream`: they are kept back).
fn utf8<'js>(ctx: Ctx<'js>, bytes: Bytes, fatal: bool, stream: bool) -> Result<List<(Value<'js>, usize)>> {
    let Bytes(bytes) = bytes;
    let mut left = 0;
    if stream
        && let Err(e) = std::str::from_utf8(&bytes[bytes.len().saturating_sub(3)..])
        && e.error_len().is_none()
    {
        left = bytes.len().min(3) - e.valid_up_to();
    }
    let whole = &bytes[..bytes.len() - left];
    if fatal && std::str::from_utf8(whole).is_err() {
        return Err(Fault::of_type("The encoded data was not valid").throw(&ctx));
    }
    Ok(List((crate::value::text(&ctx, whole)?, left)))
}

/// `querystring.unescape`: what is no escape stays as it is.
fn unescape(text: Bytes) -> Bytes {
    let Bytes(text) = text;
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let pair = text.get(at + 1..at + 3).filter(|_| text[at] == b'%');
        match pair.and_then(|p| Some(digit(p[0])? << 4 | digit(p[1])?)) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    Bytes(out)
}

type Variables = Vec<(String, String)>;
/// Arguments, variables, two numbers.
type Process = List<(Vec<String>, Vec<Vec<String>>, u32, i32)>;

/// `process`: arguments, environment, the numbers of this process and its parent.
fn process() -> Process {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let env: Variables = std::env::vars_os().map(|(n, v)| (lossy(n), lossy(v))).collect();
    let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    let env = env.into_iter().map(|(name, value)| vec![name, value]).collect();
    List((std::env::args_os().map(lossy).collect(), env, std::process::id(), parent))
}

/// The bytes of a value, where a native takes what it can get.
pub(crate) fn or_throw<T>(ctx: &Ctx<'_>, result: std::result::Result<T, Fault>) -> Result<T> {
    result.or_throw(ctx)
}
