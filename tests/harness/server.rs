//! Starts a real server on a configuration text: Ironweir's binary, or nginx for comparison. Everything it writes is in a
//! directory of its own; it is stopped, and the directory removed, when the value is dropped.

use super::client::{Client, Response};
use super::folder::{Folder, Port};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to accept its first connection, and to end when it is told to. Never waited for in full when
/// all is well.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(2);

/// How much of the error log is shown when a test fails.
const LAST_LINES: usize = 20;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Ironweir,
    Nginx,
}

impl Program {
    /// Ironweir. With `TEST_PROGRAM=nginx` in the environment nginx takes its place: a way to see whether a test asks for what
    /// nginx does.
    pub fn under_test() -> Program {
        let nginx = std::env::var("TEST_PROGRAM").is_ok_and(|name| name == "nginx");
        if nginx { Program::Nginx } else { Program::Ironweir }
    }

    /// Where it is; nothing if it is not installed.
    pub fn path(self) -> Option<PathBuf> {
        match self {
            Program::Ironweir => Some(env!("CARGO_BIN_EXE_ironweir").into()),
            Program::Nginx => {
                ["/usr/sbin/nginx", "/usr/local/nginx/sbin/nginx"].map(PathBuf::from).into_iter().find(|p| p.exists())
            }
        }
    }
}

/// A configuration with the files around it, not yet running.
///
/// In the text `@PORT@` is the port to listen on, `@DIR@` the directory, `@OTHER@` a second port; names given with
/// [`Site::set`] are replaced as well.
pub struct Site {
    folder: Folder,
    text: String,
    ports: Vec<Port>,
    names: Vec<(String, String)>,
}

impl Site {
    /// The text of a `server` block; its `listen` is written for it.
    pub fn server(text: &str) -> Site {
        Site::http(&format!("server {{ listen 127.0.0.1:@PORT@; {text} }}"))
    }

    /// The text of the `http` block. No access log unless it asks for one.
    pub fn http(text: &str) -> Site {
        Site::whole(&format!("events {{}}\nhttp {{ access_log off; root @DIR@/html; {text} }}"))
    }

    /// The whole configuration, but for the process directives that the harness needs.
    pub fn whole(text: &str) -> Site {
        let process = "daemon off; pid @DIR@/logs/nginx.pid; error_log @DIR@/logs/error.log info;";
        Site::exactly(&format!("{process}\n{text}\n"))
    }

    /// The configuration to the letter.
    pub fn exactly(text: &str) -> Site {
        let folder = Folder::new();
        folder.make("logs");
        folder.make("html");
        Site { folder, text: text.to_owned(), ports: vec![Port::reserve(), Port::reserve()], names: Vec::new() }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its directory, without ever starting a server.
    pub fn into_folder(self) -> Folder {
        self.folder
    }

    /// Adds a file, its name relative to the directory.
    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Site {
        self.folder.write(name, content);
        self
    }

    /// Replaces `@NAME@` by a value.
    pub fn set(mut self, name: &str, value: impl ToString) -> Site {
        self.names.push((format!("@{name}@"), value.to_string()));
        self
    }

    /// Starts the program under test.
    pub fn start(self) -> Server {
        self.start_as(Program::under_test()).expect("the program is there")
    }

    /// Starts a program and waits until it accepts; nothing if it is not installed.
    pub fn start_as(self, program: Program) -> Option<Server> {
        let path = program.path()?;
        self.write();
        let port = self.ports[0].number;
        let mut command = command(&path, self.folder.path());
        let child = command.spawn().expect("the server starts");
        let mut server = Server { child: Some(child), folder: self.folder, _ports: self.ports, port };
        server.wait_until_ready();
        Some(server)
    }

    /// Runs `-t`; gives its status and what it wrote to standard error, with `@DIR@` for the directory.
    pub fn check(self) -> (ExitStatus, String) {
        self.check_as(Program::Ironweir).expect("Ironweir is built")
    }

    /// Runs `-t` of a program; nothing if it is not installed.
    pub fn check_as(self, program: Program) -> Option<(ExitStatus, String)> {
        let path = program.path()?;
        self.write();
        let out = command(&path, self.folder.path()).arg("-t").stderr(Stdio::piped()).output().expect("-t runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        Some((out.status, said.replace(&self.folder.path().display().to_string(), "@DIR@")))
    }

    /// Starts a server that cannot serve; gives its status, what it wrote to standard error, and its error log.
    pub fn fail(self) -> (ExitStatus, String, String) {
        let path = Program::Ironweir.path().expect("Ironweir is built");
        self.write();
        let out = command(&path, self.folder.path()).stderr(Stdio::piped()).output().expect("the server starts");
        let log = std::fs::read_to_string(self.folder.path().join("logs/error.log")).unwrap_or_default();
        (out.status, String::from_utf8_lossy(&out.stderr).into_owned(), log)
    }

    fn write(&self) {
        let dir = self.folder.path().display().to_string();
        let mut text = self.text.replace("@DIR@", &dir);
        for (name, value) in &self.names {
            text = text.replace(name, value);
        }
        text = text.replace("@PORT@", &self.ports[0].number.to_string());
        text = text.replace("@OTHER@", &self.ports[1].number.to_string());
        self.folder.write("nginx.conf", text);
    }
}

fn command(program: &Path, dir: &Path) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.arg("-p").arg(dir).arg("-e").arg(dir.join("logs/error.log")).arg("-c").arg(dir.join("nginx.conf"));
    // Its own group: what it starts can be stopped with it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.current_dir(dir);
    command
}

/// A running server.
pub struct Server {
    child: Option<Child>,
    folder: Folder,
    _ports: Vec<Port>,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
}

impl Server {
    /// A new connection.
    pub fn connect(&self) -> Client {
        Client::connect(self.port)
    }

    /// One request with GET on a connection of its own.
    pub fn get(&self, target: &str) -> Response {
        self.connect().get(target)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// What it has written to a file in its directory so far; empty if it is not there.
    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir().join(name)).unwrap_or_default()).into_owned()
    }

    /// The error log so far.
    pub fn error_log(&self) -> String {
        self.read("logs/error.log")
    }

    /// Waits until a file in its directory has a text.
    pub fn wait_for(&self, name: &str, text: &str) {
        let found = wait(|| self.read(name).contains(text));
        assert!(found, "{name} never had {text:?}:\n{}", self.read(name));
    }

    /// Resident memory of its worker processes, kB.
    pub fn memory_kb(&self) -> usize {
        self.of_workers("VmRSS:")
    }

    /// The same without pages of files: code that runs for the first time is no growth.
    pub fn own_memory_kb(&self) -> usize {
        self.of_workers("RssAnon:")
    }

    /// Bytes that its worker processes have written to files so far.
    pub fn written(&self) -> usize {
        let of = |pid: &str| {
            let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            io.lines().find_map(|l| l.strip_prefix("wchar: ")?.parse::<usize>().ok())
        };
        self.worker_pids().split_whitespace().filter_map(of).sum()
    }

    /// The numbers of its worker processes.
    pub fn worker_pids(&self) -> String {
        let master = self.read("logs/nginx.pid").trim().to_owned();
        std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default()
    }

    /// The sum of a line of `/proc/PID/status`, kB.
    fn of_workers(&self, name: &str) -> usize {
        let master = self.read("logs/nginx.pid").trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
        let of = |pid: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse::<usize>().ok()
        };
        children.split_whitespace().filter_map(of).sum()
    }

    /// Whether a worker process has a thread of this name.
    pub fn has_thread(&self, name: &str) -> bool {
        let master = self.read("logs/nginx.pid").trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
        let tasks = children.split_whitespace().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        let names =
            tasks.flatten().flatten().map(|t| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default());
        names.into_iter().any(|comm| comm.trim() == name)
    }

    /// Sends it a signal, once it has written its pid: until then it does not listen to signals, as nginx.
    pub fn signal(&self, signal: rustix::process::Signal) {
        self.wait_for("logs/nginx.pid", "\n");
        let child = self.child.as_ref().expect("the server runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it is there");
    }

    /// Sends a signal that ends it and waits for its status.
    pub fn stop(mut self, signal: rustix::process::Signal) -> ExitStatus {
        self.signal(signal);
        let mut child = self.child.take().expect("the server runs");
        end_of(&mut child).unwrap_or_else(|| panic!("it did not end:\n{}", self.error_log()))
    }

    fn wait_until_ready(&mut self) {
        let port = self.port;
        let mut ended = None;
        let ready = wait(|| {
            ended = self.child.as_mut().expect("just started").try_wait().expect("it is our child");
            ended.is_some() || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(
            ready && ended.is_none(),
            "the server did not come up ({ended:?}):\n{}\n{}",
            self.read("nginx.conf"),
            self.error_log()
        );
        // The other addresses may come a moment after the first: all are there when there is a worker process (without a master there is none).
        let pid = self.child.as_ref().expect("just started").id();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let has_worker = || std::fs::read_to_string(&children).is_ok_and(|children| !children.trim().is_empty());
        for _ in 0..40 {
            if has_worker() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process, kill_process_group};
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_child(&child);
        let _ = kill_process(pid, Signal::TERM);
        if end_of(&mut child).is_none() {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.error_log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("end of the error log:\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
        }
    }
}

fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let mut status = None;
    wait(|| {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    status
}

/// Looks until a condition holds; whether it did in time.
pub fn wait(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}
