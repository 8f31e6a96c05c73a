// SPDX-License-Identifier: GPL-2.0

//! Numbers of objects: QPN, CQN, SRQN, PDN, UAR, key indexes.
//!
//! Numbers are handed out cyclically, so that a freed one comes back as late as possible: a stale
//! number in a packet or in a program then hits nothing instead of a stranger.
//!
//! No user gets more of a kind than its share: see [`rdma::base::share`].

use crate::abi::doorbell::AREA_SLOTS;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::base::{
    dma::Payer,
    share::{
        Part,
        Supply, //
    }, //
};

/// However many objects a device announces, the driver uses no more numbers than this: a device
/// must not make it allocate without bound.
const MOST: u32 = 1 << 20;

/// Areas that no process gets, so that the kernel is never without one: 16384 queues of each kind. A target of extended
/// connections has its slot there, too: it may outlive the process that made it.
const KERNEL_AREAS: u32 = 128;

/// Such targets that there may be: a quarter of the slots of those areas.
pub(crate) const TARGETS: usize = KERNEL_AREAS as usize * AREA_SLOTS / 4;

/// How many of `count` areas are the kernel's.
pub(crate) fn of_kernel(count: u32) -> u32 {
    KERNEL_AREAS.min(count / 2)
}

struct Bits {
    words: KVVec<u64>,
    next: u32,
}

/// The numbers `first..end`.
#[pin_data]
pub(crate) struct Ids {
    first: u32,
    end: u32,
    supply: Arc<Supply>,
    #[pin]
    bits: Mutex<Bits>,
}

impl Ids {
    /// All numbers from `first` on and below `end` are free. Messages call what they are of `what`.
    pub(crate) fn new(what: &'static CStr, first: u32, end: u32) -> impl PinInit<Self, Error> {
        Self::with_reserve(what, first, end, 0)
    }

    /// The numbers of `count` doorbell areas.
    pub(crate) fn of_areas(count: u32) -> impl PinInit<Self, Error> {
        let what = c"contexts and doorbell areas";
        Self::with_reserve(what, 0, count, of_kernel(count))
    }

    /// As [`new`](Self::new), but `reserve` of them are the kernel's in any case.
    fn with_reserve(
        what: &'static CStr,
        first: u32,
        end: u32,
        reserve: u32,
    ) -> impl PinInit<Self, Error> {
        let end = end.min(MOST);
        pin_init::pin_init_scope(move || {
            let count = end.saturating_sub(first);
            let mut words = KVVec::new();
            words.resize(end.div_ceil(u64::BITS) as usize, 0u64, GFP_KERNEL)?;
            Ok::<_, Error>(try_pin_init!(Self {
                first,
                end,
                supply: Supply::new(what, count as usize, reserve as usize)?,
                bits <- new_mutex!(Bits { words, next: *first }),
            }? Error))
        })
    }

    /// How many numbers there are.
    pub(crate) fn count(&self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    /// Takes the next free number, of the share of `payer`'s user. Both are given back.
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

    /// Gives a number back.
    pub(crate) fn free(&self, id: u32) {
        self.bits.lock().set(id, false);
    }
}

impl Bits {
    fn set(&mut self, id: u32, used: bool) {
        let mask = 1u64 << (id % u64::BITS);
        if let Some(word) = self.words.get_mut((id / u64::BITS) as usize) {
            *word = if used { *word | mask } else { *word & !mask };
        }
    }

    /// The first free number in `from..to`.
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
pub(crate) struct Keys {
    #[pin]
    ids: Ids,
    #[pin]
    tags: Mutex<KVVec<u8>>,
}

impl Keys {
    /// Keys with indexes from 1 on (index 0 is reserved) and below `end`.
    pub(crate) fn new(end: u32) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut tags = KVVec::new();
            tags.resize(end.min(MOST) as usize, 0u8, GFP_KERNEL)?;
            Ok::<_, Error>(try_pin_init!(Self {
                ids <- Ids::new(c"memory keys", 1, end),
                tags <- new_mutex!(tags),
            }? Error))
        })
    }

    /// How many keys there are.
    pub(crate) fn count(&self) -> u32 {
        self.ids.count()
    }

    /// Takes a key.
    pub(crate) fn alloc(&self, payer: Payer) -> Result<(u32, Part)> {
        let (index, part) = self.ids.alloc(payer)?;
        let mut tags = self.tags.lock();
        let tag = tags.get_mut(index as usize).map_or(0, |tag| {
            *tag = tag.wrapping_add(1);
            *tag
        });
        Ok((index << 8 | u32::from(tag), part))
    }

    /// The tag of a key that is taken has become that of `now`: whoever has its index next gets another.
    pub(crate) fn note_tag(&self, key: u32, now: u32) {
        let mut tags = self.tags.lock();
        let is_of_it = key >> 8 == now >> 8;
        if let Some(tag) = tags.get_mut((key >> 8) as usize).filter(|_| is_of_it) {
            // CAST: the tag is the low byte.
            *tag = now as u8;
        }
    }

    /// Gives a key back, whatever its tag is now.
    pub(crate) fn free(&self, key: u32) {
        self.ids.free(key >> 8);
    }
}
