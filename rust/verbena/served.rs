// SPDX-License-Identifier: GPL-2.0

//! The doorbell areas that the device serves, whoever's they are.

use crate::abi::doorbell;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::base::dma::Chunk;

/// All areas that the device serves, by their numbers: with thousands of contexts, none is looked for among the others.
#[pin_data]
pub(crate) struct Served {
    #[pin]
    areas: Mutex<KVVec<Option<Arc<Chunk>>>>,
}

impl Served {
    /// None yet, of at most `count` areas.
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

    /// The device is about to serve one.
    pub(crate) fn add(&self, uar: u32, memory: Arc<Chunk>) -> Result {
        *self.areas.lock().get_mut(uar as usize).ok_or(EINVAL)? = Some(memory);
        Ok(())
    }

    /// It does not serve one any more; whether it did.
    pub(crate) fn remove(&self, uar: u32) -> bool {
        let mut areas = self.areas.lock();
        let removed = areas.get_mut(uar as usize).and_then(Option::take);
        drop(areas);
        removed.is_some()
    }

    /// Tells the owners of all areas that nobody serves them any more. The device must have been
    /// silenced: the driver is its heir.
    pub(crate) fn declare_dead(&self) {
        for memory in self.areas.lock().iter().flatten() {
            // Cannot fail: the offset is the contract's own.
            let _ = memory.store32_release(doorbell::ALIVE, 0);
        }
    }
}
