// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Comparison of complete contexts, and of their listing for users.

use crate::simulation::{note, DeviceSimulation};
use std::fmt::Debug;
use verbena_abi::cmd::{QuerySrq, Table};
use verbena_abi::ctx::{CqContext, QpContext, QueueState, SrqContext};
use verbena_abi::syndrome::Syndrome;
use verbena_device::memory::GuestMemory;
use verbena_device::{Cursor, Snapshot};
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

/// Returns the fields in which two contexts differ, as text.
fn differences<C: Debug>(found: &C, expected: &C) -> String {
    let (found, expected) = (format!("{found:x?}"), format!("{expected:x?}"));
    let pairs = found.split(", ").zip(expected.split(", "));
    let wrong = pairs.filter(|(is, should)| is != should);
    let wrong = wrong.map(|(is, should)| format!("{is} instead of {should}"));
    wrong.collect::<Vec<_>>().join("; ")
}

impl DeviceSimulation {
    /// Returns the context of an object whose table has one chunk.
    pub fn published<C: FromBytes + IntoBytes>(&self, table: Table, number: u32) -> C {
        let place = self.driver.table(table) + u64::from(number) * size_of::<C>() as u64;
        self.driver.ram.read_struct(place).expect("a context")
    }

    /// Compares the fields of a QP's context that do not depend on its progress.
    pub fn check_qp_context(&self, at: usize, context: &QpContext) {
        let qp = &self.qps[at];
        let (create, mut attr) = (&qp.create, qp.attr);
        attr.qp_state = qp.state as u8;
        attr.cur_qp_state = qp.state as u8;
        let expected = QpContext {
            qpn: create.qpn,
            qp_type: create.qp_type,
            flags: create.flags,
            valid: 1,
            attr,
            av: qp.av,
            pdn: create.pdn,
            send_cqn: create.send_cqn,
            recv_cqn: create.recv_cqn,
            srqn: create.srqn,
            uar: create.uar,
            slot: create.slot,
            log_sq_size: create.log_sq_size,
            log_rq_size: create.log_rq_size,
            rq_pi: qp.pi[1].into(),
            sq_ring: create.sq,
            rq_ring: create.rq,
            // The fields below depend on the progress of the QP.
            seq: context.seq,
            sq_draining: context.sq_draining,
            syndrome: context.syndrome,
            sq_pi: context.sq_pi,
            sq_next: context.sq_next,
            sq_ci: context.sq_ci,
            rq_ci: context.rq_ci,
            next_psn: context.next_psn,
            una_psn: context.una_psn,
            expected_psn: context.expected_psn,
            msn: context.msn,
            retry_left: context.retry_left,
            rnr_left: context.rnr_left,
            ..Default::default()
        };
        if *context != expected {
            let wrong = differences(context, &expected);
            self.fail_rule(&format!("QP {}: its context has {wrong}", qp.qpn));
        }
    }

    /// Compares the context of a CQ with the model.
    pub fn check_cq_context(&self, at: usize, context: &CqContext) {
        let cq = &self.cqs[at];
        let users = self.qps.iter().flat_map(|qp| qp.cqs);
        let mut expected = CqContext {
            cqn: cq.cqn.into(),
            log_size: cq.log_size,
            slot: (cq.place.1 as u16).into(),
            uar: cq.place.0.into(),
            eqn: cq.eqn.into(),
            producer_index: cq.seen.into(),
            consumer_index: cq.ci.into(),
            arm: cq.arm.pack().into(),
            ring: cq.ring.raw,
            moderation_count: cq.moderation.0.into(),
            moderation_period: cq.moderation.1.into(),
            users: (users.filter(|cq| *cq == at).count() as u32).into(),
            // The fields below depend on the progress of the CQ.
            seq: context.seq,
            notified_index: context.notified_index,
            served_seq: context.served_seq,
            ..Default::default()
        };
        if cq.dead {
            expected.state = QueueState::Err as u8;
            expected.syndrome = u32::from(Syndrome::CqOverflow.to_raw()).into();
            (expected.arm, expected.consumer_index) = (context.arm, context.consumer_index);
        } else {
            expected.state = QueueState::Ok as u8;
        }
        if *context != expected {
            let wrong = differences(context, &expected);
            self.fail_rule(&format!("CQ {}: its context has {wrong}", cq.cqn));
        }
    }

    /// Queries an SRQ and compares its context with the model. `taken` is its consumer index.
    pub fn check_srq_context(&mut self, at: usize, taken: u32) {
        let srqn = self.srqs[at].srqn;
        self.driver.must(&QuerySrq {
            id: srqn.into(),
            ..Default::default()
        });
        let context: SrqContext = self.published(Table::Srqc, srqn);
        let srq = &self.srqs[at];
        let users = self.qps.iter().filter(|qp| qp.srq == Some(at)).count();
        let expected = SrqContext {
            seq: context.seq,
            srqn: srqn.into(),
            state: QueueState::Ok as u8,
            log_size: crate::simulation::LOG_WQ,
            slot: (srq.place.1 as u16).into(),
            uar: srq.place.0.into(),
            pdn: srq.pd.into(),
            producer_index: srq.pi.into(),
            consumer_index: taken.into(),
            limit: srq.limit.into(),
            users: (users as u32).into(),
            log_stride: crate::simulation::LOG_RQ_STRIDE,
            ring: srq.ring.raw,
            ..Default::default()
        };
        if context != expected || context.seq.get() % 2 != 0 {
            let wrong = differences(&context, &expected);
            self.fail_rule(&format!("SRQ {srqn}: its context has {wrong}"));
        }
    }

    /// Checks, in 4% of the steps, that all objects are listed once and as they were published
    /// last.
    pub fn compare_listing(&mut self) {
        if !self.rng.chance(4) {
            return;
        }
        let most = 1 + self.rng.below(9) as u32;
        let mut cursor = Some(Cursor::default());
        let mut found: [Vec<u32>; 4] = Default::default();
        while let Some(from) = cursor {
            let portion = self.driver.device.contexts(from, most);
            if portion.contexts.len() > most as usize {
                self.fail_rule("a portion of the listing is too long");
            }
            for listed in portion.contexts {
                let number = listed.number();
                let same = match listed {
                    Snapshot::Qp(c) => {
                        found[0].push(number);
                        let known = self.context(number);
                        *c == QpContext {
                            seq: c.seq,
                            rq_pi: c.rq_pi,
                            ..known
                        }
                    }
                    Snapshot::Cq(c) => {
                        found[1].push(number);
                        let known = self.published(Table::Cqc, number);
                        c == CqContext {
                            seq: c.seq,
                            ..known
                        }
                    }
                    Snapshot::Srq(c) => {
                        found[2].push(number);
                        let known = self.published(Table::Srqc, number);
                        c == SrqContext {
                            seq: c.seq,
                            producer_index: c.producer_index,
                            ..known
                        }
                    }
                    Snapshot::Mr(c) => {
                        found[3].push(number);
                        let known = self.published(Table::Mpt, number);
                        c == verbena_abi::ctx::MemoryEntry {
                            seq: c.seq,
                            ..known
                        }
                    }
                    Snapshot::Eq(_) => continue,
                };
                if !same {
                    self.fail_rule(&format!("{number} is listed otherwise than published"));
                }
            }
            cursor = portion.next;
        }
        let mut expected = [
            self.qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>(),
            self.cqs.iter().map(|cq| cq.cqn).collect(),
            self.srqs.iter().map(|srq| srq.srqn).collect(),
            self.keys.all.iter().map(|r| r.key >> 8).collect(),
        ];
        expected.iter_mut().for_each(|e| e.sort_unstable());
        if found != expected {
            self.fail_rule(&format!("{found:?} are listed, not {expected:?}"));
        }
        note!(self, "  listed");
    }
}
