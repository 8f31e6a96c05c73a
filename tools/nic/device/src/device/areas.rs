// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas: how posts and arms are noticed, and how areas fall asleep and wake.
//!
//! The device compares the generation counters with the values that it saw last, and looks at the
//! slots of a group only if the counter of the group has changed. The protocol of sleeping and
//! waking is code of the contract (`verbena_abi::doorbell`), which a model checks.

use crate::device::sched::{SLICE_AREAS, SLICE_LOOKS};
use crate::device::Device;
use crate::memory::{Area, GuestMemory};
use verbena_abi::doorbell::{self, Words, AREA_SLOTS, GROUPS, GROUP_SLOTS};
use verbena_abi::syndrome::Syndrome;
use verbena_transport::QpState;

/// Number of QPs that the scan of an area wakes for each of its SRQs.
const SCAN_WAKES: u32 = 256;

impl Device {
    /// Puts all areas that are awake to sleep. Returns true if the device then has nothing to do;
    /// false if work came up meanwhile, and the caller has to go on.
    ///
    /// If the scan after the store of its sleep word finds a change in an area, that area is awake
    /// again at once. A device in the fatal state looks at no area any more, and only commands keep
    /// it awake.
    pub fn fall_asleep<M: GuestMemory>(&mut self, mem: &M) -> bool {
        match self.is_recorded() {
            true => self.fall_asleep_recorded(mem),
            false => self.try_to_sleep(mem),
        }
    }

    pub(super) fn try_to_sleep<M: GuestMemory>(&mut self, mem: &M) -> bool {
        if self.shared.regs().is_fatal() {
            return !self.commands.are_pending();
        }
        let awake = self.areas.take_awake();
        let quiet = self.sleep_areas(mem, awake);
        quiet
            && self.areas.are_empty()
            && self.turns.are_none()
            && !self.commands.are_pending()
            && !self.rounds.is_pending()
    }

    /// Puts areas to sleep that the caller has taken off the list of awake areas. Returns false if a scan found a
    /// change. If the scans look at [`SLICE_LOOKS`] slots or there are more than [`SLICE_AREAS`]
    /// areas, the remaining areas stay awake until the next call.
    fn sleep_areas<M: GuestMemory>(&mut self, mem: &M, mut areas: Vec<u32>) -> bool {
        let (mut looks, mut left) = (0, SLICE_AREAS);
        while looks < SLICE_LOOKS && left != 0 {
            let Some(number) = areas.pop() else {
                break;
            };
            looks += self.sleep_area(mem, number);
            left -= 1;
        }
        self.areas.keep_awake(areas);
        looks == 0
    }

    /// Puts an area to sleep. Returns 0 if it is asleep; otherwise a change was found, the area is
    /// awake again, and the result is the number of looks as in [`Device::scan`].
    fn sleep_area<M: GuestMemory>(&mut self, mem: &M, number: u32) -> u32 {
        let Some(uar) = self.shared.uars.get_mut(number) else {
            return 0;
        };
        uar.awake = false;
        let base = uar.base;
        doorbell::fall_asleep(&Area::new(mem, base), &mut uar.sleep);
        let looks = self.scan(mem, number);
        if looks != 0 {
            self.wake_area(mem, number);
        }
        looks
    }

    /// Puts areas to sleep that were silent for some time ([`AreaLists::sweep`]).
    ///
    /// [`AreaLists::sweep`]: crate::device::parts::areas::AreaLists::sweep
    pub(crate) fn let_silent_sleep<M: GuestMemory>(&mut self, mem: &M) {
        let now = self.shared.clock.now();
        let uars = &self.shared.uars;
        let last_found = |number| uars.get(number).map(|uar| uar.last_found);
        let silent = self.areas.sweep(now, last_found);
        self.sleep_areas(mem, silent);
    }

    /// Scans the areas that are awake, within the limits of a slice. True if a change was found, or
    /// if there are more areas to scan.
    pub(crate) fn scan_awake<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let mut looks = 0;
        let are_more = self.areas.are_many();
        for _ in 0..self.areas.scanned() {
            let Some(number) = self.areas.next_to_scan() else {
                break;
            };
            looks += self.scan(mem, number);
            if looks >= SLICE_LOOKS {
                break;
            }
        }
        if !are_more && looks < SLICE_LOOKS {
            self.areas.restart_scan();
        }
        are_more || looks != 0
    }

    /// Wakes the areas that were rung, within the limits of a slice. True if there were any.
    pub(crate) fn wake_rung<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let rung = self.areas.take_rung();
        for &number in &rung {
            if let Some(uar) = self.shared.uars.get_mut(number) {
                uar.rung = false;
                if !uar.awake {
                    self.wake_area(mem, number);
                }
            }
        }
        !rung.is_empty()
    }

    fn wake_area<M: GuestMemory>(&mut self, mem: &M, number: u32) {
        if let Some(uar) = self.shared.uars.get_mut(number) {
            doorbell::wake_up(&Area::new(mem, uar.base), &mut uar.sleep);
            uar.awake = true;
            uar.last_found = self.shared.clock.now();
            self.areas.wake(number);
        }
    }

    /// Looks at the generation counters of an area, and at the slots of those groups whose counter
    /// has changed. Returns the number of looks: one for each changed group and one for each slot.
    ///
    /// Each counter is read before the words that it counts, so that a later post changes it again.
    pub(crate) fn scan<M: GuestMemory>(&mut self, mem: &M, number: u32) -> u32 {
        let mut looks = 0;
        let Some(base) = self.shared.uars.get(number).map(|u| u.base) else {
            return 0;
        };
        let area = Area::new(mem, base);
        for group in 0..GROUPS {
            let qp = area.load_acquire(doorbell::qp_generation(group));
            let cq = area.load_acquire(doorbell::cq_generation(group));
            let Some(uar) = self.shared.uars.get_mut(number) else {
                return looks;
            };
            let qps = (qp != uar.qp_seen[group]).then(|| uar.qps_in(group));
            let cqs = (cq != uar.cq_seen[group]).then(|| uar.cqs_in(group));
            uar.qp_seen[group] = qp;
            uar.cq_seen[group] = cq;
            if qps.is_none() && cqs.is_none() {
                continue;
            }
            let srqs = if qps.is_some() { uar.srqs_in(group) } else { 0 };
            let (qps, cqs) = (qps.unwrap_or(0), cqs.unwrap_or(0));
            uar.last_found = self.shared.clock.now();
            looks += 1 + qps.count_ones() + cqs.count_ones();
            if !mem.contains(base, doorbell::AREA_SIZE as u64) {
                self.area_gone(mem, number);
                return looks;
            }
            for slot in bits(qps) {
                let uar = self.shared.uars.get(number);
                let qpn = uar.and_then(|u| u.qp_at(group * GROUP_SLOTS + slot));
                if let Some(qpn) = qpn {
                    self.look_at_posts(mem, qpn);
                }
            }
            if srqs != 0 {
                looks += self.look_at_srqs(mem, number, group, srqs);
            }
            for slot in bits(cqs) {
                let uar = self.shared.uars.get(number);
                let cqn = uar.and_then(|u| u.cq_at(group * GROUP_SLOTS + slot));
                if let Some(cqn) = cqn {
                    self.shared.notify(mem, cqn);
                }
            }
        }
        looks
    }

    /// Wakes QPs whose peers wait for receives of these SRQs of an area. Returns the number of
    /// looks: one for each SRQ and one for each QP.
    #[cold]
    fn look_at_srqs<M: GuestMemory>(
        &mut self,
        mem: &M,
        number: u32,
        group: usize,
        srqs: u64,
    ) -> u32 {
        let mut looks = srqs.count_ones();
        for slot in bits(srqs) {
            let uar = self.shared.uars.get(number);
            let srqn = uar.and_then(|uar| uar.srq_at(group * GROUP_SLOTS + slot));
            let Some(srq) = srqn.and_then(|srqn| self.shared.srqs.get_mut(srqn)) else {
                continue;
            };
            let (waiting, are_more) = srq.take_waiting(mem, SCAN_WAKES);
            looks += waiting.len() as u32;
            for qpn in waiting {
                if let Some(qp) = self.qps.get_mut(qpn) {
                    qp.env.waits_at = None;
                }
                self.make_ready(qpn);
            }
            if let (true, Some(uar)) = (are_more, self.shared.uars.get_mut(number)) {
                // The next scan looks at the group again.
                uar.qp_seen[group] = uar.qp_seen[group].wrapping_sub(1);
            }
        }
        looks
    }

    /// Moves all QPs of an area to ERR, because the memory of the area is gone.
    fn area_gone<M: GuestMemory>(&mut self, mem: &M, number: u32) {
        let Some(uar) = self.shared.uars.get(number) else {
            return;
        };
        let lost: Vec<u32> = (0..AREA_SLOTS).filter_map(|slot| uar.qp_at(slot)).collect();
        for qpn in lost {
            self.fail_qp(mem, qpn, Syndrome::DoorbellUnreachable);
        }
    }

    /// Takes note of posts to a QP, and makes the QP ready if it has something to do.
    pub(crate) fn look_at_posts<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        if self.note_posts(mem, qpn) {
            self.make_ready(qpn);
        }
    }

    /// Reads the producer index of the send queue. True if the QP has to run.
    pub(crate) fn note_posts<M: GuestMemory>(&mut self, mem: &M, qpn: u32) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        // The peer waits for receives, and some may be posted.
        let tells = qp.env.watched
            && qp.transport.state() != QpState::Err
            && qp.env.rq_producer(mem) != qp.env.rq_ci;
        let in_error = match qp.transport.state() {
            QpState::Reset | QpState::Init | QpState::Rtr => return tells,
            // The flush finds posted receives by taking them.
            QpState::Err => true,
            // Requests that are posted during a move from SQE to RTS belong to RTS.
            QpState::Sqe if self.commands.running().is_some_and(|r| r.resumes(qpn)) => {
                return tells
            }
            QpState::Rts | QpState::Sqd | QpState::Sqe => false,
        };
        // An XRC target has no send queue.
        let producer = match qp.env.qp_type {
            verbena_abi::cmd::QpType::XrcTgt => qp.env.sq_pi,
            _ => qp.env.sq_producer(mem),
        };
        if producer == qp.env.sq_pi {
            return in_error || tells;
        }
        let done = qp.transport.snapshot().sq_consumer;
        let ahead = producer.wrapping_sub(done);
        if ahead > qp.env.sq.size() || ahead < qp.env.sq_pi.wrapping_sub(done) {
            // The failure does nothing to a QP that is in ERR already.
            self.fail_qp(mem, qpn, Syndrome::ProducerIndex);
            return in_error;
        }
        qp.env.sq_pi = producer;
        qp.transport.handle_posts(self.shared.clock.now(), producer);
        true
    }
}

/// Yields the numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let bit = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(bit)
    })
}
