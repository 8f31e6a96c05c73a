// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The transport: RoCEv2 queue pairs as deterministic state machines.
//!
//! Packets, work and time go in; packets, completions, events and the next deadline come out. There is no clock, no
//! socket, no thread and no guest memory in here: all of that belongs to the [`Host`] that each call is given. So every
//! rule of the protocol, and every accident of a network, is tested on a virtual clock in milliseconds.
//!
//! # One RDMA WRITE
//!
//! 1. The program rings its doorbell; the NIC sees the producer index move and calls [`Qp::handle_posts`], then
//!    [`Qp::poll`].
//! 2. `qp/requester/` has the host decode the WQE into a snapshot (a header and a [`Gather`], the list of places
//!    where the bytes are), checks its keys, gives it its range of PSNs and hands the host packets. To a peer in the
//!    same engine, up to 256 KiB of a message travel as one *super-packet*, and no byte is copied: the packet refers to
//!    the gather. For a wire, [`Packet::split`] and [`wire::frame`] make ordinary frames.
//! 3. The NIC delivers the packet to the peer with [`Qp::handle_packet`]. `qp/responder/` checks sequence, operation, key
//!    and bounds, and has the host copy: from the sender's memory to the receiver's, once.
//! 4. The last packet of a run asks for an acknowledgement, which goes back as a packet. `qp/requester/responses.rs` completes
//!    the work requests that it covers, in order, and their gathers are dead from then on: a copy of the packet that
//!    is still under way counts as lost.
//! 5. If the acknowledgement does not come, [`Qp::next_deadline`] passes and the requester goes back to the oldest PSN
//!    that is not acknowledged.
//!
//! # Where to look
//!
//! | file | what |
//! | --- | --- |
//! | `host.rs` | what a queue pair needs from the NIC: [`Host`] and the types of its calls |
//! | `packet.rs` | [`Packet`], payloads by reference, super-packets |
//! | `allowance.rs` | [`Allowance`]: bytes that may be kept of what came ahead of a gap |
//! | `pool.rs` | [`Pool`]: buffers of payloads that are copies, used again and again |
//! | `qp/mod.rs` | [`Qp`] and the order of calls; `qp/state.rs` its states, `qp/timers.rs` its timers |
//! | `qp/requester.rs`, `qp/requester/` | work requests and responses in, requests and completions out |
//! | `qp/responder.rs`, `qp/responder/` | requests in, responses and completions out |
//! | `qp/uc.rs`, `qp/ud.rs` | unreliable connections, datagrams |
//! | `sched/` | whose turn it is, and whose time has come: [`sched::Ready`], [`sched::Wheel`] |
//! | `wire/` | the headers to the bit, ICRC, whole frames |
//!
//! Unit tests of a part are beside it. The rules of queue pairs are tested from outside, in `tests/rules/`, on the virtual clock
//! and the bad links of the laboratory (`tools/roce-lab`), whose hosts check what must hold whatever is tested.
//!
//! `Documentation/rules.md` lists the rules by clause with their tests, `Documentation/transport.md` what is deliberately
//! not met.

#![no_std]
#![forbid(unsafe_code)]
// Nothing that comes in, be it a packet, a work request or the time, may bring the engine to a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod allowance;
pub mod counters;
pub mod host;
pub mod packet;
pub mod pool;
pub mod prefetch;
pub mod psn;
pub mod qp;
pub mod sched;
pub mod wire;

pub use allowance::Allowance;
pub use counters::{CongestionCounters, Counters};
pub use host::{Gather, Host};
pub use packet::{Packet, Payload};
pub use pool::Pool;
pub use qp::{Attr, Budget, Config, Qp, QpState, QpType, Snapshot};
