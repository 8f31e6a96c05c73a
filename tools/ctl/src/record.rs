// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl record`: controls the flight recorder.

use crate::client;
use clap::Subcommand;
use serde_json::Value;
use std::path::{Path, PathBuf};
use verbena_control::{Request, ToldRecorder, ToldRecording};
use verbena_record::{Recording, DEFAULT_ENTRIES};

/// What is asked for.
#[derive(Subcommand, Debug)]
pub enum Record {
    /// Keep the last entries from now on; what was recorded before is gone
    On {
        /// How many: rounded up to a power of two
        #[arg(value_name = "ENTRIES", default_value_t = DEFAULT_ENTRIES as u64, value_parser = |text: &str| crate::whole(text, 1..=u64::MAX))]
        entries: u64,
    },
    /// Record no more
    Off,
    /// Whether something is recorded, and how much
    Status,
    /// Print rules that have happen again what fired in a recording; needs no NIC
    Export {
        /// What `dump` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
    },
    /// At the end of a run: if it failed or a queue pair ended in an error, write a capture and a page beside its recording and say
    /// what happened; else remove the recording. Needs no NIC
    Finish {
        /// What `verbena-nic --record-end` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
        /// The status of the run
        #[arg(long, value_name = "N", default_value_t = 0)]
        status: u8,
        /// Begin with the time of day of the error, in nanoseconds since 1970 (0: there is none), so that runs can be sorted
        #[arg(long)]
        time: bool,
    },
    /// Record all that the device is told and reads, and all that it does, from its next reset on, for `replay`. An interrupt ends it
    Full {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Write what was recorded to a file
    Dump {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl Record {
    /// True if the command asks for the state of the recorder.
    pub fn has_answer(&self) -> bool {
        matches!(self, Self::On { .. } | Self::Off | Self::Status)
    }
}

/// Runs the command and returns the state of the recorder afterwards.
///
/// # Errors
///
/// The NIC refuses, a file cannot be written, or a file is not a recording.
pub fn run(
    socket: &Path,
    record: &Record,
    show: impl Fn(&ToldRecorder) -> Result<String, String>,
) -> Result<String, String> {
    let request = match record {
        Record::On { entries } => Request::Record { entries: *entries },
        Record::Off => Request::Record { entries: 0 },
        // Export and finish need no NIC, and a full recording needs a connection of its own.
        Record::Status | Record::Export { .. } | Record::Finish { .. } | Record::Full { .. } => {
            Request::Recorder
        }
        Record::Dump { file } => {
            let bytes = taken(socket)?;
            let recording = parse(&bytes, "what the NIC has recorded")?;
            std::fs::write(file, &bytes).map_err(|e| format!("{}: {e}", file.display()))?;
            let count = recording.entries.len();
            return Ok(format!("{count} entries: {}\n", file.display()));
        }
    };
    show(&client::ask_for(socket, request)?)
}

/// Returns the bytes of the recording of the NIC.
///
/// # Errors
///
/// There is no NIC, or its recorder is off.
pub fn taken(socket: &Path) -> Result<Vec<u8>, String> {
    client::ask_for::<ToldRecording>(socket, Request::Recording)?.file()
}

fn parse(bytes: &[u8], name: &str) -> Result<Recording, String> {
    Recording::from_bytes(bytes).map_err(|bad| format!("{name}: {bad}"))
}

/// Returns the recording of the NIC.
///
/// # Errors
///
/// The same as those of [`taken`].
pub fn live(socket: &Path) -> Result<Recording, String> {
    parse(&taken(socket)?, "what the NIC has recorded")
}

/// Reads the recording in a file.
///
/// # Errors
///
/// The file cannot be read, or is not a recording.
pub fn read(file: &Path) -> Result<Recording, String> {
    let name = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|e| format!("{name}: {e}"))?;
    parse(&bytes, &name)
}

/// Formats the state of the recorder for people.
pub fn table(told: &Value) -> String {
    let dump = match told["dump"].as_str() {
        Some(path) => format!("when the device dies they go to {path}"),
        None => String::from("when the device dies they stay in the NIC"),
    };
    let full = told["full"].as_str();
    let full = full.map_or(String::new(), |full| format!("full recording: {full}\n"));
    full + &match told["entries"].as_u64() {
        Some(0) | None => String::from("nothing is recorded\n"),
        Some(entries) => format!(
            "the last {entries} entries are kept, {} there were; {dump}\n",
            told["total"]
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_recorder_is_told_in_a_sentence() {
        let off = json!({ "entries": 0, "total": 0, "dump": null });
        assert_eq!(table(&off), "nothing is recorded\n");
        let on = json!({ "entries": 1024, "total": 5, "dump": "/run/x" });
        let told = "the last 1024 entries are kept, 5 there were; when the device dies they go to /run/x\n";
        assert_eq!(table(&on), told);
    }

    #[test]
    fn a_file_that_is_no_recording_is_named_with_the_reason() {
        let error = read(Path::new("/nonexistent")).unwrap_err();
        assert!(error.starts_with("/nonexistent: "), "{error}");
        let error = parse(b"hello", "x").unwrap_err();
        assert_eq!(error, "x: this is no recording of Verbena's");
    }
}
