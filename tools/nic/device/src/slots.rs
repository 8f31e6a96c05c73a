// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A table of objects by number, which grows with the numbers in use up to its limit.

use crate::error::{CmdError, BUSY, NO_OBJECT};
use std::marker::PhantomData;

/// A table of objects by number.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Option<Box<T>>>,
    limit: u32,
    count: u32,
}

/// An object that other objects can need. It is not destroyed while another object needs it.
pub trait Held {
    /// Returns the count of the objects that need this one.
    fn users(&mut self) -> &mut u32;
}

/// A counted reference of one object to another. A reference cannot be copied: only [`Slots::hold`]
/// makes one, and [`Slots::release`] takes it back. Therefore an object that is destroyed returns
/// each of its references exactly once.
#[derive(Debug)]
#[must_use = "an object with a reference cannot be destroyed"]
pub struct Ref<T> {
    number: u32,
    of: PhantomData<fn(&T)>,
}

impl<T> Ref<T> {
    /// Returns the number of the object that is referred to.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl<T: Held> Slots<T> {
    /// Counts another user of an object and returns the reference; none if the number has no
    /// object.
    pub fn hold(&mut self, number: u32) -> Option<Ref<T>> {
        *self.get_mut(number)?.users() += 1;
        Some(Ref {
            number,
            of: PhantomData,
        })
    }

    /// Takes a reference back and counts one user less.
    pub fn release(&mut self, held: Ref<T>) {
        if let Some(object) = self.get_mut(held.number) {
            *object.users() -= 1;
        }
    }

    /// Removes an object that has no users from the table. Fails with `BUSY` if the object has
    /// users.
    pub fn take_unused(&mut self, number: u32) -> Result<Box<T>, CmdError> {
        if *self.get_mut(number).ok_or(NO_OBJECT)?.users() != 0 {
            return Err(BUSY);
        }
        self.take(number).ok_or(NO_OBJECT)
    }
}

impl<T> Slots<T> {
    /// Creates an empty table for numbers below `limit`.
    pub fn new(limit: u32) -> Self {
        Self {
            entries: Vec::new(),
            limit,
            count: 0,
        }
    }

    /// Returns the object with a number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_deref()
    }

    /// Returns the object with a number for changes.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_deref_mut()
    }

    /// Prefetches the table entry of an object for a later [`Slots::get`].
    #[inline]
    pub fn prefetch(&self, number: u32) {
        verbena_transport::prefetch::element(&self.entries, number as usize);
    }

    /// True if the number is below the limit of the table.
    pub fn in_range(&self, number: u32) -> bool {
        number < self.limit
    }

    /// Inserts an object, or puts a taken one back. A number out of range is ignored.
    #[inline]
    pub fn put(&mut self, number: u32, object: Box<T>) {
        if number >= self.limit {
            return;
        }
        let index = number as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        if self.entries[index].replace(object).is_none() {
            self.count += 1;
        }
    }

    /// Removes an object from the table and returns it.
    #[inline]
    pub fn take(&mut self, number: u32) -> Option<Box<T>> {
        let object = self.entries.get_mut(number as usize)?.take()?;
        self.count -= 1;
        Some(object)
    }

    /// Returns the objects with their numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(i, e)| Some((i as u32, e.as_deref()?)))
    }

    /// Returns a bound of the numbers: all numbers in use are below it.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// True if no number was ever used.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of objects in the table.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Shelf(u32);

    impl Held for Shelf {
        fn users(&mut self) -> &mut u32 {
            &mut self.0
        }
    }

    #[test]
    fn an_object_is_busy_until_its_last_reference_is_released() {
        let mut slots = Slots::new(4);
        slots.put(1, Box::new(Shelf(0)));
        assert!(slots.hold(2).is_none());
        let (a, b) = (slots.hold(1).unwrap(), slots.hold(1).unwrap());
        assert_eq!((a.number(), slots.get(1).unwrap().0), (1, 2));
        assert_eq!(slots.take_unused(1).unwrap_err(), BUSY);
        slots.release(a);
        assert_eq!(slots.take_unused(1).unwrap_err(), BUSY);
        slots.release(b);
        assert!(slots.take_unused(1).is_ok());
        assert_eq!(slots.take_unused(1).unwrap_err(), NO_OBJECT);
    }

    #[test]
    fn objects_are_found_by_number_and_counted() {
        let mut slots = Slots::new(4);
        assert!(slots.is_empty());
        assert_eq!((slots.len(), slots.count()), (0, 0));
        assert!(slots.in_range(3) && !slots.in_range(4));
        for number in [2, 0, 4] {
            slots.put(number, Box::new(number * 10));
        }
        assert!(!slots.is_empty());
        assert_eq!((slots.len(), slots.count()), (3, 2));
        assert_eq!(slots.get(2), Some(&20));
        assert_eq!((slots.get(1), slots.get(4)), (None, None));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &0), (2, &20)]);
        // An object that was taken can be put back, and replaced.
        let taken = slots.take(2).unwrap();
        assert_eq!((slots.count(), slots.take(2)), (1, None));
        slots.put(2, taken);
        slots.put(2, Box::new(21));
        assert_eq!((slots.count(), slots.get_mut(2)), (2, Some(&mut 21)));
    }
}
