// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Comparison of CQ entries, events, arms, limits, contexts and memory with the model after every
//! step.

use crate::memory::{MemoryAccess, PAGE, PAGES};
use crate::objects::{ObservedCqe, PostedRecv};
use crate::simulation::{note, DeviceSimulation, EventExpectation, ExpectedEvent, QPS_PER_CHUNK};
use verbena_abi::cmd::{QpType, QueryCq, QueryQp, Table};
use verbena_abi::cqe::{Cqe, Tail, CQE_SIZE, WC_OPCODE_RECV};
use verbena_abi::ctx::{CqContext, QpContext, QpState};
use verbena_abi::doorbell::{self, ArmMode, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::stats::Counter;
use verbena_device::memory::GuestMemory;
use zerocopy::FromBytes;

impl DeviceSimulation {
    /// Reads the entries that the device has written to the CQs, without consuming them.
    pub fn read_completions(&mut self) {
        for at in 0..self.cqs.len() {
            loop {
                let cq = &self.cqs[at];
                if cq.room() == 0 {
                    break;
                }
                let index = cq.seen.wrapping_sub(cq.base);
                let place = cq
                    .ring
                    .at(u64::from(index % (1 << cq.log_size)) * CQE_SIZE as u64);
                let bytes = self.driver.bytes(place, CQE_SIZE);
                let cqe = Cqe::read_from_bytes(&bytes).expect("an entry");
                let Some(tail) = Tail::unpack(cqe.tail.get(), index, cq.log_size) else {
                    break;
                };
                if cq.dead {
                    self.fail_rule(&format!(
                        "CQ {}: an entry was written after its error",
                        cq.cqn
                    ));
                }
                let queue = usize::from(tail.opcode & WC_OPCODE_RECV != 0);
                let seen = ObservedCqe {
                    cqe,
                    at: cq.seen,
                    status: tail.status,
                    opcode: tail.opcode,
                    flags: tail.wc_flags,
                };
                note!(
                    self,
                    "  CQ {} [{}]: QP {} queue {queue} index {} status {} wr_id {:x} bytes {}",
                    cq.cqn,
                    seen.at,
                    cqe.qpn.get(),
                    cqe.wqe_index.get(),
                    tail.status,
                    cqe.wr_id.get(),
                    cqe.byte_len.get()
                );
                let Some(owner) = self
                    .qps
                    .iter()
                    .position(|qp| qp.qpn == cqe.qpn.get() && qp.cqs[queue] == at)
                else {
                    self.fail_rule(&format!(
                        "CQ {}: {seen:x?} names no QP that uses this CQ",
                        self.cqs[at].cqn
                    ));
                };
                self.counters
                    .complete(queue == 1, tail.status, cqe.vendor_err.get());
                let cq = &mut self.cqs[at];
                cq.waiting.push_back(bytes.try_into().expect("an entry"));
                if tail.status != 0 {
                    cq.solicited.push(cq.seen);
                }
                cq.seen = cq.seen.wrapping_add(1);
                self.qps[owner].completions[queue].push_back(seen);
            }
        }
    }

    /// Marks CQs as dead whose CQ_ERR event has arrived, and checks that they were full.
    pub fn mark_failed_cqs(&mut self) {
        let came: Vec<u32> = self
            .arrived_events
            .iter()
            .filter(|e| e.1.kind == EventType::CqErr)
            .map(|e| e.1.number)
            .collect();
        for cqn in came {
            let Some(cq) = self.cqs.iter_mut().find(|cq| cq.cqn == cqn) else {
                self.fail_rule(&format!("CQ_ERR for CQ {cqn}, which does not exist"));
            };
            let (again, room) = (cq.dead, cq.room());
            cq.dead = true;
            if again || room != 0 {
                self.fail_rule(&format!(
                    "CQ {cqn}: CQ_ERR with room for {room} entries; reported before: {again}"
                ));
            }
            self.cover("a CQ overflows");
            self.counters.add(Counter::CqOverflow);
            self.expect(EventType::CqErr, cqn, EventExpectation::Must);
        }
    }

    /// Returns the context of a QP from the context table.
    pub fn context(&self, qpn: u32) -> QpContext {
        let base = self.contexts[(qpn / QPS_PER_CHUNK) as usize];
        let place = base + u64::from(qpn % QPS_PER_CHUNK) * size_of::<QpContext>() as u64;
        self.driver.ram.read_struct(place).expect("a context")
    }

    /// Reads the states of all QPs from their contexts.
    pub fn read_states(&mut self) {
        for at in 0..self.qps.len() {
            let context = self.context(self.qps[at].qpn);
            let state = QpState::from_raw(context.attr.qp_state);
            if context.seq.get() % 2 != 0 || context.valid != 1 {
                self.fail_rule(&format!(
                    "QP {}: its context is odd or not valid",
                    self.qps[at].qpn
                ));
            }
            self.qps[at].device_state = state.expect("a state");
        }
    }

    /// Moves a QP to ERR in the model if one of its CQs has overflowed, or if the program has moved
    /// it.
    pub fn apply_cq_failures(&mut self) {
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            let (qpn, state) = (qp.qpn, qp.state);
            if qp.moved_to_err {
                self.enter_err(at);
            }
            let qp = &self.qps[at];
            if !qp.cqs.iter().any(|cq| self.cqs[*cq].dead)
                || qp.state_before == QpState::Err
                || state == QpState::Reset
            {
                continue;
            }
            let due = if qp.state == QpState::Err || qp.has_failing_request || self.has_bad_recv(at)
            {
                EventExpectation::May
            } else {
                EventExpectation::Must
            };
            self.expect(EventType::QpFatal, qpn, due);
            self.enter_err(at);
        }
    }

    /// True if a receive may have moved the QP to ERR before its CQ overflowed. The completion of
    /// that receive found no room in the CQ.
    fn has_bad_recv(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let posted = qp.srq.map_or(&qp.recvs, |srq| &self.srqs[srq].posted);
        let pd = self.recv_pd(at);
        let bad = |r: &PostedRecv| {
            r.malformed
                || self
                    .keys
                    .resolve_all(&r.sges, pd, MemoryAccess::Write)
                    .is_err()
        };
        self.cqs[qp.cqs[1]].dead && posted.iter().any(bad)
    }

    /// Checks that all events that are due have arrived once, and no others.
    pub fn compare_events(&mut self) {
        let came = std::mem::take(&mut self.arrived_events);
        for (eqn, event) in &came {
            if event.kind == EventType::Completion {
                if !self
                    .cqs
                    .iter()
                    .any(|cq| cq.cqn == event.number && cq.eqn == *eqn)
                {
                    self.fail_rule(&format!("{event:?} in EQ {eqn}"));
                }
                continue;
            }
            let told = ExpectedEvent {
                kind: event.kind as u8,
                number: event.number,
            };
            if *eqn != 0 || self.expected_events.remove(&told).is_none() {
                self.fail_rule(&format!("{event:?} in EQ {eqn} is not due"));
            }
        }
        if let Some((told, _)) = self
            .expected_events
            .iter()
            .find(|d| *d.1 == EventExpectation::Must)
        {
            self.fail_rule(&format!(
                "{:?} of {} is owed",
                EventType::from_raw(told.kind),
                told.number
            ));
        }
        self.expected_events.clear();
        self.compare_arms(&came);
    }

    fn compare_arms(&mut self, came: &[(u32, verbena_device::objects::eq::Event)]) {
        for at in 0..self.cqs.len() {
            let cq = &self.cqs[at];
            let cqn = cq.cqn;
            let count = came
                .iter()
                .filter(|e| e.1.kind == EventType::Completion && e.1.number == cqn)
                .count();
            let served = self.words(cq.place.0).load(doorbell::cq_served(cq.place.1));
            let first = cq.arm.index.max(cq.notified);
            let wanted = match cq.arm.mode {
                ArmMode::None => None,
                ArmMode::Next => (first < cq.seen).then_some(first),
                ArmMode::Solicited => cq.solicited.iter().copied().filter(|i| *i >= first).min(),
            };
            let owed = cq.arm.seq != cq.served && wanted.is_some();
            let expected = if owed {
                (1, cq.arm.seq)
            } else {
                (0, cq.served)
            };
            // The rules leave open if a dead CQ serves its arm.
            if (count, served) != expected && !cq.dead {
                self.fail_rule(&format!(
                    "CQ {cqn}: {count} events, {served} served; {:?}, {} served before, notified {}, seen {}, solicited {:?}",
                    cq.arm, cq.served, cq.notified, cq.seen, cq.solicited
                ));
            }
            self.driver.must(&QueryCq {
                id: cqn.into(),
                ..Default::default()
            });
            let context: CqContext = self.published(Table::Cqc, cqn);
            self.check_cq_context(at, &context);
            let cq = &self.cqs[at];
            let notified = context.notified_index.get();
            let right = context.seq.get() % 2 == 0
                && context.served_seq.get() == served
                && if count == 0 {
                    notified == cq.notified
                } else {
                    notified <= cq.seen && Some(notified) > wanted
                };
            if !right {
                self.fail_rule(&format!(
                    "CQ {cqn}: its context is wrong: {context:?}, model {cq:?}"
                ));
            }
            if count > 0 {
                self.cover("a CQ notifies");
            }
            let cq = &mut self.cqs[at];
            (cq.notified, cq.served) = (notified, served);
            cq.solicited.retain(|i| *i >= notified);
        }
    }

    /// Checks that receives of SRQs are taken in order, and that each limit is reported once.
    pub fn compare_srqs(&mut self) {
        for at in 0..self.srqs.len() {
            let srq = &self.srqs[at];
            let taken = self
                .words(srq.place.0)
                .load(doorbell::srq_consumer(srq.place.1));
            let whole = self.qps.iter().filter(|qp| qp.srq == Some(at)).all(|qp| {
                let peer = &self.qps[qp.peer];
                qp.state == QpState::Rts && matches!(peer.state, QpState::Rts | QpState::Sqd)
            });
            let vague = srq.is_uncertain || !whole;
            let exact = srq.posted.front().map_or(srq.pi, |r| r.index);
            let gaps = srq
                .posted
                .iter()
                .zip(srq.posted.iter().skip(1))
                .any(|(a, b)| a.index + 1 != b.index);
            if taken < srq.taken || taken > srq.pi || (!vague && (taken != exact || gaps)) {
                self.fail_rule(&format!("SRQ {}: {taken} taken, model {srq:?}", srq.srqn));
            }
            if srq.found_empty && taken != srq.pi {
                self.fail_rule(&format!(
                    "SRQ {}: a message found no receive, but {} are posted",
                    srq.srqn,
                    srq.pi - taken
                ));
            }
            let srqn = srq.srqn;
            self.srqs[at].taken = taken;
            self.srqs[at].is_uncertain = vague;
            self.srqs[at].found_empty = false;
            let srq = &self.srqs[at];
            if srq.pi - taken < srq.limit {
                self.srqs[at].limit = 0;
                self.expect(EventType::SrqLimitReached, srqn, EventExpectation::Must);
                self.cover("an SRQ's limit");
            }
            self.check_srq_context(at, taken);
        }
    }

    /// Compares the states and contexts of QPs, and the watch words of their doorbell slots.
    pub fn compare_qps(&mut self) {
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            if qp.device_state != qp.state {
                self.fail_rule(&format!(
                    "QP {}: the state is {:?}, and has to be {:?}",
                    qp.qpn, qp.device_state, qp.state
                ));
            }
            let word = self
                .words(qp.place.0)
                .load(doorbell::recv_watch(qp.place.1));
            // A queue pair that takes requests may have told its peer that there are no receives.
            let may_be_short =
                matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) && qp.srq.is_none();
            if (word != 0) != (qp.state == QpState::Err) && !(word != 0 && may_be_short) {
                self.fail_rule(&format!(
                    "QP {}: watch word {word} in {:?}",
                    qp.qpn, qp.state
                ));
            }
            let qpn = qp.qpn;
            self.driver.must(&QueryQp {
                id: qpn.into(),
                ..Default::default()
            });
            let context = self.context(qpn);
            self.check_qp_context(at, &context);
            let qp = &self.qps[at];
            let lost = qp.cqs.iter().any(|cq| self.cqs[*cq].dead);
            let sq = qp.pi[0].wrapping_sub(qp.sends.len() as u32);
            let rq = qp.pi[1].wrapping_sub(qp.recvs.len() as u32);
            let exact = !lost && !matches!(qp.state, QpState::Sqd);
            let right = context.seq.get() % 2 == 0
                && (!exact || context.sq_pi.get() == qp.pi[0])
                && (!exact || context.sq_ci.get() == sq)
                && (!exact
                    || qp.srq.is_some()
                    || context.rq_ci.get() == rq
                    || (qp.kind != QpType::Rc && context.rq_ci.get() == rq + 1)
                    || self.may_be_interrupted(at));
            if !right {
                self.fail_rule(&format!("QP {qpn}: its context is wrong: model {:?} {} {sq} {} {rq}, device {} {} {} {} {:?}", qp.state, qp.pi[0], qp.pi[1], context.sq_pi.get(), context.sq_ci.get(), context.rq_pi.get(), context.rq_ci.get(), context));
            }
        }
    }

    /// True if a message may have ended in the middle, after it had taken its receive.
    fn may_be_interrupted(&self, at: usize) -> bool {
        self.qps[self.qps[at].peer].state != QpState::Rts
    }

    /// Compares the data memory with the model.
    pub fn compare_memory(&mut self) {
        let real = self.driver.bytes(self.heap, (PAGES * PAGE) as usize);
        if let Some(at) = self.data.compare_with(&real) {
            let (found, model) = (&real[at..real.len().min(at + 16)], self.data.at(at));
            self.fail_rule(&format!(
                "data memory at {at:#x} is {found:x?}, the model has {model:x?}"
            ));
        }
    }

    /// Checks that released memory is unchanged.
    pub fn compare_released_memory(&self) {
        for (at, bytes) in &self.released_memory {
            if self.driver.bytes(*at, bytes.len()) != *bytes {
                self.fail_rule(&format!(
                    "memory at {at:#x} was changed after the device had released it"
                ));
            }
        }
    }
}
