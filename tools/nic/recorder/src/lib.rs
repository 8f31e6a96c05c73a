// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: a ring of small entries about the last activity of a device, and the
//! functions that analyze and export these entries.
//!
//! | file | contents |
//! | --- | --- |
//! | `entry.rs`, `flags.rs` | an entry, and its 48 bytes |
//! | `ring.rs` | the ring that the device writes |
//! | `file.rs` | the file of a recording, and its reader, which refuses other files |
//! | `facts.rs`, `why/` | sentences that say why a queue pair is in its state |
//! | `explain/` | the meaning of a status, an event, a `vendor_err` or an errno of a verb |
//! | `export.rs` | rules that reproduce the recorded faults |
//! | `frames.rs` | frames made from a recording, for a capture |
//! | `report/` | a page that shows a recording |
//! | `full/` | a full recording: all inputs and outputs of a device model, for a replay |
//!
//! This crate uses no clock, no socket and no file.
#![forbid(unsafe_code)]

mod entry;
mod explain;
mod export;
mod facts;
mod file;
mod flags;
mod frames;
pub mod full;
mod report;
mod ring;
mod why;

pub use entry::{Entry, Packet, What, NO_RULE, WORDS};
pub use file::{Bad, Recording, VERSION};
pub use flags::{FIRST, LAST, LOST, LOT, RECV, WRITTEN};
pub use ring::{Ring, DEFAULT_ENTRIES, MAX_ENTRIES, MIN_ENTRIES};

pub use explain::{all, explain, Answer, Explained, Kind};
pub use export::{export, Exported};
pub use facts::{packet_name, state_name, work_name, Facts, QpNow};
pub use frames::{frames, Frame, Way};
pub use report::report;
pub use why::{errors, quiet, syndrome_text, why, Errors, Failure};

/// Returns a PSN as text for messages.
pub(crate) fn psn_text(psn: u32) -> String {
    format!("PSN {psn:#08x}")
}
