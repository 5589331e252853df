//! What a request can cost at most with the Core Rule Set at paranoia 1: `cargo run --release -p waf --example worst [RULES_FOLDER [BYTES]]`.
//! Forms whose values repeat one piece, in one field or in many, and mixtures of all pieces; the worst are printed, in milliseconds (the best of three) and
//! with their work ([`Transaction::work`]). `first`: the expressions that needed it were compiled for the linear engine meanwhile, which happens once for a
//! rule set.

#[path = "../tests/crs/benign.rs"]
#[allow(dead_code, reason = "the tests ask for more of it")]
mod benign;
mod cpu;
#[path = "../tests/crs/head.rs"]
mod head;
#[path = "../tests/crs/pieces.rs"]
mod pieces;
#[path = "../tests/crs/wild.rs"]
mod wild;

use cpu::cpu_ns;
use pieces::Shape;
use std::path::PathBuf;
use std::sync::Arc;
use waf::{Disk, Now, Rules, Source, Transaction};

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
    let mut costs: Vec<_> = Shape::all()
        .map(|shape| {
            let form = shape.form(bytes);
            let mut run = || judge(&rules, &mut transaction, &form);
            let (first, again) = (run(), (0..3).map(|_| run()).fold(f64::MAX, f64::min));
            let status = transaction.intervention().map(|i| i.status);
            (again, first, shape, transaction.work(), transaction.fault(), status)
        })
        .collect();
    costs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let first = costs.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are pieces");
    let form = benign::Corpus::new(1).with_commands().long_form(bytes);
    let prose = (0..4).map(|_| judge(&rules, &mut transaction, &form)).fold(f64::MAX, f64::min);
    println!("{prose:8.2} ms, work {} for so much prose {:?}", transaction.work(), transaction.fault());
    println!("{bytes} bytes in {} forms; dearest first run: {:.1} ms ({:?})", costs.len(), first.1, first.2);
    // Mixtures are dearest by far: those that repeat one piece are shown for themselves.
    for is_mixed in [true, false] {
        let some = costs.iter().filter(|c| matches!(c.2, Shape::Mixed(_)) == is_mixed).take(12);
        for (again, first, shape, work, fault, status) in some {
            println!("{again:8.2} ms  first {first:8.2} ms  work {work:>10}  {shape:?} {fault:?} {status:?}");
        }
    }
}

/// Milliseconds for a form.
fn judge(rules: &Arc<Rules>, t: &mut Transaction, form: &[u8]) -> f64 {
    let head = format!(
        "POST /form HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
        form.len()
    );
    let request = [head.as_bytes(), form].concat();
    let began = cpu_ns();
    wild::judge(rules, t, &request);
    (cpu_ns() - began) as f64 / 1e6
}
