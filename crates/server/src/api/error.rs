//! What can be wrong with a call, with nginx Plus' codes and texts.

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status.
    pub status: u16,
    /// A name that programs know.
    pub code: &'static str,
    /// What people read.
    pub text: String,
    /// The methods that there are instead.
    pub allow: Option<String>,
}

impl Failure {
    /// Any failure.
    pub fn new(status: u16, code: &'static str, text: impl Into<String>) -> Failure {
        Failure { status, code, text: text.into(), allow: None }
    }

    /// The version is none of ours.
    pub fn unknown_version() -> Failure {
        Failure::new(404, "UnknownVersion", "unknown version")
    }

    /// Nobody knows the path.
    pub fn path_not_found() -> Failure {
        Failure::new(404, "PathNotFound", "path not found")
    }

    /// The endpoint has other methods.
    pub fn not_allowed(allow: String) -> Failure {
        Failure { allow: Some(allow), ..Failure::new(405, "MethodNotAllowed", "method not allowed") }
    }

    /// The method changes something, and nobody said `write=on`.
    pub fn method_disabled() -> Failure {
        Failure { allow: Some("GET, HEAD".to_owned()), ..Failure::new(405, "MethodDisabled", "method disabled") }
    }
}
