//! What the Core Rule Set costs: `cargo run --release -p waf --example cost [RULES_FOLDER [REQUEST [TIMES [same|fresh]]]]`. Prints the time to load, and
//! the median of microseconds for each request at paranoia 1, for usual requests that match nothing. The folder is that of the Go module's
//! `rules`; without one it is looked for in Go's cache. Instructions for a request: `valgrind --tool=callgrind --toggle-collect='cost::judge*' ...`, and the
//! difference between two numbers of `TIMES`.

mod cpu;

use cpu::cpu_ns;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use waf::{Connection, Disk, Now, Rules, Source, Transaction};

type Headers = &'static [(&'static str, &'static str)];

const BROWSER: Headers = &[
    ("Host", "www.example.org"),
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("Accept-Language", "en-US,en;q=0.5"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Referer", "https://www.example.org/products/list"),
    ("Cookie", "session=7f3a9c0e4b1d4f6a8e2c5b7d9f0a1c3e; theme=dark; _ga=GA1.2.1234567890.1700000000"),
    ("Connection", "keep-alive"),
    ("Upgrade-Insecure-Requests", "1"),
];

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// Kilobytes of memory that this process has.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
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
    let text = "Include @coraza.conf-recommended\nSecRuleEngine On\nSecResponseBodyAccess Off\n\
        Include @crs-setup.conf.example\nInclude @owasp_crs/*.conf\n";
    let name = folder.join("main.conf");
    let source = Source { name: &name.to_string_lossy(), text: text.as_bytes() };
    let began = cpu_ns();
    let rules = match Rules::load(&[source], &Disk) {
        Ok(rules) => Arc::new(rules),
        Err(problems) => {
            problems.iter().for_each(|p| eprintln!("{p}"));
            return;
        }
    };
    println!("load: {} ms", (cpu_ns() - began) / 1_000_000);
    let began = (cpu_ns(), resident_kb());
    rules.prepare(&AtomicUsize::new(0));
    println!(
        "and for long values: {} ms, {} kB",
        (cpu_ns() - began.0) / 1_000_000,
        resident_kb().saturating_sub(began.1)
    );
    let (with, all) = rules.prefiltered();
    println!("{} rules, {with} of {all} operators with a prefilter", rules.len());

    let post: String =
        (0..24).map(|n| format!("field_{n}=some+ordinary+text+that+a+person+types+into+a+form+number+{n}&")).collect();
    measure(&rules, "GET /", "GET", "/", &[], b"");
    measure(&rules, "GET of a file", "GET", "/file.html", &[], b"");
    measure(&rules, "GET with 3 arguments", "GET", "/products/list?category=shoes&page=2&sort=price_asc", &[], b"");
    let form: Headers = &[("Content-Type", "application/x-www-form-urlencoded")];
    measure(&rules, &format!("POST of {} bytes, 24 fields", post.len()), "POST", "/form", form, post.as_bytes());
    let long = format!("title=A+note&text={}", "The+quick+brown+fox+jumps+over+the+lazy+dog.+".repeat(44));
    measure(&rules, &format!("POST of {} bytes, 2 fields", long.len()), "POST", "/form", form, long.as_bytes());
}

/// One request. Not inlined, so that callgrind can count it alone.
#[inline(never)]
fn judge(
    t: &mut Transaction,
    rules: &Arc<Rules>,
    id: &str,
    line: [&str; 2],
    headers: &[(&[u8], &[u8])],
    body: &[u8],
) -> u64 {
    let connection = Connection { client: Some(CLIENT), client_port: 40_000, server: Some(CLIENT), server_port: 443 };
    let began = cpu_ns();
    t.recycle(rules.clone(), None, Now { epoch_ms: 1_700_000_000_000, utc_offset_s: 0 });
    t.unique_id(id.as_bytes());
    t.connection(&connection);
    t.uri(line[0].as_bytes(), line[1].as_bytes(), b"HTTP/1.1");
    t.request_headers(headers.iter().copied());
    t.request_body(body);
    t.request_body_end();
    t.response_headers(200, b"HTTP/1.1", [(&b"Content-Type"[..], &b"text/html"[..])]);
    t.response_body_end();
    t.logging(200);
    cpu_ns() - began
}

fn measure(rules: &Arc<Rules>, name: &str, method: &str, uri: &str, more: Headers, body: &[u8]) {
    let length = body.len().to_string();
    let mut transaction = Transaction::new(rules.clone(), None, Now::default());
    if std::env::args().nth(2).is_some_and(|only| !name.starts_with(&only)) {
        return;
    }
    // Each request like the one before, or with a number in every value, so that nothing is remembered of any.
    let mut serial = 0_u32;
    let mut run = |fresh: bool| {
        serial += 1;
        let mark = if fresh { format!("{serial}") } else { String::new() };
        let uri = if uri.contains('=') { format!("{uri}{mark}") } else { uri.to_owned() };
        let values: Vec<String> = BROWSER.iter().chain(more).map(|(_, v)| format!("{v}{mark}")).collect();
        let names = BROWSER.iter().chain(more).map(|(n, _)| n.as_bytes());
        let mut headers: Vec<(&[u8], &[u8])> = names.zip(values.iter().map(String::as_bytes)).collect();
        // Short and of few values everywhere.
        headers[0].1 = b"www.example.org";
        headers[7].1 = b"keep-alive";
        let text = String::from_utf8_lossy(body).replace('+', &format!("+{mark}"));
        if !body.is_empty() {
            headers.push((b"Content-Length", length.as_bytes()));
        }
        if !more.is_empty() {
            headers[9].1 = more[0].1.as_bytes();
        }
        // Every request has a name of its own.
        let id = format!("f0e1d2c3b4a59687f0e1d2c3{serial:08x}");
        let ns = judge(&mut transaction, rules, &id, [method, &uri], &headers, text.as_bytes());
        assert!(transaction.intervention().is_none() && transaction.fault().is_none(), "{:?}", transaction.matches());
        ns
    };
    let count = std::env::args().nth(3).and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let only = std::env::args().nth(4);
    let mut median = |fresh: bool| {
        if only.as_ref().is_some_and(|only| (only == "fresh") != fresh) {
            return f64::NAN;
        }
        let mut all: Vec<u64> = (0..count).map(|_| run(fresh)).collect();
        all.sort_unstable();
        all[count / 2] as f64 / 1e3
    };
    println!("{name}: {:.1} us, with values never seen before {:.1} us", median(false), median(true));
}
