//! A file without a name for what a client has not taken yet of an answer (`proxy_max_temp_file_size`). Part of `relay`.

use crate::log_error;
use crate::request::Request;
use crate::temp::TempPath;
use std::os::fd::OwnedFd;
use std::rc::Rc;

pub(super) struct Spool {
    fd: Rc<OwnedFd>,
    written: u64,
}

impl Spool {
    /// An empty file in the directory of `proxy_temp_path`. None: why not is logged.
    pub(super) fn create(r: &Request, directory: &TempPath) -> Option<Spool> {
        match crate::temp::create(directory) {
            Ok((fd, path)) => {
                let _ = std::fs::remove_file(&path);
                let shown = path.display();
                log_error!(r, Warn, "an upstream response is buffered to a temporary file {shown}");
                Some(Spool { fd: Rc::new(fd), written: 0 })
            }
            Err((path, e)) => {
                log_error!(r, Crit, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
                None
            }
        }
    }

    /// Bytes in the file.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes a piece and says where it is. None: why not is logged.
    pub(super) fn append(&mut self, r: &Request, bytes: &[u8]) -> Option<(Rc<OwnedFd>, u64)> {
        let offset = self.written;
        if let Err(e) = crate::request::body::write_file(&self.fd, bytes, offset) {
            log_error!(r, Crit, "pwrite() of a temporary file failed ({})", crate::log::os_error(&e));
            return None;
        }
        self.written += bytes.len() as u64;
        Some((self.fd.clone(), offset))
    }
}
