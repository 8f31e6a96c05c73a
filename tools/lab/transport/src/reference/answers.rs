// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The answers that a reliable responder owes its peer, those that it may send beyond that, and a
//! check of each answer that leaves.

use super::tables::{code_of, near};
use std::collections::BTreeSet;
use verbena_transport::host::AtomicOp;
use verbena_transport::packet::{
    Aeth, AethSyndrome, Feth, NakCode, Packet, PacketKind, Payload, Reth,
};

/// The operation of a READ, an atomic, an ATOMIC WRITE or a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedOp {
    /// RDMA READ with its RETH.
    Read(Reth),
    /// Compare and swap, or fetch and add.
    Atomic {
        /// Key of the word's region.
        rkey: u32,
        /// Address of the word.
        addr: u64,
        /// Operation on the word.
        op: AtomicOp,
    },
    /// ATOMIC WRITE with its RETH.
    Write(Reth),
    /// FLUSH with its FETH and RETH.
    Flush(Feth, Reth),
}

/// An operation of [`RequestedOp`] that was executed.
#[derive(Debug)]
struct StoredOp {
    first: u64,
    end: u64,
    op: RequestedOp,
    /// Value that an atomic returns.
    value: Option<u64>,
    /// PSNs from which the peer has asked for responses.
    requested_psns: Vec<u64>,
}

/// The responder's state at the moment of an answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponderCounts {
    /// PSN that the responder expects next.
    pub expected: u64,
    /// Number of messages executed.
    pub msn: u64,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Code of the responder's own RNR timer.
    pub rnr_timer: u8,
    /// Receives posted, including that of the message in progress. `None` if credits are not used.
    pub receives: Option<u64>,
}

/// All answers that are owed or allowed.
#[derive(Debug, Default)]
pub struct OwedAnswers {
    stored: Vec<StoredOp>,
    /// Number of executed operations that the responder remembers.
    pub keep: usize,
    /// PSNs of responses that are to be sent.
    owed: BTreeSet<u64>,
    /// PSN after the last one that a response answered.
    sent_to: u64,
    /// Lowest PSN whose responses were asked for again.
    again: Option<u64>,
    /// PSN that continues the last response sent.
    next: u64,
    /// PSN whose acknowledgement is owed.
    ack: Option<u64>,
    /// True if a NAK for a gap is owed.
    sequence: bool,
    /// Number of RNR NAKs that may be sent, and whether one is owed.
    rnr: (u32, bool),
    /// True if the last credit count sent was zero.
    pub reported_no_credits: bool,
    /// True if a new credit count has to be sent.
    pub credits_owed: bool,
}

impl OwedAnswers {
    /// Starts with nothing owed and this PSN expected.
    pub fn begin(&mut self, expected: u64, keep: usize) {
        *self = Self {
            keep,
            sent_to: expected,
            ..Self::default()
        };
    }

    /// Returns the number of operations of which not every response was sent.
    pub fn outstanding(&self) -> usize {
        self.stored
            .iter()
            .rev()
            .take_while(|s| s.end > self.sent_to)
            .count()
    }

    /// Notes that an operation is executed, and that its responses are owed.
    pub fn on_executed(&mut self, first: u64, count: u64, wish: RequestedOp) {
        self.stored.push(StoredOp {
            first,
            end: first + count,
            op: wish,
            value: None,
            requested_psns: vec![first],
        });
        self.owed.extend(first..first + count);
        // A response need not be repeated after its operation is forgotten.
        let gone = self.stored.len().saturating_sub(self.keep);
        if let Some(stored) = gone.checked_sub(1).and_then(|gone| self.stored.get(gone)) {
            let below = stored.end.min(self.sent_to);
            self.owed.retain(|psn| *psn >= below);
        }
    }

    /// Notes the value that the atomic just executed returns.
    pub fn result(&mut self, value: u64) {
        if let Some(stored) = self.stored.last_mut() {
            stored.value = Some(value);
        }
    }

    /// Handles a duplicate of an operation. Returns true if it is answered again.
    pub fn on_duplicate(&mut self, psn: u64, mtu: u32, wish: RequestedOp) -> bool {
        let kept = self.stored.len().saturating_sub(self.keep);
        let found = self.stored[kept..]
            .iter_mut()
            .find(|s| s.first <= psn && psn < s.end);
        let Some(stored) = found else {
            return false;
        };
        let rest = match stored.op {
            RequestedOp::Read(reth) => {
                let done = (psn - stored.first) * u64::from(mtu);
                RequestedOp::Read(Reth {
                    addr: reth.addr.wrapping_add(done),
                    length: reth.length - done as u32,
                    ..reth
                })
            }
            other => other,
        };
        if rest != wish {
            return false;
        }
        // The duplicate is late if the peer has since asked from a later PSN and the response to
        // that is pending.
        let late = stored.requested_psns.last().is_some_and(|last| *last > psn);
        let waits = self.owed.range(psn..stored.end).next().is_some();
        stored.requested_psns.push(psn);
        if !(late && waits) {
            self.owed.extend(psn..stored.end);
        }
        self.again = Some(self.again.map_or(psn, |again| again.min(psn)));
        true
    }

    /// Notes that the peer asks for an acknowledgement of this PSN.
    pub fn owe_ack(&mut self, psn: u64) {
        self.ack = self.ack.max(Some(psn));
    }

    /// Notes a gap before the request that came.
    pub fn owe_sequence(&mut self) {
        self.sequence = true;
    }

    /// True if a NAK for a gap is owed.
    pub fn owes_sequence(&self) -> bool {
        self.sequence
    }

    /// Notes that a request found no receive.
    pub fn owe_rnr(&mut self) {
        self.rnr = (self.rnr.0 + 1, true);
    }

    /// Notes that the expected PSN has come, which ends the gap and the wait for a receive.
    pub fn on_expected_request(&mut self) {
        self.sequence = false;
        self.rnr = (0, false);
    }

    /// Returns the first PSN whose response is owed and was never sent.
    fn fresh(&self) -> Option<u64> {
        self.owed.range(self.sent_to..).next().copied()
    }

    /// True if no response of an earlier PSN is pending.
    pub fn is_free(&self, psn: u64) -> bool {
        self.fresh().is_none_or(|fresh| fresh >= psn)
    }

    /// Clears all that is owed, because the connection ends.
    pub fn clear(&mut self) {
        self.owed.clear();
        (self.ack, self.sequence, self.rnr) = (None, false, (0, false));
        self.credits_owed = false;
    }

    /// Describes an answer that is still owed.
    pub fn describe_owed(&self) -> Option<String> {
        if let Some(psn) = self.owed.first() {
            return Some(format!("the response of PSN {psn:#x}"));
        }
        if let Some(psn) = self.ack {
            return Some(format!("an acknowledgement of PSN {psn:#x}"));
        }
        if self.sequence {
            return Some("a NAK for a gap".into());
        }
        if self.rnr.1 {
            return Some("an RNR NAK".into());
        }
        self.credits_owed.then(|| "a count of receives".into())
    }

    /// Checks an answer that leaves, other than a NAK that ends the connection.
    pub fn on_transmit(&mut self, packet: &Packet, now: &ResponderCounts) {
        let psn = near(now.expected, packet.psn);
        match packet.kind {
            PacketKind::Ack(aeth) => self.check_ack(psn, &aeth, now),
            PacketKind::ReadResponse(aeth) => {
                if let Some(aeth) = aeth {
                    self.check_positive_aeth(&aeth, now);
                }
                self.check_response(packet, psn, now);
            }
            PacketKind::AtomicResponse(aeth, value) => {
                self.check_positive_aeth(&aeth, now);
                let found = self.stored.iter().find(|s| s.first == psn);
                let stored = found.and_then(|s| s.value);
                assert_eq!(
                    Some(value),
                    stored,
                    "C9-105: an atomic returns its stored result"
                );
                self.check_order(psn, psn + 1);
            }
            _ => {}
        }
    }

    /// Checks an acknowledgement or NAK that is no response to a READ or atomic.
    fn check_ack(&mut self, psn: u64, aeth: &Aeth, now: &ResponderCounts) {
        let fresh = self.fresh();
        match aeth.syndrome {
            AethSyndrome::Ack { .. } => {
                self.check_positive_aeth(aeth, now);
                let last = fresh.unwrap_or(now.expected).min(now.expected);
                assert_eq!(
                    psn + 1,
                    last,
                    "9.7.5.1: an ACK has the PSN of the last request executed, and passes no response"
                );
                let inside = |s: &&StoredOp| s.first <= psn && psn + 1 < s.end;
                let inside = self.stored.iter().rev().find(inside);
                assert!(
                    inside.is_none(),
                    "9.7.5.1: an ACK of a READ in part: {inside:?}"
                );
                self.on_acknowledged(psn + 1);
            }
            AethSyndrome::Rnr { timer } => {
                assert!(
                    self.rnr.0 > 0,
                    "9.7.5.2.8: an RNR NAK, and nothing came in vain"
                );
                assert_eq!(psn, now.expected, "9.7.5.2.8: the PSN of an RNR NAK");
                assert_eq!(timer, now.rnr_timer, "9.7.5.2.8: the timer of an RNR NAK");
                self.rnr = (self.rnr.0 - 1, false);
                self.check_nak(psn, aeth, now);
            }
            AethSyndrome::Nak(NakCode::Sequence) => {
                assert!(
                    self.sequence,
                    "C9-114: a NAK for no gap, or for the same again"
                );
                assert_eq!(psn, now.expected, "9.7.5.2: the PSN of a NAK for a gap");
                self.sequence = false;
                self.check_nak(psn, aeth, now);
            }
            AethSyndrome::Nak(_) => panic!("9.9.3: a NAK without a refused request: {aeth:?}"),
        }
    }

    /// Checks a NAK of this PSN that leaves.
    pub fn check_nak(&mut self, psn: u64, aeth: &Aeth, now: &ResponderCounts) {
        assert!(self.is_free(psn), "9.7.5.1: a NAK passes a response");
        assert_eq!(
            u64::from(aeth.msn),
            now.msn % (1 << 24),
            "9.7.7.1: the MSN of a NAK"
        );
        self.on_acknowledged(psn);
    }

    /// Notes that everything before this PSN is acknowledged.
    fn on_acknowledged(&mut self, end: u64) {
        if self.ack.is_some_and(|ack| ack < end) {
            self.ack = None;
        }
    }

    fn check_positive_aeth(&mut self, aeth: &Aeth, now: &ResponderCounts) {
        assert_eq!(
            u64::from(aeth.msn),
            now.msn % (1 << 24),
            "9.7.7.1: the MSN of an answer"
        );
        let due = now.receives.map_or(31, code_of);
        assert_eq!(
            aeth.syndrome,
            AethSyndrome::Ack { credits: due },
            "9.7.7.2: receives are {:?}",
            now.receives
        );
        self.reported_no_credits = due == 0;
        self.credits_owed = false;
    }

    /// Checks a READ response.
    fn check_response(&mut self, packet: &Packet, psn: u64, now: &ResponderCounts) {
        let end = psn + u64::from(packet.psns);
        let found = self.stored.iter().find(|s| s.first <= psn && psn < s.end);
        let stored = found.unwrap_or_else(|| panic!("9.7.5.1: a response to no READ: {packet:?}"));
        let reth = match stored.op {
            RequestedOp::Read(reth) => reth,
            RequestedOp::Write(reth) | RequestedOp::Flush(_, reth) => Reth { length: 0, ..reth },
            RequestedOp::Atomic { .. } => panic!("9.7.5.1: a READ response to an atomic"),
        };
        let mtu = u64::from(now.mtu);
        let done = (psn - stored.first) * mtu;
        let rest = u64::from(reth.length) - done;
        let due = rest.min(u64::from(packet.psns) * mtu);
        assert!(end <= stored.end, "9.7.5.1: more responses than requested");
        assert_eq!(
            u64::from(packet.payload.len()),
            due,
            "9.7.6.1: the length of a response"
        );
        assert_eq!(
            packet.last,
            end == stored.end,
            "9.4.4: the end of a READ's responses"
        );
        if packet.first {
            assert!(
                stored.requested_psns.contains(&psn),
                "9.4.4: responses begin where nobody asked"
            );
        } else {
            assert_eq!(psn, self.next, "9.4.4: responses continue at a wrong PSN");
        }
        if let Payload::Region { key, addr, .. } = packet.payload {
            let from = reth.addr.wrapping_add(done);
            assert_eq!(
                (key, addr),
                (reth.rkey, from),
                "9.4.4: memory that nobody asked for"
            );
        }
        self.check_order(psn, end);
        self.next = end;
    }

    /// Checks that responses leave in order, each once for every time that it is asked for.
    fn check_order(&mut self, psn: u64, end: u64) {
        if psn >= self.sent_to {
            assert_eq!(
                self.fresh(),
                Some(psn),
                "9.7.5.1: a response before an earlier one"
            );
        } else {
            let asked = self.owed.contains(&psn) || self.again.is_some_and(|again| again <= psn);
            assert!(
                asked,
                "9.7.5.1: a response that nobody asked for again: {psn:#x}"
            );
        }
        for psn in psn..end {
            self.owed.remove(&psn);
        }
        self.sent_to = self.sent_to.max(end);
        self.on_acknowledged(end);
    }
}
