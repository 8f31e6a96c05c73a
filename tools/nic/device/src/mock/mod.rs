// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A fake driver over plain memory, which speaks the ABI: it creates queues, posts and polls. With
//! this driver the whole device is tested without a guest, and the test controls the clock.

mod driver;
mod queues;
mod ram;

pub use driver::{flat, gid, Driver, MAC};
pub use queues::{CqHandle, Done, QpHandle, SendWr, SrqHandle, WqeBytes, ALL_ACCESS};
pub use ram::{GuestWords, Ram, BASE};
