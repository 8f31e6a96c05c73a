// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files with the entries of the flight recorder: on request, and automatically when a device fails
//! or the NIC ends.

use crate::vm_state::{EngineRequest, VmState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::time::Duration;
use verbena_device::FlightRecordingPart;
use verbena_recorder::{FlightEntry, FlightRecording};

/// Longest time that the engine may take to return its entries when the NIC ends: less than a
/// process usually has after a signal.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the recording of a device's entries.
pub(crate) fn recording(
    recorded: &FlightRecordingPart,
    shared: &VmState,
    mac: [u8; 6],
    reason: &str,
) -> FlightRecording {
    let json = |rule| serde_json::to_string(rule).unwrap_or_default();
    FlightRecording {
        first: recorded.first,
        power_on_ns: shared.power_on(),
        taken_ns: shared.now(),
        mac,
        is_infiniband: recorded.is_infiniband,
        reason: reason.into(),
        rules: recorded.rules.iter().map(json).collect(),
        entries: recorded
            .entries
            .iter()
            .filter_map(FlightEntry::unpack)
            .collect(),
    }
}

/// Writes a file so that it is there as a whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    // A symbolic link at this path is removed, not followed.
    if let Err(e) = std::fs::remove_file(&beside) {
        if e.kind() != io::ErrorKind::NotFound {
            return Err(e);
        }
    }
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&beside)?;
    file.write_all(bytes)?;
    drop(file);
    std::fs::rename(&beside, path)
}

/// Writes the recording of a device that has failed, on its own thread: the engine goes on with the
/// other devices.
pub(crate) fn save(recorded: FlightRecordingPart, shared: &VmState, mac: [u8; 6], reason: &str) {
    let Some(path) = shared.dump.get().cloned() else {
        log::info!(
            "without --record-dump, the recorded entries stay in the NIC: verbenactl record dump \
             writes them to a file"
        );
        return;
    };
    let recording = recording(&recorded, shared, mac, reason);
    let thread_name = String::from("recording");
    let body = move || match write(&path, &recording.to_bytes()) {
        Ok(()) => log::info!(
            "{} recorded entries are written to {}",
            recording.entries.len(),
            path.display()
        ),
        Err(e) => log::error!(
            "cannot write the recorded entries to {}: {e}",
            path.display()
        ),
    };
    if let Err(e) = std::thread::Builder::new().name(thread_name).spawn(body) {
        log::error!("cannot start a thread to write the recorded entries: {e}");
    }
}

/// The recorder of a device, and the path for its entries at the end.
struct ExitRecording {
    shared: Arc<VmState>,
    mac: [u8; 6],
    path: PathBuf,
}

/// The recordings that are written when the NIC ends.
#[derive(Default)]
pub struct ExitRecordings(Mutex<Vec<ExitRecording>>);

impl ExitRecordings {
    /// Adds the recorder of a device with this MAC address, and the path of its file.
    pub fn add(&self, shared: &Arc<VmState>, mac: [u8; 6], path: &Path) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(ExitRecording {
            shared: shared.clone(),
            mac,
            path: path.to_owned(),
        });
    }

    /// Writes all recordings, once. When this returns on any thread, they are written: the process
    /// may end.
    pub fn write(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ExitRecording { shared, mac, path } in all.drain(..) {
            let (to, from) = mpsc::channel();
            if !shared.post_request(EngineRequest::FlightRecording(0, usize::MAX, to)) {
                continue;
            }
            let Ok(reply) = from.recv_timeout(TIMEOUT) else {
                let path = path.display();
                log::warn!("{path} is not written: the engine has not answered within {TIMEOUT:?}");
                continue;
            };
            // There are no entries while the recorder is off.
            let Some(recorded) = reply else { continue };
            let recording = recording(&recorded, &shared, mac, "the NIC ended");
            if let Err(e) = self::write(&path, &recording.to_bytes()) {
                log::error!(
                    "cannot write the recorded entries to {}: {e}",
                    path.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_replaces_the_last_file_and_follows_no_symbolic_link() {
        let name = format!("verbena-recording-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let (path, other) = (dir.join("record"), dir.join("other"));
        std::fs::write(&other, b"mine").unwrap();
        std::os::unix::fs::symlink(&other, dir.join("record.part")).unwrap();
        for bytes in [b"one", b"two"] {
            write(&path, bytes).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"mine");
        assert!(write(&dir.join("none/record"), b"x").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
