// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model of Verbena's NIC.
#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub mod mem;
pub mod regs;
pub mod slots;

pub use config::Config;
pub use device::{ContextInfo, Device, Next};
pub use regs::{Action, Registers};
