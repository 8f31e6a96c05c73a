// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl record full` and `verbenactl replay`: all that a device model is told, reads and does, written down, and the model driven
//! by that again.

use crate::{capture, client};
use std::fs::File;
use std::io;
use std::path::Path;
use verbena_control::ToldFull;
use verbena_device::{Replayed, Stopped};
use verbena_record::full::{Item, Reader};
use verbena_record::{Entry, Recording};

/// Records into a file until a signal ends it, or the NIC does.
///
/// # Errors
///
/// There is no NIC, it refuses, or the file cannot be written.
pub fn record(socket: &Path, file: &Path) -> Result<String, String> {
    let failed = |e: io::Error| format!("cannot write {}: {e}", file.display());
    let signals = capture::signals()?;
    let (told, mut from) = client::open::<ToldFull>(socket)?;
    let mut to = File::create(file).map_err(failed)?;
    capture::end_by_signal(signals, from.get_ref())?;
    match told.waiting {
        true => eprintln!("verbenactl: it begins with the next reset of the device (modprobe -r verbena; modprobe verbena); interrupt to end"),
        false => eprintln!("verbenactl: recording; interrupt to end"),
    }
    io::copy(&mut from, &mut to).map_err(failed)?;
    drop(to);
    let bytes = std::fs::read(file).map_err(failed)?;
    if bytes.is_empty() {
        return Err(String::from(
            "nothing was recorded: the device was not reset, or could not be recorded then (`verbenactl record status` says why)",
        ));
    }
    let (entries, end) = end(&bytes);
    let reason = end.ok_or("the NIC is gone: what was recorded until then is there")?;
    Ok(format!(
        "{entries} entries, {} bytes: {}; {reason}\n",
        bytes.len(),
        file.display()
    ))
}

/// How many entries a recording has, and why it ends.
fn end(bytes: &[u8]) -> (u64, Option<String>) {
    let Ok(mut reader) = Reader::new(bytes) else {
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
/// The file is none, or the model does something else.
pub fn run(file: &Path, output: Option<&Path>) -> Result<String, String> {
    let named = |e: String| format!("{}: {e}", file.display());
    let bytes = std::fs::read(file).map_err(|e| named(e.to_string()))?;
    let read = |json: &str| serde_json::from_str(json).map_err(|e| e.to_string());
    let replayed = verbena_device::replay(&bytes, read).map_err(|stopped| match stopped {
        Stopped::Bad { entry, .. } if entry > 0 => {
            named(format!("identical until then, but {stopped}"))
        }
        stopped => named(stopped.to_string()),
    })?;
    let told = tell(&replayed);
    if let Some(output) = output {
        let bytes = flight(replayed).to_bytes();
        std::fs::write(output, bytes).map_err(|e| format!("{}: {e}", output.display()))?;
    }
    Ok(told)
}

fn tell(replayed: &Replayed) -> String {
    let end = match &replayed.end {
        Some(reason) => reason.clone(),
        None => String::from("it was cut off: the NIC was killed"),
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

/// What the flight recorder had at the end.
fn flight(replayed: Replayed) -> Recording {
    let json = |rule| serde_json::to_string(rule).unwrap_or_default();
    Recording {
        first: replayed.first,
        power_on: replayed.power_on,
        taken: replayed.now,
        mac: replayed.mac,
        reason: String::from("replayed"),
        rules: replayed.rules.iter().map(json).collect(),
        entries: replayed.recorded.iter().filter_map(Entry::unpack).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use verbena_device::mock::Driver;
    use verbena_device::{Config, Wish};

    /// A recording of a device that is brought up.
    fn recorded() -> Vec<u8> {
        let file = Arc::new(Mutex::new(Vec::new()));
        let to = file.clone();
        let mut driver = Driver::cold(Config::default());
        let wish = Wish {
            number: 0,
            sink: Box::new(move |piece| {
                to.lock().unwrap().extend(piece);
                Ok(())
            }),
            json: |_| String::new(),
            power_on: 7,
        };
        driver.device.record_fully(wish).unwrap();
        driver.bring_up();
        driver.device.record_fully_no_more(0, "over");
        let bytes = file.lock().unwrap().clone();
        bytes
    }

    #[test]
    fn a_recording_is_replayed_and_told() {
        let dir = std::env::temp_dir().join(format!("verbenactl-replay-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, output) = (dir.join("full"), dir.join("flight"));
        let bytes = recorded();
        std::fs::write(&file, &bytes).unwrap();
        let told = run(&file, Some(&output)).unwrap();
        assert!(
            told.starts_with("identical: ") && told.contains("(over)"),
            "{told}"
        );
        let flight = crate::record::read(&output).unwrap();
        assert_eq!((flight.power_on, flight.reason.as_str()), (7, "replayed"));
        assert!(!flight.entries.is_empty());
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let error = run(&file, None).unwrap_err();
        assert!(error.contains("in the middle of a piece"), "{error}");
        std::fs::write(&file, b"hello").unwrap();
        let error = run(&file, None).unwrap_err();
        assert!(error.contains("no full recording"), "{error}");
        let (entries, reason) = end(&bytes);
        assert!(entries > 10);
        assert_eq!(reason.as_deref(), Some("over"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
