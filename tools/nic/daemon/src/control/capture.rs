// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A capture for one connection: the device passes its frames to a tap, and this thread passes them
//! on as records.
//!
//! The waiting frames are bounded ([`MAX_FRAMES`], [`MAX_BYTES`]). If a client does not read, the
//! engine drops its frames before it copies them, and counts them. The engine never waits. A
//! capture that is kept ([`ConnectionCapture`]) has the same bounds until its client requests it.

use super::{protocol, request};
use crate::vm_state::{EngineRequest, VmState};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use verbena_device::capture::{capture_tap, CaptureDirection, CaptureReader, CapturedFrame};
use verbena_protocol::{
    CaptureEndReply, CaptureRecord, CaptureReply, ControlRequest, ReplyEnvelope,
};

/// Largest number of frames that wait for a client.
const MAX_FRAMES: usize = 8192;
/// Largest number of bytes that wait for a client.
const MAX_BYTES: usize = 16 << 20;
/// Number of bytes from which on records are written, even if more frames wait.
const WRITE_BYTES: usize = 64 << 10;
/// Interval at which a client is checked while it has nothing to read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of attempts to begin a capture: the NIC soon notices that an earlier client has
/// disconnected.
const MAX_ATTEMPTS: u32 = 4;

/// Attaches a tap to the device.
///
/// # Errors
///
/// Another capture or a full recording holds the tap, or the engine does not answer.
fn begin(shared: &VmState) -> Result<(CaptureReply, CaptureReader), String> {
    for _ in 0..MAX_ATTEMPTS {
        let (to, reader) = capture_tap(MAX_FRAMES, MAX_BYTES);
        if request(shared, |answer| EngineRequest::AttachTap(to, answer))? {
            return Ok((super::port::capture_reply(shared)?, reader));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(String::from(
        "another capture or a full recording is running: end it first, because only one can run at a time",
    ))
}

/// Captures for a client until it closes its sending half, disconnects, or the device's tap ends.
pub(super) fn stream_capture(mut stream: &UnixStream, shared: &VmState) -> io::Result<()> {
    let (reply, reader) = match begin(shared) {
        Ok((reply, reader)) => (Ok(reply), Some(reader)),
        Err(error) => (Err(error), None),
    };
    stream.write_all(ReplyEnvelope::from(reply).to_line().as_bytes())?;
    let Some(reader) = reader else {
        return Ok(());
    };
    write_records(stream, &reader, shared.power_on())
}

/// A capture that the NIC keeps until its client requests it. The capture ends with its connection.
#[derive(Default)]
pub(super) struct ConnectionCapture(Option<(CaptureReply, CaptureReader)>);

impl ConnectionCapture {
    /// Returns the answer to a request about a kept capture, or `None` for other requests.
    pub(super) fn answer(&mut self, request: &ControlRequest, shared: &VmState) -> Option<String> {
        match request {
            ControlRequest::CaptureBegin => {
                // A new capture discards the frames of the last one.
                self.0 = None;
                let begun = begin(shared).map(|begun| {
                    let reply = begun.0.clone();
                    self.0 = Some(begun);
                    reply
                });
                Some(ReplyEnvelope::from(begun).to_line())
            }
            ControlRequest::CaptureEnd => {
                let capture = self.0.take().ok_or_else(|| {
                    String::from("no capture was begun over this connection (capture-begin)")
                });
                let reply = capture.map(|(begun, reader)| {
                    CaptureEndReply::new(begun, &drain(&reader, shared.power_on()))
                });
                Some(ReplyEnvelope::from(reply).to_line())
            }
            _ => None,
        }
    }
}

/// Returns the records of all waiting frames, and of the end.
fn drain(reader: &CaptureReader, power_on: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let waits = std::iter::from_fn(|| reader.try_next());
    // Frames that come meanwhile are left out.
    for seen in waits.take(MAX_FRAMES) {
        record(seen, power_on).put(&mut bytes);
    }
    let (seen, dropped) = reader.counts();
    CaptureRecord::End { seen, dropped }.put(&mut bytes);
    bytes
}

fn write_records(mut stream: &UnixStream, reader: &CaptureReader, power_on: u64) -> io::Result<()> {
    let mut bytes = Vec::new();
    while !has_client_closed(stream) {
        let Ok(first) = reader.next(POLL_INTERVAL) else {
            break;
        };
        let mut next = first;
        while let Some(seen) = next {
            record(seen, power_on).put(&mut bytes);
            next = (bytes.len() < WRITE_BYTES)
                .then(|| reader.try_next())
                .flatten();
        }
        stream.write_all(&bytes)?;
        bytes.clear();
    }
    // Frames from before the end are written; frames that come meanwhile are left out.
    let mut left = MAX_FRAMES;
    while let Some(seen) = reader.try_next().filter(|_| left > 0) {
        left -= 1;
        record(seen, power_on).put(&mut bytes);
        if bytes.len() >= WRITE_BYTES {
            stream.write_all(&bytes)?;
            bytes.clear();
        }
    }
    let (seen, dropped) = reader.counts();
    CaptureRecord::End { seen, dropped }.put(&mut bytes);
    stream.write_all(&bytes)
}

/// True if the client has closed its sending half, or has disconnected.
pub(super) fn has_client_closed(stream: &UnixStream) -> bool {
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
            CaptureDirection::Local => protocol::FrameDirection::Local,
            CaptureDirection::Lost => protocol::FrameDirection::Lost,
            CaptureDirection::Sent => protocol::FrameDirection::Sent,
            CaptureDirection::Received => protocol::FrameDirection::Received,
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
        let (to, reader) = capture_tap(8, MAX_BYTES);
        (0..3).for_each(|n| to.show(seen(n)));
        to.miss(2);
        let reply = CaptureReply::default();
        let shared = VmState::new().unwrap();
        let mut kept_capture = ConnectionCapture(Some((reply, reader)));
        let line = kept_capture
            .answer(&ControlRequest::CaptureEnd, &shared)
            .unwrap();
        assert!(!to.is_watched());
        let reply: CaptureEndReply = ReplyEnvelope::from_line(&line).unwrap();
        let bytes = reply.bytes().unwrap();
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
        let again = kept_capture
            .answer(&ControlRequest::CaptureEnd, &shared)
            .unwrap();
        assert!(again.contains("no capture was begun"), "{again}");
        assert!(kept_capture
            .answer(&ControlRequest::Stats, &shared)
            .is_none());
        let (to, reader) = capture_tap(8, MAX_BYTES);
        drop(ConnectionCapture(Some((CaptureReply::default(), reader))));
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
        let (to, reader) = capture_tap(frames, MAX_BYTES);
        let thread = std::thread::spawn(move || write_records(&ours, &reader, 1000));
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
        let (mut client, to, thread) = running(WRITE_BYTES / 50);
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
