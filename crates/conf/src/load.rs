//! From files to one tree: statements into nodes, `include` followed wherever it stands, all errors collected.

use crate::diagnostic::Problem;
use crate::lexer::{Ended, Lexer, Resume};
use crate::source::{Files, has_wildcard};
use crate::tree::{Body, FileId, Node, Source, Tree, Word};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How deep includes may nest: an include of itself ends here.
pub const MAX_INCLUDE_DEPTH: usize = 64;
/// How deep blocks may nest.
pub const MAX_NESTING: usize = 128;
/// How many files a configuration may be read from.
pub const MAX_SOURCES: usize = 100_000;
/// How many problems are collected.
pub const MAX_PROBLEMS: usize = 100;

/// Reads a configuration. `conf_prefix` is what relative includes are relative to; `globals` is the text of `-g`, read
/// before the file. Every problem that can be found is; the first is the one nginx would stop at.
pub fn load(files: &dyn Files, main: &Path, conf_prefix: &Path, globals: &[u8]) -> (Tree, Vec<Problem>) {
    let mut loader =
        Loader { files, conf_prefix, tree: Tree { nodes: Vec::new(), sources: Vec::new() }, problems: Vec::new() };
    let mut nodes = Vec::new();
    if !globals.is_empty() {
        let file = loader.add_source(Path::new(""), globals.into(), None, true);
        let mut lexer = Lexer::of_command_line(globals, file);
        loader.level(&mut lexer, &mut nodes, 0, 0, true);
    }
    loader.file(main, None, &mut nodes, 0, 0);
    loader.tree.nodes = nodes;
    let Loader { tree, mut problems, .. } = loader;
    tree.sort(&mut problems);
    (tree, problems)
}

struct Loader<'f> {
    files: &'f dyn Files,
    conf_prefix: &'f Path,
    tree: Tree,
    problems: Vec<Problem>,
}

impl Loader<'_> {
    fn add_source(&mut self, path: &Path, text: Arc<[u8]>, at: Option<&Word>, command_line: bool) -> FileId {
        let id = FileId(self.tree.sources.len() as u32);
        let included_at = at.map(|w| w.span);
        self.tree.sources.push(Source { path: path.to_owned(), text, included_at, command_line });
        id
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn file(&mut self, path: &Path, at: Option<&Word>, nodes: &mut Vec<Node>, depth: usize, nesting: usize) {
        if depth > MAX_INCLUDE_DEPTH || self.tree.sources.len() >= MAX_SOURCES {
            let message = format!("too many nested includes of \"{}\"", path.display());
            self.problem(
                at.map_or_else(|| Problem::bare(message.clone()), |w| Problem::emerg(w.span, message.clone())),
            );
            return;
        }
        let text: Arc<[u8]> = match self.files.read(path) {
            Ok(text) => text.into(),
            Err(e) => {
                let code = e.raw_os_error().unwrap_or(0);
                let reason = e.to_string();
                let reason = reason.split(" (os error").next().unwrap_or_default();
                let message = format!("open() \"{}\" failed ({code}: {reason})", path.display());
                self.problem(match at {
                    Some(w) => Problem::emerg(w.span, message),
                    None => Problem::bare(message),
                });
                return;
            }
        };
        let file = self.add_source(path, text.clone(), at, false);
        let mut lexer = Lexer::new(&text, file);
        self.level(&mut lexer, nodes, depth, nesting, true);
    }

    /// Reads statements into `nodes` up to the end of the block, or of the text where `outermost`. Gives the end.
    fn level(
        &mut self,
        lexer: &mut Lexer<'_>,
        nodes: &mut Vec<Node>,
        depth: usize,
        nesting: usize,
        outermost: bool,
    ) -> crate::tree::Span {
        loop {
            let statement = match lexer.statement() {
                Ok(s) => s,
                Err(error) => {
                    self.problem(error.problem);
                    match error.resume {
                        Resume::Here | Resume::Statement => {
                            if error.resume == Resume::Statement {
                                let _ = lexer.statement();
                            }
                            continue;
                        }
                        Resume::Block => {
                            let mut lost = Vec::new();
                            self.level(lexer, &mut lost, depth, nesting + 1, false);
                            continue;
                        }
                        Resume::Stop => continue,
                    }
                }
            };
            match statement.ended {
                Ended::File => {
                    if !outermost && !lexer.stopped() {
                        let message = "unexpected end of file, expecting \"}\"";
                        self.problem(Problem::emerg(statement.end, message));
                    }
                    return statement.end;
                }
                Ended::BlockEnd if outermost => {
                    self.problem(Problem::emerg(statement.end, "unexpected \"}\""));
                }
                Ended::BlockEnd => return statement.end,
                Ended::Semicolon | Ended::BlockStart => {
                    let mut words = statement.words;
                    let name = words.remove(0);
                    let mut node = Node { name, args: words, body: Body::None, close: statement.end };
                    if statement.ended == Ended::BlockStart {
                        self.body(lexer, &mut node, depth, nesting);
                    } else if node.name == "include" {
                        self.include(&node, nodes, depth, nesting);
                        continue;
                    }
                    nodes.push(node);
                }
            }
        }
    }

    fn body(&mut self, lexer: &mut Lexer<'_>, node: &mut Node, depth: usize, nesting: usize) {
        if node.name.text.ends_with(b"_by_lua_block") {
            match lexer.raw_block() {
                Ok((text, close)) => {
                    node.body = Body::Raw(text.to_vec());
                    node.close = close;
                }
                Err(error) => self.problem(error.problem),
            }
            return;
        }
        let mut children = Vec::new();
        if nesting >= MAX_NESTING {
            self.problem(Problem::emerg(node.name.span, "blocks are nested too deep"));
            skip_block(lexer);
        } else {
            node.close = self.level(lexer, &mut children, depth, nesting + 1, false);
        }
        node.body = Body::Block(children);
    }

    fn include(&mut self, node: &Node, nodes: &mut Vec<Node>, depth: usize, nesting: usize) {
        let [word] = node.args.as_slice() else {
            self.problem(node.problem("invalid number of arguments in \"include\" directive".to_owned()));
            return;
        };
        let path = self.conf_prefix.join(std::ffi::OsStr::from_bytes(&word.text));
        if !has_wildcard(&word.text) {
            self.file(&path, Some(word), nodes, depth + 1, nesting);
            return;
        }
        match self.files.glob(&path) {
            Ok(paths) => paths.iter().for_each(|p| self.file(p, Some(word), nodes, depth + 1, nesting)),
            Err(e) => self.problem(node.problem(format!("glob() \"{}\" failed ({e})", path.display()))),
        }
    }
}

/// Reads past a block without keeping anything; its depth is counted, not stacked.
fn skip_block(lexer: &mut Lexer<'_>) {
    let mut open = 1usize;
    while open > 0 {
        match lexer.statement().map(|s| s.ended) {
            Ok(Ended::BlockStart) => open += 1,
            Ok(Ended::BlockEnd) => open -= 1,
            Ok(Ended::File) => return,
            Ok(Ended::Semicolon) => {}
            Err(e) if e.resume == Resume::Block => open += 1,
            Err(_) => {}
        }
    }
}
