// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The contract between driver, device and provider, for the Cargo build.
//!
//! The source is `include/abi`, which Kbuild compiles into the kernel module as well. There is nothing here but the
//! inclusion of that folder, and `bin/layout.rs`, which prints its layout table.

#![no_std]
#![forbid(unsafe_code)]

#[path = "../../../include/abi/mod.rs"]
mod abi;

pub use abi::*;
