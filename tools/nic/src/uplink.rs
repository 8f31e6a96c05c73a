// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The way out to other machines. There is none yet: frames are counted and dropped, as on a port without a cable.

use crate::shared::Shared;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The way out.
#[derive(Clone)]
pub struct Uplink {
    shared: Arc<Shared>,
}

impl Uplink {
    /// A port without a cable.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) {
        log::trace!("a frame of {} bytes has nowhere to go", frame.len());
        self.shared
            .counts
            .uplink_dropped
            .fetch_add(1, Ordering::Relaxed);
    }
}
