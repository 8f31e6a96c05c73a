// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers that packets refer to. The pool keeps a reference to each that it has lent; one that no packet refers to any
//! more is lent again, so in steady state nothing is allocated for a packet.

use crate::packet::Datagram;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Most things of a kind that a pool keeps. Packets under way beyond that have memory of their own.
const MAX_KEPT: usize = 1024;
/// How many are looked at for one that is free. They are lent in turn, so the first one mostly is.
const TRIES: usize = 2;

/// What has been lent, the longest ago first.
#[derive(Debug)]
struct Lent<T>(VecDeque<Rc<T>>);

impl<T: Default> Lent<T> {
    /// One that nobody else refers to, as its last user left it.
    fn take(&mut self) -> Rc<T> {
        for _ in 0..TRIES {
            let Some(mut item) = self.0.pop_front() else {
                break;
            };
            if Rc::get_mut(&mut item).is_some() {
                return item;
            }
            self.0.push_back(item);
        }
        Rc::default()
    }

    fn keep(&mut self, item: &Rc<T>) {
        if self.0.len() < MAX_KEPT {
            self.0.push_back(Rc::clone(item));
        }
    }
}

/// A pool of buffers and of datagrams' headers. It grows to what was once under way at the same time.
#[derive(Debug)]
pub struct Pool {
    buffers: Lent<Vec<u8>>,
    datagrams: Lent<Datagram>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            buffers: Lent(VecDeque::new()),
            datagrams: Lent(VecDeque::new()),
        }
    }
}

impl Pool {
    /// A buffer that nobody else refers to, with whatever was in it. Once filled, [`Pool::keep_buffer`] has it lent again
    /// later.
    pub fn buffer(&mut self) -> Rc<Vec<u8>> {
        self.buffers.take()
    }

    /// Remembers a buffer that was filled.
    pub fn keep_buffer(&mut self, buffer: &Rc<Vec<u8>>) {
        self.buffers.keep(buffer);
    }

    /// A datagram's headers, with these values.
    pub fn datagram(&mut self, value: Datagram) -> Rc<Datagram> {
        let mut item = self.datagrams.take();
        if let Some(place) = Rc::get_mut(&mut item) {
            *place = value;
        }
        self.datagrams.keep(&item);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_packet_refers_to_is_lent_again() {
        let mut pool = Pool::default();
        let first = pool.buffer();
        pool.keep_buffer(&first);
        let address = first.as_ptr_range().start as usize;
        let second = pool.buffer();
        assert!(!Rc::ptr_eq(&first, &second), "it is in use");
        pool.keep_buffer(&second);
        drop(first);
        let third = pool.buffer();
        assert_eq!(third.as_ptr_range().start as usize, address);
        assert!(!Rc::ptr_eq(&second, &third));
    }

    #[test]
    fn one_that_stays_in_use_does_not_block_the_others() {
        let mut pool = Pool::default();
        let stuck = pool.buffer();
        pool.keep_buffer(&stuck);
        for _ in 0..10 * MAX_KEPT {
            let buffer = pool.buffer();
            pool.keep_buffer(&buffer);
        }
        assert!(pool.buffers.0.len() <= 3, "{}", pool.buffers.0.len());
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let mut pool = Pool::default();
        let lent: Vec<_> = (0..2 * MAX_KEPT)
            .map(|_| pool.datagram(Datagram::default()))
            .collect();
        assert_eq!(lent.len(), 2 * MAX_KEPT);
        assert_eq!(pool.datagrams.0.len(), MAX_KEPT);
    }
}
