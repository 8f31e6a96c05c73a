// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The objects that commands create: the state of each, its context, and its rules. None of the
//! objects knows the device. An object refers to another one by its number, and holds a
//! [`Ref`](crate::slots::Ref) to each object that it needs.

pub mod accounts;
pub mod cq;
pub mod eq;
pub mod fault_injector;
pub mod infiniband;
pub mod mcast;
pub mod mr;
pub mod port;
pub mod qp;
pub mod srq;
pub mod uar;
pub mod window;
