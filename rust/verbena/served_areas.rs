// SPDX-License-Identifier: GPL-2.0

//! Doorbell areas that the device serves, of the kernel and of processes.

use crate::abi::doorbell;
use base::dma::Chunk;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// All areas that the device serves, indexed by number, so that a lookup takes no longer with
/// thousands of contexts.
#[pin_data]
pub(crate) struct ServedAreas {
    #[pin]
    areas: Mutex<KVVec<Option<Arc<Chunk>>>>,
}

impl ServedAreas {
    /// Returns an empty list for up to `count` areas.
    pub(crate) fn new(count: u32) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut areas = KVVec::with_capacity(count as usize, GFP_KERNEL)?;
            for _ in 0..count {
                areas.push(None, GFP_KERNEL)?;
            }
            Ok::<_, Error>(try_pin_init!(Self {
                areas <- new_mutex!(areas),
            }? Error))
        })
    }

    /// Adds an area, before the device serves it.
    pub(crate) fn add(&self, uar: u32, memory: Arc<Chunk>) -> Result {
        *self.areas.lock().get_mut(uar as usize).ok_or(EINVAL)? = Some(memory);
        Ok(())
    }

    /// Removes an area that the device no longer serves. Returns true if the area was in the list.
    pub(crate) fn remove(&self, uar: u32) -> bool {
        let mut areas = self.areas.lock();
        let removed = areas.get_mut(uar as usize).and_then(Option::take);
        drop(areas);
        removed.is_some()
    }

    /// Marks all areas as no longer served, for their owners. The device must have been silenced,
    /// since the driver writes a word that otherwise only the device writes.
    pub(crate) fn declare_dead(&self) {
        for memory in self.areas.lock().iter().flatten() {
            // The store cannot fail, because the contract's offset is inside the area.
            let _ = memory.store32_release(doorbell::ALIVE, 0);
        }
    }
}
