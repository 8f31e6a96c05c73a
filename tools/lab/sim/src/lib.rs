// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of `verbena-sim`: [`subject`] is the simulation to run, [`replay`] runs one seed,
//! [`workers`] runs many of them on all cores, [`progress`] remembers the seeds that were run.

#![forbid(unsafe_code)]

pub mod progress;
pub mod replay;
pub mod subject;
pub mod workers;
