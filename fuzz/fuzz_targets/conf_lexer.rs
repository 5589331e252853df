//! Configuration text of any bytes: what is wrong can be shown, and what is right reads back the same after writing.
#![no_main]

use conf::Node;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (tree, mut problems) = conf::parse(data);
    tree.sort(&mut problems);
    for problem in &problems {
        problem.render_line(&tree.sources);
        problem.render_excerpt(&tree.sources);
    }
    let (again, more) = conf::parse(&conf::tree::write(&tree.nodes));
    // Escaping may make a word longer than what is read.
    if more.is_empty() {
        assert!(same(&tree.nodes, &again.nodes));
    }
});

fn same(a: &[Node], b: &[Node]) -> bool {
    let words = |n: &Node| (n.name.text.clone(), n.args.iter().map(|w| w.text.clone()).collect::<Vec<_>>());
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| words(a) == words(b) && same(a.children(), b.children()))
}
