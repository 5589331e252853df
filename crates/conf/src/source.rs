//! Where the text of a configuration comes from: the disk, or a recording of it. The master process, as root, reads
//! through a [`Recorder`] and hands the [`Bundle`] to the worker process, which reads the same files from it without
//! their rights. Also for keys, certificates and whatever else a configuration names.

mod bundle;
mod glob;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

pub use bundle::{BadBundle, Bundle, MAX_BUNDLE_BYTES};
pub use glob::{has_wildcard, matches};

/// The largest file that is read, in bytes. Offsets in a source are `u32`; a table of all networks of the world is 30 MB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads files by path. Errors carry the system's error number.
pub trait Files {
    /// The whole content.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The existing paths that match a pattern of glob(3), sorted by bytes; none is not an error.
    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let mut content = Vec::new();
        std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::from_raw_os_error(EFBIG));
        }
        Ok(content)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(glob::glob(pattern))
    }
}

/// "File too large".
const EFBIG: i32 = 27;

/// Passes everything through and remembers it, failures included.
#[derive(Debug)]
pub struct Recorder<F> {
    files: F,
    bundle: RefCell<Bundle>,
}

impl<F: Files> Recorder<F> {
    /// Records what is read from `files`.
    pub fn new(files: F) -> Recorder<F> {
        Recorder { files, bundle: RefCell::default() }
    }

    /// What was read so far.
    pub fn into_bundle(self) -> Bundle {
        self.bundle.into_inner()
    }
}

impl<F: Files> Files for Recorder<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let result = self.files.read(path);
        self.bundle.borrow_mut().record_file(path, &result);
        result
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let result = self.files.glob(pattern);
        self.bundle.borrow_mut().record_glob(pattern, &result);
        result
    }
}

impl<F: Files + ?Sized> Files for &F {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        (**self).read(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        (**self).glob(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_answers_like_the_disk() {
        let folder = std::env::temp_dir().join(format!("conf-recorder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        std::fs::write(folder.join("a.conf"), b"a;").expect("the temporary folder can be written");
        let pattern = folder.join("*.conf");

        let recorder = Recorder::new(Disk);
        let found = recorder.glob(&pattern).expect("glob of an own folder works");
        assert_eq!(found, [folder.join("a.conf")]);
        recorder.read(&found[0]).expect("the file is there");
        let missing = recorder.read(&folder.join("b")).expect_err("there is no such file");
        let is_folder = recorder.read(&folder).expect_err("a folder has no content");
        std::fs::remove_dir_all(&folder).expect("own folder");

        let bundle = recorder.into_bundle();
        let bundle = Bundle::from_bytes(&bundle.to_bytes()).expect("own bytes are read back");
        assert_eq!(bundle.glob(&pattern).expect("it was recorded"), found);
        assert_eq!(bundle.read(&found[0]).expect("it was recorded"), b"a;");
        let replayed = bundle.read(&folder.join("b")).expect_err("the failure was recorded");
        assert_eq!(replayed.raw_os_error(), missing.raw_os_error());
        let replayed = bundle.read(&folder).expect_err("the failure was recorded");
        assert_eq!(replayed.raw_os_error(), is_folder.raw_os_error());
    }
}
