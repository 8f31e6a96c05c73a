// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The objects that commands create: what each holds, its context, and its rules. None knows the device; of each other they
//! know numbers, and what a claim on another is (`CqRef`, `EqRef`, `SrqRef`).

pub mod accounts;
pub mod counters;
pub mod cq;
pub mod eq;
pub mod lab;
pub mod mcast;
pub mod mr;
pub mod port;
pub mod qp;
pub mod recorder;
pub mod srq;
pub mod uar;
pub mod window;
