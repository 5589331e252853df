//! A server of a lab: a program with a configuration in a folder of its own, both gone with the lab.

use super::{Outcome, Stop, failed};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder of a lab.
pub(super) struct Folder(pub(super) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    pub(super) fn new(name: &str) -> Result<Folder, Stop> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("ironweir-lab-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(failed("a folder"))?;
        Ok(Folder(path))
    }

    /// Writes `nginx.conf`; `@DIR@` in it is the folder.
    pub(super) fn configure(&self, text: &str) -> Outcome {
        let text = text.replace("@DIR@", &self.0.display().to_string());
        std::fs::write(self.0.join("nginx.conf"), text).map_err(failed("the configuration"))
    }
}

/// The program that a lab is a part of, if that is the server itself.
pub(super) fn own_program() -> Result<PathBuf, Stop> {
    let program = std::env::current_exe().map_err(failed("the program"))?;
    if program.file_name().is_none_or(|name| name != "ironweir") {
        return Err(Stop::LeftOut("it needs the whole program".into()));
    }
    Ok(program)
}

/// A server that runs.
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // A killed master would leave its worker behind.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Server {
    /// Starts it with the folder's configuration, which says `daemon off`.
    pub(super) fn start(program: &Path, folder: &Folder) -> Result<Server, Stop> {
        let mut command = Command::new(program);
        command.arg("-p").arg(&folder.0).arg("-c").arg(folder.0.join("nginx.conf"));
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Server(quiet.spawn().map_err(failed("the server"))?))
    }
}
