// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tap on the port: the reader at its other end sees each RDMA frame that is sent or received,
//! including those between the device's own queue pairs.
//!
//! The frames that wait for the reader are bounded in number and in bytes. Further frames are
//! counted but not made, so the device never waits for a reader. When the reader has closed its
//! end, the device removes the tap. A device without a tap checks one pointer for each delivery.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::Arc;
use std::time::Duration;

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// From one queue pair of the device to another. Such a frame is made for the tap only, unless
    /// the NIC has the option to convert all packets to frames.
    Local,
    /// From one queue pair of the device to another, and lost on purpose.
    Lost,
    /// From the device to the network.
    Sent,
    /// From the network to the device, even if the device drops it.
    Received,
}

/// A frame as the reader of the tap gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Device clock at the beginning of the slice, in nanoseconds.
    pub time: u64,
    /// Direction of the frame.
    pub direction: CaptureDirection,
    /// QPN of the sender, if the device knows it.
    pub src_qpn: Option<u32>,
    /// QPN of the destination, if the frame could be parsed.
    pub dst_qpn: Option<u32>,
    /// Bytes of the frame, from the Ethernet header to the ICRC.
    pub frame: Vec<u8>,
    /// Text about the rule that fired on this frame, or on something before it.
    pub note: Option<String>,
}

/// Counters that both ends share.
#[derive(Debug, Default)]
struct CaptureCounts {
    seen: AtomicU64,
    dropped: AtomicU64,
    /// Number of bytes that wait for the reader.
    bytes: AtomicUsize,
}

/// The device's end of a tap.
#[derive(Debug)]
pub struct CaptureTap {
    to: SyncSender<CapturedFrame>,
    counts: Arc<CaptureCounts>,
    /// Limit of the bytes that wait for the reader.
    most: usize,
}

/// The reader's end of a tap.
#[derive(Debug)]
pub struct CaptureReader {
    from: Receiver<CapturedFrame>,
    counts: Arc<CaptureCounts>,
}

/// Error: the device's end of the tap is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGone;

/// Creates a tap. Up to `frames` frames wait for the reader, with fewer than `bytes` bytes in all.
pub fn capture_tap(frames: usize, bytes: usize) -> (CaptureTap, CaptureReader) {
    let (to, from) = mpsc::sync_channel(frames);
    let counts = Arc::<CaptureCounts>::default();
    let watch = CaptureReader {
        from,
        counts: counts.clone(),
    };
    (
        CaptureTap {
            to,
            counts,
            most: bytes,
        },
        watch,
    )
}

impl CaptureTap {
    /// True if the reader's end still exists.
    pub fn is_watched(&self) -> bool {
        Arc::strong_count(&self.counts) > 1
    }

    /// True if there is room for more bytes. Otherwise the device need not make a frame for the
    /// tap.
    pub fn has_room(&self) -> bool {
        self.counts.bytes.load(Relaxed) < self.most
    }

    /// Counts frames that were not shown.
    pub fn miss(&self, frames: u32) {
        self.counts.seen.fetch_add(frames.into(), Relaxed);
        self.counts.dropped.fetch_add(frames.into(), Relaxed);
    }

    /// Shows a frame to the reader, or counts it as missed if there is no room.
    pub fn show(&self, seen: CapturedFrame) {
        let length = seen.frame.len();
        // The bytes are added before the reader can subtract them.
        self.counts.bytes.fetch_add(length, Relaxed);
        if self.has_room() && self.to.try_send(seen).is_ok() {
            self.counts.seen.fetch_add(1, Relaxed);
        } else {
            self.counts.bytes.fetch_sub(length, Relaxed);
            self.miss(1);
        }
    }
}

impl CaptureReader {
    /// Returns the next frame, and waits for it at most for `timeout`. None means that no frame
    /// came in this time.
    ///
    /// # Errors
    ///
    /// Fails if the device is gone and all frames were taken: no further frame will come.
    pub fn next(&self, timeout: Duration) -> Result<Option<CapturedFrame>, DeviceGone> {
        match self.from.recv_timeout(timeout) {
            Ok(seen) => Ok(Some(self.took(seen))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(DeviceGone),
        }
    }

    /// Returns the next frame, if one waits.
    pub fn try_next(&self) -> Option<CapturedFrame> {
        match self.from.try_recv() {
            Ok(seen) => Some(self.took(seen)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    fn took(&self, seen: CapturedFrame) -> CapturedFrame {
        self.counts.bytes.fetch_sub(seen.frame.len(), Relaxed);
        seen
    }

    /// Returns the number of frames so far, and the number of those that found no room.
    pub fn counts(&self) -> (u64, u64) {
        let dropped = self.counts.dropped.load(Relaxed);
        (self.counts.seen.load(Relaxed).max(dropped), dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> CapturedFrame {
        CapturedFrame {
            time: 0,
            direction: CaptureDirection::Sent,
            src_qpn: None,
            dst_qpn: None,
            frame: vec![0; length],
            note: None,
        }
    }

    #[test]
    fn waiting_frames_are_bounded_and_missed_ones_are_counted() {
        let (tap, watch) = capture_tap(3, 1000);
        (0..5).for_each(|_| tap.show(frame(10)));
        assert_eq!(watch.counts(), (5, 2));
        while watch.try_next().is_some() {}
        (0..5).for_each(|_| tap.show(frame(600)));
        // Longer than the limit of all waiting bytes.
        tap.show(frame(1000));
        assert_eq!(watch.counts(), (11, 7));
        assert!(watch.try_next().is_some() && watch.try_next().is_none());
        assert!(tap.has_room());
        tap.miss(9);
        assert_eq!(watch.counts(), (20, 16));
    }

    #[test]
    fn a_closed_reader_is_noticed_and_gets_no_frame() {
        let (tap, watch) = capture_tap(8, 1000);
        tap.show(frame(10));
        assert!(tap.is_watched());
        drop(watch);
        assert!(!tap.is_watched());
        tap.show(frame(10));
        assert_eq!(tap.counts.dropped.load(Relaxed), 1);
    }

    #[test]
    fn a_reader_waits_no_longer_than_its_timeout() {
        let (tap, watch) = capture_tap(8, 1000);
        assert_eq!(watch.next(Duration::ZERO), Ok(None));
        tap.show(frame(1));
        drop(tap);
        assert_eq!(watch.next(Duration::ZERO), Ok(Some(frame(1))));
        assert_eq!(watch.next(Duration::ZERO), Err(DeviceGone));
    }
}
