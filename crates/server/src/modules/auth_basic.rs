//! `auth_basic`: name and password against a user file (nginx's `ngx_http_auth_basic_module`).
//! A thread keeps user files it has read and checks by their time and size whether they changed. Slow kinds of hashes
//! are computed aside, so that other connections go on; a password that was right is known again without them.

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::{Directive, Scope, http};
use crate::modules::variables::basic_credentials;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::{Method, Request, Text};
use crate::{log_error, merged_values, password};
use conf::{Node, Problem};
use runtime::clock;
use rustix::fs::Stat;
use sha1::{Digest, Sha1};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// User files that a thread remembers. With variables in the name there may be any number.
const MAX_FILES: usize = 64;
/// Larger user files are read anew for each request.
const MAX_REMEMBERED: u64 = 8 * 1024 * 1024;
/// A file changed less than so many seconds ago is not remembered: it may change again without a new time.
const SETTLED: i64 = 2;
/// Passwords that a thread knows to be right.
const MAX_KNOWN: usize = 4096;
/// Hashes that a thread has computed at the same time. More would only make each of them slower.
const HASHERS: usize = 2;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("auth_basic", |s, n| {
        let realm = Complex::compile(s.build, &n.args[0])?;
        setters::value(&mut s.level.conf.auth_basic.realm, n, Some(realm))
    }),
    http("auth_basic_user_file", user_file),
];

/// Its place in the access phase.
pub const HANDLER: Handler = Handler::Later(|r| asks(&r.conf().auth_basic), check);

/// Whether a password is asked for.
pub fn asks(conf: &Conf) -> bool {
    conf.user_file.is_some() && conf.realm.as_ref().is_some_and(|realm| realm.as_fixed() != Some(b"off"))
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// What the client is told that it asks for; `off` switches the check off.
        realm: Option<Complex> = None,
        /// Where the users are.
        user_file: Option<Arc<UserFile>> = None,
    }
}

/// `auth_basic_user_file`
#[derive(Debug)]
pub struct UserFile {
    path: Complex,
    /// What a relative path is relative to.
    directory: PathBuf,
}

fn user_file(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = Complex::compile(scope.build, &node.args[0])?;
    let directory = scope.build.conf_prefix.clone();
    setters::value(&mut scope.level.conf.auth_basic.user_file, node, Some(Arc::new(UserFile { path, directory })))
}

fn check(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let snapshot = r.snapshot.clone();
        let conf = &snapshot.location(r.location).conf.auth_basic;
        let (Some(realm), Some(file)) = (&*conf.realm, &*conf.user_file) else { return Verdict::Decline };
        let realm = realm.eval(r);
        if r.get(realm) == b"off" {
            return Verdict::Decline;
        }
        let Some((user, password)) = basic_credentials(r) else {
            log_error!(r, Info, "no user/password was provided for basic authentication");
            return refuse(r, realm);
        };
        let path = file.path.eval(r);
        let path = {
            use std::os::unix::ffi::OsStrExt;
            file.directory.join(std::ffi::OsStr::from_bytes(r.get(path)))
        };
        let stored = match find(&path, &user) {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                let (user, path) = (String::from_utf8_lossy(&user), path.display());
                log_error!(r, Error, "user \"{user}\" was not found in \"{path}\"");
                return refuse(r, realm);
            }
            Err((call, e)) => return unreadable(r, call, &path, &e),
        };
        if fits(password, stored).await {
            return Verdict::Allow;
        }
        log_error!(r, Error, "user \"{}\": password mismatch", String::from_utf8_lossy(&user));
        refuse(r, realm)
    })
}

fn refuse(r: &mut Request, realm: Text) -> Verdict {
    let mark = r.arena.mark();
    for part in [Text::from("Basic realm=\""), realm, Text::from("\"")] {
        r.arena.append(part);
    }
    let value = r.arena.since(mark);
    if r.head.method == Method::Connect {
        r.answer.headers.push(Text::from("Proxy-Authenticate"), value.into());
        return Verdict::Status(407);
    }
    r.answer.headers.add(K::WwwAuthenticate, "WWW-Authenticate", value);
    Verdict::Status(401)
}

fn unreadable(r: &mut Request, call: &str, path: &Path, error: &io::Error) -> Verdict {
    let (path, text) = (path.display(), crate::log::os_error(error));
    if error.kind() == io::ErrorKind::NotFound {
        log_error!(r, Error, "{call} \"{path}\" failed ({text})");
        return Verdict::Status(403);
    }
    log_error!(r, Crit, "{call} \"{path}\" failed ({text})");
    Verdict::Status(500)
}

/// Passwords by user; of a user with several lines the first counts.
type Users = HashMap<Box<[u8]>, Box<[u8]>>;

struct Remembered {
    stamp: Stamp,
    users: Rc<Users>,
}

/// What changes when a file does.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: (i64, u64),
    size: u64,
    identity: (u64, u64),
}

impl Stamp {
    fn of(s: &Stat) -> Stamp {
        Stamp { modified: (s.st_mtime, s.st_mtime_nsec), size: s.st_size as u64, identity: (s.st_dev, s.st_ino) }
    }
}

thread_local! {
    static FILES: RefCell<HashMap<PathBuf, Remembered>> = RefCell::default();
    static KNOWN: RefCell<Known> = RefCell::new(Known::new());
    static HASHING: Rc<Semaphore> = Rc::new(Semaphore::new(HASHERS));
}

/// The stored password of a user.
fn find(path: &Path, user: &[u8]) -> Result<Option<Box<[u8]>>, (&'static str, io::Error)> {
    let stamp = match rustix::fs::stat(path) {
        Ok(s) => Stamp::of(&s),
        Err(e) => return Err(("open()", e.into())),
    };
    let known = FILES.with_borrow(|f| f.get(path).filter(|k| k.stamp == stamp).map(|k| k.users.clone()));
    let users = match known {
        Some(users) => users,
        None => {
            let text = std::fs::read(path).map_err(|e| (if is_read(&e) { "read()" } else { "open()" }, e))?;
            let users = Rc::new(parse(&text));
            let settled = clock::wall_seconds() - stamp.modified.0 >= SETTLED;
            if settled && stamp.size <= MAX_REMEMBERED && text.len() as u64 == stamp.size {
                FILES.with_borrow_mut(|files| {
                    if files.len() >= MAX_FILES {
                        files.clear();
                    }
                    files.insert(path.to_owned(), Remembered { stamp, users: users.clone() });
                });
            }
            users
        }
    };
    Ok(users.get(user).cloned())
}

/// A directory opens well and cannot be read.
fn is_read(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::IsADirectory)
}

/// `user:password[:anything]`, a line each; `#` begins a comment.
fn parse(text: &[u8]) -> Users {
    let mut users = Users::new();
    for line in text.split(|b| *b == b'\n').filter(|l| !matches!(l.first(), None | Some(b'#' | b'\r'))) {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let rest = &line[colon + 1..];
        let end = memchr::memchr2(b':', b'\r', rest).unwrap_or(rest.len());
        users.entry(line[..colon].into()).or_insert_with(|| rest[..end].into());
    }
    users
}

async fn fits(given: Vec<u8>, stored: Box<[u8]>) -> bool {
    if !password::is_slow(&stored) {
        return password::fits(&given, &stored);
    }
    let mark = KNOWN.with_borrow(|k| k.mark(&given, &stored));
    if KNOWN.with_borrow(|k| k.right.contains(&mark)) {
        return true;
    }
    let hashing = HASHING.with(Rc::clone);
    let _place = hashing.acquire().await.expect("this semaphore is never closed");
    let right = crate::service::blocking(move || password::fits(&given, &stored)).await.unwrap_or(false);
    if right {
        KNOWN.with_borrow_mut(|k| {
            if k.right.len() >= MAX_KNOWN {
                k.right.clear();
            }
            k.right.insert(mark);
        });
    }
    right
}

/// Pairs of password and stored password that fit, under a key that dies with the thread: browsers send the password
/// with every request, and it takes milliseconds to check one.
struct Known {
    key: [u8; 32],
    right: HashSet<[u8; 20]>,
}

impl Known {
    fn new() -> Known {
        let mut key = [0; 32];
        let _ = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
        Known { key, right: HashSet::new() }
    }

    fn mark(&self, given: &[u8], stored: &[u8]) -> [u8; 20] {
        let length = (stored.len() as u64).to_le_bytes();
        let hash = Sha1::new().chain_update(self.key).chain_update(length).chain_update(stored);
        hash.chain_update(given).chain_update(self.key).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_file_is_read_as_nginx_reads_it() {
        let users = parse(b"# comment:x\r\n\na:1\r\nb:2:more\na:3\nno colon\n\r:x\nlast:{PLAIN}p w");
        let of = |name: &str| users.get(name.as_bytes()).map(|p| String::from_utf8_lossy(p).into_owned());
        assert_eq!(of("a").as_deref(), Some("1"));
        assert_eq!(of("b").as_deref(), Some("2"));
        assert_eq!(of("last").as_deref(), Some("{PLAIN}p w"));
        assert_eq!(users.len(), 3);
    }

    #[test]
    fn marks_depend_on_both_sides() {
        let known = Known::new();
        assert_eq!(known.mark(b"ab", b"c"), known.mark(b"ab", b"c"));
        assert_ne!(known.mark(b"ab", b"c"), known.mark(b"b", b"ca"));
        assert_ne!(known.mark(b"ab", b"c"), Known::new().mark(b"ab", b"c"));
    }
}
