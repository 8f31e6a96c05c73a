// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames of the engine on their way out: for each uplink those for which it had no room yet.
//!
//! While some wait, the device keeps what it makes, and in the end makes no more (`device/sched.rs`), so that a sender is as fast as
//! its wire and nothing is lost here. But nobody waits for a wire that moves nothing at all: after [`PATIENCE`] what waits for it is
//! dropped, and so is what comes later, until it takes something again.

use crate::network::Network;
use crate::switch::Ports;
use crate::uplink::BATCH;
use std::collections::VecDeque;
use std::rc::Rc;

/// So many nanoseconds an uplink may have no room before what waits for it is dropped: many times what a receiver sleeps that has
/// lost its processor.
const PATIENCE: u64 = 50_000_000;

/// What waits for one uplink.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Rc<Vec<u8>>>,
    /// Since when nothing has left.
    stuck: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub struct Departures(Vec<Queue>);

impl Departures {
    /// A frame is to leave by some uplinks.
    pub fn add(&mut self, to: Ports, frame: &Rc<Vec<u8>>) {
        for wire in to.wires() {
            if self.0.len() <= wire {
                self.0.resize_with(wire + 1, Queue::default);
            }
            self.0[wire].frames.push_back(frame.clone());
        }
    }

    /// Sends what there is room for.
    pub fn depart(&mut self, network: &Network, now: u64) {
        for (wire, queue) in self.0.iter_mut().enumerate() {
            while !queue.frames.is_empty() {
                let batch: Vec<_> = queue.frames.iter().take(BATCH).map(|f| &f[..]).collect();
                let sent = network.send(wire, &batch);
                if sent != 0 {
                    queue.frames.drain(..sent);
                    queue.stuck = None;
                    continue;
                }
                let since = *queue.stuck.get_or_insert(now);
                if now.saturating_sub(since) >= PATIENCE {
                    network.drop_frames(queue.frames.len());
                    queue.frames.clear();
                }
                break;
            }
        }
    }

    /// Whether frames wait for room.
    pub fn is_waiting(&self) -> bool {
        self.0.iter().any(|queue| !queue.frames.is_empty())
    }

    /// Whether frames wait for room in an uplink.
    pub fn waits_for(&self, wire: usize) -> bool {
        self.0.get(wire).is_some_and(|q| !q.frames.is_empty())
    }

    /// Forgets all: those of a device that was reset are not to be heard.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
