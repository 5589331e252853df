//! Values of a module that most levels take from the level around them as they are: one copy for all of these. A configuration may have
//! a hundred thousand locations, and each module with upstreams has a kilobyte of values.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Values that can be shared. See [`crate::inherited`].
pub trait Inherited: Clone + Debug + Default + 'static {
    /// Those of a level that says nothing, with none around it.
    fn blank() -> &'static Self;

    /// Takes from the level around what this one does not set.
    fn merge(&mut self, parent: &Self);

    /// Whether a level inside that says nothing comes to the same values.
    fn is_for_all_inside(&self) -> bool;
}

/// A level's values, or those of a level around it. Whoever changes them gets a copy of their own.
#[derive(Clone, Debug)]
pub struct Shared<T>(Option<Arc<T>>);

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(None)
    }
}

impl<T: Inherited> Shared<T> {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Shared<T>) {
        if self.0.is_some() || !parent.is_for_all_inside() {
            return T::merge(self, parent);
        }
        debug_assert_eq!(
            {
                let mut copy = T::default();
                T::merge(&mut copy, parent);
                format!("{copy:?}")
            },
            format!("{:?}", &**parent),
            "what is shared is what merging comes to"
        );
        self.0.clone_from(&parent.0);
    }
}

impl<T: Inherited> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::blank())
    }
}

impl<T: Inherited> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

/// Makes a module's `Conf` one that can be shared. The expression: whether a level inside that says nothing comes to the same values.
#[macro_export]
macro_rules! inherited {
    ($conf:ident, $is_for_all_inside:expr) => {
        impl $crate::config::shared::Inherited for $conf {
            fn blank() -> &'static Self {
                static BLANK: std::sync::LazyLock<$conf> = std::sync::LazyLock::new($conf::default);
                &BLANK
            }

            fn merge(&mut self, parent: &Self) {
                $conf::merge(self, parent);
            }

            fn is_for_all_inside(&self) -> bool {
                let answer: fn(&Self) -> bool = $is_for_all_inside;
                answer(self)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Setting;

    #[derive(Clone, Debug, Default)]
    struct Conf {
        size: Setting<u64>,
        /// Not inherited.
        handler: bool,
    }

    impl Conf {
        fn merge(&mut self, parent: &Conf) {
            self.size.inherit(&parent.size);
        }
    }

    crate::inherited!(Conf, |conf| !conf.handler);

    #[test]
    fn one_copy_for_all_that_say_nothing() {
        let mut outer = Shared::<Conf>::default();
        assert_eq!(*outer.size, 0);
        outer.size.force(7);
        let (mut silent, mut other) = (Shared::<Conf>::default(), Shared::<Conf>::default());
        silent.merge(&outer);
        assert!(std::ptr::eq(&*silent, &*outer));
        other.handler = true;
        other.merge(&outer);
        assert_eq!((*other.size, other.handler), (7, true));
        // What is not inherited stays where it is.
        let mut inside = Shared::<Conf>::default();
        inside.merge(&other);
        assert_eq!((*inside.size, inside.handler), (7, false));
        // Who changes something changes it for itself.
        silent.size.force(8);
        assert_eq!((*outer.size, *silent.size), (7, 8));
    }

    #[test]
    fn locations_are_small() {
        let (location, values) = (size_of::<crate::snapshot::Location>(), size_of::<crate::modules::LocationConf>());
        println!("location {location}, of which values {values}");
        assert!(location <= 2600);
    }
}
