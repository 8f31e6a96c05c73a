// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Comparison of CQ entries, events, arms, limits, contexts and memory with the model after every
//! step.

use crate::lab::{note, Due, Lab, Told, QPS_PER_CHUNK};
use crate::memory::{Want, PAGE, PAGES};
use crate::things::{Recv, Seen};
use verbena_abi::cmd::{QpType, QueryCq, QueryQp, Table};
use verbena_abi::cqe::{Cqe, Tail, CQE_SIZE, WC_OPCODE_RECV};
use verbena_abi::ctx::{CqContext, QpContext, QpState};
use verbena_abi::doorbell::{self, ArmMode, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::stats::Counter;
use verbena_device::memory::GuestMemory;
use zerocopy::FromBytes;

impl Lab {
    /// Reads the entries that the device has written to the CQs, without consuming them.
    pub fn collect(&mut self) {
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
                let bytes = self.d.bytes(place, CQE_SIZE);
                let cqe = Cqe::read_from_bytes(&bytes).expect("an entry");
                let Some(tail) = Tail::unpack(cqe.tail.get(), index, cq.log_size) else {
                    break;
                };
                if cq.dead {
                    self.broken(&format!(
                        "CQ {}: an entry was written after its error",
                        cq.cqn
                    ));
                }
                let queue = usize::from(tail.opcode & WC_OPCODE_RECV != 0);
                let seen = Seen {
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
                    self.broken(&format!(
                        "CQ {}: {seen:x?} names no QP that uses this CQ",
                        self.cqs[at].cqn
                    ));
                };
                self.tally
                    .complete(queue == 1, tail.status, cqe.vendor_err.get());
                let cq = &mut self.cqs[at];
                cq.waiting.push_back(bytes.try_into().expect("an entry"));
                if tail.status != 0 {
                    cq.solicited.push(cq.seen);
                }
                cq.seen = cq.seen.wrapping_add(1);
                self.qps[owner].got[queue].push_back(seen);
            }
        }
    }

    /// Marks CQs as dead whose CQ_ERR event has arrived, and checks that they were full.
    pub fn bury(&mut self) {
        let came: Vec<u32> = self
            .came
            .iter()
            .filter(|e| e.1.kind == EventType::CqErr)
            .map(|e| e.1.number)
            .collect();
        for cqn in came {
            let Some(cq) = self.cqs.iter_mut().find(|cq| cq.cqn == cqn) else {
                self.broken(&format!("CQ_ERR for CQ {cqn}, which does not exist"));
            };
            let (again, room) = (cq.dead, cq.room());
            cq.dead = true;
            if again || room != 0 {
                self.broken(&format!(
                    "CQ {cqn}: CQ_ERR with room for {room} entries; reported before: {again}"
                ));
            }
            self.meet("a CQ overflows");
            self.tally.add(Counter::CqOverflow);
            self.expect(EventType::CqErr, cqn, Due::Must);
        }
    }

    /// Returns the context of a QP from the context table.
    pub fn context(&self, qpn: u32) -> QpContext {
        let base = self.contexts[(qpn / QPS_PER_CHUNK) as usize];
        let place = base + u64::from(qpn % QPS_PER_CHUNK) * size_of::<QpContext>() as u64;
        self.d.ram.read_struct(place).expect("a context")
    }

    /// Reads the states of all QPs from their contexts.
    pub fn look(&mut self) {
        for at in 0..self.qps.len() {
            let context = self.context(self.qps[at].qpn);
            let state = QpState::from_raw(context.attr.qp_state);
            if context.seq.get() % 2 != 0 || context.valid != 1 {
                self.broken(&format!(
                    "QP {}: its context is odd or not valid",
                    self.qps[at].qpn
                ));
            }
            self.qps[at].real = state.expect("a state");
        }
    }

    /// Moves a QP to ERR in the model if one of its CQs has overflowed, or if the program has moved
    /// it.
    pub fn mourn(&mut self) {
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            let (qpn, state) = (qp.qpn, qp.state);
            if qp.pushed {
                self.enter_err(at);
            }
            let qp = &self.qps[at];
            if !qp.cqs.iter().any(|cq| self.cqs[*cq].dead)
                || qp.was == QpState::Err
                || state == QpState::Reset
            {
                continue;
            }
            let due = if qp.state == QpState::Err || qp.excused || self.has_bad_recv(at) {
                Due::May
            } else {
                Due::Must
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
        let bad =
            |r: &Recv| r.malformed || self.keys.look_up_all(&r.sges, pd, Want::Write).is_err();
        self.cqs[qp.cqs[1]].dead && posted.iter().any(bad)
    }

    /// Checks that all events that are due have arrived once, and no others.
    pub fn balance_events(&mut self) {
        let came = std::mem::take(&mut self.came);
        for (eqn, event) in &came {
            if event.kind == EventType::Completion {
                if !self
                    .cqs
                    .iter()
                    .any(|cq| cq.cqn == event.number && cq.eqn == *eqn)
                {
                    self.broken(&format!("{event:?} in EQ {eqn}"));
                }
                continue;
            }
            let told = Told {
                kind: event.kind as u8,
                number: event.number,
            };
            if *eqn != 0 || self.due.remove(&told).is_none() {
                self.broken(&format!("{event:?} in EQ {eqn} is not due"));
            }
        }
        if let Some((told, _)) = self.due.iter().find(|d| *d.1 == Due::Must) {
            self.broken(&format!(
                "{:?} of {} is owed",
                EventType::from_raw(told.kind),
                told.number
            ));
        }
        self.due.clear();
        self.balance_arms(&came);
    }

    fn balance_arms(&mut self, came: &[(u32, verbena_device::objects::eq::Event)]) {
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
                self.broken(&format!(
                    "CQ {cqn}: {count} events, {served} served; {:?}, {} served before, notified {}, seen {}, solicited {:?}",
                    cq.arm, cq.served, cq.notified, cq.seen, cq.solicited
                ));
            }
            self.d.must(&QueryCq {
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
                self.broken(&format!(
                    "CQ {cqn}: its context is wrong: {context:?}, model {cq:?}"
                ));
            }
            if count > 0 {
                self.meet("a CQ notifies");
            }
            let cq = &mut self.cqs[at];
            (cq.notified, cq.served) = (notified, served);
            cq.solicited.retain(|i| *i >= notified);
        }
    }

    /// Checks that receives of SRQs are taken in order, and that each limit is reported once.
    pub fn balance_srqs(&mut self) {
        for at in 0..self.srqs.len() {
            let srq = &self.srqs[at];
            let taken = self
                .words(srq.place.0)
                .load(doorbell::srq_consumer(srq.place.1));
            let whole = self.qps.iter().filter(|qp| qp.srq == Some(at)).all(|qp| {
                let peer = &self.qps[qp.peer];
                qp.state == QpState::Rts && matches!(peer.state, QpState::Rts | QpState::Sqd)
            });
            let vague = srq.vague || !whole;
            let exact = srq.posted.front().map_or(srq.pi, |r| r.index);
            let gaps = srq
                .posted
                .iter()
                .zip(srq.posted.iter().skip(1))
                .any(|(a, b)| a.index + 1 != b.index);
            if taken < srq.taken || taken > srq.pi || (!vague && (taken != exact || gaps)) {
                self.broken(&format!("SRQ {}: {taken} taken, model {srq:?}", srq.srqn));
            }
            if srq.starved && taken != srq.pi {
                self.broken(&format!(
                    "SRQ {}: a message found no receive, but {} are posted",
                    srq.srqn,
                    srq.pi - taken
                ));
            }
            let srqn = srq.srqn;
            self.srqs[at].taken = taken;
            self.srqs[at].vague = vague;
            self.srqs[at].starved = false;
            let srq = &self.srqs[at];
            if srq.pi - taken < srq.limit {
                self.srqs[at].limit = 0;
                self.expect(EventType::SrqLimitReached, srqn, Due::Must);
                self.meet("an SRQ's limit");
            }
            self.check_srq_context(at, taken);
        }
    }

    /// Compares the states and contexts of QPs, and the error words of their doorbell slots.
    pub fn balance_qps(&mut self) {
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            if qp.real != qp.state {
                self.broken(&format!(
                    "QP {}: the state is {:?}, and has to be {:?}",
                    qp.qpn, qp.real, qp.state
                ));
            }
            let word = self.words(qp.place.0).load(doorbell::qp_error(qp.place.1));
            if (word != 0) != (qp.state == QpState::Err) {
                self.broken(&format!(
                    "QP {}: error word {word} in {:?}",
                    qp.qpn, qp.state
                ));
            }
            let qpn = qp.qpn;
            self.d.must(&QueryQp {
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
                    || self.cut_short(at));
            if !right {
                self.broken(&format!("QP {qpn}: its context is wrong: model {:?} {} {sq} {} {rq}, device {} {} {} {} {:?}", qp.state, qp.pi[0], qp.pi[1], context.sq_pi.get(), context.sq_ci.get(), context.rq_pi.get(), context.rq_ci.get(), context));
            }
        }
    }

    /// True if a message may have ended in the middle, after it had taken its receive.
    fn cut_short(&self, at: usize) -> bool {
        self.qps[self.qps[at].peer].state != QpState::Rts
    }

    /// Compares the data memory with the model.
    pub fn balance_memory(&mut self) {
        let real = self.d.bytes(self.heap, (PAGES * PAGE) as usize);
        if let Some(at) = self.data.settle(&real) {
            let (found, model) = (&real[at..real.len().min(at + 16)], self.data.at(at));
            self.broken(&format!(
                "data memory at {at:#x} is {found:x?}, the model has {model:x?}"
            ));
        }
    }

    /// Checks that released memory is unchanged.
    pub fn balance_graves(&self) {
        for (at, bytes) in &self.graves {
            if self.d.bytes(*at, bytes.len()) != *bytes {
                self.broken(&format!(
                    "memory at {at:#x} was changed after the device had released it"
                ));
            }
        }
    }
}
