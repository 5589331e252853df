//! A request of any bytes under the Core Rule Set at paranoia 1: nothing panics. Units that need more work than those before count as new to libFuzzer, so
//! that a run climbs towards the dearest request: `cargo run --release -p waf --example replay fuzz/corpus/waf_request` says what they cost.
#![no_main]

#[path = "../../crates/waf/tests/crs/head.rs"]
mod head;
#[path = "../../crates/waf/tests/crs/module.rs"]
#[allow(dead_code)]
mod module;
#[path = "../../crates/waf/tests/crs/wild.rs"]
mod wild;

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use waf::{Now, Rules, Transaction};

/// Steps between a work and its double.
const STEPS: f64 = 8.0;

/// One counter for each amount of work: libFuzzer takes those in this section for coverage (LLVM, "libFuzzer", extra counters).
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static REACHED: [AtomicU8; 512] = [const { AtomicU8::new(0) }; 512];

thread_local! {
    static JUDGE: RefCell<Option<(Arc<Rules>, Transaction)>> = RefCell::new(module::folder().map(|folder| {
        let rules = Arc::new(module::rules(&folder, "SecRuleEngine On"));
        let transaction = Transaction::new(rules.clone(), None, Now::default());
        (rules, transaction)
    }));
}

fuzz_target!(|data: &[u8]| {
    JUDGE.with_borrow_mut(|judge| {
        let Some((rules, transaction)) = judge else { return };
        wild::judge(rules, transaction, data);
        let step = (transaction.work().max(1) as f64).log2() * STEPS;
        if let Some(counter) = REACHED.get(step as usize) {
            counter.store(1, Ordering::Relaxed);
        }
    });
});
