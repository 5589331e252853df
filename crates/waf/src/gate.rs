//! Rules that can be passed over without a look at them. Half of a rule set's rules compare a score or a level with a number, or
//! look at arguments that a request does not have; what decides that is kept side by side, in 16 bytes for each rule.

use crate::operator::{Kind, Order, number};
use crate::rule::Rule;
use crate::select::Select;
use crate::variable::Source;

/// What a rule, or the first rule of a chain, needs to match.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Gate {
    /// Nothing that is known beforehand.
    #[default]
    Open,
    /// A `TX` variable that compares so with a number.
    Number {
        /// The variable's slot.
        slot: u32,
        /// The number.
        than: i32,
        /// How they compare.
        order: Order,
        /// `!`
        negated: bool,
    },
    /// A value in one of these collections: a bit for each.
    Values(u16),
}

impl Gate {
    /// What decides about a rule.
    pub(crate) fn of(rule: &Rule) -> Gate {
        if let ([target], Kind::Number(order, text)) = (&*rule.targets, &rule.operator.kind)
            && let (Source::Tx, Select::Slot(slot), false) = (target.source, &target.select, target.count)
            && let (0, None, Some(than)) = (rule.chain, &rule.stages, text.constant())
            && let Ok(than) = i32::try_from(number(than))
        {
            return Gate::Number { slot: *slot, than, order: *order, negated: rule.operator.negated };
        }
        let mut collections = 0;
        for target in &rule.targets {
            match target.source {
                Source::Values(lists) | Source::Names(lists) if !target.count => {
                    lists.iter().for_each(|list| collections |= 1 << *list as u16);
                }
                _ => return Gate::Open,
            }
        }
        if collections == 0 { Gate::Open } else { Gate::Values(collections) }
    }
}
