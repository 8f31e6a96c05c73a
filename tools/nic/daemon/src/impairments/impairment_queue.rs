// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The impairment of the frames that leave by one uplink. It has no access to sockets and clocks:
//! the caller passes the time at which a frame is to leave, and asks for frames that are due. All
//! random decisions come from a seed, with the same number of draws for each frame in any case, so
//! the same frames have the same fate.

use std::collections::BTreeMap;
use verbena_protocol::{Impairment, ImpairmentCounters};

/// Largest number of frames that wait.
pub const MAX_WAITING_FRAMES: usize = 4096;
/// Largest number of bytes that wait.
pub const MAX_BYTES: usize = 16 << 20;
/// Length of the Ethernet header, in which no bit is flipped, so that a corrupt frame reaches its
/// destination.
const ETHERNET_HEADER_BYTES: usize = 14;
/// Time after which an uplink without room is tried again, in nanoseconds.
const RETRY_NS: u64 = 200_000;
const MILLION: u64 = verbena_protocol::MILLION as u64;

/// A generator of random numbers (splitmix64).
#[derive(Debug)]
struct FrameRng(u64);

impl FrameRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn is_hit(&mut self, ppm: u32) -> bool {
        self.next() % MILLION < u64::from(ppm)
    }
}

/// The state of an impaired uplink.
#[derive(Debug)]
pub struct ImpairmentQueue {
    impairment: Impairment,
    rng: FrameRng,
    /// Waiting frames by the time at which they leave; frames with the same time are in order.
    waiting: BTreeMap<(u64, u64), Vec<u8>>,
    /// Number of the next frame.
    next: u64,
    bytes: usize,
    /// Time at which the last bit of all frames so far has left, at the rate.
    idle_at_ns: u64,
    /// Time before which an uplink that had no room is not tried again.
    stuck_until_ns: u64,
    counters: ImpairmentCounters,
}

impl ImpairmentQueue {
    /// Returns the state of an uplink with the frames of an earlier impairment, which are due at
    /// once.
    pub fn replacing(before: Option<Self>, how: Impairment) -> Self {
        let frames = before.map_or_else(BTreeMap::new, |before| before.waiting);
        let frames = (0..).zip(frames.into_values());
        let waiting: BTreeMap<_, _> = frames.map(|(n, frame)| ((0, n), frame)).collect();
        Self {
            impairment: how,
            rng: FrameRng(how.seed),
            next: waiting.len() as u64,
            bytes: waiting.values().map(Vec::len).sum(),
            waiting,
            idle_at_ns: 0,
            stuck_until_ns: 0,
            counters: ImpairmentCounters::default(),
        }
    }

    /// Returns the parameters of the impairment.
    pub fn impairment(&self) -> Impairment {
        self.impairment
    }

    /// Returns the counts of frames so far.
    pub fn counters(&self) -> ImpairmentCounters {
        ImpairmentCounters {
            waiting: self.waiting.len() as u64,
            ..self.counters
        }
    }

    /// Takes a frame that is to leave.
    pub fn impair(&mut self, frame: &[u8], now: u64) {
        let how = self.impairment;
        let [lost, twice, corrupt, early] = [
            how.loss_ppm,
            how.duplicate_ppm,
            how.corrupt_ppm,
            how.reorder_ppm,
        ]
        .map(|ppm| self.rng.is_hit(ppm));
        let (bit, jitter) = (self.rng.next(), self.rng.next());
        self.counters.frames += 1;
        if lost {
            self.counters.lost += 1;
            return;
        }
        let mut frame = frame.to_vec();
        if corrupt && flip(&mut frame, bit) {
            self.counters.corrupted += 1;
        }
        let delay = if early {
            self.counters.reordered += 1;
            0
        } else {
            how.delay_ns.saturating_sub(how.jitter_ns) + jitter % (2 * how.jitter_ns + 1)
        };
        if twice {
            self.counters.duplicated += 1;
            self.enqueue(frame.clone(), now, delay);
        }
        self.enqueue(frame, now, delay);
    }

    /// Takes a frame that the impairment is not for, and that leaves after this delay in
    /// nanoseconds.
    pub fn delay(&mut self, frame: &[u8], now: u64, delay: u64) {
        if self.has_room(frame) {
            self.insert((now.saturating_add(delay), self.next), frame.to_vec());
            self.next += 1;
        }
    }

    /// True if there is room for a frame, which is lost otherwise.
    fn has_room(&mut self, frame: &[u8]) -> bool {
        let is_full =
            self.waiting.len() >= MAX_WAITING_FRAMES || self.bytes + frame.len() > MAX_BYTES;
        self.counters.overflowed += u64::from(is_full);
        !is_full
    }

    fn enqueue(&mut self, frame: Vec<u8>, now: u64, delay: u64) {
        if !self.has_room(&frame) {
            return;
        }
        let mut due = now;
        let bits = frame.len() as u64 * 8;
        // Without a rate the frame is due at once.
        let takes = (bits * 1_000_000_000).checked_div(self.impairment.rate_bps);
        if let Some(takes) = takes {
            due = self.idle_at_ns.max(now).saturating_add(takes);
            self.idle_at_ns = due;
        }
        self.insert((due.saturating_add(delay), self.next), frame);
        self.next += 1;
    }

    fn insert(&mut self, at: (u64, u64), frame: Vec<u8>) {
        self.bytes += frame.len();
        self.waiting.insert(at, frame);
    }

    /// Returns the time at which the next frame is to leave.
    pub fn next_due(&self) -> Option<u64> {
        let first = self.waiting.first_key_value();
        first.map(|((due, _), _)| (*due).max(self.stuck_until_ns))
    }

    /// Sends frames that are due, at most `most`. `send` returns how many of them the uplink has
    /// accepted; the others are tried again a little later.
    pub fn release(&mut self, now: u64, most: usize, send: impl FnOnce(&[&[u8]]) -> usize) {
        let mut due = Vec::new();
        while due.len() < most && self.next_due().is_some_and(|at| at <= now) {
            let Some((at, frame)) = self.waiting.pop_first() else {
                break;
            };
            self.bytes -= frame.len();
            due.push((at, frame));
        }
        if due.is_empty() {
            return;
        }
        let frames: Vec<&[u8]> = due.iter().map(|(_, frame)| &frame[..]).collect();
        let sent = send(&frames);
        if sent < due.len() {
            self.stuck_until_ns = now.saturating_add(RETRY_NS);
        }
        for (at, frame) in due.into_iter().skip(sent) {
            self.insert(at, frame);
        }
    }
}

/// Flips a bit of a frame after the Ethernet header. Returns false if there is none.
fn flip(frame: &mut [u8], bit: u64) -> bool {
    let Some(bits) = (frame.len().saturating_sub(ETHERNET_HEADER_BYTES) as u64).checked_mul(8)
    else {
        return false;
    };
    let Some(bit) = bit.checked_rem(bits) else {
        return false;
    };
    let byte = frame.get_mut(ETHERNET_HEADER_BYTES + (bit / 8) as usize);
    byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn all(queue: &mut ImpairmentQueue, now: u64) -> Vec<Vec<u8>> {
        let mut out = vec![];
        while queue.next_due().is_some_and(|due| due <= now) {
            queue.release(now, 3, |frames| {
                out.extend(frames.iter().map(|frame| frame.to_vec()));
                frames.len()
            });
        }
        out
    }

    fn frame(n: u32) -> Vec<u8> {
        [&[0; 14][..], &n.to_le_bytes(), &[0; 42]].concat()
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_le_bytes(frame[14..18].try_into().unwrap())
    }

    /// Passes a thousand frames, one each millisecond. Returns the frames that left, with the
    /// times, and the counts.
    fn thousand(how: Impairment) -> (Vec<(u64, Vec<u8>)>, ImpairmentCounters) {
        how.check().unwrap();
        let mut queue = ImpairmentQueue::replacing(None, how);
        let mut left = vec![];
        for ms in 0..1200 {
            if ms < 1000 {
                queue.impair(&frame(ms), u64::from(ms) * MS);
            }
            let now = u64::from(ms) * MS;
            left.extend(all(&mut queue, now).into_iter().map(|frame| (now, frame)));
        }
        (left, queue.counters())
    }

    #[test]
    fn the_seed_selects_the_frames_that_fail() {
        let how = Impairment {
            loss_ppm: 100_000,
            duplicate_ppm: 50_000,
            corrupt_ppm: 50_000,
            reorder_ppm: 100_000,
            delay_ns: 20 * MS,
            jitter_ns: 5 * MS,
            rate_bps: 10_000_000,
            seed: 7,
        };
        assert_eq!(thousand(how), thousand(how));
        assert_ne!(thousand(how).0, thousand(Impairment { seed: 8, ..how }).0);
        // A higher rate loses the same frames and further ones.
        let lost = |loss_ppm| {
            let left = thousand(Impairment {
                loss_ppm,
                seed: 7,
                ..Impairment::default()
            })
            .0;
            let there: Vec<u32> = left.iter().map(|(_, frame)| number(frame)).collect();
            (0..1000)
                .filter(|n| !there.contains(n))
                .collect::<Vec<u32>>()
        };
        let (few, many) = (lost(50_000), lost(200_000));
        assert!(few.len() < many.len() && few.iter().all(|n| many.contains(n)));
    }

    #[test]
    fn each_fault_happens_about_as_often_as_its_rate() {
        let about = |count: u64| (60..140).contains(&count);
        let (left, counters) = thousand(Impairment {
            loss_ppm: 100_000,
            ..Impairment::default()
        });
        assert!(about(counters.lost) && left.len() as u64 == 1000 - counters.lost);
        let (left, counters) = thousand(Impairment {
            duplicate_ppm: 100_000,
            ..Impairment::default()
        });
        assert!(about(counters.duplicated) && left.len() as u64 == 1000 + counters.duplicated);
        let (left, counters) = thousand(Impairment {
            corrupt_ppm: 100_000,
            ..Impairment::default()
        });
        let broken = (0..1000)
            .zip(&left)
            .filter(|(n, (_, got))| *got != frame(*n));
        assert!(about(counters.corrupted) && broken.count() as u64 == counters.corrupted);
        assert!(left.iter().all(|(_, frame)| frame[..14] == [0; 14]));
        let (left, counters) = thousand(Impairment {
            reorder_ppm: 100_000,
            delay_ns: 10 * MS,
            ..Impairment::default()
        });
        let early = left
            .iter()
            .filter(|(at, frame)| u64::from(number(frame)) * MS == *at);
        assert!(about(counters.reordered) && early.count() as u64 == counters.reordered);
    }

    #[test]
    fn frames_are_delayed_within_the_jitter_and_none_is_lost() {
        let (left, counters) = thousand(Impairment {
            delay_ns: 20 * MS,
            jitter_ns: 10 * MS,
            ..Impairment::default()
        });
        assert_eq!((left.len(), counters.waiting), (1000, 0));
        let waits = left
            .iter()
            .map(|(at, frame)| at / MS - u64::from(number(frame)));
        let (least, most) = (waits.clone().min().unwrap(), waits.max().unwrap());
        assert!((10..13).contains(&least) && (28..32).contains(&most));
    }

    #[test]
    fn a_rate_spaces_frames_and_the_number_of_waiting_frames_is_bounded() {
        // 60 bytes at 480 kbit/s take a millisecond.
        let mut queue = ImpairmentQueue::replacing(
            None,
            Impairment {
                rate_bps: 480_000,
                ..Impairment::default()
            },
        );
        (0..10).for_each(|n| queue.impair(&frame(n), 0));
        for n in 1..=10 {
            assert_eq!(queue.next_due(), Some(n * MS));
            assert_eq!(all(&mut queue, n * MS).len(), 1);
        }
        (0..2 * MAX_WAITING_FRAMES as u32).for_each(|n| queue.impair(&frame(n), 0));
        let counters = queue.counters();
        assert_eq!(counters.waiting, MAX_WAITING_FRAMES as u64);
        assert_eq!(counters.overflowed, MAX_WAITING_FRAMES as u64);
        let mut queue = ImpairmentQueue::replacing(
            None,
            Impairment {
                delay_ns: MS,
                ..Impairment::default()
            },
        );
        (0..20).for_each(|_| queue.impair(&vec![0; 1 << 20], 0));
        assert_eq!(
            (queue.counters().waiting, queue.counters().overflowed),
            (16, 4)
        );
    }

    #[test]
    fn frames_without_room_are_retried_later_and_leave_at_once_after_a_change() {
        let mut queue = ImpairmentQueue::replacing(None, Impairment::default());
        (0..5).for_each(|n| queue.impair(&frame(n), 7));
        queue.release(7, 4, |frames| {
            assert_eq!(frames.len(), 4);
            1
        });
        // There is a pause before the next attempt, so that the engine does not try all the time.
        assert_eq!(queue.next_due(), Some(7 + RETRY_NS));
        queue.release(8, 4, |_| panic!("too early"));
        let mut next = ImpairmentQueue::replacing(Some(queue), Impairment::default());
        next.impair(&frame(5), 9);
        let left: Vec<u32> = all(&mut next, 9)
            .iter()
            .map(|frame| number(frame))
            .collect();
        assert_eq!((left, next.bytes), (vec![1, 2, 3, 4, 5], 0));
    }

    #[test]
    fn a_frame_without_a_payload_has_no_bit_to_flip() {
        for length in [0, 13, 14] {
            assert!(!flip(&mut vec![0; length], 77));
        }
        let mut frame = [0; 15];
        assert!(flip(&mut frame, 9) && frame[14] == 2);
    }
}
