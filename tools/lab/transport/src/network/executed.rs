// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks of the requests that a responder has executed in a call, including those that it had
//! kept: each must be executed as far as the responder reports. Also the responses that a requester
//! had kept.

use super::model::{NetworkModel, QpCall};
use super::qp_model::nearest_psn;
use super::work::PlannedFault;
use verbena_transport::packet::Packet;
use verbena_transport::QpType;

impl NetworkModel {
    /// Handles a kept packet that the engine executes in the call of another packet. The other
    /// packet must be executed, with no gap between the two.
    pub(super) fn on_reassembled(&mut self, me: usize, packet: &Packet) {
        self.trace(me, || {
            format!("goes on with {}", super::observer::describe(packet))
        });
        self.reference_reassembled(me, packet);
        let end = &self.qps[me];
        if !packet.kind.is_request() {
            assert!(!end.attr.local_peer, "{:?} keeps responses", end.qp_type);
            let end = nearest_psn(end.una_psn, packet.psn) + u64::from(packet.psns);
            self.call = QpCall::Response { end };
            return;
        }
        let first = nearest_psn(end.expected, packet.psn);
        let last = first + u64::from(packet.psns);
        let same_life = self.qps[end.peer].life == end.life;
        assert!(
            end.qp_type == QpType::Rc && !end.attr.local_peer,
            "{:?} keeps requests",
            end.qp_type
        );
        if end.strict && same_life {
            if first != end.expected {
                self.check_executed(me, first);
            }
            self.qps[me].received = 0;
        }
        self.call = QpCall::Request {
            first,
            end: last,
            op: None,
        };
    }

    /// Checks the requests between the old and the new expected PSN of a responder.
    pub(super) fn check_executed(&mut self, me: usize, to: u64) {
        let lab = self;
        let end = &lab.qps[me];
        let (from, peer, mtu) = (end.expected, end.peer, end.attr.path_mtu);
        let QpCall::Request {
            first, end: last, ..
        } = lab.call
        else {
            panic!("PSN {to:#x} is expected although {from:#x} has not arrived");
        };
        assert!(
            first <= from && from < last && from < to,
            "{from:#x} was expected, {first:#x}..{last:#x} came, {to:#x} is expected"
        );
        let reaches = match lab.op_at(peer, from) {
            Some(op) if lab.ops[op as usize].awaits_response() => {
                lab.ops[op as usize].message_at(from).1
            }
            _ => last,
        };
        assert!(
            to <= reaches,
            "the expected PSN is after the last packet that arrived"
        );
        lab.note_executed(me, to);
        let mut psn = from;
        while psn < to {
            let op = lab.op_at(peer, psn).expect("just executed");
            let op = &lab.ops[op as usize];
            psn = op.end();
            if op.awaits_response() {
                assert!(!op.is_atomic() || op.executed, "not executed: {op:?}");
                assert!(
                    !op.sends_payload() || op.done == op.length,
                    "not written: {op:?}"
                );
                continue;
            }
            let due = ((to.min(psn) - op.first) * u64::from(mtu)).min(u64::from(op.length));
            assert_eq!(
                u64::from(op.done),
                due,
                "not executed as far as the expected PSN says: {op:?}"
            );
            if psn <= to && op.takes_recv() && op.fault != PlannedFault::RemoteInvalidate {
                assert!(op.executed, "its receive is not complete: {op:?}");
            }
        }
    }
}
