//! The machine that runs programs: LuaJIT with all of its libraries, and the functions of `ngx` that need no server. One for each thread
//! and configuration; nothing of it crosses threads.

use crate::quick::{self, Call, Kind};
use crate::{Fault, json, regex, text};
use mlua::{
    AnyUserData, FromLuaMulti, Function, IntoLuaMulti, LightUserData, Lua, LuaOptions, LuaString, MultiValue, StdLib,
    Table, UserData, Value,
};
use std::cell::RefCell;
use std::rc::Rc;

/// What stands in front of a fault's text in what a function gives back: the program's side of it (`prelude.lua`) raises the text then.
pub(crate) const FAULT: usize = 1;
/// What stands in front of what a coroutine waits for when it yields to the server.
pub(crate) const WAIT: usize = 2;

/// What a quick function gives where the other one of its name has to be called ([`crate::quick`]).
pub(crate) const OTHER: usize = 3;

/// Bytes of a buffer that is used again.
const MAX_KEPT: usize = 256 * 1024;

/// How deep tables of pieces may nest (`ngx.say({...})`).
const MAX_PIECES_DEPTH: usize = 100;

/// Machines take no locks: mlua's feature `send` is off in the whole workspace, as features are of the one binary. With it this would be
/// ambiguous, and not compile.
const _: fn() = || {
    trait Told<A> {
        fn is_of_one_thread() {}
    }
    impl<T> Told<()> for T {}
    impl<T: Send> Told<u8> for T {}
    <Lua as Told<_>>::is_of_one_thread();
};

/// Stands in a fault's text for the name that the function was called by.
const CALLED: &str = "\0";

/// A new machine, with LuaJIT's own libraries and nothing else.
///
/// # Errors
/// Out of memory.
pub fn new() -> Lua {
    // LuaJIT's own `pcall`, which coroutines may wait in, stays; it would be replaced by one that looks for panics.
    let options = LuaOptions::new().catch_rust_panics(true);
    // SAFETY: programs are as trusted as the configuration that names them: like OpenResty's they may call C by `ffi` and load C
    // libraries, and what those do is theirs. The machine itself stays on the thread that makes it.
    #[allow(unsafe_code)]
    let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, options) };
    lua
}

/// Gives the memory back to the system that C libraries have let go of; so many bytes are kept. Whether any was. Only glibc holds it back.
pub fn trim(keep: usize) -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: looks only at memory that the C library holds and nobody uses.
        #[allow(unsafe_code)]
        let released = unsafe { libc::malloc_trim(keep) };
        released == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = keep;
        false
    }
}

/// The mark of a fault.
fn fault_mark() -> Value {
    Value::LightUserData(LightUserData(FAULT as *mut _))
}

/// The mark of a wait.
fn wait_mark() -> Value {
    Value::LightUserData(LightUserData(WAIT as *mut _))
}

/// Arguments of a call, or what is wrong with them: told as a text like all faults, where mlua would raise a value of its own, which
/// programs that join the texts of errors fail with.
struct Given<A>(Result<A, Fault>);

impl<A: FromLuaMulti> FromLuaMulti for Given<A> {
    fn from_lua_multi(values: MultiValue, lua: &Lua) -> mlua::Result<Given<A>> {
        let count = values.len();
        Ok(Given(A::from_lua_args(values, 1, None, lua).map_err(|error| wrong_argument(&error, count))))
    }
}

/// Lua's words for an argument that is of another type. What the function was called as the prelude knows: it stands for [`CALLED`].
fn wrong_argument(error: &mlua::Error, count: usize) -> Fault {
    let (number, cause) = match error {
        mlua::Error::BadArgument { pos, cause, .. } => (*pos, &**cause),
        other => (1, other),
    };
    let mlua::Error::FromLuaConversionError { from, to, .. } = cause else { return Fault(cause.to_string()) };
    let wanted = match to.as_str() {
        "bool" => "boolean",
        "String" | "LuaString" | "string" => "string",
        "table" | "Table" => "table",
        "function" | "Function" => "function",
        "userdata" | "AnyUserData" => "userdata",
        _ => "number",
    };
    let got = match *from {
        _ if number > count => "no value",
        "integer" => "number",
        "lightuserdata" => "userdata",
        from => from,
    };
    bad_argument(number, CALLED, &format!("{wanted} expected, got {got}"))
}

/// Puts a function into a table. A fault comes back as its mark and its text. What it gives back ends with its last value that is not `nil`:
/// `ngx.say(dict:get(key))` shows how many there are.
///
/// # Errors
/// Out of memory.
pub fn add<A, R>(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(&Lua, A) -> Result<R, Fault> + 'static,
) -> mlua::Result<()>
where
    A: FromLuaMulti,
    R: IntoLuaMulti,
{
    let function = lua.create_function(move |lua, Given(arguments): Given<A>| {
        let _outside = quick::Outside::begin();
        match arguments.and_then(|a| function(lua, a)) {
            Ok(values) => {
                let mut values = values.into_lua_multi(lua)?;
                while values.len() > 1 && values.back().is_some_and(Value::is_nil) {
                    values.pop_back();
                }
                Ok(values)
            }
            Err(fault) => (fault_mark(), lua.create_string(fault.0)?).into_lua_multi(lua),
        }
    })?;
    table.raw_set(name, function)
}

/// A fault of an argument, in Lua's words.
pub fn bad_argument(number: usize, function: &str, text: &str) -> Fault {
    Fault(format!("bad argument #{number} to '{function}' ({text})"))
}

/// A number as Lua writes it: `%.14g`.
pub fn write_number(number: f64, out: &mut Vec<u8>) {
    write_digits(number, 14, out);
}

/// A number with at most so many digits: `%.Ng`.
pub fn write_digits(number: f64, digits: usize, out: &mut Vec<u8>) {
    use std::io::Write;
    let digits = digits.clamp(1, 17);
    if digits >= 10
        && number.abs() < 1e9
        && number == f64::from(number as i32)
        && (number != 0.0 || number.is_sign_positive())
    {
        return write_integer(number as i32, out);
    }
    if number == number.trunc() && number.abs() < 10f64.powi(digits.min(15) as i32) {
        if number == 0.0 && number.is_sign_negative() {
            out.push(b'-');
        }
        let _ = write!(out, "{}", number as i64);
        return;
    }
    if !number.is_finite() {
        let text = if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let most = digits as i32;
    let _ = if (-4..most).contains(&exponent) {
        write!(out, "{}", trim(&format!("{number:.*}", (most - 1 - exponent).max(0) as usize)))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{}e{sign}{:02}", trim(mantissa), exponent.abs())
    };
}

/// A whole number, without the machinery of formats: most numbers that are written are such.
fn write_integer(number: i32, out: &mut Vec<u8>) {
    let (mut digits, mut at, mut left) = ([0; 10], 10, number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends an argument as `ngx.say` and `ngx.log` write it; false: it is one for [`write_piece`].
pub fn write_kind(kind: &Kind<'_>, out: &mut Vec<u8>) -> bool {
    match kind {
        Kind::Nil => out.extend_from_slice(b"nil"),
        Kind::Null => out.extend_from_slice(b"null"),
        Kind::Flag(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
        // Negative zero is written without its sign, as ngx_lua does.
        Kind::Number(number) => write_number(*number + 0.0, out),
        Kind::Text(text) => out.extend_from_slice(text),
        Kind::Table | Kind::Other(_) => return false,
    }
    true
}

/// Appends a value as `ngx.say` and `ngx.log` write it.
///
/// # Errors
/// What is wrong with it: tables with keys, functions.
pub fn write_piece(value: &Value, number: usize, function: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
    match value {
        Value::Nil => out.extend_from_slice(b"nil"),
        Value::LightUserData(p) if p.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(b) => out.extend_from_slice(if *b { b"true" } else { b"false" }),
        Value::Integer(i) => write_number(*i as f64, out),
        Value::Number(n) => write_number(*n + 0.0, out),
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Table(table) => return write_pieces(table, number, function, 0, out),
        other => {
            let got = other.type_name();
            let text = format!("string, number, boolean, nil, ngx.null, or array table expected, but got {got}");
            return Err(bad_argument(number, function, &text));
        }
    }
    Ok(())
}

fn write_pieces(table: &Table, number: usize, function: &str, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    let bad = |text: &str| bad_argument(number, function, text);
    if depth > MAX_PIECES_DEPTH {
        return Err(bad("too many nested tables"));
    }
    let mut last = 0;
    for pair in table.pairs::<Value, Value>() {
        match pair.map_err(|e| Fault(e.to_string()))?.0 {
            Value::Integer(i) if i > 0 => last = last.max(i),
            Value::Integer(_) | Value::Number(_) => return Err(bad("non-array table found")),
            _ => return Err(bad("non-array table found")),
        }
    }
    for index in 1..=last {
        match table.raw_get::<Value>(index).map_err(|e| Fault(e.to_string()))? {
            Value::Table(inner) => write_pieces(&inner, number, function, depth + 1, out)?,
            Value::Function(_) | Value::UserData(_) | Value::Thread(_) => return Err(bad("bad data type found")),
            other => write_piece(&other, number, function, out)?,
        }
    }
    Ok(())
}

/// The bytes of a text or number, or what is wrong.
///
/// # Errors
/// `bad argument #n to 'f' (string expected, got table)`.
pub fn bytes_of(value: &Value, number: usize, function: &str) -> Result<Vec<u8>, Fault> {
    match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            let mut out = Vec::new();
            write_piece(value, number, function, &mut out)?;
            Ok(out)
        }
        other => {
            let got = if matches!(other, Value::Nil) { "nil" } else { other.type_name() };
            Err(bad_argument(number, function, &format!("string expected, got {got}")))
        }
    }
}

/// The same for functions that take `nil` as the empty text, and booleans by their names.
fn loose_bytes(value: &Value) -> Result<Vec<u8>, Fault> {
    match value {
        Value::Nil => Ok(Vec::new()),
        other => {
            let mut out = Vec::new();
            write_piece(other, 1, "?", &mut out)
                .map_err(|_| bad_argument(1, "?", &format!("string expected, got {}", other.type_name())))?;
            Ok(out)
        }
    }
}

type Text = Result<Vec<u8>, Fault>;

fn text_function(
    lua: &Lua,
    raw: &Table,
    name: &str,
    function: impl Fn(&[u8]) -> Vec<u8> + 'static,
) -> mlua::Result<()> {
    add(lua, raw, name, move |lua, value: Value| {
        let made = match &value {
            Value::String(text) => function(&text.as_bytes()),
            other => function(&loose_bytes(other)?),
        };
        made_text(lua, &made)
    })
}

/// A text of Lua.
///
/// # Errors
/// Out of memory.
pub fn made_text(lua: &Lua, bytes: &[u8]) -> Result<LuaString, Fault> {
    lua.create_string(bytes).map_err(|e| Fault(e.to_string()))
}

/// Adds what needs no server to the table of functions that the prelude builds `ngx` of.
///
/// # Errors
/// Out of memory.
pub fn add_library(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    raw.raw_set("FAULT", fault_mark())?;
    raw.raw_set("WAIT", wait_mark())?;
    raw.raw_set("OTHER", Value::LightUserData(LightUserData(OTHER as *mut _)))?;
    raw.raw_set("null", json::null())?;
    add_texts(lua, raw)?;
    add_expressions(lua, raw)?;
    add_json(lua, raw)
}

/// What a `cjson` has set, on the side of Lua.
struct JsonOptions(Rc<RefCell<json::Options>>);

impl UserData for JsonOptions {}

/// `json_options()` for each `cjson`: the options, and `encode(value, array_mt, empty_array_mt)` and `decode(text, array_mt)` under them;
/// `json_set(options, name, values ...)`.
fn add_json(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    let (mark, empty_mark) = (lua.create_table()?, lua.create_table()?);
    raw.raw_set("array_mt", &mark)?;
    raw.raw_set("empty_array_mt", &empty_mark)?;
    let broken = |e: mlua::Error| Fault(e.to_string());
    add(lua, raw, "json_options", move |lua, ()| {
        let options: Rc<RefCell<json::Options>> = Rc::default();
        let room = RefCell::new(Vec::new());
        let own = options.clone();
        let encode = quick::make(lua, move |call| {
            let mut out = room.take();
            out.clear();
            let written = json::encode(call, &own.borrow(), &mut out);
            if written.is_ok() {
                call.give_bytes(&out);
            }
            // What one large value needed is not kept for all that follow.
            if out.capacity() <= MAX_KEPT {
                room.replace(out);
            }
            written
        });
        let encode = encode.map_err(broken)?;
        let own = options.clone();
        let decode = quick::make(lua, move |call| match call.argument(1) {
            Kind::Text(text) => json::decode(call, text, &own.borrow()),
            Kind::Number(number) => {
                let mut text = Vec::new();
                write_number(number, &mut text);
                json::decode(call, &text, &own.borrow())
            }
            other => Err(bad_argument(1, "decode", &format!("string expected, got {}", other.name()))),
        });
        let decode = decode.map_err(broken)?;
        Ok((lua.create_userdata(JsonOptions(options)).map_err(broken)?, encode, decode))
    })?;
    add(lua, raw, "json_set", move |_, (options, name, value): (AnyUserData, String, Value)| {
        let options = options.borrow::<JsonOptions>().map_err(broken)?.0.clone();
        set_json(&mut options.borrow_mut(), &name, &value)
    })
}

fn set_json(options: &mut json::Options, name: &str, value: &Value) -> Result<(), Fault> {
    let is_on = !matches!(value, Value::Nil | Value::Boolean(false));
    let number = value.as_f64().or(value.as_i64().map(|i| i as f64)).unwrap_or_default() as usize;
    match name {
        "empty_is_array" => options.empty_is_array = is_on,
        "sparse_is_object" => options.sparse_is_object = is_on,
        "sparse_ratio" => options.sparse_ratio = number,
        "sparse_safe" => options.sparse_safe = number,
        "encode_depth" => options.encode_depth = number.min(json::LARGEST_DEPTH),
        "decode_depth" => options.decode_depth = number.min(json::LARGEST_DEPTH),
        "precision" => options.precision = number.clamp(1, 16),
        "encode_invalid" => {
            options.encode_invalid = match value {
                Value::String(_) => json::Invalid::Null,
                _ if is_on => json::Invalid::Written,
                _ => json::Invalid::Refused,
            }
        }
        "decode_invalid" => options.decode_invalid = is_on,
        "escape_slash" => options.escape_slash = is_on,
        "skip_others" => options.skip_others = is_on,
        "mark_arrays" => options.mark_arrays = is_on,
        "indent" => options.indent = value.as_string().map(|t| t.to_string_lossy()).unwrap_or_default(),
        _ => return Err(Fault(format!("no such option \"{name}\""))),
    }
    Ok(())
}

fn add_texts(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add(lua, raw, "escape_uri", |lua, (value, kind): (Value, Value)| -> Result<_, Fault> {
        let kind = match &kind {
            Value::Nil => text::Escape::Component,
            Value::Integer(number) => {
                text::Escape::of(*number).ok_or_else(|| Fault(format!("\"type\" {number} out of range")))?
            }
            _ => return Err(Fault("\"type\" is not a number".to_owned())),
        };
        let mut out = Vec::new();
        text::escape_uri(&loose_bytes(&value)?, kind, &mut out);
        made_text(lua, &out)
    })?;
    text_function(lua, raw, "unescape_uri", |t| {
        let mut out = Vec::with_capacity(t.len());
        text::unescape_uri(t, &mut out);
        out
    })?;
    add(lua, raw, "encode_base64", |lua, (value, no_padding): (Value, Value)| -> Result<_, Fault> {
        let padded = !matches!(no_padding, Value::Boolean(true));
        made_text(lua, text::encode_base64(&loose_bytes(&value)?, padded).as_bytes())
    })?;
    type Decode = fn(&[u8]) -> Option<Vec<u8>>;
    for (name, decode) in
        [("decode_base64", text::decode_base64 as Decode), ("decode_base64url", text::decode_base64url)]
    {
        add(lua, raw, name, move |lua, value: LuaString| -> Result<_, Fault> {
            decode(&value.as_bytes()).map(|made| made_text(lua, &made)).transpose()
        })?;
    }
    text_function(lua, raw, "encode_base64url", |t| text::encode_base64url(t).into_bytes())?;
    text_function(lua, raw, "md5", |t| text::hex(&text::md5(t)))?;
    text_function(lua, raw, "md5_bin", text::md5)?;
    text_function(lua, raw, "sha1_bin", text::sha1)?;
    text_function(lua, raw, "to_hex", text::hex)?;
    text_function(lua, raw, "quote_sql_str", text::quote_sql)?;
    add(lua, raw, "digest", |lua, (name, bytes): (String, LuaString)| -> Result<_, Fault> {
        text::digest(&name, &bytes.as_bytes()).map(|made| made_text(lua, &made)).transpose()
    })?;
    add(lua, raw, "hmac_sha1", |lua, (key, bytes): (LuaString, LuaString)| -> Result<_, Fault> {
        made_text(lua, &text::hmac_sha1(&key.as_bytes(), &bytes.as_bytes()))
    })?;
    add(lua, raw, "crc32", |_, bytes: LuaString| -> Result<_, Fault> {
        Ok(f64::from(text::crc32(&bytes.as_bytes())))
    })?;
    add(lua, raw, "decode_args", |lua, (query, max): (LuaString, Option<f64>)| {
        let max = max.map_or(text::MAX_ARGS, |n| n.max(0.0) as usize);
        let (table, more) = args_table(lua, &query.as_bytes(), max)?;
        Ok((table, more.then_some("truncated")))
    })?;
    add(lua, raw, "encode_args", |lua, table: Table| made_text(lua, &encode_args(&table)?))
}

/// The arguments of a query as a table: `true` for those without a value, a list for those given more than once. Whether there were
/// more than `max`.
///
/// # Errors
/// Out of memory.
pub fn args_table(lua: &Lua, query: &[u8], max: usize) -> Result<(Table, bool), Fault> {
    let (all, more) = text::decode_args(query, max);
    let broken = |e: mlua::Error| Fault(e.to_string());
    let table = lua.create_table().map_err(broken)?;
    for (name, value) in all {
        let value = match value {
            Some(value) => Value::String(made_text(lua, &value)?),
            None => Value::Boolean(true),
        };
        add_to_table(lua, &table, &name, value).map_err(broken)?;
    }
    Ok((table, more))
}

/// Adds a value under a name that may be there already: there is a list then.
///
/// # Errors
/// Out of memory.
pub fn add_to_table(lua: &Lua, table: &Table, name: &[u8], value: Value) -> mlua::Result<()> {
    let name = lua.create_string(name)?;
    match table.raw_get::<Value>(&name)? {
        Value::Nil => table.raw_set(name, value),
        Value::Table(list) => list.raw_push(value),
        first => table.raw_set(name, lua.create_sequence_from([first, value])?),
    }
}

/// A table as a query.
///
/// # Errors
/// `attempt to use userdata as query arg value` and the like.
pub fn encode_args(table: &Table) -> Text {
    let mut out = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|e| Fault(e.to_string()))?;
        let Value::String(name) = name else {
            return Err(Fault("attempt to use a non-string key in the \"args\" option table".to_owned()));
        };
        let values = match value {
            Value::Table(list) => {
                list.sequence_values::<Value>().collect::<mlua::Result<Vec<_>>>().map_err(|e| Fault(e.to_string()))?
            }
            one => vec![one],
        };
        for value in values {
            let text = match &value {
                Value::Boolean(false) => continue,
                Value::Boolean(true) => None,
                Value::String(_) | Value::Number(_) | Value::Integer(_) => Some(bytes_of(&value, 1, "encode_args")?),
                other => {
                    return Err(Fault(format!("attempt to use {} as query arg value", other.type_name())));
                }
            };
            if !out.is_empty() {
                out.push(b'&');
            }
            text::escape_uri(&name.as_bytes(), text::Escape::Component, &mut out);
            if let Some(text) = text {
                out.push(b'=');
                text::escape_uri(&text, text::Escape::Component, &mut out);
            }
        }
    }
    Ok(out)
}

/// An expression's arguments: subject, pattern, letters, from which byte.
type Asked<'c> = (&'c [u8], &'c [u8], &'c [u8], usize);

/// The arguments of a call; none if they are not for a quick function.
fn asked(call: &Call) -> Option<Asked<'_>> {
    let (Kind::Text(subject), Kind::Text(pattern)) = (call.argument(1), call.argument(2)) else { return None };
    let letters = match call.argument(3) {
        Kind::Nil => &[][..],
        Kind::Text(letters) => letters,
        _ => return None,
    };
    let from = match call.argument(4) {
        Kind::Nil => 0,
        Kind::Number(n) => (n.max(1.0) as usize) - 1,
        _ => return None,
    };
    Some((subject, pattern, letters, from))
}

/// `re_quick`: `re_exec` for what needs no lists and makes its own table. `re_find_quick`: `re_find`.
fn add_quick_expressions(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    quick::add(lua, raw, "re_quick", |call| {
        let Some((subject, pattern, letters, from)) = asked(call).filter(|_| call.argument(5) == Kind::Nil) else {
            call.give_other();
            return Ok(());
        };
        let expression = regex::find(pattern, letters)?;
        if expression.duplicates || expression.repeats {
            call.give_other();
            return Ok(());
        }
        let found = expression.exec(subject, from, |groups| {
            call.give_table(expression.groups() + 1, expression.names.len());
            let mut whole = (0, 0);
            for (number, group) in groups.enumerate() {
                let text = group.map(|(start, end)| &subject[start..end]);
                call.set_index(number, text);
                if number == 0 {
                    whole = group.unwrap_or_default();
                } else if let Some((name, _)) = expression.names.iter().find(|(_, n)| *n == number) {
                    call.set_name(name.as_bytes(), text);
                }
            }
            whole
        })?;
        give_stretch(call, found);
        Ok(())
    })?;
    quick::add(lua, raw, "re_find_quick", |call| {
        let group = match call.argument(5) {
            Kind::Nil => Some(0),
            Kind::Number(n) => Some(n.max(0.0) as usize),
            _ => None,
        };
        let (Some((subject, pattern, letters, from)), Some(group)) = (asked(call), group) else {
            call.give_other();
            return Ok(());
        };
        let expression = regex::find(pattern, letters)?;
        if group > expression.groups() {
            return Err(Fault("nth out of bound".to_owned()));
        }
        let found = expression.exec(subject, from, |groups| groups.nth(group).flatten())?.flatten();
        give_stretch(call, found);
        Ok(())
    })
}

/// Gives the first and the last byte of a stretch as Lua counts them, or `nil`.
fn give_stretch(call: &quick::Call, found: Option<(usize, usize)>) {
    match found {
        None => call.give_nil(),
        Some((start, end)) => {
            call.give_number((start + 1) as f64);
            call.give_number(end as f64);
        }
    }
}

/// `re_exec(subject, pattern, letters, from)`: from byte, to byte, and the table of groups; `re_find`: only the stretch of one group.
fn add_expressions(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_quick_expressions(lua, raw)?;
    type Call = (LuaString, LuaString, Option<LuaString>, Option<f64>, Value);
    fn letters(given: &Option<LuaString>) -> Vec<u8> {
        given.as_ref().map_or_else(Vec::new, |l| l.as_bytes().to_vec())
    }
    add(lua, raw, "re_jit_stack", |_, bytes: f64| regex::set_jit_stack(bytes).map_err(|text| Fault(text.to_owned())))?;
    add(lua, raw, "re_is_empty", |_, ()| -> Result<_, Fault> { Ok(regex::is_empty()) })?;
    add(lua, raw, "re_exec", |lua, (subject, pattern, options, from, into): Call| {
        let expression = regex::find(&pattern.as_bytes(), &letters(&options))?;
        let subject = subject.as_bytes();
        let from = from.map_or(0, |n| (n.max(1.0) as usize) - 1);
        let found = expression.exec(&subject, from, |groups| groups_table(lua, &expression, &subject, groups, into))?;
        match found {
            None => Ok((Value::Nil, 0, 0)),
            Some(made) => {
                let (table, start, end) = made.map_err(|e| Fault(e.to_string()))?;
                Ok((Value::Table(table), start + 1, end))
            }
        }
    })?;
    type Find = (LuaString, LuaString, Option<LuaString>, Option<f64>, Option<f64>);
    add(lua, raw, "re_find", |_, (subject, pattern, options, from, group): Find| {
        let expression = regex::find(&pattern.as_bytes(), &letters(&options))?;
        let from = from.map_or(0, |n| (n.max(1.0) as usize) - 1);
        let group = group.map_or(0, |n| n.max(0.0) as usize);
        if group > expression.groups() {
            return Err(Fault("nth out of bound".to_owned()));
        }
        let found = expression.exec(&subject.as_bytes(), from, |groups| groups.nth(group).flatten())?.flatten();
        Ok(found.map_or((None, None), |(start, end)| (Some(start + 1), Some(end))))
    })
}

fn groups_table(
    lua: &Lua,
    expression: &regex::Expression,
    subject: &[u8],
    groups: &mut dyn Iterator<Item = regex::Group>,
    into: Value,
) -> mlua::Result<(Table, usize, usize)> {
    let table = match into {
        Value::Table(given) => given,
        _ => lua.create_table_with_capacity(expression.groups(), 1 + expression.names.len())?,
    };
    let mut whole = (0, 0);
    for (number, group) in groups.enumerate() {
        let value = match group {
            Some((start, end)) => Value::String(lua.create_string(&subject[start..end])?),
            None => Value::Boolean(false),
        };
        if number == 0 {
            whole = group.unwrap_or_default();
        } else if let Some((name, _)) = expression.names.iter().find(|(_, n)| *n == number) {
            // Of groups with one name the one counts that took part; where there may be several, they are a list.
            if expression.duplicates {
                match table.raw_get::<Value>(name.as_str())? {
                    _ if group.is_none() => {}
                    Value::Table(list) => list.raw_push(value.clone())?,
                    _ => table.raw_set(name.as_str(), lua.create_sequence_from([value.clone()])?)?,
                }
            } else if group.is_some() || matches!(table.raw_get::<Value>(name.as_str())?, Value::Nil) {
                table.raw_set(name.as_str(), value.clone())?;
            }
        }
        table.raw_set(number, value)?;
    }
    Ok((table, whole.0, whole.1))
}

/// Compiles a program. `name` is what messages call it, with `=` or `@` in front as Lua wants it.
///
/// # Errors
/// Lua's words for the mistake, with the program's name and line.
pub fn compile(lua: &Lua, source: &[u8], name: &str) -> Result<Function, String> {
    let loaded = lua.load(source).set_name(name).set_mode(mlua::chunk::ChunkMode::Text).into_function();
    loaded.map_err(|e| match e {
        mlua::Error::SyntaxError { message, .. } => message,
        other => other.to_string(),
    })
}

/// Values that are none.
pub fn nothing() -> MultiValue {
    MultiValue::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_lua_does() {
        for (number, text) in [
            (1.0, "1"),
            (-3.5, "-3.5"),
            (0.1, "0.1"),
            (1e15, "1e+15"),
            (1e100, "1e+100"),
            (1.0 / 3.0, "0.33333333333333"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
        ] {
            let mut out = Vec::new();
            write_number(number, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }

    #[test]
    fn a_program_runs_and_mistakes_have_their_line() {
        let lua = new();
        let raw = lua.create_table().unwrap();
        add_library(&lua, &raw).unwrap();
        lua.globals().set("raw", raw).unwrap();
        lua.load("o, encode, decode = raw.json_options() function raw.json_encode(_, value) return encode(value, raw.array_mt, raw.empty_array_mt) end")
            .exec()
            .unwrap();
        let run = |text: &str| -> String { lua.load(text).eval::<mlua::LuaString>().unwrap().to_string_lossy() };
        assert_eq!(run("return raw.md5('hello')"), "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(run("local m = raw.re_exec('hello, 1234', '([0-9])[0-9]+', 'jo') return m[0] .. m[1]"), "12341");
        assert_eq!(run("return raw.json_encode(o, { 1, 'a', { b = raw.null } })"), r#"[1,"a",{"b":null}]"#);
        assert_eq!(run("return tostring(decode('{\"a\":[1,{\"b\":2}]}').a[2].b)"), "2");
        assert_eq!(run("return select(2, decode('{'))").split(" at ").count(), 2);
        assert_eq!(
            run("return select(2, raw.json_encode(o, { [100] = 1 }))"),
            "Cannot serialise table: excessively sparse array"
        );
        run(
            "raw.json_set(o, 'sparse_is_object', true) raw.json_set(o, 'precision', 3) raw.json_set(o, 'encode_depth', 2) return ''",
        );
        assert_eq!(run("return raw.json_encode(o, { [100] = 1.23456 })"), r#"{"100":1.23}"#);
        assert_eq!(run("return select(2, raw.json_encode(o, { { { } } }))"), "Cannot serialise, excessive depth (3)");
        run("raw.json_set(o, 'skip_others', true) raw.json_set(o, 'escape_slash', false) return ''");
        assert_eq!(run("return raw.json_encode(o, { a = '/', f = print })"), r#"{"a":"/"}"#);
        assert_eq!(run("return raw.encode_args({ a = { 1, 'x y' } })"), "a=1&a=x%20y");
        assert!(
            compile(&lua, b"\n x x", "=content_by_lua(nginx.conf:1)")
                .unwrap_err()
                .starts_with("content_by_lua(nginx.conf:1):2:")
        );
    }
}
