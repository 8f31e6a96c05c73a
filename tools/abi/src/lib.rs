// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The contract between driver, device and provider, for the Cargo build.
//!
//! The source is `include/abi`, which Kbuild also compiles into the kernel module. This crate only
//! includes that directory, and has `bin/layout.rs`, which prints the layout table.

#![no_std]
#![forbid(unsafe_code)]

#[path = "../../../include/abi/mod.rs"]
mod abi;

pub use abi::*;
