//! php-fpm with a short backlog and too few children: connects fail with EAGAIN. Then with a long one.

use super::{Bench, Outcome, Stop, failed, program};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Connections that come at once.
const CLIENTS: usize = 64;

/// The real php-fpm, which ends with the lab.
pub(super) struct Fpm {
    child: Child,
    pub(super) folder: PathBuf,
}

impl Drop for Fpm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let php = php()?;
    let full = |bench: &Bench, backlog: u32| -> Result<(usize, Fpm, Vec<Socket>), Stop> {
        let (fpm, socket) = start(bench, &php, backlog)?;
        let (connected, refused) = crowd(&socket)?;
        bench.say(&format!(
            "  php-fpm with listen.backlog = {backlog}: of {CLIENTS} connects {} succeed, {refused} fail with EAGAIN",
            connected.len()
        ));
        Ok((refused, fpm, connected))
    };
    let (refused, fpm, connected) = full(bench, 8)?;
    if refused == 0 {
        return Err(Stop::Failed("no connect failed".into()));
    }
    let finding = bench.found("unix-queue-full", &[])?;
    if !finding.cure.iter().any(|c| c.contains("listen.backlog")) {
        return Err(Stop::Failed(format!("php-fpm is not recognized: {:?}", finding.cure)));
    }
    drop((connected, fpm));
    let (refused, fpm, connected) = full(bench, 4096)?;
    if refused > 0 {
        return Err(Stop::Failed(format!("{refused} connects fail all the same")));
    }
    bench.gone("unix-queue-full", &[])?;
    drop((connected, fpm));
    Ok(())
}

/// The program.
pub(super) fn php() -> Result<String, Stop> {
    let names = ["php-fpm", "php-fpm8.4", "php-fpm8.3", "php-fpm8.2", "php-fpm8.1", "php-fpm7.4"];
    program(&names).ok_or_else(|| Stop::LeftOut("php-fpm is not installed".into()))
}

fn start(bench: &Bench, php: &str, backlog: u32) -> Result<(Fpm, PathBuf), Stop> {
    let fpm = Fpm::start(bench, php, |folder| {
        format!(
            "[lab]\nlisten = {folder}/fpm.sock\nlisten.backlog = {backlog}\nuser = nobody\npm = static\npm.max_children = 1\n"
        )
    })?;
    let socket = fpm.folder.join("fpm.sock");
    Ok((fpm, socket))
}

impl Fpm {
    /// Starts it with pools whose text is made for a folder; one of them listens on `fpm.sock` there.
    pub(super) fn start(bench: &Bench, php: &str, pools: impl Fn(&str) -> String) -> Result<Fpm, Stop> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let folder = std::env::temp_dir().join(format!("ironweir-lab-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(failed("a folder"))?;
        let (socket, conf) = (folder.join("fpm.sock"), folder.join("fpm.conf"));
        let shown = folder.display().to_string();
        let text = format!("[global]\nerror_log = {shown}/fpm.log\ndaemonize = no\n{}", pools(&shown));
        std::fs::write(&conf, text).map_err(failed("php-fpm's configuration"))?;
        let mut command = Command::new(php);
        command
            .arg("--nodaemonize")
            .arg("--fpm-config")
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut fpm = Fpm { child: command.spawn().map_err(failed("php-fpm"))?, folder };
        bench.wait("php-fpm does not listen", || {
            Path::new(&socket).exists() || !matches!(fpm.child.try_wait(), Ok(None))
        })?;
        match fpm.child.try_wait() {
            Ok(None) => Ok(fpm),
            _ => Err(Stop::LeftOut("php-fpm does not start here".into())),
        }
    }
}

/// Connections that ask nothing: the only child waits for the first one's request.
fn crowd(path: &Path) -> Result<(Vec<Socket>, usize), Stop> {
    let address = SockAddr::unix(path).map_err(failed("the socket's path"))?;
    let (mut connected, mut refused) = (Vec::new(), 0);
    for _ in 0..CLIENTS {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed("socket"))?;
        socket.set_nonblocking(true).map_err(failed("socket"))?;
        match socket.connect(&address) {
            Ok(()) => connected.push(socket),
            Err(e) if e.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => refused += 1,
            Err(e) => return Err(failed("connect")(e)),
        }
    }
    Ok((connected, refused))
}
