// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of `verbena-sim`: [`subject`] is the simulation to run, [`replay`] runs one seed,
//! [`crew`] runs many of them on all cores, [`state`] remembers the seeds that were run.

#![forbid(unsafe_code)]

pub mod crew;
pub mod replay;
pub mod state;
pub mod subject;
