// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of a [`Device`](super::Device) that its slices work with.
//!
//! Each part is a struct with private fields in a file of its own. Its invariants hold after each
//! call of a method, whichever file of the device calls it. A part knows neither the other parts
//! nor guest memory.

pub(crate) mod addressing;
pub(crate) mod areas;
pub(crate) mod commands;
pub(crate) mod crossing;
pub(crate) mod egress;
pub(crate) mod follow;
pub(crate) mod turns;
