//! Which values a rule looks at: a variable, and which of its names.

use crate::operator::rx::Rx;
use crate::variable::Source;
use std::sync::Arc;

/// One entry of a rule's list of variables.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The variable's name, for logs and `MATCHED_VAR_NAME`.
    pub label: &'static str,
    /// Where its values are.
    pub source: Source,
    /// Which of them.
    pub select: Select,
    /// `&`: how many there are instead of what they are.
    pub count: bool,
    /// Which of them not: `!ARGS:password`, updates of targets.
    pub except: Box<[Select]>,
}

/// Chooses values by their names.
#[derive(Clone, Debug)]
pub(crate) enum Select {
    /// All of them.
    All,
    /// Those of this name; case does not matter.
    Name(Box<[u8]>),
    /// The `TX` variable of this slot.
    Slot(u32),
    /// Those whose name matches.
    Pattern(Arc<Rx>),
    /// The same for `TX`, with the slots whose names match.
    Slots(Arc<Rx>, Arc<[u32]>),
}

/// An exclusion that names a whole variable or some of its values.
#[derive(Clone, Debug)]
pub(crate) struct Exclusion {
    /// The variable.
    pub label: &'static str,
    /// Which of its values.
    pub select: Select,
}
