// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Boots guests with a Verbena NIC, runs a command in each, streams what the commands print, and
//! judges the run. The program `verbena` is its first user.
//!
//! A [`Run`] is made of checked options. [`Launch::run`] runs this program again in its own
//! namespaces ([`session`]), where the new process changes into a root directory with QEMU
//! ([`root`]). There it starts for each guest a NIC ([`nic`], [`process`]) and QEMU ([`qemu`]), and
//! watches them ([`guest`], [`watcher`]) until all have ended ([`boot`]). Then it judges each guest
//! ([`judge`], [`complaints`]) and says what happened ([`summary`]).
//!
//! The guest unpacks one archive for all guests, which an [`Installation`] has, and a small archive
//! of its own ([`guest_files`], [`archive`]). `scripts/guest/init` is the first process in it.
//!
//! `scripts/vm` still boots guests by itself. These of its options have no counterpart here yet:
//! `--kernel` (other kernels and the debug kernel, with its longer limits), `--packages`,
//! `--no-module`, `--rxe`, `--device rxe`, `--topology`, `--no-sm`, `--mac-policy`, `--link tap`,
//! `--share` at `/mnt/host`, `--qemu-args`, `--monitor`, `--snapshots` and `--reboots` (with the
//! NICs that guests kill), and the variables `VERBENA_NIC` and `VERBENA_RECORD`.

pub mod archive;
pub mod boot;
pub mod boots;
pub mod complaints;
pub mod guest;
pub mod guest_files;
pub mod installation;
pub mod judge;
mod launch;
pub mod nic;
pub mod options;
pub mod output;
pub mod process;
pub mod qemu;
pub mod root;
pub mod run_directory;
#[cfg(test)]
mod scratch;
pub mod session;
pub mod shell;
pub mod signals;
pub mod summary;
pub mod watcher;

pub use boot::Progress;
pub use installation::Installation;
pub use launch::Launch;
pub use options::{Accelerator, LinkKind, LinkLayer, Run, RunOptions};
