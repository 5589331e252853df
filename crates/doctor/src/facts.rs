//! What the rules judge: the machine, and the configurations that were given.

use crate::configuration::{self, Configuration};
use crate::error_log::{self, Told};
use crate::serving::Serving;
use machine::sockets::{self, User};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// See the file. As JSON it is what `--record` writes and `--facts` reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The machine.
    pub machine: machine::Facts,
    /// Configurations: of the servers that run, and the one on the command line.
    #[serde(default)]
    pub configurations: Vec<Configuration>,
    /// Clients that have a port on which a configuration listens and nobody does.
    #[serde(default)]
    pub takers: Vec<Taker>,
    /// Telling lines of the configurations' error logs.
    #[serde(default)]
    pub told: Vec<Told>,
    /// What an Ironweir says of itself, where one was asked.
    #[serde(default)]
    pub serving: Option<Serving>,
}

/// See [`Facts::takers`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taker {
    /// Its connection.
    pub connection: User,
    /// Its name and process, where those can be seen.
    pub holder: Option<(u32, String)>,
}

/// A file of facts larger than this was not written by the doctor.
const MOST_BYTES: u64 = 64 << 20;

impl Facts {
    /// Looks at this machine. Without a configuration: at those of the servers that run.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn read(pause: Duration, file: Option<&Path>) -> Result<Facts, String> {
        let machine = machine::Facts::read(pause);
        let configurations = match file {
            Some(file) => vec![Configuration::load(file)?],
            None => configuration::of_running(&machine),
        };
        let takers = Facts::takers(&configurations);
        let told = Facts::told(&configurations);
        Ok(Facts { machine, configurations, takers, told, serving: None })
    }

    /// What the error logs of these configurations say.
    pub(crate) fn told(configurations: &[Configuration]) -> Vec<Told> {
        let mut logs: Vec<String> = configurations.iter().flat_map(Configuration::error_logs).collect();
        logs.sort();
        logs.dedup();
        error_log::telling(&logs)
    }

    /// Clients on this machine that have a port of one of these configurations.
    pub(crate) fn takers(configurations: &[Configuration]) -> Vec<Taker> {
        let listens = configurations.iter().flat_map(|c| &c.listens);
        let ports: Vec<u16> = listens.map(|l| l.port).filter(|p| *p != 0).collect();
        let users = if ports.is_empty() { Vec::new() } else { sockets::users(&ports).unwrap_or_default() };
        let taker = |connection: User| {
            let holder = machine::processes::holders(connection.inode).into_iter().next();
            Taker { holder, connection }
        };
        users.into_iter().map(taker).collect()
    }

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
