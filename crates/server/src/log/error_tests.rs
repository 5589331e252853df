//! Tests of the error log.

use super::*;

fn spec(path: &Path, level: Level) -> ErrorLogSpec {
    ErrorLogSpec { target: ErrorLogTarget::File(path.to_owned()), level }
}

/// A directory of its own that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ironweir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_line_has_nginx_s_shape_and_reaches_the_targets_of_its_level() {
    let dir = Scratch::new("log-shape");
    let (all, few) = (dir.0.join("all.log"), dir.0.join("few.log"));
    let log = ErrorLog::open(&[spec(&all, Level::Info), spec(&few, Level::Error)], &OpenFiles::default()).unwrap();
    assert!(log.enabled(Level::Info) && !log.enabled(Level::Debug));
    log.write(Level::Error, Some(7), format_args!("open() \"{}\" failed", "/x"));
    log.write(Level::Info, None, format_args!("client closed"));
    log.write(Level::Debug, None, format_args!("never"));
    let all = std::fs::read_to_string(all).unwrap();
    let ids = format!("{}#{}", std::process::id(), sys::thread_id());
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 2, "{all}");
    assert_eq!(&lines[0][19..], format!(" [error] {ids}: *7 open() \"/x\" failed"));
    assert_eq!((&lines[0][4..5], &lines[0][13..14]), ("/", ":"));
    assert_eq!(&lines[1][19..], format!(" [info] {ids}: client closed"));
    assert_eq!(std::fs::read_to_string(few).unwrap().lines().count(), 1);
}

#[test]
fn a_long_line_is_cut() {
    let dir = Scratch::new("log-long");
    let path = dir.0.join("error.log");
    let log = ErrorLog::open(&[spec(&path, Level::Error)], &OpenFiles::default()).unwrap();
    log.write(Level::Error, None, format_args!("{}", "x".repeat(5000)));
    log.write(Level::Error, None, format_args!("next"));
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text.find('\n'), Some(MAX_LINE - 1));
    assert!(text.ends_with(": next\n"));
}

#[test]
fn a_reopened_file_is_seen_by_every_holder() {
    let dir = Scratch::new("log-reopen");
    let path = dir.0.join("error.log");
    let files = OpenFiles::default();
    let log = ErrorLog::open(&[spec(&path, Level::Error)], &files).unwrap();
    log.write(Level::Error, None, format_args!("before"));
    std::fs::rename(&path, dir.0.join("error.log.1")).unwrap();
    files.find(&path).unwrap().reopen().unwrap();
    log.write(Level::Error, None, format_args!("after"));
    assert!(std::fs::read_to_string(dir.0.join("error.log.1")).unwrap().ends_with("before\n"));
    assert!(std::fs::read_to_string(path).unwrap().ends_with("after\n"));
}

#[test]
fn system_errors_are_written_as_nginx_does() {
    let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
    assert_eq!(Errno(&error).to_string(), "(98: Address already in use)");
}
