//! How much of everything a rule set and a request may take. Each limit is a constant with its reason; what an operator may set
//! himself (`SecRequestBodyLimit` and the like) is in [`crate::settings`] and is cut to these.

/// Files that `Include` may reach from one another. A file that includes itself ends here.
pub const MAX_INCLUDE_DEPTH: usize = 16;
/// Files of one rule set. The Core Rule Set has 30.
pub const MAX_FILES: usize = 4_096;
/// Bytes of one directive with its continued lines. The longest of the Core Rule Set has 12 kB.
pub const MAX_DIRECTIVE_BYTES: usize = 1 << 20;
/// Rules of one set, links of chains not counted. The Core Rule Set has 700.
pub const MAX_RULES: usize = 65_535;
/// Rules that one chain may link.
pub const MAX_CHAIN: usize = 64;
/// Problems that are collected before reading gives up.
pub const MAX_PROBLEMS: usize = 100;

/// Steps that PCRE2 may try from one place of a value. It counts anew at every place, so that a long value may cost many times
/// this; ModSecurity recommends 1,000.
pub const PCRE_MATCH_LIMIT: u32 = 2_000;
/// Expressions that the linear engine may judge instead in one transaction before it is refused.
pub const MAX_SLOW: u32 = 64;
/// Memory that PCRE2's compiled code may use as its stack, in bytes, for each transaction that is worked on.
pub const PCRE_STACK_BYTES: usize = 1 << 20;
/// Values longer than this are given to the linear engine at once: PCRE2's steps at each of so many places are milliseconds.
pub const LONG_VALUE_BYTES: usize = 256;
/// Bytes that PCRE2 may look through in one transaction, one for each expression that is asked of each. The linear engine gets
/// the rest: many short values cost no more than a long one.
pub const MAX_BACKTRACKED_BYTES: u64 = 1 << 16;
/// Bytes that the automaton of the second, linear engine may have for one pattern.
pub const LINEAR_SIZE_BYTES: usize = 1 << 22;
/// Bytes that its states may take for each thread that uses it. They are made while values are looked through; with a quarter of this, prose drives the
/// dearest expressions out of their tables, and 64 kB of it cost five times as much.
pub const LINEAR_CACHE_BYTES: usize = 1 << 20;
/// Bytes of a value that libinjection looks at for SQL, after what it folds is left out of longer ones. It looks each word up in its list: 64 kB of `a=` cost it
/// 35 ms. A value that needs more is not decided and counts as an injection.
pub const MAX_INJECTION_BYTES: usize = 4_096;
/// Bytes of a long word that libinjection is given from its beginning. Its keywords have 31 at most.
pub const MAX_WORD_BYTES: usize = 64;
/// And from its end, where three names of 64 bytes in backticks may stand behind a keyword.
pub const MAX_WORD_END_BYTES: usize = 256;
/// Full stops (or backticks) of one word that libinjection is given.
pub const MAX_WORD_DOTS: usize = 32;
/// Work that one transaction may cost without a body: bytes that transformations, searches for literals and operators looked at, one for each. One that
/// needs more is given up, see [`crate::Fault::TooExpensive`].
pub const WORK: u64 = 1 << 22;
/// And for each byte of its bodies that rules may look at, which the operator's limits have let in (`SecRequestBodyNoFilesLimit`). With the Core Rule Set prose needs 100, forms
/// that are made of what attacks are made of 72 (they are longer by what is escaped).
pub const WORK_PER_BODY_BYTE: u64 = 160;
/// And altogether.
pub const MAX_WORK: u64 = 1 << 28;
/// Transformations of one rule.
pub const MAX_TRANSFORMS: usize = 64;
/// Expressions that may run out of steps in one transaction, and that nothing else can judge, before it is refused.
pub const MAX_EXHAUSTED: u32 = 4;

/// Values of one collection (arguments, headers, parts). More are counted as an error of the body, or dropped with
/// `INBOUND_DATA_ERROR` set.
pub const MAX_VALUES: usize = 10_000;
/// Bytes that the texts of one transaction may have together, request and answer with everything that is derived from them.
pub const MAX_TEXT_BYTES: usize = 1 << 28;
/// Names of `TX` that are made up while a transaction runs (`setvar:tx.a_%{...}`).
pub const MAX_TX_NAMES: usize = 20_000;
/// Matches that a transaction remembers for the logs.
pub const MAX_MATCHES: usize = 1_000;
/// Matches that `MATCHED_VARS` holds for one rule.
pub const MAX_MATCHED_VARS: usize = 1_000;
/// Bytes of one text after its macros are expanded: what `msg`, `logdata`, `setvar` make.
pub const MAX_EXPANDED_BYTES: usize = 1 << 16;
/// Bytes of a body that the audit log shows.
pub const MAX_AUDITED_BYTES: usize = 1 << 16;
/// Bytes of a value that a log line shows.
pub const MAX_LOGGED_BYTES: usize = 512;

/// Bytes of a request body if `SecRequestBodyLimit` says nothing, as in ModSecurity's recommended configuration.
pub const REQUEST_BODY_BYTES: usize = 13_107_200;
/// Bytes of a response body if `SecResponseBodyLimit` says nothing.
pub const RESPONSE_BODY_BYTES: usize = 524_288;
/// The most that either limit may be set to: offsets are 32 bits wide and a body is held in memory.
pub const MAX_BODY_BYTES: usize = 1 << 27;
/// Arguments of a request if `SecArgumentsLimit` says nothing.
pub const ARGUMENTS: usize = 1_000;
/// How deep JSON may be nested, whatever `SecRequestBodyJsonDepthLimit` says: the parser is recursive.
pub const MAX_JSON_DEPTH: usize = 120;
/// Bytes that the names of JSON's values, or of XML's elements as arguments, may have together, beside as many as the text has: each one's is the path to it, so
/// that one long name would be kept a thousand times.
pub const MAX_PATH_BYTES: usize = 1 << 20;
/// How deep XML may be nested.
pub const MAX_XML_DEPTH: usize = 512;
/// Elements, texts and attributes of one XML document.
pub const MAX_XML_NODES: usize = 100_000;
/// Parts of one multipart body.
pub const MAX_PARTS: usize = 1_000;
/// Bytes of the header lines of one part.
pub const MAX_PART_HEADER_BYTES: usize = 16_384;
/// Bytes of a multipart boundary: RFC 2046 section 5.1.1.
pub const MAX_BOUNDARY_BYTES: usize = 70;

/// Values that a transaction remembers from one request to the next, and how long each may be: with two bits for each rule of the Core Rule Set, half a
/// megabyte together.
pub const MAX_MEMO_VALUES: usize = 1_024;
/// Bytes of a remembered value.
pub const MAX_MEMO_VALUE_BYTES: usize = 384;

/// Bytes of memory that a transaction keeps from one request to the next, beside what it remembers of values. Servers keep many transactions, and a large
/// request takes some hundred bytes for each of its values.
pub const KEPT_BYTES: usize = 1 << 20;

/// Records that the store in memory keeps for all collections together.
pub const MAX_RECORDS: usize = 100_000;
/// Bytes of them together: a thousand for each address of a crowd.
pub const MAX_STORE_BYTES: usize = 100 << 20;
/// Variables of one stored record.
pub const MAX_RECORD_VARIABLES: usize = 256;
/// Bytes of a stored name, key or value.
pub const MAX_STORED_BYTES: usize = 4_096;
