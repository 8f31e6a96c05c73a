// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: on, off, and what it has.

use crate::{hex, Question, Request};
use serde::{Deserialize, Serialize};

/// The answer to requests that switch the recorder: how it is then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldRecorder {
    /// The last so many entries are kept; 0: nothing is recorded.
    pub entries: u64,
    /// So many there were, since it was switched on.
    pub total: u64,
    /// Where they are written when the device dies, if anywhere.
    pub dump: Option<String>,
    /// The full recording, in words; nothing: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<String>,
}

/// The answer to [`Request::RecordFull`], behind which the bytes of a file come until one end closes its half (`verbena_record::full`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldFull {
    /// It begins with the next reset of the device.
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
    /// The bytes of the file (`verbena_record`), in hexadecimal.
    pub recording: String,
}

impl Question for ToldRecording {
    const REQUEST: Request = Request::Recording;
}

impl ToldRecording {
    /// That of a file.
    pub fn new(file: &[u8]) -> Self {
        Self {
            recording: hex::write(file),
        }
    }

    /// The file.
    ///
    /// # Errors
    ///
    /// These are no bytes in hexadecimal.
    pub fn file(&self) -> Result<Vec<u8>, String> {
        let bytes = hex::read(&self.recording);
        bytes.ok_or_else(|| String::from("what was recorded did not come whole"))
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
