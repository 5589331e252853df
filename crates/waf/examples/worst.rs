//! What a request can cost at most with the Core Rule Set at paranoia 1: `cargo run --release -p waf --example worst [RULES_FOLDER [BYTES]]`.
//! A form with one value that repeats one piece, for many pieces; the worst are printed, in milliseconds (the best of three). `first`: the expressions
//! that needed it were compiled for the linear engine meanwhile, which happens once for a rule set.

use std::path::PathBuf;
use std::sync::Arc;
use waf::{Connection, Disk, Now, Rules, Source, Transaction};

/// What attacks and expressions are made of.
const PIECES: &[&str] = &[
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

/// Nanoseconds that this thread has had of a processor: what else runs on the machine does not count.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let folder = std::env::args().nth(1).map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join("go/pkg/mod/github.com/corazawaf/coraza-coreruleset/v4@v4.25.0/rules"))
    });
    let Some(folder) = folder.filter(|f| f.is_dir()) else {
        eprintln!("the rules are not here: `.ci/setup peers` fetches them, or name their folder");
        return;
    };
    let bytes: usize = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(65_536);
    let text = "Include @coraza.conf-recommended\nSecRuleEngine On\nInclude @crs-setup.conf.example\nInclude @owasp_crs/*.conf\n";
    let name = folder.join("main.conf");
    let source = Source { name: &name.to_string_lossy(), text: text.as_bytes() };
    let rules = Arc::new(Rules::load(&[source], &Disk).expect("the rules load"));
    let mut transaction = Transaction::new(rules.clone(), None, Now::default());
    let mut costs: Vec<_> = PIECES
        .iter()
        .map(|piece| {
            let mut run = || judge(&rules, &mut transaction, piece, bytes);
            let (first, again) = (run(), (0..3).map(|_| run()).fold(f64::MAX, f64::min));
            (again, first, piece, transaction.fault(), transaction.intervention().map(|i| i.status))
        })
        .collect();
    costs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let first = costs.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are pieces");
    println!("{bytes} bytes of {} pieces; dearest first run: {:.1} ms ({:?})", PIECES.len(), first.1, first.2);
    for (again, first, piece, fault, status) in costs.iter().take(24) {
        println!("{again:8.2} ms  first {first:8.2} ms  {piece:?} {fault:?} {status:?}");
    }
}

fn judge(rules: &Arc<Rules>, t: &mut Transaction, piece: &str, bytes: usize) -> f64 {
    let mut one = Vec::new();
    for byte in piece.bytes() {
        // As a form has it.
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => one.push(byte),
            _ => one.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    let whole = [&b"a="[..], &one.repeat(bytes / piece.len())].concat();
    let began = cpu_ns();
    t.recycle(rules.clone(), None, Now::default());
    t.connection(&Connection { client: "192.0.2.7".parse().ok(), ..Connection::default() });
    t.uri(b"POST", b"/form", b"HTTP/1.1");
    let length = whole.len().to_string();
    t.request_headers([
        (&b"Host"[..], &b"www.example.org"[..]),
        (b"User-Agent", b"Mozilla/5.0"),
        (b"Accept", b"*/*"),
        (b"Content-Type", b"application/x-www-form-urlencoded"),
        (b"Content-Length", length.as_bytes()),
    ]);
    t.request_body(&whole);
    t.request_body_end();
    t.response_headers(200, b"HTTP/1.1", [(&b"Content-Type"[..], &b"text/html"[..])]);
    t.response_body_end();
    t.logging(200);
    (cpu_ns() - began) as f64 / 1e6
}
