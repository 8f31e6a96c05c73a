// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl record`: controls the flight recorder.

use crate::client;
use clap::Subcommand;
use serde_json::Value;
use std::path::{Path, PathBuf};
use verbena_protocol::{ControlRequest, RecorderReply, RecordingReply};
use verbena_recorder::{FlightRecording, DEFAULT_ENTRIES};

/// A command about the flight recorder.
#[derive(Subcommand, Debug)]
pub enum RecordCommand {
    /// Switch the recorder on. Earlier entries are deleted
    On {
        /// Number of entries to keep, rounded up to a power of two
        #[arg(value_name = "ENTRIES", default_value_t = DEFAULT_ENTRIES as u64, value_parser = |text: &str| crate::parse_whole(text, 1..=u64::MAX))]
        entries: u64,
    },
    /// Switch the recorder off
    Off,
    /// Print whether the recorder is on, and the number of entries
    Status,
    /// Print rules that reproduce the faults of a recording; needs no NIC
    Export {
        /// Recording that `dump` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
    },
    /// After a run: if it failed or left a queue pair in an error, write a capture and a page beside the recording and
    /// print the cause; otherwise remove the recording. Needs no NIC
    Finish {
        /// Recording that `verbena-nic --record-end` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
        /// Exit status of the run
        #[arg(long, value_name = "N", default_value_t = 0)]
        status: u8,
        /// Begin the output with the time of the error in nanoseconds since 1970, by which runs can be sorted (0: no error; 1: unknown time)
        #[arg(long)]
        time: bool,
    },
    /// Record all inputs and outputs of the device from its next reset on, for `replay`. An interrupt ends the recording
    Full {
        /// File to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Write the recording of the flight recorder to a file
    Dump {
        /// File to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl RecordCommand {
    /// True if the command asks for the state of the recorder.
    pub fn has_answer(&self) -> bool {
        matches!(self, Self::On { .. } | Self::Off | Self::Status)
    }

    /// True if the command asks a NIC.
    pub fn needs_nic(&self) -> bool {
        !matches!(self, Self::Export { .. } | Self::Finish { .. })
    }
}

/// Runs the command and returns the state of the recorder afterwards.
///
/// # Errors
///
/// The NIC refuses, a file cannot be written, or a file is not a recording.
pub fn run(
    socket: &Path,
    command: &RecordCommand,
    show: impl Fn(&RecorderReply) -> Result<String, String>,
) -> Result<String, String> {
    let request = match command {
        RecordCommand::On { entries } => ControlRequest::Record { entries: *entries },
        RecordCommand::Off => ControlRequest::Record { entries: 0 },
        // Export and finish need no NIC, and a full recording needs a connection of its own.
        RecordCommand::Status
        | RecordCommand::Export { .. }
        | RecordCommand::Finish { .. }
        | RecordCommand::Full { .. } => ControlRequest::Recorder,
        RecordCommand::Dump { file } => {
            let bytes = fetch_bytes(socket)?;
            let recording = parse(&bytes, "the recording of the NIC")?;
            std::fs::write(file, &bytes).map_err(|e| format!("{}: {e}", file.display()))?;
            let count = recording.entries.len();
            return Ok(format!("{count} entries: {}\n", file.display()));
        }
    };
    show(&client::request(socket, request)?)
}

/// Returns the bytes of the recording of the NIC.
///
/// # Errors
///
/// There is no NIC, or its recorder is off.
pub fn fetch_bytes(socket: &Path) -> Result<Vec<u8>, String> {
    client::request::<RecordingReply>(socket, ControlRequest::Recording)?.file()
}

fn parse(bytes: &[u8], name: &str) -> Result<FlightRecording, String> {
    FlightRecording::from_bytes(bytes).map_err(|e| format!("{name}: {e}"))
}

/// Returns the recording of the NIC.
///
/// # Errors
///
/// The same as those of [`fetch_bytes`].
pub fn fetch(socket: &Path) -> Result<FlightRecording, String> {
    parse(&fetch_bytes(socket)?, "the recording of the NIC")
}

/// Reads the recording in a file.
///
/// # Errors
///
/// The file cannot be read, or is not a recording.
pub fn read(file: &Path) -> Result<FlightRecording, String> {
    let name = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|e| format!("{name}: {e}"))?;
    parse(&bytes, &name)
}

/// Formats the state of the recorder for people.
pub fn table(reply: &Value) -> String {
    let dump = match reply["dump"].as_str() {
        Some(path) => format!("after a fatal error of the device they are written to {path}"),
        None => String::from("after a fatal error of the device they stay in the NIC"),
    };
    let full = reply["full"].as_str();
    let full = full.map_or(String::new(), |full| format!("full recording: {full}\n"));
    full + &match reply["entries"].as_u64() {
        Some(0) | None => String::from("nothing is recorded\n"),
        Some(entries) => format!(
            "the last {entries} entries are kept, of {} so far; {dump}\n",
            reply["total"]
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_state_of_the_recorder_is_a_sentence() {
        let off = json!({ "entries": 0, "total": 0, "dump": null });
        assert_eq!(table(&off), "nothing is recorded\n");
        let on = json!({ "entries": 1024, "total": 5, "dump": "/run/x" });
        let text = "the last 1024 entries are kept, of 5 so far; after a fatal error of the device they are written to /run/x\n";
        assert_eq!(table(&on), text);
    }

    #[test]
    fn an_error_names_the_file_that_is_not_a_recording() {
        let error = read(Path::new("/nonexistent")).unwrap_err();
        assert!(error.starts_with("/nonexistent: "), "{error}");
        let error = parse(b"hello", "x").unwrap_err();
        assert_eq!(error, "x: this is not a recording of Verbena");
    }
}
