// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `verbena-sim` is made of: [`subject`] is what is run, [`replay`] runs one seed, [`crew`] many of them on all
//! cores, [`state`] remembers what was done.

#![forbid(unsafe_code)]

pub mod crew;
pub mod replay;
pub mod state;
pub mod subject;
