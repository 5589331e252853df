//! A file without a name for what a client has not taken yet of an answer (`proxy_max_temp_file_size`). Part of `relay`.

use crate::log_error;
use crate::request::Request;
use crate::temp::TempPath;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The file of one answer.
#[derive(Default)]
pub(super) enum Spool {
    /// It was not needed yet.
    #[default]
    None,
    /// It is there, with so many bytes.
    Open(Rc<OwnedFd>, u64),
    /// It cannot be written, which was said once: the peer is held in its place.
    Refused(u64),
}

impl Spool {
    /// Bytes in the file.
    pub(super) fn written(&self) -> u64 {
        match self {
            Spool::None => 0,
            Spool::Open(_, written) | Spool::Refused(written) => *written,
        }
    }

    /// Whether more may be written.
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self, Spool::Refused(_))
    }

    /// Nothing is written any more.
    pub(super) fn refuse(&mut self) {
        *self = Spool::Refused(self.written());
    }

    /// Writes a piece and says where it is; the file is made in the directory of `proxy_temp_path` for the first one. None: it
    /// could not be, which is logged once.
    pub(super) fn append(&mut self, r: &Request, directory: &TempPath, bytes: &[u8]) -> Option<(Rc<OwnedFd>, u64)> {
        if let Spool::None = self {
            *self = open(r, directory);
        }
        let Spool::Open(file, written) = self else { return None };
        let offset = *written;
        if let Err(e) = crate::temp::write_file(file, bytes, offset) {
            log_error!(r, Crit, "pwrite() of a temporary file failed ({})", crate::log::os_error(&e));
            self.refuse();
            return None;
        }
        *written += bytes.len() as u64;
        Some((file.clone(), offset))
    }
}

fn open(r: &Request, directory: &TempPath) -> Spool {
    match crate::temp::create(directory) {
        Ok((file, path)) => {
            let _ = std::fs::remove_file(&path);
            let shown = path.display();
            log_error!(r, Warn, "an upstream response is buffered to a temporary file {shown}");
            Spool::Open(Rc::new(file), 0)
        }
        Err((path, e)) => {
            log_error!(r, Crit, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            Spool::Refused(0)
        }
    }
}
