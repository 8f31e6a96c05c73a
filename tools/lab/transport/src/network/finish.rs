// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The conditions that must hold when no event is left, and after all queue pairs were moved to
//! ERR.

use super::coverage::Topic;
use super::event_queue::SimEvent;
use super::{Scenario, SimNetwork};
use std::rc::Rc;
use verbena_transport::host::WqeOpcode;
use verbena_transport::{QpState, QpType};

impl SimNetwork {
    /// Checks the final state, moves everything to ERR, and checks again.
    pub(super) fn finish(&mut self) {
        for me in 0..self.qps.len() {
            self.check_quiet(me);
        }
        self.model.memory.check_all();
        for me in 0..self.qps.len() {
            self.model.qps[me].frozen = false;
            if self.model.qps[me].state != QpState::Reset {
                let attr = self.model.qps[me].attr;
                self.modify(me, QpState::Err, &attr);
                let at = self.model.now_ns;
                self.events.schedule(at, SimEvent::Poll(me));
            }
        }
        self.run_events();
        self.check_samples();
        for me in 0..self.qps.len() {
            self.check_over(me);
        }
        self.model.memory.check_all();
    }

    /// Checks after the end of packets and work requests that the data of each is dead, and that
    /// only the queue pair that lent it may still hold it, for the next work request.
    fn check_samples(&mut self) {
        for sample in &self.samples {
            if let Some(op) = self.model.ops.get(sample.op as usize) {
                assert!(op.is_complete || !op.wqe.signaled, "{op:?}");
                assert!(
                    !sample.gather.is_alive(),
                    "the buffers of a finished work request can be read: {op:?}"
                );
            }
            let same = |other: &&super::PayloadSample| Rc::ptr_eq(&other.gather, &sample.gather);
            let ours = self.samples.iter().filter(same).count();
            assert!(
                Rc::strong_count(&sample.gather) <= ours + 1,
                "a packet is kept"
            );
        }
    }

    /// Checks, when no event is left, that all work is done that could be done.
    fn check_quiet(&mut self, me: usize) {
        let snap = self.qps[me].snapshot();
        let end = &self.model.qps[me];
        let left = snap.sq_consumer as usize != end.sq.len();
        assert_eq!(
            self.qps[me].next_deadline(),
            None,
            "qp {:#x}: a timer, and nothing is under way",
            end.qpn
        );
        let stuck = end.attr.timeout == 0 && end.disturbed;
        let runs = matches!(end.state, QpState::Rts | QpState::Sqe | QpState::Err);
        assert!(
            !left || !runs || stuck || !end.strict,
            "qp {:#x} in {:?}: {} of {} work requests are complete, and nothing happens",
            end.qpn,
            end.state,
            snap.sq_consumer,
            end.sq.len()
        );
        let counters = self.qps[me].counters();
        let orderly = matches!(self.scenario, Scenario::Fair | Scenario::Lossy);
        if orderly {
            assert_eq!(
                end.state,
                QpState::Rts,
                "the connection ended without a cause"
            );
            let refused = (counters.naks_sent, counters.flushed);
            assert_eq!(refused, (0, 0), "refused or flushed without a cause");
            for op in &end.sq {
                let op = &self.model.ops[*op as usize];
                let done = if op.sends_payload() {
                    op.done
                } else {
                    op.received
                };
                let done = op.psns == 0
                    || op.executed
                    || done == op.length
                    || op.wqe.opcode == WqeOpcode::Flush;
                assert!(end.qp_type != QpType::Rc || done, "not executed: {op:?}");
            }
        }
        if !end.disturbed && end.strict {
            let repeats = [
                counters.retransmitted,
                counters.timeouts,
                counters.sequence_naks_sent,
                counters.sequence_naks_received,
                counters.implied_naks,
                counters.duplicates,
                counters.out_of_sequence,
            ];
            assert_eq!(repeats, [0; 7], "repeated without a reason: {counters:?}");
        }
        let books = &end.expected_counters;
        assert_eq!(counters.tx_packets, books.tx_packets);
        assert_eq!(counters.tx_bytes, books.tx_bytes);
        assert_eq!(counters.rx_packets, books.rx_packets);
        assert_eq!(counters.rx_bytes, books.rx_bytes);
        assert_eq!(counters.flushed, books.flushed);
        if end.strict && end.qp_type == QpType::Rc {
            assert_eq!(counters.retransmitted, books.retransmitted);
        }
        for (index, (_, count)) in counters.each().enumerate() {
            if count > 0 {
                self.model.coverage.count(Topic::Counter, index as u8, 0);
            }
        }
    }

    /// Checks after the end that everything that was posted has completed.
    fn check_over(&mut self, me: usize) {
        let snap = self.qps[me].snapshot();
        let end = &self.model.qps[me];
        if end.state == QpState::Reset {
            return;
        }
        assert_eq!(end.state, QpState::Err);
        assert_eq!(self.qps[me].next_deadline(), None, "a timer in ERR");
        assert_eq!(
            snap.sq_consumer as usize,
            end.sq.len(),
            "a send was not flushed"
        );
        for op in &end.sq[end.done..] {
            let op = &self.model.ops[*op as usize];
            assert!(!op.wqe.signaled, "no completion for {op:?}");
        }
        assert!(
            end.held.is_none(),
            "a receive that was taken was not completed"
        );
        let queue = &self.model.queues[end.queue];
        if !queue.shared && !queue.is_failed {
            assert_eq!(queue.taken, queue.posts.len(), "a receive was not flushed");
            let left = queue
                .posts
                .iter()
                .find(|r| !self.model.recvs[**r as usize].is_complete);
            assert_eq!(left, None, "a receive was not completed");
        }
        assert!(!end.last_wqe || !queue.shared, "no QP_LAST_WQE_REACHED");
    }
}
