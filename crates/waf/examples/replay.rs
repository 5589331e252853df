//! What each request of a folder costs with the Core Rule Set at paranoia 1: `cargo run --release -p waf --example replay FOLDER...`. The folders are what
//! the fuzz target `waf_request` has found, or any requests, one a file. Milliseconds of CPU time, the best of three; the dearest ten are printed.

mod cpu;
#[path = "../tests/crs/head.rs"]
mod head;
#[path = "../tests/crs/module.rs"]
#[allow(dead_code, reason = "the tests ask for more of it")]
mod module;
#[path = "../tests/crs/wild.rs"]
mod wild;

use cpu::cpu_ns;
use std::sync::Arc;
use waf::{Now, Transaction};

fn main() {
    let Some(set) = module::folder() else { return };
    let rules = Arc::new(module::rules(&set, "SecRuleEngine On"));
    let mut transaction = Transaction::new(rules.clone(), None, Now::default());
    let mut costs = Vec::new();
    for folder in std::env::args().skip(1) {
        for file in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = file.expect("the folder can be read").path();
            let bytes = std::fs::read(&path).expect("the request can be read");
            let mut best = u64::MAX;
            for _ in 0..4 {
                let began = cpu_ns();
                wild::judge(&rules, &mut transaction, &bytes);
                best = best.min(cpu_ns() - began);
            }
            let status = transaction.intervention().map(|i| i.status);
            costs.push((best, transaction.work(), bytes.len(), status, path));
        }
    }
    costs.sort_by_key(|c| std::cmp::Reverse(c.0));
    println!("{} requests", costs.len());
    for (ns, work, length, status, path) in costs.iter().take(10) {
        println!("{:8.3} ms  {length:>6} bytes  work {work:>10}  {status:?}  {}", *ns as f64 / 1e6, path.display());
    }
}
