//! What modules keep for a thread's view of a configuration, found by its type: a snapshot need not know what that is.

use std::any::Any;
use std::cell::OnceCell;

/// How many kinds there are: machines of Lua and contexts of JavaScript.
const KINDS: usize = 2;

/// One value of each kind that was asked for.
#[derive(Default)]
pub struct Kept([OnceCell<Box<dyn Any>>; KINDS]);

impl Kept {
    /// The value of a kind, made when it is first asked for. Look it up once for a request, not for each step.
    pub fn get<T: Default + 'static>(&self) -> &T {
        let found = self.0.iter().find_map(|place| place.get_or_init(|| Box::new(T::default())).downcast_ref());
        found.expect("there is a place for each kind")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_kind_has_one_value() {
        let kept = Kept::default();
        kept.get::<Cell<u8>>().set(1);
        assert_eq!(kept.get::<Cell<u16>>().get(), 0);
        assert_eq!(kept.get::<Cell<u8>>().get(), 1);
    }
}
