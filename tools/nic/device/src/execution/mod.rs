// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of the device that a queue pair uses while it runs: the objects around it
//! ([`resources`]), its work requests, and the copy of payload.

pub(crate) mod copy;
pub(crate) mod datagrams;
pub(crate) mod frames;
pub(crate) mod host;
pub(crate) mod resources;
pub(crate) mod wqe;
