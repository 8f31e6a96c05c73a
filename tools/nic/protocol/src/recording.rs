// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that switch the flight recorder on and off and fetch its recording.

use crate::{hex, Question, Request};
use serde::{Deserialize, Serialize};

/// The answer to requests that switch the recorder: its state afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldRecorder {
    /// Number of the last entries that are kept; 0 if the recorder is off.
    pub entries: u64,
    /// Number of entries since the recorder was switched on.
    pub total: u64,
    /// File to which the entries are written when the device dies, if there is one.
    pub dump: Option<String>,
    /// Text about the full recording; None if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<String>,
}

/// The answer to [`Request::RecordFull`]. The bytes of a file (`verbena_recorder::full`) follow until
/// one end closes its half of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldFull {
    /// True if the recording begins with the next reset of the device.
    pub waiting: bool,
}

impl Question for ToldFull {
    const REQUEST: Request = Request::RecordFull;
}

impl Question for ToldRecorder {
    const REQUEST: Request = Request::Recorder;
}

/// The answer to [`Request::Recording`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldRecording {
    /// Bytes of the file (`verbena_recorder`), in hexadecimal.
    pub recording: String,
}

impl Question for ToldRecording {
    const REQUEST: Request = Request::Recording;
}

impl ToldRecording {
    /// Creates the answer with the bytes of a file.
    pub fn new(file: &[u8]) -> Self {
        Self {
            recording: hex::write(file),
        }
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    ///
    /// The text is not hexadecimal.
    pub fn file(&self) -> Result<Vec<u8>, String> {
        let bytes = hex::read(&self.recording);
        bytes.ok_or_else(|| {
            String::from(
                "the recording of the answer is not hexadecimal: is the NIC of another version?",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_survives_the_wire() {
        let file: Vec<u8> = (0..=255).collect();
        let told = ToldRecording::new(&file);
        assert!(told.recording.starts_with("000102"));
        assert_eq!(told.file(), Ok(file));
        for bad in ["0", "0g", "0012 3"] {
            let recording = String::from(bad);
            assert!(ToldRecording { recording }.file().is_err(), "{bad}");
        }
    }
}
