// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder, which clients switch and read; and full recordings, each for one
//! connection.

use super::capture::has_client_closed;
use super::request;
use crate::flight_recording::recording;
use crate::full_recording::{self, PieceReceiver};
use crate::vm_state::{EngineRequest, FullRecordingChange, RecorderChange, VmState};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use verbena_device::FullRecordingStatus;
use verbena_protocol::{RecordFullReply, RecorderReply, RecordingReply, ReplyEnvelope};
use verbena_recorder::full::END_REQUESTED;
use verbena_recorder::MAX_ENTRIES;

/// Largest number of entries that the engine returns at once.
const MAX_PORTION: usize = 4096;
/// Interval at which a client is checked while there is nothing to write to it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Switches the recorder to a number of entries (0 for off), or leaves it as it is for `None`.
/// Returns its state.
pub(super) fn set_recorder(
    shared: &VmState,
    entries: Option<u64>,
) -> Result<RecorderReply, String> {
    let change = match entries {
        None => RecorderChange::Unchanged,
        Some(0) => RecorderChange::Off,
        Some(n) if n > MAX_ENTRIES as u64 => {
            return Err(format!("{n} entries: at most {MAX_ENTRIES} are possible"));
        }
        Some(n) => RecorderChange::On(n as usize),
    };
    let recorded = request(shared, |to| EngineRequest::Recorder(change, to))?;
    let dump = shared.dump.get().map(|path| path.display().to_string());
    let (entries, total) = recorded.map_or((0, 0), |r| (r.capacity as u64, r.total));
    let full = match request(shared, |to| {
        EngineRequest::FullRecording(FullRecordingChange::Unchanged, to)
    })?? {
        FullRecordingStatus::Off => None,
        FullRecordingStatus::Waiting => {
            Some(String::from("begins with the next reset of the device"))
        }
        FullRecordingStatus::On(count) => Some(format!("{count} entries so far")),
        FullRecordingStatus::Ended(reason) => Some(format!("ended: {reason}")),
    };
    Ok(RecorderReply {
        entries,
        total,
        dump,
        full,
    })
}

/// Records in full for a client, until it closes its sending half or disconnects, or the recording
/// ends by itself.
pub(super) fn stream_full_recording(mut stream: &UnixStream, shared: &VmState) -> io::Result<()> {
    let (sink, pieces) = full_recording::pieces();
    let full_request = full_recording::request(sink, shared);
    let number = full_request.number;
    let state = request(shared, |to| {
        EngineRequest::FullRecording(FullRecordingChange::Begin(full_request), to)
    })
    .and_then(|state| state);
    let is_on = state.is_ok();
    let reply = state.map(|state| RecordFullReply {
        waiting: state == FullRecordingStatus::Waiting,
    });
    let written = stream.write_all(ReplyEnvelope::from(reply).to_line().as_bytes());
    if !is_on {
        return written;
    }
    let end = || {
        let reason = String::from(END_REQUESTED);
        request(shared, |to| {
            EngineRequest::FullRecording(FullRecordingChange::End(number, reason), to)
        })
    };
    let written = written.and_then(|()| write_pieces(stream, &pieces, || end().is_ok()));
    if written.is_err() {
        // This also ends a recording that still waits for its beginning.
        let _ = end();
    }
    written
}

/// Writes pieces to the client until there are no more.
fn write_pieces(
    mut stream: &UnixStream,
    pieces: &PieceReceiver,
    end: impl Fn() -> bool,
) -> io::Result<()> {
    let mut has_ended = false;
    loop {
        if !has_ended && has_client_closed(stream) {
            has_ended = true;
            if !end() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        match pieces.next(POLL_INTERVAL) {
            Ok(Some(piece)) => stream.write_all(&piece)?,
            Ok(None) => {}
            Err(()) => break,
        }
    }
    pieces
        .end_piece()
        .map_or(Ok(()), |last| stream.write_all(&last))
}

/// Returns the recorded entries, which are read in portions: entries that are overwritten meanwhile
/// are left out.
pub(super) fn read_recording(shared: &VmState) -> Result<RecordingReply, String> {
    let next = |from| {
        request(shared, |to| {
            EngineRequest::FlightRecording(from, MAX_PORTION, to)
        })
    };
    let mut all =
        next(0)?.ok_or("nothing is recorded: verbenactl record on starts the recorder")?;
    let end = all.total;
    loop {
        let from = all.first + all.entries.len() as u64;
        if from >= end {
            break;
        }
        let Some(more) = next(from)? else {
            break;
        };
        if more.first != from {
            // The oldest entries were overwritten while they were read.
            all.entries.clear();
            all.first = more.first;
        }
        if more.entries.is_empty() {
            break;
        }
        all.entries.extend(more.entries);
        all.rules = more.rules;
    }
    let port = request(shared, EngineRequest::Port);
    let mac = port.map_or([0; 6], |port| port.mac);
    let file = recording(&all, shared, mac, "asked for").to_bytes();
    Ok(RecordingReply::new(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::Shutdown;
    use std::sync::Mutex;
    use verbena_recorder::full::{FullRecordingReader, FullRecordingWriter, Item};

    #[test]
    fn a_client_that_closes_its_half_gets_the_recording_to_its_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (sink, pieces) = full_recording::pieces();
        let writer = Mutex::new(Some(FullRecordingWriter::new(sink, &Item::Reset {})));
        let end = move || {
            writer
                .lock()
                .unwrap()
                .take()
                .map(|writer| writer.finish("asked"))
                == Some(2)
        };
        let thread = std::thread::spawn(move || write_pieces(&ours, &pieces, end));
        theirs.shutdown(Shutdown::Write).unwrap();
        let mut file = Vec::new();
        theirs.read_to_end(&mut file).unwrap();
        thread.join().unwrap().unwrap();
        let mut reader = FullRecordingReader::new(&file).unwrap();
        assert_eq!(reader.next(), Some(Ok(Item::Reset {})));
        assert_eq!(reader.next(), Some(Ok(Item::End { reason: "asked" })));
        assert_eq!(reader.next(), None);
    }

    #[test]
    fn a_client_that_disconnects_ends_its_recording() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (sink, pieces) = full_recording::pieces();
        let mut writer = FullRecordingWriter::new(sink, &Item::Reset {});
        drop(theirs);
        let end_requests = Mutex::new(0);
        let end = || {
            *end_requests.lock().unwrap() += 1;
            true
        };
        assert!(write_pieces(&ours, &pieces, end).is_err());
        assert_eq!(*end_requests.lock().unwrap(), 1);
        drop(pieces);
        writer.flush();
        assert!(writer.failure().is_some());
    }
}
