// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A simulated world for queue pairs: two hosts over plain memory, a link that misbehaves as told, a virtual clock.
//!
//! [`Pair`] owns two queue pairs, the [`World`] around them and the [`Link`] between them. The world checks what must
//! hold in every run, whatever is tested: each work request completes at most once and in order, and no buffer is read
//! or written for a work request that is not outstanding.

pub mod engine;
pub mod fuzz;
pub mod keys;
pub mod link;
pub mod network;
pub mod pair;
pub mod rng;
pub mod tap;
pub mod world;

#[cfg(test)]
mod goodput;

pub use link::{Link, Mode};
pub use network::Network;
pub use pair::{Pair, Setup};
pub use rng::Rng;
pub use tap::Tap;
pub use world::{Buffer, Post, Side, World};
