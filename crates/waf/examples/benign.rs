//! Writes benign requests, for `perf/waf_benign.py` to send to servers: `cargo run -p waf --example benign [COUNT [plain]] > FILE`. Each has its length before it,
//! four bytes, and is distinct. `plain`: without the words of English that are commands of SQL or of a shell as well.

#[path = "../tests/crs/benign.rs"]
#[allow(dead_code, reason = "the tests ask for more of it")]
mod benign;

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let count: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let plain = std::env::args().nth(2).is_some_and(|word| word == "plain");
    let corpus = benign::Corpus::new(20_261_123);
    let corpus = if plain { corpus } else { corpus.with_commands() };
    let (mut seen, mut out) = (std::collections::HashSet::new(), std::io::stdout().lock());
    for (_, request) in corpus {
        if seen.len() == count {
            break;
        }
        if seen.insert(request.clone()) {
            out.write_all(&(request.len() as u32).to_le_bytes())?;
            out.write_all(&request)?;
        }
    }
    out.flush()
}
