// SPDX-License-Identifier: GPL-2.0

//! Memory keys, which regions and windows have.

use crate::{
    abi::{
        cmd::DestroyMr,
        ctx::MemoryEntry,
        Le32, //
    },
    hw::Hw, //
};
use base::{
    dma::Payer,
    share::Part, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A memory key, which is freed when it is dropped.
pub(crate) struct MemoryKey {
    hw: Arc<Hw>,
    pub(crate) key: u32,
    _part: Part,
}

impl MemoryKey {
    pub(crate) fn new(hw: &Arc<Hw>, payer: Payer) -> Result<Self> {
        let (key, part) = hw.info()?.ids.keys.alloc(payer)?;
        Ok(Self {
            hw: hw.clone(),
            key,
            _part: part,
        })
    }

    /// Returns the command that destroys the region or window that has this key.
    ///
    /// Work requests may have changed the key's tag. The function records the present tag.
    /// Otherwise the next key with this index could be one that a peer still uses.
    pub(crate) fn destroy_command(&self) -> DestroyMr {
        let entry = self.hw.tables.read_quickly::<MemoryEntry>(self.key >> 8);
        if let (Ok(entry), Ok(info)) = (entry, self.hw.info()) {
            info.ids.keys.note_tag(self.key, entry.key.get());
        }
        DestroyMr {
            id: Le32::new(self.key),
            ..Default::default()
        }
    }
}

impl Drop for MemoryKey {
    fn drop(&mut self) {
        if let Ok(info) = self.hw.info() {
            info.ids.keys.free(self.key);
        }
    }
}
