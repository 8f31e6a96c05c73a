// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The transport: RoCEv2 queue pairs as deterministic state machines.
//!
//! The inputs are packets, work requests and time; the outputs are packets, completions, events and
//! the next deadline. The crate has no clock, socket, thread or guest memory: these belong to the
//! [`Host`] that is passed to each call. So tests exercise every rule of the protocol, and every
//! fault of a network, on a virtual clock and within milliseconds.
//!
//! # One RDMA WRITE
//!
//! 1. The program rings its doorbell; the NIC reads the new producer index and calls
//!    [`Qp::handle_posts`], then [`Qp::poll`].
//! 2. `qp/requester/` has the host decode the WQE into a snapshot (a header and a [`Gather`], the
//!    list of the locations of the data), checks its keys, assigns its range of PSNs and passes
//!    packets to the host. To a peer in the same engine, up to 256 KiB of a message travel as one
//!    *super-packet* without a copy of its bytes: the packet refers to the gather. For a wire,
//!    [`Packet::split`] and [`frame`] make ordinary frames.
//! 3. The NIC delivers the packet to the peer with [`Qp::handle_packet`]. `qp/responder/` checks
//!    sequence, operation, key and bounds, and has the host copy the data once, from the sender's
//!    memory to the receiver's.
//! 4. The last packet of a run requests an acknowledgement, which the responder sends as a packet.
//!    `qp/requester/responses.rs` completes the acknowledged work requests in order. From then on
//!    their gathers are invalid: a copy of the packet that is still in flight counts as lost.
//! 5. If the acknowledgement does not arrive before [`Qp::next_deadline`], the requester goes back
//!    to the oldest unacknowledged PSN.
//!
//! # Source files
//!
//! | file | contents |
//! | --- | --- |
//! | `host.rs` | the interface of a queue pair to the NIC: [`Host`] and the types of its calls |
//! | `gather.rs`, `sges.rs`, `copy.rs` | the locations of data, and the ends of a copy |
//! | `headers.rs` | the transport headers as values |
//! | `packet.rs` | [`Packet`], payloads by reference, super-packets |
//! | `reassembly_quota.rs` | [`ReassemblyQuota`]: limit of the bytes of packets that are kept out of order |
//! | `pool.rs` | [`Pool`]: buffers for copied payloads, which are used again |
//! | `qp/mod.rs` | [`Qp`] and the order of calls; `qp/state.rs` its states, `qp/timers.rs` its timers |
//! | `qp/requester.rs`, `qp/requester/` | work requests and responses in, requests and completions out |
//! | `qp/responder.rs`, `qp/responder/` | requests in, responses and completions out |
//! | `qp/uc.rs`, `qp/ud.rs` | unreliable connections, datagrams |
//! | `sched/` | turns and deadlines of queue pairs: [`sched::ReadyQueue`], [`sched::TimerWheel`] |
//! | `wire/` | the headers to the bit, ICRC |
//! | `frame.rs` | whole frames to and from packets |
//!
//! The unit tests of a part are beside it. `tests/rules/` tests the rules of queue pairs from
//! outside, on the virtual clock and the bad links of the laboratory (`tools/lab/transport`), whose
//! hosts check the invariants in every test.
//!
//! `Documentation/rules.md` lists the rules by clause with their tests,
//! `Documentation/transport.md` the rules that are deliberately not met.

#![no_std]
#![forbid(unsafe_code)]
// No input, be it a packet, a work request or a time, may make the engine panic.
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

pub mod copy;
pub mod counters;
pub mod frame;
pub mod gather;
pub mod headers;
pub mod host;
pub mod packet;
pub mod pool;
pub mod prefetch;
pub mod psn;
pub mod qp;
pub mod reassembly_quota;
pub mod sched;
pub mod sges;
pub mod wire;

pub use counters::{CongestionCounters, Counters};
pub use gather::Gather;
pub use host::Host;
pub use packet::{Packet, Payload};
pub use pool::Pool;
pub use qp::{Attr, Budget, Qp, QpConfig, QpSnapshot, QpState, QpType};
pub use reassembly_quota::ReassemblyQuota;
