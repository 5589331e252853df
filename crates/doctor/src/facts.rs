//! What the rules judge: the machine, and the configurations that were given.

use crate::configuration::{self, Configuration, Listen};
use crate::error_log::{self, Told};
use crate::serving::{Look, Serving};
use api_client::{Client, Trust};
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
    /// Who holds UDP sockets at ports on which a configuration listens.
    #[serde(default)]
    pub udp_holders: Vec<Holder>,
    /// Telling lines of the configurations' error logs.
    #[serde(default)]
    pub told: Vec<Told>,
    /// What an Ironweir says of itself, where one was asked.
    #[serde(default)]
    pub serving: Option<Serving>,
    /// The same of other ones on this machine.
    #[serde(default)]
    pub others: Vec<Serving>,
}

/// See [`Facts::takers`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taker {
    /// Its connection.
    pub connection: User,
    /// Its name and process, where those can be seen.
    pub holder: Option<(u32, String)>,
}

/// See [`Facts::udp_holders`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// The socket.
    pub inode: u64,
    /// The process, and its name.
    pub pid: u32,
    /// See `pid`.
    pub name: String,
}

/// UDP sockets whose holders are looked for: each is a look at every process.
const MOST_UDP: usize = 64;

/// Servers that are asked.
const MOST_SERVERS: usize = 16;
/// How long one may take for each answer: what is in its way may be in ours.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

/// A file of facts larger than this was not written by the doctor.
const MOST_BYTES: u64 = 64 << 20;

impl Facts {
    /// Looks at this machine, and asks the servers behind some APIs before and after. Without a configuration: at those of the servers that run.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn read_with(pause: Duration, file: Option<&Path>, apis: &[String]) -> Result<Facts, String> {
        let clients: Vec<Client> = apis
            .iter()
            .take(MOST_SERVERS)
            .map(|url| Client::new(url, &Trust::Blind, None).map(|c| c.with_patience(PATIENCE)))
            .collect::<Result<_, _>>()?;
        let before: Vec<_> = clients.iter().map(Look::over).collect();
        let mut facts = Facts::read(pause, file)?;
        let mut said = Vec::new();
        for (client, before) in clients.iter().zip(before) {
            match before.and_then(|before| Ok(Serving::between(&before, &Look::over(client)?))) {
                Ok(serving) => said.push(serving),
                Err(failure) => {
                    let text = String::from(failure);
                    facts.machine.missing.push(format!("what a server says of itself at {}: {text}", client.url()));
                }
            }
        }
        let mut said = said.into_iter();
        facts.serving = said.next();
        facts.others = said.collect();
        Ok(facts)
    }

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
        let udp_holders = Facts::udp_holders(&machine, &configurations);
        Ok(Facts { machine, configurations, takers, udp_holders, told, ..Facts::default() })
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
        let listens = configurations.iter().flat_map(|c| &c.listens).filter(|l| !l.is_udp);
        let ports: Vec<u16> = listens.flat_map(Listen::ports).collect();
        let users = if ports.is_empty() { Vec::new() } else { sockets::users(&ports).unwrap_or_default() };
        let taker = |connection: User| {
            let holder = machine::processes::holders(connection.inode).into_iter().next();
            Taker { holder, connection }
        };
        users.into_iter().map(taker).collect()
    }

    fn udp_holders(machine: &machine::Facts, configurations: &[Configuration]) -> Vec<Holder> {
        let listens = || configurations.iter().flat_map(|c| &c.listens).filter(|l| l.is_udp);
        let bound = machine.sockets.udp.iter().filter(|b| listens().any(|l| l.has(b.port))).take(MOST_UDP);
        let holder = |inode| {
            let (pid, name) = machine::processes::holders(inode).into_iter().next()?;
            Some(Holder { inode, pid, name })
        };
        bound.filter_map(|b| holder(b.inode)).collect()
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
