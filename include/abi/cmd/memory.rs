// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions, device memory, page faults.

use super::super::ctx::Translation;
use super::{Command, Empty, Le32, Le64, Opcode, PAYLOAD_SIZE};

layout! {
    /// Creates a memory region.
    pub struct CreateMr: 56 {
        /// Key: index in bits 31:8, tag in bits 7:0.
        0 => key: Le32,
        4 => pdn: Le32,
        /// [`super::super::ctx::access`].
        8 => access: Le32,
        /// [`super::super::ctx::mr_flags`].
        12 => flags: Le32,
        /// Virtual address of the first byte, which work requests use.
        16 => iova: Le64,
        /// Length in bytes.
        24 => length: Le64,
        /// Offset of the first byte in the first page of the translation.
        32 => page_offset: Le64,
        40 => pages: Translation,
    }
}
command!(CreateMr, CreateMr, Empty);
object_command!(
    /// Destroys a memory region. The device replies after its last access to the pages.
    DestroyMr, DestroyMr, Empty
);

layout! {
    /// Changes a memory region in one step. All fields are as in [`CreateMr`].
    pub struct ModifyMr: 56 {
        0 => key: Le32,
        4 => pdn: Le32,
        8 => access: Le32,
        12 => flags: Le32,
        16 => iova: Le64,
        24 => length: Le64,
        32 => page_offset: Le64,
        40 => pages: Translation,
    }
}
command!(ModifyMr, ModifyMr, Empty);

layout! {
    /// Ends a page fault: the pages for which a queue pair waits are present, or do not exist.
    pub struct ResumePageFault: 16 {
        0 => qpn: Le32,
        /// Number of the fault, from its event.
        4 => fault: Le32,
        /// 0: the queue pair tries again; 1: the pages do not exist.
        8 => failed: u8,
        9 => reserved: [u8; 7],
    }
}
command!(ResumePageFault, ResumePageFault, Empty);

layout! {
    /// Allocates device memory. Work requests reach it by a memory region with
    /// [`super::super::ctx::mr_flags::DEVICE_MEMORY`].
    pub struct AllocDm: 24 {
        /// Number of the allocation.
        0 => dmn: Le32,
        /// The allocation is aligned to 2^log_align bytes.
        4 => log_align: u8,
        5 => reserved0: [u8; 3],
        /// Length in bytes.
        8 => length: Le64,
        16 => reserved1: Le64,
    }
}
layout! {
    /// Place of an allocation.
    pub struct DmPlace: 16 {
        /// Offset in the device memory, for use in translations.
        0 => offset: Le64,
        8 => reserved: Le64,
    }
}
command!(AllocDm, AllocDm, DmPlace);
object_command!(
    /// Frees device memory that no memory region uses.
    FreeDm, FreeDm, Empty
);

layouts! {
    structs: [CreateMr, DestroyMr, ModifyMr, ResumePageFault, AllocDm, DmPlace, FreeDm],
    codes: []
}
