//! What `limit_req` and `limit_conn` have in common: zones with their keys, levels and statuses of refusals.

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::setting::Setting;
use crate::config::{Build, Scope};
use crate::log::error::Level;
use crate::log_error;
use crate::request::{Request, Text};
use conf::{Node, Problem};

/// Levels that limits may be logged with.
pub const LOG_LEVELS: &[(&str, Level)] =
    &[("info", Level::Info), ("notice", Level::Notice), ("warn", Level::Warn), ("error", Level::Error)];

/// The zones of a module by index.
#[derive(Debug)]
pub struct Zones<D>(Vec<Zone<D>>);

/// A zone, from its first mention on.
#[derive(Debug)]
pub struct Zone<D> {
    /// Its name.
    pub name: Box<[u8]>,
    /// What its own directive says, `D` being the module's part of it.
    pub declared: Option<Declared<D>>,
}

/// What a zone counts by, and with.
#[derive(Debug)]
pub struct Declared<D> {
    key: Complex,
    key_text: Box<[u8]>,
    /// The module's part.
    pub own: D,
}

impl<D> Default for Zones<D> {
    fn default() -> Self {
        Zones(Vec::new())
    }
}

impl<D> std::ops::Index<usize> for Zones<D> {
    type Output = Zone<D>;
    fn index(&self, index: usize) -> &Zone<D> {
        &self.0[index]
    }
}

impl<D> Zones<D> {
    /// The zones that were declared: names, and the module's part.
    pub fn declared(&self) -> impl Iterator<Item = (&[u8], &D)> {
        self.0.iter().filter_map(|z| z.declared.as_ref().map(|d| (&*z.name, &d.own)))
    }

    /// The zones that were declared: names, texts of keys, and the module's part.
    pub fn keyed(&self) -> impl Iterator<Item = (&[u8], &[u8], &D)> {
        self.0.iter().filter_map(|z| z.declared.as_ref().map(|d| (&*z.name, &*d.key_text, &d.own)))
    }

    /// A zone that was declared, and its index.
    pub fn find(&self, name: &[u8]) -> Option<(usize, &D)> {
        let index = self.0.iter().position(|z| *z.name == *name)?;
        Some((index, &self.0[index].declared.as_ref()?.own))
    }

    /// The index of a zone, used now for the first time or not.
    pub fn index_of(&mut self, name: &[u8]) -> usize {
        self.0.iter().position(|z| *z.name == *name).unwrap_or_else(|| {
            self.0.push(Zone { name: name.into(), declared: None });
            self.0.len() - 1
        })
    }

    /// Takes what the zone's directive says; `own` is asked once nothing else is wrong, with the key's text.
    pub fn declare(
        &mut self,
        index: usize,
        node: &Node,
        key: Complex,
        own: impl FnOnce(&[u8]) -> D,
    ) -> Result<(), Problem> {
        let zone = &mut self.0[index];
        if let Some(declared) = &zone.declared {
            let (name, key) = (String::from_utf8_lossy(&zone.name), String::from_utf8_lossy(&declared.key_text));
            return Err(node.problem(format!("{} \"{name}\" is already bound to key \"{key}\"", node.name.as_str())));
        }
        let key_text: Box<[u8]> = node.args[0].text.as_slice().into();
        let own = own(&key_text);
        zone.declared = Some(Declared { key, key_text, own });
        Ok(())
    }
}

impl<D> Declared<D> {
    /// A request's key; nothing if it is not limited: the key is empty, or longer than `longest` bytes, which is logged.
    pub fn key(&self, r: &mut Request, longest: usize) -> Option<Text> {
        let text = self.key.eval(r);
        let key = r.get(text);
        if key.len() > longest {
            let (name, key) = (String::from_utf8_lossy(&self.key_text), String::from_utf8_lossy(key));
            log_error!(r, Error, "the value of the \"{name}\" key is more than {longest} bytes: \"{key}\"");
            return None;
        }
        (!key.is_empty()).then_some(text)
    }
}

/// Uses a zone (`size` 0) or declares it, for `owner`, in the table of all zones. Gives its index in the module's.
pub fn zone_index<D>(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    (name, size): (&[u8], u64),
    owner: &'static str,
    zones: for<'b> fn(&'b mut Build<'_>) -> &'b mut Zones<D>,
) -> Result<usize, Problem> {
    scope.build.main.zones.add(name, size, owner).map_err(|t| node.problem(t))?;
    Ok(zones(scope.build).index_of(name))
}

/// `"x" must have "zone" parameter`
pub fn without_zone(node: &Node) -> Problem {
    node.problem(format!("\"{}\" must have \"zone\" parameter", node.name.as_str()))
}

/// The status that refusals have: 400 to 599.
pub fn refusal(setting: &mut Setting<u64>, node: &Node) -> Result<(), Problem> {
    setters::number(setting, node)?;
    if !(400..=599).contains(&**setting) {
        return Err(node.problem("value must be between 400 and 599".to_owned()));
    }
    Ok(())
}
