// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The contract between driver, device and provider.
//!
//! Three programs meet in this folder: the kernel module (built by Kbuild, which pulls this file in by path), the NIC
//! and the libibverbs provider (built by Cargo through the crate `verbena-abi`). Whatever two of them both see in
//! memory or in a register is defined here and nowhere else; `Documentation/device.md` is the prose to it.
//!
//! | file | what it defines |
//! | --- | --- |
//! | [`regs`] | registers of BAR 0, the doorbell BAR |
//! | [`cmd`] | command queue: slots, opcodes, requests and replies |
//! | [`ctx`] | contexts that the device publishes (QPC, CQC, SRQC, EQC, memory entries), translations, address vectors |
//! | [`wqe`], [`cqe`], [`eqe`] | entries of the rings |
//! | [`doorbell`] | doorbell areas and the sleep and wake protocol over them, as code that both sides run |
//! | [`syndrome`] | one code for each distinct cause of an error, with the sentence that explains it |
//! | [`stats`] | the port's counters |
//! | [`uverbs`] | what the provider exchanges with the module through uverbs |
//!
//! Everything is little endian unless said otherwise, of natural alignment, without implicit padding: the `layout!`
//! macro asserts every offset and size when it is compiled, and feeds `Documentation/layout.txt`. Reserved fields are
//! written as zero and ignored by readers unless a rule says that they are checked.

#[macro_use]
mod macros;

pub mod cmd;
pub mod cqe;
pub mod ctx;
pub mod doorbell;
pub mod eqe;
pub mod le;
pub mod regs;
pub mod stats;
pub mod syndrome;
pub mod uverbs;
pub mod wqe;

pub use le::{Le16, Le32, Le64};

/// Version of this contract. It changes whenever `Documentation/layout.txt` does.
pub const ABI_VERSION: u16 = 12;

/// The oldest version that this side still speaks.
pub const ABI_VERSION_MIN: u16 = 9;

/// A structure's name, size and fields, for the layout table.
pub trait Layout {
    /// The structure's name.
    const NAME: &'static str;
    /// Its size in bytes.
    const SIZE: usize;
    /// Name, offset and size of each field, in bytes.
    const FIELDS: Fields;
}

/// Name, offset and size of each field of a structure.
pub type Fields = &'static [(&'static str, usize, usize)];

/// Is told each structure's name, size and fields.
pub type VisitStruct<'a> = dyn FnMut(&'static str, usize, Fields) + 'a;

/// Is told the name of each set of codes, each code's name and its number.
pub type VisitCode<'a> = dyn FnMut(&'static str, &'static str, u32) + 'a;

/// Reports every structure and code to `visit`, in the order of the files.
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
