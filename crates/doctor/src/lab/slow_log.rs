//! An access log on a disk that takes its time (here: a pipe that is read slowly), found by `ironweir why`; then a log elsewhere.

use super::server::{Folder, Server, own_program};
use super::{Bench, Outcome, Stop, failed};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const PORT: u16 = 8080;
/// The pipe holds one line, which is taken so often: each write waits for that.
const PIPE: usize = 4_096;
const LINE: usize = 4_000;
const READS: Duration = Duration::from_millis(10);
/// Clients that ask without a pause: each line of theirs holds the server's thread for as long as the pipe takes.
const CLIENTS: usize = 3;

/// Says that the lab is over, whatever way it ends, to the threads that read the pipe and ask.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let (program, folder) = (own_program()?, Folder::new("log")?);
    // The server ends before who reads its log does.
    let over = Over(Arc::default());
    let pipe = folder.0.join("slow.log");
    slow_disk(&pipe, over.0.clone())?;
    configure(&folder, "slow.log")?;
    let _server = Server::start(&program, &folder)?;
    bench.wait("the server does not listen", || TcpStream::connect(("127.0.0.1", PORT)).is_ok())?;
    for _ in 0..CLIENTS {
        let over = over.0.clone();
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
        let first = &said["finding"];
        Ok((first["id"] == "log-write").then(|| first["what"].as_str().unwrap_or_default().to_owned()))
    };
    match found(bench)? {
        Some(what) => bench.say(&format!("  found: {what}")),
        None => return Err(Stop::Failed("the slow log is not what is named first".into())),
    }
    configure(&folder, "fast.log")?;
    bench.say("  access_log on another disk; reload");
    let conf = folder.0.join("nginx.conf");
    let reload = Command::new(&program).arg("-p").arg(&folder.0).arg("-c").arg(&conf).args(["-s", "reload"]).status();
    reload.map_err(failed("reload"))?;
    bench
        .wait("the new log has no line", || std::fs::metadata(folder.0.join("fast.log")).is_ok_and(|m| m.len() > 0))?;
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

fn configure(folder: &Folder, log: &str) -> Outcome {
    folder.configure(&format!(
        "daemon off; user root; pid @DIR@/nginx.pid; error_log @DIR@/error.log; events {{}} http {{ log_format wide '$request {0}'; access_log @DIR@/{log} wide; server {{ \
         listen 127.0.0.1:{PORT}; location / {{ return 200 ok; }} location /api {{ api; access_log off; }} }} }}\n",
        "x".repeat(LINE)
    ))
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
        .args(["why", "--json", "--interval", "2s", "--api", &url])
        .output()
        .map_err(failed("why"))?;
    serde_json::from_slice(&out.stdout)
        .map_err(|e| Stop::Failed(format!("why: {e}: {}", String::from_utf8_lossy(&out.stderr))))
}
