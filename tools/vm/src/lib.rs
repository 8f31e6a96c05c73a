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
//! Guests of [`Launch::name`] stay until they are asked to end ([`node_session`]). The launch starts
//! their session in the background. An agent in each guest ([`agent`]) runs the commands that
//! clients ([`node_client`]) send to the session ([`node_server`], [`agent_link`]) in frames
//! ([`frames`], [`window`]), on request with a terminal ([`terminal`]). [`node_set`] finds running guests.
//!
//! [`doctor`] says what this machine lacks, [`cache`] what Verbena keeps on it.
//!
//! The guest unpacks one archive for all guests, which an [`Installation`] has, and a small archive
//! of its own ([`guest_files`], [`archive`]). `scripts/guest/init` is the first process in it.
//!
//! `scripts/vm` still boots guests by itself. These of its options have no counterpart here yet:
//! `--kernel` (other kernels and the debug kernel, with its longer limits), `--packages`,
//! `--no-module`, `--device rxe`, `--topology`, `--no-sm`, `--mac-policy`, `--link tap`,
//! `--share` at `/mnt/host`, `--qemu-args`, `--monitor`, `--snapshots` and `--reboots` (with the
//! NICs that guests kill), and the variables `VERBENA_NIC` and `VERBENA_RECORD`.

pub mod agent;
pub mod agent_link;
pub mod archive;
mod background;
pub mod boot;
pub mod boots;
pub mod cache;
pub mod complaints;
pub mod copy;
pub mod doctor;
pub mod frames;
pub mod guest;
pub mod guest_files;
pub mod installation;
pub mod judge;
mod launch;
pub mod nic;
pub mod node_client;
pub mod node_request;
pub mod node_server;
pub mod node_session;
pub mod node_set;
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
pub mod terminal;
pub mod watcher;
pub mod window;

pub use boot::Progress;
pub use installation::Installation;
pub use launch::{make_parts, Launch};
pub use options::{Accelerator, LinkKind, LinkLayer, Run, RunOptions};
