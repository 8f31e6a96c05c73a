// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A simulated world for queue pairs: two hosts over plain memory, a link that misbehaves as told, a virtual clock.

pub mod rng;
