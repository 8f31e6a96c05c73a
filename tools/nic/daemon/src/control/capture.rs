// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A capture for one connection: the device passes its frames to a tap, and this thread passes them
//! on as records.
//!
//! The waiting frames are bounded ([`FRAMES`], [`BYTES`]). If a client does not read, the engine
//! drops its frames before it copies them, and counts them. The engine never waits. A capture that
//! is kept ([`Kept`]) has the same bounds until its client requests it.

use super::{ask, said};
use crate::shared::{Question, Shared};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use verbena_device::capture::{capture_tap, CaptureDirection, CaptureReader, CapturedFrame};
use verbena_protocol::{
    CaptureEndReply, CaptureRecord, CaptureReply, ControlRequest, ReplyEnvelope,
};

/// Largest number of frames that wait for a client.
const FRAMES: usize = 8192;
/// Largest number of bytes that wait for a client.
const BYTES: usize = 16 << 20;
/// Number of bytes from which on records are written, even if more frames wait.
const WRITE: usize = 64 << 10;
/// Interval at which a client is checked while it has nothing to read.
const LOOK: Duration = Duration::from_millis(100);
/// Number of attempts to begin a capture: the NIC soon notices that an earlier client has
/// disconnected.
const TRIES: u32 = 4;

/// Attaches a tap to the device.
///
/// # Errors
///
/// Another capture or a full recording holds the tap, or the engine does not answer.
fn begin(shared: &Shared) -> Result<(CaptureReply, CaptureReader), String> {
    for _ in 0..TRIES {
        let (to, watch) = capture_tap(FRAMES, BYTES);
        if ask(shared, |answer| Question::Watch(to, answer))? {
            return Ok((super::port::guest(shared)?, watch));
        }
        std::thread::sleep(LOOK);
    }
    Err(String::from(
        "another capture or a full recording is running: end it first, because only one can run at a time",
    ))
}

/// Captures for a client until it closes its sending half, disconnects, or the device's tap ends.
pub(super) fn capture(mut stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let (told, watch) = match begin(shared) {
        Ok((told, watch)) => (Ok(told), Some(watch)),
        Err(error) => (Err(error), None),
    };
    stream.write_all(ReplyEnvelope::from(told).line().as_bytes())?;
    let Some(watch) = watch else {
        return Ok(());
    };
    hand_on(stream, &watch, shared.power_on())
}

/// A capture that the NIC keeps until its client requests it. The capture ends with its connection.
#[derive(Default)]
pub(super) struct Kept(Option<(CaptureReply, CaptureReader)>);

impl Kept {
    /// Returns the answer to a request about a kept capture, or `None` for other requests.
    pub(super) fn answer(&mut self, request: &ControlRequest, shared: &Shared) -> Option<String> {
        match request {
            ControlRequest::CaptureBegin => {
                // A new capture discards the frames of the last one.
                self.0 = None;
                let begun = begin(shared).map(|begun| {
                    let told = begun.0.clone();
                    self.0 = Some(begun);
                    told
                });
                Some(ReplyEnvelope::from(begun).line())
            }
            ControlRequest::CaptureEnd => {
                let kept = self.0.take().ok_or_else(|| {
                    String::from("no capture was begun over this connection (capture-begin)")
                });
                let told = kept.map(|(told, watch)| {
                    CaptureEndReply::new(told.guest, &all(&watch, shared.power_on()))
                });
                Some(ReplyEnvelope::from(told).line())
            }
            _ => None,
        }
    }
}

/// Returns the records of all waiting frames, and of the end.
fn all(watch: &CaptureReader, power_on: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let waits = std::iter::from_fn(|| watch.try_next());
    // Frames that come meanwhile are left out.
    for seen in waits.take(FRAMES) {
        record(seen, power_on).put(&mut bytes);
    }
    let (seen, dropped) = watch.counts();
    CaptureRecord::End { seen, dropped }.put(&mut bytes);
    bytes
}

fn hand_on(mut stream: &UnixStream, watch: &CaptureReader, power_on: u64) -> io::Result<()> {
    let mut bytes = Vec::new();
    while !is_over(stream) {
        let Ok(first) = watch.next(LOOK) else {
            break;
        };
        let mut next = first;
        while let Some(seen) = next {
            record(seen, power_on).put(&mut bytes);
            next = (bytes.len() < WRITE).then(|| watch.try_next()).flatten();
        }
        stream.write_all(&bytes)?;
        bytes.clear();
    }
    // Frames from before the end are written; frames that come meanwhile are left out.
    let mut left = FRAMES;
    while let Some(seen) = watch.try_next().filter(|_| left > 0) {
        left -= 1;
        record(seen, power_on).put(&mut bytes);
        if bytes.len() >= WRITE {
            stream.write_all(&bytes)?;
            bytes.clear();
        }
    }
    let (seen, dropped) = watch.counts();
    CaptureRecord::End { seen, dropped }.put(&mut bytes);
    stream.write_all(&bytes)
}

/// True if the client has closed its sending half, or has disconnected.
pub(super) fn is_over(stream: &UnixStream) -> bool {
    let wanted = PollFlags::IN | PollFlags::RDHUP;
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(stream, wanted)];
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

fn record(seen: CapturedFrame, power_on: u64) -> CaptureRecord {
    CaptureRecord::Frame {
        direction: match seen.direction {
            CaptureDirection::Local => said::FrameDirection::Local,
            CaptureDirection::Lost => said::FrameDirection::Lost,
            CaptureDirection::Sent => said::FrameDirection::Sent,
            CaptureDirection::Received => said::FrameDirection::Received,
        },
        src_qpn: seen.src_qpn,
        dst_qpn: seen.dst_qpn,
        time_ns: power_on.saturating_add(seen.time),
        frame: seen.frame,
        note: seen.note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;
    use verbena_device::capture::CaptureTap;

    fn seen(time: u64) -> CapturedFrame {
        CapturedFrame {
            time,
            direction: CaptureDirection::Sent,
            src_qpn: Some(16),
            dst_qpn: None,
            frame: vec![3; 100],
            note: None,
        }
    }

    #[test]
    fn a_kept_capture_is_returned_in_full_and_ends_with_its_connection() {
        let (to, watch) = capture_tap(8, BYTES);
        (0..3).for_each(|n| to.show(seen(n)));
        to.miss(2);
        let told = CaptureReply::default();
        let shared = Shared::new().unwrap();
        let mut kept = Kept(Some((told, watch)));
        let line = kept.answer(&ControlRequest::CaptureEnd, &shared).unwrap();
        assert!(!to.is_watched());
        let told: CaptureEndReply = ReplyEnvelope::read(&line).unwrap();
        let bytes = told.bytes().unwrap();
        let mut rest = &bytes[..];
        for n in 0..3 {
            let Ok(Some(CaptureRecord::Frame { time_ns, .. })) = CaptureRecord::read(&mut rest)
            else {
                panic!("no frame");
            };
            assert!(time_ns > n, "{time_ns}");
        }
        let end = CaptureRecord::End {
            seen: 5,
            dropped: 2,
        };
        assert_eq!(CaptureRecord::read(&mut rest).unwrap(), Some(end));
        assert!(rest.is_empty());
        let again = kept.answer(&ControlRequest::CaptureEnd, &shared).unwrap();
        assert!(again.contains("no capture was begun"), "{again}");
        assert!(kept.answer(&ControlRequest::Stats, &shared).is_none());
        let (to, watch) = capture_tap(8, BYTES);
        drop(Kept(Some((CaptureReply::default(), watch))));
        assert!(!to.is_watched());
    }

    /// Starts a capture; returns its client, the tap of the device, and the thread that serves the
    /// client.
    fn running(
        frames: usize,
    ) -> (
        UnixStream,
        CaptureTap,
        std::thread::JoinHandle<io::Result<()>>,
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (to, watch) = capture_tap(frames, BYTES);
        let thread = std::thread::spawn(move || hand_on(&ours, &watch, 1000));
        (theirs, to, thread)
    }

    #[test]
    fn frames_are_passed_on_at_once_and_the_end_record_counts_them() {
        let (mut client, to, thread) = running(8);
        for n in 0..3 {
            to.show(seen(n));
            let Ok(Some(CaptureRecord::Frame { time_ns, frame, .. })) =
                CaptureRecord::read(&mut client)
            else {
                panic!("no frame");
            };
            assert_eq!((time_ns, frame.len()), (1000 + n, 100));
        }
        to.miss(2);
        client.shutdown(Shutdown::Write).unwrap();
        let end = CaptureRecord::End {
            seen: 5,
            dropped: 2,
        };
        assert_eq!(CaptureRecord::read(&mut client).unwrap(), Some(end));
        assert_eq!(CaptureRecord::read(&mut client).unwrap(), None);
        thread.join().unwrap().unwrap();
        assert!(!to.is_watched());
    }

    #[test]
    fn a_client_that_disconnects_ends_its_capture() {
        let (client, to, thread) = running(8);
        drop(client);
        let _ = thread.join().unwrap();
        assert!(!to.is_watched());
    }

    #[test]
    fn a_capture_ends_with_the_tap_of_its_device() {
        let (mut client, to, thread) = running(8);
        drop(to);
        thread.join().unwrap().unwrap();
        let end = CaptureRecord::End {
            seen: 0,
            dropped: 0,
        };
        assert_eq!(CaptureRecord::read(&mut client).unwrap(), Some(end));
    }

    #[test]
    fn a_client_that_does_not_read_does_not_block_the_device() {
        // The tap holds more frames than one write contains.
        let (mut client, to, thread) = running(WRITE / 50);
        let mut shown = 0;
        // These are more frames than the socket, the thread and the tap hold.
        while shown < 100_000 {
            to.show(seen(shown));
            shown += 1;
        }
        client.shutdown(Shutdown::Write).unwrap();
        let mut read = 0;
        loop {
            match CaptureRecord::read(&mut client).unwrap().unwrap() {
                CaptureRecord::Frame { .. } => read += 1,
                CaptureRecord::End { seen, dropped } => {
                    assert_eq!((seen, read + dropped), (shown, shown));
                    assert!(dropped > 0);
                    break;
                }
            }
        }
        thread.join().unwrap().unwrap();
    }
}
