//! Names of variables while a configuration is read, and what they became when it is done: a table by index.

use super::Subsystem;
use crate::log_error;
use crate::request::Request;
use crate::request::arena::Text;
use crate::snapshot::VariableId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Makes a variable's value; `None` is nginx's `not found`.
pub type Evaluate = Arc<dyn Fn(&mut Request) -> Option<Text> + Send + Sync>;

/// Takes a value that `set` assigns.
pub type Assign = fn(&mut Request, Text);

/// One variable.
#[derive(Clone)]
pub struct Variable {
    /// Its name, without `$`.
    pub name: Box<str>,
    /// What makes its value; none for those that only `set` and patterns give.
    pub evaluate: Option<Evaluate>,
    /// Evaluated anew each time (nginx's `NGX_HTTP_VAR_NOCACHEABLE`).
    pub volatile: bool,
    /// What `set` does in place of storing the value.
    pub assign: Option<Assign>,
}

struct Definition {
    evaluate: Option<Evaluate>,
    volatile: bool,
    changeable: bool,
    assign: Option<Assign>,
}

/// A row of a module's variables.
pub struct Builtin {
    /// The name.
    pub name: &'static str,
    /// What makes its value.
    pub evaluate: fn(&mut Request) -> Option<Text>,
    /// Evaluated anew each time.
    pub volatile: bool,
    /// `set` may assign it.
    pub assign: Option<Assign>,
}

/// A rule for all names with a prefix, such as `http_`. The function gets the rest of the name.
pub struct Prefix {
    /// The prefix.
    pub name: &'static str,
    /// What makes the value.
    pub evaluate: fn(&mut Request, &str) -> Option<Text>,
    /// Evaluated anew each time.
    pub volatile: bool,
}

/// Whether `set` and others may give a built-in variable a value that stands in place of its own (nginx's `NGX_HTTP_VAR_CHANGEABLE`);
/// those that do something with it have an `assign`.
pub fn is_changeable(name: &str) -> bool {
    const NAMES: [&str; 6] =
        ["proxy_host", "proxy_port", "msie", "ancient_browser", "modern_browser", "invalid_referer"];
    let of_tls = name.starts_with("ssl_") && !name.starts_with("ssl_preread_");
    // nginx has these where their module is loaded: other configurations define them with `geoip2` or `map`.
    let of_databases = name.starts_with("geoip_");
    of_tls || of_databases || NAMES.contains(&name)
}

/// The names seen so far.
#[derive(Default)]
pub struct Variables {
    subsystem: Subsystem,
    defined: HashMap<Box<str>, Definition>,
    indexes: HashMap<Box<str>, VariableId>,
    names: Vec<Box<str>>,
    /// What is compiled now counts only where there are servers: `Build::for_servers`.
    pub for_servers: bool,
    /// Variables that nothing else has named so far.
    only_for_servers: HashSet<VariableId>,
}

impl Variables {
    /// Holds the variables of all modules.
    pub fn new(subsystem: Subsystem) -> Variables {
        let mut v = Variables { subsystem, ..Variables::default() };
        for b in crate::modules::builtins(subsystem) {
            let evaluate: Evaluate = Arc::new(b.evaluate);
            let changeable = b.assign.is_some() || is_changeable(b.name);
            v.defined.insert(
                b.name.into(),
                Definition { evaluate: Some(evaluate), volatile: b.volatile, changeable, assign: b.assign },
            );
        }
        v
    }

    /// The index of a variable that is used; whether it exists is asked at the end, since it may be defined below.
    pub fn index(&mut self, name: &[u8]) -> VariableId {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase().into_boxed_str();
        if let Some(id) = self.indexes.get(&name) {
            if !self.for_servers {
                self.only_for_servers.remove(id);
            }
            return *id;
        }
        let id = VariableId(self.names.len() as u32);
        if self.for_servers {
            self.only_for_servers.insert(id);
        }
        self.names.push(name.clone());
        self.indexes.insert(name, id);
        id
    }

    /// Defines a variable that a directive makes (`map`, `geo`, ...). Error: `the duplicate "x" variable`.
    pub fn define(&mut self, name: &[u8], volatile: bool, evaluate: Evaluate) -> Result<VariableId, String> {
        let key = String::from_utf8_lossy(name).to_ascii_lowercase().into_boxed_str();
        if self.defined.get(&key).is_some_and(|d| !d.changeable) {
            return Err(format!("the duplicate \"{key}\" variable"));
        }
        self.defined.insert(key, Definition { evaluate: Some(evaluate), volatile, changeable: true, assign: None });
        Ok(self.index(name))
    }

    /// Declares a variable that `set` or another directive assigns. Error: `the duplicate "x" variable`.
    pub fn declare(&mut self, name: &[u8]) -> Result<VariableId, String> {
        let key = String::from_utf8_lossy(name).to_ascii_lowercase().into_boxed_str();
        match self.defined.get(&key) {
            Some(d) if !d.changeable => return Err(format!("the duplicate \"{key}\" variable")),
            Some(_) => {}
            None if self.prefix(&key).is_some() && !key.starts_with("arg_") => {}
            None => {
                let shown: Box<str> = key.clone();
                let evaluate: Evaluate = Arc::new(move |r: &mut Request| uninitialized(r, &shown));
                self.defined.insert(
                    key,
                    Definition { evaluate: Some(evaluate), volatile: false, changeable: true, assign: None },
                );
            }
        }
        Ok(self.index(name))
    }

    /// Declares a variable that a directive assigns; until then it is not found, and nobody is warned.
    pub fn declare_quietly(&mut self, name: &[u8]) -> Result<VariableId, String> {
        let key = String::from_utf8_lossy(name).to_ascii_lowercase();
        let known = self.defined.contains_key(&*key);
        let id = self.declare(name)?;
        if !known && let Some(d) = self.defined.get_mut(&*key) {
            d.evaluate = None;
        }
        Ok(id)
    }

    /// The index of a variable that is used somewhere.
    pub fn known(&self, name: &str) -> Option<VariableId> {
        self.indexes.get(name).copied()
    }

    /// What `set` does in place of storing.
    pub fn assign_hook(&self, name: &[u8]) -> Option<Assign> {
        let key = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.defined.get(&*key).and_then(|d| d.assign)
    }

    /// The table by index. `servers`: whether there are any; without them nobody evaluates what is for them. Errors: `unknown "x" variable`.
    pub fn finish(&self, servers: bool) -> Result<Vec<Variable>, Vec<String>> {
        let mut table = Vec::with_capacity(self.names.len());
        let mut unknown = Vec::new();
        for (number, name) in self.names.iter().enumerate() {
            let variable = match self.defined.get(name) {
                Some(d) => Variable {
                    name: name.clone(),
                    evaluate: d.evaluate.clone(),
                    volatile: d.volatile,
                    assign: d.assign,
                },
                None => match self.prefix(name) {
                    Some(p) => {
                        let rest: Box<str> = name[p.name.len()..].into();
                        let evaluate = p.evaluate;
                        Variable {
                            name: name.clone(),
                            evaluate: Some(Arc::new(move |r: &mut Request| evaluate(r, &rest))),
                            volatile: p.volatile,
                            assign: None,
                        }
                    }
                    None if !servers && self.only_for_servers.contains(&VariableId(number as u32)) => {
                        Variable { name: name.clone(), evaluate: None, volatile: false, assign: None }
                    }
                    None => {
                        unknown.push(format!("unknown \"{name}\" variable"));
                        continue;
                    }
                },
            };
            table.push(variable);
        }
        if unknown.is_empty() { Ok(table) } else { Err(unknown) }
    }

    fn prefix(&self, name: &str) -> Option<&'static Prefix> {
        crate::modules::prefixes(self.subsystem).find(|p| name.starts_with(p.name))
    }
}

/// The value of a variable that `set` names but has not set yet.
fn uninitialized(r: &mut Request, name: &str) -> Option<Text> {
    if *r.conf().rewrite.uninitialized_variable_warn {
        log_error!(r, Warn, "using uninitialized \"{name}\" variable");
    }
    Some(Text::EMPTY)
}
