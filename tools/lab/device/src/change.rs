// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Changes of state while requests are pending, recovery from errors, and the end of a run.

use crate::objects::RingMemory;
use crate::simulation::{note, DeviceSimulation, EventExpectation, WQ};
use verbena_abi::cmd::*;
use verbena_abi::cqe::{Tail, CQE_SIZE};
use verbena_abi::ctx::{qp_mask as m, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_device::memory::GuestMemory;

impl DeviceSimulation {
    /// Changes the state of QPs that have requests pending.
    pub fn change_states(&mut self) {
        if self.rng.chance(8) {
            self.drain();
        }
        for at in 0..self.qps.len() {
            // A QP whose SQ_DRAINED event is pending stays in SQD until the event has arrived.
            let qp = &self.qps[at];
            if qp.state_before == QpState::Sqd
                && !qp.drain_event_pending
                && self.rng.chance(50)
                && self.driver.move_to(self.qps[at].qpn, QpState::Rts).is_ok()
            {
                note!(self, "QP {} is moved back to RTS", self.qps[at].qpn);
                let qp = &mut self.qps[at];
                // The program asked for the event of that transition only.
                qp.attr.en_sqd_async_notify = 0;
                (qp.state_before, qp.state) = (QpState::Rts, QpState::Rts);
            }
        }
        if self.rng.chance(10) {
            let at = self.rng.below(self.qps.len() as u64) as usize;
            let qp = &self.qps[at];
            let (qpn, state) = (qp.qpn, qp.state);
            let alive = !qp.cqs.iter().any(|cq| self.cqs[*cq].dead);
            if alive
                && !matches!(state, QpState::Reset | QpState::Err)
                && self.driver.move_to(qpn, QpState::Err).is_ok()
            {
                note!(self, "QP {qpn} is moved to ERR");
                self.qps[at].moved_to_err = true;
            }
        }
    }

    /// Moves a QP that has requests pending to SQD. Requests that have started complete, and the
    /// others wait.
    pub fn drain(&mut self) {
        let at = self.rng.below(self.qps.len() as u64) as usize;
        let qp = &self.qps[at];
        let dead = qp.cqs.iter().any(|cq| self.cqs[*cq].dead);
        if qp.kind != QpType::Rc || qp.state != QpState::Rts || qp.moved_to_err || dead {
            return;
        }
        let (qpn, named, set) = (qp.qpn, self.rng.chance(80), self.rng.chance(80));
        let notify = named && set;
        let attr = QpAttr {
            qp_state: QpState::Sqd.to_raw(),
            en_sqd_async_notify: set.into(),
            ..Default::default()
        };
        let mask = match named {
            true => m::STATE | m::EN_SQD_ASYNC_NOTIFY,
            false => m::STATE,
        };
        // The device may have moved the QP to ERR already.
        if self.driver.modify(qpn, mask, attr).is_ok() {
            note!(self, "QP {qpn} is moved to SQD, with SQ_DRAINED: {notify}");
            let qp = &mut self.qps[at];
            qp.attr.en_sqd_async_notify = notify.into();
            (qp.state_before, qp.state, qp.drain_event_pending) =
                (QpState::Sqd, QpState::Sqd, notify);
            self.cover("SQD");
        }
    }

    /// Records the SQ_DRAINED events that are due.
    pub fn compare_drains(&mut self) {
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            if !qp.drain_event_pending {
                continue;
            }
            let qpn = qp.qpn;
            // The query makes the device publish that the drain has ended.
            self.driver.must(&QueryQp {
                id: qpn.into(),
                ..Default::default()
            });
            let drained = self.context(qpn).sq_draining == 0;
            let qp = &self.qps[at];
            if qp.state == QpState::Sqd && drained {
                self.expect(EventType::SqDrained, qpn, EventExpectation::Must);
                self.qps[at].drain_event_pending = false;
            } else if qp.state != QpState::Sqd {
                // The drain may have ended before the QP left SQD.
                self.expect(EventType::SqDrained, qpn, EventExpectation::May);
                self.qps[at].drain_event_pending = false;
            } else if qp.sends.iter().all(|s| s.executed_by_peer) {
                self.fail_rule(&format!("QP {qpn}: it drains although no send is pending"));
            }
        }
    }

    /// Changes a region: modifies it in place, or destroys it and creates it again with another
    /// tag.
    pub fn change_region(&mut self) {
        let at = self.rng.below(self.keys.all.len() as u64) as usize;
        let key = self.keys.all[at].key;
        if self.is_key_used(key) {
            return;
        }
        let anew = self.rng.chance(50);
        let new = if anew {
            (key & !0xff) | (key.wrapping_add(1) & 0xff)
        } else {
            key
        };
        if anew {
            self.destroy_region(at);
            if self.rng.chance(20) {
                self.create_fast_key_of(new);
            } else {
                let region = self.draw_region(new);
                self.register(region);
            }
        } else {
            let region = self.draw_region(new);
            self.driver.must(&ModifyMr {
                key: region.key.into(),
                pdn: region.pd.into(),
                access: region.rights.into(),
                flags: region.flags.into(),
                iova: region.iova.into(),
                length: region.length.into(),
                page_offset: region.offset().into(),
                pages: region.raw,
            });
            self.keys.all[at] = region;
        }
        note!(self, "key {key:x} is changed");
        self.cover("a region changes");
    }

    /// Resizes a CQ, and checks that the device copies the entries that are not consumed to the new
    /// ring.
    pub fn resize_cq(&mut self, at: usize) {
        let log_size = 3 + self.rng.below(5) as u8;
        let cq = &self.cqs[at];
        if cq.dead {
            return;
        }
        let (cqn, fits) = (cq.cqn, cq.waiting.len() <= 1 << log_size);
        let ring = self.draw_ring(CQE_SIZE << log_size);
        let result = self.driver.cmd(&ResizeCq {
            cqn: cqn.into(),
            log_size,
            ring: ring.raw,
            ..Default::default()
        });
        note!(self, "CQ {cqn} resized to 2^{log_size}: {result:?}");
        if result.is_ok() != fits {
            self.fail_rule(&format!(
                "CQ {cqn}: resized to 2^{log_size} with {result:?}"
            ));
        }
        if !fits {
            return self.cover("a CQ is not resized");
        }
        let cq = &mut self.cqs[at];
        let old = std::mem::replace(&mut cq.ring, ring);
        (cq.log_size, cq.base) = (log_size, cq.ci);
        for i in 0..self.cqs[at].waiting.len() {
            let bytes = self
                .driver
                .bytes(self.cqs[at].ring.at((i * CQE_SIZE) as u64), CQE_SIZE);
            let before = self.cqs[at].waiting[i];
            let word = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
            let same = bytes[..63] == before[..63] && bytes[63] & 0x7f == before[63] & 0x7f;
            if !same || !Tail::is_valid(word, i as u32, log_size) {
                self.fail_rule(&format!("CQ {cqn}: entry {i} has changed in the new ring"));
            }
            self.cqs[at].waiting[i] = bytes.try_into().expect("an entry");
        }
        self.retire_ring_memory(&old);
        self.cover("a CQ is resized");
    }

    /// Changes the moderation of a CQ. Moderation delays events, but every event that is due still
    /// arrives.
    pub fn moderate(&mut self, at: usize) {
        let (count, period) = self.draw_moderation();
        let cq = &mut self.cqs[at];
        cq.moderation = (count, period);
        self.driver.must(&ModifyCq {
            cqn: cq.cqn.into(),
            moderation_count: count.into(),
            moderation_period: period.into(),
            ..Default::default()
        });
    }

    /// Arms the limit of an SRQ. A limit above the number of posted receives fires at once.
    pub fn arm_limit(&mut self, at: usize) {
        let limit = self.rng.below(WQ.into()) as u32;
        let srqn = self.srqs[at].srqn;
        self.driver.must(&ModifySrq {
            srqn: srqn.into(),
            limit: limit.into(),
            ..Default::default()
        });
        note!(self, "SRQ {srqn} limit {limit}");
        let srq = &mut self.srqs[at];
        srq.limit = limit;
        if srq.pi - srq.taken < limit {
            srq.limit = 0;
            self.expect(EventType::SrqLimitReached, srqn, EventExpectation::Must);
        }
    }

    /// Recovers 60% of the failed pairs in each step, and resets 2% of the healthy ones. If a CQ of
    /// the pair is dead, replaces that CQ and the QPs that use it instead.
    pub fn recover(&mut self) {
        for at in 0..self.qps.len() {
            let (peer, state) = (self.qps[at].peer, self.qps[at].state);
            let healthy = |s: QpState| matches!(s, QpState::Rts | QpState::Sqd);
            let well = healthy(state) && healthy(self.qps[peer].state);
            if at > peer || self.rng.chance(if well { 98 } else { 40 }) {
                continue;
            }
            let pair = [at, peer];
            let dead: Vec<usize> = pair
                .iter()
                .flat_map(|p| self.qps[*p].cqs)
                .filter(|cq| self.cqs[*cq].dead)
                .collect();
            if dead.is_empty() {
                pair.iter().for_each(|p| self.reset(*p));
                self.connect(at);
                self.cover("a pair recovers");
                continue;
            }
            self.replace(dead[0]);
        }
    }

    fn reset(&mut self, at: usize) {
        let qpn = self.qps[at].qpn;
        note!(self, "QP {qpn} is reset");
        match self.driver.move_to(qpn, QpState::Reset) {
            Ok(reply) => self.reset_model(at, &reply),
            Err(e) => self.fail_rule(&format!("QP {qpn}: RESET is refused: {e:?}")),
        }
        let (uar, slot) = self.qps[at].place;
        self.words(uar).store(doorbell::sq_producer(slot), 0);
        self.words(uar).store(doorbell::rq_producer(slot), 0);
    }

    /// Removes all requests of a QP that was reset or destroyed; they get no completions. Checks
    /// the receive that the device gives back.
    fn reset_model(&mut self, at: usize, reply: &Quiesced) {
        let held = reply.recv_held.get();
        let qp = &mut self.qps[at];
        let (qpn, srq) = (qp.qpn, qp.srq);
        self.flushed_requests.extend(qp.sends.drain(..));
        qp.recvs.clear();
        (qp.attr, qp.av) = Default::default();
        (qp.pi, qp.sq_free, qp.state, qp.connected) = ([0; 2], WQ, QpState::Reset, false);
        qp.drain_event_pending = false;
        if held > 1 || (held == 1 && srq.is_none()) {
            self.fail_rule(&format!("QP {qpn}: {held} receives held"));
        }
        let Some(srq) = srq else {
            return;
        };
        if held == 1 {
            let found = (reply.recv_index.get(), reply.recv_wr_id.get());
            let posted = &mut self.srqs[srq].posted;
            let before = posted.len();
            posted.retain(|r| (r.index, r.wr_id) != found);
            if posted.len() + 1 != before {
                self.fail_rule(&format!(
                    "QP {qpn}: it reports the receive {found:x?}, which is not posted"
                ));
            }
            self.cover("a receive is given back");
        }
        // If all QPs of the SRQ are in RESET, each receive that was taken has completed or never
        // will.
        let idle = self
            .qps
            .iter()
            .filter(|qp| qp.srq == Some(srq))
            .all(|qp| qp.state == QpState::Reset);
        if idle {
            let srq = &mut self.srqs[srq];
            let taken = srq.taken;
            srq.posted.retain(|r| r.index >= taken);
            srq.is_uncertain = false;
        }
    }

    /// Fills a ring that the device has released with a pattern, which has to stay unchanged.
    fn retire_ring_memory(&mut self, ring: &RingMemory) {
        let len = ring.len / ring.pages.len();
        for at in &ring.pages {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8 ^ 0xa5).collect();
            self.driver.ram.write(*at, &bytes).expect("a ring");
            self.released_memory.push((*at, bytes));
        }
    }

    fn destroy_qp(&mut self, at: usize) {
        let (qpn, rings, shared) = (
            self.qps[at].qpn,
            self.qps[at].rings.clone(),
            self.qps[at].srq.is_some(),
        );
        note!(self, "QP {qpn} is destroyed");
        self.add_destroyed_counters(qpn);
        let reply = self.driver.must(&DestroyQp {
            id: qpn.into(),
            ..Default::default()
        });
        self.reset_model(at, &reply);
        let context = self.context(qpn);
        if context.valid != 0 || context.seq.get() % 2 != 0 {
            self.fail_rule(&format!("QP {qpn}: its context is odd or still valid"));
        }
        self.retire_ring_memory(&rings[0]);
        if !shared {
            self.retire_ring_memory(&rings[1]);
        }
    }

    fn destroy_cq(&mut self, at: usize) {
        let cq = &self.cqs[at];
        let (cqn, ring) = (cq.cqn, cq.ring.clone());
        note!(self, "CQ {cqn} is destroyed");
        self.driver.must(&DestroyCq {
            id: cqn.into(),
            ..Default::default()
        });
        self.retire_ring_memory(&ring);
    }

    /// Destroys a dead CQ, the QPs that use it and their peers, and creates all of them again.
    fn replace(&mut self, cq: usize) {
        let busy = self.driver.cmd(&DestroyCq {
            id: self.cqs[cq].cqn.into(),
            ..Default::default()
        });
        if busy.map_err(|e| e.status) != Err(CmdStatus::Busy) {
            self.fail_rule(&format!(
                "CQ {}: DESTROY_CQ of a CQ in use returns {busy:?}, not Busy",
                self.cqs[cq].cqn
            ));
        }
        let uses = |lab: &Self, at: usize| lab.qps[at].cqs.contains(&cq);
        let hit: Vec<usize> = (0..self.qps.len())
            .filter(|at| uses(self, *at) || uses(self, self.qps[*at].peer))
            .collect();
        hit.iter().for_each(|at| self.destroy_qp(*at));
        self.destroy_cq(cq);
        self.cqs[cq] = self.create_cq();
        for at in &hit {
            // `create_qp` draws from the CQs that are not dead.
            let qp = self.create_qp(self.qps[*at].kind, self.qps[*at].peer);
            self.qps[*at] = qp;
        }
        for at in hit {
            if at < self.qps[at].peer {
                self.connect(at);
            }
        }
        self.cover("a CQ is replaced");
    }

    /// Ends the run: destroys all objects, and checks that no event arrives afterwards and that the
    /// device leaves released memory unchanged.
    pub fn end(&mut self) {
        self.compare_counters();
        for at in 0..self.qps.len() {
            self.destroy_qp(at);
        }
        self.check_counters(&[]);
        for at in 0..self.cqs.len() {
            self.destroy_cq(at);
        }
        for at in 0..self.srqs.len() {
            let (srqn, ring) = (self.srqs[at].srqn, self.srqs[at].ring.clone());
            self.driver.must(&DestroySrq {
                id: srqn.into(),
                ..Default::default()
            });
            self.retire_ring_memory(&ring);
        }
        while !self.keys.all.is_empty() {
            self.destroy_region(0);
        }
        self.run_until_settled();
        if let Some((eqn, event)) = self.arrived_events.first() {
            self.fail_rule(&format!("{event:?} in EQ {eqn} after the end"));
        }
        self.compare_released_memory();
        self.compare_memory();
    }
}
