// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: what a device did last, in a ring of small entries, and what can be read out of them.
//!
//! | file | what |
//! | --- | --- |
//! | `entry.rs`, `flags.rs` | an entry, and its 48 bytes |
//! | `ring.rs` | the ring that the device writes |
//! | `file.rs` | the file of a recording, and its reader, which refuses what is none |
//! | `facts.rs`, `why/` | why a queue pair is in the state that it is in, in sentences |
//! | `explain/` | what a status, an event, a `vendor_err` or an errno of a verb means |
//! | `export.rs` | rules that have happen again what happened |
//! | `frames.rs` | frames out of a recording, for a capture |
//! | `report/` | a page that shows a recording |
//! | `full/` | a full recording: all that a device model is told, reads and does, to be replayed |
//!
//! There is no clock, no socket and no file in here.
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

/// A PSN in people's words.
pub(crate) fn psn_text(psn: u32) -> String {
    format!("PSN {psn:#08x}")
}
