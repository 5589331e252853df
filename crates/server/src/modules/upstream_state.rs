//! The file of an upstream's `state`: `server` lines and nothing else. Pure: what the lines mean is `upstream_server`'s. Fuzzed as it
//! stands here (`fuzz/fuzz_targets/upstream_state.rs`).

use conf::{Body, Node};

/// The `server` lines of a state file; `most`: how many there may be.
///
/// # Errors
/// What is wrong, for the error log.
pub fn lines_of(text: &[u8], most: usize) -> Result<Vec<Node>, String> {
    let (tree, problems) = conf::parse(&[b"http { upstream state {\n", text, b"\n} }"].concat());
    if let Some(problem) = problems.iter().find(|p| p.level.is_fatal()) {
        return Err(problem.message.clone());
    }
    let [http] = tree.nodes.as_slice() else { return Err("unexpected \"}\"".to_owned()) };
    let [upstream] = http.children() else { return Err("unexpected \"}\"".to_owned()) };
    let Body::Block(lines) = &upstream.body else { return Err("unexpected \"}\"".to_owned()) };
    if let Some(other) = lines.iter().find(|l| l.name != "server") {
        return Err(format!("\"{}\" directive is not allowed", other.name.as_str()));
    }
    if lines.len() > most {
        return Err(format!("more than {most} servers"));
    }
    Ok(lines.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_has_server_lines_only() {
        let lines = lines_of(b"server 127.0.0.1:1 weight=2;\nserver unix:/x down;", 2).expect("two lines");
        assert_eq!(lines.iter().map(|l| l.args.len()).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(lines_of(b"", 0).expect("none is fine").len(), 0);
        for bad in ["keepalive 1;", "server", "} upstream y {", "server a; } } http {"] {
            assert!(lines_of(bad.as_bytes(), 9).is_err(), "{bad}");
        }
    }
}
