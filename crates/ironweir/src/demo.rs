//! `ironweir demo`: a balancer, two backends (`demo_backends`) and a start page, without a file of the user's. One process; all it
//! writes is in a directory of its own that is removed at the end.

use server::config::read::{Reading, Which, read};
use server::listen::socket::Listeners;
use server::master::sys::{self, Signals};
use server::snapshot::Snapshot;
use server::worker::process::Workers;
use socket2::{Domain, Socket, Type};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const CONFIGURATION: &str = include_str!("../../../conf/demo/nginx.conf");
const PAGE: &str = include_str!("../../../conf/demo/index.html");
/// The port unless `--port` says another.
const DEFAULT_PORT: u16 = 8080;
/// How long requests in flight may take once it is told to stop.
const DRAIN: Duration = Duration::from_secs(2);
const USAGE: &str = "Usage: ironweir demo [--port 8080]";
/// What there is to see.
const PLACES: &str = "  /backend    which of two backends answered
  /dashboard  its numbers in the browser; ironweir top: in the terminal
  /knobs      makes a backend slow, sick or small: /knobs?backend=two&latency=200
  /api        nginx Plus' API; /metrics: for Prometheus
Ctrl-C stops it.
";

/// Runs until Ctrl-C. `arguments` are those after `demo`.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if arguments.iter().any(|a| a == "--help" || a == "-h") {
        println!("{USAGE}\n\nA balancer, two backends and a start page. --port 0: any free port.");
        return ExitCode::SUCCESS;
    }
    match port(&arguments).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("ironweir demo: {text}");
            ExitCode::FAILURE
        }
    }
}

fn port(arguments: &[OsString]) -> Result<u16, String> {
    let mut port = DEFAULT_PORT;
    let mut arguments = arguments.iter().map(|a| a.to_string_lossy());
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix("--port") {
            Some("") => arguments.next(),
            Some(rest) => rest.strip_prefix('=').map(|v| v.to_owned().into()),
            None => return Err(format!("unknown argument \"{argument}\"\n{USAGE}")),
        };
        let value = value.ok_or_else(|| format!("--port needs a number\n{USAGE}"))?;
        port = value.parse().map_err(|_| format!("\"{value}\" is not a port\n{USAGE}"))?;
    }
    Ok(port)
}

fn serve(port: u16) -> Result<(), String> {
    // Before anything else: a Ctrl-C from here on is seen by the loop below, so that the directory is removed.
    let signals = Signals::open(&[libc::SIGINT, libc::SIGTERM, libc::SIGQUIT]).map_err(|e| format!("signals: {e}"))?;
    let port = free_port(port)?;
    let folder = Folder::new().map_err(|e| format!("a temporary directory: {e}"))?;
    let mut snapshot = read_configuration(&folder.0, port)?;
    write_page(&folder.0, port, &snapshot).map_err(|e| format!("{}: {e}", folder.0.display()))?;
    for directory in &snapshot.directories {
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    let log = snapshot.open_logs(&Default::default()).map_err(|(path, e)| format!("{}: {e}", path.display()))?;
    server::log::error::set_default_log(log);
    let snapshot = Arc::new(snapshot);
    crate::demo_backends::start(&folder.0).map_err(|e| format!("backends: {e}"))?;
    let listeners = Listeners::default().open(&snapshot.listens, snapshot.process.threads);
    let listeners = listeners.map_err(|_| "an address could not be listened on; the reason stands above".to_owned())?;
    let workers =
        Workers::start(&snapshot, &listeners.list, server::upgrade::move_over).map_err(|e| format!("threads: {e}"))?;
    server::modules::api::keep_history();
    println!("Ironweir {} is running: http://127.0.0.1:{port}/", env!("CARGO_PKG_VERSION"));
    print!("{PLACES}");
    while signals.next().is_none() {
        sys::poll(&[(signals.as_fd(), false)], None).map_err(|e| format!("poll: {e}"))?;
    }
    workers.drain(Some(DRAIN), |time| {
        std::thread::sleep(time);
        false
    });
    println!("\nstopped");
    Ok(())
}

/// The port itself, or any free one for 0; an error if somebody listens there. Worker threads share the port with
/// SO_REUSEPORT, which would also let a second demo share it: hence the look without it first.
fn free_port(port: u16) -> Result<u16, String> {
    let look = || -> std::io::Result<u16> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
        socket.listen(1)?;
        Ok(socket.local_addr()?.as_socket().map_or(port, |a| a.port()))
    };
    look().map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => format!("port {port} is in use; another: ironweir demo --port {}", next(port)),
        _ => format!("127.0.0.1:{port}: {e}"),
    })
}

fn next(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(DEFAULT_PORT)
}

fn read_configuration(folder: &Path, port: u16) -> Result<Snapshot, String> {
    let file = folder.join("nginx.conf");
    let mut bundle = conf::Bundle::default();
    bundle.add_file(file.clone(), configuration(folder, port));
    let which = Which { file, prefix: folder.to_owned(), globals: Vec::new(), error_log: None };
    let Reading { tree, problems, snapshot, .. } = read(&bundle, &which, 1);
    snapshot.ok_or_else(|| problems.iter().map(|p| p.render_line(&tree.sources)).collect::<Vec<_>>().join("\n"))
}

fn configuration(folder: &Path, port: u16) -> String {
    CONFIGURATION.replace("@DIR@", &folder.display().to_string()).replace("@PORT@", &port.to_string())
}

fn write_page(folder: &Path, port: u16, snapshot: &Snapshot) -> std::io::Result<()> {
    let threads = match snapshot.process.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    };
    let shown = configuration(folder, port).replace('&', "&amp;").replace('<', "&lt;");
    let page = PAGE
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@THREADS@", &threads)
        .replace("@PORT@", &port.to_string())
        .replace("@CONFIGURATION@", &shown);
    std::fs::write(folder.join("index.html"), page)
}

/// A directory that only this user can read, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("ironweir-demo-{}", std::process::id()));
        // What a killed process of the same number left behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
