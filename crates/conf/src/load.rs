//! Reads a configuration: text, includes, structure. Collects every problem and goes on at the next `;` or the end of
//! the block, in the order in which nginx comes upon them, so the first problem is the one at which nginx would stop.
//! From: the command line. To: the modules, which find only nodes that are known, in place and of the right form.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostic::{Problem, Severity, errno_text};
use crate::directives::{self, Accepts, Contexts, Inside};
use crate::lexer::{Ended, Lexer, Resume, Statement, SyntaxError};
use crate::source::{self, Bundle, Files};
use crate::tree::{Body, FileId, Node, Source, Span, Tree, Word};

/// Blocks within blocks, over all files. The deepest block nginx knows is the seventh or so, but locations nest freely.
/// Bounds the stack.
pub const MAX_NESTING: usize = 64;
/// Files including files. nginx runs out of descriptors some time after a thousand. Bounds the stack.
pub const MAX_INCLUDE_DEPTH: usize = 32;
/// Readings of files, each counted as often as it is included: ends what includes itself twice.
pub const MAX_INCLUSIONS: usize = 65_536;
/// Bytes of all readings, each counted as often as it is included. Bounds memory.
pub const MAX_TOTAL_BYTES: usize = 512 << 20;
/// Problems that are kept; who has more has a wrong file.
pub const MAX_PROBLEMS: usize = 200;

/// Names with this ending have a body of Lua.
const RAW_SUFFIX: &[u8] = b"_by_lua_block";
/// "Is a directory".
const EISDIR: i32 = 21;

/// Reads `globals` (the text of `-g`), then the file at `main_path`, and everything they include.
///
/// Relative paths in `include` are taken from `conf_prefix`, the folder of the main file. The tree is usable for
/// further checks even if there are problems; whether it may be served is for [`Severity::is_fatal`] to say.
pub fn load(files: &dyn Files, main_path: &Path, conf_prefix: &Path, globals: &[u8]) -> (Tree, Vec<Problem>) {
    load_accepting(files, main_path, conf_prefix, globals, &|_| true)
}

/// The same, where of others' directives only those that `accepts` takes are known.
pub fn load_accepting(
    files: &dyn Files,
    main_path: &Path,
    conf_prefix: &Path,
    globals: &[u8],
    accepts: Accepts,
) -> (Tree, Vec<Problem>) {
    let mut loader = Loader {
        files,
        conf_prefix,
        accepts,
        tree: Tree::default(),
        problems: Vec::new(),
        texts: HashMap::new(),
        total_bytes: 0,
        include_depth: 0,
        nesting: 0,
    };
    let mut main = Section::new(Scope::Directives(Contexts::MAIN));
    if !globals.is_empty() {
        let text: Arc<[u8]> = Arc::from(globals);
        let file = loader.add_source(PathBuf::new(), &text, None, true);
        loader.read(&mut Lexer::of_command_line(&text, file), &mut main, Input::CommandLine);
    }
    loader.read_file(main_path.to_owned(), None, &mut main);
    loader.tree.nodes = main.nodes;
    (loader.tree, loader.problems)
}

/// Reads one text that includes nothing that exists: for embedded configurations and fuzzing.
pub fn parse(text: &[u8]) -> (Tree, Vec<Problem>) {
    let path = Path::new("/nginx.conf");
    let mut bundle = Bundle::default();
    bundle.add_file(path, text);
    load(&bundle, path, Path::new("/"), b"")
}

struct Loader<'f> {
    files: &'f dyn Files,
    conf_prefix: &'f Path,
    accepts: Accepts<'f>,
    tree: Tree,
    problems: Vec<Problem>,
    /// Texts by path: a file included a hundred times is read and kept once.
    texts: HashMap<PathBuf, Arc<[u8]>>,
    total_bytes: usize,
    include_depth: usize,
    nesting: usize,
}

/// The block being read; an included file adds to the same.
struct Section {
    scope: Scope,
    nodes: Vec<Node>,
    /// Flags seen, each of which may stand once.
    flags: Vec<&'static str>,
}

impl Section {
    fn new(scope: Scope) -> Section {
        Section { scope, nodes: Vec::new(), flags: Vec::new() }
    }
}

#[derive(Clone, Copy)]
enum Scope {
    Directives(Contexts),
    Rows { include: bool, nested: bool },
}

/// What is being read up to its end.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    CommandLine,
    File,
    Block,
}

impl Loader<'_> {
    /// Reads statements into the section up to the end of the input; the place of the last byte.
    fn read(&mut self, lexer: &mut Lexer, section: &mut Section, input: Input) -> Span {
        loop {
            match lexer.statement() {
                Err(error) => self.recover(lexer, error),
                Ok(Statement { ended: Ended::BlockEnd, end, .. }) if input == Input::Block => return end,
                Ok(Statement { ended: Ended::BlockEnd, end, .. }) => {
                    self.report(Problem::emerg(end, "unexpected \"}\""))
                }
                Ok(Statement { ended: Ended::File, end, .. }) => {
                    if input == Input::Block && !lexer.stopped() {
                        self.report(Problem::emerg(end, "unexpected end of file, expecting \"}\""));
                        lexer.stop_reading();
                    }
                    return end;
                }
                Ok(Statement { ended: Ended::BlockStart, end, .. }) if input == Input::CommandLine => {
                    self.report(Problem::emerg(end, "block directives are not supported in -g option"));
                    self.skip_block(lexer);
                }
                Ok(statement) => self.statement(lexer, statement, section),
            }
        }
    }

    /// One directive or row, with its block.
    fn statement(&mut self, lexer: &mut Lexer, statement: Statement, section: &mut Section) {
        let opens = statement.ended == Ended::BlockStart;
        let mut words = statement.words.into_iter();
        let name = words.next().expect("a statement that ends in ; or { has a word");
        let raw = opens && name.text.ends_with(RAW_SUFFIX);
        let body = match (opens, raw) {
            (false, _) => Body::None,
            (true, false) => Body::Block(Vec::new()),
            (true, true) => Body::Raw(Vec::new()),
        };
        let node = Node { name, args: words.collect(), body, close: statement.end };
        match section.scope {
            Scope::Rows { include, nested } => self.row(lexer, node, section, include, nested),
            Scope::Directives(current) => self.directive(lexer, node, section, current),
        }
    }

    fn directive(&mut self, lexer: &mut Lexer, mut node: Node, section: &mut Section, current: Contexts) {
        let checked = directives::check_form(&node, current, self.accepts).and_then(|known| {
            if known.flag && section.flags.contains(&known.name) {
                return Err(Problem::duplicate(&node));
            }
            directives::check_flag(&node, known).map(|()| known)
        });
        let is_right = checked.is_ok();
        match checked {
            Err(problem) => self.report(problem),
            Ok(known) if known.flag => section.flags.push(known.name),
            Ok(known) if known.name == "include" => return self.include(&node.args[0], section),
            Ok(_) => {}
        }
        match &node.body {
            Body::None => {}
            Body::Raw(_) => match lexer.raw_block() {
                Ok((text, close)) => (node.body, node.close) = (Body::Raw(text.to_vec()), close),
                Err(error) => self.recover(lexer, error),
            },
            Body::Block(_) => match inner_scope(&node, current) {
                Some(scope) => (node.body, node.close) = self.block(lexer, scope),
                None => self.skip_block(lexer),
            },
        }
        if is_right {
            section.nodes.push(node);
        }
    }

    fn row(&mut self, lexer: &mut Lexer, mut node: Node, section: &mut Section, include: bool, nested: bool) {
        match &node.body {
            Body::None if include && node.name == "include" => match node.args.as_slice() {
                [path] => self.include(path, section),
                _ => self.report(Problem::invalid_arguments(&node)),
            },
            Body::None => section.nodes.push(node),
            Body::Block(_) if nested => {
                (node.body, node.close) = self.block(lexer, Scope::Rows { include, nested });
                section.nodes.push(node);
            }
            Body::Block(_) | Body::Raw(_) => {
                self.report(Problem::emerg(node.close, "unexpected \"{\""));
                self.skip_block(lexer);
            }
        }
    }

    /// The block whose `{` was just read, and its `}`.
    fn block(&mut self, lexer: &mut Lexer, scope: Scope) -> (Body, Span) {
        if self.nesting == MAX_NESTING {
            let message = format!("blocks are nested deeper than {MAX_NESTING}");
            let place = lexer.place();
            self.report(Problem::emerg(place, message));
            self.skip_block(lexer);
            return (Body::Block(Vec::new()), place);
        }
        self.nesting += 1;
        let mut section = Section::new(scope);
        let close = self.read(lexer, &mut section, Input::Block);
        self.nesting -= 1;
        (Body::Block(section.nodes), close)
    }

    fn include(&mut self, path: &Word, section: &mut Section) {
        if self.include_depth == MAX_INCLUDE_DEPTH {
            let message = format!("files are included deeper than {MAX_INCLUDE_DEPTH}");
            return self.report(Problem::emerg(path.span, message));
        }
        let written = std::ffi::OsStr::from_bytes(&path.text);
        let full = self.conf_prefix.join(written);
        self.include_depth += 1;
        if source::has_wildcard(full.as_os_str().as_bytes()) {
            match self.files.glob(&full) {
                Ok(paths) => paths.into_iter().for_each(|found| self.read_file(found, Some(path.span), section)),
                Err(error) => self.report(Problem::io(path.span, "glob()", &full, &error)),
            }
        } else {
            self.read_file(full, Some(path.span), section);
        }
        self.include_depth -= 1;
    }

    fn read_file(&mut self, path: PathBuf, included_at: Option<Span>, section: &mut Section) {
        let text = match self.texts.get(&path) {
            Some(text) => text.clone(),
            None => match self.files.read(&path) {
                Ok(content) => Arc::from(content),
                Err(error) if error.raw_os_error() == Some(EISDIR) => {
                    let message = format!("pread() \"{}\" failed ({})", path.display(), errno_text(&error));
                    return self.report(Problem::new(Severity::Crit, included_at, message).placeless());
                }
                Err(error) => return self.report(Problem::io(included_at, "open()", &path, &error)),
            },
        };
        self.texts.insert(path.clone(), text.clone());
        self.total_bytes = self.total_bytes.saturating_add(text.len());
        if self.tree.sources.len() >= MAX_INCLUSIONS || self.total_bytes > MAX_TOTAL_BYTES {
            let message = format!("configuration is too large: {MAX_INCLUSIONS} files or {MAX_TOTAL_BYTES} bytes");
            return self.report(Problem::emerg(included_at, message));
        }
        let file = self.add_source(path, &text, included_at, false);
        self.read(&mut Lexer::new(&text, file), section, Input::File);
    }

    fn add_source(&mut self, path: PathBuf, text: &Arc<[u8]>, included_at: Option<Span>, command_line: bool) -> FileId {
        let file = FileId(self.tree.sources.len() as u32);
        self.tree.sources.push(Source { path, text: text.clone(), included_at, command_line });
        file
    }

    fn report(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Reports an error of the text and leaves the lexer where reading goes on.
    fn recover(&mut self, lexer: &mut Lexer, error: SyntaxError) {
        self.report(error.problem);
        match error.resume {
            Resume::Here | Resume::Stop => {}
            Resume::Block => self.skip_block(lexer),
            Resume::Statement => {
                let before = lexer.mark();
                match lexer.statement() {
                    Ok(Statement { ended: Ended::BlockStart, .. }) => self.skip_block(lexer),
                    Ok(Statement { ended: Ended::BlockEnd | Ended::File, .. }) => lexer.rewind(before),
                    Ok(Statement { ended: Ended::Semicolon, .. }) => {}
                    Err(error) => self.report_and_rest(lexer, error),
                }
            }
        }
    }

    /// A second error in one statement: only those that end the reading are worth a word.
    fn report_and_rest(&mut self, lexer: &mut Lexer, error: SyntaxError) {
        match error.resume {
            Resume::Stop => self.report(error.problem),
            Resume::Block => self.skip_block(lexer),
            Resume::Here | Resume::Statement => {}
        }
    }

    /// Passes over the rest of a block whose `{` was read. Without recursion: its depth is not limited.
    fn skip_block(&mut self, lexer: &mut Lexer) {
        let mut depth = 1usize;
        while depth > 0 {
            match lexer.statement() {
                Ok(Statement { ended: Ended::BlockStart, words, .. }) => {
                    let raw = words.first().is_some_and(|name| name.text.ends_with(RAW_SUFFIX));
                    match raw.then(|| lexer.raw_block()) {
                        None => depth += 1,
                        Some(Ok(_)) => {}
                        Some(Err(error)) => self.report(error.problem),
                    }
                }
                Ok(Statement { ended: Ended::BlockEnd, .. }) => depth -= 1,
                Ok(Statement { ended: Ended::File, end, .. }) => {
                    if !lexer.stopped() {
                        self.report(Problem::emerg(end, "unexpected end of file, expecting \"}\""));
                        lexer.stop_reading();
                    }
                    return;
                }
                Ok(Statement { ended: Ended::Semicolon, .. }) => {}
                Err(error) if error.resume == Resume::Block => {
                    self.report(error.problem);
                    depth += 1;
                }
                Err(error) => self.report(error.problem),
            }
        }
    }
}

/// How to read the block of a directive, right or wrong; `None` if nobody knows what is in it.
fn inner_scope(node: &Node, current: Contexts) -> Option<Scope> {
    let known = directives::lookup(&node.name.text).iter().filter(|known| known.block);
    let known = known.max_by_key(|known| known.contexts.intersects(current))?;
    Some(match directives::inside(&node.name.text, current) {
        Inside::Directives(contexts) => Scope::Directives(contexts),
        Inside::Rows { include } => Scope::Rows { include, nested: !known.nginx },
    })
}

#[cfg(test)]
mod tests;
