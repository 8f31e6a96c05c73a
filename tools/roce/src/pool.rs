// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers that packets refer to. The pool keeps a reference to each that it has lent; one that no packet refers to any
//! more is lent again, so in steady state nothing is allocated for a packet.

use crate::packet::Datagram;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Most things of a kind that a pool keeps. Packets under way beyond that have memory of their own.
const MAX_KEPT: usize = 1024;
/// Bytes of a buffer that has room for a packet of any path MTU, or a frame. Larger ones are for super-packets.
const PACKET_BYTES: usize = 16 << 10;
/// Most of those that a pool keeps.
const MAX_LARGE: usize = 64;
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

    fn keep(&mut self, item: &Rc<T>, most: usize) {
        if self.0.len() < most {
            self.0.push_back(Rc::clone(item));
        }
    }
}

/// A pool of buffers and of datagrams' headers. It grows to what was once under way at the same time; of large buffers to less,
/// which are apart, so that none of the many becomes one.
#[derive(Debug)]
pub struct Pool {
    buffers: Lent<Vec<u8>>,
    large: Lent<Vec<u8>>,
    datagrams: Lent<Datagram>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            buffers: Lent(VecDeque::new()),
            large: Lent(VecDeque::new()),
            datagrams: Lent(VecDeque::new()),
        }
    }
}

impl Pool {
    /// A buffer for so many bytes that nobody else refers to, with whatever was in it. Once filled, [`Pool::keep_buffer`] has it
    /// lent again later.
    pub fn buffer(&mut self, length: usize) -> Rc<Vec<u8>> {
        match length <= PACKET_BYTES {
            true => self.buffers.take(),
            false => self.large.take(),
        }
    }

    /// Remembers a buffer that was filled.
    pub fn keep_buffer(&mut self, buffer: &Rc<Vec<u8>>) {
        match buffer.capacity() <= PACKET_BYTES {
            true => self.buffers.keep(buffer, MAX_KEPT),
            false => self.large.keep(buffer, MAX_LARGE),
        }
    }

    /// A datagram's headers, with these values.
    pub fn datagram(&mut self, value: Datagram) -> Rc<Datagram> {
        let mut item = self.datagrams.take();
        if let Some(place) = Rc::get_mut(&mut item) {
            *place = value;
        }
        self.datagrams.keep(&item, MAX_KEPT);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_packet_refers_to_is_lent_again() {
        let mut pool = Pool::default();
        let first = pool.buffer(4096);
        pool.keep_buffer(&first);
        let address = first.as_ptr_range().start as usize;
        let second = pool.buffer(4096);
        assert!(!Rc::ptr_eq(&first, &second), "it is in use");
        pool.keep_buffer(&second);
        drop(first);
        let third = pool.buffer(4096);
        assert_eq!(third.as_ptr_range().start as usize, address);
        assert!(!Rc::ptr_eq(&second, &third));
    }

    #[test]
    fn one_that_stays_in_use_does_not_block_the_others() {
        let mut pool = Pool::default();
        let stuck = pool.buffer(4096);
        pool.keep_buffer(&stuck);
        for _ in 0..10 * MAX_KEPT {
            let buffer = pool.buffer(4096);
            pool.keep_buffer(&buffer);
        }
        assert!(pool.buffers.0.len() <= 3, "{}", pool.buffers.0.len());
    }

    #[test]
    fn large_ones_stay_few() {
        let mut pool = Pool::default();
        let mut many = |length: usize| {
            let lent = (0..MAX_KEPT).map(|_| {
                let mut buffer = pool.buffer(length);
                Rc::get_mut(&mut buffer).unwrap().resize(length, 0);
                pool.keep_buffer(&buffer);
                buffer
            });
            lent.collect::<Vec<_>>()
        };
        many(4096);
        many(256 << 10);
        many(4096);
        let kept = pool.buffers.0.iter().chain(&pool.large.0);
        let bytes: usize = kept.map(|buffer| buffer.capacity()).sum();
        assert!(
            bytes <= MAX_KEPT * PACKET_BYTES + MAX_LARGE * (256 << 10),
            "{bytes}"
        );
        assert_eq!(pool.buffers.0.len(), MAX_KEPT);
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
