//! Expressions of `ngx.re`: PCRE2 with ngx_lua's letters for options. Each is compiled once for a thread and kept.

use crate::Fault;
use crate::dfa::Dfa;
use hashbrown::HashMap;
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Expressions that a thread keeps where `lua_regex_cache_max_entries` says nothing else. More than that are compiled for each call.
pub const MAX_ENTRIES: usize = 1024;

/// What letters say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    caseless: bool,
    multi_line: bool,
    dot_all: bool,
    extended: bool,
    utf: bool,
    /// Without `U`: what is no UTF-8 is told.
    check_utf: bool,
    anchored: bool,
    duplicate_names: bool,
    /// `d`: the longest match, without groups.
    longest: bool,
    /// `o`: keep it.
    pub once: bool,
    /// `j`: compile it to machine code.
    pub jit: bool,
}

impl Options {
    /// Reads the letters.
    ///
    /// # Errors
    /// `unknown flag "x" (flags "...")`.
    pub fn parse(letters: &[u8]) -> Result<Options, Fault> {
        let mut options = Options::default();
        for letter in letters {
            match letter {
                b'i' => options.caseless = true,
                b'm' => options.multi_line = true,
                b's' => options.dot_all = true,
                b'x' => options.extended = true,
                b'u' => (options.utf, options.check_utf) = (true, true),
                b'U' => options.utf = true,
                b'a' => options.anchored = true,
                b'D' => options.duplicate_names = true,
                b'o' => options.once = true,
                b'j' => options.jit = true,
                b'd' => options.longest = true,
                b'J' => {}
                other => {
                    let (flag, all) = (char::from(*other), String::from_utf8_lossy(letters));
                    return Err(Fault(format!("unknown flag \"{flag}\" (flags \"{all}\")")));
                }
            }
        }
        Ok(options)
    }
}

/// A compiled expression.
pub struct Expression {
    engine: Engine,
    /// `D`: groups of one name are a list.
    pub duplicates: bool,
    /// Several groups have one name.
    pub repeats: bool,
    /// Names of groups with their numbers.
    pub names: Vec<(String, usize)>,
    /// Whether subjects are UTF-8 is looked at first.
    check_utf: bool,
}

/// How it is matched.
#[allow(
    clippy::large_enum_variant,
    reason = "an expression is behind a pointer already, and the large one is the usual one"
)]
enum Engine {
    /// The usual way. `is_anchored`: `a`, where it could not be said in the pattern: a match that begins elsewhere is none.
    Usual { regex: Regex, locations: RefCell<CaptureLocations>, is_anchored: bool },
    /// `d`
    Longest(Dfa),
}

/// The least stack of compiled expressions, and the most that a program may ask for.
const LEAST_JIT_STACK: usize = 32 * 1024;
const MOST_JIT_STACK: usize = 64 * 1024 * 1024;

/// Expressions without `o` that a thread keeps: these may be made by a program for each request, so all of them go when there are so many.
const MAX_PASSING: usize = 256;

/// Expressions of one pattern, by their letters.
type Known = Vec<(Box<[u8]>, Rc<Expression>)>;

thread_local! {
    static LISTENER: Cell<Option<fn(&str)>> = const { Cell::new(None) };
    static KNOWN: RefCell<HashMap<Box<[u8]>, Known>> = RefCell::default();
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static PASSING: RefCell<HashMap<Box<[u8]>, Known>> = RefCell::default();
    static LIMIT: Cell<u32> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(MAX_ENTRIES) };
    static JIT_STACK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What a configuration says for this thread: `lua_regex_match_limit` (0: PCRE2's own) and `lua_regex_cache_max_entries`.
/// Expressions of the configuration before are let go.
pub fn configure(limit: u32, most: usize) {
    LIMIT.set(limit);
    MOST.set(most);
    COUNT.set(0);
    JIT_STACK.set(None);
    KNOWN.with_borrow_mut(HashMap::clear);
    PASSING.with_borrow_mut(HashMap::clear);
}

/// Whether no expression is kept.
pub fn is_empty() -> bool {
    COUNT.get() == 0
}

/// From now on compiled expressions of this thread have a stack of up to so many bytes; PCRE2 says 32 KB. It is reserved for each of them, and
/// taken as it is needed.
///
/// # Errors
/// Some are kept already, which have theirs.
pub fn set_jit_stack(bytes: f64) -> Result<(), &'static str> {
    if !is_empty() {
        return Err("changing jit stack size is not allowed when some regexs have already been compiled and cached");
    }
    JIT_STACK.set(Some((bytes as usize).clamp(LEAST_JIT_STACK, MOST_JIT_STACK)));
    PASSING.with_borrow_mut(HashMap::clear);
    Ok(())
}

/// The expression for a pattern and its letters, compiled now if it is not known.
///
/// # Errors
/// PCRE2's, with the pattern.
pub fn find(pattern: &[u8], letters: &[u8]) -> Result<Rc<Expression>, Fault> {
    let once = letters.contains(&b'o');
    let cache = if once { &KNOWN } else { &PASSING };
    let known = cache.with_borrow(|all| {
        let same = all.get(pattern)?.iter().find(|(l, _)| **l == *letters)?;
        Some(same.1.clone())
    });
    if let Some(known) = known {
        if !once {
            tell_jit(letters);
        }
        return Ok(known);
    }
    let options = Options::parse(letters)?;
    tell_jit(letters);
    let made = Rc::new(compile(pattern, options)?);
    if once && COUNT.get() >= MOST.get() {
        return Ok(made);
    }
    cache.with_borrow_mut(|all| {
        if once {
            COUNT.set(COUNT.get() + 1);
        } else if all.values().map(Vec::len).sum::<usize>() >= MAX_PASSING {
            all.clear();
        }
        all.entry(pattern.into()).or_default().push((letters.into(), made.clone()));
    });
    Ok(made)
}

/// Who hears of what is compiled to machine code.
pub fn set_listener(listener: fn(&str)) {
    LISTENER.set(Some(listener));
}

fn tell_jit(letters: &[u8]) {
    if letters.contains(&b'j')
        && let Some(listener) = LISTENER.get()
    {
        listener("pcre2 JIT compiled successfully");
    }
}

/// For `d`, whose groups are nobody's.
fn compile_longest(pattern: &[u8], options: Options) -> Result<Expression, Fault> {
    use pcre2_sys as pcre2;
    let shown = String::from_utf8_lossy(pattern);
    let said: u32 = [
        (options.caseless, pcre2::PCRE2_CASELESS),
        (options.multi_line, pcre2::PCRE2_MULTILINE),
        (options.dot_all, pcre2::PCRE2_DOTALL),
        (options.extended, pcre2::PCRE2_EXTENDED),
        (options.utf, pcre2::PCRE2_UTF),
        (options.anchored, pcre2::PCRE2_ANCHORED),
        (options.duplicate_names, pcre2::PCRE2_DUPNAMES),
    ]
    .into_iter()
    .filter_map(|(is_said, option)| is_said.then_some(option))
    .sum();
    // Verbs are ASCII, so they are as long in what is shown.
    let verbs = &shown[..leading_verbs(&shown)];
    let known = verbs.replace("(*UTF8)", "(*UTF)");
    let source = [known.as_bytes(), &pattern[verbs.len()..]].concat();
    let dfa = Dfa::new(&source, said, LIMIT.get()).map_err(|mistake| {
        let at = (mistake.offset + verbs.len()).saturating_sub(known.len());
        let rest = pattern.get(at..).map(String::from_utf8_lossy).filter(|rest| !rest.is_empty());
        let rest = rest.map_or_else(String::new, |rest| format!(" at \"{rest}\""));
        Fault(format!("pcre2_compile() failed: {} in \"{shown}\"{rest}", mistake.text))
    })?;
    Ok(Expression {
        engine: Engine::Longest(dfa),
        duplicates: false,
        repeats: false,
        names: Vec::new(),
        check_utf: options.check_utf,
    })
}

fn compile(pattern: &[u8], options: Options) -> Result<Expression, Fault> {
    if options.longest {
        return compile_longest(pattern, options);
    }
    let shown = String::from_utf8_lossy(pattern);
    let source = match std::str::from_utf8(pattern) {
        Ok(source) => source.to_owned(),
        Err(_) if options.utf => return Err(Fault(format!("pcre2_compile() failed: not UTF-8 in \"{shown}\""))),
        Err(_) => escape_bytes(pattern),
    };
    // The library has no options for these: they are said in the pattern, behind what only its beginning may say.
    let (verbs, rest) = source.split_at(leading_verbs(&source));
    let mut prefix = if LIMIT.get() > 0 { format!("(*LIMIT_MATCH={})", LIMIT.get()) } else { String::new() };
    // PCRE's name for it, which PCRE2 has no more.
    prefix += &verbs.replace("(*UTF8)", "(*UTF)");
    if options.duplicate_names {
        prefix += "(?J)";
    }
    // A pattern that says by itself that it has comments may end in one, which would take the bracket with it.
    let may_end_in_comment = !options.extended && rest.contains('#') && rest.contains("(?");
    let suffix = match (options.anchored && !may_end_in_comment, options.extended) {
        (false, _) => "",
        (true, false) => ")",
        (true, true) => "\n)",
    };
    if !suffix.is_empty() {
        prefix += "\\G(?:";
    }
    let regex = RegexBuilder::new()
        .caseless(options.caseless)
        .multi_line(options.multi_line)
        .dotall(options.dot_all)
        .extended(options.extended)
        .utf(options.utf)
        // Compiled code is so much faster that there is no reason to wait for `j`.
        .jit_if_available(true)
        .max_jit_stack_size(JIT_STACK.get())
        .build(&format!("{prefix}{rest}{suffix}"))
        .map_err(|e| explain(&shown, (prefix.len(), verbs.len()), &e))?;
    let names = regex.capture_names().iter().enumerate();
    let names: Vec<(String, usize)> = names.filter_map(|(number, name)| Some((name.clone()?, number))).collect();
    let repeats = names.iter().enumerate().any(|(at, (name, _))| names[..at].iter().any(|(n, _)| n == name));
    let locations = RefCell::new(regex.capture_locations());
    let is_anchored = options.anchored && suffix.is_empty();
    Ok(Expression {
        engine: Engine::Usual { regex, locations, is_anchored },
        repeats,
        names,
        duplicates: options.duplicate_names,
        check_utf: options.check_utf,
    })
}

/// How long what stands at the beginning of a pattern and only there is: `(*UTF)`, `(*LIMIT_MATCH=10)` and the like.
fn leading_verbs(pattern: &str) -> usize {
    const VERBS: [&str; 16] = [
        "UTF",
        "UTF8",
        "UCP",
        "CR",
        "LF",
        "CRLF",
        "ANY",
        "ANYCRLF",
        "NUL",
        "BSR_ANYCRLF",
        "BSR_UNICODE",
        "NO_START_OPT",
        "NO_AUTO_POSSESS",
        "NO_JIT",
        "NOTEMPTY",
        "NO_DOTSTAR_ANCHOR",
    ];
    let mut length = 0;
    while let Some(rest) = pattern[length..].strip_prefix("(*") {
        let Some((verb, _)) = rest.split_once(')') else { break };
        if !(VERBS.contains(&verb) || verb.starts_with("LIMIT_") && verb.contains('=')) {
            break;
        }
        length += verb.len() + "(*)".len();
    }
    length
}

/// A pattern of bytes that are no text, written as text that means the same: the library takes only text.
fn escape_bytes(pattern: &[u8]) -> String {
    let mut text = String::with_capacity(pattern.len() * 2);
    let (mut quoted, mut at) = (false, 0);
    while let Some(&byte) = pattern.get(at) {
        let next = pattern.get(at + 1).copied();
        match (byte, next) {
            (b'\\', Some(b'E')) if quoted => {
                text.push_str("\\E");
                (quoted, at) = (false, at + 1);
            }
            (b'\\', Some(b'Q')) if !quoted => {
                text.push_str("\\Q");
                (quoted, at) = (true, at + 1);
            }
            // A backslash before such a byte means the byte itself.
            (b'\\', Some(0x80..)) if !quoted => {}
            (b'\\', Some(next)) if !quoted => {
                text.extend(['\\', char::from(next)]);
                at += 1;
            }
            (0x80.., _) if quoted => text += &format!("\\E\\x{byte:02x}\\Q"),
            (0x80.., _) => text += &format!("\\x{byte:02x}"),
            _ => text.push(char::from(byte)),
        }
        at += 1;
    }
    text
}

/// What is wrong with a pattern, and where: there is so much in front of it, in place of so much of its own.
fn explain(shown: &str, (prefix, verbs): (usize, usize), error: &pcre2::Error) -> Fault {
    let text = error.to_string();
    let text = text.rsplit(": ").next().unwrap_or(&text).to_owned();
    match error.offset().and_then(|at| shown.get((at + verbs).saturating_sub(prefix)..)).filter(|rest| !rest.is_empty())
    {
        Some(rest) => Fault(format!("pcre2_compile() failed: {text} in \"{shown}\" at \"{rest}\"")),
        None => Fault(format!("pcre2_compile() failed: {text} in \"{shown}\"")),
    }
}

/// PCRE2's number (pcre2unicode(3)) for what is wrong with bytes that begin with a bad character: `length` bytes of it, or it is cut off.
fn utf_error(bytes: &[u8], length: Option<usize>) -> i32 {
    let first = bytes.first().copied().unwrap_or_default();
    let whole = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    match length {
        // PCRE2_ERROR_UTF8_ERR1 to ERR3: so many bytes are missing.
        None => -2 - (whole - bytes.len().min(3) as i32),
        // PCRE2_ERROR_UTF8_ERR20: a character begins with a byte of the middle of one.
        Some(_) if (0x80..0xc0).contains(&first) => -22,
        // PCRE2_ERROR_UTF8_ERR6 and its like: a byte that is none of the middle.
        Some(at) => -7 - at.min(4) as i32,
    }
}

/// A stretch of a subject, unless the group took no part.
pub type Group = Option<(usize, usize)>;

impl Expression {
    /// Matches from a byte on and shows the groups, the whole match first; `None` if there is none.
    ///
    /// # Errors
    /// PCRE2 gave up.
    pub fn exec<T>(
        &self,
        subject: &[u8],
        from: usize,
        show: impl FnOnce(&mut dyn Iterator<Item = Group>) -> T,
    ) -> Result<Option<T>, Fault> {
        if from > subject.len() {
            return Ok(None);
        }
        if self.check_utf
            && let Err(e) = std::str::from_utf8(subject)
        {
            return Err(Fault(format!(
                "pcre_exec() failed: {}",
                utf_error(&subject[e.valid_up_to()..], e.error_len())
            )));
        }
        let failed = |code: i32| Fault(format!("pcre_exec() failed: {code}"));
        match &self.engine {
            Engine::Usual { regex, locations, is_anchored } => {
                let mut locations = locations.borrow_mut();
                match regex.captures_read_at(&mut locations, subject, from) {
                    Ok(None) => Ok(None),
                    Ok(Some(found)) if *is_anchored && found.start() != from => Ok(None),
                    Ok(Some(_)) => Ok(Some(show(&mut (0..regex.captures_len()).map(|n| locations.get(n))))),
                    Err(e) => Err(failed(e.code())),
                }
            }
            Engine::Longest(dfa) => {
                let found = dfa.longest(subject, from).map_err(failed)?;
                Ok(found.map(|whole| show(&mut std::iter::once(Some(whole)))))
            }
        }
    }

    /// Number of groups, without the whole match.
    pub fn groups(&self) -> usize {
        match &self.engine {
            Engine::Usual { regex, .. } => regex.captures_len() - 1,
            Engine::Longest(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(pattern: &str, letters: &str, subject: &str, from: usize) -> Option<Vec<Group>> {
        let expression = find(pattern.as_bytes(), letters.as_bytes()).ok()?;
        expression.exec(subject.as_bytes(), from, |groups| groups.collect()).ok()?
    }

    #[test]
    fn groups_that_take_no_part_are_none() {
        assert_eq!(groups("(a)|(b)", "jo", "xb", 0), Some(vec![Some((1, 2)), None, Some((1, 2))]));
        assert_eq!(groups("A", "i", "xa", 0), Some(vec![Some((1, 2))]));
        assert_eq!(groups("a", "a", "xa", 0), None);
        assert_eq!(groups("a", "a", "xa", 1), Some(vec![Some((1, 2))]));
    }

    /// What letters say is no part of what the pattern means by itself.
    #[test]
    fn letters_leave_comments_and_verbs_alone() {
        for (pattern, letters) in [
            ("abc # comment", "ax"),
            ("(?x)abc # comment", "a"),
            ("(*UTF8)abc", "a"),
            ("(*UTF)(*UCP)abc|x", "aD"),
            ("ab[#]?c|abc", "a"),
        ] {
            assert_eq!(groups(pattern, letters, "abcabc", 3).map(|g| g[0]), Some(Some((3, 6))), "{pattern} {letters}");
            assert_eq!(groups(pattern, letters, "ab abc", 2), None, "{pattern} {letters}");
        }
        let refused = find(b"(*UTF)ab(", b"aD").err().expect("a bracket is open");
        assert!(refused.0.contains("in \"(*UTF)ab(\"") && !refused.0.contains(" at \"(*"), "{}", refused.0);
    }

    #[test]
    fn the_longest_match_has_no_groups() {
        assert_eq!(groups("(foo|foobar)", "d", "a foobar", 0), Some(vec![Some((2, 8))]));
        assert_eq!(groups("(foo|foobar)", "", "a foobar", 0).map(|g| g[0]), Some(Some((2, 5))));
        assert_eq!(groups("(?<a>b)|B+", "dijo", "abBB", 0), Some(vec![Some((1, 4))]));
        assert_eq!(groups("a", "da", "ba", 0), None);
        assert_eq!(groups("(*UTF8).", "d", "\u{4f60}", 0), Some(vec![Some((0, 3))]));
        assert_eq!(groups("$", "d", "", 0), Some(vec![Some((0, 0))]));
        let failed = |pattern: &str| find(pattern.as_bytes(), b"d").err().map(|e| e.0);
        assert_eq!(failed("(a"), Some("pcre2_compile() failed: missing closing parenthesis in \"(a\"".to_owned()));
        // PCRE2_ERROR_DFA_UITEM: a group that is named again is nothing for this way.
        let backward = find(b"(a)\\1", b"d").expect("it is well formed");
        assert_eq!(backward.exec(b"aa", 0, |_| ()).expect_err("it cannot be matched").0, "pcre_exec() failed: -42");
    }

    #[test]
    fn bad_utf8_has_pcre2_s_number() {
        let cut = find("你.".as_bytes(), b"u").expect("it is well formed");
        let number = |subject: &[u8]| cut.exec(subject, 0, |_| ()).expect_err("it is no UTF-8").0;
        assert_eq!(number(b"\xe4\xbd\xa0\xe5"), "pcre_exec() failed: -4");
        assert_eq!(number(b"\xe4\xbd\xa0\xe5\xa5"), "pcre_exec() failed: -3");
        assert_eq!(number(b"\x80"), "pcre_exec() failed: -22");
    }

    #[test]
    fn patterns_of_bytes_that_are_no_text_match_bytes() {
        let found = |pattern: &[u8], subject: &[u8]| {
            let expression = find(pattern, b"").expect("it is well formed");
            expression.exec(subject, 0, |groups| groups.collect::<Vec<Group>>()[0]).expect("it runs")
        };
        assert_eq!(found(b"[\x80-\xff]+", b"ab\xe4\xbdc"), Some(Some((2, 4))));
        assert_eq!(found(b"\\\xe4\\.", b".\xe4."), Some(Some((1, 3))));
        assert_eq!(found(b"\\Q.\xff+\\E+", b"a\xff+.\xff++"), Some(Some((3, 7))));
        assert_eq!(found(b"\\Q.\xff+\\E+", b"a\xff."), None);
        assert!(find(b"[\x80-\xff]", b"u").is_err_and(|e| e.0.contains("not UTF-8")));
    }

    #[test]
    fn passing_expressions_take_no_place_of_those_that_stay() {
        configure(0, 1);
        for number in 0..2 * MAX_PASSING {
            assert!(find(format!("passing {number}").as_bytes(), b"").is_ok());
            assert!(PASSING.with_borrow(|all| all.len() <= MAX_PASSING));
        }
        let stays = find(b"stays", b"jo").expect("it is well formed");
        assert!(Rc::ptr_eq(&stays, &find(b"stays", b"jo").expect("it is well formed")));
        let second = find(b"second", b"o").expect("it is well formed");
        assert!(!Rc::ptr_eq(&second, &find(b"second", b"o").expect("it is well formed")));
        configure(0, 1);
        assert!(!Rc::ptr_eq(&stays, &find(b"stays", b"jo").expect("it is well formed")));
    }

    #[test]
    fn compiled_expressions_have_the_stack_that_a_program_asks_for() {
        let mut subject = vec![b'a'; 100_000];
        subject.push(b'c');
        let run = || find(b"(?:(a)|b)*c", b"jo").expect("it is well formed").exec(&subject, 0, |_| ());
        configure(0, MAX_ENTRIES);
        // PCRE2_ERROR_JIT_STACKLIMIT
        assert_eq!(run().map_err(|e| e.0), Err("pcre_exec() failed: -46".to_owned()));
        assert!(set_jit_stack(1e6).is_err_and(|text| text.contains("not allowed")) && !is_empty());
        configure(0, MAX_ENTRIES);
        assert_eq!(set_jit_stack(64e6), Ok(()));
        assert!(run().is_ok_and(|found| found.is_some()));
        configure(0, MAX_ENTRIES);
        assert!(run().is_err(), "another configuration has not asked for it");
    }

    #[test]
    fn mistakes_are_explained() {
        assert!(find(b"(a", b"").is_err_and(|e| e.0.contains("in \"(a\"")));
        assert_eq!(Options::parse(b"jq").err(), Some(Fault("unknown flag \"q\" (flags \"jq\")".to_owned())));
    }
}
