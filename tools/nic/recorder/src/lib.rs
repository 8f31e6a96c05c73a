// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: a ring of small entries about the last activity of a device, and the
//! functions that analyze and export these entries.
//!
//! | file | contents |
//! | --- | --- |
//! | `entry.rs`, `entry/words.rs`, `flags.rs` | an entry, and its 48 bytes |
//! | `entry_ring.rs` | the ring of entries that the device writes |
//! | `flight_recording.rs` | the file of entries, and its reader, which refuses other files |
//! | `device_history.rs` | the entries, the rules and the objects that an analysis uses |
//! | `diagnosis/` | sentences that say why a queue pair is in its state |
//! | `explain/` | the meaning of a status, an event, a `vendor_err` or an errno of a verb |
//! | `export.rs` | rules that reproduce the recorded faults |
//! | `synthetic_frame.rs` | frames made from entries, for a capture |
//! | `report/` | a page that shows the entries |
//! | `full/` | a full recording: all inputs and outputs of a device model, for a replay |
//!
//! This crate uses no clock, no socket and no file.
#![forbid(unsafe_code)]

mod device_history;
mod diagnosis;
mod entry;
mod entry_ring;
mod explain;
mod export;
mod flags;
mod flight_recording;
pub mod full;
mod report;
mod synthetic_frame;

pub use entry::{EntryKind, FlightEntry, PacketEntry, ENTRY_WORDS, NO_RULE};
pub use entry_ring::{EntryRing, DEFAULT_ENTRIES, MAX_ENTRIES, MIN_ENTRIES};
pub use flags::{FIRST, LAST, LOST, RANDOM_DROP, RECV, WRITTEN};
pub use flight_recording::{FlightRecording, FlightRecordingError, VERSION};

pub use device_history::{packet_name, state_name, work_request_name, DeviceHistory, QpSnapshot};
pub use diagnosis::{
    diagnose_qp, list_errors, observations, syndrome_text, ErrorList, RecordedError,
};
pub use explain::{all_codes, explain, CodeExplanation, CodeKind, CodeLookup};
pub use export::{export_rules, ExportedRules};
pub use report::report;
pub use synthetic_frame::{synthesize_frames, PacketDirection, SyntheticFrame};

/// Returns a PSN as text for messages.
pub(crate) fn psn_text(psn: u32) -> String {
    format!("PSN {psn:#08x}")
}
