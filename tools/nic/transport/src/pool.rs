// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers that packets refer to. The pool keeps a reference to each buffer that it has lent. When
//! no packet refers to a buffer any more, the pool lends it again, so that in steady state a packet
//! needs no allocation.

use crate::packet::DatagramHeaders;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Maximum number of items of one kind that a pool keeps. Further packets in flight have memory of
/// their own.
const MAX_KEPT: usize = 1024;
/// Capacity in bytes of a buffer for a packet of any path MTU, or a frame. Buffers with a larger
/// capacity are for super-packets.
const PACKET_BYTES: usize = 16 << 10;
/// Maximum number of these larger buffers that a pool keeps.
const MAX_LARGE: usize = 64;
/// Maximum number of items that a search for a free one examines. The pool lends the items in turn,
/// so the first one is usually free.
const TRIES: usize = 2;

/// Lent items, the one that was lent first in front.
#[derive(Debug)]
struct Recycler<T>(VecDeque<Rc<T>>);

impl<T: Default> Recycler<T> {
    /// Returns an item without other references, with the contents that its last user left.
    fn acquire(&mut self) -> Rc<T> {
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

    fn recycle(&mut self, item: &Rc<T>, most: usize) {
        if self.0.len() < most {
            self.0.push_back(Rc::clone(item));
        }
    }
}

/// A pool of buffers and of headers of datagrams. It grows to the number of items that were in use
/// at the same time, up to its limits. Large buffers have their own list with a lower limit, so
/// that no small buffer grows into a large one.
#[derive(Debug)]
pub struct Pool {
    buffers: Recycler<Vec<u8>>,
    large: Recycler<Vec<u8>>,
    datagrams: Recycler<DatagramHeaders>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            buffers: Recycler(VecDeque::new()),
            large: Recycler(VecDeque::new()),
            datagrams: Recycler(VecDeque::new()),
        }
    }
}

impl Pool {
    /// Returns a buffer for `length` bytes without other references and with arbitrary contents.
    /// After the caller has filled it, [`Pool::keep_buffer`] makes it available for reuse.
    pub fn buffer(&mut self, length: usize) -> Rc<Vec<u8>> {
        match length <= PACKET_BYTES {
            true => self.buffers.acquire(),
            false => self.large.acquire(),
        }
    }

    /// Remembers a filled buffer, to lend it again later.
    pub fn keep_buffer(&mut self, buffer: &Rc<Vec<u8>>) {
        match buffer.capacity() <= PACKET_BYTES {
            true => self.buffers.recycle(buffer, MAX_KEPT),
            false => self.large.recycle(buffer, MAX_LARGE),
        }
    }

    /// Returns headers of a datagram with these values.
    pub fn datagram(&mut self, value: DatagramHeaders) -> Rc<DatagramHeaders> {
        let mut item = self.datagrams.acquire();
        if let Some(place) = Rc::get_mut(&mut item) {
            *place = value;
        }
        self.datagrams.recycle(&item, MAX_KEPT);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_no_packet_refers_to_is_lent_again() {
        let mut pool = Pool::default();
        let first = pool.buffer(4096);
        pool.keep_buffer(&first);
        let address = first.as_ptr_range().start as usize;
        let second = pool.buffer(4096);
        assert!(!Rc::ptr_eq(&first, &second), "the first buffer is in use");
        pool.keep_buffer(&second);
        drop(first);
        let third = pool.buffer(4096);
        assert_eq!(third.as_ptr_range().start as usize, address);
        assert!(!Rc::ptr_eq(&second, &third));
    }

    #[test]
    fn a_buffer_that_stays_in_use_does_not_block_others() {
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
    fn large_buffers_have_a_limit_of_their_own() {
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
    fn headers_of_datagrams_are_kept_up_to_the_limit() {
        let mut pool = Pool::default();
        let lent: Vec<_> = (0..2 * MAX_KEPT)
            .map(|_| pool.datagram(DatagramHeaders::default()))
            .collect();
        assert_eq!(lent.len(), 2 * MAX_KEPT);
        assert_eq!(pool.datagrams.0.len(), MAX_KEPT);
    }
}
