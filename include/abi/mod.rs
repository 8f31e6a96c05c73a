// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The contract between driver, device and provider.
//!
//! Three programs use this folder: the kernel module (built by Kbuild, which includes this file by
//! path), and the NIC and the libibverbs provider (built by Cargo with the crate `verbena-abi`).
//! Everything in memory or in a register that two of these programs share is defined here and
//! nowhere else. `Documentation/device.md` describes its use.
//!
//! | file | definitions |
//! | --- | --- |
//! | [`regs`] | registers of BAR 0; the doorbell BAR |
//! | [`cmd`] | command queue: slots, opcodes, requests and replies |
//! | [`ctx`] | contexts that the device publishes (QPC, CQC, SRQC, EQC, memory entries), translations, address vectors |
//! | [`wqe`], [`cqe`], [`eqe`] | entries of the rings |
//! | [`doorbell`] | doorbell areas, and the protocol of sleep and wake-up as code that both sides run |
//! | [`shared`] | protocols of ring entries, consumer indexes and contexts, as code that both sides run |
//! | [`syndrome`] | one code for each cause of an error, with a sentence that explains it |
//! | [`stats`] | the port's counters |
//! | [`uverbs`] | requests and responses of provider and module in uverbs |
//!
//! Fields are little endian unless their comment says otherwise. They are naturally aligned, and
//! structures have no implicit padding. The `layout!` macro asserts every offset and size at
//! compile time, and is the source of `Documentation/layout.txt`. A writer sets reserved fields to
//! zero. A reader ignores them unless a rule says that it checks them.

#[macro_use]
mod macros;

pub mod cmd;
pub mod cqe;
pub mod ctx;
pub mod doorbell;
pub mod eqe;
pub mod le;
pub mod regs;
pub mod shared;
pub mod stats;
pub mod syndrome;
pub mod uverbs;
pub mod wqe;

pub use le::{Le16, Le32, Le64};

/// Version of this contract. It changes with each change of `Documentation/layout.txt`.
pub const ABI_VERSION: u16 = 13;

/// Oldest version that programs with this source still support.
pub const ABI_VERSION_MIN: u16 = 9;

/// Name, size and fields of a structure, for the layout table.
pub trait Layout {
    /// Name of the structure.
    const NAME: &'static str;
    /// Size of the structure in bytes.
    const SIZE: usize;
    /// Name of each field, and its offset and size in bytes.
    const FIELDS: Fields;
}

/// Name of each field of a structure, and its offset and size in bytes.
pub type Fields = &'static [(&'static str, usize, usize)];

/// Callback that receives the name, size in bytes, and fields of a structure.
pub type VisitStruct<'a> = dyn FnMut(&'static str, usize, Fields) + 'a;

/// Callback that receives the name of a set of codes, and the name and number of one code.
pub type VisitCode<'a> = dyn FnMut(&'static str, &'static str, u32) + 'a;

/// Passes every structure to `structure` and every code to `code`, in the order of the files.
pub fn for_each_layout(structure: &mut VisitStruct<'_>, code: &mut VisitCode<'_>) {
    regs::layouts(structure, code);
    cmd::layouts(structure, code);
    ctx::layouts(structure, code);
    wqe::layouts(structure, code);
    cqe::layouts(structure, code);
    eqe::layouts(structure, code);
    doorbell::layouts(structure, code);
    syndrome::layouts(structure, code);
    stats::layouts(structure, code);
    uverbs::layouts(structure, code);
}
