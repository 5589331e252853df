//! Where values of Lua are kept for long: in a table of the machine's own. What mlua holds by itself lies on one stack of Lua's, which has
//! room for some 8,000 values; so whatever waits for something, or only belongs to somebody, is put here meanwhile.

use crate::quick;
use mlua::{FromLua, IntoLua, Lua, MultiValue, Table, Value, WeakLua};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::rc::Rc;

/// The places of one machine.
#[derive(Clone)]
pub struct Shelf(Rc<Places>);

struct Places {
    lua: WeakLua,
    table: Table,
    /// Where the registry has it.
    registered: c_int,
    free: RefCell<Vec<u32>>,
    /// The highest place that was ever taken.
    last: Cell<u32>,
    /// How many values were ever kept.
    kept: Cell<u64>,
}

/// A value that is kept. Its place is free again when this goes.
pub struct Slot {
    places: Rc<Places>,
    index: u32,
    serial: u64,
}

impl Shelf {
    /// For a machine.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(lua: &Lua) -> mlua::Result<Shelf> {
        let table = lua.create_table()?;
        let registered = quick::register(lua, &table)?;
        Ok(Shelf(Rc::new(Places {
            lua: lua.weak(),
            table,
            registered,
            free: RefCell::default(),
            last: Cell::new(0),
            kept: Cell::new(0),
        })))
    }

    /// Keeps a value, which is not `nil`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn put(&self, value: impl IntoLua) -> mlua::Result<Slot> {
        let slot = self.take_place();
        self.0.table.raw_set(slot.index, value)?;
        Ok(slot)
    }

    /// A place where there is nothing yet.
    pub(crate) fn take_place(&self) -> Slot {
        let free = self.0.free.borrow_mut().pop();
        let index = free.unwrap_or_else(|| {
            self.0.last.set(self.0.last.get() + 1);
            self.0.last.get()
        });
        self.0.kept.set(self.0.kept.get() + 1);
        Slot { places: self.0.clone(), index, serial: self.0.kept.get() }
    }

    /// Keeps several values, in their order.
    ///
    /// # Errors
    /// Out of memory.
    pub fn put_all(&self, lua: &Lua, values: MultiValue) -> mlua::Result<Bundle> {
        let is_plain = |value: &Value| {
            matches!(
                value,
                Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::LightUserData(_)
            )
        };
        if values.iter().all(is_plain) {
            return Ok(Bundle::Plain(values));
        }
        let (count, table) = (values.len(), lua.create_table_with_capacity(values.len(), 0)?);
        for (at, value) in values.into_iter().enumerate() {
            table.raw_set(at + 1, value)?;
        }
        Ok(Bundle::Table(self.put(table)?, count))
    }
}

impl Slot {
    /// Where the registry has the shelf's table, and the index there.
    pub(crate) fn place(&self) -> (c_int, c_int) {
        (self.places.registered, self.index as c_int)
    }

    /// Its place: a small number that no other value of the shelf has meanwhile.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether it is one of a shelf's.
    pub fn is_on(&self, shelf: &Shelf) -> bool {
        Rc::ptr_eq(&self.places, &shelf.0)
    }

    /// A number that no other value of the machine's has, nor had.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The value.
    ///
    /// # Errors
    /// It is of another type.
    pub fn value<T: FromLua>(&self) -> mlua::Result<T> {
        self.places.table.raw_get(self.index)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A machine that is gone has nothing any more.
        let lua = self.places.lua.try_upgrade();
        if lua.is_some_and(|lua| quick::take_away(&lua, self.places.registered, self.index as c_int)) {
            self.places.free.borrow_mut().push(self.index);
        }
    }
}

/// Several values that are kept.
pub enum Bundle {
    /// None that Lua would have to keep.
    Plain(MultiValue),
    /// A table of so many.
    Table(Slot, usize),
}

impl Bundle {
    /// The values.
    ///
    /// # Errors
    /// There is no room for so many.
    pub fn values(&self) -> mlua::Result<MultiValue> {
        match self {
            Bundle::Plain(values) => Ok(values.clone()),
            Bundle::Table(slot, count) => {
                let table = slot.value::<Table>()?;
                (1..=*count).map(|at| table.raw_get::<Value>(at)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_more_than_mlua_holds() {
        let lua = crate::machine::new();
        let shelf = Shelf::new(&lua).unwrap();
        let slots: Vec<Slot> =
            (0..20_000).map(|n| shelf.put(lua.create_string(n.to_string()).unwrap()).unwrap()).collect();
        assert_eq!(slots[19_999].value::<String>().unwrap(), "19999");
        drop(slots);
        assert!(shelf.put("x").unwrap().index <= 20_000, "places are used again");
        let bundle = shelf.put_all(
            &lua,
            MultiValue::from_iter([Value::Nil, Value::String(lua.create_string("b").unwrap()), Value::Nil]),
        );
        let values = bundle.unwrap().values().unwrap();
        assert_eq!((values.len(), values[1].to_string().unwrap()), (3, "b".to_owned()));
        let last = shelf.put(true).unwrap();
        drop((shelf, lua));
        drop(last);
    }
}
