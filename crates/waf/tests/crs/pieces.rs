//! What the dearest values are made of: `examples/worst.rs` measures them, a test counts their work.

/// What attacks and expressions are made of.
pub(crate) const PIECES: &[&str] = &[
    "a",
    "1",
    " ",
    "\t",
    "\n",
    "\r\n",
    "'",
    "\"",
    "`",
    ";",
    "a=b;",
    "a=",
    "=",
    "(",
    ")",
    "((",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    "<a ",
    "</",
    "<!--",
    "/",
    "//",
    "/*",
    "*/",
    "../",
    "..\\",
    "\\",
    "\\\\",
    "-",
    "--",
    "- ",
    "#",
    "&",
    "&&",
    "|",
    "||",
    "%",
    "%25",
    "$",
    "$(",
    "${",
    "$a",
    "@",
    "!",
    ",",
    ".",
    "a.",
    "a,",
    ":",
    "a:",
    "O:1:",
    "x x ",
    "a b",
    "' '",
    "\"a\"",
    "'a' ",
    "'||'",
    "' or ",
    " or 1",
    "union ",
    "select ",
    "select a ",
    "and ",
    "1 and ",
    "exec ",
    "eval(",
    "php:",
    "cat ",
    "c^a^t ",
    "c'a't",
    "sh -c ",
    "on=",
    "onx =",
    " on",
    "style=",
    "href=",
    "<script ",
    "javascript:",
    "j a v a ",
    "data:",
    "\u{00e9}",
    "%u0041",
    "\\x41",
    "\\u0041",
    "0x1 ",
    "1e1 ",
    "1.1.1.1 ",
    "http://",
    "http://a",
    "a@b.c ",
    "{{",
    "}}",
    "<%",
    "<?",
    "?",
    "+",
    "*",
    "~",
    "^",
    "_",
    "_a",
    "a_",
    "if(",
    "ls ",
    "id;",
    "rm -rf ",
    "wget a ",
    "ping ",
    "=a&",
    ";a ",
    "\n a",
    "a\n",
    "set ",
    "if a ",
    "a'",
    "'a",
    "a\"",
    "/a",
    "a/",
    "/?",
    "(a",
    "a(",
    "a)",
    "[a",
    "a]",
    "{a",
    "$_",
    "$$",
    "<<",
    ">>",
    "|a",
    "a|",
    "\0",
];

/// A form whose fields have values of these pieces, some bytes in all: one value that repeats one piece; or fields of 256 bytes each; or one value with all
/// pieces in an order that a number decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    One(&'static str),
    Fields(&'static str),
    Mixed(u64),
}

impl Shape {
    /// Each piece in both ways, and some mixtures.
    pub(crate) fn all() -> impl Iterator<Item = Shape> {
        let of_piece = PIECES.iter().flat_map(|piece| [Shape::One(piece), Shape::Fields(piece)]);
        of_piece.chain((1..33).map(Shape::Mixed))
    }

    /// The form as a client sends it.
    pub(crate) fn form(self, bytes: usize) -> Vec<u8> {
        const FIELD: usize = 256;
        let repeated = |piece: &str, length: usize| piece.as_bytes().repeat(length / piece.len());
        match self {
            Shape::One(piece) => [&b"a="[..], &escaped(&repeated(piece, bytes))].concat(),
            Shape::Fields(piece) => {
                let value = escaped(&repeated(piece, FIELD));
                let fields = (0..bytes / FIELD).map(|at| [format!("a{at}=").as_bytes(), &value].concat());
                fields.collect::<Vec<_>>().join(&b'&')
            }
            Shape::Mixed(seed) => {
                let (mut value, mut state) = (Vec::new(), seed);
                while value.len() < bytes {
                    // SplitMix64.
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    value.extend_from_slice(PIECES[((z ^ z >> 27) >> 32) as usize % PIECES.len()].as_bytes());
                }
                [&b"a="[..], &escaped(&value)].concat()
            }
        }
    }
}

fn escaped(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => out.push(*byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}
