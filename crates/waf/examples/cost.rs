//! What the Core Rule Set costs: `cargo run --release -p waf --example cost [RULES_FOLDER [REQUEST [ROUNDS]]]`. Prints the time to load, and
//! microseconds of a processor for each request at paranoia 1, for usual requests that match nothing. The folder is that of the Go module's
//! `rules`; without one it is looked for in Go's cache.

use std::path::PathBuf;
use std::sync::Arc;
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

/// Nanoseconds that this thread has had of a processor: what else runs on the machine does not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
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
    let (with, all) = rules.prefiltered();
    println!(
        "load: {} ms, {} rules, {with} of {all} operators with a prefilter",
        (cpu_ns() - began) / 1_000_000,
        rules.len()
    );

    let post: String =
        (0..24).map(|n| format!("field_{n}=some+ordinary+text+that+a+person+types+into+a+form+number+{n}&")).collect();
    measure(&rules, "GET /", "GET", "/", &[], b"");
    measure(&rules, "GET with 3 arguments", "GET", "/products/list?category=shoes&page=2&sort=price_asc", &[], b"");
    let form: Headers = &[("Content-Type", "application/x-www-form-urlencoded")];
    measure(&rules, &format!("POST of {} bytes, 24 fields", post.len()), "POST", "/form", form, post.as_bytes());
    let long = format!("title=A+note&text={}", "The+quick+brown+fox+jumps+over+the+lazy+dog.+".repeat(44));
    measure(&rules, &format!("POST of {} bytes, 2 fields", long.len()), "POST", "/form", form, long.as_bytes());
}

fn measure(rules: &Arc<Rules>, name: &str, method: &str, uri: &str, more: Headers, body: &[u8]) {
    let length = body.len().to_string();
    let mut headers: Vec<(&[u8], &[u8])> =
        BROWSER.iter().chain(more).map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
    if !body.is_empty() {
        headers.push((b"Content-Length", length.as_bytes()));
    }
    let now = Now { epoch_ms: 1_700_000_000_000, utc_offset_s: 0 };
    let mut transaction = Transaction::new(rules.clone(), None, now);
    let connection = Connection { client: "192.0.2.7".parse().ok(), client_port: 40_000, ..Connection::default() };
    if std::env::args().nth(2).is_some_and(|only| !name.starts_with(&only)) {
        return;
    }
    let mut run = || {
        transaction.recycle(rules.clone(), None, now);
        transaction.unique_id(b"f0e1d2c3b4a59687");
        transaction.connection(&connection);
        transaction.uri(method.as_bytes(), uri.as_bytes(), b"HTTP/1.1");
        transaction.request_headers(headers.iter().copied());
        transaction.request_body(body);
        transaction.request_body_end();
        transaction.response_headers(200, b"HTTP/1.1", [(&b"Content-Type"[..], &b"text/html"[..])]);
        transaction.response_body_end();
        transaction.logging(200);
        assert!(transaction.intervention().is_none() && transaction.fault().is_none(), "{:?}", transaction.matches());
        (transaction.matches().len(), transaction.work())
    };
    let (matches, work) = run();
    // The median of several rounds: what else runs on the machine shows in some of them only.
    let count = std::env::args().nth(3).and_then(|n| n.parse().ok()).unwrap_or(15);
    let mut rounds: Vec<f64> = (0..count)
        .map(|_| {
            const TIMES: u32 = 200;
            let began = cpu_ns();
            for _ in 0..TIMES {
                run();
            }
            (cpu_ns() - began) as f64 / 1e3 / f64::from(TIMES)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{name}: median {:.1} us, least {:.1} us ({matches} matches, {work} bytes looked at)",
        rounds[7], rounds[0]
    );
}
