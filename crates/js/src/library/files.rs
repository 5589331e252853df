//! The module `fs`: what it asks the system for. Descriptors are those that the program has opened itself, and go with its request.

use crate::engine;
use crate::value::{Bytes, Item};
use rquickjs::convert::List;
use rquickjs::prelude::Func;
use rquickjs::{Array, Ctx, Object, Result, Value};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

/// Bytes of a file that are read at once.
const MAX_FILE: u64 = 256 * 1024 * 1024;
/// Files that one request may have open.
const MAX_OPEN: usize = 100;
/// Names of a directory that are told.
const MAX_NAMES: usize = 1_000_000;

/// Puts the function in.
pub(super) fn add<'js>(_: &Ctx<'js>, raw: &Object<'js>) -> Result<()> {
    raw.set("file", Func::from(file))
}

/// What went wrong: the system's word, the call, the path.
struct Failed(io::Error, &'static str, Option<String>);

type Done = std::result::Result<Item, Failed>;

/// Does what `name` says: whether it failed, and what came of it.
fn file<'js>(ctx: Ctx<'js>, name: String, arguments: Array<'js>) -> Result<List<(bool, Item)>> {
    let arguments = Arguments(&arguments);
    let done = match name.as_str() {
        "access" => access(&arguments.text(0)?, arguments.number(1)?),
        "readFile" => read_file(&arguments.text(0)?, &arguments.text(1)?),
        "writeFile" => write_file(&arguments.text(0)?, &arguments.bytes(1)?, &arguments.text(2)?, arguments.number(3)?),
        "open" => open(&arguments.text(0)?, &arguments.text(1)?, arguments.number(2)?),
        "close" => close(arguments.number(0)?),
        "read" => read(arguments.number(0)?, arguments.number(1)?, arguments.number(2)?),
        "write" => write(arguments.number(0)?, &arguments.bytes(1)?, arguments.number(2)?),
        "stat" => stat(&arguments.text(0)?, "stat", |path| fs::metadata(path)),
        "lstat" => stat(&arguments.text(0)?, "lstat", |path| fs::symlink_metadata(path)),
        "fstat" => with_file(arguments.number(0)?, "fstat", |file| Ok(shown(&file.metadata()?))),
        "mkdir" => make_directory(&arguments.text(0)?, arguments.flag(1)?, arguments.number(2)?),
        "readdir" => read_directory(&arguments.text(0)?),
        "readlink" => text_of("readlink", &arguments.text(0)?, |path| fs::read_link(path)),
        "realpath" => text_of("realpath", &arguments.text(0)?, |path| fs::canonicalize(path)),
        "rename" => {
            plain("rename", &arguments.text(0)?, |from| fs::rename(from, arguments.text(1).unwrap_or_default()))
        }
        "rmdir" => {
            let recursive = arguments.flag(1)?;
            plain(
                "rmdir",
                &arguments.text(0)?,
                |path| if recursive { fs::remove_dir_all(path) } else { fs::remove_dir(path) },
            )
        }
        "symlink" => {
            let target = arguments.text(0)?;
            plain("symlink", &arguments.text(1)?, |path| symlink(&target, path))
        }
        "unlink" => plain("unlink", &arguments.text(0)?, |path| fs::remove_file(path)),
        other => return Err(crate::Fault::internal(format!("no call \"{other}\"")).throw(&ctx)),
    };
    Ok(match done {
        Ok(item) => List((false, item)),
        Err(Failed(error, call, path)) => {
            let number = error.raw_os_error().unwrap_or(libc_eio());
            let errno = rustix::io::Errno::from_raw_os_error(number);
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            let mut items =
                vec![Item::from(text), Item::Number(f64::from(number)), Item::from(code(errno)), Item::from(call)];
            items.extend(path.map(|p| Item::from(p.as_str())));
            List((true, Item::List(items)))
        }
    })
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

/// The name of an error.
fn code(errno: rustix::io::Errno) -> &'static str {
    use rustix::io::Errno as E;
    match errno {
        E::ACCESS => "EACCES",
        E::BADF => "EBADF",
        E::BUSY => "EBUSY",
        E::EXIST => "EEXIST",
        E::FBIG => "EFBIG",
        E::INVAL => "EINVAL",
        E::ISDIR => "EISDIR",
        E::LOOP => "ELOOP",
        E::MFILE => "EMFILE",
        E::NAMETOOLONG => "ENAMETOOLONG",
        E::NFILE => "ENFILE",
        E::NOENT => "ENOENT",
        E::NOSPC => "ENOSPC",
        E::NOTDIR => "ENOTDIR",
        E::NOTEMPTY => "ENOTEMPTY",
        E::PERM => "EPERM",
        E::ROFS => "EROFS",
        E::XDEV => "EXDEV",
        _ => "EIO",
    }
}

struct Arguments<'a, 'js>(&'a Array<'js>);

impl Arguments<'_, '_> {
    fn text(&self, at: usize) -> Result<String> {
        self.0.get(at)
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>> {
        self.0.get::<Bytes>(at).map(|b| b.0)
    }

    fn number(&self, at: usize) -> Result<i64> {
        let value: Value<'_> = self.0.get(at)?;
        Ok(value.as_number().map_or(-1, |n| n as i64))
    }

    fn flag(&self, at: usize) -> Result<bool> {
        self.0.get(at)
    }
}

fn plain(call: &'static str, path: &str, work: impl FnOnce(&Path) -> io::Result<()>) -> Done {
    work(Path::new(path)).map(|()| Item::Undefined).map_err(|e| Failed(e, call, Some(path.to_owned())))
}

fn text_of(call: &'static str, path: &str, work: impl FnOnce(&Path) -> io::Result<std::path::PathBuf>) -> Done {
    let found = work(Path::new(path)).map_err(|e| Failed(e, call, Some(path.to_owned())))?;
    Ok(Item::from(found.to_string_lossy().as_ref()))
}

fn access(path: &str, mode: i64) -> Done {
    let mode = rustix::fs::Access::from_bits_truncate(u32::try_from(mode).unwrap_or(0));
    plain("access", path, |path| Ok(rustix::fs::access(path, mode)?))
}

/// How a flag of `fs` opens a file.
fn options(flag: &str, mode: i64) -> OpenOptions {
    let mut options = OpenOptions::new();
    let has = |letter: char| flag.contains(letter);
    options.mode(u32::try_from(mode).unwrap_or(0o666));
    // A pipe without a writer must not hold the thread.
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    match flag.chars().find(|c| matches!(c, 'r' | 'w' | 'a')) {
        Some('w') => options.write(true).truncate(true).create(true).read(has('+')),
        Some('a') => options.append(true).create(true).read(has('+')),
        _ => options.read(true).write(has('+')),
    };
    if has('x') {
        options.truncate(false).create_new(true);
    }
    options
}

fn read_file(path: &str, flag: &str) -> Done {
    let failed = |e| Failed(e, "open", Some(path.to_owned()));
    let file = options(flag, 0o666).open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_dir() {
        return Err(Failed(rustix::io::Errno::ISDIR.into(), "read", Some(path.to_owned())));
    }
    if kind.is_fifo() || kind.is_socket() {
        // It could say nothing for ever, and the thread would wait.
        return Err(Failed(rustix::io::Errno::INVAL.into(), "read", Some(path.to_owned())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Failed(rustix::io::Errno::FBIG.into(), "read", Some(path.to_owned())));
    }
    Ok(Item::Buffer(bytes))
}

fn write_file(path: &str, bytes: &[u8], flag: &str, mode: i64) -> Done {
    let failed = |call| move |e| Failed(e, call, Some(path.to_owned()));
    let mut file = options(flag, mode).open(path).map_err(failed("open"))?;
    file.write_all(bytes).map_err(failed("write"))?;
    Ok(Item::Undefined)
}

fn open(path: &str, flag: &str, mode: i64) -> Done {
    let failed = |e| Failed(e, "open", Some(path.to_owned()));
    let Ok(engine) = engine::current() else { return Err(failed(rustix::io::Errno::BADF.into())) };
    let mut files = engine.files.borrow_mut();
    if files.len() >= MAX_OPEN {
        return Err(failed(rustix::io::Errno::MFILE.into()));
    }
    let file = options(flag, mode).open(path).map_err(failed)?;
    let number = file.as_raw_fd();
    files.insert(number, file);
    Ok(Item::Number(f64::from(number)))
}

fn with_file(number: i64, call: &'static str, work: impl FnOnce(&mut File) -> io::Result<Item>) -> Done {
    let unknown = || Failed(rustix::io::Errno::BADF.into(), call, None);
    let engine = engine::current().map_err(|_| unknown())?;
    let mut files = engine.files.borrow_mut();
    let file = i32::try_from(number).ok().and_then(|n| files.get_mut(&n)).ok_or_else(unknown)?;
    work(file).map_err(|e| Failed(e, call, None))
}

fn close(number: i64) -> Done {
    with_file(number, "close", |_| Ok(Item::Undefined))?;
    if let (Ok(engine), Ok(number)) = (engine::current(), i32::try_from(number)) {
        engine.files.borrow_mut().remove(&number);
    }
    Ok(Item::Undefined)
}

fn read(number: i64, length: i64, position: i64) -> Done {
    with_file(number, "read", |file| {
        let length = u64::try_from(length).unwrap_or(0).min(MAX_FILE);
        let mut bytes = Vec::new();
        match u64::try_from(position) {
            Ok(position) => {
                bytes.resize(length as usize, 0);
                let n = file.read_at(&mut bytes, position)?;
                bytes.truncate(n);
            }
            Err(_) => {
                bytes.resize(length as usize, 0);
                let n = file.read(&mut bytes)?;
                bytes.truncate(n);
            }
        }
        Ok(Item::Buffer(bytes))
    })
}

fn write(number: i64, bytes: &[u8], position: i64) -> Done {
    with_file(number, "write", |file| {
        if let Ok(position) = u64::try_from(position) {
            let was = file.stream_position()?;
            file.write_all_at(bytes, position)?;
            file.seek(SeekFrom::Start(was))?;
        } else {
            file.write_all(bytes)?;
        }
        Ok(Item::Number(bytes.len() as f64))
    })
}

fn stat(path: &str, call: &'static str, ask: impl FnOnce(&Path) -> io::Result<fs::Metadata>) -> Done {
    let found = ask(Path::new(path)).map_err(|e| Failed(e, call, Some(path.to_owned())))?;
    Ok(shown(&found))
}

fn shown(meta: &fs::Metadata) -> Item {
    let ms = |seconds: i64, ns: i64| seconds as f64 * 1000.0 + (ns / 1_000_000) as f64;
    let numbers = [
        meta.dev() as f64,
        meta.ino() as f64,
        f64::from(meta.mode()),
        meta.nlink() as f64,
        f64::from(meta.uid()),
        f64::from(meta.gid()),
        meta.rdev() as f64,
        meta.size() as f64,
        meta.blksize() as f64,
        meta.blocks() as f64,
        ms(meta.atime(), meta.atime_nsec()),
        ms(meta.mtime(), meta.mtime_nsec()),
        ms(meta.ctime(), meta.ctime_nsec()),
    ];
    Item::List(numbers.map(Item::Number).to_vec())
}

fn make_directory(path: &str, recursive: bool, mode: i64) -> Done {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(recursive).mode(u32::try_from(mode).unwrap_or(0o777));
    plain("mkdir", path, |path| builder.create(path))
}

fn read_directory(path: &str) -> Done {
    let failed = |e| Failed(e, "opendir", Some(path.to_owned()));
    let mut items = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)?.take(MAX_NAMES) {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let letter = match () {
            () if kind.is_dir() => "d",
            () if kind.is_symlink() => "l",
            () if kind.is_fifo() => "p",
            () if kind.is_socket() => "s",
            () if kind.is_block_device() => "b",
            () if kind.is_char_device() => "c",
            () => "f",
        };
        items.push(Item::List(vec![Item::from(entry.file_name().to_string_lossy().as_ref()), Item::from(letter)]));
    }
    Ok(Item::List(items))
}
