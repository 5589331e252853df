//! SecLang's transformations: what a rule does to a value before its operator looks at it. Each is a pure function that says
//! whether it changed anything, so that a value which is already plain costs no copy.

mod decode;
mod entity;
mod path;
mod text;

pub(crate) use decode::{UnicodeMap, base64_decode, url_decode};

use md5::{Digest, Md5};
use sha1::Sha1;

/// Declares the transformations with SecLang's names for them.
macro_rules! transformations {
    ($($kind:ident: $($name:literal),+;)*) => {
        /// One transformation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are SecLang's own")]
        pub(crate) enum Transform { $($kind),* }

        impl Transform {
            /// Finds a transformation by its name; case does not matter.
            pub(crate) fn find(name: &str) -> Option<Transform> {
                const NAMES: &[(&str, Transform)] = &[$($(($name, Transform::$kind)),+),*];
                NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, kind)| *kind)
            }
        }

        /// All of them, for tests and fuzzing.
        const ALL: &[Transform] = &[$(Transform::$kind),*];
    };
}

transformations! {
    Base64Decode: "base64Decode";
    Base64DecodeExt: "base64DecodeExt";
    Base64Encode: "base64Encode";
    CmdLine: "cmdLine";
    CompressWhitespace: "compressWhitespace";
    CssDecode: "cssDecode";
    EscapeSeqDecode: "escapeSeqDecode";
    HexDecode: "hexDecode";
    HexEncode: "hexEncode";
    HtmlEntityDecode: "htmlEntityDecode";
    JsDecode: "jsDecode";
    Length: "length";
    Lowercase: "lowercase";
    Md5: "md5";
    NormalizePath: "normalizePath", "normalisePath";
    NormalizePathWin: "normalizePathWin", "normalisePathWin";
    ParityEven7bit: "parityEven7bit";
    ParityOdd7bit: "parityOdd7bit";
    ParityZero7bit: "parityZero7bit";
    RemoveComments: "removeComments";
    RemoveCommentsChar: "removeCommentsChar";
    RemoveNulls: "removeNulls";
    RemoveWhitespace: "removeWhitespace";
    ReplaceComments: "replaceComments";
    ReplaceNulls: "replaceNulls";
    Sha1: "sha1";
    SqlHexDecode: "sqlHexDecode";
    Trim: "trim";
    TrimLeft: "trimLeft";
    TrimRight: "trimRight";
    Uppercase: "uppercase";
    UrlDecode: "urlDecode";
    UrlDecodeUni: "urlDecodeUni";
    UrlEncode: "urlEncode";
    Utf8ToUnicode: "utf8toUnicode";
}

impl Transform {
    /// Applies the transformation. True: `out`, which is emptied before, holds the result. False: the input is its own result.
    pub(crate) fn apply(self, input: &[u8], map: Option<&UnicodeMap>, out: &mut Vec<u8>) -> bool {
        out.clear();
        match self {
            Transform::Base64Decode => decode::base64_decode(input, false, out),
            Transform::Base64DecodeExt => decode::base64_decode(input, true, out),
            Transform::Base64Encode => decode::base64_encode(input, out),
            Transform::CmdLine => text::command_line(input, out),
            Transform::CompressWhitespace => text::compress_whitespace(input, out),
            Transform::CssDecode => entity::css_decode(input, out),
            Transform::EscapeSeqDecode => entity::escape_sequences(input, out),
            Transform::HexDecode => decode::hex_decode(input, out),
            Transform::HexEncode => decode::hex_encode(input, out),
            Transform::HtmlEntityDecode => entity::html_entities(input, out),
            Transform::JsDecode => entity::js_decode(input, out),
            Transform::Length => {
                out.extend_from_slice(input.len().to_string().as_bytes());
                true
            }
            Transform::Lowercase => text::map_bytes(input, out, |b| b.to_ascii_lowercase()),
            Transform::Uppercase => text::map_bytes(input, out, |b| b.to_ascii_uppercase()),
            Transform::Md5 => {
                out.extend_from_slice(&Md5::digest(input));
                true
            }
            Transform::Sha1 => {
                out.extend_from_slice(&Sha1::digest(input));
                true
            }
            Transform::NormalizePath => path::normalize(input, false, out),
            Transform::NormalizePathWin => path::normalize(input, true, out),
            Transform::ParityEven7bit => text::map_bytes(input, out, |b| text::with_parity(b, 0)),
            Transform::ParityOdd7bit => text::map_bytes(input, out, |b| text::with_parity(b, 1)),
            Transform::ParityZero7bit => text::map_bytes(input, out, |b| b & 0x7f),
            Transform::RemoveComments => text::remove_comments(input, out),
            Transform::RemoveCommentsChar => text::remove_comment_marks(input, out),
            Transform::RemoveNulls => text::keep(input, out, |b| b != 0),
            Transform::RemoveWhitespace => text::remove_whitespace(input, out),
            Transform::ReplaceComments => text::replace_comments(input, out),
            Transform::ReplaceNulls => text::map_bytes(input, out, |b| if b == 0 { b' ' } else { b }),
            Transform::SqlHexDecode => decode::sql_hex_decode(input, out),
            Transform::Trim => text::trim(input, out, true, true),
            Transform::TrimLeft => text::trim(input, out, true, false),
            Transform::TrimRight => text::trim(input, out, false, true),
            Transform::UrlDecode => decode::url_decode(input, false, None, out).changed,
            Transform::UrlDecodeUni => decode::url_decode(input, true, map, out).changed,
            Transform::UrlEncode => decode::url_encode(input, out),
            Transform::Utf8ToUnicode => decode::utf8_to_unicode(input, out),
        }
    }
}

/// A transformation for any number.
pub(crate) fn by_number(number: u8) -> Transform {
    ALL[usize::from(number) % ALL.len()]
}

/// The value of a hexadecimal digit.
fn hex(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|d| d as u8)
}

/// The value of two hexadecimal digits.
fn hex_pair(bytes: &[u8]) -> Option<u8> {
    Some(hex(*bytes.first()?)? << 4 | hex(*bytes.get(1)?)?)
}

/// C's `isspace`: Rust's leaves the vertical tab out.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = Transform::find(name).expect("a transformation of this name");
        if kind.apply(input, None, &mut out) { out } else { input.to_vec() }
    }

    #[track_caller]
    fn check(name: &str, pairs: &[(&str, &str)]) {
        for (input, expected) in pairs {
            let got = run(name, input.as_bytes());
            assert_eq!(String::from_utf8_lossy(&got), *expected, "{name} of {input:?}");
        }
    }

    #[test]
    fn decoders_decode() {
        check("urlDecode", &[("a%41+b%zz%4", "aA b%zz%4"), ("plain", "plain"), ("%25%32%35", "%25")]);
        check("urlDecodeUni", &[("%u0041%uff1cx%u00e", "A<x%u00e"), ("a+b%20", "a b ")]);
        check("base64Decode", &[("SGVsbG8=", "Hello"), ("SGVs!bG8=", "Hel"), ("", "")]);
        check("base64DecodeExt", &[("SG.Vs!bG8=", "Hello")]);
        check("base64Encode", &[("Hello", "SGVsbG8="), ("ab", "YWI="), ("abc", "YWJj")]);
        check("hexDecode", &[("414243", "ABC")]);
        check("hexEncode", &[("ABC", "414243")]);
        check("sqlHexDecode", &[("select 0x414243 x0y 0x4", "select ABC x0y 0x4")]);
        check("htmlEntityDecode", &[("&lt;a&#x41;&#66;&quot;&amp;&foo;&#;", "<aAB\"&&foo;&#;"), ("&#65b", "Ab")]);
        check("jsDecode", &[("\\u0041\\x42\\103\\n\\q\\uff1c", "ABC\nq<")]);
        check("cssDecode", &[("\\41 b\\000042c\\\nd\\z", "AbBcdz"), ("a\\", "a")]);
        check("escapeSeqDecode", &[("\\x41\\102\\n\\\\\\q", "AB\n\\q")]);
        check("utf8toUnicode", &[("aé€", "a%u00e9%u20ac")]);
        check("urlEncode", &[("a b*/é", "a+b*%2f%c3%a9")]);
    }

    #[test]
    fn texts_are_made_plain() {
        check("lowercase", &[("AbC", "abc"), ("abc", "abc")]);
        check("cmdLine", &[("C^OM\"M'A\\ND  /c,;x (", "command/c x(")]);
        check("compressWhitespace", &[("a \t\n b", "a b"), ("a b", "a b"), ("a\tb", "a b")]);
        check("removeWhitespace", &[(" a \t b ", "ab")]);
        check("removeNulls", &[("a\0b", "ab")]);
        check("replaceNulls", &[("a\0b", "a b")]);
        check("replaceComments", &[("a/*x*/b/*y", "a b "), ("a*/b", "a*/b")]);
        check("removeComments", &[("a/*x*/b<!--c-->d#e", "abd"), ("a--b", "a")]);
        check("removeCommentsChar", &[("a/*b*/c--d#e<!--f-->", "abcdef")]);
        check("trim", &[("  a b ", "a b")]);
        check("trimLeft", &[("  a ", "a ")]);
        check("trimRight", &[(" a  ", " a")]);
        check("length", &[("abc", "3"), ("", "0")]);
        check("md5", &[]);
        assert_eq!(run("hexEncode", &run("md5", b"")), b"d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(run("hexEncode", &run("sha1", b"")), b"da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(run("parityEven7bit", b"\x01\x03"), [0x81, 0x03]);
        assert_eq!(run("parityOdd7bit", b"\x01\x03"), [0x01, 0x83]);
        assert_eq!(run("parityZero7bit", b"\x81"), [0x01]);
    }

    #[test]
    fn paths_are_made_short() {
        let pairs = [
            ("/foo/../bar", "/bar"),
            ("/a//b/./c", "/a/b/c"),
            ("../../etc/passwd", "../../etc/passwd"),
            ("/../x", "/x"),
            ("a/b/../..", ""),
            ("/a/b/..", "/a"),
            ("a/b/", "a/b/"),
            ("/", "/"),
            ("./x", "x"),
        ];
        check("normalizePath", &pairs);
        check("normalisePathWin", &[("\\a\\..\\b", "/b"), ("/a/b", "/a/b")]);
    }

    #[test]
    fn whatever_comes_none_panics_and_unchanged_means_unchanged() {
        let mut seed = 7_u32;
        let mut out = Vec::new();
        for round in 0..20_000 {
            let mut input = Vec::new();
            for _ in 0..round % 24 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                const BYTES: &[u8] = b"%u0aF\\xX/.*<!-->#&;lt'\"\0 \t\xff\xc3\xa9+=nU1";
                input.push(BYTES[(seed >> 16) as usize % BYTES.len()]);
            }
            for kind in ALL {
                if kind.apply(&input, None, &mut out) && !matches!(kind, Transform::Length) {
                    assert!(out != input || input.is_empty() || out.len() == input.len(), "{kind:?}");
                }
            }
        }
    }
}
