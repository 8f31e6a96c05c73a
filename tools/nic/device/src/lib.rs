// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model of Verbena's NIC: registers, commands, queues, contexts, and the engine's work
//! in bounded slices.
//!
//! The model has no socket, no thread, no clock and no `unsafe`: these belong to the daemon
//! (`tools/nic/daemon`), and guest memory is behind a trait. Therefore a fake driver over plain memory
//! ([`mock`](self), feature `mock`) tests every rule of `Documentation/device.md` in microseconds.
//!
//! # One RDMA WRITE through the device
//!
//! 1. The guest stores its producer index and increments the generation of the group.
//!    [`Device::run_slice`] (`sched.rs`) scans the areas that are awake (`areas.rs`), finds the
//!    changed generation, reads the producer index, and gives the queue pair its turn.
//! 2. The turn is a call of the transport (`verbena_transport::Qp::poll`), which sees the device through
//!    `QpHost` (`host.rs`). The host decodes the WQE from one copy of its bytes (`wqe.rs`), checks
//!    the keys (`mr.rs`), and takes the packets.
//! 3. `net.rs` delivers each packet: directly to a queue pair of this device, or as the bytes of a
//!    frame.
//! 4. The receiver's transport has the payload copied (`copy.rs`), from guest memory to guest
//!    memory, once. A slice ends after 256 KiB of copies, so that the memory map can change.
//! 5. The acknowledgement returns as a packet and the sender's transport completes the request.
//!    `cq.rs` writes the CQE, executes a fence and reads the arm, and `eq.rs` reports the
//!    completion to the driver if the arm asks for it.
//!
//! # Where to look
//!
//! The layers are listed from the top. A `use` refers only to the same or a lower layer
//! (`scripts/check-style floors`):
//!
//! | folder or file | contents |
//! | --- | --- |
//! | `device/` | life cycle of the device, and the calls of the daemon |
//! | `device/cmd/` | commands, by kind of object; each is validated in full before it changes anything |
//! | `device/sched.rs`, `areas.rs`, `net.rs` | a slice: commands, doorbell areas, timers, turns of the queue pairs; delivery of packets |
//! | `device/parts/` | what a slice works with: commands, area lists, turns, frames; each part has private fields |
//! | `device/crossing.rs` | packets between the devices of one process |
//! | `device/fault_hooks.rs` | the places where fault rules are applied |
//! | `device/full_recording/` | the record of all inputs and outputs of the model, and the replay of such a record |
//! | `device/flight_recording.rs` | the flight recorder: start, stop, contents |
//! | `device/fault_effects.rs` | the effects of fault rules that use existing paths of the device |
//! | `device/snapshot.rs`, `figures.rs` | contexts, counters, the port and its queue pairs for people, in portions |
//! | `execution/` | the device as a running queue pair sees it |
//! | `execution/resources.rs`, `host.rs` | the resources that queue pairs share, in parts; a call of the transport |
//! | `execution/frames.rs`, `wqe.rs`, `copy.rs` | packets as bytes; work queue entries; the only copy of the payload |
//! | `objects/` | `qp.rs`, `cq.rs`, `eq.rs`, `srq.rs`, `mr.rs`, `uar.rs`, `port.rs` |
//! | `observation/` | the events of the device, and their sinks: counters, recordings, capture, key violations |
//! | `memory/` | guest memory, rings and translations, context tables |
//! | `regs.rs` | BAR 0, shared with the front, which answers reads at once |
//! | `config.rs`, `error.rs`, `slots.rs` | options and limits, errors of commands, tables of objects by number |
//! | `capture.rs` | capture of the frames that the port sends and receives |
//! | `misbehave.rs` | a device that is slow, silent or dead at the request of a test |
//! | `hostile.rs` | a device that gives wrong answers, to test the driver; `mock/` the fake driver |
//!
//! # Trust
//!
//! Guest memory is hostile. A value that was read from it is a snapshot, which is validated before
//! use. Bounds are checked by subtraction. Tables grow with the objects that are created, up to the
//! limits in `config.rs`. A mistake of a guest leads to a status, a syndrome or an event of that
//! guest.
#![forbid(unsafe_code)]

pub mod capture;
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
pub mod observation;
pub mod regs;
pub mod slots;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use device::cmd::infiniband::{AgentReply, AgentRequest, MadBytes, SOFTWARE_CAPABILITIES};
pub use device::crossing::Crossing;
pub use device::figures::{PortFigures, QpFigures};
pub use device::flight_recording::FlightRecordingPart;
pub use device::full_recording::{replay, ReplayError, ReplaySummary};
pub use device::snapshot::{Cursor, Portion, Snapshot};
pub use device::{Addresses, Device, Next};
pub use execution::copy::Side;
pub use objects::infiniband::InfiniBandPort;
pub use objects::port::Gid;
pub use observation::full_recording::{FullRecordingRequest, FullRecordingStatus};
pub use observation::key_violations::{KeyViolation, KeyViolations};
pub use regs::{Action, Registers};
