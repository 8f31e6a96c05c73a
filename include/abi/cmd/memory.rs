// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions, memory of the device, page faults.

use super::super::ctx::Translation;
use super::{Command, Empty, Le32, Le64, Opcode, PAYLOAD_SIZE};

layout! {
    /// Creates a memory region.
    pub struct CreateMr: 56 {
        /// The key: index in bits 31:8, tag in bits 7:0.
        0 => key: Le32,
        4 => pdn: Le32,
        /// [`super::super::ctx::access`].
        8 => access: Le32,
        /// [`super::super::ctx::mr_flags`].
        12 => flags: Le32,
        /// Virtual address of the first byte, as WRs name it.
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
    /// Destroys a memory region; replies when the device has let go of its pages.
    DestroyMr, DestroyMr, Empty
);

layout! {
    /// Changes a memory region in one step: all fields as in [`CreateMr`].
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
    /// The pages that a queue pair waits for are there, or never will be.
    pub struct ResumePageFault: 16 {
        0 => qpn: Le32,
        /// The fault's number, as its event told.
        4 => fault: Le32,
        /// 0: try again; 1: there is no such page.
        8 => failed: u8,
        9 => reserved: [u8; 7],
    }
}
command!(ResumePageFault, ResumePageFault, Empty);

layout! {
    /// Allocates memory of the device. A memory region with [`super::super::ctx::mr_flags::DEVICE_MEMORY`] makes it usable.
    pub struct AllocDm: 24 {
        /// Its number.
        0 => dmn: Le32,
        /// Aligned to 2^log_align bytes.
        4 => log_align: u8,
        5 => reserved0: [u8; 3],
        /// Bytes.
        8 => length: Le64,
        16 => reserved1: Le64,
    }
}
layout! {
    /// Where memory of the device is.
    pub struct DmPlace: 16 {
        /// Offset in the memory of the device, which translations name.
        0 => offset: Le64,
        8 => reserved: Le64,
    }
}
command!(AllocDm, AllocDm, DmPlace);
object_command!(
    /// Frees memory of the device that no memory region uses.
    FreeDm, FreeDm, Empty
);

layouts! {
    structs: [CreateMr, DestroyMr, ModifyMr, ResumePageFault, AllocDm, DmPlace, FreeDm],
    codes: []
}
