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

/// All areas that the device serves.
#[pin_data]
pub(crate) struct Served {
    #[pin]
    areas: Mutex<KVec<(u32, Arc<Chunk>)>>,
}

impl Served {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            areas <- new_mutex!(KVec::new()),
        })
    }

    /// The device is about to serve one.
    pub(crate) fn add(&self, uar: u32, memory: Arc<Chunk>) -> Result {
        Ok(self.areas.lock().push((uar, memory), GFP_KERNEL)?)
    }

    /// It does not serve one any more; whether it did.
    pub(crate) fn remove(&self, uar: u32) -> bool {
        let mut areas = self.areas.lock();
        let Some(at) = areas.iter().position(|area| area.0 == uar) else {
            return false;
        };
        let removed = areas.remove(at);
        drop(areas);
        removed.is_ok()
    }

    /// Tells the owners of all areas that nobody serves them any more. The device must have been
    /// silenced: the driver is its heir.
    pub(crate) fn declare_dead(&self) {
        for (_, memory) in self.areas.lock().iter() {
            // Cannot fail: the offset is the contract's own.
            let _ = memory.store32_release(doorbell::ALIVE, 0);
        }
    }
}
