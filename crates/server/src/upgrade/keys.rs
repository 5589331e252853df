//! What a configuration calls its servers, locations, variables and listeners, so that another process finds those of the same name. A name
//! that occurs twice is told apart by which of its likes it is.

use crate::snapshot::ThreadSnapshot;
use crate::worker;
use crate::worker::departure::Names;
use heir::{Frame, Table};
use std::collections::HashMap;
use std::fmt::Write;

/// Names by number.
pub(super) struct Keys {
    listeners: Vec<String>,
    variables: Vec<String>,
    servers: Vec<Vec<u8>>,
    locations: Vec<Vec<u8>>,
}

/// Makes names unlike each other.
#[derive(Default)]
struct Likes(HashMap<Vec<u8>, usize>);

impl Likes {
    fn name(&mut self, mut name: Vec<u8>) -> Vec<u8> {
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            name.extend_from_slice(format!("#{count}").as_bytes());
        }
        name
    }
}

impl Keys {
    /// Those of a configuration, as this thread has it.
    pub(super) fn of(snapshot: &ThreadSnapshot) -> Keys {
        let mut likes = Likes::default();
        let servers: Vec<Vec<u8>> = snapshot.servers.iter().map(|server| likes.name(server.name.to_vec())).collect();
        // Levels have their numbers in the order of the text: those of a server follow its own.
        let mut roots: Vec<(u32, &[u8])> =
            snapshot.servers.iter().zip(&servers).map(|(s, k)| (s.root.0, &k[..])).collect();
        roots.sort_unstable();
        let mut likes = Likes::default();
        let locations = snapshot.locations.iter().enumerate().map(|(number, location)| {
            let after = roots.partition_point(|(root, _)| *root as usize <= number);
            let server = after.checked_sub(1).map_or(&b""[..], |at| roots[at].1);
            let mut matching = String::new();
            let _ = write!(matching, " {:?} ", location.matching);
            likes.name([server, matching.as_bytes(), &location.name].concat())
        });
        Keys {
            locations: locations.collect(),
            listeners: worker::listener_addresses(),
            variables: snapshot.variables.iter().map(|variable| variable.name.to_string()).collect(),
            servers,
        }
    }

    /// As they are said to another process.
    pub(super) fn table(&self, generation: u64) -> Table<'_> {
        Table {
            generation,
            listeners: self.listeners.iter().map(String::as_bytes).collect(),
            variables: self.variables.iter().map(String::as_bytes).collect(),
            servers: self.servers.iter().map(Vec::as_slice).collect(),
            locations: self.locations.iter().map(Vec::as_slice).collect(),
        }
    }
}

impl Names for ThreadSnapshot {
    fn generation(&self) -> u64 {
        self.snapshot().generation
    }

    fn table(&self) -> Vec<u8> {
        Frame::Table(Keys::of(self).table(self.generation())).write()
    }
}
