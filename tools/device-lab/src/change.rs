// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Changes of state in the middle of everything, recovery from errors, and the end, when all is destroyed.

use crate::lab::{note, Due, Lab, LOG_RQ_STRIDE, LOG_SQ_STRIDE, LOG_WQ, WQ};
use verbena_abi::cmd::*;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::ctx::{qp_mask as m, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_device::mem::GuestMemory;

impl Lab {
    /// Changes the state of a queue pair with requests under way.
    pub fn change(&mut self) {
        if self.rng.chance(10) {
            let at = self.rng.below(self.qps.len() as u64) as usize;
            let qp = &self.qps[at];
            let (qpn, state) = (qp.qpn, qp.state);
            let alive = !qp.cqs.iter().any(|cq| self.cqs[*cq].dead);
            if alive && !matches!(state, QpState::Reset | QpState::Err) && self.d.move_to(qpn, QpState::Err).is_ok() {
                note!(self, "QP {qpn} is moved to ERR");
                self.qps[at].pushed = true;
            }
        }
    }

    /// Arms the limit of an SRQ. One that is above the count fires at once.
    pub fn arm_limit(&mut self, at: usize) {
        let limit = self.rng.below(WQ.into()) as u32;
        let srqn = self.srqs[at].srqn;
        self.d.must(&ModifySrq {
            srqn: srqn.into(),
            limit: limit.into(),
            ..Default::default()
        });
        note!(self, "SRQ {srqn} limit {limit}");
        let srq = &mut self.srqs[at];
        srq.limit = limit;
        if srq.pi - srq.taken < limit {
            srq.limit = 0;
            self.expect(EventType::SrqLimitReached, srqn, Due::Must);
        }
    }

    /// Puts right what went wrong, now or later.
    pub fn recover(&mut self) {
        for at in 0..self.qps.len() {
            let (peer, state) = (self.qps[at].peer, self.qps[at].state);
            if at > peer || (state == QpState::Rts && self.qps[peer].state == QpState::Rts) || self.rng.chance(40) {
                continue;
            }
            let pair = [at, peer];
            let dead: Vec<usize> =
                pair.iter().flat_map(|p| self.qps[*p].cqs).filter(|cq| self.cqs[*cq].dead).collect();
            if dead.is_empty() {
                pair.iter().for_each(|p| self.reset(*p));
                self.connect(at);
                self.meet("a pair recovers");
                continue;
            }
            self.replace(dead[0]);
        }
    }

    fn reset(&mut self, at: usize) {
        let qpn = self.qps[at].qpn;
        note!(self, "QP {qpn} is reset");
        match self.d.move_to(qpn, QpState::Reset) {
            Ok(reply) => self.forget(at, &reply),
            Err(e) => self.broken(&format!("QP {qpn}: RESET is refused: {e:?}")),
        }
        let (uar, slot) = self.qps[at].place;
        self.words(uar).store(doorbell::sq_producer(slot), 0);
        self.words(uar).store(doorbell::rq_producer(slot), 0);
    }

    /// What a queue pair had is gone without a completion.
    fn forget(&mut self, at: usize, reply: &Quiesced) {
        let held = reply.recv_held.get();
        let qp = &mut self.qps[at];
        let (qpn, srq) = (qp.qpn, qp.srq);
        qp.sends.clear();
        qp.recvs.clear();
        (qp.pi, qp.sq_free, qp.state, qp.connected) = ([0; 2], WQ, QpState::Reset, false);
        if held > 1 || (held == 1 && srq.is_none()) {
            self.broken(&format!("QP {qpn}: {held} receives held"));
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
                self.broken(&format!("QP {qpn}: it held {found:x?}, which is not under way"));
            }
            self.meet("a receive is given back");
        }
        // Once nobody holds anything, what was taken has completed or will never.
        let idle = self.qps.iter().filter(|qp| qp.srq == Some(srq)).all(|qp| qp.state == QpState::Reset);
        if idle {
            let srq = &mut self.srqs[srq];
            let taken = srq.taken;
            srq.posted.retain(|r| r.index >= taken);
            srq.vague = false;
        }
    }

    /// Memory that was given back: its bytes are noted, and have to stay.
    fn bury_memory(&mut self, at: u64, len: usize) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8 ^ 0xa5).collect();
        self.d.ram.write(at, &bytes).expect("a ring");
        self.graves.push((at, bytes));
    }

    fn destroy_qp(&mut self, at: usize) {
        let (qpn, rings, shared) = (self.qps[at].qpn, self.qps[at].rings, self.qps[at].srq.is_some());
        note!(self, "QP {qpn} is destroyed");
        let reply = self.d.must(&DestroyQp {
            id: qpn.into(),
            ..Default::default()
        });
        self.forget(at, &reply);
        let context = self.context(qpn);
        if context.valid != 0 || context.seq.get() % 2 != 0 {
            self.broken(&format!("QP {qpn}: its context says that it lives"));
        }
        self.bury_memory(rings[0], 1 << (LOG_WQ + LOG_SQ_STRIDE));
        if !shared {
            self.bury_memory(rings[1], 1 << (LOG_WQ + LOG_RQ_STRIDE));
        }
    }

    fn destroy_cq(&mut self, at: usize) {
        let cq = &self.cqs[at];
        let (cqn, ring, bytes) = (cq.cqn, cq.ring, CQE_SIZE << cq.log_size);
        note!(self, "CQ {cqn} is destroyed");
        self.d.must(&DestroyCq {
            id: cqn.into(),
            ..Default::default()
        });
        self.bury_memory(ring, bytes);
    }

    /// Destroys a dead CQ with the queue pairs attached to it and their peers, and creates all of them anew.
    fn replace(&mut self, cq: usize) {
        let busy = self.d.cmd(&DestroyCq {
            id: self.cqs[cq].cqn.into(),
            ..Default::default()
        });
        if busy.map_err(|e| e.status) != Err(CmdStatus::Busy) {
            self.broken(&format!("CQ {}: in use, and destroyed: {busy:?}", self.cqs[cq].cqn));
        }
        let uses = |lab: &Self, at: usize| lab.qps[at].cqs.contains(&cq);
        let hit: Vec<usize> =
            (0..self.qps.len()).filter(|at| uses(self, *at) || uses(self, self.qps[*at].peer)).collect();
        hit.iter().for_each(|at| self.destroy_qp(*at));
        self.destroy_cq(cq);
        self.cqs[cq] = self.create_cq();
        for at in &hit {
            // Not on another that is dead too.
            let qp = self.create_qp(self.qps[*at].kind, self.qps[*at].peer);
            self.qps[*at] = qp;
        }
        for at in hit {
            if at < self.qps[at].peer {
                self.connect(at);
            }
        }
        self.meet("a CQ is replaced");
    }

    /// Moves a queue pair to SQD, or back to RTS.
    pub fn drain(&mut self, at: usize, notify: bool) -> bool {
        let attr = QpAttr {
            qp_state: QpState::Sqd.to_raw(),
            en_sqd_async_notify: notify.into(),
            ..Default::default()
        };
        let mask = m::STATE | m::EN_SQD_ASYNC_NOTIFY;
        self.d.modify(self.qps[at].qpn, mask, attr).is_ok()
    }

    /// The end: everything can be destroyed, nothing is owed, and nothing is touched any more.
    pub fn end(&mut self) {
        for at in 0..self.qps.len() {
            self.destroy_qp(at);
        }
        for at in 0..self.cqs.len() {
            self.destroy_cq(at);
        }
        for at in 0..self.srqs.len() {
            let (srqn, ring) = (self.srqs[at].srqn, self.srqs[at].ring);
            self.d.must(&DestroySrq {
                id: srqn.into(),
                ..Default::default()
            });
            self.bury_memory(ring, 1 << (LOG_WQ + LOG_RQ_STRIDE));
        }
        for region in std::mem::take(&mut self.keys.0) {
            self.d.must(&DestroyMr {
                id: region.key.into(),
                ..Default::default()
            });
        }
        self.let_settle();
        if let Some((eqn, event)) = self.came.first() {
            self.broken(&format!("{event:?} in EQ {eqn} after the end"));
        }
        self.balance_graves();
        self.balance_memory();
    }
}
