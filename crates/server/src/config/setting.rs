//! A value of a configuration level: its default until a directive sets it, its parent's if none did.
//! Made by the `merged_values!` macro. Knows no directive.

use std::ops::Deref;

/// A mergeable value. Reads as its value.
#[derive(Clone, Debug, Default)]
pub struct Setting<T> {
    value: T,
    set: bool,
}

/// The directive was given twice on the same level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate;

impl<T> Setting<T> {
    /// A value that no directive has set yet.
    pub const fn unset(value: T) -> Setting<T> {
        Setting { value, set: false }
    }

    /// Takes a directive's value; a second one on the same level is refused.
    pub fn set(&mut self, value: T) -> Result<(), Duplicate> {
        if self.set {
            return Err(Duplicate);
        }
        self.force(value);
        Ok(())
    }

    /// Takes a value whatever was there.
    pub fn force(&mut self, value: T) {
        self.value = value;
        self.set = true;
    }

    /// Whether a directive on this level, or one above it, has set the value.
    pub fn is_set(&self) -> bool {
        self.set
    }

    /// The value, to add to; it counts as set from now on.
    pub fn entry(&mut self) -> &mut T {
        self.set = true;
        &mut self.value
    }
}

impl<T: Clone> Setting<T> {
    /// Takes the parent's value where this level has none.
    pub fn inherit(&mut self, parent: &Setting<T>) {
        if !self.set {
            *self = parent.clone();
        }
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Declares a module's configuration: fields with their defaults, `Default`, and `merge(&mut self, parent)`.
#[macro_export]
macro_rules! merged_values {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$fmeta])* pub $field: $crate::config::setting::Setting<$ty>,)* }
        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $crate::config::setting::Setting::unset($default),)* }
            }
        }
        impl $name {
            /// Takes from `parent` what this level does not set itself.
            pub fn merge(&mut self, parent: &Self) {
                $(self.$field.inherit(&parent.$field);)*
            }
        }
    };
}

/// For a module's `Conf` that holds more than its `settings: Settings`: it reads as them.
#[macro_export]
macro_rules! reads_as_settings {
    ($conf:ident) => {
        impl std::ops::Deref for $conf {
            type Target = Settings;
            fn deref(&self) -> &Settings {
                &self.settings
            }
        }

        impl std::ops::DerefMut for $conf {
            fn deref_mut(&mut self) -> &mut Settings {
                &mut self.settings
            }
        }
    };
}
