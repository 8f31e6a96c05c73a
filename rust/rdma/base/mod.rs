// SPDX-License-Identifier: GPL-2.0

//! What is not of the verbs, and parallels or would extend the `kernel` crate: a driver of something
//! else could use it as well.

pub mod bind;
pub mod compat;
pub mod config;
pub mod count;
pub mod dma;
pub mod errno;
pub mod hibernation;
pub mod irq;
pub mod netdev;
pub mod netns;
pub mod share;
pub mod sync;
pub mod table;
pub mod task;
pub mod work;
