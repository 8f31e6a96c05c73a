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
//! Floors, from the top; `use` goes down only (`scripts/check-style floors`):
//!
//! | folder or file | what |
//! | --- | --- |
//! | `device/` | the device's life, and what the daemon calls |
//! | `device/cmd/` | commands, by kind of object; validated in full before anything changes |
//! | `device/sched.rs`, `areas.rs`, `net.rs` | a slice: commands, doorbell areas, timers, queue pairs in turn; the ways of a packet |
//! | `device/crossing.rs` | packets between the devices of one process |
//! | `device/laboratory.rs` | where rules of what is to go wrong are asked |
//! | `device/boundary/` | all that the model is told, reads and does, written down, and the model driven by that again |
//! | `device/recording.rs` | the flight recorder: on, off, what it has; its hooks are in `execution/notes.rs` |
//! | `device/doors.rs` | what they do by doors that the device has anyway |
//! | `device/snapshot.rs`, `figures.rs` | contexts, counters, the port and its queue pairs for people, in portions |
//! | `execution/` | what a queue pair sees of the device while it runs: `shared.rs` all but the transports, `host.rs` a transport's call, `frames.rs` packets as bytes, `wqe.rs` work queue entries, `copy.rs` the payload's one copy |
//! | `objects/` | `qp.rs`, `cq.rs`, `eq.rs`, `srq.rs`, `mr.rs`, `uar.rs`, `port.rs` |
//! | `memory/` | guest memory, rings and translations, context tables |
//! | `regs.rs` | BAR 0, shared with the front, which answers reads at once |
//! | `config.rs`, `error.rs`, `slots.rs` | limits, how a command fails, tables of objects by number |
//! | `tap.rs` | who captures what the port sends and receives |
//! | `misbehave.rs` | a device that is slow, silent or dead when a test wants it |
//! | `hostile.rs` | a device that lies, to try the driver with; `mock/` the fake driver |
//!
//! # Trust
//!
//! Guest memory is hostile. Whatever is read from it is a snapshot that is validated before use; bounds are checked by
//! subtraction; tables grow with what was created and never beyond the limits in `config.rs`; a mistake becomes a
//! status, a syndrome or an event of the one who made it.
#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub(crate) mod error;
pub mod execution;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod memory;
pub mod misbehave;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod objects;
pub mod regs;
pub mod slots;
pub mod tap;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use device::boundary::{replay, Fully, Replayed, Stopped, Wish};
pub use device::crossing::Crossing;
pub use device::figures::{PortFigures, QpFigures};
pub use device::recording::Recorded;
pub use device::snapshot::{Cursor, Portion, Snapshot};
pub use device::{Addresses, Device, Next};
pub use execution::copy::Side;
pub use objects::port::Gid;
pub use regs::{Action, Registers};
