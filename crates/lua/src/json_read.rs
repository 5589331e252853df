//! Reads JSON into values of Lua, with lua-cjson's words for what is wrong. From: `json::decode`. Limits: the depth that the options say.
//! What is open lies on Lua's stack: a text of a client's must not choose how deep the thread's own goes.

use crate::Fault;
use crate::json::Options;
use crate::quick::{Call, Kind, Maker};

/// A text that is being read.
pub(crate) struct Reader<'r> {
    made: Maker<'r>,
    text: &'r [u8],
    at: usize,
    options: &'r Options,
    /// The argument of the call that is the metatable of arrays.
    array_mark: Option<usize>,
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
    pub(crate) fn new(call: &'r Call, text: &'r [u8], options: &'r Options, array_mark: Option<usize>) -> Reader<'r> {
        Reader { made: Maker::new(call), text, at: 0, options, array_mark, depth: 0, room: Vec::new() }
    }

    /// Gives the one value that the text is.
    ///
    /// # Errors
    /// What is wrong, and at which character.
    pub(crate) fn whole(mut self) -> Result<(), Fault> {
        // Other encodings begin with a zero byte in one of the first two places.
        if self.text.len() >= 2 && (self.text[0] == 0 || self.text[1] == 0) {
            return Err("JSON parser does not support UTF-16 or UTF-32".into());
        }
        self.values().map_err(Fault)
    }

    /// Reads value after value until the outermost one and the text are at their ends.
    fn values(&mut self) -> Result<(), String> {
        let mut token = self.token("value")?;
        loop {
            match token.0 {
                Token::Text => self.made.value(Kind::Text(&self.room)),
                Token::Number(number) => self.made.value(Kind::Number(number)),
                Token::Boolean(flag) => self.made.value(Kind::Flag(flag)),
                Token::Null => self.made.value(Kind::Null),
                Token::ObjectBegin => {
                    self.descend(false)?;
                    let first = self.token("object key string or object end")?;
                    if first.0 != Token::ObjectEnd {
                        token = self.key(first)?;
                        continue;
                    }
                    self.ascend();
                }
                Token::ArrayBegin => {
                    self.descend(true)?;
                    token = self.token("value or array end")?;
                    if token.0 != Token::ArrayEnd {
                        continue;
                    }
                    self.ascend();
                }
                _ => return Err(expected("value", token)),
            }
            match self.after_value()? {
                Some(next) => token = next,
                None => return Ok(()),
            }
        }
    }

    /// A value has been read: closes what ends behind it. The token that the next value begins with; none at the end of the text.
    fn after_value(&mut self) -> Result<Option<Read>, String> {
        loop {
            let (wanted, end) = match self.made.is_list() {
                None => {
                    return match self.token("the end")? {
                        (Token::End, _) => Ok(None),
                        other => Err(expected("the end", other)),
                    };
                }
                Some(true) => ("comma or array end", Token::ArrayEnd),
                Some(false) => ("comma or object end", Token::ObjectEnd),
            };
            match self.token(wanted)? {
                (token, _) if token == end => self.ascend(),
                (Token::Comma, _) if end == Token::ArrayEnd => return self.token("value").map(Some),
                (Token::Comma, _) => {
                    let first = self.token("object key string")?;
                    return self.key(first).map(Some);
                }
                other => return Err(expected(wanted, other)),
            }
        }
    }

    /// A key and its colon. The token that its value begins with.
    fn key(&mut self, token: Read) -> Result<Read, String> {
        if token.0 != Token::Text {
            return Err(expected("object key string", token));
        }
        self.made.key(&self.room);
        match self.token("colon")? {
            (Token::Colon, _) => self.token("value"),
            other => Err(expected("colon", other)),
        }
    }

    fn descend(&mut self, is_list: bool) -> Result<(), String> {
        self.depth += 1;
        let mark = self.array_mark.filter(|_| is_list);
        if self.depth > self.options.decode_depth || !self.made.open(is_list, mark) {
            let (depth, at) = (self.depth, self.at);
            return Err(format!("Found too many nested data structures ({depth}) at character {at}"));
        }
        Ok(())
    }

    fn ascend(&mut self) {
        self.depth -= 1;
        self.made.close();
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

fn expected(wanted: &str, (found, at): Read) -> String {
    format!("Expected {wanted} but found {} at character {}", found.name(), at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{LARGEST_DEPTH, decode, encode};

    /// What a text is, written again.
    fn read(text: &str, options: &Options) -> Result<String, String> {
        let lua = crate::machine::new();
        let (text, own) = (text.as_bytes().to_vec(), options.clone());
        let read = crate::quick::make(&lua, move |call| decode(call, &text, &own)).unwrap();
        let depth = Options { encode_depth: options.decode_depth, ..Options::default() };
        let write = crate::quick::make(&lua, move |call| {
            let mut out = Vec::new();
            encode(call, &depth, &mut out)?;
            call.give_bytes(&out);
            Ok(())
        });
        lua.globals().set("read", read).unwrap();
        lua.globals().set("write", write.unwrap()).unwrap();
        let program = "local value, text = read() if text then return nil, text end return write(value)";
        match lua.load(program).eval::<(Option<mlua::LuaString>, Option<String>)>().unwrap() {
            (Some(written), None) => Ok(written.to_string_lossy()),
            (_, why) => Err(why.unwrap_or_default()),
        }
    }

    /// As deep as a program may say, on a stack that has no room for recursion; what does not fit Lua's own is refused.
    #[test]
    fn depth_takes_none_of_the_thread_s_stack() {
        let small = std::thread::Builder::new().stack_size(256 * 1024);
        let worked = small.spawn(|| {
            let options = Options { decode_depth: LARGEST_DEPTH, ..Options::default() };
            for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
                let text = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
                assert_eq!(read(&text(3900), &options), Ok(text(3900)));
                let refused = read(&text(4001), &options).unwrap_err();
                assert!(refused.starts_with("Found too many nested data structures ("), "{refused}");
            }
        });
        worked.unwrap().join().unwrap();
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
