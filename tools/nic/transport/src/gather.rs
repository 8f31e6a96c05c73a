// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The locations of the data of a work request, which packets to local peers share.

use crate::copy::{self, CopySource};
use crate::sges::{LazyVec, SgeList};
use core::cell::Cell;
use verbena_abi::syndrome::Syndrome;

/// Locations of the data of one work request. Packets in flight to local peers share the gather,
/// and the data is read when such a packet arrives. When the work request is completed, flushed or
/// dropped, `alive` becomes false: a packet that still refers to the gather counts as lost, so no
/// buffer is touched after its completion.
#[derive(Debug, Default)]
pub struct Gather {
    /// Protection domain that the SGEs are checked against.
    pub pd: u32,
    /// SGEs of the data; empty if the data is inline.
    pub sges: SgeList,
    /// Inline data of the WQE.
    pub inline: LazyVec<u8>,
    /// True if the QP may use the reserved DMA key.
    pub privileged: bool,
    /// Number of bytes of the message. The transport computes it when it starts the WQE.
    pub(crate) length: u32,
    pub(crate) alive: Cell<bool>,
    /// Cause that a copy reported because the sender's memory could not be read.
    pub(crate) fault: Cell<Option<Syndrome>>,
}

impl Gather {
    /// Empties the gather for reuse, and keeps the capacity of its lists.
    pub(crate) fn recycle(&mut self) {
        self.sges.clear();
        self.inline.clear();
        self.length = 0;
        self.alive.set(false);
        self.fault.set(None);
    }

    /// True if the work request still owns its buffers.
    pub fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// Returns bytes `offset..offset + length` of the message as a source for [`Host::copy`](crate::Host::copy).
    pub fn source(&self, offset: u32, length: u32) -> CopySource<'_> {
        if self.inline.is_empty() {
            CopySource::Gather {
                pd: self.pd,
                privileged: self.privileged,
                sges: &self.sges,
                offset,
                length,
            }
        } else {
            CopySource::Bytes(copy::part(&self.inline, offset, length))
        }
    }
}
