//! The names of `TX` variables that a rule set mentions. Each has a number, its slot, so that a running rule looks nothing up.

use crate::keyed::Keyed;
use std::collections::HashMap;

/// Slots 0 to 9 are what expressions capture: `TX:0` to `TX:9`.
pub(crate) const CAPTURES: usize = 10;

/// Names and their slots; names are in small letters.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    names: Vec<Box<[u8]>>,
    slots: HashMap<Box<[u8]>, u32, Keyed>,
}

impl Default for Names {
    fn default() -> Names {
        let mut names = Names { names: Vec::new(), slots: HashMap::default() };
        for number in 0..CAPTURES {
            names.slot(number.to_string().as_bytes());
        }
        names
    }
}

impl Names {
    /// The slot of a name, a new one if need be.
    pub(crate) fn slot(&mut self, name: &[u8]) -> u32 {
        let name: Box<[u8]> = name.to_ascii_lowercase().into();
        if let Some(slot) = self.slots.get(&name) {
            return *slot;
        }
        let slot = self.names.len() as u32;
        self.names.push(name.clone());
        self.slots.insert(name, slot);
        slot
    }

    /// The slot of a name, in small letters, that the rules mention.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.slots.get(name).copied()
    }

    /// The name of a slot.
    pub(crate) fn name(&self, slot: u32) -> &[u8] {
        &self.names[slot as usize]
    }

    /// How many slots there are.
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }
}
