//! `set_escape_uri`, `set_md5`, `set_random` and others: `set` with something done to the value on its way (OpenResty's
//! `ngx_http_set_misc_module`). They stand among the rewrites of their level and run in the order of the text.

use super::rewrite::{self, Make};
use super::ssi_date;
use crate::config::complex::Complex;
use crate::config::{Directive, Scope, http, setters};
use crate::request::{Request, Text};
use crate::{inherited, log_error, merged_values, text};
use conf::{Node, Problem, Word, value};
use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use runtime::clock;
use sha1::Sha1;
use sha2::Sha256;
use std::cell::RefCell;
use wire::encoding::{self, Alphabet};
use wire::http1::escape::{self, Unescape};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("set_if_empty", |s, n| set(s, n, 2, if_empty)),
    http("set_quote_sql_str", |s, n| on_value(s, n, |r, v| quoted(r, v, quote_sql))),
    http("set_quote_pgsql_str", |s, n| on_value(s, n, |r, v| quoted(r, v, quote_pgsql))),
    http("set_quote_json_str", |s, n| on_value(s, n, |r, v| quoted(r, v, quote_json))),
    http("set_unescape_uri", |s, n| on_value(s, n, |r, v| changed(r, v, unescape))),
    http("set_escape_uri", |s, n| on_value(s, n, |r, v| changed(r, v, escape_component))),
    http("set_encode_base32", |s, n| on_value(s, n, to_base32)),
    http("set_decode_base32", |s, n| on_value(s, n, from_base32)),
    http("set_base32_alphabet", base32_alphabet),
    http("set_base32_padding", |s, n| setters::flag(&mut s.level.conf.set_misc.base32_padding, n)),
    http("set_misc_base32_padding", |s, n| {
        let text =
            "the \"set_misc_base32_padding\" directive is deprecated, use the \"set_base32_padding\" directive instead";
        s.build.problems.push(n.warning(text.to_owned()));
        setters::flag(&mut s.level.conf.set_misc.base32_padding, n)
    }),
    http("set_encode_base64", |s, n| {
        on_value(s, n, |r, v| changed(r, v, |v, o| encoding::base64_encode(v, Alphabet::Standard, o)))
    }),
    http("set_decode_base64", |s, n| on_value(s, n, |r, v| decoded(r, v, |v| decode_base64(v, Alphabet::Standard)))),
    http("set_encode_base64url", |s, n| {
        on_value(s, n, |r, v| changed(r, v, |v, o| encoding::base64_encode(v, Alphabet::Url, o)))
    }),
    http("set_decode_base64url", |s, n| on_value(s, n, |r, v| decoded(r, v, |v| decode_base64(v, Alphabet::Url)))),
    http("set_encode_hex", |s, n| on_value(s, n, |r, v| changed(r, v, encoding::hex_encode))),
    http("set_decode_hex", |s, n| on_value(s, n, |r, v| decoded(r, v, decode_hex))),
    http("set_sha1", |s, n| on_value(s, n, |r, v| changed(r, v, |v, o| encoding::hex_encode(&Sha1::digest(v), o)))),
    http("set_md5", |s, n| on_value(s, n, |r, v| changed(r, v, |v, o| encoding::hex_encode(&Md5::digest(v), o)))),
    http("set_hmac_sha1", |s, n| set(s, n, 3, hmac_sha1)),
    http("set_hmac_sha256", |s, n| set(s, n, 3, hmac_sha256)),
    http("set_random", |s, n| set(s, n, 3, random)),
    http("set_rotate", rotate),
    http("upstream_list", upstream_list),
    http("set_hashed_upstream", set_hashed_upstream),
    http("set_secure_random_alphanum", |s, n| secure(s, n, |r, a| secure_random(r, a, ALPHANUMERIC))),
    http("set_secure_random_lcalpha", |s, n| secure(s, n, |r, a| secure_random(r, a, LOWER))),
    http("set_local_today", |s, n| set_fixed(s, n, |r, _| date(r, b"%Y-%m-%d", false))),
    http("set_formatted_gmt_time", |s, n| on_value(s, n, |r, a| formatted(r, a, true))),
    http("set_formatted_local_time", |s, n| on_value(s, n, |r, a| formatted(r, a, false))),
];

const ALPHANUMERIC: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const LOWER: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
/// The module's alphabet of base32: RFC 4648's with hexadecimal digits first, in lower case.
const BASE32: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `set_base32_alphabet`
        base32_alphabet: [u8; 32] = *BASE32,
        /// Whether texts in base32 are filled up with `=`.
        base32_padding: bool = true,
    }
}

inherited!(Conf, |_| true);

/// Random texts have 1 to 64 letters.
const MAX_RANDOM: u64 = 64;

/// What the directives of one text do, by their names: programs in Lua call them (`ndk.set_var`).
pub(super) fn function(name: &str) -> Option<Make> {
    let make: Make = match name {
        "set_quote_sql_str" => |r, v| quoted(r, v, quote_sql),
        "set_quote_pgsql_str" => |r, v| quoted(r, v, quote_pgsql),
        "set_quote_json_str" => |r, v| quoted(r, v, quote_json),
        "set_unescape_uri" => |r, v| changed(r, v, unescape),
        "set_escape_uri" => |r, v| changed(r, v, escape_component),
        "set_encode_base32" => to_base32,
        "set_decode_base32" => from_base32,
        "set_encode_base64" => |r, v| changed(r, v, |v, o| encoding::base64_encode(v, Alphabet::Standard, o)),
        "set_decode_base64" => |r, v| decoded(r, v, |v| decode_base64(v, Alphabet::Standard)),
        "set_encode_hex" => |r, v| changed(r, v, encoding::hex_encode),
        "set_decode_hex" => |r, v| decoded(r, v, decode_hex),
        "set_sha1" => |r, v| changed(r, v, |v, o| encoding::hex_encode(&Sha1::digest(v), o)),
        "set_md5" => |r, v| changed(r, v, |v, o| encoding::hex_encode(&Md5::digest(v), o)),
        "set_local_today" => |r, _| date(r, b"%Y-%m-%d", false),
        "set_formatted_gmt_time" => |r, a| formatted(r, a, true),
        "set_formatted_local_time" => |r, a| formatted(r, a, false),
        "set_secure_random_alphanum" => |r, a| secure_random(r, a, ALPHANUMERIC),
        "set_secure_random_lcalpha" => |r, a| secure_random(r, a, LOWER),
        _ => return None,
    };
    Some(make)
}

/// A directive whose words behind the variable are all texts.
fn set(scope: &mut Scope<'_, '_>, node: &Node, words: usize, make: Make) -> Result<(), Problem> {
    let mut args: Vec<Complex> = Vec::with_capacity(words);
    if words == 2 {
        // What the variable has so far is the first.
        args.push(Complex::compile(scope.build, &node.args[0])?);
    }
    for word in &node.args[1..] {
        args.push(Complex::compile(scope.build, word)?);
    }
    rewrite::set_to(scope, node, args, make)
}

/// `set_md5 $a TEXT`, and `set_md5 $a` for what `$a` has.
fn on_value(scope: &mut Scope<'_, '_>, node: &Node, make: Make) -> Result<(), Problem> {
    let word: &Word = node.args.get(1).unwrap_or(&node.args[0]);
    let args = vec![Complex::compile(scope.build, word)?];
    rewrite::set_to(scope, node, args, make)
}

fn set_fixed(scope: &mut Scope<'_, '_>, node: &Node, make: Make) -> Result<(), Problem> {
    if let Some(word) = node.args.get(1) {
        return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
    }
    rewrite::set_to(scope, node, vec![], make)
}

fn secure(scope: &mut Scope<'_, '_>, node: &Node, make: Make) -> Result<(), Problem> {
    let args = vec![Complex::compile(scope.build, &node.args[1])?];
    rewrite::set_to(scope, node, args, make)
}

/// Lists of groups, by name.
pub type Lists = Vec<(Box<[u8]>, Vec<Box<[u8]>>)>;

/// `upstream_list NAME GROUP ...`
fn upstream_list(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (name, groups) = node.args.split_first().ok_or_else(|| Problem::invalid_arguments(node))?;
    let lists = &mut scope.build.main.upstream_lists;
    if lists.iter().any(|(known, _)| **known == *name.text) {
        return Err(node.problem(format!("duplicate upstream list name \"{}\"", name.as_str())));
    }
    let groups = groups.iter().map(|group| group.text.as_slice().into()).collect();
    lists.push((name.text.as_slice().into(), groups));
    Ok(())
}

/// `set_hashed_upstream $variable LIST TEXT`
fn set_hashed_upstream(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let list = Complex::compile(scope.build, &node.args[1])?;
    if let Some(name) = list.as_fixed()
        && !scope.build.main.upstream_lists.iter().any(|(known, _)| **known == *name)
    {
        let name = String::from_utf8_lossy(name);
        return Err(node.problem(format!("upstream list \"{name}\" not defined yet")));
    }
    let text = Complex::compile(scope.build, &node.args[2])?;
    rewrite::set_to(scope, node, vec![list, text], hashed_upstream)
}

fn hashed_upstream(r: &mut Request, args: &[Text]) -> Option<Text> {
    let [list, text] = args else { return None };
    let snapshot = r.snapshot.clone();
    let name = r.get(*list);
    let Some((_, groups)) = snapshot.main.upstream_lists.iter().find(|(known, _)| **known == *name) else {
        let text = format!("set_hashed_upstream: upstream list \"{}\" is not defined", String::from_utf8_lossy(name));
        return failed(r, &text);
    };
    let at = hash(r.get(*text)) as usize % groups.len();
    Some(r.text(&groups[at]))
}

/// Without regard to case (`ngx_hash_key_lc`), its lower half.
fn hash(text: &[u8]) -> u32 {
    text.iter().fold(0, |n: u32, b| n.wrapping_mul(31).wrapping_add(u32::from(b.to_ascii_lowercase())))
}

fn if_empty(r: &mut Request, args: &[Text]) -> Option<Text> {
    let [now, other] = args else { return None };
    Some(if r.get(*now).is_empty() { *other } else { *now })
}

fn changed(r: &mut Request, args: &[Text], change: fn(&[u8], &mut Vec<u8>)) -> Option<Text> {
    let mut out = Vec::new();
    change(r.get(*args.first()?), &mut out);
    Some(r.text(&out))
}

/// What is no encoded text ends the request with 500, as in the module: nobody is to go on with half a value.
fn decoded(r: &mut Request, args: &[Text], decode: fn(&[u8]) -> Option<Vec<u8>>) -> Option<Text> {
    match decode(r.get(*args.first()?)) {
        Some(out) => Some(r.text(&out)),
        None => failed(r, "a value cannot be decoded"),
    }
}

fn failed(r: &mut Request, text: &str) -> Option<Text> {
    log_error!(r, Error, "{text}");
    r.fail();
    None
}

fn quoted(r: &mut Request, args: &[Text], quote: fn(&[u8], &mut Vec<u8>)) -> Option<Text> {
    changed(r, args, quote)
}

/// Between quotes, as MySQL reads it.
fn quote_sql(value: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for &byte in value {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0 => out.extend_from_slice(b"\\0"),
            0x1a => out.extend_from_slice(b"\\Z"),
            b'$' => out.extend_from_slice(b"\\$"),
            b'\\' | b'\'' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            _ => out.push(byte),
        }
    }
    out.push(b'\'');
}

/// The same as a text of PostgreSQL with escapes. Bytes above ASCII stay as they are.
fn quote_pgsql(value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() {
        out.push(b'E');
    }
    quote_sql(value, out);
}

fn quote_json(value: &[u8], out: &mut Vec<u8>) {
    if value.is_empty() {
        return out.extend_from_slice(b"null");
    }
    out.push(b'"');
    for &byte in value {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// All but letters, digits and some marks are escaped, as the module has it.
fn escape_component(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"!$'()*,-.@_`|~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

/// A `+` is a space.
fn unescape(value: &[u8], out: &mut Vec<u8>) {
    let spaced: Vec<u8> = value.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    escape::unescape(&spaced, Unescape::Plain, out);
}

fn base32_alphabet(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = &node.args[0].text;
    let alphabet: [u8; 32] = text.as_slice().try_into().map_err(|_| {
        let text = format!(
            "\"set_base32_alphabet\" takes an alphabet of 32 bytes but \"{}\" has {}",
            node.args[0].as_str(),
            text.len()
        );
        node.problem(text)
    })?;
    setters::value(&mut scope.level.conf.set_misc.base32_alphabet, node, alphabet)
}

fn to_base32(r: &mut Request, args: &[Text]) -> Option<Text> {
    let (conf, mut out) = (&r.conf().set_misc, Vec::new());
    encode_base32(r.get(*args.first()?), &conf.base32_alphabet, *conf.base32_padding, &mut out);
    Some(r.text(&out))
}

fn from_base32(r: &mut Request, args: &[Text]) -> Option<Text> {
    match decode_base32(r.get(*args.first()?), &r.conf().set_misc.base32_alphabet) {
        Some(out) => Some(r.text(&out)),
        None => failed(r, "a value cannot be decoded"),
    }
}

fn encode_base32(value: &[u8], alphabet: &[u8; 32], padding: bool, out: &mut Vec<u8>) {
    for group in value.chunks(5) {
        let mut five = [0; 8];
        five[3..3 + group.len()].copy_from_slice(group);
        let bits = u64::from_be_bytes(five);
        let letters = (group.len() * 8).div_ceil(5);
        out.extend((0..letters).map(|n| alphabet[(bits >> (35 - 5 * n)) as usize & 31]));
        if padding {
            out.extend((letters..8).map(|_| b'='));
        }
    }
}

fn decode_base32(value: &[u8], alphabet: &[u8; 32]) -> Option<Vec<u8>> {
    // The module's own alphabet is read in both cases.
    let digit = |letter: u8| {
        let own = alphabet.iter().position(|b| *b == letter);
        own.or_else(|| alphabet.iter().position(|b| alphabet == BASE32 && *b == letter.to_ascii_lowercase()))
    };
    let end = value.iter().position(|b| *b == b'=').unwrap_or(value.len());
    if value[end..].iter().any(|b| *b != b'=') || matches!(end % 8, 1 | 3 | 6) {
        return None;
    }
    let mut out = Vec::with_capacity(end * 5 / 8);
    for group in value[..end].chunks(8) {
        let mut bits = 0u64;
        for (n, letter) in group.iter().enumerate() {
            bits |= (digit(*letter)? as u64) << (35 - 5 * n);
        }
        out.extend_from_slice(&bits.to_be_bytes()[3..3 + group.len() * 5 / 8]);
    }
    Some(out)
}

fn decode_base64(value: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    encoding::base64_decode(value, alphabet, &mut out).ok().map(|()| out)
}

fn decode_hex(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    encoding::hex_decode(value, &mut out).ok().map(|()| out)
}

/// The code itself, not in hexadecimal: `set_encode_base64` usually follows.
fn hmac_sha1(r: &mut Request, args: &[Text]) -> Option<Text> {
    let [secret, value] = args else { return None };
    let code = Hmac::<Sha1>::new_from_slice(r.get(*secret)).ok()?.chain_update(r.get(*value)).finalize();
    Some(r.text(&code.into_bytes()))
}

fn hmac_sha256(r: &mut Request, args: &[Text]) -> Option<Text> {
    let [secret, value] = args else { return None };
    let code = Hmac::<Sha256>::new_from_slice(r.get(*secret)).ok()?.chain_update(r.get(*value)).finalize();
    Some(r.text(&code.into_bytes()))
}

/// A number between two, both included.
fn random(r: &mut Request, args: &[Text]) -> Option<Text> {
    let number = |text: &Text| value::number(r.get(*text));
    let (Some(from), Some(to)) = (number(args.first()?), number(args.get(1)?)) else {
        return failed(r, "set_random: bad numbers");
    };
    let (from, to) = (from.min(to), from.max(to));
    let drawn = from + draw() % (to - from + 1);
    Some(text!(r, "{drawn}"))
}

fn draw() -> u64 {
    let mut bytes = [0; 8];
    // Given early in a boot there may be none: then it is zero.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    u64::from_be_bytes(bytes)
}

/// The next number between two, for each thread by itself; each directive counts apart.
fn rotate(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let number = scope.build.main.set_rotates;
    scope.build.main.set_rotates += 1;
    let mut args = vec![Complex::fixed(number.to_string().as_bytes())];
    for word in &node.args[1..] {
        args.push(Complex::compile(scope.build, word)?);
    }
    rewrite::set_to(scope, node, args, rotated)
}

thread_local! {
    /// Where each `set_rotate` stands.
    static ROTATES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn rotated(r: &mut Request, args: &[Text]) -> Option<Text> {
    let number = |text: &Text| value::number(r.get(*text));
    let (Some(place), Some(from), Some(to)) = (number(&args[0]), number(args.get(1)?), number(args.get(2)?)) else {
        return failed(r, "set_rotate: bad numbers");
    };
    let (from, to, place) = (from.min(to), from.max(to), place as usize);
    let now = ROTATES.with_borrow_mut(|all| {
        if all.len() <= place {
            all.resize(place + 1, u64::MAX);
        }
        let now = all[place];
        let next = if (from..to).contains(&now) { now + 1 } else { from };
        all[place] = next;
        next
    });
    Some(text!(r, "{now}"))
}

fn secure_random(r: &mut Request, args: &[Text], letters: &[u8]) -> Option<Text> {
    let length = value::number(r.get(*args.first()?)).filter(|n| (1..=MAX_RANDOM).contains(n));
    let Some(length) = length else {
        return failed(r, "set_secure_random: the length must be 1 to 64");
    };
    // Bytes that would make some letters more likely than others are drawn again.
    let even = 256 / letters.len() * letters.len();
    let mut out = Vec::with_capacity(length as usize);
    while (out.len() as u64) < length {
        let mut bytes = [0; 64];
        if rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).is_err() {
            return failed(r, "getrandom() failed: no secure random text");
        }
        let fit = bytes.iter().filter(|b| usize::from(**b) < even).map(|b| letters[usize::from(*b) % letters.len()]);
        out.extend(fit.take(length as usize - out.len()));
    }
    Some(r.text(&out))
}

fn formatted(r: &mut Request, args: &[Text], gmt: bool) -> Option<Text> {
    let format = r.get(*args.first()?).to_vec();
    date(r, &format, gmt)
}

fn date(r: &mut Request, format: &[u8], gmt: bool) -> Option<Text> {
    let text = ssi_date::format(clock::wall_seconds(), gmt, format).unwrap_or_default();
    Some(r.text(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_the_module_chooses() {
        // Asked of Debian's module with three groups.
        let known = [("", 0), ("a", 1), ("b", 2), ("d", 1), ("abc", 0), ("ABC", 0), ("hello", 1), ("127.0.0.1", 2)];
        for (text, at) in known {
            assert_eq!(hash(text.as_bytes()) % 3, at, "{text}");
        }
    }

    fn made(change: fn(&[u8], &mut Vec<u8>), value: &[u8]) -> String {
        let mut out = Vec::new();
        change(value, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn base32() {
        for (plain, encoded) in [
            ("", ""),
            ("a", "c4======"),
            ("ab", "c5h0===="),
            ("abc", "c5h66==="),
            ("abcd", "c5h66p0="),
            ("abcde", "c5h66p35"),
        ] {
            assert_eq!(made(|value, out| encode_base32(value, BASE32, true, out), plain.as_bytes()), encoded);
            assert_eq!(decode_base32(encoded.as_bytes(), BASE32).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["c", "c4=x", "zz", "c5h"] {
            assert_eq!(decode_base32(bad.as_bytes(), BASE32), None, "{bad}");
        }
    }

    #[test]
    fn quotes() {
        assert_eq!(made(quote_sql, b"a'b\"c\\d\n\0"), "'a\\'b\\\"c\\\\d\\n\\0'");
        assert_eq!(made(quote_pgsql, b"a'b\xff"), "E'a\\'b\u{fffd}'");
        assert_eq!(made(quote_json, b"a\"b\n"), "\"a\\\"b\\n\"");
        assert_eq!(made(quote_json, b""), "null");
    }
}
