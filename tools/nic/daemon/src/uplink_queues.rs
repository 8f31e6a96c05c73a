// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames of the engine on their way out: for each uplink, the frames for which it had no room yet.
//!
//! While frames wait, the device keeps the frames that it makes, and in the end makes no more
//! (`device/sched.rs`), so that a sender is as fast as its wire and no frame is lost here. But the
//! engine does not wait for a wire that accepts no frame at all: after [`STUCK_TIMEOUT_NS`] the
//! frames that wait for it are dropped, and later frames too, until it accepts one again.

use crate::network::Network;
use crate::switch::PortSet;
use crate::uplink::BATCH;
use std::collections::VecDeque;
use std::rc::Rc;

/// Longest time that an uplink may have no room before its frames are dropped, in nanoseconds: many
/// times the sleep of a receiver that has lost its processor.
const STUCK_TIMEOUT_NS: u64 = 50_000_000;

/// Frames that wait for one uplink.
#[derive(Default)]
struct UplinkQueue {
    frames: VecDeque<Rc<Vec<u8>>>,
    /// Time since which the uplink has accepted no frame, in nanoseconds.
    stuck_since_ns: Option<u64>,
}

/// Waiting frames by the number of their uplink. See the [module](self).
#[derive(Default)]
pub struct UplinkQueues(Vec<UplinkQueue>);

impl UplinkQueues {
    /// Adds a frame that is to leave by some uplinks.
    pub fn add(&mut self, to: PortSet, frame: &Rc<Vec<u8>>) {
        to.wires().for_each(|wire| self.add_to(wire, frame.clone()));
    }

    /// Adds a frame that is to leave by one uplink.
    pub fn add_to(&mut self, wire: usize, frame: Rc<Vec<u8>>) {
        if self.0.len() <= wire {
            self.0.resize_with(wire + 1, UplinkQueue::default);
        }
        self.0[wire].frames.push_back(frame);
    }

    /// Sends the frames for which there is room.
    pub fn flush(&mut self, network: &Network, now: u64) {
        for (wire, queue) in self.0.iter_mut().enumerate() {
            while !queue.frames.is_empty() {
                let batch: Vec<_> = queue.frames.iter().take(BATCH).map(|f| &f[..]).collect();
                let sent = network.send(wire, &batch);
                if sent != 0 {
                    queue.frames.drain(..sent);
                    queue.stuck_since_ns = None;
                    continue;
                }
                let since = *queue.stuck_since_ns.get_or_insert(now);
                if now.saturating_sub(since) >= STUCK_TIMEOUT_NS {
                    network.count_dropped_frames(queue.frames.len());
                    queue.frames.clear();
                }
                break;
            }
        }
    }

    /// True if frames wait for room in any uplink.
    pub fn has_frames(&self) -> bool {
        self.0.iter().any(|queue| !queue.frames.is_empty())
    }

    /// True if frames wait for room in this uplink.
    pub fn has_frames_for(&self, wire: usize) -> bool {
        self.0.get(wire).is_some_and(|q| !q.frames.is_empty())
    }

    /// Drops all frames, because the frames of a device that was reset must not be sent.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
