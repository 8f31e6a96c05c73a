// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a queue pair sees of the device while it works: the objects around it ([`shared`]), its work requests, and the copying.

pub(crate) mod copy;
pub(crate) mod frames;
pub(crate) mod host;
pub(crate) mod notes;
pub mod shared;
pub(crate) mod wqe;
