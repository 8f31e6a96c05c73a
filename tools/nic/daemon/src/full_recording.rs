// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Full recordings on their way out (`verbena_recorder::full`): a bounded number of pieces waits
//! for a thread that writes them. The engine never waits: if the other end is slow, full or
//! disconnected, the recording ends.

use crate::inbox::{EngineRequest, FullRecordingChange};
use crate::vm_state::VmState;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use verbena_device::FullRecordingRequest;
use verbena_recorder::full::{encode_piece, Item, PieceSink};

/// Largest number of pieces that wait: about 64 MiB.
const MAX_WAITING_PIECES: usize = 256;
/// Longest time that the engine may take to end a recording, and a file to accept a piece of it:
/// less than a process usually has after a signal.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Number of the next recording.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The reason for which a recording has ended by itself.
type EndReason = Arc<Mutex<Option<String>>>;

/// The receiving end of a recording's pieces.
pub(crate) struct PieceReceiver {
    from: Receiver<Vec<u8>>,
    reason: EndReason,
}

fn lock(reason: &EndReason) -> MutexGuard<'_, Option<String>> {
    reason.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the two ends of the queue of pieces.
pub(crate) fn pieces() -> (PieceSink, PieceReceiver) {
    let (to, from) = mpsc::sync_channel(MAX_WAITING_PIECES);
    let reason = EndReason::default();
    let sink_reason = reason.clone();
    let sink = move |piece| match to.try_send(piece) {
        Ok(()) => Ok(()),
        Err(TrySendError::Full(_)) => {
            let reason = format!(
                "the device records faster than the file is written: {MAX_WAITING_PIECES} pieces of 256 KiB were waiting"
            );
            Err(lock(&sink_reason).insert(reason).clone())
        }
        Err(TrySendError::Disconnected(_)) => {
            let reason = lock(&sink_reason).clone();
            Err(reason.unwrap_or_else(|| String::from("nothing reads the recording any more")))
        }
    };
    (Box::new(sink), PieceReceiver { from, reason })
}

impl PieceReceiver {
    /// Returns the next piece, or `None` if none came within `timeout`.
    ///
    /// # Errors
    ///
    /// There are no more pieces.
    pub(crate) fn next(&self, timeout: Duration) -> Result<Option<Vec<u8>>, ()> {
        match self.from.recv_timeout(timeout) {
            Ok(piece) => Ok(Some(piece)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }

    /// Returns the piece with the reason for the end, unless the recording has its own end.
    pub(crate) fn end_piece(&self) -> Option<Vec<u8>> {
        let reason = lock(&self.reason).clone()?;
        let mut end = Vec::new();
        Item::End { reason: &reason }.put(&mut end);
        Some(encode_piece(&end))
    }

    /// Writes all pieces until the end, and calls `on_written` after each.
    fn write(&self, to: &mut impl Write, on_written: impl Fn()) -> io::Result<()> {
        for piece in &self.from {
            if let Err(e) = to.write_all(&piece) {
                *lock(&self.reason) = Some(e.to_string());
                return Err(e);
            }
            on_written();
        }
        match self.end_piece() {
            Some(last) => to.write_all(&last),
            None => Ok(()),
        }
    }
}

/// Returns the request for a full recording into `sink`.
pub(crate) fn request(sink: PieceSink, shared: &VmState) -> FullRecordingRequest {
    FullRecordingRequest {
        number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        sink,
        json: |set| serde_json::to_string(set).unwrap_or_default(),
        power_on: shared.power_on(),
    }
}

/// A recording of a device into a file, from the beginning.
pub struct FullRecording {
    shared: Arc<VmState>,
    path: PathBuf,
    number: u64,
    /// True for each written piece, false after an error; closed after the last piece.
    written: Receiver<bool>,
}

/// Requests a full recording of a VM's device into a file, which begins when the engine makes the
/// device.
///
/// # Errors
///
/// The file cannot be created, or a thread cannot be started.
pub fn into_file(path: &Path, shared: &Arc<VmState>) -> io::Result<FullRecording> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let mut file = File::create(path).map_err(named)?;
    let (sink, pieces) = pieces();
    let own = path.to_owned();
    let name = String::from("full recording");
    let (to, written) = mpsc::sync_channel(1);
    thread::Builder::new().name(name).spawn(move || {
        let on_written = || {
            // If the channel is full, the message that waits there says the same.
            let _ = to.try_send(true);
        };
        if let Err(e) = pieces.write(&mut file, on_written) {
            log::error!("full recording: writing {} failed: {e}", own.display());
            let _ = to.send(false);
        }
    })?;
    let request = request(sink, shared);
    let number = request.number;
    shared.request_full_recording(request);
    Ok(FullRecording {
        shared: shared.clone(),
        path: path.to_owned(),
        number,
        written,
    })
}

/// The full recordings of this process into files.
#[derive(Default)]
pub struct FullRecordings(Mutex<Vec<FullRecording>>);

impl FullRecordings {
    /// Adds a recording to those that [`end`](Self::end) ends.
    pub fn add(&self, recording: FullRecording) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(recording);
    }

    /// Ends all recordings in parallel. When this returns on any thread, all are written, or their
    /// files accept no more data: the process may end.
    pub fn end(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        thread::scope(|scope| {
            for recording in all.drain(..) {
                let end = thread::Builder::new().spawn_scoped(scope, || recording.end());
                if let Err(e) = end {
                    log::error!("a full recording is not completed: no thread: {e}");
                }
            }
        });
    }
}

impl FullRecording {
    /// Ends the recording, and waits until it is written.
    fn end(self) {
        let (to, from) = mpsc::channel();
        let end = FullRecordingChange::End(self.number, String::from("the NIC ends"));
        let is_posted = self
            .shared
            .post_request(EngineRequest::FullRecording(end, to));
        let path = self.path.display();
        if is_posted && from.recv_timeout(TIMEOUT).is_ok() && self.is_written() {
            log::info!("the full recording is complete: {path}");
        } else {
            log::warn!("the full recording is incomplete: {path}");
        }
    }

    /// Waits for the last piece, while the file accepts pieces. Returns true if all pieces are
    /// written.
    fn is_written(&self) -> bool {
        loop {
            match self.written.recv_timeout(TIMEOUT) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(e) => return e == RecvTimeoutError::Disconnected,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_recorder::full::{FullRecordingReader, FullRecordingWriter};

    fn begin(sink: PieceSink) -> FullRecordingWriter {
        FullRecordingWriter::new(sink, &Item::Reset {})
    }

    fn last(bytes: &[u8]) -> Option<Item<'_>> {
        FullRecordingReader::new(bytes)
            .unwrap()
            .last()
            .map(Result::unwrap)
    }

    #[test]
    fn all_pieces_of_a_recording_are_written() {
        let (sink, pieces) = pieces();
        begin(sink).finish("over");
        let mut file = Vec::new();
        pieces.write(&mut file, || ()).unwrap();
        assert_eq!(last(&file), Some(Item::End { reason: "over" }));
    }

    #[test]
    fn a_slow_file_ends_the_recording_and_the_recording_contains_the_reason() {
        let (sink, pieces) = pieces();
        let mut writer = begin(sink);
        for n in 0..2 * MAX_WAITING_PIECES as u64 {
            writer.put(&Item::Slice { now: n });
            writer.flush();
        }
        let reason = writer.failure().unwrap().to_owned();
        assert!(reason.contains("faster than the file"), "{reason}");
        drop(writer);
        let mut file = Vec::new();
        pieces.write(&mut file, || ()).unwrap();
        assert_eq!(last(&file), Some(Item::End { reason: &reason }));
    }

    #[test]
    fn a_full_disk_ends_the_recording_with_its_reason() {
        let (sink, pieces) = pieces();
        let mut writer = begin(sink);
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        writer.flush();
        // The writer fails at the first piece.
        assert!(pieces.write(&mut full, || ()).is_err());
        drop(pieces);
        writer.put(&Item::Reset {});
        writer.flush();
        let reason = writer.failure().unwrap();
        assert!(reason.contains("No space left"), "{reason}");
    }
}
