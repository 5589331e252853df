//! Directories and ports that belong to one test.

use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// When all files were last changed: 1 January 2026.
const WRITTEN: Duration = Duration::from_secs(1_767_225_600);

/// A directory below the system's temporary one, readable by all (workers are not root), removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        use std::os::unix::fs::PermissionsExt;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ironweir-test-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it.
    pub fn make(&self, name: &str) {
        std::fs::create_dir_all(self.0.join(name)).expect("a directory in ours");
    }

    /// Writes a file in it, with the directories above it. All have the same time, so that two servers' answers about
    /// their own copies can be compared.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("it is below the directory")).expect("a directory in ours");
        std::fs::write(&path, content).expect("a file in ours");
        let file = std::fs::File::options().write(true).open(&path).expect("just written");
        file.set_modified(SystemTime::UNIX_EPOCH + WRITTEN).expect("it is ours");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port of 127.0.0.1 that nobody else is given. The socket is bound but does not listen: with SO_REUSEADDR on both, the
/// server may bind the same port, and until it does, connections are refused.
pub struct Port {
    _socket: Socket,
    pub number: u16,
}

impl Port {
    pub fn reserve() -> Port {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket.set_reuse_port(true).expect("an option");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("the kernel gives a port");
        let number = socket.local_addr().ok().and_then(|a| a.as_socket()).expect("it is bound").port();
        Port { _socket: socket, number }
    }
}
