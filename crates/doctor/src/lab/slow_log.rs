//! An access log on a disk that takes its time (here: a pipe that is read slowly), found by `ironweir why`; then a log elsewhere.

use super::{Bench, Outcome, Stop, failed};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const PORT: u16 = 8080;
/// The pipe holds one line, which is taken so often: each write waits for that.
const PIPE: usize = 4_096;
const LINE: usize = 4_000;
const READS: Duration = Duration::from_millis(30);
/// Clients that ask without a pause.
const CLIENTS: usize = 8;

/// The server, and its folder, which end with the lab.
struct Server {
    child: Child,
    folder: PathBuf,
    over: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A killed master would leave its worker behind. The log is taken until that has written its last lines.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let _ = self.child.wait();
        self.over.store(true, Relaxed);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let program = std::env::current_exe().map_err(failed("the program"))?;
    if program.file_name().is_none_or(|name| name != "ironweir") {
        return Err(Stop::LeftOut("it needs the whole program".into()));
    }
    let folder = std::env::temp_dir().join(format!("ironweir-lab-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(failed("a folder"))?;
    let (over, pipe) = (Arc::new(AtomicBool::new(false)), folder.join("slow.log"));
    slow_disk(&pipe, over.clone())?;
    configure(&folder, "slow.log")?;
    let conf = folder.join("nginx.conf");
    let child = Command::new(&program)
        .arg("-p")
        .arg(&folder)
        .arg("-c")
        .arg(&conf)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server { child: child.map_err(failed("the server"))?, folder, over };
    bench.wait("the server does not listen", || TcpStream::connect(("127.0.0.1", PORT)).is_ok())?;
    for _ in 0..CLIENTS {
        let over = server.over.clone();
        std::thread::spawn(move || {
            while !over.load(Relaxed) {
                let _ = ask();
            }
        });
    }
    bench.say(&format!("  a server whose access_log takes a line each {READS:?}, and {CLIENTS} clients"));
    let found = |bench: &Bench| -> Result<Option<String>, Stop> {
        let said = why(&program)?;
        bench.say(&format!("  why: {}", said["sentence"].as_str().unwrap_or_default()));
        let others = said["others"].as_array().into_iter().flatten();
        let all = std::iter::once(&said["finding"]).chain(others).filter(|f| f["id"] == "log-write");
        Ok(all.map(|f| f["what"].as_str().unwrap_or_default().to_owned()).next())
    };
    match found(bench)? {
        Some(what) => bench.say(&format!("  found: {what}")),
        None => return Err(Stop::Failed("the slow log is not found".into())),
    }
    configure(&server.folder, "fast.log")?;
    bench.say("  access_log on another disk; reload");
    let reload =
        Command::new(&program).arg("-p").arg(&server.folder).arg("-c").arg(&conf).args(["-s", "reload"]).status();
    reload.map_err(failed("reload"))?;
    bench.wait("the new log has no line", || {
        std::fs::metadata(server.folder.join("fast.log")).is_ok_and(|m| m.len() > 0)
    })?;
    match found(bench)? {
        None => Ok(()),
        Some(what) => Err(Stop::Failed(format!("still: {what}"))),
    }
}

/// A pipe that is read a little at a time.
fn slow_disk(path: &Path, over: Arc<AtomicBool>) -> Outcome {
    let status = Command::new("mkfifo").arg(path).status().map_err(failed("mkfifo"))?;
    if !status.success() {
        return Err(Stop::LeftOut("mkfifo: no pipe can be made".into()));
    }
    let mut options = std::fs::OpenOptions::new();
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut pipe = options.read(true).write(true).custom_flags(flags).open(path).map_err(failed("the pipe"))?;
    rustix::pipe::fcntl_setpipe_size(&pipe, PIPE).map_err(|e| Stop::LeftOut(format!("a short pipe: {e}")))?;
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIPE];
        while !over.load(Relaxed) {
            std::thread::sleep(READS);
            let _ = pipe.read(&mut buffer);
        }
    });
    Ok(())
}

fn configure(folder: &Path, log: &str) -> Outcome {
    let text = format!(
        "daemon off; user root; pid {0}/nginx.pid; error_log {0}/error.log; events {{}} http {{ log_format wide '$request {1}'; access_log {0}/{log} wide; server {{ \
         listen 127.0.0.1:{PORT}; location / {{ return 200 ok; }} location /api {{ api; access_log off; }} }} }}\n",
        folder.display(),
        "x".repeat(LINE)
    );
    std::fs::write(folder.join("nginx.conf"), text).map_err(failed("the configuration"))
}

fn ask() -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: lab\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// What `ironweir why` says.
fn why(program: &Path) -> Result<Value, Stop> {
    let url = format!("http://127.0.0.1:{PORT}/api");
    let out = Command::new(program)
        .args(["why", "--json", "--interval", "4s", "--api", &url])
        .output()
        .map_err(failed("why"))?;
    serde_json::from_slice(&out.stdout)
        .map_err(|e| Stop::Failed(format!("why: {e}: {}", String::from_utf8_lossy(&out.stderr))))
}
