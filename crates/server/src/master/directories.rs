//! Directories that the worker writes to: made by the master with its rights, so that the worker's user can use them. What is
//! there already keeps its rights; where they are in the way, the log says so.

use super::start::Refused;
use super::sys;
use crate::log::error::Errno;
use crate::process_settings::{DirectorySpec, ProcessSettings, User};
use crate::server_log;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Permission bits of parents that were missing: whoever may be in the directory below must get there.
const PARENT_MODE: u32 = 0o755;
/// Permission bits in every class: to write to a directory, and to get through one.
const WRITE: u32 = 0o3;
const PASS: u32 = 0o1;

/// Makes the directories that are missing, with their parents, and gives them to the worker's user when the caller is root.
pub fn create_directories(directories: &[DirectorySpec], process: &ProcessSettings) -> Result<(), Refused> {
    let user = worker_of(process);
    let mut outcome = Ok(());
    for directory in directories {
        match create(&directory.path, directory.mode, user) {
            Ok(()) => warn_of_barriers(&directory.path, user),
            Err((step, path, e)) => {
                server_log!(Emerg, "{step} \"{}\" failed {}", path.display(), Errno(&e));
                outcome = Err(Refused);
            }
        }
    }
    outcome
}

/// Makes missing directories of files that the worker replaces (`state`), and warns of those in which it cannot.
pub(super) fn prepare_for_files(files: &[PathBuf], process: &ProcessSettings) -> Result<(), Refused> {
    let user = worker_of(process);
    let mut outcome = Ok(());
    for file in files {
        let Some(directory) = file.parent() else { continue };
        if let Err((step, path, e)) = create(directory, PARENT_MODE, user) {
            server_log!(Emerg, "{step} \"{}\" failed {}", path.display(), Errno(&e));
            outcome = Err(Refused);
            continue;
        }
        warn_of_barriers(directory, user);
        if !allows(directory, user, WRITE) {
            let (file, directory) = (file.display(), directory.display());
            let name = user.map_or("this user", |user| &user.name);
            server_log!(
                Warn,
                "\"{file}\" can be read, but not written by {name}: \"{directory}\" would have to belong to {name}"
            );
        }
    }
    outcome
}

/// Who the worker will be, if that is not who asks.
fn worker_of(process: &ProcessSettings) -> Option<&User> {
    process.user.as_ref().filter(|_| sys::effective_uid() == 0)
}

/// Errors name the step and the path.
fn create(path: &Path, mode: u32, user: Option<&User>) -> Result<(), (&'static str, PathBuf, io::Error)> {
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |e| (step, path, e)
    };
    let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    for made in missing.iter().rev() {
        let mode = if *made == path { mode } else { PARENT_MODE };
        match std::fs::DirBuilder::new().mode(mode).create(made) {
            // Made by somebody else meanwhile: it is theirs.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created.map_err(failed("mkdir()", made))?,
        }
        // The umask of whoever calls has no say in this.
        std::fs::set_permissions(made, PermissionsExt::from_mode(mode)).map_err(failed("chmod()", made))?;
        if let Some(user) = user {
            std::os::unix::fs::chown(made, Some(user.uid), None).map_err(failed("chown()", made))?;
        }
    }
    let Some(user) = user.filter(|_| mode != PARENT_MODE) else { return Ok(()) };
    if std::fs::metadata(path).map_err(failed("stat()", path))?.uid() != user.uid {
        std::os::unix::fs::chown(path, Some(user.uid), None).map_err(failed("chown()", path))?;
    }
    Ok(())
}

/// Warns of directories above through which the worker's user does not get.
fn warn_of_barriers(path: &Path, user: Option<&User>) {
    let Some(user) = user else { return };
    let above = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty());
    if let Some(barrier) = above.filter(|p| !allows(p, Some(user), PASS)).last() {
        let (path, barrier, name) = (path.display(), barrier.display(), &user.name);
        server_log!(Warn, "\"{path}\" is out of reach for {name}: \"{barrier}\" lets only others through (chmod o+x)");
    }
}

/// Whether the permission bits let the worker's user do something in a directory. Of groups only the user's own is known here:
/// another group, and access lists, which show as its bits, may let it.
fn allows(directory: &Path, user: Option<&User>, wanted: u32) -> bool {
    let Ok(facts) = std::fs::metadata(directory) else { return false };
    let (uid, gid) = user.map_or_else(|| (sys::effective_uid(), facts.gid()), |user| (user.uid, user.gid));
    let mode = facts.mode();
    let has = |class: u32| mode >> class & wanted == wanted;
    match () {
        () if uid == 0 => true,
        () if facts.uid() == uid => has(6),
        () if facts.gid() == gid => has(3),
        () => has(0) || has(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").mode() & 0o777
    }

    #[test]
    fn parents_let_others_through_and_what_is_there_stays() {
        let dir = std::env::temp_dir().join(format!("ironweir-directories-{}", std::process::id()));
        let specs = [DirectorySpec { path: dir.join("a/b/c"), mode: 0o700 }];
        create_directories(&specs, &ProcessSettings::default()).expect("a temporary directory");
        assert_eq!((mode(&dir.join("a")), mode(&dir.join("a/b")), mode(&dir.join("a/b/c"))), (0o755, 0o755, 0o700));
        let file = dir.join("s/t/state.json");
        prepare_for_files(&[file, dir.join("a/b/c/state")], &ProcessSettings::default())
            .expect("a temporary directory");
        assert_eq!((mode(&dir.join("s/t")), mode(&dir.join("a/b/c"))), (0o755, 0o700));
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }
}
