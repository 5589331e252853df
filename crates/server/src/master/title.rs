//! What `ps` shows: `ironweir: master process ...`, `ironweir: worker process`. nginx's words, for scripts that look for them.

use super::sys::TitleArea;
use std::ffi::OsString;
use std::sync::OnceLock;

static AREA: OnceLock<Option<TitleArea>> = OnceLock::new();

/// Titles this process from now on. `arguments` are its own, which nobody can ask for afterwards.
pub(super) fn begin(arguments: &[OsString]) {
    AREA.get_or_init(TitleArea::take);
    let words: Vec<_> = arguments.iter().map(|a| a.to_string_lossy()).collect();
    set(&format!("master process {}", words.join(" ")));
}

/// Sets the title's text after `ironweir: `. Does nothing in a process that has no title (one that is also its master).
pub fn set(text: &str) {
    if let Some(Some(area)) = AREA.get() {
        area.set(&format!("ironweir: {text}"));
    }
}
