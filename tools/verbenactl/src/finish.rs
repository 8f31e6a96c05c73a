// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl record finish`: handles the recording of a finished run. A successful run leaves no
//! files.

use crate::{capture, why};
use std::path::Path;
use verbena_recorder::{DeviceHistory, RecordedError};

/// If the run failed or an object ended in an error, writes the capture and the page of a recording
/// next to it and returns a sentence about the cause. Otherwise removes the recording and returns
/// an empty string. With `is_timed` the sentence begins with the time of the error in nanoseconds
/// since 1970 (1: unknown), or with 0 if no object was in error.
///
/// # Errors
///
/// The file is not a recording, or a file cannot be written or removed.
pub fn run(file: &Path, status: u8, is_timed: bool) -> Result<String, String> {
    let history = why::load_history(None, Some(file))?;
    let list = verbena_recorder::list_errors(&history);
    let unrepaired = list.first_unrepaired();
    if status == 0 && unrepaired.is_none() {
        std::fs::remove_file(file).map_err(|e| format!("{}: {e}", file.display()))?;
        return Ok(String::new());
    }
    capture::write_recording(&history, &file.with_extension("pcapng"))?;
    why::report(file, &file.with_extension("html"))?;
    // An error that was repaired may still be the reason.
    let error = unrepaired.or(list.errors.first());
    let sentence = match error {
        Some(error) => list.summary(error),
        None => describe_run_without_error(&history),
    };
    let time = error.map_or(0, |error| error_time_ns(&history, error));
    let time = if is_timed {
        format!("{time} ")
    } else {
        String::new()
    };
    Ok(format!("{time}{sentence}\n"))
}

/// Returns the sentence for a run in which no object was in error.
fn describe_run_without_error(history: &DeviceHistory) -> String {
    let none = "the flight recorder has no error of the device, its queue pairs or its CQs";
    match verbena_recorder::observations(history).join("; ") {
        more if more.is_empty() => String::from(none),
        more => format!("{none}; {more}"),
    }
}

/// Returns the time of day of an error, in nanoseconds since 1970, or 1 if the time is unknown. An
/// error that another device found sorts after the error at that device, even if the clocks of the
/// two devices differ.
fn error_time_ns(history: &DeviceHistory, error: &RecordedError) -> u64 {
    const REMOTE_ERROR_DELAY_NS: u64 = 1_000_000_000;
    let at = error.entry.and_then(|entry| {
        let at = entry.checked_sub(history.recording.first)?;
        history.recording.entries.get(usize::try_from(at).ok()?)
    });
    let time = at.map_or(1, |entry| {
        history.recording.power_on_ns.saturating_add(entry.time_ns)
    });
    if error.is_reported_by_remote_device() {
        time.saturating_add(REMOTE_ERROR_DELAY_NS)
    } else {
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_abi::ctx::QpState;
    use verbena_abi::syndrome::Syndrome;
    use verbena_recorder::{EntryKind, FlightEntry, FlightRecording};

    fn state(to: QpState, syndrome: u16) -> EntryKind {
        EntryKind::State {
            qpn: 17,
            owner: 1,
            peer: 18,
            is_local: Some(true),
            from: QpState::Rts.to_raw(),
            to: to.to_raw(),
            syndrome,
            next_psn: 0,
            una_psn: 0,
            expected_psn: 0,
        }
    }

    /// Returns the sentence about a run, and the names of the files that are left.
    fn finished(name: &str, kinds: &[EntryKind], status: u8) -> (String, Vec<String>) {
        let dir = std::env::temp_dir().join(format!("verbena-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let file = dir.join("flight.record");
        let entries = kinds.iter().map(|&kind| FlightEntry { time_ns: 5, kind });
        let recording = FlightRecording {
            entries: entries.collect(),
            ..FlightRecording::default()
        };
        std::fs::write(&file, recording.to_bytes()).unwrap();
        let text = run(&file, status, false).unwrap();
        let left = std::fs::read_dir(&dir).unwrap();
        let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.collect();
        left.sort();
        std::fs::remove_dir_all(&dir).unwrap();
        (text, left)
    }

    #[test]
    fn a_successful_run_leaves_no_files() {
        let error = state(QpState::Err, Syndrome::RetryExceeded.to_raw());
        let repaired = [error, state(QpState::Reset, 0)];
        let own = [state(QpState::Err, Syndrome::ModifiedToErr.to_raw())];
        for (name, kinds) in [("well", &[][..]), ("repaired", &repaired), ("own", &own)] {
            let (text, left) = finished(name, kinds, 0);
            assert!(
                text.is_empty() && left.is_empty(),
                "{name}: {text} {left:?}"
            );
        }
    }

    #[test]
    fn a_failed_run_leaves_recording_capture_and_page() {
        let all = ["flight.html", "flight.pcapng", "flight.record"];
        let error = state(QpState::Err, Syndrome::RetryExceeded.to_raw());
        let (text, left) = finished("error", &[error], 0);
        assert!(text.starts_with("QP 0x11 is in ERR, at 0.000000 s (entry 0): RetryExceeded"));
        assert_eq!(left, all);
        let (text, left) = finished("status", &[], 1);
        assert!(
            text.starts_with("the flight recorder has no error"),
            "{text}"
        );
        assert_eq!(left, all);
        // An error that was repaired may still be the reason.
        let (text, _) = finished("both", &[error, state(QpState::Reset, 0)], 1);
        assert!(text.contains("RetryExceeded"), "{text}");
    }

    #[test]
    fn errors_of_several_runs_can_be_sorted_by_time() {
        let mut history = DeviceHistory::default();
        history.recording.power_on_ns = 1000;
        history.recording.first = 7;
        let kind = state(QpState::Err, Syndrome::NakRemoteAccess.to_raw());
        history.recording.entries = vec![FlightEntry { time_ns: 5, kind }];
        let mut error = RecordedError {
            object: String::from("QP 0x11"),
            entry: Some(7),
            is_repaired: false,
            lines: vec![String::from("It received a NAK (AETH syndrome 0x62).")],
        };
        assert_eq!(error_time_ns(&history, &error), 1005);
        let another = String::from("Its peer QP 0x12 is of another device: ask that one why.");
        error.lines.push(another);
        assert_eq!(error_time_ns(&history, &error), 1_000_001_005);
        error.entry = None;
        assert_eq!(error_time_ns(&history, &error), 1_000_000_001);
    }
}
