// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames that wait for the uplink.

use std::collections::VecDeque;
use std::rc::Rc;

/// Most frames that wait for the uplink. Further frames are dropped, as by a full port queue.
pub(crate) const MAX_FRAMES: usize = 4096;
/// Number of waiting frames from which on QPs that would add frames have to wait: a sender is as
/// fast as its wire. The rest of [`MAX_FRAMES`] is for the frames that the turns of one slice add.
const CROWDED: usize = MAX_FRAMES / 4;

/// The queue of frames to the uplink, in the order in which they were made. It never has more than
/// [`MAX_FRAMES`] frames, and each frame that was dropped is counted once.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    frames: VecDeque<Rc<Vec<u8>>>,
    /// Frames dropped since the last [`Egress::take_lost`].
    lost: u64,
}

impl Egress {
    /// True if another frame can wait.
    pub(crate) fn has_room(&self) -> bool {
        self.frames.len() < MAX_FRAMES
    }

    /// Adds a frame, or drops and counts the frame if there is no room.
    pub(crate) fn push(&mut self, frame: Rc<Vec<u8>>) {
        if self.has_room() {
            self.frames.push_back(frame);
        } else {
            self.lost += 1;
        }
    }

    /// Takes the first frame.
    pub(crate) fn pop(&mut self) -> Option<Rc<Vec<u8>>> {
        self.frames.pop_front()
    }

    /// True if QPs that would add frames have to wait.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.frames.len() >= CROWDED
    }

    /// True if there is not even room for the frames of an additional turn.
    pub(crate) fn is_half_full(&self) -> bool {
        self.frames.len() >= MAX_FRAMES / 2
    }

    /// Returns how many frames were dropped since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Returns the number of frames that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Replaces the frames by `count` empty ones.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, count: usize) {
        self.frames.clear();
        self.frames.resize_with(count, Default::default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_room_is_dropped_and_counted_once() {
        let mut egress = Egress::default();
        egress.fill(MAX_FRAMES - 1);
        let frame = |byte| Rc::new(vec![byte]);
        egress.push(frame(1));
        assert!(!egress.has_room());
        egress.push(frame(2));
        assert_eq!((egress.take_lost(), egress.take_lost()), (1, 0));
        let last = std::iter::from_fn(|| egress.pop()).last();
        assert_eq!(last, Some(frame(1)));
        for (count, expected) in [(CROWDED - 1, [false; 2]), (CROWDED, [true, false])] {
            egress.fill(count);
            assert_eq!([egress.is_crowded(), egress.is_half_full()], expected);
        }
    }
}
