//! Programs that tests run beside the server.

use std::process::{Child, Command};

/// A program that ends with the test.
pub struct Beside(pub Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of Debian's; said aloud where it is not there.
pub fn program(name: &str) -> Option<Command> {
    let found = ["/usr/bin", "/usr/local/bin", "/usr/sbin"].iter().map(|d| format!("{d}/{name}"));
    let found = found.into_iter().find(|p| std::path::Path::new(p).exists());
    if found.is_none() {
        println!("{name} is not installed: left out");
    }
    found.map(Command::new)
}
