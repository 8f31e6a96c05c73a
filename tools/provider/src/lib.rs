// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Verbena's provider for libibverbs.
//!
//! Unmodified libibverbs opens this library when it finds the device, and calls it for every verb.
//! Verbs that create, change or destroy objects go on to the kernel module. Posting, polling and
//! arming do not: they work on memory that the process and the device both see directly.
//!
//! The path of one message, from the program's side:
//!
//! 1. `ibv_post_send` arrives in `ffi::data`, which wraps the C list ([`ffi::wr`]) and passes it
//!    to [`qp`]. [`qp`] checks the state. [`send`] checks the request, writes the WQE ([`wqe`])
//!    into the ring ([`ffi::memory`]) and stores its `wr_id` ([`window`]). After the last request
//!    of the list, the producer index is published by the protocol of [`verbena_abi::doorbell`],
//!    the same code of which the device runs the other half: a store, an increment, a fence, a
//!    load. The doorbell, which costs a VM exit, is rung only when the device sleeps.
//! 2. The device executes the WQE and writes a CQE.
//! 3. `ibv_poll_cq` arrives in [`cq`]. The phase of the next entry shows that the entry is new, and
//!    its QPN finds the queue pair ([`table`]). The consumer index is published once for
//!    consecutive entries of one work queue. Then the window of that work queue advances, which
//!    frees entries of its ring.
//!
//! Locks: each queue has its own lock ([`ffi::lock`]). The lock of a CQ is taken before the locks
//! of the queues that complete there. The move of a queue pair to RESET, and its destruction,
//! remove its CQEs from its CQs under the locks of the CQs. Arming a CQ does not take the lock of
//! the CQ. Neither does the creation of an object that completes there ([`pending_registrations`]),
//! unless the kernel has reused a number that the CQ still knows.
//!
//! When the device dies (a fatal error, an unbind), the kernel removes the mappings: they show one
//! page of zeroes, or the data that was written to that page since. The alive word of the area then
//! reads 0, and this result is latched. Posting is still accepted, and polls flush all outstanding
//! requests from the windows, once and in order ([`cq`]).
//!
//! All `unsafe` is in [`ffi`]. `ffi::bindings` is generated from rdma-core's private headers, for the
//! private ABI that `build.rs` selects. [`release`] has the table of private ABIs.

// Unit tests run without libibverbs, so items that only the libibverbs glue uses are unused there.
#![cfg_attr(test, allow(dead_code))]

mod builder;
mod cq;
mod errno;
mod ffi;
mod pending_registrations;
mod qp;
mod recv;
mod release;
mod send;
mod table;
mod use_count;
mod wall_clock;
mod work_completion;
mod wqe;
mod wr_window;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
