// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model of Verbena's NIC: registers, commands, queues, contexts, and the engine's work in bounded slices.
//!
//! There is no socket, no thread and no clock in here, and no `unsafe`: the daemon (`tools/nic`) owns all of that, and
//! guest memory is behind a trait. So every rule of `Documentation/device.md` is tested by a fake driver over plain
//! memory ([`mock`](self), feature `mock`) in microseconds.
//!
//! # One RDMA WRITE through the device
//!
//! 1. The guest stores its producer index and counts the group's generation. [`Device::run_slice`] (`sched.rs`) scans
//!    the areas that are awake (`areas.rs`), finds the generation changed, reads the index, and gives the queue pair its turn.
//! 2. The turn is a call of the transport (`verbena_roce::Qp::poll`), which sees the device through `QpHost` (`host.rs`):
//!    it has the WQE decoded from one copy of its bytes (`wqe.rs`), its keys checked (`mr.rs`), and hands over packets.
//! 3. `net.rs` delivers each packet: to a queue pair of this device at once, or through the bytes of a frame.
//! 4. The receiver's transport has the payload copied (`copy.rs`), from guest memory to guest memory, once. A slice ends
//!    after 256 KiB of that, so that the memory map can change.
//! 5. The acknowledgement comes back as a packet; the sender's transport completes: `cq.rs` writes the CQE, fences,
//!    looks at the arm, and `eq.rs` tells the driver, if it asked to be told.
//!
//! # Where to look
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs` | the device's life, and what the daemon calls |
//! | `regs.rs` | BAR 0, shared with the front, which answers reads at once |
//! | `cmd/` | commands, by kind of object; validated in full before anything changes |
//! | `sched.rs`, `areas.rs` | a slice: commands, doorbell areas, timers, queue pairs in turn |
//! | `shared.rs` | everything but the transports: what a queue pair sees of the device while it runs |
//! | `host.rs`, `wqe.rs` | what a transport's call sees of the device; work queue entries |
//! | `qp.rs`, `cq.rs`, `eq.rs`, `srq.rs`, `mr.rs`, `uar.rs`, `port.rs` | the objects |
//! | `ring.rs`, `tables.rs`, `mem.rs` | rings and translations, context tables, guest memory |
//! | `snapshot.rs` | contexts and counters for people, in portions |
//! | `copy.rs`, `net.rs` | the payload's one copy, and the ways of a packet |
//! | `hostile.rs` | a device that lies, to try the driver with |
//! | `misbehave.rs` | a device that is slow, silent or dead when a test wants it |
//!
//! # Trust
//!
//! Guest memory is hostile. Whatever is read from it is a snapshot that is validated before use; bounds are checked by
//! subtraction; tables grow with what was created and never beyond the limits in `config.rs`; a mistake becomes a
//! status, a syndrome or an event of the one who made it.
#![forbid(unsafe_code)]

mod areas;
pub mod cmd;
pub mod config;
mod copy;
pub mod cq;
pub mod device;
pub mod eq;
mod host;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod mem;
pub mod misbehave;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod mr;
mod net;
pub mod port;
pub mod qp;
pub mod regs;
pub mod ring;
mod sched;
pub mod shared;
pub mod slots;
pub mod snapshot;
pub mod srq;
pub mod tables;
pub mod uar;
mod wqe;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use device::{Device, Next};
pub use regs::{Action, Registers};
pub use snapshot::{Cursor, Portion, Snapshot};
