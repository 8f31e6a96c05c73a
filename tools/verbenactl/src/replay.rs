// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl record full` and `verbenactl replay`: record all inputs and outputs of a device
//! model, and drive the model with such a recording.

use crate::{capture, client};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use verbena_device::{ReplayError, ReplaySummary};
use verbena_protocol::RecordFullReply;
use verbena_recorder::full::{FullRecordingReader, Item, END_REQUESTED};
use verbena_recorder::{FlightEntry, FlightRecording};

/// Records into a file until a signal or the NIC ends the recording.
///
/// # Errors
///
/// There is no NIC, the NIC refuses, the recording was cut short, or the file cannot be written.
pub fn record_full(socket: &Path, file: &Path) -> Result<String, String> {
    let failed = |e: io::Error| format!("cannot write {}: {e}", file.display());
    let signals = capture::signals()?;
    let (reply, mut from) = client::query_stream::<RecordFullReply>(socket)?;
    let mut to = File::create(file).map_err(failed)?;
    capture::end_by_signal(signals, from.get_ref())?;
    match reply.waiting {
        true => eprintln!("verbenactl: the recording begins with the next reset of the device (modprobe -r verbena; modprobe verbena); interrupt to end"),
        false => eprintln!("verbenactl: recording; interrupt to end"),
    }
    loop {
        let piece = match from.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece.map_err(|e| format!("the NIC at {}: {e}", socket.display()))?,
        };
        if piece.is_empty() {
            break;
        }
        to.write_all(piece).map_err(failed)?;
        let length = piece.len();
        from.consume(length);
    }
    drop(to);
    let bytes = std::fs::read(file).map_err(failed)?;
    if bytes.is_empty() {
        return Err(String::from(
            "nothing was recorded: the device was not reset, or the recording could not begin then (`verbenactl record status` prints the reason)",
        ));
    }
    let (entries, end) = count_and_end(&bytes);
    let reason = end.ok_or("the NIC closed the connection: the file has the entries until then")?;
    let text = format!(
        "{entries} entries, {} bytes: {}; {reason}",
        bytes.len(),
        file.display()
    );
    match reason == END_REQUESTED {
        true => Ok(format!("{text}\n")),
        false => Err(format!("the recording is incomplete: {text}")),
    }
}

/// Returns the number of entries of a recording, and the reason for its end.
fn count_and_end(bytes: &[u8]) -> (u64, Option<String>) {
    let Ok(mut reader) = FullRecordingReader::new(bytes) else {
        return (0, None);
    };
    let end = match reader.by_ref().map_while(Result::ok).last() {
        Some(Item::End { reason }) => Some(reason.into()),
        _ => None,
    };
    (reader.number(), end)
}

/// Drives the device model with a recording.
///
/// # Errors
///
/// The file is not a full recording, or the model behaves differently.
pub fn run(file: &Path, output: Option<&Path>) -> Result<String, String> {
    let named = |e: String| format!("{}: {e}", file.display());
    let bytes = std::fs::read(file).map_err(|e| named(e.to_string()))?;
    let read = |json: &str| serde_json::from_str(json).map_err(|e| e.to_string());
    let replayed = verbena_device::replay(&bytes, read).map_err(|stopped| match stopped {
        ReplayError::Bad { entry, .. } if entry > 0 => {
            named(format!("identical until then, but {stopped}"))
        }
        stopped => named(stopped.to_string()),
    })?;
    let text = summary(&replayed);
    if let Some(output) = output {
        let bytes = flight_recording(replayed).to_bytes();
        std::fs::write(output, bytes).map_err(|e| format!("{}: {e}", output.display()))?;
    }
    Ok(text)
}

fn summary(replayed: &ReplaySummary) -> String {
    let end = match &replayed.end {
        Some(reason) => reason.clone(),
        None => String::from("the recording has no end: the NIC was killed"),
    };
    format!(
        "identical: {} entries ({end})\n{} resets, {} work requests, {} packets with {} bytes, {} completions, {} events, {} interrupts, {} frames\n",
        replayed.entries,
        replayed.resets,
        replayed.work_requests,
        replayed.packets,
        replayed.bytes,
        replayed.completions,
        replayed.events,
        replayed.interrupts,
        replayed.frames,
    )
}

/// Returns the entries of the flight recorder at the end of a replay.
fn flight_recording(replayed: ReplaySummary) -> FlightRecording {
    let json = |rule| serde_json::to_string(rule).unwrap_or_default();
    FlightRecording {
        first: replayed.first,
        power_on_ns: replayed.power_on,
        taken_ns: replayed.now,
        mac: replayed.mac,
        // A device with an InfiniBand port cannot be recorded in full.
        is_infiniband: false,
        reason: String::from("replayed"),
        rules: replayed.rules.iter().map(json).collect(),
        entries: replayed
            .recorded
            .iter()
            .filter_map(FlightEntry::unpack)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use verbena_device::mock::Driver;
    use verbena_device::{Config, FullRecordingRequest};
    use verbena_protocol::ReplyEnvelope;

    /// Returns a recording of a device that is brought up. The recording ends with this reason.
    fn recorded(end: &str) -> Vec<u8> {
        let file = Arc::new(Mutex::new(Vec::new()));
        let to = file.clone();
        let mut driver = Driver::cold(Config::default());
        let wish = FullRecordingRequest {
            number: 0,
            sink: Box::new(move |piece| {
                to.lock().unwrap().extend(piece);
                Ok(())
            }),
            json: |_| String::new(),
            power_on: 7,
        };
        driver.device.begin_full_recording(wish).unwrap();
        driver.bring_up();
        driver.device.end_full_recording(0, end);
        let bytes = file.lock().unwrap().clone();
        bytes
    }

    /// Returns the result of `record full` at a NIC that gives this answer.
    fn record_from(answer: &[u8]) -> Result<String, String> {
        static NEXT_DIRECTORY: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "verbenactl-full-{}-{}",
            std::process::id(),
            NEXT_DIRECTORY.fetch_add(1, Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let (socket, file) = (dir.join("socket"), dir.join("full"));
        let listener = UnixListener::bind(&socket).unwrap();
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = BufReader::new(listener.accept().unwrap().0);
                client.read_line(&mut String::new()).unwrap();
                client.get_mut().write_all(answer).unwrap();
            });
            record_full(&socket, &file)
        });
        std::fs::remove_dir_all(&dir).unwrap();
        result
    }

    #[test]
    fn a_recording_that_ends_without_a_request_is_an_error() {
        let reply = ReplyEnvelope::from(Ok(RecordFullReply { waiting: true })).to_line();
        let with = |bytes: &[u8]| record_from(&[reply.as_bytes(), bytes].concat());
        assert!(with(&recorded(END_REQUESTED))
            .unwrap()
            .contains(END_REQUESTED));
        let error = with(&recorded("too fast")).unwrap_err();
        assert!(error.starts_with("the recording is incomplete: ") && error.contains("too fast"));
        assert!(with(b"").unwrap_err().contains("nothing was recorded"));
        assert!(record_from(b"")
            .unwrap_err()
            .contains("closed the connection"));
    }

    #[test]
    fn a_recording_is_replayed_and_counted() {
        let dir = std::env::temp_dir().join(format!("verbenactl-replay-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, output) = (dir.join("full"), dir.join("flight"));
        let bytes = recorded("over");
        std::fs::write(&file, &bytes).unwrap();
        let text = run(&file, Some(&output)).unwrap();
        assert!(
            text.starts_with("identical: ") && text.contains("(over)"),
            "{text}"
        );
        let flight = crate::record::read(&output).unwrap();
        assert_eq!(
            (flight.power_on_ns, flight.reason.as_str()),
            (7, "replayed")
        );
        assert!(!flight.entries.is_empty());
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let error = run(&file, None).unwrap_err();
        assert!(error.contains("in the middle of a piece"), "{error}");
        std::fs::write(&file, b"hello").unwrap();
        let error = run(&file, None).unwrap_err();
        assert!(error.contains("not a full recording"), "{error}");
        let (entries, reason) = count_and_end(&bytes);
        assert!(entries > 10);
        assert_eq!(reason.as_deref(), Some("over"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
