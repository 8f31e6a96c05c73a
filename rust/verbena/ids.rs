// SPDX-License-Identifier: GPL-2.0

//! Numbers of objects: QPN, CQN, SRQN, PDN, UAR, key indexes.
//!
//! Numbers are handed out cyclically, so that a freed number is used again as late as possible. A
//! stale number in a packet or in a program then refers to no object instead of another one.
//!
//! No user gets more numbers of a kind than its share, see [`base::share`].

use crate::abi::doorbell::AREA_SLOTS;
use base::{
    dma::Payer,
    share::{
        Part,
        Supply, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Limit of the numbers of a kind that the driver uses, however many objects a device announces.
/// Without it a device could make the driver allocate without bound.
const MAX_IDS: u32 = 1 << 20;

/// Areas that no process gets, so that the kernel always has some. They have room for 16384 queues
/// of each kind. The slots of XRC targets are in them, too, since a target may outlive the process
/// that created it.
const KERNEL_AREAS: u32 = 128;

/// Limit of XRC targets: a quarter of the slots of those areas.
pub(crate) const MAX_XRC_TARGETS: usize = KERNEL_AREAS as usize * AREA_SLOTS / 4;

/// Returns how many of `count` areas are reserved for the kernel.
pub(crate) fn kernel_reserve(count: u32) -> u32 {
    KERNEL_AREAS.min(count / 2)
}

struct IdBitmap {
    words: KVVec<u64>,
    next: u32,
}

/// Allocator of the numbers `first..end`.
#[pin_data]
pub(crate) struct IdAllocator {
    first: u32,
    end: u32,
    supply: Arc<Supply>,
    #[pin]
    bits: Mutex<IdBitmap>,
}

impl IdAllocator {
    /// Returns an allocator of the numbers from `first` on and below `end`. `what` names them in
    /// messages.
    pub(crate) fn new(what: &'static CStr, first: u32, end: u32) -> impl PinInit<Self, Error> {
        Self::with_reserve(what, first, end, 0)
    }

    /// Returns an allocator of the numbers of `count` doorbell areas.
    pub(crate) fn for_areas(count: u32) -> impl PinInit<Self, Error> {
        let what = c"contexts and doorbell areas";
        Self::with_reserve(what, 0, count, kernel_reserve(count))
    }

    /// Returns an allocator like [`new`](Self::new), with `reserve` numbers that only the kernel
    /// gets.
    fn with_reserve(
        what: &'static CStr,
        first: u32,
        end: u32,
        reserve: u32,
    ) -> impl PinInit<Self, Error> {
        let end = end.min(MAX_IDS);
        pin_init::pin_init_scope(move || {
            let count = end.saturating_sub(first);
            let mut words = KVVec::new();
            words.resize(end.div_ceil(u64::BITS) as usize, 0u64, GFP_KERNEL)?;
            Ok::<_, Error>(try_pin_init!(Self {
                first,
                end,
                supply: Supply::new(what, count as usize, reserve as usize)?,
                bits <- new_mutex!(IdBitmap { words, next: *first }),
            }? Error))
        })
    }

    /// Returns the number of numbers, free or not.
    pub(crate) fn count(&self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    /// Takes the next free number, from the share of `payer`'s user. The caller frees the number,
    /// and drops the part.
    pub(crate) fn alloc(&self, payer: Payer) -> Result<(u32, Part)> {
        self.alloc_from(payer, self.first)
    }

    /// Takes the next free number that is not below `first`.
    pub(crate) fn alloc_from(&self, payer: Payer, first: u32) -> Result<(u32, Part)> {
        let part = Supply::take(&self.supply, payer)?;
        let first = first.max(self.first);
        let mut bits = self.bits.lock();
        let from = bits.next.max(first);
        let id = bits
            .free_in(from, self.end)
            .or_else(|| bits.free_in(first, from))
            .ok_or(ENOMEM)?;
        bits.set(id, true);
        bits.next = if id + 1 < self.end {
            id + 1
        } else {
            self.first
        };
        Ok((id, part))
    }

    /// Frees a number that was taken.
    pub(crate) fn free(&self, id: u32) {
        self.bits.lock().set(id, false);
    }
}

impl IdBitmap {
    fn set(&mut self, id: u32, used: bool) {
        let mask = 1u64 << (id % u64::BITS);
        if let Some(word) = self.words.get_mut((id / u64::BITS) as usize) {
            *word = if used { *word | mask } else { *word & !mask };
        }
    }

    /// Returns the first free number in `from..to`.
    fn free_in(&self, from: u32, to: u32) -> Option<u32> {
        let mut id = from;
        while id < to {
            let base = id - id % u64::BITS;
            let word = *self.words.get((base / u64::BITS) as usize)?;
            // The numbers below `id` in this word count as used.
            let free = !word & (u64::MAX << (id % u64::BITS));
            if free != 0 {
                let found = base + free.trailing_zeros();
                return (found < to).then_some(found);
            }
            id = base + u64::BITS;
        }
        None
    }
}

/// Memory keys: an index, and an 8-bit tag that is new each time the index is handed out.
#[pin_data]
pub(crate) struct KeyAllocator {
    #[pin]
    ids: IdAllocator,
    #[pin]
    tags: Mutex<KVVec<u8>>,
}

impl KeyAllocator {
    /// Returns an allocator of keys with indexes from 1 on (index 0 is reserved) and below `end`.
    pub(crate) fn new(end: u32) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut tags = KVVec::new();
            tags.resize(end.min(MAX_IDS) as usize, 0u8, GFP_KERNEL)?;
            Ok::<_, Error>(try_pin_init!(Self {
                ids <- IdAllocator::new(c"memory keys", 1, end),
                tags <- new_mutex!(tags),
            }? Error))
        })
    }

    /// Returns the number of keys, free or not.
    pub(crate) fn count(&self) -> u32 {
        self.ids.count()
    }

    /// Takes a free key, with a new tag.
    pub(crate) fn alloc(&self, payer: Payer) -> Result<(u32, Part)> {
        let (index, part) = self.ids.alloc(payer)?;
        let mut tags = self.tags.lock();
        let tag = tags.get_mut(index as usize).map_or(0, |tag| {
            *tag = tag.wrapping_add(1);
            *tag
        });
        Ok((index << 8 | u32::from(tag), part))
    }

    /// Notes that a taken key now has the tag of `now`, so that the next key with its index gets
    /// another tag.
    pub(crate) fn note_tag(&self, key: u32, now: u32) {
        let mut tags = self.tags.lock();
        let is_of_it = key >> 8 == now >> 8;
        if let Some(tag) = tags.get_mut((key >> 8) as usize).filter(|_| is_of_it) {
            // CAST: The tag is the low byte.
            *tag = now as u8;
        }
    }

    /// Frees a key, whatever its tag is now.
    pub(crate) fn free(&self, key: u32) {
        self.ids.free(key >> 8);
    }
}
