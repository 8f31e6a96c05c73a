// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tap on the port: whoever has the other end sees each frame of RDMA that is sent or received, those between the device's own
//! queue pairs too.
//!
//! What waits for the reader is bounded, in frames and in bytes. Beyond that frames are counted and not made: the device never
//! waits for a reader. When the reader is gone, the device takes the tap away by itself. A device without one pays a look at a
//! pointer for each delivery.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::Arc;
use std::time::Duration;

/// The way of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From one queue pair of the device to another. It is a frame for the tap only, unless the NIC is told otherwise.
    Local,
    /// The same, and lost on purpose.
    Lost,
    /// Out.
    Sent,
    /// In, whatever becomes of it.
    Received,
}

/// A frame that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Device clock, in nanoseconds: the beginning of the slice.
    pub time: u64,
    /// Its way.
    pub way: Way,
    /// The queue pair that sent it, where that is known.
    pub src_qpn: Option<u32>,
    /// The queue pair that it is for, where it can be read.
    pub dst_qpn: Option<u32>,
    /// Its bytes, from the Ethernet header to the ICRC.
    pub frame: Vec<u8>,
    /// What a rule had happen with it, or what a rule did before it.
    pub note: Option<String>,
}

/// What both ends know.
#[derive(Debug, Default)]
struct Tally {
    seen: AtomicU64,
    dropped: AtomicU64,
    /// Bytes that wait for the reader.
    bytes: AtomicUsize,
}

/// The device's end.
#[derive(Debug)]
pub struct Tap {
    to: SyncSender<Seen>,
    tally: Arc<Tally>,
    /// The most bytes that wait.
    most: usize,
}

/// The reader's end.
#[derive(Debug)]
pub struct Watch {
    from: Receiver<Seen>,
    tally: Arc<Tally>,
}

/// The device's end is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A tap for which at most so many frames and bytes wait.
pub fn tap(frames: usize, bytes: usize) -> (Tap, Watch) {
    let (to, from) = mpsc::sync_channel(frames);
    let tally = Arc::<Tally>::default();
    let watch = Watch {
        from,
        tally: tally.clone(),
    };
    (
        Tap {
            to,
            tally,
            most: bytes,
        },
        watch,
    )
}

impl Tap {
    /// Whether the reader is still there.
    pub fn is_watched(&self) -> bool {
        Arc::strong_count(&self.tally) > 1
    }

    /// Whether there is room for more bytes. Where there is none, nothing has to be made to be shown.
    pub fn has_room(&self) -> bool {
        self.tally.bytes.load(Relaxed) < self.most
    }

    /// Counts frames that were not shown.
    pub fn miss(&self, frames: u32) {
        self.tally.seen.fetch_add(frames.into(), Relaxed);
        self.tally.dropped.fetch_add(frames.into(), Relaxed);
    }

    /// Shows a frame, if there is room for it.
    pub fn show(&self, seen: Seen) {
        let length = seen.frame.len();
        // Before the reader can take it off again.
        self.tally.bytes.fetch_add(length, Relaxed);
        if self.has_room() && self.to.try_send(seen).is_ok() {
            self.tally.seen.fetch_add(1, Relaxed);
        } else {
            self.tally.bytes.fetch_sub(length, Relaxed);
            self.miss(1);
        }
    }
}

impl Watch {
    /// The next frame, waiting for so long at most. None: there was none.
    ///
    /// # Errors
    ///
    /// All were taken, and there will be no more: the device is gone.
    pub fn next(&self, timeout: Duration) -> Result<Option<Seen>, Gone> {
        match self.from.recv_timeout(timeout) {
            Ok(seen) => Ok(Some(self.took(seen))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        }
    }

    /// The next frame, if it is there already.
    pub fn try_next(&self) -> Option<Seen> {
        match self.from.try_recv() {
            Ok(seen) => Some(self.took(seen)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    fn took(&self, seen: Seen) -> Seen {
        self.tally.bytes.fetch_sub(seen.frame.len(), Relaxed);
        seen
    }

    /// Frames so far, and those of them that found no room.
    pub fn tally(&self) -> (u64, u64) {
        let dropped = self.tally.dropped.load(Relaxed);
        (self.tally.seen.load(Relaxed).max(dropped), dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> Seen {
        Seen {
            time: 0,
            way: Way::Sent,
            src_qpn: None,
            dst_qpn: None,
            frame: vec![0; length],
            note: None,
        }
    }

    #[test]
    fn what_waits_is_bounded_in_frames_and_bytes_and_what_is_missed_is_counted() {
        let (tap, watch) = tap(3, 1000);
        (0..5).for_each(|_| tap.show(frame(10)));
        assert_eq!(watch.tally(), (5, 2));
        while watch.try_next().is_some() {}
        (0..5).for_each(|_| tap.show(frame(600)));
        // Longer than all the room that there is.
        tap.show(frame(1000));
        assert_eq!(watch.tally(), (11, 7));
        assert!(watch.try_next().is_some() && watch.try_next().is_none());
        assert!(tap.has_room());
        tap.miss(9);
        assert_eq!(watch.tally(), (20, 16));
    }

    #[test]
    fn a_reader_that_goes_is_noticed_and_leaves_no_frame() {
        let (tap, watch) = tap(8, 1000);
        tap.show(frame(10));
        assert!(tap.is_watched());
        drop(watch);
        assert!(!tap.is_watched());
        tap.show(frame(10));
        assert_eq!(tap.tally.dropped.load(Relaxed), 1);
    }

    #[test]
    fn a_reader_waits_no_longer_than_it_says() {
        let (tap, watch) = tap(8, 1000);
        assert_eq!(watch.next(Duration::ZERO), Ok(None));
        tap.show(frame(1));
        drop(tap);
        assert_eq!(watch.next(Duration::ZERO), Ok(Some(frame(1))));
        assert_eq!(watch.next(Duration::ZERO), Err(Gone));
    }
}
