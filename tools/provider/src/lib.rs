// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Verbena's provider for libibverbs.
//!
//! Stock libibverbs opens this library when it finds the device, and calls it for every verb. What creates, changes and
//! destroys goes on to the kernel module; posting, polling and arming do not: they work on memory that the process, and
//! the device, see directly.
//!
//! One message, from the program's side:
//!
//! 1. `ibv_post_send` arrives in `ffi::data`, which wraps C's list ([`ffi::wr`]) and hands it to [`qp`]. The state is
//!    checked there; [`send`] checks the request, writes the WQE ([`wqe`]) into the ring ([`ffi::memory`]) and remembers its
//!    `wr_id` ([`window`]). After the last request of the list the producer index is published by the protocol of
//!    [`verbena_abi::doorbell`], the very code that the device runs the other half of: a store, an increment, a fence, a
//!    load; the doorbell, which costs a VM exit, is rung only when the device sleeps.
//! 2. The device does what the WQE says and writes a CQE.
//! 3. `ibv_poll_cq` arrives in [`cq`]: the phase of the next entry tells that it is new; its QPN finds the queue pair
//!    ([`table`]). The consumer index is published, once for entries of one queue in a row; then that queue's window moves
//!    on, which frees the ring's entries.
//!
//! Locks: each queue has its own ([`ffi::lock`]). A CQ's comes before those of the queues that complete there. Moving a
//! queue pair to RESET, or destroying it, takes its CQEs out of its CQs under their locks. Arming a CQ does not take its lock,
//! nor does creating what completes there ([`newcomers`]).
//!
//! When the device dies (a fatal error, an unbind), the kernel takes the mappings away: they show one page of zeroes, or
//! of what was written to it since. The area's alive word then reads 0, which is latched; posting stays accepted, and
//! polls flush everything outstanding from the windows, once and in order ([`cq`]).
//!
//! All `unsafe` is in [`ffi`]. `ffi::v34` is generated from rdma-core's private headers; [`ffi::pabi`] says what another
//! private ABI takes.

// Unit tests run without libibverbs, so what only its glue uses is idle in them.
#![cfg_attr(test, allow(dead_code))]

mod builder;
mod completion;
mod cq;
mod errno;
mod ffi;
mod newcomers;
mod qp;
mod recv;
mod release;
mod send;
mod table;
mod users;
mod wall_clock;
mod window;
mod wqe;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
