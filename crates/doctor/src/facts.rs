//! What the rules judge: the machine, and the configurations that were given.

use crate::configuration::Configuration;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// See the file. As JSON it is what `--record` writes and `--facts` reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The machine.
    pub machine: machine::Facts,
    /// Configurations: of the servers that run, and the one on the command line.
    #[serde(default)]
    pub configurations: Vec<Configuration>,
}

/// A file of facts larger than this was not written by the doctor.
const MOST_BYTES: u64 = 64 << 20;

impl Facts {
    /// Reads what `--record` wrote.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn load(path: &Path) -> Result<Facts, String> {
        let shown = path.display();
        let length = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?.len();
        if length > MOST_BYTES {
            return Err(format!("{shown}: {length} bytes are no recorded facts"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))?;
        let facts: Facts = serde_json::from_str(&text).map_err(|e| format!("{shown}: no recorded facts ({e})"))?;
        if facts.machine.format > machine::facts::FORMAT {
            return Err(format!("{shown}: was written by a newer doctor (format {})", facts.machine.format));
        }
        Ok(facts)
    }
}
