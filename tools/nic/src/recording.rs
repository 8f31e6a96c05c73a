// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the flight recorder has, as a file: on request, and by itself when a device dies.

use crate::shared::Shared;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use verbena_device::Recorded;
use verbena_record::{Entry, Recording};

/// A recording out of what the device has.
pub(crate) fn recording(
    recorded: &Recorded,
    shared: &Shared,
    mac: [u8; 6],
    reason: &str,
) -> Recording {
    let json = |rule| serde_json::to_string(rule).unwrap_or_default();
    Recording {
        first: recorded.first,
        power_on: shared.power_on(),
        taken: shared.now(),
        mac,
        reason: reason.into(),
        rules: recorded.rules.iter().map(json).collect(),
        entries: recorded.entries.iter().filter_map(Entry::unpack).collect(),
    }
}

/// Writes a file that is there as a whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    // A link that somebody has put there is not followed.
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

/// Writes the recording of a device that has died, on a thread of its own: the engine goes on with the others.
pub(crate) fn save(recorded: Recorded, shared: &Shared, mac: [u8; 6], reason: &str) {
    let Some(path) = shared.dump.get().cloned() else {
        log::info!("what was recorded stays in the NIC: verbenactl record dump");
        return;
    };
    let recording = recording(&recorded, shared, mac, reason);
    let named = String::from("recording");
    let body = move || match write(&path, &recording.to_bytes()) {
        Ok(()) => log::info!(
            "{} entries recorded: {}",
            recording.entries.len(),
            path.display()
        ),
        Err(e) => log::error!("{}: {e}", path.display()),
    };
    if let Err(e) = std::thread::Builder::new().name(named).spawn(body) {
        log::error!("what was recorded is not written: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_the_place_of_the_last_one_and_follows_no_link() {
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
