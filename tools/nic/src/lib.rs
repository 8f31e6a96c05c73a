// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model of Verbena's NIC.
#![forbid(unsafe_code)]

pub mod cmd;
pub mod config;
mod copy;
pub mod cq;
pub mod device;
pub mod eq;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod mem;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod mr;
mod net;
pub mod port;
pub mod qp;
pub mod regs;
pub mod ring;
mod sched;
pub mod shared;
pub mod slots;
pub mod srq;
pub mod tables;
pub mod uar;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use device::{ContextInfo, Device, Next};
pub use regs::{Action, Registers};
