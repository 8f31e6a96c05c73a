// SPDX-License-Identifier: GPL-2.0

//! Abstractions that are not about verbs. They parallel or would extend the `kernel` crate, and
//! drivers of other devices could use them too.

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
