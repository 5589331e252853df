//! A program: the modules that a level of the configuration imports, compiled once, with all that they import themselves. Any thread makes
//! contexts of it.

use crate::{runtime, value};
use rquickjs::module::WriteOptions;
use rquickjs::{Context, Ctx, Error, Exception, Module, Result};
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The module that imports what the configuration names.
const MAIN: &str = "nginx.conf";
/// Modules of one program.
const MAX_MODULES: usize = 1000;
/// Bytes of one module's text.
const MAX_TEXT: usize = 16 * 1024 * 1024;
/// Modules that are always there.
pub const BUILT_IN: &[&str] = &["fs", "crypto", "querystring", "buffer"];

/// `js_import`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The name that functions have in front.
    pub name: String,
    /// The file as it was written.
    pub path: String,
}

/// `js_preload_object`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preload {
    /// The global name.
    pub name: String,
    /// The file as it was written.
    pub path: String,
}

/// Where the text of a program comes from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// `js_import`
    pub imports: &'a [Import],
    /// `js_preload_object`
    pub preloads: &'a [Preload],
    /// What relative names are relative to first.
    pub base: &'a Path,
    /// `js_path`: where they are looked for then.
    pub paths: &'a [PathBuf],
    /// Reads a file.
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What, with file and line.
    pub text: String,
}

/// One module.
struct Compiled {
    name: String,
    code: Arc<[u8]>,
}

/// See the module's head.
pub struct Program {
    modules: Vec<Compiled>,
    /// Which module is meant by a name in another one.
    names: Vec<(String, String, String)>,
    main: Arc<[u8]>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program {{ modules: {} }}", self.modules.len())
    }
}

/// What is being compiled.
#[derive(Clone, Copy)]
struct Work<'a> {
    sources: Sources<'a>,
    program: &'a RefCell<Program>,
}

scoped_thread_local!(static WORK: for<'a> Work<'a>);

thread_local! {
    static RUNNING: RefCell<Option<Arc<Program>>> = const { RefCell::new(None) };
    static COMPILING: Cell<bool> = const { Cell::new(false) };
}

/// Which program names of modules mean, until this is dropped.
pub(crate) struct Running(Option<Arc<Program>>);

impl Running {
    pub(crate) fn set(program: &Arc<Program>) -> Running {
        Running(RUNNING.replace(Some(program.clone())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(self.0.take());
    }
}

/// The module that `name` means in `base`.
pub(crate) fn resolve(base: &str, name: &str) -> Option<String> {
    if BUILT_IN.contains(&name) || name == MAIN {
        return Some(name.to_owned());
    }
    if WORK.is_set() {
        return WORK.with(|work| work.find(base, name));
    }
    RUNNING.with_borrow(|program| {
        let known = program.as_ref()?.names.iter().find(|(b, n, _)| b == base && n == name);
        known.map(|(_, _, found)| found.clone())
    })
}

/// What a module was compiled to.
pub(crate) fn code(name: &str) -> Option<Arc<[u8]>> {
    if let Some(code) = crate::library::module(name) {
        return Some(code);
    }
    RUNNING.with_borrow(|program| {
        let program = program.as_ref()?;
        if name == MAIN {
            return Some(program.main.clone());
        }
        program.modules.iter().find(|m| m.name == name).map(|m| m.code.clone())
    })
}

/// Compiles a module of the program that is being made.
pub(crate) fn compile_module<'js>(ctx: &Ctx<'js>, name: &str) -> Result<Module<'js>> {
    if !WORK.is_set() {
        return Err(Error::new_loading_message(name, "Cannot find module"));
    }
    let text = WORK.with(|work| (work.sources.read)(Path::new(name)));
    let text = text.map_err(|e| Error::new_loading_message(name, e.to_string()))?;
    if text.len() > MAX_TEXT || WORK.with(|work| work.program.borrow().modules.len()) >= MAX_MODULES {
        return Err(Exception::throw_range(ctx, &format!("module \"{name}\" is too large, or one too many")));
    }
    let module = Module::declare(ctx.clone(), name, text)?;
    let code = module.write(WriteOptions::default())?.into();
    WORK.with(|work| work.program.borrow_mut().modules.push(Compiled { name: name.to_owned(), code }));
    Ok(module)
}

impl Work<'_> {
    /// Looks for a module beside the one that wants it, then beside the configuration, then along `js_path`.
    fn find(&self, base: &str, name: &str) -> Option<String> {
        let beside = if base == MAIN { None } else { Path::new(base).parent() };
        let places =
            beside.into_iter().chain([self.sources.base]).chain(self.sources.paths.iter().map(PathBuf::as_path));
        let found = match name.starts_with('/') {
            true => Some(PathBuf::from(name)),
            false => places.map(|p| tidy(&p.join(name))).find(|path| self.is_there(path)),
        };
        let found = found?.to_str()?.to_owned();
        let mut program = self.program.borrow_mut();
        program.names.push((base.to_owned(), name.to_owned(), found.clone()));
        Some(found)
    }

    fn is_there(&self, path: &Path) -> bool {
        let known = path.to_str().is_some_and(|p| self.program.borrow().modules.iter().any(|m| m.name == p));
        known || (self.sources.read)(path).is_ok()
    }
}

/// A path without `.` and `..`: the same file has one name.
fn tidy(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

impl Program {
    /// Compiles all modules of a program.
    ///
    /// # Errors
    /// A module is not there, or is not well formed.
    pub fn compile(sources: &Sources<'_>) -> std::result::Result<Program, Wrong> {
        crate::library::prepare(crate::Parts { now: &[], later: &[] }).map_err(|text| Wrong { text })?;
        let context = Context::full(&runtime::of_thread()).map_err(|e| Wrong { text: e.to_string() })?;
        let empty = Program { modules: Vec::new(), names: Vec::new(), main: Arc::from([]) };
        let program = RefCell::new(empty);
        let main = context.with(|ctx| {
            let work = Work { sources: *sources, program: &program };
            let text = main_text(&ctx, sources)?;
            let compiled = WORK.set(work, || {
                let module = Module::declare(ctx.clone(), MAIN, text)?;
                module.write(WriteOptions::default())
            });
            compiled.map_err(|e| wrong(&ctx, &e))
        })?;
        let mut program = program.into_inner();
        program.main = main.into();
        Ok(program)
    }

    /// The module that makes the imports global.
    pub(crate) fn main_name() -> &'static str {
        MAIN
    }
}

/// The text of the module that imports what the configuration names.
fn main_text(ctx: &Ctx<'_>, sources: &Sources<'_>) -> std::result::Result<String, Wrong> {
    let mut text = String::new();
    for (number, import) in sources.imports.iter().enumerate() {
        text += &format!("import m{number} from {};", quoted(&import.path));
        text += &format!("globalThis[{}] = m{number};", quoted(&import.name));
    }
    if !sources.preloads.is_empty() {
        text += "const freeze = (o) => { if (typeof o === 'object' && o !== null) { Object.values(o).forEach(freeze); \
                 Object.freeze(o); } return o; };";
    }
    for preload in sources.preloads {
        let places = std::iter::once(sources.base).chain(sources.paths.iter().map(PathBuf::as_path));
        let read = places.map(|p| tidy(&p.join(&preload.path))).find_map(|path| (sources.read)(&path).ok());
        let read = read.ok_or_else(|| Wrong { text: format!("Cannot find file \"{}\"", preload.path) })?;
        let json = String::from_utf8_lossy(&read).into_owned();
        if let Err(e) = ctx.json_parse(json.clone()) {
            let why = wrong(ctx, &e).text;
            return Err(Wrong { text: format!("{why} in \"{}\"", preload.path) });
        }
        text += &format!("globalThis[{}] = freeze(JSON.parse({}));", quoted(&preload.name), quoted(&json));
    }
    Ok(text)
}

/// A text as a literal.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What an error says, with the place that it is about.
fn wrong(ctx: &Ctx<'_>, error: &Error) -> Wrong {
    if !matches!(error, Error::Exception) {
        return Wrong { text: error.to_string() };
    }
    let thrown = ctx.catch();
    let Some(exception) = thrown.as_exception() else {
        let text = value::bytes_of(ctx, &thrown).unwrap_or_default();
        return Wrong { text: String::from_utf8_lossy(&text).into_owned() };
    };
    let name: String = exception.as_object().get("name").unwrap_or_default();
    let message = exception.message().unwrap_or_default();
    let stack = exception.stack().unwrap_or_default();
    // "    at /etc/nginx/main.js:3:10" of whatever is being compiled.
    let place = stack.lines().next().map(|l| l.trim().trim_start_matches("at ")).unwrap_or_default();
    let place = place.rsplit_once(' ').map_or(place, |(_, p)| p.trim_matches(['(', ')']));
    let text = format!("{name}: {message}");
    Wrong { text: if place.is_empty() || place.starts_with(MAIN) { text } else { format!("{text} in {place}") } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn compile(files: &[(&str, &str)], paths: &[PathBuf]) -> std::result::Result<Program, String> {
        let files: HashMap<PathBuf, Vec<u8>> =
            files.iter().map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec())).collect();
        let read = move |path: &Path| files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into());
        let imports = [Import { name: "main".to_owned(), path: "main.js".to_owned() }];
        let sources = Sources { imports: &imports, preloads: &[], base: Path::new("/c"), paths, read: &read };
        Program::compile(&sources).map_err(|w| w.text)
    }

    #[test]
    fn modules_are_found_beside_their_users_and_along_the_path() {
        let files = [
            (
                "/c/main.js",
                "import a from './lib/a.js'; import b from 'b.js'; import fs from 'fs'; export default {a, b}",
            ),
            ("/c/lib/a.js", "import c from './c.js'; export default c"),
            ("/c/lib/c.js", "export default 1"),
            ("/p/b.js", "export default 2"),
        ];
        let program = compile(&files, &[PathBuf::from("/p")]).expect("well formed");
        assert_eq!(program.modules.len(), 4);
        assert!(compile(&files, &[]).unwrap_err().contains("b.js"));
    }

    #[test]
    fn a_syntax_error_has_its_place() {
        let text = compile(&[("/c/main.js", "export default {};\nlet a = ;\n")], &[]).unwrap_err();
        assert!(text.starts_with("SyntaxError: ") && text.contains("in /c/main.js:2"), "{text}");
    }
}
