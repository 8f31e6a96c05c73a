// SPDX-License-Identifier: GPL-2.0

//! The verbs, with one file for each type of object. The module `vdev` contains all objects of a
//! device.

pub(crate) mod ah;
mod counters;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod infiniband;
mod key;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pages;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod port_events;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod ucontext;
pub(crate) mod wq;
pub(crate) mod xrcd;

pub(crate) use device::VerbsDevice;
pub(crate) use port::Verbena;
