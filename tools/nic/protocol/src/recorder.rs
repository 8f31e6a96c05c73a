// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that switch the flight recorder on and off and fetch its recording.

use crate::{hex, ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};

/// The answer to requests that switch the recorder: its state afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderReply {
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

/// The answer to [`ControlRequest::RecordFull`]. The bytes of a file (`verbena_recorder::full`)
/// follow until one end closes its half of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordFullReply {
    /// True if the recording begins with the next reset of the device.
    pub waiting: bool,
}

impl QueryReply for RecordFullReply {
    const REQUEST: ControlRequest = ControlRequest::RecordFull;
}

impl QueryReply for RecorderReply {
    const REQUEST: ControlRequest = ControlRequest::Recorder;
}

/// The answer to [`ControlRequest::Recording`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingReply {
    /// Bytes of the file (`verbena_recorder`), in hexadecimal.
    pub recording: String,
}

impl QueryReply for RecordingReply {
    const REQUEST: ControlRequest = ControlRequest::Recording;
}

impl RecordingReply {
    /// Creates the answer with the bytes of a file.
    pub fn new(file: &[u8]) -> Self {
        Self {
            recording: hex::encode(file),
        }
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    ///
    /// The text is not hexadecimal.
    pub fn file(&self) -> Result<Vec<u8>, String> {
        let bytes = hex::decode(&self.recording);
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
    fn a_file_is_read_back_unchanged() {
        let file: Vec<u8> = (0..=255).collect();
        let reply = RecordingReply::new(&file);
        assert!(reply.recording.starts_with("000102"));
        assert_eq!(reply.file(), Ok(file));
        for text in ["0", "0g", "0012 3"] {
            let recording = String::from(text);
            assert!(RecordingReply { recording }.file().is_err(), "{text}");
        }
    }
}
