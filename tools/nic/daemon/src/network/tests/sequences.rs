// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Long random sequences of sent frames, which are compared with models: an uplink that is full,
//! free and full again, and impairments that are set, changed and cleared while frames wait, over
//! hours of virtual time.

use super::super::*;
use crate::impairments::Impairments;
use crate::uplink::Batch;
use crate::uplink_queues::UplinkQueues;
use rustix::event::{eventfd, EventfdFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use verbena_lab_transport::Rng;
use verbena_protocol::Impairment;

const MS: u64 = 1_000_000;
const HOUR_NS: u64 = 3_600_000 * MS;
const MTU: usize = 1500;

/// Room of an uplink in frames, and the numbers of the frames that it has sent.
#[derive(Default)]
struct AcceptedFrames {
    room: usize,
    numbers: Vec<u32>,
}

struct LimitedUplink {
    fd: OwnedFd,
    taken: Arc<Mutex<AcceptedFrames>>,
}

fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = number.to_le_bytes().to_vec();
    frame.resize(length, 0);
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[..4].try_into().unwrap())
}

impl Uplink for LimitedUplink {
    fn send(&self, frames: &[&[u8]]) -> usize {
        assert!(frames.iter().all(|frame| frame.len() <= MTU));
        let mut taken = self.taken.lock().unwrap();
        let count = taken.room.min(frames.len());
        taken.room -= count;
        taken
            .numbers
            .extend(frames[..count].iter().map(|frame| number(frame)));
        count
    }

    fn receive(&self, _: &mut Batch) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn mtu(&self) -> usize {
        MTU
    }
}

/// An uplink with little room gets frames in order, each once. If no frame has left for the
/// engine's patience, all waiting frames are dropped. A frame that is too long for the uplink is
/// dropped alone.
fn uplink_queues(seed: u64) {
    const STUCK_TIMEOUT_NS: u64 = 50 * MS;
    let mut rng = Rng::new(seed);
    let shared = Arc::new(VmState::new().unwrap());
    let taken = Arc::new(Mutex::new(AcceptedFrames::default()));
    let wire = LimitedUplink {
        fd: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        taken: taken.clone(),
    };
    let vms = [(shared.clone(), [2, 0, 0, 0, 0, 1])];
    let network = Network::new(&shared.process, &vms, vec![Box::new(wire)]);
    let to = PortSet::from(SwitchPort::Wire(0));
    let mut uplink_queues = UplinkQueues::default();
    let (mut now, mut next) = (0, 0);
    // `waits` has the numbers of waiting frames, and whether each is too long. `want` has the
    // frames that the uplink must have sent. `stuck` is the time since when no frame has left.
    let (mut waits, mut want) = (VecDeque::new(), Vec::new());
    let (mut dropped, mut stuck) = (0, None::<u64>);
    for step in 0..400 {
        let at = format!("seed {seed}, step {step}");
        for _ in 0..rng.below(4) * rng.below(100) {
            let long = rng.below(50) == 0;
            let length = if long { MTU + 1 } else { MTU };
            uplink_queues.add(to, &Rc::new(frame(next, length)));
            waits.push_back((next, long));
            next += 1;
        }
        let room = [0, 0, 1, 127, 128, 129, 500][rng.below(7) as usize];
        taken.lock().unwrap().room = room;
        now += [
            0,
            MS,
            20 * MS,
            STUCK_TIMEOUT_NS - 1,
            STUCK_TIMEOUT_NS,
            HOUR_NS,
        ][rng.below(6) as usize];
        uplink_queues.flush(&network, now);
        let mut room = room;
        let mut moved = false;
        while let Some(&(number, long)) = waits.front() {
            if long {
                dropped += 1;
            } else if room > 0 {
                room -= 1;
                want.push(number);
            } else {
                break;
            }
            moved = true;
            waits.pop_front();
        }
        if moved || waits.is_empty() {
            // The wait ends if a frame has left. Without frames there is no wait.
            stuck = stuck.filter(|_| !moved);
        }
        if !waits.is_empty() {
            let since = *stuck.get_or_insert(now);
            if now - since >= STUCK_TIMEOUT_NS {
                dropped += waits.len() as u64;
                waits.clear();
            }
        }
        assert_eq!(uplink_queues.has_frames(), !waits.is_empty(), "{at}");
        assert_eq!(uplink_queues.has_frames_for(0), !waits.is_empty(), "{at}");
        let counted = shared
            .process
            .counters
            .uplink_dropped
            .load(Ordering::Relaxed);
        assert_eq!(counted, dropped, "{at}: dropped");
        assert_eq!(taken.lock().unwrap().numbers, want, "{at}");
    }
    assert!(!want.is_empty() && dropped > 0, "seed {seed} shows nothing");
}

#[test]
fn an_uplink_that_is_full_free_and_full_again_drops_only_what_it_may() {
    (0..40).for_each(uplink_queues);
}

/// Model of one uplink: the numbers of the waiting frames with the times when they are due,
/// and the impairment.
#[derive(Default)]
struct UplinkModel {
    waits: VecDeque<(u32, u64)>,
    how: Option<Impairment>,
    /// True if the impairment is off, but takes frames until the waiting ones have left.
    ends: bool,
    /// Time when the last frame has left, at the rate of the impairment.
    idle_at_ns: u64,
    stuck_until_ns: u64,
    given: Vec<u32>,
}

/// Impairments that only delay: all frames leave in order, each at its time. Frames that wait when
/// the impairment is changed or cleared leave at once, before later frames.
fn impaired(seed: u64) {
    const WIRES: usize = 2;
    let mut rng = Rng::new(seed);
    let all = Impairments::default();
    all.set_uplinks(WIRES);
    let mut models: [UplinkModel; WIRES] = Default::default();
    let (mut now, mut next) = (0u64, 0u32);
    let mut left: [Vec<u32>; WIRES] = Default::default();
    for step in 0..600 {
        let at = format!("seed {seed}, step {step}");
        now += [0, 1, MS, 300 * MS, HOUR_NS][rng.below(5) as usize];
        let wire = rng.below(WIRES as u64) as usize;
        match rng.below(8) {
            0 => {
                let how = (rng.below(3) > 0).then(|| Impairment {
                    delay_ns: [0, MS, 100 * MS, 9_000 * MS][rng.below(4) as usize],
                    rate_bps: [0, 1_000_000][rng.below(2) as usize],
                    ..Impairment::default()
                });
                all.set(Some(wire as u8), how).unwrap();
                let model = &mut models[wire];
                model.ends = how.is_none() && (model.how.is_some() || model.ends);
                model.how = how;
                model.waits.iter_mut().for_each(|(_, due)| *due = 0);
                (model.idle_at_ns, model.stuck_until_ns) = (0, 0);
            }
            1..=4 => {
                for _ in 0..1 + rng.below(5) {
                    let length = 60 + rng.below(1000) as usize;
                    let taken = all.impair(wire, &[&frame(next, length)], now);
                    let model = &mut models[wire];
                    let Some(how) = model.how else {
                        // The impairment is off, but takes the frame if earlier frames wait.
                        assert_eq!(taken, model.ends, "{at}: off");
                        if taken {
                            model.waits.push_back((next, now));
                        } else {
                            left[wire].push(next);
                        }
                        model.given.push(next);
                        next += 1;
                        continue;
                    };
                    assert!(taken, "{at}");
                    let mut due = now;
                    if how.rate_bps != 0 {
                        due = model.idle_at_ns.max(now)
                            + length as u64 * 8 * 1_000_000_000 / how.rate_bps;
                        model.idle_at_ns = due;
                    }
                    model.waits.push_back((next, due + how.delay_ns));
                    model.given.push(next);
                    next += 1;
                }
            }
            _ => {
                let (most, room) = (1 + rng.below(9) as usize, rng.below(6) as usize);
                all.release(now, most, |uplink, frames| {
                    let count = room.min(frames.len());
                    left[uplink].extend(frames[..count].iter().map(|frame| number(frame)));
                    count
                });
                for (wire, model) in models.iter_mut().enumerate() {
                    let is_due =
                        |(_, due): &&(u32, u64)| *due <= now && model.stuck_until_ns <= now;
                    let due = model.waits.iter().take_while(is_due).count().min(most);
                    model.waits.drain(..due.min(room));
                    if due > room {
                        model.stuck_until_ns = now + 200_000;
                    }
                    model.ends &= !model.waits.is_empty();
                    let sent = model.given.len() - model.waits.len();
                    assert_eq!(left[wire], model.given[..sent], "{at}: uplink {wire}");
                }
            }
        }
        let due = models.iter().filter_map(|model| {
            let (_, due) = model.waits.front()?;
            Some((*due).max(model.stuck_until_ns))
        });
        assert_eq!(all.next_due(), due.min(), "{at}: when to look next");
    }
    // After the impairments are off, all frames leave, and later frames are not delayed.
    all.set(None, None).unwrap();
    while all.next_due().is_some() {
        now += MS;
        all.release(now, 128, |uplink, frames| {
            left[uplink].extend(frames.iter().map(|frame| number(frame)));
            frames.len()
        });
    }
    for (wire, model) in models.iter().enumerate() {
        assert_eq!(left[wire], model.given, "seed {seed}: uplink {wire}");
        assert!(!all.impair(wire, &[&frame(0, 60)], now), "seed {seed}: off");
    }
}

#[test]
fn an_impairment_changed_or_cleared_while_frames_wait_loses_none_and_keeps_their_order() {
    (0..40).for_each(impaired);
}
