//! Reads JSON into values of Lua, with lua-cjson's words for what is wrong. From: `json::decode`. Limits: the depth that the options say.

use crate::json::{Options, null};
use mlua::{Lua, Table, Value};

/// A text that is being read.
pub(crate) struct Reader<'r> {
    lua: &'r Lua,
    text: &'r [u8],
    at: usize,
    options: &'r Options,
    array_mark: Option<&'r Table>,
    depth: usize,
    /// Where texts with escapes are put together.
    room: Vec<u8>,
}

/// What stands next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text,
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
}

impl Token {
    /// lua-cjson's name for it.
    fn name(self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Text => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
        }
    }
}

/// A token, and where it begins.
type Read = (Token, usize);

impl<'r> Reader<'r> {
    /// Reads a text from its start.
    pub(crate) fn new(lua: &'r Lua, text: &'r [u8], options: &'r Options, array_mark: Option<&'r Table>) -> Reader<'r> {
        Reader { lua, text, at: 0, options, array_mark, depth: 0, room: Vec::new() }
    }

    /// The one value that the text is.
    ///
    /// # Errors
    /// What is wrong, and at which character.
    pub(crate) fn whole(mut self) -> Result<Value, String> {
        // Other encodings begin with a zero byte in one of the first two places.
        if self.text.len() >= 2 && (self.text[0] == 0 || self.text[1] == 0) {
            return Err("JSON parser does not support UTF-16 or UTF-32".to_owned());
        }
        let token = self.token("value")?;
        let value = self.value(token)?;
        match self.token("the end")? {
            (Token::End, _) => Ok(value),
            other => Err(expected("the end", other)),
        }
    }

    fn value(&mut self, (token, at): Read) -> Result<Value, String> {
        match token {
            Token::Text => self.lua.create_string(&self.room).map(Value::String).map_err(broken),
            Token::Number(n) => Ok(Value::Number(n)),
            Token::Boolean(b) => Ok(Value::Boolean(b)),
            Token::Null => Ok(null()),
            Token::ObjectBegin => self.object(),
            Token::ArrayBegin => self.array(),
            _ => Err(expected("value", (token, at))),
        }
    }

    fn descend(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > self.options.decode_depth {
            let (depth, at) = (self.depth, self.at);
            return Err(format!("Found too many nested data structures ({depth}) at character {at}"));
        }
        Ok(())
    }

    fn object(&mut self) -> Result<Value, String> {
        self.descend()?;
        let table = self.lua.create_table().map_err(broken)?;
        let mut token = self.token("object key string or object end")?;
        if token.0 == Token::ObjectEnd {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        loop {
            if token.0 != Token::Text {
                return Err(expected("object key string", token));
            }
            let key = self.lua.create_string(&self.room).map_err(broken)?;
            match self.token("colon")? {
                (Token::Colon, _) => {}
                other => return Err(expected("colon", other)),
            }
            let first = self.token("value")?;
            let value = self.value(first)?;
            table.raw_set(key, value).map_err(broken)?;
            match self.token("comma or object end")? {
                (Token::ObjectEnd, _) => {
                    self.depth -= 1;
                    return Ok(Value::Table(table));
                }
                (Token::Comma, _) => token = self.token("object key string")?,
                other => return Err(expected("comma or object end", other)),
            }
        }
    }

    fn array(&mut self) -> Result<Value, String> {
        self.descend()?;
        let table = self.lua.create_table().map_err(broken)?;
        if let Some(mark) = self.array_mark {
            table.set_metatable(Some(mark.clone())).map_err(broken)?;
        }
        let mut token = self.token("value or array end")?;
        let mut index = 0;
        if token.0 == Token::ArrayEnd {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        loop {
            let value = self.value(token)?;
            index += 1;
            table.raw_set(index, value).map_err(broken)?;
            match self.token("comma or array end")? {
                (Token::ArrayEnd, _) => {
                    self.depth -= 1;
                    return Ok(Value::Table(table));
                }
                (Token::Comma, _) => token = self.token("value")?,
                other => return Err(expected("comma or array end", other)),
            }
        }
    }

    /// The next token; of a text the bytes are in `room`. `wanted`: what should stand here.
    fn token(&mut self, wanted: &str) -> Result<Read, String> {
        while self.text.get(self.at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let start = self.at;
        let invalid = || Err(format!("Expected {wanted} but found invalid token at character {}", start + 1));
        let Some(&byte) = self.text.get(start) else { return Ok((Token::End, start)) };
        let simple = match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            b'"' => {
                self.read_text(wanted)?;
                return Ok((Token::Text, start));
            }
            b'-' | b'0'..=b'9' => {
                return match self.number() {
                    Some(number) => Ok((Token::Number(number), start)),
                    None => Err(format!("Expected {wanted} but found invalid number at character {}", start + 1)),
                };
            }
            _ => {
                for (word, token) in
                    [(&b"true"[..], Token::Boolean(true)), (b"false", Token::Boolean(false)), (b"null", Token::Null)]
                {
                    if self.text[start..].starts_with(word) {
                        self.at += word.len();
                        return Ok((token, start));
                    }
                }
                return match self.number() {
                    Some(number) => Ok((Token::Number(number), start)),
                    None => invalid(),
                };
            }
        };
        self.at += 1;
        Ok((simple, start))
    }

    /// A number as JSON has it; with `decode_invalid` also as C has it: NaN, the infinities, hexadecimal ones.
    fn number(&mut self) -> Option<f64> {
        let rest = &self.text[self.at..];
        let digits = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let sign = usize::from(rest.first() == Some(&b'-'));
        if self.options.decode_invalid
            && let Some((number, len)) = invalid_number(rest)
        {
            self.at += len;
            return Some(number);
        }
        let whole = digits(sign);
        if whole == 0 || whole > 1 && rest[sign] == b'0' && !self.options.decode_invalid {
            return None;
        }
        let mut end = sign + whole;
        if rest.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            if fraction > 0 {
                end += 1 + fraction;
            } else if self.options.decode_invalid {
                end += 1;
            }
        }
        if rest.get(end).is_some_and(|b| matches!(b, b'e' | b'E')) {
            let signed = usize::from(rest.get(end + 1).is_some_and(|b| matches!(b, b'+' | b'-')));
            let exponent = rest.get(end + 1 + signed..).map_or(0, |_| digits(end + 1 + signed));
            if exponent > 0 {
                end += 1 + signed + exponent;
            }
        }
        let number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        self.at += end;
        Some(number)
    }

    fn read_text(&mut self, wanted: &str) -> Result<(), String> {
        let invalid =
            |what: &str, at: usize| Err(format!("Expected {wanted} but found {what} at character {}", at + 1));
        self.at += 1;
        self.room.clear();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
            self.room.extend_from_slice(&rest[..plain]);
            self.at += plain;
            let Some(&byte) = self.text.get(self.at) else { return invalid("unexpected end of string", self.at) };
            self.at += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => {}
                // Control characters are passed on, as by lua-cjson.
                other => {
                    self.room.push(other);
                    continue;
                }
            }
            let Some(&escape) = self.text.get(self.at) else { return invalid("unexpected end of string", self.at) };
            self.at += 1;
            match escape {
                b'"' | b'\\' | b'/' => self.room.push(escape),
                b'b' => self.room.push(8),
                b'f' => self.room.push(12),
                b'n' => self.room.push(b'\n'),
                b'r' => self.room.push(b'\r'),
                b't' => self.room.push(b'\t'),
                b'u' => match self.unicode() {
                    Some(character) => {
                        let mut bytes = [0; 4];
                        self.room.extend_from_slice(character.encode_utf8(&mut bytes).as_bytes());
                    }
                    None => return invalid("invalid unicode escape code", self.at - 2),
                },
                _ => return invalid("invalid escape code", self.at - 2),
            }
        }
    }

    /// What follows `\u`, and its other half if it is one of a pair.
    fn unicode(&mut self) -> Option<char> {
        let first = self.hex4(self.at)?;
        let mut end = self.at + 4;
        let code = match first {
            0xd800..0xdc00 => {
                let follows = self.text.get(end..end + 2)? == b"\\u";
                let second = self.hex4(end + 2).filter(|low| follows && (0xdc00..0xe000).contains(low))?;
                end += 6;
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        self.at = end;
        char::from_u32(code)
    }

    fn hex4(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 4)?;
        digits.iter().try_fold(0, |sum, b| Some(sum * 16 + char::from(*b).to_digit(16)?))
    }
}

/// NaN, an infinity or a hexadecimal number at the start of a text, and how long it is.
fn invalid_number(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let factor = if text.first() == Some(&b'-') { -1.0 } else { 1.0 };
    let rest = &text[sign..];
    let begins = |word: &[u8]| rest.get(..word.len()).is_some_and(|w| w.eq_ignore_ascii_case(word));
    if begins(b"nan") {
        return Some((f64::NAN, sign + 3));
    }
    for word in [&b"infinity"[..], b"inf"] {
        if begins(word) {
            return Some((factor * f64::INFINITY, sign + word.len()));
        }
    }
    if begins(b"0x") {
        let digits = rest[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let value = rest[2..2 + digits]
            .iter()
            .fold(0.0, |sum, b| sum * 16.0 + f64::from(char::from(*b).to_digit(16).unwrap_or_default()));
        return (digits > 0).then_some((factor * value, sign + 2 + digits));
    }
    None
}

fn broken(error: mlua::Error) -> String {
    error.to_string()
}

fn expected(wanted: &str, (found, at): Read) -> String {
    format!("Expected {wanted} but found {} at character {}", found.name(), at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::encode;

    fn read(text: &str, options: &Options) -> Result<String, String> {
        let lua = crate::machine::new();
        let value = Reader::new(&lua, text.as_bytes(), options, None).whole()?;
        let write = crate::quick::make(&lua, |call| {
            let mut out = Vec::new();
            encode(call, &Options::default(), &mut out)?;
            call.give_bytes(&out);
            Ok(())
        });
        let written = write.unwrap().call::<mlua::LuaString>(value).unwrap();
        Ok(written.to_string_lossy())
    }

    #[test]
    fn what_is_read_is_written_again() {
        for (text, out) in [
            ("[1,2.5,-3e2,\"a\\u00e4\\ud83d\\ude00\\n\"]", "[1,2.5,-300,\"a\u{e4}\u{1f600}\\n\"]"),
            (" { \"a\" : [ true , false , null ] } ", "{\"a\":[true,false,null]}"),
            ("\"x\"", "\"x\""),
            ("[0x10, 1.]", "[16,1]"),
            ("{}", "{}"),
        ] {
            assert_eq!(read(text, &Options::default()).as_deref(), Ok(out), "{text}");
        }
    }

    #[test]
    fn mistakes_have_lua_cjson_s_words() {
        for (text, why) in [
            ("", "Expected value but found T_END at character 1"),
            ("{\"a\" 1}", "Expected colon but found T_NUMBER at character 6"),
            ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
            ("{1:2}", "Expected object key string but found T_NUMBER at character 2"),
            ("[tru]", "Expected value or array end but found invalid token at character 2"),
            ("\"\\x\"", "Expected value but found invalid escape code at character 2"),
            ("\"\\ud800\"", "Expected value but found invalid unicode escape code at character 2"),
            ("\"abc", "Expected value but found unexpected end of string at character 5"),
            ("1 2", "Expected the end but found T_NUMBER at character 3"),
            ("[-]", "Expected value or array end but found invalid number at character 2"),
        ] {
            assert_eq!(read(text, &Options::default()), Err(why.to_owned()), "{text}");
        }
        let strict = Options { decode_invalid: false, decode_depth: 3, ..Options::default() };
        assert!(read("[NaN]", &strict).is_err() && read("0x10", &strict).is_err() && read("01", &strict).is_err());
        assert_eq!(read("[[[1]]]", &strict).as_deref(), Ok("[[[1]]]"));
        let deep = "Found too many nested data structures (4) at character 4";
        assert_eq!(read("[[[[1]]]]", &strict), Err(deep.to_owned()));
    }
}
